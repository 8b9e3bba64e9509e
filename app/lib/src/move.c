/* A move of ranks, as the old processes see it. All stand at the call that they have agreed on.
 *
 *   rank that stays        rank that moves (old process)          its new process
 *    | plan, from rank 0     | the same; its table                      started by MPI: arrive.c
 *    | spawn, rebuild        | spawn, rebuild                           | rebuild
 *    |                       |-- HELLO, table ------------------------>| the program runs to the safe point, and
 *    |                       |<------------------------ ASK from here on | registers: asks for what it needs next
 *    |                       | writes a fragment ahead                  |
 *    |                       |-- FRAGMENT ---------------------------->| reads the one before
 *    |                       |<-------------------------------- ARRIVED | all is there
 *    |<-- least of all ----->|                                          |
 *    | new communicators     |-- COMMIT ------------------------------>| new communicators
 *    | goes on               | frees its data, sleeps to the end        | goes on
 *
 * Until COMMIT the old process has all its data: if anything fails, it goes on as if nothing had been. The two have two fragments each at most, besides the data: the
 * old one sends one and writes the next, the new one receives one and reads the one before.
 */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static struct plan plan;
static double stage[STAGES], spawned, sending, taken; /* sending: since when, or 0; taken: the time of the file that asked */

/* ---- messages between old and new process ---- */

/* Messages move on only when MPI is called: now and then while a fragment is written. */
static void move_on(void) {
    int done = 0;
    /* An MPI library may pass on a few packets at a call. */
    for (int i = 0; sending > 0 && done == 0 && i < LOOKS_BETWEEN; i++)
        done = app.transport.done(app.transport.state, SLOT_FRAGMENT);
    if (sending > 0 && done > 0) {
        stage[STAGE_SEND] += seconds_now() - sending;
        sending = 0;
    }
}

/* Large messages need both sides' attention all the time: the processor is yielded, and only after a while does the wait become a nap. */
int move_wait(int slot) {
    int done;
    for (unsigned looks = 0; (done = app.transport.done(app.transport.state, slot)) == 0; looks++) {
        if (looks < 2000)
            sched_yield();
        else
            usleep(50);
    }
    return done < 0 ? MEND_APP_SYSTEM : 0;
}

int move_tell(const struct move_message *m) {
    static struct move_message kept;
    if (move_wait(SLOT_SENT) < 0)
        return MEND_APP_SYSTEM;
    kept = *m;
    return app.transport.transfer(app.transport.state, SLOT_SENT, 1, 0, &kept, sizeof kept) < 0 ? MEND_APP_SYSTEM : 0;
}

int move_listen(struct move_message *m) {
    return app.transport.transfer(app.transport.state, SLOT_HEARD, 0, 0, m, sizeof *m) < 0 ? MEND_APP_SYSTEM : 0;
}

void move_disk_path(char into[TEXT], int rank) {
    snprintf(into, TEXT, "%.900s/move-files/rank-%05d.h5", app.settings.directory, rank);
}

/* ---- the fragments of a rank that moves ---- */

struct source {
    struct table *table;
    struct fragment ahead, sent, *all; /* all: with move_through = memory, written before the new process is there */
    size_t all_count;
    bool is_ahead;
    struct image outline; /* all but the data, of what the table says */
};

static int write_fragment(struct source *s, struct fragment *f, char error[TEXT]) {
    double since = seconds_now();
    int done = fragment_write(s->table, f, &app.settings, move_on, error);
    stage[STAGE_WRITE] += seconds_now() - since;
    return done;
}

static bool at_end(const struct source *s, struct cursor at) {
    return cursor_settled(s->table, at).block >= s->table->blocks_count;
}

static void nothing(void) {}

static int write_all(struct source *s, char error[TEXT]) {
    struct cursor at = {0, 0};
    int done = 0;
    double since = seconds_now();
    while (done == 0 && !at_end(s, at)) {
        s->all = must_grow(s->all, s->all_count * sizeof *s->all, (s->all_count + 1) * sizeof *s->all);
        struct fragment *f = &s->all[s->all_count++];
        f->from = at;
        done = fragment_write(s->table, f, &app.settings, nothing, error);
        at = f->to;
    }
    stage[STAGE_WRITE] += seconds_now() - since;
    return done;
}

static void script_path(char into[TEXT], int rank) {
    char here[TEXT] = "";
    /* The process manager starts it where the job began. */
    if (app.settings.directory[0] != '/' && getcwd(here, 400))
        strcat(here, "/");
    snprintf(into, TEXT, "%s%.500s/move-files/rank-%05d.sh", here, app.settings.directory, rank);
}

static void quoted(FILE *file, const char *text) {
    fputc('\'', file);
    for (; *text; text++)
        *text == '\'' ? fputs("'\\''", file) : fputc(*text, file);
    fputc('\'', file);
}

static void export(void *file, const char *variable, const char *value) {
    fprintf(file, "export %s=", variable);
    quoted(file, value);
    fputc('\n', file);
}

/* Whether the shell finds the program from where this process was started. */
static bool is_found(const char *program) {
    char path[10 * TEXT];
    if (!strchr(program, '/'))
        return true;
    snprintf(path, sizeof path, "%s%s%s", *program == '/' ? "" : app.began_in, *program == '/' ? "" : "/", program);
    return access(path, X_OK) == 0;
}

/* How this process was started, for the one that takes its place: process managers pass on no environment, and not every argument. */
static int write_script(char error[TEXT]) {
    static const char *const passed[] = {"MEND_APP_", "PATH=", "LD_LIBRARY_PATH=", "PYTHONPATH=", "HDF5_", "FI_", "I_MPI_FABRICS=", "I_MPI_ROOT=", "MPIR_CVAR_", "OMP_", "UCX_"};
    char path[TEXT], word[8 * TEXT];
    script_path(path, app.transport.rank);
    FILE *file = fopen(path, "we"), *arguments = fopen("/proc/self/cmdline", "re");
    size_t length = 0, words = 0;
    if (file) {
        fprintf(file, "cd ");
        quoted(file, app.began_in[0] ? app.began_in : "/");
        fprintf(file, " || exit 1\n");
        for (char **e = environ; *e; e++)
            for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
                if (strncmp(*e, passed[i], strlen(passed[i])) == 0) {
                    const char *equals = strchr(*e, '=');
                    fprintf(file, "export %.*s=", (int)(equals - *e), *e);
                    quoted(file, equals + 1);
                    fputc('\n', file);
                }
        /* Until the library handles it there. */
        if (strcmp(app.settings.signal, "none") != 0)
            fprintf(file, "trap '' %s\n", app.settings.signal);
        /* After those: the ranks must have the same, whatever stands in the file of settings now. */
        settings_each(&app.settings, export, file);
        fprintf(file, "export MEND_APP_ARRIVES=1\nexec");
    }
    for (int c; file && arguments && (c = fgetc(arguments)) != EOF && length < sizeof word - 1;) {
        word[length++] = (char)c;
        if (c == 0) {
            if (words == 0 && !is_found(word)) {
                snprintf(error, TEXT, "a new process can't be started: there is no %.300s from %.500s, where this one was when it began", word, app.began_in);
                fclose(file);
                fclose(arguments);
                return MEND_APP_REFUSED;
            }
            fputc(' ', file);
            quoted(file, word);
            length = 0;
            words++;
        }
    }
    bool good = words > 0 && length == 0;
    if (file) {
        fputc('\n', file);
        good = !ferror(file) && good;
        good = fclose(file) == 0 && good;
    }
    if (arguments)
        fclose(arguments);
    if (!good)
        snprintf(error, TEXT, "%.900s, by which the new process starts, can't be written, or an argument is longer than %zu bytes", path, sizeof word - 2);
    return good ? 0 : MEND_APP_SYSTEM;
}

static int write_disk(struct source *s, char error[TEXT]) {
    char path[TEXT];
    uint64_t bytes;
    double since = seconds_now();
    move_disk_path(path, app.transport.rank);
    int done = rank_file_write(s->table, path, &app.settings, &bytes, error);
    stage[STAGE_WRITE] += seconds_now() - since;
    return done;
}

/* Where the scripts and with move_through = disk the data are. */
static int make_directory(char error[TEXT]) {
    char path[TEXT];
    snprintf(path, sizeof path, "%.900s/move-files", app.settings.directory);
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return 0;
    snprintf(error, TEXT, "%.900s can't be made: %s", path, strerror(errno));
    return MEND_APP_SYSTEM;
}

static void remove_files(void) {
    char path[TEXT], other[TEXT];
    move_disk_path(path, app.transport.rank);
    seal_path(other, path);
    unlink(other);
    unlink(path);
    script_path(other, app.transport.rank);
    unlink(other);
    *strrchr(path, '/') = 0;
    rmdir(path);
}

static void source_free(struct source *s) {
    table_free(s->table);
    fragment_free(&s->ahead);
    fragment_free(&s->sent);
    image_free(&s->outline);
    for (size_t i = 0; i < s->all_count; i++)
        fragment_free(&s->all[i]);
    free(s->all);
    *s = (struct source){0};
}

/* What of this rank will travel, and with move_through = memory or disk all of it. */
static int prepare(struct source *s, char error[TEXT]) {
    bool disk = strcmp(app.settings.move_through, "disk") == 0;
    struct table *base = app.base;
    int done = make_directory(error);
    if (done == 0)
        done = write_script(error);
    if (done)
        return done;
    if (!snapshot_prepare(error))
        return MEND_APP_REFUSED;
    fflush(NULL);
    app.base = NULL;
    s->table = snapshot_take(disk ? SNAPSHOT_IN_PLACE : SNAPSHOT_MOVE, error);
    app.base = base;
    if (!s->table)
        return MEND_APP_REFUSED;
    return disk ? write_disk(s, error) : strcmp(app.settings.move_through, "memory") == 0 ? write_all(s, error) : 0;
}

/* ---- serving the new process ---- */

static bool same_place(struct cursor a, struct cursor b) {
    return !cursor_less(a, b) && !cursor_less(b, a);
}

static int answer(struct source *s, struct cursor from, char error[TEXT]) {
    struct fragment *f = NULL;
    int done = 0;
    from = cursor_settled(s->table, from);
    for (size_t i = 0; i < s->all_count; i++)
        if (same_place(s->all[i].from, from))
            f = &s->all[i];
    if (!f) {
        if (s->is_ahead && !same_place(s->ahead.from, from))
            fragment_free(&s->ahead);
        else if (s->is_ahead)
            f = &s->ahead;
        if (!f) {
            s->ahead.from = from;
            done = write_fragment(s, &s->ahead, error);
        }
        s->is_ahead = false;
        if (done == 0)
            done = move_wait(SLOT_FRAGMENT);
        fragment_free(&s->sent);
        s->sent = s->ahead;
        s->ahead = (struct fragment){0};
        f = &s->sent;
    }
    struct move_message m = {.kind = MOVE_FRAGMENT, .from = f->from, .to = f->to, .length = f->image.length};
    if (done == 0)
        done = move_tell(&m);
    if (done == 0 && app.transport.transfer(app.transport.state, SLOT_FRAGMENT, 1, 1, f->image.bytes, f->image.length) < 0)
        done = MEND_APP_SYSTEM;
    return done;
}

/* Until the new process has all, or says that it can't. */
static int serve(struct source *s, char error[TEXT]) {
    static struct move_message heard;
    struct move_message hello = {.kind = MOVE_HELLO, .attempt = app.rank.attempt, .call = app.call, .newest = app.newest, .number_offset = app.number_offset,
                                 .watched = requests_known(), .taken = taken, .due = requests_clock(), .scheduled_in = app.scheduled_in, .requested = (uint64_t)atomic_load(&request_raised)};
    bool disk = strcmp(app.settings.move_through, "disk") == 0;
    sending = 0;
    int done = disk ? 0 : rank_file_outline(s->table, &s->outline, error);
    hello.length = s->outline.length;
    if (done == 0)
        done = move_tell(&hello);
    if (done == 0 && !disk && app.transport.transfer(app.transport.state, SLOT_OUTLINE, 1, 1, s->outline.bytes, s->outline.length) < 0)
        done = MEND_APP_SYSTEM;
    if (done == 0)
        done = move_listen(&heard);
    for (unsigned looks = 0; done == 0;) {
        int came = app.transport.done(app.transport.state, SLOT_HEARD);
        move_on();
        if (came > 0 && heard.kind == MOVE_ASK) {
            done = move_wait(SLOT_FRAGMENT);
            move_on();
            if (done == 0)
                done = answer(s, heard.from, error);
            sending = seconds_now();
            if (done == 0)
                done = move_listen(&heard);
            looks = 0;
        } else if (came > 0) {
            for (int i = STAGE_WAIT; i < STAGES; i++)
                stage[i] = heard.seconds[i];
            done = heard.kind == MOVE_ARRIVED ? 0 : MEND_APP_REFUSED;
            if (done)
                snprintf(error, TEXT, "the new process of rank %d can't go on from its state, and says why", app.transport.rank);
            break;
        } else if (came < 0) {
            done = MEND_APP_SYSTEM;
        } else if (!disk && !s->all_count && !s->is_ahead && !at_end(s, s->sent.to)) {
            s->ahead.from = s->sent.to;
            done = write_fragment(s, &s->ahead, error);
            s->is_ahead = done == 0;
        } else if (looks++ < 2000) {
            sched_yield();
        } else {
            usleep(50);
        }
    }
    /* A new process that has failed may never receive these: settle() drops them, before their memory goes. */
    if (done == 0) {
        move_wait(SLOT_OUTLINE);
        move_wait(SLOT_FRAGMENT);
    }
    if (done && !error[0])
        snprintf(error, TEXT, "a message between the old and the new process of rank %d can't be sent", app.transport.rank);
    return done;
}

/* ---- a rank that has moved ---- */

/* What was registered is given back to the system, in whole pages: how the program has it isn't known, and it won't touch it again. */
static void free_data(void) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (app.release)
        app.release(app.release_data);
    for (const struct variable *v = app.variables; v; v = v->next) {
        uintptr_t start = ((uintptr_t)v->address + page - 1) / page * page, end = ((uintptr_t)v->address + v->elements * element_size(v->type)) / page * page;
        if (v->elements && end > start)
            madvise((void *)start, end - start, MADV_DONTNEED);
    }
    malloc_trim(0);
}

static void leave(struct source *s) {
    app.departed = true;
    requests_leave();
    writing_stop();
    source_free(s);
    table_free(app.base);
    fflush(NULL);
    free_data();
    app.transport.depart(app.transport.state, 1);
}

EXPORT int mend_app_departed(void) {
    return app.departed;
}

EXPORT void mend_app_departing(void (*release)(void *), void *data) {
    app.release = release;
    app.release_data = data;
}

/* ---- all ranks ---- */

static bool all_can(bool mine) {
    int64_t least = mine;
    return app.transport.least(app.transport.state, &least) == 0 && least != 0;
}

static double most(double mine) {
    int64_t value = -(int64_t)(mine * 1e6);
    app.transport.least(app.transport.state, &value);
    return 1e-6 * (double)-value;
}

static void tell_stages(double negotiation, double since) {
    double numbers[STAGES], total, starting = most(spawned);
    for (int i = 0; i < STAGES; i++)
        numbers[i] = most(stage[i]);
    total = most(seconds_now() - since);
    char ranks[TEXT] = "";
    size_t length = 0;
    for (int i = 0; i < plan.count && length < TEXT - 64; i++)
        length += (size_t)snprintf(ranks + length, TEXT - length, "%s%d%s%s%s", i ? ", " : "", plan.ranks[i], *plan.hosts[i] ? " (" : "", plan.hosts[i], *plan.hosts[i] ? ")" : "");
    if (app.transport.rank == 0)
        note("moved: rank%s %.900s; seconds: negotiation %.4f, spawn %.4f, write %.4f, send %.4f, wait %.4f, read %.4f, restart %.4f, all %.4f", plan.count > 1 ? "s" : "", ranks, negotiation, starting,
             numbers[STAGE_WRITE], numbers[STAGE_SEND], numbers[STAGE_WAIT], numbers[STAGE_READ], numbers[STAGE_RESTART], total);
}

static int spawn(char error[TEXT]) {
    char (*paths)[TEXT] = must_alloc((size_t)plan.count * sizeof *paths);
    const char **scripts = must_alloc((size_t)plan.count * sizeof *scripts);
    for (int i = 0; i < plan.count; i++) {
        script_path(paths[i], plan.ranks[i]);
        scripts[i] = paths[i];
    }
    struct mend_app_move move = {plan.count, plan.ranks, plan.hosts, scripts};
    double since = seconds_now();
    int done = app.transport.spawn(app.transport.state, &move, error, TEXT);
    spawned = seconds_now() - since;
    free(scripts);
    free(paths);
    return done;
}

/* Rank 0 knows what was asked for. */
static int agree_on_plan(char error[TEXT]) {
    struct {
        int64_t result;
        double time;
        char text[TEXT];
    } proposal = {0};
    if (app.transport.rank == 0) {
        proposal.time = requests_move_time();
        int done = plan_take(proposal.text, error);
        if (done == 0)
            done = plan_parse(&plan, proposal.text, app.transport.size, error);
        if (done == 0)
            done = plan_check_hosts(&plan, error);
        proposal.result = done;
    }
    if (app.transport.broadcast(app.transport.state, &proposal, sizeof proposal) != 0)
        return MEND_APP_SYSTEM;
    taken = proposal.time;
    requests_move_taken(taken);
    if (proposal.result == 0 && app.transport.rank != 0)
        return plan_parse(&plan, proposal.text, app.transport.size, error);
    return (int)proposal.result;
}

int move_ranks(double negotiation) {
    struct source source = {0};
    char error[TEXT] = "";
    bool moves = false;
    double since = seconds_now();
    memset(stage, 0, sizeof stage);
    int done = agree_on_plan(error);
    if (done) {
        if (error[0])
            fail(done, "no move: %s", error);
        return MEND_APP_OK;
    }
    for (int i = 0; i < plan.count; i++)
        moves |= plan.ranks[i] == app.transport.rank;
    done = moves ? prepare(&source, error) : 0;
    bool good = all_can(done == 0);
    if (good) {
        done = spawn(error);
        /* The same for all, but for -2: rank 0 says it. */
        if (done == -1 && app.transport.rank != 0)
            done = 0, good = false;
        good = all_can(done == 0 && good);
        if (good) {
            done = moves ? serve(&source, error) : 0;
            good = all_can(done == 0);
            /* The new process of rank 0 holds the directory from then on. */
            if (good && moves)
                unlock_directory();
        }
        /* Also a new process whose parents can't have it waits for a word. Where MPI has failed to start it there is nobody to hear it. */
        struct move_message verdict = {.kind = good ? MOVE_COMMIT : MOVE_DROP};
        if (moves && move_tell(&verdict) == 0)
            move_wait(SLOT_SENT);
        if (good)
            tell_stages(negotiation, since);
        app.transport.settle(app.transport.state, good);
    }
    if (moves)
        remove_files();
    if (good && moves)
        leave(&source);
    source_free(&source);
    if (done)
        fail(done, "no move: %s", error[0] ? error : "MPI reports an error");
    else if (!good && app.transport.rank == 0)
        note("no move: another rank says why; all go on where they are");
    return good ? MEND_APP_MOVED : MEND_APP_OK;
}
