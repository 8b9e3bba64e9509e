/* A rank's part of a checkpoint: its file, and the older ones that hold what was unchanged. Each is looked for in all places by itself: a node may have the one, and what all
 * share, or another node, the other. What isn't as it was written makes way for the next copy of the same file.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static void pass_over(const char *path, int at, const char *why) {
    if (!place_is_shared(at))
        note("%s", why);
    place_not_good(path, at);
}

/* The next place that has a linked file. */
static bool find_ancestor(struct ancestor *a, uint32_t rank, char why[TEXT]) {
    char path[TEXT];
    uint64_t table[2];
    free(a->path);
    a->path = NULL;
    while (!a->path && place_next(path, a->checkpoint, rank, &a->at)) {
        if (seal_check(path, a->digest, table, NULL, why) == 0)
            a->path = must_copy(path);
        else
            pass_over(path, a->at, why);
    }
    return a->path != NULL;
}

static bool find_ancestors(struct table *t, uint32_t rank, char why[TEXT]) {
    for (size_t i = 0; i < t->ancestors_count; i++) {
        snprintf(why, TEXT, "what it links to isn't there: rank %" PRIu32 "'s file of checkpoint %" PRIu64, rank, t->ancestors[i].checkpoint);
        if (!find_ancestor(&t->ancestors[i], rank, why))
            return false;
    }
    return true;
}

/* Compares all data, and takes other copies of linked files that aren't good. `*lost`: there is none. */
static bool verify(struct table *t, const char *path, uint32_t rank, bool *lost, char why[TEXT]) {
    const struct block *bad;
    while (rank_file_verify(t, path, &bad, why) != 0) {
        if (!bad || !bad->held_in)
            return false;
        struct ancestor *a = &t->ancestors[bad->held_in - t->ancestors];
        pass_over(a->path, a->at, why);
        *lost = !find_ancestor(a, rank, why);
        if (*lost)
            return false;
    }
    return true;
}

static struct table *load_from(const char *path, uint32_t rank, bool contents, bool *lost, char why[TEXT]) {
    uint64_t sealed[2], digest[2];
    struct table *t = table_new();
    bool good = seal_check(path, app.saved.manifest.digest[rank], sealed, t, why) == 0;
    if (good)
        good = !(*lost = !find_ancestors(t, rank, why));
    if (!good) {
        table_free(t);
        return NULL;
    }
    t = rank_file_load(path, t, why);
    if (!t)
        return NULL;
    table_digest(t, digest);
    good = digest[0] == sealed[0] && digest[1] == sealed[1];
    if (!good)
        snprintf(why, TEXT, "%.900s isn't what was written: its table differs from its seal's", path);
    if (good && (!contents || verify(t, path, rank, lost, why)))
        return t;
    table_free(t);
    return NULL;
}

struct table *load_part(uint32_t rank, bool contents, char path[TEXT], char why[TEXT]) {
    uint64_t checkpoint = app.saved.manifest.checkpoint;
    int at = 0;
    bool lost = false;
    store_path(path, app.settings.directory, checkpoint, rank);
    snprintf(why, TEXT, "%.900s isn't there%s", path, places_offered() ? ", nor on any node of this job" : "");
    while (place_next(path, checkpoint, rank, &at)) {
        struct table *t = load_from(path, rank, contents, &lost, why);
        /* Each copy of it has the same links. */
        if (t || lost)
            return t;
        pass_over(path, at, why);
    }
    return NULL;
}
