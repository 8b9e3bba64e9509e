/* Cuts a state into fragments in each way, writes them into files (SPLIT-N.h5), and reads them back, with the library's own code built into it.
 *
 *   fragments CHUNK
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { COUNT = 5000 };
static double u[COUNT], copy[COUNT];
static int64_t steps[3] = {7, 8, 9}, more[3];
static double *where = &u[77];
static uint64_t pairs[2];

static void nothing(void) {}

static int read_back(struct fragment *f, const struct table *t, void *const into[]) {
    char error[TEXT];
    for (struct cursor at = f->from; cursor_less(at, f->to); at = cursor_settled(t, at)) {
        const struct block *b = &t->blocks[at.block];
        uint64_t count = (f->to.block > at.block ? b->elements : f->to.element) - at.element;
        if (fragment_read(f, at.block, at.element, count, b->type, (char *)into[at.block] + at.element * b->size, nothing, error) != 0)
            return fprintf(stderr, "fragments: %s\n", error), 1;
        at.element += count;
    }
    return 0;
}

int main(int argc, char **argv) {
    static const char *const splits[] = {"element", "dataset", "memblock"};
    char error[TEXT], name[64];
    uint64_t extent = COUNT, three = 3, ten = 10;
    if (argc != 2 || mend_app_init("fragments", NULL) < 0)
        return 2;
    app.settings.move_chunk = strtoull(argv[1], NULL, 10);
    for (int i = 0; i < COUNT; i++)
        u[i] = i * 0.5;
    mend_app_variable("steps", steps, MEND_APP_INT64, 1, &three, MEND_APP_PRIVATE);
    mend_app_variable("u", u, MEND_APP_DOUBLE, 1, &extent, MEND_APP_PRIVATE);
    mend_app_variable("part", u + 40, MEND_APP_DOUBLE, 1, &ten, MEND_APP_PRIVATE);
    mend_app_variable("where", &where, MEND_APP_POINTER, 0, NULL, MEND_APP_PRIVATE);
    void *const into[] = {more, copy, NULL, pairs};
    for (int s = 0; s < 3; s++) {
        struct table *t = snapshot_take(SNAPSHOT_MOVE, error);
        struct fragment f = {0};
        int number = 0;
        strcpy(app.settings.move_split, splits[s]);
        memset(copy, 0, sizeof copy);
        memset(more, 0, sizeof more);
        memset(pairs, 0, sizeof pairs);
        for (struct cursor at = cursor_settled(t, (struct cursor){0, 0}); at.block < t->blocks_count; at = f.to) {
            fragment_free(&f);
            f.from = at;
            if (fragment_write(t, &f, &app.settings, nothing, error) != 0)
                return fprintf(stderr, "fragments: %s\n", error), 1;
            snprintf(name, sizeof name, "%s-%03d.h5", splits[s], number++);
            FILE *file = fopen(name, "wb");
            if (!file || fwrite(f.image.bytes, 1, f.image.length, file) != f.image.length || fclose(file) != 0)
                return 3;
            if (read_back(&f, t, into) != 0)
                return 1;
            f.to = cursor_settled(t, f.to);
        }
        fragment_free(&f);
        if (memcmp(copy, u, sizeof u) != 0 || memcmp(more, steps, sizeof steps) != 0 || pairs[0] != 1 || pairs[1] != 77)
            return fprintf(stderr, "fragments: %s: what was read isn't what was written\n", splits[s]), 1;
        printf("%s: %d fragments\n", splits[s], number);
        table_free(t);
    }
    return mend_app_finalize() < 0;
}
