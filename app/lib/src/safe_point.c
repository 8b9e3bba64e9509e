/* Safe points: drives the agreement (agree.h), takes checkpoints, publishes them on rank 0. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static const char *const reasons[] = {
    [AGREE_NO_REASON] = "for no reason",
    [AGREE_TIMEOUT] = "the other ranks weren't at the same call in time (join_seconds, hold_seconds)",
    [AGREE_ENDED] = "it has ended",
    [AGREE_PLACES] = "it is in other contexts than rank 0",
    [AGREE_CALLS] = "it was at another call than rank 0: ranks must make the same calls",
    [AGREE_REFUSED] = "it can't, and says why",
    [AGREE_REPLICAS] = "a replicated variable of it differs from rank 0's",
    [AGREE_PUBLISH] = "the manifest couldn't be written",
};

void pause_between_looks(unsigned *looks) {
    struct timespec nap = {.tv_nsec = *looks < 100 ? 20000 : 1000000};
    if (++*looks > 20)
        nanosleep(&nap, NULL);
}

static void deliver(struct agree_out *out);

static bool publish(void) {
    struct agree_root *root = app.root_part;
    struct manifest m = {.checkpoint = (uint64_t)((int64_t)root->taking + app.number_offset), .call = root->taking, .ranks = root->size};
    char error[TEXT], *where = context_path(app.current);
    uint64_t bytes = 0;
    m.needs = m.checkpoint;
    snprintf(m.program, sizeof m.program, "%s", app.program);
    snprintf(m.where, sizeof m.where, "%.1000s", app.writing.table ? app.writing.table->where : where);
    free(where);
    m.digest = must_alloc(root->size * sizeof *m.digest);
    m.bytes = must_alloc(root->size * sizeof *m.bytes);
    for (uint32_t i = 0; i < root->size; i++) {
        const struct agree_member *member = &root->members[i];
        m.digest[i][0] = member->digest[0];
        m.digest[i][1] = member->digest[1];
        m.bytes[i] = member->bytes;
        bytes += member->bytes;
        /* How many checkpoints back. */
        uint64_t needed = m.checkpoint - member->needs;
        m.needs = needed < m.needs ? needed : m.needs;
    }
    places_sign(m.checkpoint);
    int done = store_publish(app.settings.directory, &m, error);
    launcher_published(bytes);
    manifest_clear(&m);
    if (done)
        fail(done, "%s", error);
    return done == 0;
}

static void root_hears(const struct agree_message *m) {
    struct agree_out out = {0};
    if (agree_root_hear(app.root_part, m, &out))
        agree_published(app.root_part, app.root_part->purpose == AGREE_MOVE || publish(), &out);
    deliver(&out);
}

/* The checkpoint that is being taken doesn't count. */
static void drop_file(void) {
    place_drop(app.writing.path, app.taking);
    table_free(app.offered);
    app.offered = NULL;
}

static void say_why_not(const char *what, const char *where, const struct agree_message *m) {
    if (m->reason == AGREE_TIMEOUT) {
        /* Of all ranks: it shows which are behind. */
        char *contexts = context_path(app.current);
        fail(0, "no %s%s: rank %" PRIu32 ": %s; this rank is at call %" PRIu64 ", in contexts \"%.400s\"", what, where, m->rank, reasons[m->reason], app.call, contexts);
        free(contexts);
    } else if (app.transport.rank == 0 || m->rank == (uint32_t)app.transport.rank)
        fail(0, "no %s%s: rank %" PRIu32 ": %s", what, where, m->rank, reasons[m->reason <= AGREE_PUBLISH ? m->reason : 0]);
}

static void forget_move(void) {
    char text[TEXT], error[TEXT];
    if (app.transport.rank == 0)
        plan_take(text, error);
    request_clear(REQUEST_MOVE);
}

/* `joined`: this rank took part. */
static void over(bool counts, bool joined, const struct agree_message *m) {
    if (app.taking && atomic_load(&app.writing.state) == 1) {
        /* Cancelled before it was written: the thread has its table. */
        unsigned looks = 0;
        while (atomic_load_explicit(&app.writing.state, memory_order_acquire) == 1)
            pause_between_looks(&looks);
    }
    if (!app.offered)
        app.offered = app.writing.table;
    if (counts) {
        app.newest = app.taking;
        table_free(app.base);
        app.base = app.settings.incremental ? app.offered : NULL;
        app.since_full = app.offered_since_full;
        if (!app.settings.incremental)
            table_free(app.offered);
        app.offered = NULL;
        if (app.transport.rank == 0) {
            note("checkpoint %" PRIu64 " is complete", app.newest);
            launcher_answer(app.newest, NULL);
            places_published(app.newest);
            requests_retain(app.newest);
        }
    } else {
        if (app.taking)
            drop_file();
        bool move = !app.taking && (atomic_load(&request_raised) & REQUEST_MOVE);
        say_why_not(move ? "move" : "checkpoint", app.taking ? " at this call" : "", m);
        if (app.transport.rank == 0) {
            char why[TEXT];
            snprintf(why, sizeof why, "rank %" PRIu32 ": %s", m->rank, reasons[m->reason <= AGREE_PUBLISH ? m->reason : 0]);
            launcher_answer(0, why);
        }
        /* Where this rank hadn't joined it may hear of this late, and have been asked again since. */
        if (!app.taking && joined)
            requests_cancelled();
        else if (!app.taking)
            requests_cancelled_unheard(m->asked);
        if (move && (joined || app.transport.rank == 0))
            forget_move();
        else if (move)
            requests_move_over();
    }
    app.writing.table = NULL;
    atomic_store(&app.writing.state, 0);
    app.taking = 0;
    requests_restart_clock();
}

static void rank_hears(const struct agree_message *m) {
    struct agree_out out = {0};
    bool moving = app.rank.state == AGREE_TAKING && app.rank.purpose == AGREE_MOVE, joined = app.rank.state != AGREE_IDLE;
    enum agree_answer answer = agree_hear(&app.rank, m, &out);
    if (moving && (answer == AGREE_WAS_DONE || answer == AGREE_WAS_CANCELLED)) {
        app.move_decided = answer == AGREE_WAS_DONE ? 1 : -1;
        if (app.move_decided < 0)
            say_why_not("move", "", m);
    } else if (answer == AGREE_WAS_DONE || answer == AGREE_WAS_CANCELLED)
        over(answer == AGREE_WAS_DONE, joined, m);
    if (answer == AGREE_ALL_FINISHED)
        app.all_finished = true;
    deliver(&out);
}

/* Sends messages; to this process itself last, and at once. What they make of this rank stands in app.rank.state. */
static void deliver(struct agree_out *out) {
    for (int i = 0; i < out->count; i++) {
        struct agree_message *m = &out->message[i];
        if (m->kind == AGREE_CANCEL)
            m->asked = requests_asked();
        int first = out->to[i] > 0 ? out->to[i] : 0, last = out->to[i] == AGREE_ALL ? app.transport.size - 1 : first;
        for (int to = last; to >= first; to--) {
            if (to != app.transport.rank) {
                if (app.transport.send(app.transport.state, to, m, sizeof *m) != 0)
                    fail(MEND_APP_SYSTEM, "a message to rank %d can't be sent", to);
            } else if (out->to[i] == AGREE_ROOT) {
                root_hears(m);
            } else {
                rank_hears(m);
            }
        }
    }
}

/* All messages that have come. */
static void listen(void) {
    struct agree_message m;
    while (app.transport.receive && app.transport.receive(app.transport.state, &m, sizeof m) > 0) {
        if (m.kind >= AGREE_FRONTIER)
            rank_hears(&m);
        else if (app.transport.rank == 0)
            root_hears(&m);
    }
}

/* Tells the outcome when the file is written. */
static void report_when_written(void) {
    if (!app.taking || app.rank.reported || app.rank.state != AGREE_TAKING || atomic_load_explicit(&app.writing.state, memory_order_acquire) != 2)
        return;
    struct writing *w = &app.writing;
    struct agree_message outcome = {.reason = w->result ? AGREE_REFUSED : AGREE_NO_REASON, .bytes = w->bytes};
    uint64_t replicas = 0, oldest = w->table->checkpoint;
    if (w->result)
        fail(w->result, "no checkpoint: %s", w->error);
    for (size_t i = 0; i < w->table->blocks_count; i++) {
        const struct block *b = &w->table->blocks[i];
        if (b->whose == MEND_APP_REPLICATED)
            replicas = hash64(b->hash, sizeof b->hash, replicas);
        oldest = b->held_by < oldest ? b->held_by : oldest;
    }
    outcome.where = hash64(w->table->where, strlen(w->table->where), 0);
    outcome.replicas = replicas;
    outcome.needs = w->table->checkpoint - oldest;
    memcpy(outcome.digest, w->table->digest, sizeof outcome.digest);
    for (size_t i = 0; i < w->table->blocks_count; i++) {
        free(w->table->blocks[i].copy);
        w->table->blocks[i].copy = NULL;
        w->table->blocks[i].data = NULL;
    }
    app.offered = w->table;
    struct agree_out out = {0};
    agree_report(&app.rank, &outcome, &out);
    deliver(&out);
}

static void refuse(const char *error) {
    struct agree_message outcome = {.reason = AGREE_REFUSED};
    struct agree_out out = {0};
    fail(MEND_APP_REFUSED, "no checkpoint: %s", error);
    agree_report(&app.rank, &outcome, &out);
    deliver(&out);
}

/* Until the checkpoint is over, at most `seconds`. */
static void await_end(double seconds) {
    unsigned looks = 0;
    double until = seconds_now() + seconds;
    while (app.taking && app.rank.state == AGREE_TAKING && seconds_now() < until) {
        report_when_written();
        listen();
        if (app.taking)
            pause_between_looks(&looks);
    }
}

static uint64_t table_bytes(const struct table *t) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->blocks_count; i++)
        bytes += t->blocks[i].has_data ? t->blocks[i].elements * t->blocks[i].size : 0;
    return bytes;
}

/* Whether what would be linked to is where this rank's files are. It isn't if the rank has come to another node since, or back to an earlier image of its memory. */
static bool base_is_here(void) {
    bool here = place_has(app.base->checkpoint, app.base->digest);
    for (size_t i = 0; here && i < app.base->ancestors_count; i++)
        here = place_has(app.base->ancestors[i].checkpoint, app.base->ancestors[i].digest);
    return here;
}

static int take(void) {
    char error[TEXT] = "";
    requests_taken();
    app.taking = (uint64_t)((int64_t)app.call + app.number_offset);
    bool full = !app.settings.incremental || !app.base || app.since_full + 1 >= app.settings.full_every || !base_is_here(), behind = app.settings.behind;
    if (full) {
        table_free(app.base);
        app.base = NULL;
    }
    app.offered_since_full = full ? 0 : app.since_full + 1;
    store_path(app.writing.path, app.settings.directory, app.taking, app.transport.rank);
    struct table *t = snapshot_prepare(error) ? snapshot_take(behind ? SNAPSHOT_COPY : SNAPSHOT_IN_PLACE, error) : NULL;
    if (!t && behind && strstr(error, "no memory")) {
        note("%s: the program waits while its file is written", error);
        behind = false;
        t = snapshot_take(SNAPSHOT_IN_PLACE, error);
    }
    if (!t || place_to_write(app.writing.path, app.taking, table_bytes(t), error) != 0) {
        table_free(t);
        refuse(error);
        await_end(app.settings.hold_seconds);
        return MEND_APP_OK;
    }
    uint64_t number = app.taking;
    app.writing.table = t;
    app.writing.result = 0;
    writing_start(&app.writing, behind);
    if (behind)
        return MEND_APP_TAKEN;
    await_end(app.settings.hold_seconds);
    return app.newest == number ? MEND_APP_TAKEN : MEND_APP_OK;
}

/* All ranks hold here. Each says whether it can take part; the root's word is awaited without a limit, for it is the same for all. */
static int move(void) {
    unsigned looks = 0;
    const char *why = app.transport.spawn ? app.transport.hindrance(app.transport.state) : "its MPI isn't known to the library (mend_app_init_mpi)";
    struct agree_message outcome = {.reason = why ? AGREE_REFUSED : AGREE_NO_REASON, .where = where_hash()};
    struct agree_out out = {0};
    if (why)
        fail(MEND_APP_REFUSED, "no move: %s", why);
    app.move_decided = 0;
    agree_report(&app.rank, &outcome, &out);
    deliver(&out);
    while (app.move_decided == 0) {
        listen();
        if (app.move_decided == 0)
            pause_between_looks(&looks);
    }
    if (app.move_decided < 0) {
        forget_move();
        return MEND_APP_OK;
    }
    int done = move_ranks(seconds_now() - app.joined_at);
    requests_move_over();
    return done;
}

static void withdraw(void) {
    struct agree_out out = {0};
    agree_withdraw(&app.rank, &out);
    deliver(&out);
}

/* At a call that nobody has left, as far as this rank knows, until all are here. */
static void hold(void) {
    unsigned looks = 0;
    double until = seconds_now() + app.settings.hold_seconds;
    /* A move comes first, and leaves what is asked for besides. */
    if (app.rank.state == AGREE_HOLDING && !(atomic_load(&request_raised) & REQUEST_MOVE))
        requests_reached_all();
    while (app.rank.state == AGREE_HOLDING) {
        listen();
        if (app.rank.state != AGREE_HOLDING)
            return;
        if (seconds_now() > until)
            withdraw();
        else
            pause_between_looks(&looks);
    }
}

static void set_slow(void) {
    app.slow = !app.started || app.restarting || app.rank.state != AGREE_IDLE;
}

static int complete_restore(void) {
    char *where = context_path(app.current);
    bool here = strcmp(where, app.saved.own->where) == 0;
    free(where);
    if (!here)
        return MEND_APP_OK;
    int done = restore_check_complete();
    if (done < 0)
        return done;
    app.call = app.saved.own->call;
    if (app.arriving) {
        arrival_complete();
        set_slow();
        return MEND_APP_RESTORED;
    }
    app.newest = app.saved.own->checkpoint;
    app.restarting = false;
    if (app.settings.calls)
        app.scheduled_in = app.settings.calls - app.call % app.settings.calls;
    if (app.transport.rank == 0) {
        note("checkpoint %" PRIu64 " of %" PRIu32 " ranks is restored", app.newest, app.saved.manifest.ranks);
        places_published(app.newest);
    }
    saved_clear();
    requests_restart_clock();
    set_slow();
    return MEND_APP_RESTORED;
}

static __attribute__((noinline)) int slow_checkpoint(bool scheduled) {
    if (!app.started)
        return fail(MEND_APP_INVALID, "mend_app_checkpoint: mend_app_init comes first");
    if (app.restarting)
        return complete_restore();
    app.call++;
    int done = MEND_APP_OK;
    report_when_written();
    listen();
    if (scheduled && app.rank.state == AGREE_TAKING)
        await_end(app.settings.hold_seconds);
    uint32_t before = app.rank.state;
    struct agree_out out = {0};
    int requested = atomic_load_explicit(&request_raised, memory_order_relaxed);
    agree_call(&app.rank, app.call, where_hash(), requested != 0, requested & REQUEST_MOVE ? AGREE_MOVE : AGREE_CHECKPOINT, scheduled, &out);
    if (before == AGREE_IDLE && app.rank.state == AGREE_JOINED) {
        app.joined_at = seconds_now();
        app.passed_on = false;
    }
    deliver(&out);
    hold();
    if (app.rank.state == AGREE_TAKING && !app.taking)
        done = app.rank.purpose == AGREE_MOVE ? move() : take();
    if (app.rank.state == AGREE_JOINED && seconds_now() - app.joined_at > app.settings.join_seconds)
        withdraw();
    /* By then each rank's thread has looked. */
    if (app.rank.state == AGREE_JOINED && !app.rank.all_joined && !app.passed_on && requested & REQUEST_CHECKPOINT && seconds_now() - app.joined_at > 2 * (app.settings.watch_seconds + 1)) {
        app.passed_on = true;
        requests_pass_on();
    }
    set_slow();
    return done;
}

EXPORT int mend_app_checkpoint(void) {
    bool scheduled = app.scheduled_in != UINT64_MAX && --app.scheduled_in == 0;
    if (scheduled)
        app.scheduled_in = app.settings.calls;
    if (__builtin_expect(app.slow || scheduled || atomic_load_explicit(&request_raised, memory_order_relaxed), 0))
        return slow_checkpoint(scheduled);
    app.call++;
    return MEND_APP_OK;
}

EXPORT int mend_app_count(void) {
    if (app.slow || app.scheduled_in == 1 || atomic_load_explicit(&request_raised, memory_order_relaxed))
        return MEND_APP_REFUSED;
    if (app.scheduled_in != UINT64_MAX)
        app.scheduled_in--;
    app.call++;
    return MEND_APP_OK;
}

EXPORT int mend_app_checkpoint_now(void) {
    return slow_checkpoint(true);
}

EXPORT void mend_app_prepare(void (*prepare)(void *), void *data) {
    app.prepare = prepare;
    app.prepare_data = data;
}

EXPORT uint64_t mend_app_newest(void) {
    return app.newest;
}

void safe_point_start(uint32_t attempt) {
    agree_rank_start(&app.rank, (uint32_t)app.transport.rank);
    app.rank.attempt = attempt;
    if (app.transport.rank == 0) {
        app.root_part = must_alloc(agree_root_size((uint32_t)app.transport.size));
        agree_root_start(app.root_part, (uint32_t)app.transport.size);
        app.root_part->attempt = attempt;
    }
    app.scheduled_in = app.settings.calls ? app.settings.calls : UINT64_MAX;
    app.all_finished = false;
    set_slow();
}

/* What is being written is completed; then all ranks wait for each other, since rank 0 publishes. */
int safe_point_end(void) {
    unsigned looks = 0;
    double told = seconds_now();
    while (app.rank.state == AGREE_TAKING) {
        report_when_written();
        listen();
        if (app.rank.state == AGREE_TAKING)
            pause_between_looks(&looks);
        if (seconds_now() - told > app.settings.hold_seconds) {
            told = seconds_now();
            note("waits at the end for the other ranks' part of checkpoint %" PRIu64, app.taking);
        }
    }
    struct agree_out out = {0};
    agree_finish(&app.rank, &out);
    deliver(&out);
    looks = 0;
    while (!app.all_finished) {
        listen();
        if (!app.all_finished)
            pause_between_looks(&looks);
    }
    return 0;
}
