/* A rank's file is parsed by HDF5 only after it is known to be what was written: HDF5 crashes on damaged metadata. Beside each rank-N.h5 stands
 * rank-N.seal, whose hash is in the manifest. What the system can't read now may be whole: that is MEND_APP_SYSTEM, and damage is MEND_APP_DAMAGED.
 *
 *   mend-app seal 1
 *   bytes 268441232                  length of the file
 *   table 32 hex digits              hash of its table
 *   rest 32 hex digits               hash of all bytes but those of `data`
 *   data 2048 268435456              where bytes stand that the hash of a block covers; in order
 *   needs 5 32 hex digits            a checkpoint that is linked to, and the hash of the seal there
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { PIECE_BYTES = 1 << 18, LINE = 160, LARGEST = 1 << 28 };

void seal_path(char into[TEXT], const char *path) {
    size_t length = strlen(path) > 3 ? strlen(path) - 3 : 0;
    snprintf(into, TEXT, "%.*s.seal", (int)length, path);
}

/* False where the file ends before, with errno 0, or can't be read. */
static bool hash_span(int fd, uint64_t from, uint64_t to, struct stream *stream) {
    unsigned char *piece = must_alloc(PIECE_BYTES);
    int why = 0;
    while (from < to) {
        uint64_t wanted = to - from < PIECE_BYTES ? to - from : PIECE_BYTES;
        ssize_t got = pread(fd, piece, wanted, (off_t)from);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            why = got < 0 ? errno : 0;
            break;
        }
        hash_more(stream, piece, (size_t)got);
        from += (uint64_t)got;
    }
    free(piece);
    errno = why;
    return from >= to;
}

static int by_offset(const void *a, const void *b) {
    const struct block *x = *(const struct block *const *)a, *y = *(const struct block *const *)b;
    return x->at < y->at ? -1 : x->at > y->at;
}

int seal_write(struct table *t, const char *path, char error[TEXT]) {
    char *text = NULL, name[TEXT];
    size_t length = 0, count = 0;
    struct stat status;
    uint64_t table[2], rest[2], from = 0;
    const struct block **data = must_alloc(t->blocks_count * sizeof *data);
    for (size_t i = 0; i < t->blocks_count; i++)
        if (t->blocks[i].at)
            data[count++] = &t->blocks[i];
    qsort(data, count, sizeof *data, by_offset);
    table_digest(t, table);
    struct stream *stream = hash_start();
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool good = fd >= 0 && fstat(fd, &status) == 0;
    for (size_t i = 0; good && i < count; i++) {
        good = data[i]->at >= from && hash_span(fd, from, data[i]->at, stream);
        from = data[i]->at + data[i]->elements * data[i]->size;
    }
    good = good && hash_span(fd, from, (uint64_t)status.st_size, stream);
    int why = good ? 0 : errno;
    hash_end(stream, rest);
    if (fd >= 0)
        close(fd);
    FILE *out = good ? open_memstream(&text, &length) : NULL;
    if (out) {
        fprintf(out, "mend-app seal %d\nbytes %" PRIu64 "\ntable %016" PRIx64 "%016" PRIx64 "\nrest %016" PRIx64 "%016" PRIx64 "\n", FORMAT_VERSION, (uint64_t)status.st_size, table[0], table[1], rest[0], rest[1]);
        for (size_t i = 0; i < count; i++)
            fprintf(out, "data %" PRIu64 " %" PRIu64 "\n", data[i]->at, data[i]->elements * data[i]->size);
        for (size_t i = 0; i < t->ancestors_count; i++)
            fprintf(out, "needs %" PRIu64 " %016" PRIx64 "%016" PRIx64 "\n", t->ancestors[i].checkpoint, t->ancestors[i].digest[0], t->ancestors[i].digest[1]);
        fclose(out);
        hash128(text, length, t->digest);
    }
    free(data);
    seal_path(name, path);
    errno = why;
    fd = out ? open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    good = fd >= 0 && write(fd, text, length) == (ssize_t)length && fsync(fd) == 0;
    if (!good)
        snprintf(error, TEXT, "%.900s can't be written: %s", name, errno ? strerror(errno) : "the file system took a part only");
    if (fd >= 0)
        close(fd);
    free(text);
    return good ? 0 : MEND_APP_SYSTEM;
}

static bool take(char **at, const char *format, uint64_t *one, uint64_t *other, int wanted) {
    char *end = strchr(*at, '\n');
    if (!end || end - *at >= LINE)
        return false;
    *end = 0;
    bool good = sscanf(*at, format, one, other) == wanted;
    if (good)
        *at = end + 1;
    else
        *end = '\n';
    return good;
}

/* A file that isn't there is a loss; of any other error of the system it may be whole. */
static int not_read(const char *path, int why, char error[TEXT]) {
    if (why == ENOENT || why == ENOTDIR) {
        snprintf(error, TEXT, "%.900s isn't there", path);
        return MEND_APP_DAMAGED;
    }
    snprintf(error, TEXT, "%.800s can't be read: %s", path, strerror(why));
    return MEND_APP_SYSTEM;
}

static int check_file(const char *path, char *at, uint64_t table[2], char error[TEXT]) {
    struct stat status;
    uint64_t version, bytes, rest[2], found[2], offset, length, from = 0;
    bool good = take(&at, "mend-app seal %" SCNu64, &version, NULL, 1) && version == FORMAT_VERSION && take(&at, "bytes %" SCNu64, &bytes, NULL, 1) &&
                take(&at, "table %16" SCNx64 "%16" SCNx64, &table[0], &table[1], 2) && take(&at, "rest %16" SCNx64 "%16" SCNx64, &rest[0], &rest[1], 2);
    if (!good) {
        snprintf(error, TEXT, "the seal of %.800s has another format: use the library that wrote it", path);
        return MEND_APP_REFUSED;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        int done = not_read(path, errno, error);
        if (fd >= 0)
            close(fd);
        return done;
    }
    if ((uint64_t)status.st_size != bytes) {
        snprintf(error, TEXT, "%.800s is %s: it has %" PRIu64 " bytes, and %" PRIu64 " were written", path, (uint64_t)status.st_size < bytes ? "truncated" : "longer", (uint64_t)status.st_size, bytes);
        close(fd);
        return MEND_APP_DAMAGED;
    }
    struct stream *stream = hash_start();
    errno = 0;
    while (good && take(&at, "data %" SCNu64 " %" SCNu64, &offset, &length, 2)) {
        good = offset >= from && offset <= bytes && length <= bytes - offset && hash_span(fd, from, offset, stream);
        from = offset + length;
    }
    good = good && hash_span(fd, from, bytes, stream);
    int why = good ? 0 : errno;
    hash_end(stream, found);
    close(fd);
    if (why)
        return not_read(path, why, error);
    if (good && found[0] == rest[0] && found[1] == rest[1])
        return 0;
    snprintf(error, TEXT, "%.900s isn't what was written: its hash differs from its seal's", path);
    return MEND_APP_DAMAGED;
}

static int read_seal(const char *path, const uint64_t digest[2], char **into, char error[TEXT]) {
    char name[TEXT];
    struct stat status;
    uint64_t found[2];
    seal_path(name, path);
    *into = NULL;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        int done = not_read(name, errno, error);
        if (fd >= 0)
            close(fd);
        return done;
    }
    char *text = NULL;
    ssize_t got = 0;
    int why = 0;
    if (status.st_size < LARGEST) {
        text = must_alloc((size_t)status.st_size + 1);
        got = read(fd, text, (size_t)status.st_size);
        why = got < 0 ? errno : 0;
    }
    close(fd);
    if (why == 0 && text && got == status.st_size) {
        hash128(text, (size_t)status.st_size, found);
        if (found[0] == digest[0] && found[1] == digest[1] && strlen(text) == (size_t)status.st_size) {
            *into = text;
            return 0;
        }
    }
    free(text);
    if (why)
        return not_read(name, why, error);
    snprintf(error, TEXT, "%.900s isn't what was written", name);
    return MEND_APP_DAMAGED;
}

bool seal_is(const char *path, const uint64_t digest[2]) {
    char ignored[TEXT], *text;
    bool is_sealed = read_seal(path, digest, &text, ignored) == 0;
    free(text);
    return is_sealed && access(path, F_OK) == 0;
}

static bool list_ancestors(char *text, struct table *t) {
    size_t count = 0;
    for (char *line = text; (line = strstr(line, "\nneeds ")); line++)
        count++;
    t->ancestors = must_alloc(count * sizeof *t->ancestors);
    for (char *line = text; (line = strstr(line, "\nneeds ")); line++) {
        struct ancestor a = {0};
        if (sscanf(line, "\nneeds %" SCNu64 " %16" SCNx64 "%16" SCNx64, &a.checkpoint, &a.digest[0], &a.digest[1]) != 3)
            return false;
        t->ancestors[t->ancestors_count++] = a;
    }
    return true;
}

int seal_check(const char *path, const uint64_t digest[2], uint64_t table[2], struct table *t, char error[TEXT]) {
    char *text;
    int done = read_seal(path, digest, &text, error);
    if (done)
        return done;
    char *copy = must_copy(text);
    done = check_file(path, copy, table, error);
    free(copy);
    if (done == 0 && t && !list_ancestors(text, t)) {
        snprintf(error, TEXT, "the seal of %.800s doesn't say what it links to", path);
        done = MEND_APP_DAMAGED;
    }
    free(text);
    return done;
}
