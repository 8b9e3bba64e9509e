/* See mend_cc.h. Compiled by the user's mpicc. */
#include "mend_cc_internal.h"

#include <limits.h>
#include <mend_app_mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 32, PATH = 512 };
#define UNSAVED SIZE_MAX

struct note {
    struct note *next;
    char name[MEND_CC_NAME];
    void *address;
    int point, level, type, dimensions, whose, fields, site; /* site: above 0 it is all that this place has allocated */
    size_t count, size, bytes;
    uint64_t extents[MEND_APP_DIMENSIONS];
    mend_app_dimension shape[MEND_APP_DIMENSIONS];
    mend_cc_field *field; /* owned */
    int shaped;
};

/* How many blocks a place has allocated. */
struct site {
    struct site *next;
    int site, allocated;
};

static struct {
    int started, entered, current, saved, changed, leaf, naming; /* naming: the point whose variables are being named */
    const mend_cc_point *points;
    int count;
    struct note *notes;
    struct block *blocks, *last;
    struct site *sites;
} cc;

/* Of the lists of blocks, which any thread may change; at a safe point there is one alone. */
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

int (*mend_cc_check)(int point);

void mend_cc_must(int done, const char *name) {
    if (done < 0)
        mend_cc_stop("%s can't be registered or restored, so the program ends: a checkpoint without it is worth nothing. The cause stands above", name);
}

static const mend_cc_point *find_point(int number) {
    for (int i = 0; i < cc.count; i++)
        if (cc.points[i].number == number)
            return &cc.points[i];
    return NULL;
}

/* Enters contexts; 0 where the saved run isn't in one of them. Those entered are counted. */
static int enter(const char *path) {
    char part[PATH];
    while (*path) {
        size_t length = strcspn(path, "/");
        snprintf(part, sizeof part, "%.*s", (int)length, path);
        if (mend_app_enter(part) != MEND_APP_OK)
            return 0;
        cc.entered++;
        path += length + (path[length] == '/');
    }
    return 1;
}

static mend_cc_field *copy_fields(int count, const mend_cc_field *field) {
    mend_cc_field *made = mend_cc_need(malloc((size_t)(count + 1) * sizeof *made));
    memcpy(made, field, (size_t)count * sizeof *made);
    return made;
}

static void leave(void) {
    for (; cc.entered; cc.entered--)
        mend_app_leave();
}

static void register_all(void);

static void bring_up_to_date(void *data) {
    (void)data;
    if (cc.current && (cc.changed || mend_cc_parts_move()))
        register_all();
}

/* Whether one of several names, one a line, is among the saved variables of the current context. */
static int was_saved(const char *probe) {
    uint64_t extents[MEND_APP_DIMENSIONS];
    char name[2 * MEND_CC_NAME];
    while (*probe) {
        size_t length = strcspn(probe, "\n");
        snprintf(name, sizeof name, "%.*s", (int)length, probe);
        if (mend_app_saved_shape(name, extents) >= 0)
            return 1;
        probe += length + (probe[length] == '\n');
    }
    return 0;
}

void mend_cc_start(const char *program, const mend_cc_point *points, int count) {
    mend_cc_point *kept = mend_cc_need(malloc((size_t)(count + 1) * sizeof *kept));
    memcpy(kept, points, (size_t)count * sizeof *kept);
    cc.points = kept;
    cc.count = count;
    if (mend_app_init_mpi(MPI_COMM_WORLD, program, NULL) < 0) {
        /* To go on would be to begin anew, and to write over what the run before has written. */
        mend_cc_stop("the program ends, for its checkpoints can't be set up: put right what stands above");
    }
    cc.started = 1;
    mend_app_prepare(bring_up_to_date, NULL);
    for (int i = 0; i < count && mend_app_restarting() && !cc.saved; i++) {
        if (enter(points[i].path) && was_saved(points[i].probe))
            cc.saved = points[i].number;
        leave();
    }
    if (mend_app_restarting() && !cc.saved) {
        char places[PATH] = "";
        for (int i = 0; i < count; i++)
            snprintf(places + strlen(places), sizeof places - strlen(places), "%s%s", i ? ", " : "", points[i].path);
        mend_cc_stop("the program ends: the state that is to be restored has none of its safe points (%s), so it is of another source, or of another mend-cc. Build what it is of, or begin anew (MEND_APP_RESTART=none)", places);
    }
}

void mend_cc_end(void) {
    if (!cc.started)
        return;
    leave();
    int done = mend_app_finalize();
    if (done == MEND_APP_SYSTEM)
        mend_cc_stop("the program ends with an error: its files aren't all written. The cause stands above");
    if (done < 0)
        mend_cc_stop("the program ends with an error: what it left out in this restart was never restored, so its results may be wrong");
    cc.started = 0;
}

int mend_cc_skip(const char *points) {
    if (!cc.started || !mend_app_restarting())
        return 0;
    for (const char *at = points; *at;) {
        char *end;
        if (strtol(at, &end, 10) == cc.saved)
            return 1;
        at = end;
    }
    return 0;
}

void mend_cc_frame(int level, int point) {
    cc.naming = point;
    for (struct note **at = &cc.notes; *at;) {
        struct note *n = *at;
        if (n->point == point && n->level >= level) {
            *at = n->next;
            free(n->field);
            free(n);
        } else {
            at = &n->next;
        }
    }
}

int mend_cc_restoring(int point) {
    return cc.started && mend_app_restarting() && cc.saved == point;
}

int mend_cc_arrive(int point, int *known) {
    if (!cc.started || (*known && cc.current == point) || (mend_app_restarting() && cc.saved != point))
        return 0;
    const mend_cc_point *p = find_point(point);
    cc.leaf = 0;
    for (const char *c = p->path; *c; c++)
        cc.leaf += *c == '/';
    *known = 1;
    mend_cc_frame(cc.leaf, point);
    mend_cc_parts_named(point);
    cc.current = -point;
    return 1;
}

static struct note *add(int level, const char *name, void *address, int type, int whose) {
    struct note *n = mend_cc_need(calloc(1, sizeof *n)), **end = &cc.notes;
    n->point = cc.naming;
    n->level = level < 0 ? cc.leaf : level;
    snprintf(n->name, sizeof n->name, "%s", name);
    n->address = address;
    n->type = type;
    n->whose = whose;
    while (*end)
        end = &(*end)->next;
    *end = n;
    return n;
}

void mend_cc_variable(int level, const char *name, void *address, int type, int dimensions, const uint64_t *extents, int whose) {
    struct note *n = add(level, name, address, type, whose);
    if (dimensions > MEND_APP_DIMENSIONS)
        mend_cc_stop("%s: an array of texts has %d dimensions at most, so the program ends: take one away", name, MEND_APP_DIMENSIONS - 1);
    n->dimensions = dimensions;
    if (dimensions)
        memcpy(n->extents, extents, (size_t)dimensions * sizeof *extents);
}

void mend_cc_other_size(const char *name, int known, int bytes) {
    mend_cc_stop("%s: its elements have %d bytes, and mend-cc has read %d, so the program ends: give its kind in the source, as real(8), and not by the compiler's options", name, bytes, known);
}

void mend_cc_other_extents(const char *name, int dimension, int64_t extent, int64_t told) {
    mend_cc_stop("%s: dimension %d of its shape has %lld elements, and %s has %lld in memory, so the program ends: put the directive `shape` right, and build it again", name, dimension, (long long)told, name, (long long)extent);
}

static void set_shape(struct note *n, size_t size, int dimensions, const mend_app_dimension *shape) {
    n->size = size;
    n->dimensions = dimensions;
    n->shaped = 1;
    memcpy(n->shape, shape, (size_t)dimensions * sizeof *shape);
}

void mend_cc_array(int level, const char *name, void *address, size_t bytes, int type, size_t size, int dimensions, const mend_app_dimension *shape) {
    struct note *n = add(level, name, address, type, MEND_APP_PRIVATE);
    n->bytes = bytes;
    set_shape(n, size, dimensions, shape);
}

void mend_cc_fields(int level, const char *name, void *address, size_t count, size_t size, int fields, const mend_cc_field *field, int whose) {
    struct note *n = add(level, name, address, MEND_APP_BYTES, whose);
    n->count = count;
    n->size = size;
    n->fields = fields;
    n->field = copy_fields(fields, field);
}

static struct note *add_heap(const char *name, int site, int type, size_t size, int whose) {
    struct note *n = add(-1, name, NULL, type, whose);
    n->site = site;
    n->size = size;
    return n;
}

void mend_cc_heap(const char *name, int site, int type, size_t size, int whose) {
    add_heap(name, site, type, size, whose);
}

void mend_cc_heap_array(const char *name, int site, int type, size_t size, int dimensions, const mend_app_dimension *shape) {
    set_shape(add_heap(name, site, type, size, MEND_APP_PRIVATE), size, dimensions, shape);
}

void mend_cc_heap_fields(const char *name, int site, size_t size, int fields, const mend_cc_field *field, int whose) {
    struct note *n = add_heap(name, site, MEND_APP_BYTES, size, whose);
    n->fields = fields;
    n->field = copy_fields(fields, field);
}

static void register_fields(const struct note *n, const char *name, unsigned char *address, size_t count) {
    char field[2 * MEND_CC_NAME];
    for (size_t i = 0; i < count; i++)
        for (int f = 0; f < n->fields; f++) {
            const uint64_t extent = n->field[f].count;
            if (count > 1)
                snprintf(field, sizeof field, "%s[%zu].%s", name, i, n->field[f].name);
            else
                snprintf(field, sizeof field, "%s.%s", name, n->field[f].name);
            mend_cc_must(mend_app_variable(field, address + i * n->size + n->field[f].offset, n->field[f].type, extent > 1, extent > 1 ? &extent : NULL, n->whose), field);
        }
}

static void register_shaped(const struct note *n, const char *name, void *address, size_t bytes) {
    size_t wanted = n->size;
    for (int d = 0; d < n->dimensions; d++)
        if (__builtin_mul_overflow(wanted, n->shape[d].extent, &wanted))
            wanted = SIZE_MAX;
    if (wanted > bytes)
        mend_cc_stop("%s: its shape has %zu bytes, and %s has %zu in memory, so the program ends: put the directive `shape` right, and build it again", name, wanted, name, bytes);
    mend_cc_must(mend_app_array(name, address, n->type, n->dimensions, n->shape), name);
}

/* Elements that block `name` had when it was saved, or UNSAVED. */
static size_t saved_elements(const struct note *n, const char *name) {
    uint64_t extents[MEND_APP_DIMENSIONS];
    if (!n->fields) {
        int dimensions = mend_app_saved_shape(name, extents);
        size_t elements = 1;
        for (int d = 0; d < dimensions; d++)
            elements *= extents[d];
        return dimensions < 0 ? UNSAVED : elements;
    }
    char field[2 * MEND_CC_NAME];
    snprintf(field, sizeof field, "%s.%s", name, n->field[0].name);
    if (mend_app_saved_shape(field, extents) >= 0)
        return 1;
    size_t count = 0;
    for (;; count++) {
        snprintf(field, sizeof field, "%s[%zu].%s", name, count, n->field[0].name);
        if (mend_app_saved_shape(field, extents) < 0)
            return count ? count : UNSAVED;
    }
}

static struct site *find_site(int site) {
    struct site *s = cc.sites;
    while (s && s->site != site)
        s = s->next;
    if (!s) {
        s = mend_cc_need(malloc(sizeof *s));
        *s = (struct site){cc.sites, site, 0};
        cc.sites = s;
    }
    return s;
}

static struct block *remember(int site, void *address, size_t bytes) {
    struct block *b = mend_cc_need(calloc(1, sizeof *b));
    *b = (struct block){NULL, address, bytes, site, ++find_site(site)->allocated, NULL};
    if (cc.last)
        cc.last->next = b;
    else
        cc.blocks = b;
    cc.last = b;
    cc.changed = 1;
    return b;
}

static struct block *next_of(struct block *b, int site) {
    while (b && b->site != site)
        b = b->next;
    return b;
}

static void name_block(char name[2 * MEND_CC_NAME], const struct note *n, int number) {
    if (number == 1)
        snprintf(name, 2 * MEND_CC_NAME, "%s", n->name);
    else
        snprintf(name, 2 * MEND_CC_NAME, "%s %d", n->name, number);
}

/* What lies behind the last whole element. */
static void register_rest(const struct note *n, const char *name, unsigned char *address, size_t bytes) {
    char rest[3 * MEND_CC_NAME];
    const uint64_t count = bytes % n->size;
    if (!count)
        return;
    snprintf(rest, sizeof rest, "%s rest", name);
    mend_cc_must(mend_app_variable(rest, address + bytes - count, MEND_APP_UINT8, 1, &count, n->whose), rest);
}

static void register_block(const struct note *n, struct block *b) {
    char name[2 * MEND_CC_NAME];
    name_block(name, n, b->number);
    uint64_t elements = b->bytes / n->size;
    if (n->fields)
        register_fields(n, name, b->address, elements);
    else if (n->shaped)
        register_shaped(n, name, b->address, b->bytes);
    else if (n->whose == MEND_APP_PRIVATE && mend_cc_part(name, b, n->type, n->size))
        return;
    else if (elements || !mend_app_restarting())
        mend_cc_must(mend_app_variable(name, b->address, n->type, 1, &elements, n->whose), name);
    if (!n->shaped)
        register_rest(n, name, b->address, b->bytes);
}

/* This run's blocks of a place become those that the saved run had: by their numbers, and as large. */
static void match_blocks(const struct note *n, int allocated) {
    char name[2 * MEND_CC_NAME], rest[3 * MEND_CC_NAME];
    uint64_t extents[MEND_APP_DIMENSIONS];
    struct block **at = &cc.blocks, *before = NULL;
    char *saved = mend_cc_need(calloc((size_t)allocated + 1, 1));
    size_t *bytes = mend_cc_need(calloc((size_t)allocated + 1, sizeof *bytes));
    for (int number = 1; number <= allocated; number++) {
        name_block(name, n, number);
        size_t elements = saved_elements(n, name);
        snprintf(rest, sizeof rest, "%s rest", name);
        int more = mend_app_saved_shape(rest, extents) == 1;
        saved[number] = elements != UNSAVED || more;
        bytes[number] = (elements == UNSAVED ? 0 : elements * n->size) + (more ? extents[0] : 0);
        size_t in_part = mend_cc_part_bytes(name);
        bytes[number] = in_part ? in_part : bytes[number];
    }
    while (*at) {
        struct block *b = *at;
        if (b->site == n->site && (b->number > allocated || !saved[b->number])) {
            /* The saved run had freed it: what led to it leads elsewhere after the restore. */
            *at = b->next;
            if (cc.last == b)
                cc.last = before;
            mend_cc_part_ends(b);
            free(b);
            continue;
        }
        if (b->site == n->site) {
            saved[b->number] = 0;
            if (b->bytes != bytes[b->number]) {
                mend_cc_part_ends(b);
                b->bytes = bytes[b->number];
                b->address = mend_cc_need(calloc(b->bytes + 1, 1));
            }
        }
        before = b;
        at = &b->next;
    }
    for (int number = 1; number <= allocated; number++)
        if (saved[number])
            remember(n->site, mend_cc_need(calloc(bytes[number] + 1, 1)), bytes[number])->number = number;
    find_site(n->site)->allocated = allocated;
    free(saved);
    free(bytes);
}

/* The blocks of one place, by their numbers, and how many it has allocated: the extent of an array without elements, since a restart must know it before it restores anything. */
static void register_heap(const struct note *n) {
    char name[2 * MEND_CC_NAME];
    struct site *site = find_site(n->site);
    uint64_t extents[MEND_APP_DIMENSIONS] = {0, (uint64_t)site->allocated};
    snprintf(name, sizeof name, "%s allocated", n->name);
    if (!n->shaped) {
        if (mend_app_restarting()) {
            if (mend_app_saved_shape(name, extents) != 2 || extents[1] > INT_MAX)
                mend_cc_stop("the state that is to be restored doesn't say how many blocks %s had, so the program ends: it is of an older mend-cc. Finish that run with the program that it built, or begin anew (MEND_APP_RESTART=none)", n->name);
            match_blocks(n, (int)extents[1]);
        }
        mend_cc_must(mend_app_variable(name, &site->allocated, MEND_APP_UINT8, 2, extents, n->whose), name);
    }
    for (struct block *b = next_of(cc.blocks, n->site); b; b = next_of(b->next, n->site))
        register_block(n, b);
}

static void register_level(int level) {
    for (struct note *n = cc.notes; n; n = n->next) {
        if (n->point != cc.current || n->level != level)
            continue;
        if (n->site)
            register_heap(n);
        else if (n->fields)
            register_fields(n, n->name, n->address, n->count);
        else if (n->shaped)
            register_shaped(n, n->name, n->address, n->bytes);
        else
            mend_cc_must(mend_app_variable(n->name, n->address, n->type, n->dimensions, n->dimensions ? n->extents : NULL, n->whose), n->name);
    }
}

static void register_all(void) {
    const mend_cc_point *p = find_point(cc.current);
    char part[PATH];
    const char *path = p->path;
    leave();
    for (int level = 0; *path; level++) {
        size_t length = strcspn(path, "/");
        snprintf(part, sizeof part, "%.*s", (int)length, path);
        int done = mend_app_enter(part);
        mend_cc_must(done, part);
        if (done != MEND_APP_OK)
            return;
        cc.entered++;
        register_level(level);
        path += length + (path[length] == '/');
    }
    cc.changed = 0;
}

int mend_cc_checkpoint(int point) {
    if (!cc.started || (mend_app_restarting() && cc.saved != point))
        return MEND_APP_OK;
    if (mend_cc_check && !mend_app_restarting() && !mend_cc_check(point))
        return MEND_APP_REFUSED;
    if (cc.current != point) {
        cc.current = point;
        mend_cc_parts_noted();
        register_all();
    }
    int restoring = mend_app_restarting();
    if (restoring)
        mend_cc_files_back();
    int done = mend_app_checkpoint();
    if (restoring && done < 0)
        mend_cc_stop("the state of safe point %s isn't restored, so the program ends. The cause stands above", find_point(point)->path);
    if (done == MEND_APP_RESTORED)
        mend_cc_parts_back();
    return done;
}

static void *known(int site, void *made, size_t bytes) {
    if (made) {
        pthread_mutex_lock(&blocks_lock);
        remember(site, made, bytes);
        pthread_mutex_unlock(&blocks_lock);
    }
    return made;
}

void *mend_cc_malloc(int site, size_t bytes) {
    return known(site, malloc(bytes), bytes);
}

void *mend_cc_calloc(int site, size_t count, size_t size) {
    return known(site, calloc(count, size), count * size);
}

void *mend_cc_aligned_alloc(int site, size_t alignment, size_t bytes) {
    return known(site, aligned_alloc(alignment, bytes), bytes);
}

static void forget(const void *address) {
    struct block *before = NULL;
    for (struct block **at = &cc.blocks; *at; before = *at, at = &(*at)->next)
        if ((*at)->address == address) {
            struct block *gone = *at;
            *at = gone->next;
            if (cc.last == gone)
                cc.last = before;
            mend_cc_part_ends(gone);
            free(gone);
            cc.changed = 1;
            return;
        }
}

static void *reallocate(int site, void *old, size_t bytes) {
    void *made = realloc(old, bytes);
    if (!made) {
        /* The C library has freed it. */
        if (old && bytes == 0)
            forget(old);
        return NULL;
    }
    for (struct block *b = cc.blocks; b; b = b->next)
        if (old && b->address == old) {
            mend_cc_part_ends(b);
            b->address = made;
            b->bytes = bytes;
            if (b->site != site)
                b->number = ++find_site(site)->allocated;
            b->site = site;
            cc.changed = 1;
            return made;
        }
    remember(site, made, bytes);
    return made;
}

/* Locked as a whole: another thread may be given the old address at once. */
void *mend_cc_realloc(int site, void *old, size_t bytes) {
    pthread_mutex_lock(&blocks_lock);
    void *made = reallocate(site, old, bytes);
    pthread_mutex_unlock(&blocks_lock);
    return made;
}

void mend_cc_free(void *address) {
    if (address) {
        pthread_mutex_lock(&blocks_lock);
        forget(address);
        pthread_mutex_unlock(&blocks_lock);
    }
    free(address);
}

struct block *mend_cc_blocks(void) {
    return cc.blocks;
}

int mend_cc_has_started(void) {
    return cc.started;
}

void mend_cc_poison(void *address, size_t bytes) {
    memset(address, 0x6B, bytes);
}

void mend_cc_poison_heap(int site) {
    for (struct block *b = next_of(cc.blocks, site); b; b = next_of(b->next, site))
        mend_cc_poison(b->address, b->bytes);
}
