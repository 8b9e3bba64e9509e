/* The registry as a table: the blocks, which variables are aliases, where pointers point to, what has changed since the checkpoint before. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Memory of a block, in order of addresses. */
struct span {
    uintptr_t start, end;
    size_t block;
    const struct variable *v;
};

static int by_address(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    /* The longer first: the other lies in it. Of equal ones the one registered first. */
    if (x->end != y->end)
        return x->end > y->end ? -1 : 1;
    return x->block < y->block ? -1 : 1;
}

/* "main()" stands for "main", as in the file: the order must be that of the links there. */
static int by_link(const void *a, const void *b) {
    const struct context *x = *(const struct context *const *)a, *y = *(const struct context *const *)b;
    char one[NAME_MAX_LENGTH + 4], other[NAME_MAX_LENGTH + 4];
    snprintf(one, sizeof one, "%s()", x->name);
    snprintf(other, sizeof other, "%s()", y->name);
    return strcmp(one, other);
}

static size_t count_contexts(const struct context *c) {
    size_t count = 0;
    for (const struct context *child = c->children; child; child = child->next)
        count += 1 + count_contexts(child);
    return count;
}

static void list_contexts(struct table *t, const struct context *c) {
    size_t count = 0;
    for (const struct context *child = c->children; child; child = child->next)
        count++;
    const struct context **sorted = must_alloc(count * sizeof *sorted);
    size_t at = 0;
    for (const struct context *child = c->children; child; child = child->next)
        sorted[at++] = child;
    qsort(sorted, count, sizeof *sorted, by_link);
    for (size_t i = 0; i < count; i++) {
        t->contexts[t->contexts_count++] = (struct saved_context){.path = context_path(sorted[i]), .entered = sorted[i]->entered, .active = sorted[i]->active};
        list_contexts(t, sorted[i]);
    }
    free(sorted);
}

/* What the position counts must be there after a loss of power. What is no file, as /dev/null, can't be made durable, and has no need of it. */
static bool written_down(FILE *stream) {
    struct stat status;
    if (fflush(stream) != 0)
        return false;
    return fdatasync(fileno(stream)) == 0 || ((errno == EINVAL || errno == EROFS) && fstat(fileno(stream), &status) == 0 && !S_ISREG(status.st_mode));
}

static bool list_files(struct table *t, char error[TEXT]) {
    size_t count = 0;
    for (const struct open_file *f = app.files; f; f = f->next)
        count++;
    t->files = must_alloc(count * sizeof *t->files);
    for (const struct open_file *f = app.files; f; f = f->next) {
        bool reads = f->mode[0] == 'r' && !strchr(f->mode, '+');
        off_t position = -1;
        struct stat status;
        if (reads || written_down(f->stream))
            position = ftello(f->stream);
        if (position < 0 || fstat(fileno(f->stream), &status) != 0) {
            snprintf(error, TEXT, "the position in file `%s` can't be told, or what was written not be made durable", f->name);
            return false;
        }
        if (!S_ISREG(status.st_mode))
            position = 0;
        t->files[t->files_count++] = (struct saved_file){must_copy(f->name), must_copy(f->path), must_copy(f->mode), position, status.st_size};
    }
    return true;
}

/* Which blocks lie in others. `spans` is sorted; what isn't an alias is moved to its front, and counted. */
static bool find_aliases(struct table *t, struct span *spans, size_t *count, char error[TEXT]) {
    size_t owners = 0;
    for (size_t i = 0; i < *count; i++) {
        struct span *owner = owners ? &spans[owners - 1] : NULL, *s = &spans[i];
        if (owner && s->start < owner->end) {
            uint64_t size = element_size(s->v->type);
            if (s->end > owner->end || s->v->type != owner->v->type || (s->start - owner->start) % size) {
                snprintf(error, TEXT, "`%.200s` and `%.200s` overlap in memory, but neither lies within the other with the same type: register one of them", owner->v->name, s->v->name);
                return false;
            }
            t->blocks[s->block].alias = (int64_t)owner->block;
            t->blocks[s->block].offset = (s->start - owner->start) / size;
        } else {
            spans[owners++] = *s;
        }
    }
    *count = owners;
    return true;
}

static bool save_pointers(struct block *b, const struct variable *v, const struct span *spans, size_t count, char error[TEXT]) {
    int64_t *pairs = must_alloc(b->elements * 16);
    b->copy = pairs;
    b->data = pairs;
    for (uint64_t i = 0; i < b->elements; i++) {
        uintptr_t p = (uintptr_t)((void **)v->address)[i];
        pairs[2 * i] = -1;
        if (p == 0)
            continue;
        /* The last span that starts at or before it; its end belongs to it where nothing else begins. */
        size_t low = 0, high = count;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (spans[middle].start <= p)
                low = middle + 1;
            else
                high = middle;
        }
        const struct span *s = low ? &spans[low - 1] : NULL;
        uint64_t size = s ? element_size(s->v->type) : 1;
        if (!s || p > s->end || (p - s->start) % size) {
            snprintf(error, TEXT, "pointer `%.200s` [%" PRIu64 "] points %s: register what it points to, or set it to null", b->name, i, s && p <= s->end ? "into the middle of an element" : "outside of all that is registered");
            return false;
        }
        pairs[2 * i] = (int64_t)s->block;
        pairs[2 * i + 1] = (int64_t)((p - s->start) / size);
    }
    return true;
}

static bool same_dimensions(const struct block *a, const struct block *b) {
    if (a->dimensions != b->dimensions || a->type != b->type || a->size != b->size || a->whose != b->whose)
        return false;
    for (int d = 0; d < a->dimensions; d++) {
        const struct dimension *x = &a->dimension[d], *y = &b->dimension[d];
        if (x->kind != y->kind || x->extent != y->extent || x->global != y->global || x->first != y->first || x->count != y->count || x->start != y->start || x->block != y->block || x->part != y->part || x->parts != y->parts)
            return false;
        if (x->kind == MEND_APP_LIST && memcmp(x->indices, y->indices, x->extent * sizeof *x->indices) != 0)
            return false;
    }
    return true;
}

static void link_unchanged(struct block *b) {
    const struct block *before = app.base ? table_find(app.base, b->context, b->name) : NULL;
    if (!before || before->alias >= 0 || before->zero || before->hash[0] != b->hash[0] || before->hash[1] != b->hash[1] || !same_dimensions(before, b))
        return;
    b->has_data = false;
    b->held_by = before->held_by;
    b->held_as = before->held_as;
}

static void add_ancestor(struct table *t, uint64_t checkpoint) {
    for (size_t i = 0; i < t->ancestors_count; i++)
        if (t->ancestors[i].checkpoint == checkpoint)
            return;
    struct ancestor a = {.checkpoint = checkpoint};
    if (app.base->checkpoint == checkpoint)
        memcpy(a.digest, app.base->digest, sizeof a.digest);
    for (size_t i = 0; i < app.base->ancestors_count; i++)
        if (app.base->ancestors[i].checkpoint == checkpoint)
            a = app.base->ancestors[i];
    t->ancestors[t->ancestors_count++] = a;
}

/* The checkpoints that hold what is unchanged. */
static void list_ancestors(struct table *t) {
    if (!app.base)
        return;
    t->ancestors = must_alloc((app.base->ancestors_count + 1) * sizeof *t->ancestors);
    for (size_t i = 0; i < t->blocks_count; i++)
        if (t->blocks[i].held_by != t->checkpoint)
            add_ancestor(t, t->blocks[i].held_by);
}

static void describe(struct block *b, const struct variable *v) {
    b->context = context_path(v->context);
    b->name = must_copy(v->name);
    b->type = v->type;
    b->whose = v->whose;
    b->dimensions = v->dimensions;
    b->elements = v->elements;
    b->size = v->type == MEND_APP_POINTER ? 16 : element_size(v->type);
    b->data = v->address;
    for (int d = 0; d < v->dimensions; d++) {
        const mend_app_dimension *x = &v->dimension[d];
        b->dimension[d] = (struct dimension){.kind = (uint32_t)x->kind, .extent = x->extent, .global = x->global, .first = x->first, .count = x->count, .start = x->start, .block = x->block, .part = x->part, .parts = x->parts};
        if (x->kind == MEND_APP_LIST) {
            b->dimension[d].indices = must_alloc(x->extent * sizeof(uint64_t));
            memcpy(b->dimension[d].indices, x->indices, x->extent * sizeof(uint64_t));
        }
    }
}

/* The bits of a long double that say nothing are 0 in files. */
static bool clear_long_doubles(struct block *b) {
#if defined(__x86_64__) || defined(__i386__)
    if (b->type == MEND_APP_LONG_DOUBLE) {
        unsigned char *copy = malloc(b->elements * b->size + 1);
        if (!copy)
            return false;
        memcpy(copy, b->data, b->elements * b->size);
        for (uint64_t i = 0; i < b->elements; i++)
            memset(copy + i * b->size + 10, 0, b->size - 10);
        b->copy = copy;
        b->data = copy;
    }
#else
    (void)b;
#endif
    return true;
}

/* What the file holds of a block; with SNAPSHOT_COPY from memory that the program doesn't change. False: no memory. */
static bool fill(struct block *b, uint64_t number, uint64_t index, enum snapshot how) {
    b->held_by = number;
    b->held_as = index;
    if (b->alias >= 0 || how == SNAPSHOT_MOVE)
        return true;
    if (!clear_long_doubles(b))
        return false;
    block_hash(b, b->data);
    b->zero = all_zero(b->data, b->elements * b->size);
    b->has_data = !b->zero && b->elements > 0;
    if (b->has_data)
        link_unchanged(b);
    if (b->has_data && how == SNAPSHOT_COPY && !b->copy) {
        b->copy = malloc(b->elements * b->size);
        if (!b->copy)
            return false;
        memcpy(b->copy, b->data, b->elements * b->size);
        b->data = b->copy;
    }
    return true;
}

/* The same on all ranks must also be what lies in another variable, which may differ. */
static void hash_replicated_aliases(struct table *t) {
    for (size_t i = 0; i < t->blocks_count; i++) {
        struct block *b = &t->blocks[i];
        if (b->alias >= 0 && b->whose == MEND_APP_REPLICATED)
            block_hash(b, (const char *)t->blocks[b->alias].data + b->offset * b->size);
    }
}

bool snapshot_prepare(char error[TEXT]) {
    app.reported = false;
    if (app.prepare)
        app.prepare(app.prepare_data);
    if (app.reported)
        snprintf(error, TEXT, "the program can't bring its variables up to date, and says why");
    return !app.reported;
}

struct table *snapshot_take(enum snapshot how, char error[TEXT]) {
    struct table *t = table_new();
    struct utsname machine;
    char text[TEXT];
    uname(&machine);
    snprintf(text, sizeof text, "%s %s", machine.sysname, machine.machine);
    t->machine = must_copy(text);
    t->rank = (uint32_t)app.transport.rank;
    t->ranks = (uint32_t)app.transport.size;
    t->call = app.call;
    t->checkpoint = (uint64_t)((int64_t)app.call + app.number_offset);
    t->program = must_copy(app.program);
    t->where = context_path(app.current);
    t->taken = (int64_t)time(NULL);
    size_t count = 0;
    for (const struct variable *v = app.variables; v; v = v->next)
        count++;
    struct span *spans = must_alloc(count * sizeof *spans);
    size_t used = 0;
    for (const struct variable *v = app.variables; v; v = v->next) {
        describe(table_block(t), v);
        uintptr_t start = (uintptr_t)v->address;
        if (v->elements)
            spans[used++] = (struct span){start, start + v->elements * element_size(v->type), t->blocks_count - 1, v};
    }
    qsort(spans, used, sizeof *spans, by_address);
    t->contexts = must_alloc(count_contexts(&app.root) * sizeof *t->contexts);
    list_contexts(t, &app.root);
    bool good = list_files(t, error) && find_aliases(t, spans, &used, error);
    size_t i = 0;
    for (const struct variable *v = app.variables; v && good; v = v->next, i++) {
        struct block *b = &t->blocks[i];
        if (v->type == MEND_APP_POINTER && b->alias < 0)
            good = save_pointers(b, v, spans, used, error);
        if (good && !fill(b, t->checkpoint, i, how)) {
            snprintf(error, TEXT, "there is no memory for a copy of `%.200s`", b->name);
            good = false;
        }
    }
    free(spans);
    if (good) {
        if (how != SNAPSHOT_MOVE)
            hash_replicated_aliases(t);
        list_ancestors(t);
        return t;
    }
    table_free(t);
    return NULL;
}
