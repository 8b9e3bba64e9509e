/* Reads damaged files as a restart does, with the library's own code built into it, for sanitizers to watch.
 *
 *   mutate DIRECTORY CHECKPOINT SEED COUNT
 *
 * Each time some bytes of rank 0's file, of its seal or of the manifest are changed, or it is cut. It must be refused, or be as it was; never anything else.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"

static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static unsigned char *read_file(const char *path, size_t *length) {
    struct stat status;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &status) != 0)
        exit(2);
    *length = (size_t)status.st_size;
    unsigned char *data = must_alloc(*length);
    if (fread(data, 1, *length, file) != *length)
        exit(2);
    fclose(file);
    return data;
}

static void write_file(const char *path, const void *data, size_t length) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, length, file) != length || fclose(file) != 0)
        exit(2);
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    uint64_t checkpoint = strtoull(argv[2], NULL, 10);
    char path[TEXT], manifest_path[TEXT + 16], place[TEXT], sealed_path[TEXT], error[TEXT];
    struct manifest m;
    state = strtoull(argv[3], NULL, 10) * 2654435761u + 88172645463325252u;
    store_path(path, argv[1], checkpoint, 0);
    store_path(place, argv[1], checkpoint, -1);
    seal_path(sealed_path, path);
    snprintf(manifest_path, sizeof manifest_path, "%s/manifest", place);
    if (store_read(argv[1], checkpoint, &m, error) != 0)
        return 2;
    long count = atol(argv[4]), refused = 0, same = 0;
    for (long n = 0; n < count; n++) {
        /* The manifest, the seal, the file. */
        uint64_t which = draw(6);
        bool in_manifest = which == 0;
        const char *victim = in_manifest ? manifest_path : which == 1 ? sealed_path : path;
        size_t length, left;
        unsigned char *data = read_file(victim, &length), *whole = must_alloc(length);
        memcpy(whole, data, length);
        left = length;
        if (draw(8) == 0)
            left = draw(length);
        for (uint64_t changes = 1 + draw(6); changes && left; changes--) {
            /* Metadata is small and stands at both ends. */
            uint64_t at = draw(3) ? draw(left) : draw(left < 6000 ? left : 6000);
            data[at] = draw(2) ? (unsigned char)draw(256) : (unsigned char)(data[at] ^ (1 << draw(8)));
        }
        write_file(victim, data, left);
        if (in_manifest) {
            struct manifest other;
            bool read = store_read(argv[1], checkpoint, &other, error) == 0;
            if (read && (left != length || memcmp(data, whole, length) != 0))
                return fprintf(stderr, "mutate: %ld: a changed manifest was taken\n", n), 1;
            manifest_clear(&other);
            read ? same++ : refused++;
        } else {
            uint64_t sealed[2], digest[2];
            const struct block *bad;
            struct table *t = table_new();
            bool taken = seal_check(path, m.digest[0], sealed, t, error) == 0;
            for (size_t i = 0; taken && i < t->ancestors_count; i++) {
                struct ancestor *a = &t->ancestors[i];
                char linked[TEXT];
                store_path(linked, argv[1], a->checkpoint, 0);
                a->path = must_copy(linked);
                taken = seal_check(linked, a->digest, digest, NULL, error) == 0;
            }
            if (taken) {
                t = rank_file_load(path, t, error);
            } else {
                table_free(t);
                t = NULL;
            }
            if (t)
                table_digest(t, digest);
            taken = t && digest[0] == sealed[0] && digest[1] == sealed[1] && rank_file_verify(t, path, &bad, error) == 0;
            if (taken && (left != length || memcmp(data, whole, length) != 0))
                return fprintf(stderr, "mutate: %ld: a changed file was taken\n", n), 1;
            table_free(t);
            taken ? same++ : refused++;
        }
        write_file(victim, whole, length);
        free(data);
        free(whole);
    }
    manifest_clear(&m);
    printf("mutate: %ld refused, %ld as they were\n", refused, same);
    return 0;
}
