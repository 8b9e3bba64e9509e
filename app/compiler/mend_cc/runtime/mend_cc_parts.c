/* Blocks of which a part is overwritten after a safe point before anything reads it (mend_cc_overwritten). Saved are: the first element under the block's name, for pointers to
 * lead to; "kept", what else is needed; "which", for each element that isn't overwritten a bit that says whether it is in that; and "bytes", how large the block is, and how many
 * bits there are, as extents.
 * Where a restart makes a block again, elements are left out that are as they were when the safe point was first reached. */
#include "mend_cc_internal.h"

#include <stdlib.h>
#include <string.h>

struct overwritten {
    struct overwritten *next;
    const void *pointer;
    size_t size;
    int remade, *sites;
    const void **others;
    int64_t *sections;
};

struct part {
    unsigned char *made; /* elements that no pointer leads to overwriting of, as they were at first at `point`; NULL: that isn't known */
    size_t made_count;
    int point;
    unsigned char *kept, *which; /* registered */
    uint64_t count, bits, bytes; /* elements of `kept`; bits of `which`, and bytes */
};

static struct {
    struct overwritten *all;
    int point, *reached, reached_count, restored, poisons;
} parts;

static void *copy(const void *from, size_t bytes) {
    return memcpy(mend_cc_need(malloc(bytes + 1)), from, bytes);
}

void mend_cc_overwritten(const void *pointer, size_t size, int remade, const int *sites, const void *const *others, const int64_t *sections) {
    struct overwritten *o = mend_cc_need(malloc(sizeof *o));
    size_t site = 0, other = 0, section = 0;
    while (sites[site])
        site++;
    while (others[other])
        other++;
    while (sections[section] >= 0)
        section += 2 + 2 * (size_t)sections[section];
    *o = (struct overwritten){parts.all, pointer, size, remade, copy(sites, (site + 1) * sizeof *sites), copy(others, (other + 1) * sizeof *others), copy(sections, (section + 1) * sizeof *sections)};
    parts.all = o;
}

void mend_cc_parts_named(int point) {
    while (parts.all) {
        struct overwritten *o = parts.all;
        parts.all = o->next;
        free(o->sites);
        free(o->others);
        free(o->sections);
        free(o);
    }
    parts.point = point;
}

int mend_cc_parts_move(void) {
    return parts.all != NULL;
}

static const unsigned char *value_at(const void *pointer) {
    const unsigned char *value;
    memcpy(&value, pointer, sizeof value);
    return value;
}

static int may_lead_to(const struct overwritten *o, const struct block *b) {
    for (const int *site = o->sites; *site; site++)
        if (*site == b->site)
            return b->bytes >= o->size;
    return 0;
}

static int leads_elsewhere(const void *pointer, const struct block *block) {
    const unsigned char *to = value_at(pointer);
    for (const struct block *b = mend_cc_blocks(); b; b = b->next)
        if (to >= (unsigned char *)b->address && to < (unsigned char *)b->address + b->bytes)
            return b != block;
    return 0;
}

static int overwrites(const struct overwritten *o, const struct block *b) {
    if (!may_lead_to(o, b) || value_at(o->pointer) != b->address)
        return 0;
    for (const void **other = o->others; *other; other++)
        if (!leads_elsewhere(*other, b))
            return 0;
    return 1;
}

/* Marks are bits, one for each element. */
static int has(const unsigned char *marks, size_t element) {
    return marks[element / 8] >> element % 8 & 1;
}

static void set(unsigned char *marks, size_t element) {
    marks[element / 8] |= (unsigned char)(1 << element % 8);
}

static unsigned char *no_marks(size_t elements) {
    return mend_cc_need(calloc(elements / 8 + 1, 1));
}

static void mark(unsigned char *marks, int64_t elements, int64_t at, int64_t ranges, const int64_t *range) {
    if (ranges == 0) {
        if (at >= 0 && at < elements)
            set(marks, (size_t)at);
        return;
    }
    for (int64_t i = 0; i <= (range[0] ? range[1] : range[1] < 0 ? -1 : 0); i++)
        mark(marks, elements, at + i * range[0], ranges - 1, range + 2);
}

static void mark_all(unsigned char *marks, int64_t elements, const struct overwritten *o) {
    for (const int64_t *s = o->sections; s[0] >= 0; s += 2 + 2 * s[0])
        mark(marks, elements, s[1], s[0], s + 2);
}

/* For each element whether it is overwritten; NULL: none is. */
static unsigned char *overwritten_now(const struct block *b, size_t size) {
    const int64_t elements = (int64_t)(b->bytes / size);
    unsigned char *marks = NULL;
    for (const struct overwritten *o = parts.all; o; o = o->next)
        if (o->size == size && overwrites(o, b)) {
            if (!marks)
                marks = no_marks(b->bytes / size);
            mark_all(marks, elements, o);
        }
    return marks;
}

/* For each element whether it is overwritten whichever pointer leads to the block; NULL: none leads to it, or a restart doesn't make it again. */
static unsigned char *overwritten_always(const struct block *b, size_t size) {
    const size_t elements = b->bytes / size;
    unsigned char *always = NULL;
    for (const struct overwritten *o = parts.all; o; o = o->next) {
        if (!may_lead_to(o, b))
            continue;
        unsigned char *marks = no_marks(elements);
        mark_all(marks, (int64_t)elements, o);
        for (size_t i = 0; always && i < elements / 8 + 1; i++)
            marks[i] &= always[i];
        free(always);
        always = marks;
        if (!o->remade || o->size != size) {
            free(always);
            return NULL;
        }
    }
    return always;
}

static struct part *part_of(struct block *b) {
    if (!b->part)
        b->part = mend_cc_need(calloc(1, sizeof *b->part));
    return b->part;
}

static void forget_kept(struct part *p) {
    free(p->kept);
    free(p->which);
    p->kept = p->which = NULL;
}

void mend_cc_part_ends(struct block *b) {
    if (!b->part)
        return;
    forget_kept(b->part);
    free(b->part->made);
    free(b->part);
    b->part = NULL;
}

void mend_cc_parts_noted(void) {
    for (int i = 0; i < parts.reached_count; i++)
        if (parts.reached[i] == parts.point)
            return;
    /* What this run first finds at other places after a restore no further restart would find there. */
    if (!parts.all || parts.restored)
        return;
    parts.reached = mend_cc_need(realloc(parts.reached, (size_t)(parts.reached_count + 1) * sizeof *parts.reached));
    parts.reached[parts.reached_count++] = parts.point;
    for (struct block *b = mend_cc_blocks(); b; b = b->next) {
        size_t size = 0;
        for (const struct overwritten *o = parts.all; o; o = o->next)
            size = may_lead_to(o, b) ? o->size : size;
        unsigned char *always = size ? overwritten_always(b, size) : NULL;
        if (!always)
            continue;
        struct part *p = part_of(b);
        size_t count = 0;
        free(p->made);
        p->made = mend_cc_need(malloc(b->bytes));
        p->point = parts.point;
        for (size_t i = 0; i < b->bytes / size; i++)
            if (!has(always, i))
                memcpy(p->made + size * count++, (unsigned char *)b->address + i * size, size);
        p->made = mend_cc_need(realloc(p->made, size * count + 1));
        p->made_count = count;
        free(always);
    }
}

/* Fills `kept` and `which`. */
static void keep(struct block *b, size_t size, const unsigned char *marks) {
    struct part *p = part_of(b);
    const size_t elements = b->bytes / size;
    const int known = p->made && p->point == parts.point;
    unsigned char *always = known ? overwritten_always(b, size) : NULL;
    size_t made = 0;
    uint64_t bit = 0;
    p->kept = mend_cc_need(malloc(b->bytes));
    p->which = no_marks(elements);
    p->count = 0;
    for (size_t i = 0; i < elements; i++) {
        const unsigned char *now = (unsigned char *)b->address + i * size, *first = always && !has(always, i) && made < p->made_count ? p->made + size * made++ : NULL;
        if (has(marks, i))
            continue;
        if (!first || memcmp(now, first, size) != 0) {
            memcpy(p->kept + size * p->count++, now, size);
            set(p->which, bit);
        }
        bit++;
    }
    p->bits = bit;
    p->bytes = (bit + 7) / 8;
    p->kept = mend_cc_need(realloc(p->kept, size * p->count + 1));
    free(always);
}

enum what { KEPT, WHICH, BYTES };
static const char *const WHAT[] = {"kept", "which", "bytes"};

static int saved(const char *name, enum what what, uint64_t *extents) {
    char full[3 * MEND_CC_NAME];
    snprintf(full, sizeof full, "%s %s", name, WHAT[what]);
    return mend_app_saved_shape(full, extents);
}

static void add(const char *name, enum what what, void *address, int type, int dimensions, const uint64_t *extents) {
    char full[3 * MEND_CC_NAME];
    snprintf(full, sizeof full, "%s %s", name, WHAT[what]);
    mend_cc_must(mend_app_variable(full, address, type, dimensions, extents, MEND_APP_PRIVATE), full);
}

size_t mend_cc_part_bytes(const char *name) {
    uint64_t extents[MEND_APP_DIMENSIONS];
    return saved(name, BYTES, extents) == 3 ? (size_t)extents[1] : 0;
}

int mend_cc_part(const char *name, struct block *b, int type, size_t size) {
    static const uint64_t ONE = 1;
    uint64_t extents[MEND_APP_DIMENSIONS] = {0, b->bytes};
    if (b->part)
        forget_kept(b->part);
    if (mend_app_restarting()) {
        if (!mend_cc_part_bytes(name))
            return 0;
        struct part *p = part_of(b);
        p->bits = saved(name, BYTES, extents) == 3 ? extents[2] : 0;
        p->count = saved(name, KEPT, extents) == 1 ? extents[0] : 0;
        p->bytes = saved(name, WHICH, extents) == 1 ? extents[0] : 0;
        p->kept = mend_cc_need(calloc(p->count + 1, size));
        p->which = mend_cc_need(calloc(p->bytes + 1, 1));
    } else {
        unsigned char *marks = overwritten_now(b, size);
        if (!marks)
            return 0;
        keep(b, size, marks);
        free(marks);
    }
    mend_cc_must(mend_app_variable(name, b->address, type, 1, &ONE, MEND_APP_PRIVATE), name);
    add(name, KEPT, b->part->kept, type, 1, &b->part->count);
    add(name, WHICH, b->part->which, MEND_APP_UINT8, 1, &b->part->bytes);
    extents[0] = 0;
    extents[1] = b->bytes;
    extents[2] = b->part->bits;
    add(name, BYTES, b->part->which, MEND_APP_UINT8, 3, extents);
    return 1;
}

static void put_back(struct block *b, size_t size) {
    struct part *p = b->part;
    unsigned char *marks = overwritten_now(b, size);
    size_t bit = 0, count = 0;
    for (size_t i = 0; marks && i < b->bytes / size; i++) {
        unsigned char *at = (unsigned char *)b->address + i * size;
        if (has(marks, i) && parts.poisons)
            mend_cc_poison(at, size);
        if (has(marks, i))
            continue;
        if (bit / 8 < p->bytes && has(p->which, bit) && count++ < p->count)
            memcpy(at, p->kept + size * (count - 1), size);
        bit++;
    }
    if (!marks || count != p->count || bit != p->bits)
        mend_cc_stop("of an array that was saved in part another part is overwritten in this run, so the program ends: begin anew (MEND_APP_RESTART=none)");
    free(marks);
}

void mend_cc_parts_back(void) {
    parts.restored = 1;
    for (struct block *b = mend_cc_blocks(); b; b = b->next)
        for (const struct overwritten *o = parts.all; o && b->part && b->part->kept; o = o->next)
            if (may_lead_to(o, b)) {
                put_back(b, o->size);
                break;
            }
}

void mend_cc_poison_overwritten(void) {
    parts.poisons = 1;
}
