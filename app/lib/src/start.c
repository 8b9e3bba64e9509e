/* Start and end. All ranks settle on one checkpoint to restore, before any value is restored: rank 0 proposes the newest, each verifies its part, and if
 * one rank's is damaged, an older one is next. Whether each could start is told with that: ranks that share processors wait for each other twice, no more. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static int lock_fd = -1;

/* What rank 0 proposes. */
struct proposal {
    int64_t refused;     /* rank 0 can't start, and says why */
    int64_t error;       /* of the system: the directory can't be read */
    uint64_t checkpoint; /* 0: nothing to restore */
    uint64_t largest;    /* number of any checkpoint there */
    uint64_t set_aside;  /* the newest that was found damaged in an earlier start, or 0 */
};

static int agree_on(struct proposal *p) {
    if (app.transport.broadcast && app.transport.broadcast(app.transport.state, p, sizeof *p) != 0)
        return fail(MEND_APP_SYSTEM, "the ranks can't be reached");
    return 0;
}

/* Of a proposed checkpoint. What isn't damaged and yet can't be restored here ends the start: a run on from an older one would lose what may be whole. */
enum verdict { NOT_HERE, DAMAGED, GOOD };

static int64_t least_of_all(int64_t mine) {
    int64_t least = mine;
    if (app.transport.least && app.transport.least(app.transport.state, &least) != 0)
        return 0;
    return least;
}

static bool all_say(bool mine) {
    return least_of_all(mine) != 0;
}

/* One run at a time in a directory: two would remove each other's checkpoints. */
int lock_directory(void) {
    char path[TEXT + 16];
    const char *directory = app.settings.directory;
    for (char *slash = strchr(directory + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash)
            *slash = 0;
        int made = mkdir(directory, 0777);
        int why = errno;
        if (slash)
            *slash = '/';
        if (made != 0 && why != EEXIST)
            return fail(MEND_APP_SYSTEM, "the directory %s can't be made: %s", directory, strerror(why));
        if (!slash)
            break;
    }
    snprintf(path, sizeof path, "%s/lock", directory);
    lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_fd < 0)
        return fail(MEND_APP_SYSTEM, "%s can't be opened: %s: name a directory that can be written (setting directory)", path, strerror(errno));
    if (flock(lock_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return fail(MEND_APP_REFUSED, "another run uses the directory %s now: wait for its end, or name another directory", directory);
    return 0;
}

void unlock_directory(void) {
    if (lock_fd < 0)
        return;
    /* Also where a child that this process forked has it open still. */
    flock(lock_fd, LOCK_UN);
    close(lock_fd);
    lock_fd = -1;
}

/* A child that outlives this process doesn't use the directory. */
static void forked(void) {
    if (lock_fd >= 0)
        close(lock_fd);
    lock_fd = -1;
}

/* mend-cc has a hash of the sources follow it in a program's name. */
#define OF_SOURCES ", sources "

/* The program may change its directory. */
int settle_directory(void) {
    char path[PATH_MAX];
    if (!realpath(app.settings.directory, path))
        return fail(MEND_APP_SYSTEM, "the directory %s isn't seen by this rank (%s): name one that all ranks see (setting directory)", app.settings.directory, strerror(errno));
    if (strlen(path) > TEXT - 64)
        return fail(MEND_APP_INVALID, "the directory %s is too long: %d characters at most", path, TEXT - 64);
    strcpy(app.settings.directory, path);
    return 0;
}

/* On another number of ranks nobody would have what one rank alone had. Every saved rank is looked at here, also one whose place nobody takes. */
static int check_for_other_ranks(const struct table *t, uint32_t rank, char why[TEXT]) {
    uint32_t ranks = app.saved.manifest.ranks;
    if (t->files_count) {
        snprintf(why, TEXT, "it is of %" PRIu32 " ranks, and these are %d: file `%.200s` (%.300s) was open on rank %" PRIu32 ". Close such files before checkpoints, or restart on %" PRIu32 " ranks", ranks, app.transport.size, t->files[0].name, t->files[0].path, rank, ranks);
        return MEND_APP_REFUSED;
    }
    for (size_t i = 0; i < t->blocks_count; i++)
        if (t->blocks[i].whose == MEND_APP_PRIVATE) {
            const struct block *b = &t->blocks[i];
            snprintf(why, TEXT, "it is of %" PRIu32 " ranks, and these are %d: `%.200s`%s%.200s is private to each rank. Register it as replicated or as an array that is spread, or restart on %" PRIu32 " ranks", ranks, app.transport.size, b->name, *b->context ? " in context " : "", b->context, ranks);
            return MEND_APP_REFUSED;
        }
    return 0;
}

/* Whether this rank's part of a proposed checkpoint is whole, and can be restored here. `why` tells otherwise. */
static int check_part(uint64_t checkpoint, char why[TEXT]) {
    struct saved_state *s = &app.saved;
    uint32_t rank = (uint32_t)app.transport.rank, size = (uint32_t)app.transport.size;
    int done = store_read(app.settings.directory, checkpoint, &s->manifest, why);
    if (done)
        return done;
    s->same_ranks = s->manifest.ranks == size;
    /* Other ranks read parts of blocks, which have no hash of their own. */
    s->verify_values = s->same_ranks && strcmp(app.settings.verify, "values") == 0;
    bool at_start = !s->verify_values && strcmp(app.settings.verify, "no") != 0;
    for (uint32_t i = rank % s->manifest.ranks; i < s->manifest.ranks; i += size) {
        char path[TEXT];
        struct table *t;
        done = load_part(i, at_start, &t, path, why);
        if (done == 0 && !s->same_ranks && (done = check_for_other_ranks(t, i, why)) != 0)
            table_free(t);
        if (done)
            return done;
        if (i == rank % s->manifest.ranks) {
            s->own = t;
            snprintf(s->own_path, sizeof s->own_path, "%s", path);
        } else {
            table_free(t);
        }
    }
    return 0;
}

/* Each rank's own: the ranks of one job may be of several programs. */
static int check_program(const struct table *t, char why[TEXT]) {
    if (strcmp(app.program, t->program) == 0)
        return 0;
    snprintf(why, TEXT, "it is of program \"%.360s\", and this is \"%.360s\": set restart = none to start anew, or directory to another one%s", t->program, app.program,
             strstr(t->program, OF_SOURCES) && strstr(app.program, OF_SOURCES) ? "; or have mend-cc --name build it with the saved name, if what is saved means the same in both" : "");
    return MEND_APP_REFUSED;
}

static bool names_a_number(void) {
    return app.settings.restart[0] >= '0' && app.settings.restart[0] <= '9';
}

/* Without a manifest it never counted. One that can't be reached may count: who reads it hears why. */
static bool counts(uint64_t checkpoint) {
    return store_counts(app.settings.directory, checkpoint);
}

/* The newest, of those below p->checkpoint, that a restart may use. */
static void propose(struct proposal *p) {
    uint64_t *numbers, below = p->checkpoint, ended;
    bool any = strcmp(app.settings.restart, "newest") == 0;
    p->error = store_ended(app.settings.directory, &ended);
    if (access(app.settings.directory, R_OK | X_OK) != 0)
        p->error = errno;
    size_t count = store_list(app.settings.directory, &numbers);
    /* What ended may have been removed since: a number up to there would count as ended, too. */
    p->largest = count && numbers[0] > ended ? numbers[0] : ended;
    p->checkpoint = p->set_aside = 0;
    if (names_a_number()) {
        uint64_t wanted = strtoull(app.settings.restart, NULL, 10);
        p->checkpoint = wanted < below ? wanted : 0;
    } else if (any || strcmp(app.settings.restart, "auto") == 0) {
        for (size_t i = 0; i < count && !p->checkpoint; i++) {
            if (numbers[i] >= below || (!any && numbers[i] <= ended))
                continue;
            if (counts(numbers[i]))
                p->checkpoint = numbers[i];
            else if (!p->set_aside && store_is_set_aside(app.settings.directory, numbers[i]))
                p->set_aside = numbers[i];
        }
    }
    free(numbers);
}

/* No proposal was good: never silently anew. */
static int none_is_good(const struct proposal *p) {
    const char *directory = app.settings.directory;
    if (!names_a_number() && p->set_aside)
        return fail_restore(MEND_APP_DAMAGED, "no checkpoint in %s is whole: checkpoint %" PRIu64 " was found damaged, and is set aside: set restart = none to start anew", directory, p->set_aside);
    if (!names_a_number())
        return fail_restore(MEND_APP_DAMAGED, "no checkpoint in %s is whole: set restart = none to start anew", directory);
    char others[TEXT] = "";
    uint64_t *numbers, wanted = strtoull(app.settings.restart, NULL, 10);
    size_t count = store_list(directory, &numbers), length = 0;
    for (size_t i = 0; i < count && length < sizeof others - 32; i++)
        if (numbers[i] != wanted && counts(numbers[i]))
            length += (size_t)snprintf(others + length, sizeof others - length, "%s%" PRIu64, length ? ", " : "", numbers[i]);
    free(numbers);
    if (!length)
        return fail_restore(MEND_APP_DAMAGED, "checkpoint %" PRIu64 " isn't there as a whole, and %s has no other one: set restart = none to start anew", wanted, directory);
    return fail_restore(MEND_APP_DAMAGED, "checkpoint %" PRIu64 " isn't there as a whole; %s has %s: set restart to one of these, or restart = none to start anew", wanted, directory, others);
}

/* What a rank needs to start, once rank 0 has made the directory. */
static int start_here(void) {
    char error[TEXT];
    int done = settle_directory();
    if (done)
        return done;
    places_start();
    done = requests_start(&app.settings, NULL, error);
    return done ? fail(done, "%s", error) : 0;
}

/* Whether what is proposed can be restored here. `why` tells otherwise where that is about the checkpoint. */
static int judge(const struct proposal *p, bool passed_over, char why[TEXT]) {
    if (p->error)
        return fail_restore(MEND_APP_SYSTEM, "rank 0 can't read the directory %s, or `ended` in it: %s", app.settings.directory, strerror((int)p->error));
    if (p->checkpoint == 0)
        return passed_over || p->set_aside ? none_is_good(p) : 0;
    int done = check_part(p->checkpoint, why);
    if (done == 0)
        done = check_program(app.saved.own, why);
    /* Before the other ranks hear of it: they end the job then, and what is said later may be lost. */
    if (done)
        fail(done, "checkpoint %" PRIu64 " can't be %s: %s", p->checkpoint, done == MEND_APP_DAMAGED ? "used" : "restored here", why);
    return done;
}

/* Some rank can't go on. `done` is this one's error, which it has told but for what it can't restore. */
static int refuse(const struct proposal *p, int done, const char *why) {
    if (done != 0 && !why[0])
        return done;
    if (p->checkpoint == 0)
        return fail(MEND_APP_REFUSED, "another rank couldn't start and says why");
    if (done == 0 || done == MEND_APP_DAMAGED)
        return fail_restore(MEND_APP_REFUSED, "another rank couldn't start, or can't restore checkpoint %" PRIu64 " here, and says why", p->checkpoint);
    return fail_restore(done, "checkpoint %" PRIu64 ": %s. It stays as it is: start again when that is mended, or set restart to another one's number, or to none to start anew", p->checkpoint, why);
}

/* `done`: whether this rank could start so far. */
static int choose(int done) {
    struct proposal p = {.checkpoint = UINT64_MAX};
    enum { MOST = 64 };
    uint64_t damaged[MOST];
    size_t passed_over = 0;
    for (bool first = true;; first = false) {
        char why[TEXT] = "";
        p.refused = done;
        if (app.transport.rank == 0 && done == 0)
            propose(&p);
        int told = agree_on(&p);
        if (told)
            return told;
        if (p.refused)
            return done ? done : fail(MEND_APP_REFUSED, "another rank couldn't start and says why");
        if (first && done == 0)
            done = start_here();
        if (done == 0)
            done = judge(&p, passed_over != 0, why);
        enum verdict all = least_of_all(done == 0 ? GOOD : done == MEND_APP_DAMAGED && why[0] ? DAMAGED : NOT_HERE);
        if (all == GOOD)
            break;
        saved_clear();
        if (all == NOT_HERE)
            return refuse(&p, done, why);
        done = 0;
        if (passed_over < MOST)
            damaged[passed_over++] = p.checkpoint;
    }
    if (p.checkpoint == 0) {
        app.number_offset = (int64_t)p.largest;
        return 0;
    }
    const struct table *t = app.saved.own;
    /* Else it would be kept in the older one's place. */
    for (size_t i = 0; i < passed_over && app.transport.rank == 0; i++)
        if (store_set_aside(app.settings.directory, damaged[i]) != 0 && errno != ENOENT)
            complain("checkpoint %" PRIu64 " is damaged, and can't be set aside: %s: it counts among those that are kept", damaged[i], strerror(errno));
    if (passed_over && app.transport.rank == 0)
        note("checkpoint %" PRIu64 " is used instead: it is older, and whole", p.checkpoint);
    app.number_offset = (int64_t)p.largest - (int64_t)t->call;
    app.restarting = true;
    return 0;
}

/* Where the process was started: the program may change its directory before it calls this library. */
static char first_directory[sizeof app.began_in];

__attribute__((constructor)) static void keep_first_directory(void) {
    if (!getcwd(first_directory, sizeof first_directory))
        first_directory[0] = 0;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forked);
}

EXPORT int mend_app_init_transport(const mend_app_transport *transport, const char *program, const char *configuration) {
    if (app.started)
        return fail(MEND_APP_INVALID, "mend_app_init was called already");
    memset(&app, 0, sizeof app);
    app.transport = *transport;
    app.current = &app.root;
    app.root.active = true;
    app.slow = true;
    app.scheduled_in = UINT64_MAX;
    memcpy(app.began_in, first_directory, sizeof first_directory);
    if (!getcwd(app.directory_at_start, sizeof app.directory_at_start))
        app.directory_at_start[0] = 0;
    if (program && (strlen(program) >= TEXT || strchr(program, '\n')))
        return fail(MEND_APP_INVALID, "the program's name is one line of less than %d characters", TEXT);
    snprintf(app.program, sizeof app.program, "%s", program ? program : "");
    int done = settings_read(&app.settings, configuration);
    if (transport->arriving) {
        app.arriving = app.started = true;
        if (done != 0 || !arrival_start())
            arrival_failed();
        return MEND_APP_OK;
    }
    if (done == 0 && app.transport.rank == 0)
        done = lock_directory();
    app.started = true;
    done = choose(done);
    if (done != 0) {
        requests_stop();
        saved_clear();
        app.started = false;
        unlock_directory();
        return done;
    }
    safe_point_start(0);
    requests_restart_clock();
    return MEND_APP_OK;
}

EXPORT int mend_app_init(const char *program, const char *configuration) {
    mend_app_transport alone = {.size = 1};
    return mend_app_init_transport(&alone, program, configuration);
}

static void free_contexts(struct context *c) {
    for (struct context *child = c->children, *next; child; child = next) {
        next = child->next;
        free_contexts(child);
        free(child->name);
        free(child);
    }
    c->children = NULL;
}

static void clear(void) {
    requests_stop();
    writing_stop();
    free(app.root_part);
    table_free(app.writing.table == app.offered ? NULL : app.writing.table);
    table_free(app.offered);
    table_free(app.base);
    while (app.current->parent)
        mend_app_leave();
    while (app.variables)
        mend_app_forget(app.variables->name);
    files_clear();
    free_contexts(&app.root);
    saved_clear();
    unlock_directory();
    app.started = false;
    app.slow = true;
}

EXPORT int mend_app_finalize(void) {
    if (!app.started)
        return fail(MEND_APP_INVALID, "mend_app_finalize: mend_app_init comes first");
    bool unfinished = app.restarting;
    if (app.arriving) {
        fail(MEND_APP_REFUSED, "the program ended before it came to the safe point where rank %d moved (contexts \"%s\")", app.transport.rank, app.saved.own->where);
        arrival_failed();
    }
    safe_point_end();
    requests_stop();
    /* A run whose output isn't all written hasn't ended well. Every rank is here. */
    int flushed = files_flush();
    bool all_flushed = all_say(flushed == 0), all_finished = all_say(!unfinished), marked = true;
    if (unfinished)
        fail(MEND_APP_REFUSED, "the program ended before it came to the safe point of checkpoint %" PRIu64 " (contexts \"%s\"), which is kept", app.saved.own->checkpoint, app.saved.own->where);
    else if (flushed == 0 && !all_flushed)
        flushed = fail(MEND_APP_SYSTEM, "another rank can't write its files, and says why");
    else if (all_flushed && all_finished && app.transport.rank == 0)
        marked = store_mark_ended(app.settings.directory, app.newest) == 0;
    if (!all_say(marked))
        flushed = marked ? fail(MEND_APP_SYSTEM, "rank 0 can't write down that this run has ended, and says why") : MEND_APP_SYSTEM;
    clear();
    if (app.transport.end)
        app.transport.end(app.transport.state);
    return unfinished ? MEND_APP_REFUSED : flushed;
}

EXPORT void mend_app_abandon(void) {
    if (app.arriving)
        arrival_failed();
    if (!app.started)
        return;
    /* The job may be ended next, without an exit. */
    files_flush();
    clear();
    if (app.transport.abandon)
        app.transport.abandon(app.transport.state);
}
