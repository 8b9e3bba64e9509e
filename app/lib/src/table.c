/* The table of one rank's file in memory: what was registered, in which contexts, with the hashes of all data. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

void *must_alloc(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "mend-app: no memory for %zu bytes of its own tables\n", bytes);
        abort();
    }
    return memory;
}

void *must_grow(void *old, size_t used, size_t bytes) {
    void *memory = must_alloc(bytes);
    if (used)
        memcpy(memory, old, used);
    free(old);
    return memory;
}

char *must_copy(const char *text) {
    size_t length = strlen(text ? text : "") + 1;
    return memcpy(must_alloc(length), text ? text : "", length);
}

void block_hash(struct block *b, const void *data) {
    hash128(data, b->elements * b->size, b->hash);
}

bool all_zero(const void *data, uint64_t bytes) {
    const unsigned char *at = data;
    /* A block that isn't zero mostly says so at once. */
    if (bytes == 0 || at[0] != 0 || at[bytes - 1] != 0 || at[bytes / 2] != 0)
        return false;
    return memcmp(at, at + 1, bytes - 1) == 0;
}

struct table *table_new(void) {
    return must_alloc(sizeof(struct table));
}

struct block *table_block(struct table *t) {
    if ((t->blocks_count & (t->blocks_count - 1)) == 0) {
        size_t room = t->blocks_count ? 2 * t->blocks_count : 1;
        t->blocks = must_grow(t->blocks, t->blocks_count * sizeof *t->blocks, room * sizeof *t->blocks);
    }
    struct block *b = &t->blocks[t->blocks_count++];
    b->alias = -1;
    return b;
}

void table_free(struct table *t) {
    if (!t)
        return;
    for (size_t i = 0; i < t->blocks_count; i++) {
        struct block *b = &t->blocks[i];
        for (int d = 0; d < b->dimensions; d++)
            free(b->dimension[d].indices);
        free(b->context);
        free(b->name);
        free(b->copy);
    }
    for (size_t i = 0; i < t->contexts_count; i++)
        free(t->contexts[i].path);
    for (size_t i = 0; i < t->files_count; i++) {
        free(t->files[i].name);
        free(t->files[i].path);
        free(t->files[i].mode);
    }
    for (size_t i = 0; i < t->ancestors_count; i++)
        free(t->ancestors[i].path);
    free(t->blocks);
    free(t->contexts);
    free(t->files);
    free(t->ancestors);
    free(t->program);
    free(t->where);
    free(t->machine);
    free(t);
}

static void put_text(struct stream *state, const char *text) {
    hash_more(state, text, strlen(text) + 1);
}

/* In one byte order on all machines. */
static void put_number(struct stream *state, uint64_t number) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> (8 * i));
    hash_more(state, bytes, sizeof bytes);
}

void table_digest(const struct table *t, uint64_t digest[2]) {
    struct stream *state = hash_start();
    put_number(state, FORMAT_VERSION);
    put_number(state, t->rank);
    put_number(state, t->ranks);
    put_number(state, t->checkpoint);
    put_number(state, t->call);
    put_text(state, t->program);
    put_text(state, t->where);
    for (size_t i = 0; i < t->contexts_count; i++) {
        put_text(state, t->contexts[i].path);
        put_number(state, t->contexts[i].entered);
        put_number(state, t->contexts[i].active);
    }
    for (size_t i = 0; i < t->files_count; i++) {
        put_text(state, t->files[i].name);
        put_text(state, t->files[i].path);
        put_text(state, t->files[i].mode);
        put_number(state, (uint64_t)t->files[i].position);
        /* Not the length, which older libraries don't have: the hash of the file's other bytes covers it. */
    }
    for (size_t i = 0; i < t->blocks_count; i++) {
        const struct block *b = &t->blocks[i];
        put_text(state, b->context);
        put_text(state, b->name);
        put_text(state, element_name(b->type));
        const uint64_t numbers[] = {(uint64_t)b->whose, (uint64_t)b->dimensions, b->elements, b->size, (uint64_t)b->alias, b->offset, b->hash[0], b->hash[1]};
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
            put_number(state, numbers[n]);
        for (int d = 0; d < b->dimensions; d++) {
            const struct dimension *x = &b->dimension[d];
            const uint64_t parts[] = {x->kind, x->extent, x->global, x->first, x->count, x->start, x->block, x->part, x->parts};
            for (size_t n = 0; n < sizeof parts / sizeof *parts; n++)
                put_number(state, parts[n]);
            for (uint64_t n = 0; x->indices && n < x->extent; n++)
                put_number(state, x->indices[n]);
        }
    }
    hash_end(state, digest);
}

const struct block *table_find(const struct table *t, const char *context, const char *name) {
    for (size_t i = 0; i < t->blocks_count; i++)
        if (strcmp(t->blocks[i].name, name) == 0 && strcmp(t->blocks[i].context, context) == 0)
            return &t->blocks[i];
    return NULL;
}

const struct saved_context *table_context(const struct table *t, const char *path) {
    for (size_t i = 0; i < t->contexts_count; i++)
        if (strcmp(t->contexts[i].path, path) == 0)
            return &t->contexts[i];
    return NULL;
}
