/* A rank's part of a checkpoint: its file, and the older ones that hold what was unchanged. Each is looked for in all places by itself: a node may have the one, and what all
 * share, or another node, the other. What isn't as it was written makes way for the next copy of the same file. What can't be read now stays as it is.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* `done`: why it isn't taken. What can't be read now stays. */
static void pass_over(int done, const char *path, int at, const char *why) {
    if (!place_is_shared(at))
        note("%s", why);
    if (done == MEND_APP_DAMAGED)
        place_not_good(path, at);
}

static int weight(int done) {
    return done == MEND_APP_SYSTEM ? 3 : done == MEND_APP_REFUSED ? 2 : done == MEND_APP_DAMAGED;
}

/* Of several copies the one that may be good speaks for all: its code and its text. 0 stands for no copy so far. */
static void take_reason(int *done, char why[TEXT], int found, const char *reason) {
    if (weight(found) <= weight(*done))
        return;
    *done = found;
    snprintf(why, TEXT, "%s", reason);
}

/* The next place that has a linked file. `before`: what was wrong with the copy before, or 0; its text is in `why`. */
static int find_ancestor(struct ancestor *a, uint32_t rank, int before, char why[TEXT]) {
    char path[TEXT], reason[TEXT];
    uint64_t table[2];
    int done = before;
    free(a->path);
    a->path = NULL;
    while (!a->path && place_next(path, a->checkpoint, rank, &a->at)) {
        int found = seal_check(path, a->digest, table, NULL, reason);
        if (found == 0) {
            a->path = must_copy(path);
        } else {
            pass_over(found, path, a->at, reason);
            take_reason(&done, why, found, reason);
        }
    }
    return a->path ? 0 : done ? done : MEND_APP_DAMAGED;
}

static int find_ancestors(struct table *t, uint32_t rank, char why[TEXT]) {
    int done = 0;
    for (size_t i = 0; i < t->ancestors_count && done == 0; i++) {
        snprintf(why, TEXT, "what it links to isn't there: rank %" PRIu32 "'s file of checkpoint %" PRIu64, rank, t->ancestors[i].checkpoint);
        done = find_ancestor(&t->ancestors[i], rank, 0, why);
    }
    return done;
}

/* Compares all data, and takes other copies of linked files that aren't good. `*lost`: there is none. */
static int verify(struct table *t, const char *path, uint32_t rank, bool *lost, char why[TEXT]) {
    const struct block *bad;
    int done;
    while ((done = rank_file_verify(t, path, &bad, why)) != 0) {
        if (done == MEND_APP_REFUSED || !bad || !bad->held_in)
            return done;
        struct ancestor *a = &t->ancestors[bad->held_in - t->ancestors];
        pass_over(done, a->path, a->at, why);
        done = find_ancestor(a, rank, done, why);
        *lost = done != 0;
        if (*lost)
            return done;
    }
    return 0;
}

static int load_from(const char *path, uint32_t rank, bool contents, struct table **into, bool *lost, char why[TEXT]) {
    uint64_t sealed[2], digest[2];
    struct table *t = table_new();
    int done = seal_check(path, app.saved.manifest.digest[rank], sealed, t, why);
    if (done == 0) {
        done = find_ancestors(t, rank, why);
        *lost = done != 0;
    }
    if (done) {
        table_free(t);
        return done;
    }
    t = rank_file_load(path, t, why);
    /* As it was written, and yet not to be read. */
    if (!t)
        return MEND_APP_SYSTEM;
    table_digest(t, digest);
    if (digest[0] != sealed[0] || digest[1] != sealed[1]) {
        snprintf(why, TEXT, "%.900s isn't what was written: its table differs from its seal's", path);
        done = MEND_APP_DAMAGED;
    }
    if (done == 0 && contents)
        done = verify(t, path, rank, lost, why);
    if (done == 0)
        *into = t;
    else
        table_free(t);
    return done;
}

int load_part(uint32_t rank, bool contents, struct table **into, char path[TEXT], char why[TEXT]) {
    uint64_t checkpoint = app.saved.manifest.checkpoint;
    char reason[TEXT];
    int at = 0, done = 0;
    bool lost = false;
    *into = NULL;
    store_path(path, app.settings.directory, checkpoint, rank);
    snprintf(why, TEXT, "%.900s isn't there%s", path, places_offered() ? ", nor on any node of this job" : "");
    while (place_next(path, checkpoint, rank, &at)) {
        int found = load_from(path, rank, contents, into, &lost, reason);
        if (found == 0)
            return 0;
        /* Each copy of it has the same links, and is read by the same plug-ins. */
        if (lost || found == MEND_APP_REFUSED) {
            snprintf(why, TEXT, "%s", reason);
            return found;
        }
        pass_over(found, path, at, reason);
        take_reason(&done, why, found, reason);
    }
    return done ? done : MEND_APP_DAMAGED;
}
