/* A move of ranks, as the new processes see it: the program runs from its start, as in a restart, and its data come from the old process. See move.c. */
#include <inttypes.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static struct move_message hello, coming, verdict;
/* One is read, while the next is received. `kept`: with move_through = memory all of them. */
static struct fragment current, next, *kept;
static size_t kept_count;
static bool asked;
static double seconds[STAGES], started;

/* This process isn't wanted. */
static void go(void) {
    app.departed = true;
    requests_leave();
    /* The old process may write to these by now. */
    for (struct open_file *f = app.files; f; f = f->next)
        if (f->restored)
            __fpurge(f->stream);
    app.transport.settle(app.transport.state, 0);
    fflush(NULL);
    app.transport.depart(app.transport.state, 0);
    _exit(1);
}

/* The old process says so instead of what was awaited where it can't go on. */
static int heard(const struct move_message *m, uint32_t kind) {
    if (m->kind == MOVE_DROP)
        go();
    return m->kind == kind ? 0 : MEND_APP_SYSTEM;
}

static int ask(struct cursor from) {
    struct move_message m = {.kind = MOVE_ASK, .from = cursor_settled(app.saved.own, from)};
    /* What it held is the current one by now. */
    next = (struct fragment){0};
    if (m.from.block >= app.saved.own->blocks_count)
        return 0;
    asked = true;
    if (move_tell(&m) != 0 || move_listen(&coming) != 0)
        return MEND_APP_SYSTEM;
    return 0;
}

static int start_to_receive(void) {
    if (next.image.bytes)
        return 0;
    if (heard(&coming, MOVE_FRAGMENT) != 0 || !image_alloc(&next.image, coming.length))
        return MEND_APP_SYSTEM;
    next.from = coming.from;
    next.to = coming.to;
    return app.transport.transfer(app.transport.state, SLOT_FRAGMENT, 0, 1, next.image.bytes, next.image.length) < 0 ? MEND_APP_SYSTEM : 0;
}

/* Called now and then while the fragment before is read. */
static void between(void) {
    int done = 0;
    if (asked && !next.image.bytes && app.transport.done(app.transport.state, SLOT_HEARD) > 0)
        start_to_receive();
    for (int i = 0; next.image.bytes && done == 0 && i < LOOKS_BETWEEN; i++)
        done = app.transport.done(app.transport.state, SLOT_FRAGMENT);
}

/* Waits for what was asked for. */
static int receive_next(void) {
    double since = seconds_now();
    int done = move_wait(SLOT_HEARD);
    if (done == 0)
        done = start_to_receive();
    if (done == 0)
        done = move_wait(SLOT_FRAGMENT);
    asked = false;
    seconds[STAGE_WAIT] += seconds_now() - since;
    return done;
}

static bool holds(const struct fragment *f, struct cursor at) {
    return !cursor_less(at, f->from) && cursor_less(at, f->to);
}

/* The fragment with what stands at `at`; the one after it is asked for. What comes is of another place where the program registers in another order than before: it is
 * dropped then. */
static struct fragment *find(struct cursor at, int *done) {
    for (size_t i = 0; i < kept_count; i++)
        if (holds(&kept[i], at))
            return &kept[i];
    if (holds(&current, at))
        return &current;
    for (int attempts = 0; attempts < 2 && *done == 0; attempts++) {
        if (!asked)
            *done = ask(at);
        if (*done == 0)
            *done = receive_next();
        if (*done == 0 && holds(&next, at)) {
            /* First of all, so that it is sent meanwhile; its memory is taken when it comes. */
            struct fragment before = current;
            current = next;
            *done = ask(current.to);
            fragment_free(&before);
            return *done ? NULL : &current;
        }
        fragment_free(&next);
    }
    *done = *done ? *done : MEND_APP_SYSTEM;
    return NULL;
}

int arrival_read(uint64_t block, uint64_t first, uint64_t count, int type, void *into, char error[TEXT]) {
    const struct block *b = &app.saved.own->blocks[block];
    unsigned char *to = into;
    uint64_t size = type == MEND_APP_POINTER ? 16 : element_size(type);
    int done = 0;
    if (first > b->elements || count > b->elements - first || b->size != size) {
        snprintf(error, TEXT, "block %" PRIu64 " isn't what it was", block);
        return MEND_APP_REFUSED;
    }
    while (count && done == 0) {
        struct fragment *f = find((struct cursor){block, first}, &done);
        if (!f)
            break;
        uint64_t here = f->to.block > block ? b->elements - first : f->to.element - first, some = here < count ? here : count;
        double since = seconds_now();
        done = fragment_read(f, block, first, some, type, to, between, error);
        seconds[STAGE_READ] += seconds_now() - since;
        first += some;
        count -= some;
        to += some * size;
    }
    if (done && !error[0])
        snprintf(error, TEXT, "a message from the old process can't be received");
    return done;
}

void arrival_has_read(double took) {
    if (app.saved.own_path[0])
        seconds[STAGE_READ] += took;
}

/* With move_through = memory: all data before any of it is read. */
static int receive_all(void) {
    struct cursor at = cursor_settled(app.saved.own, (struct cursor){0, 0});
    int done = 0;
    while (done == 0 && at.block < app.saved.own->blocks_count) {
        done = ask(at);
        if (done == 0)
            done = receive_next();
        kept = must_grow(kept, kept_count * sizeof *kept, (kept_count + 1) * sizeof *kept);
        kept[kept_count++] = next;
        at = cursor_settled(app.saved.own, next.to);
        next = (struct fragment){0};
    }
    return done;
}

static bool load_table(void) {
    char error[TEXT] = "";
    if (hello.length == 0) {
        move_disk_path(app.saved.own_path, app.transport.rank);
        app.saved.own = rank_file_load(app.saved.own_path, NULL, error);
    } else {
        struct image outline;
        if (image_alloc(&outline, hello.length) && app.transport.transfer(app.transport.state, SLOT_OUTLINE, 0, 1, outline.bytes, outline.length) >= 0 && move_wait(SLOT_OUTLINE) == 0)
            app.saved.own = rank_file_load_outline(&outline, error);
        image_free(&outline);
    }
    const struct table *t = app.saved.own;
    if (!t)
        fail(MEND_APP_SYSTEM, "the old process's table can't be read%s%s", error[0] ? ": " : "", error);
    else if (strcmp(app.program, t->program) != 0)
        fail(MEND_APP_REFUSED, "this is program \"%s\", and \"%s\" moves", app.program, t->program);
    return t && strcmp(app.program, t->program) == 0;
}

bool arrival_start(void) {
    char error[TEXT];
    started = seconds_now();
    if (settle_directory() != 0)
        return false;
    places_start();
    if (move_listen(&hello) != 0 || move_wait(SLOT_HEARD) != 0 || heard(&hello, MOVE_HELLO) != 0)
        return fail(MEND_APP_SYSTEM, "the old process can't be heard"), false;
    if (!load_table())
        return false;
    app.saved.manifest.ranks = (uint32_t)app.transport.size;
    app.saved.same_ranks = true;
    app.number_offset = hello.number_offset;
    app.newest = hello.newest;
    app.restarting = true;
    requests_move_taken(hello.taken);
    if (requests_start(&app.settings, &hello.watched, error) != 0)
        return fail(MEND_APP_SYSTEM, "%s", error), false;
    /* What the old process had seen and not done yet. */
    request_raise((int)hello.requested & REQUEST_CHECKPOINT);
    safe_point_start(hello.attempt);
    requests_set_clock(hello.due);
    if (strcmp(app.settings.move_through, "memory") == 0 && receive_all() != 0)
        return fail(MEND_APP_SYSTEM, "the old process's data can't be received"), false;
    return true;
}

/* The old process may send what was asked for last, and isn't wanted. */
static void stop_receiving(void) {
    if (asked)
        receive_next();
    fragment_free(&next);
    fragment_free(&current);
    for (size_t i = 0; i < kept_count; i++)
        fragment_free(&kept[i]);
    free(kept);
    kept = NULL;
    kept_count = 0;
}

/* Tells the old process, and hears whether the move counts. */
static bool conclude(uint32_t kind) {
    stop_receiving();
    seconds[STAGE_RESTART] = seconds_now() - started - seconds[STAGE_WAIT] - seconds[STAGE_READ];
    struct move_message m = {.kind = kind};
    memcpy(m.seconds, seconds, sizeof seconds);
    if (move_tell(&m) != 0)
        return false;
    /* What comes before it is for what this process didn't come to. */
    do {
        unsigned looks = 0;
        int done = move_listen(&verdict);
        while (done == 0 && (done = app.transport.done(app.transport.state, SLOT_HEARD)) == 0)
            pause_between_looks(&looks);
        if (done < 0)
            return false;
    } while (verdict.kind != MOVE_COMMIT && verdict.kind != MOVE_DROP);
    return verdict.kind == MOVE_COMMIT && kind == MOVE_ARRIVED;
}

void arrival_failed(void) {
    /* Where it couldn't send what was asked for it doesn't stand there any more. */
    if (asked && app.transport.done(app.transport.state, SLOT_HEARD) > 0 && coming.kind == MOVE_DROP)
        go();
    for (struct open_file *f = app.files; f; f = f->next)
        restore_undo(f);
    conclude(MOVE_FAILED);
    go();
    __builtin_unreachable();
}

void arrival_complete(void) {
    const char *why = app.transport.hindrance(app.transport.state);
    if (why) {
        fail(MEND_APP_REFUSED, "the state can't be restored: %s", why);
        arrival_failed();
    }
    if (!conclude(MOVE_ARRIVED))
        go();
    app.transport.settle(app.transport.state, 1);
    app.arriving = app.restarting = false;
    saved_clear();
    app.scheduled_in = hello.scheduled_in;
    /* The old process of rank 0 has let go of it before it said so. */
    if (app.transport.rank == 0) {
        lock_directory();
        launcher_start(&app.settings, app.program, app.transport.size);
        places_published(app.newest);
    }
}
