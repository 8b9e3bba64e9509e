/* An array's values by global index, from the files of another number of ranks or another distribution.
 *
 * In each dimension local indices of this rank and of the writer meet in global ones. They meet in runs: so many neighbours here are as many
 * neighbours there. Of each file the rows of the first dimension that are needed are read in pieces, and scattered run by run. What is a rank's
 * own must be found in some file; its halo is filled as far as it lies in the array. Which file would count where several hold an element with different values nobody knows: that is refused.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { PIECE_BYTES = 16 << 20 };

/* Local elements [here, here + length) are the writer's [there, there + length). */
struct run {
    uint64_t here, there, length;
};
struct runs {
    struct run *run;
    size_t count, room;
};

static void add_run(struct runs *r, uint64_t here, uint64_t there) {
    struct run *last = r->count ? &r->run[r->count - 1] : NULL;
    if (last && last->here + last->length == here && last->there + last->length == there) {
        last->length++;
        return;
    }
    if (r->count == r->room) {
        size_t room = r->room ? 2 * r->room : 16;
        r->run = must_grow(r->run, r->count * sizeof *r->run, room * sizeof *r->run);
        r->room = room;
    }
    r->run[r->count++] = (struct run){here, there, 1};
}

/* Global index of a local one, or UINT64_MAX: a halo beyond the array's end. */
uint64_t dimension_global(const struct dimension *d, uint64_t index) {
    switch (d->kind) {
    case MEND_APP_WHOLE:
        return index;
    case MEND_APP_BLOCK: {
        uint64_t global = d->start + index - d->first; /* wraps before the start */
        return global < d->global ? global : UINT64_MAX;
    }
    case MEND_APP_CYCLIC:
        return (index / d->block * d->parts + d->part) * d->block + index % d->block;
    default:
        return d->indices[index];
    }
}

struct place {
    uint64_t global, local;
};

static int by_global(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->global != y->global)
        return x->global < y->global ? -1 : 1;
    return x->local < y->local ? -1 : x->local > y->local;
}

/* Where the writer has a global index among its own elements, or UINT64_MAX. Of a list: by its sorted `places`. */
static uint64_t writer_local(const struct dimension *d, const struct place *places, uint64_t global) {
    switch (d->kind) {
    case MEND_APP_WHOLE:
        return global < d->extent ? global : UINT64_MAX;
    case MEND_APP_BLOCK:
        return global >= d->start && global - d->start < d->count ? d->first + (global - d->start) : UINT64_MAX;
    case MEND_APP_CYCLIC: {
        uint64_t block = global / d->block;
        return block % d->parts == d->part ? block / d->parts * d->block + global % d->block : UINT64_MAX;
    }
    default: {
        struct place wanted = {global, 0};
        size_t low = 0, high = d->extent;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (by_global(&places[middle], &wanted) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        return low < d->extent && places[low].global == global ? places[low].local : UINT64_MAX;
    }
    }
}

static struct runs meet(const struct dimension *mine, const struct dimension *writer) {
    struct runs runs = {0};
    struct place *places = NULL;
    if (writer->kind == MEND_APP_LIST) {
        places = must_alloc(writer->extent * sizeof *places);
        for (uint64_t i = 0; i < writer->extent; i++)
            places[i] = (struct place){writer->indices[i], i};
        qsort(places, writer->extent, sizeof *places, by_global);
    }
    for (uint64_t i = 0; i < mine->extent; i++) {
        uint64_t global = dimension_global(mine, i), there = global == UINT64_MAX ? UINT64_MAX : writer_local(writer, places, global);
        if (there != UINT64_MAX)
            add_run(&runs, i, there);
    }
    free(places);
    return runs;
}

/* One file's part of the array. */
struct source {
    const struct variable *v;
    const struct dimension *mine;
    const struct block *b;
    struct runs runs[MEND_APP_DIMENSIONS];
    unsigned char *found; /* a bit for each element here */
    uint64_t *differs;    /* the first element here that files have with different values, or UINT64_MAX */
    uint64_t size;
};

/* Copies what lies in rows [first, first + count) of the writer's first dimension. */
static void scatter(const struct source *s, int d, uint64_t here, uint64_t there, const unsigned char *rows, uint64_t first, uint64_t count) {
    bool last = d == s->v->dimensions - 1;
    for (size_t i = 0; i < s->runs[d].count; i++) {
        struct run run = s->runs[d].run[i];
        if (d == 0) {
            uint64_t skip = run.there < first ? first - run.there : 0;
            if (skip >= run.length || run.there + skip >= first + count)
                continue;
            run.here += skip;
            run.there += skip;
            run.length -= skip;
            if (run.length > first + count - run.there)
                run.length = first + count - run.there;
            run.there -= first;
        }
        uint64_t here_at = here * s->mine[d].extent + run.here, there_at = there * (d == 0 ? count : s->b->dimension[d].extent) + run.there;
        if (last) {
            char *into = (char *)s->v->address + here_at * s->size;
            const unsigned char *from = rows + there_at * s->size;
            for (uint64_t n = 0; n < run.length; n++) {
                unsigned char *found = &s->found[(here_at + n) / 8], bit = (unsigned char)(1 << ((here_at + n) % 8));
                if (*found & bit && here_at + n < *s->differs && memcmp(into + n * s->size, from + n * s->size, s->size) != 0)
                    *s->differs = here_at + n;
                *found |= bit;
            }
            memcpy(into, from, run.length * s->size);
            continue;
        }
        for (uint64_t n = 0; n < run.length; n++)
            scatter(s, d + 1, here_at + n, there_at + n, rows, first, count);
    }
}

static int read_source(const struct source *s, const char *path, uint64_t number, char error[TEXT]) {
    uint64_t row = s->size, low = UINT64_MAX, high = 0;
    for (int d = 1; d < s->b->dimensions; d++)
        row *= s->b->dimension[d].extent;
    for (int d = 0; d < s->v->dimensions; d++)
        if (s->runs[d].count == 0)
            return 0;
    for (size_t i = 0; i < s->runs[0].count; i++) {
        const struct run *run = &s->runs[0].run[i];
        low = run->there < low ? run->there : low;
        high = run->there + run->length > high ? run->there + run->length : high;
    }
    uint64_t step = row < PIECE_BYTES ? PIECE_BYTES / row : 1;
    step = step > high - low ? high - low : step;
    /* Room for the larger of the writer's elements and ours is the reader's to see to: it converts beside. */
    unsigned char *rows = malloc(step * row);
    if (!rows) {
        snprintf(error, TEXT, "no memory for %" PRIu64 " bytes", step * row);
        return MEND_APP_SYSTEM;
    }
    int done = 0;
    for (uint64_t first = low; first < high && done == 0; first += step) {
        uint64_t count = high - first < step ? high - first : step;
        done = block_read_rows(path, s->b, number, s->v->type, first, count, rows, error);
        if (done == 0)
            scatter(s, 0, 0, 0, rows, first, count);
    }
    free(rows);
    return done;
}

int saved_load_all(bool contents, char error[TEXT]) {
    char path[TEXT];
    uint32_t ranks = app.saved.manifest.ranks;
    /* With verify = values nobody has compared contents yet, for values are compared as they are restored; of what is spread anew only parts are. */
    contents = (contents && places_offered() && strcmp(app.settings.verify, "no") != 0) || app.saved.verify_values;
    if (app.saved.all && (app.saved.all_compared || !contents))
        return 0;
    saved_drop_all();
    app.saved.all_compared = contents;
    app.saved.all = must_alloc(ranks * sizeof *app.saved.all);
    app.saved.paths = must_alloc(ranks * sizeof *app.saved.paths);
    for (uint32_t i = 0; i < ranks; i++) {
        /* What all ranks see one of them has compared. A copy on this node nobody has. */
        store_path(path, app.settings.directory, app.saved.manifest.checkpoint, i);
        int done = 0;
        if (places_offered() || contents)
            done = load_part(i, contents, &app.saved.all[i], path, error);
        else if (!(app.saved.all[i] = rank_file_load(path, NULL, error)))
            done = MEND_APP_SYSTEM;
        if (done) {
            saved_drop_all();
            return done;
        }
        app.saved.paths[i] = must_copy(path);
    }
    return 0;
}

/* Whether an element here is this rank's own, and its global index. */
static bool is_own(const struct variable *v, const struct dimension *mine, uint64_t n, char index[TEXT]) {
    uint64_t at[MEND_APP_DIMENSIONS];
    size_t length = 0;
    bool own = true;
    for (int d = v->dimensions - 1; d >= 0; d--) {
        uint64_t here = n % mine[d].extent;
        n /= mine[d].extent;
        own = own && here >= mine[d].first && here - mine[d].first < mine[d].count;
        at[d] = dimension_global(&mine[d], here);
    }
    for (int d = 0; d < v->dimensions; d++)
        length += (size_t)snprintf(index + length, TEXT - length, "%s%" PRIu64, d ? ", " : "", at[d]);
    return own;
}

/* `index`: of the first of this rank's own elements that no file held. */
static bool all_found(const struct variable *v, const struct dimension *mine, const unsigned char *found, char index[TEXT]) {
    for (uint64_t n = 0; n < v->elements; n++)
        if (!(found[n / 8] & (1 << (n % 8))) && is_own(v, mine, n, index))
            return false;
    return true;
}

int spread_restore(struct variable *v, const struct block *like) {
    struct dimension mine[MEND_APP_DIMENSIONS];
    char error[TEXT] = "";
    if (v->dimensions != like->dimensions)
        return fail_restore(MEND_APP_REFUSED, "array `%s` had %d dimensions, and has %d now", v->name, like->dimensions, v->dimensions);
    for (int d = 0; d < v->dimensions; d++) {
        const mend_app_dimension *x = &v->dimension[d];
        if (x->global != like->dimension[d].global)
            return fail_restore(MEND_APP_REFUSED, "array `%s`, dimension %d: it had %" PRIu64 " elements over all ranks, and has %" PRIu64 " now", v->name, d, like->dimension[d].global, x->global);
        mine[d] = (struct dimension){.kind = (uint32_t)x->kind, .extent = x->extent, .global = x->global, .first = x->first, .count = x->count, .start = x->start, .block = x->block, .part = x->part, .parts = x->parts, .indices = (uint64_t *)(uintptr_t)x->indices};
    }
    int done = saved_load_all(true, error);
    if (done)
        return fail_restore(done, "%s", error);
    char index[TEXT];
    uint64_t differs = UINT64_MAX;
    struct source s = {.v = v, .mine = mine, .size = element_size(v->type), .found = must_alloc(v->elements / 8 + 1), .differs = &differs};
    char *context = context_path(v->context);
    for (uint32_t i = 0; i < app.saved.manifest.ranks && done == 0; i++) {
        const struct table *t = app.saved.all[i];
        const struct block *b = table_find(t, context, v->name);
        uint64_t number = b ? (uint64_t)(b - t->blocks) : 0;
        if (!b || b->whose != WHOSE_SPREAD || b->dimensions != v->dimensions || b->alias >= 0 || !element_kinds_agree(b->type, v->type)) {
            done = fail_restore(MEND_APP_REFUSED, "array `%s` of rank %" PRIu32 " %s", v->name, i, b && b->alias >= 0 ? "is an alias: it restarts on the same ranks only" : "isn't in the checkpoint, or another one");
            break;
        }
        s.b = b;
        for (int d = 0; d < v->dimensions; d++)
            s.runs[d] = meet(&mine[d], &b->dimension[d]);
        done = read_source(&s, app.saved.paths[i], number, error);
        for (int d = 0; d < v->dimensions; d++)
            free(s.runs[d].run);
        if (done)
            done = fail_restore(done, "array `%s`: %s", v->name, error);
    }
    free(context);
    if (done == 0 && differs != UINT64_MAX) {
        is_own(v, mine, differs, index);
        done = fail_restore(MEND_APP_REFUSED, "array `%s`: element [%.500s] was saved by several ranks, with different values: register what one rank alone has as its own (of a list or a whole dimension all elements are the rank's own), or restart on %" PRIu32 " ranks with the distribution that it had", v->name, index, app.saved.manifest.ranks);
    }
    if (done == 0 && !all_found(v, mine, s.found, index))
        done = fail_restore(MEND_APP_REFUSED, "array `%s`: no rank had saved element [%s]", v->name, index);
    free(s.found);
    return done;
}
