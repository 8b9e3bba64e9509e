/* Directories of checkpoints.
 *
 *   DIRECTORY/checkpoint-000007/rank-00003.h5    written first, and durable
 *   DIRECTORY/checkpoint-000007/rank-00003.seal  what must be whole of it: seal.c
 *   DIRECTORY/checkpoint-000007/manifest         renamed into place last: with it the checkpoint counts
 *   DIRECTORY/checkpoint-000007/manifest.damaged  in the manifest's place: it was found damaged, and set aside
 *   DIRECTORY/ended                              the highest number of a checkpoint when a run ended well
 *
 * A directory without a manifest is what a checkpoint left that didn't come to its end. Retention removes it, when newer ones count. The manifest is text
 * and ends with its own hash. What it names is durable before it is: files, then their directory, then the manifest.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { MOST_RANKS = 1 << 24 };

void store_path(char into[TEXT], const char *directory, uint64_t checkpoint, int64_t rank) {
    if (rank < 0)
        snprintf(into, TEXT, "%s/checkpoint-%06" PRIu64, directory, checkpoint);
    else
        snprintf(into, TEXT, "%s/checkpoint-%06" PRIu64 "/rank-%05" PRId64 ".h5", directory, checkpoint, rank);
}

int sync_directory(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int done = fsync(fd);
    close(fd);
    return done;
}

bool store_text(const char *path, const char *text) {
    char partial[2 * TEXT + 32];
    snprintf(partial, sizeof partial, "%s.%ld.part", path, (long)getpid());
    FILE *file = fopen(partial, "we");
    if (!file)
        return false;
    bool good = fputs(text, file) >= 0;
    good = fclose(file) == 0 && good;
    return good && rename(partial, path) == 0;
}

int sync_parent(const char *path) {
    char parent[TEXT];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (!slash)
        return sync_directory(".");
    if (slash == parent)
        return sync_directory("/");
    *slash = 0;
    return sync_directory(parent);
}

static int make_directories(const char *path) {
    char partial[TEXT];
    snprintf(partial, sizeof partial, "%s", path);
    for (char *slash = strchr(partial + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash)
            *slash = 0;
        if (mkdir(partial, 0777) == 0) {
            if (sync_parent(partial) != 0)
                return -1;
        } else if (errno != EEXIST) {
            return -1;
        }
        if (!slash)
            return 0;
        *slash = '/';
    }
}

/* Several ranks may do so at a time. */
int store_prepare(const char *directory, uint64_t checkpoint, char error[TEXT]) {
    char path[TEXT];
    store_path(path, directory, checkpoint, -1);
    if (make_directories(path) == 0)
        return 0;
    snprintf(error, TEXT, "the directory %.900s can't be made: %s", path, strerror(errno));
    return MEND_APP_SYSTEM;
}

static int publish_text(const char *directory, const char *name, const char *text, size_t length, char error[TEXT]) {
    char path[TEXT + 32], temporary[TEXT + 64];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    snprintf(temporary, sizeof temporary, "%s.part", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool whole = fd >= 0;
    for (size_t done = 0; whole && done < length;) {
        ssize_t wrote = write(fd, text + done, length - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        whole = wrote > 0;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    whole = whole && fsync(fd) == 0;
    int saved = errno;
    if (fd >= 0 && close(fd) != 0 && whole) {
        whole = false;
        saved = errno;
    }
    if (whole && (rename(temporary, path) != 0 || sync_directory(directory) != 0)) {
        whole = false;
        saved = errno;
    }
    if (whole)
        return 0;
    unlink(temporary);
    snprintf(error, TEXT, "%.900s can't be written: %s", path, strerror(saved));
    return MEND_APP_SYSTEM;
}

/* Without it a checkpoint doesn't count: durable, so that none whose files are removed counts after a loss of power. */
static void remove_manifest(const char *path) {
    char file[TEXT + 16];
    snprintf(file, sizeof file, "%s/manifest", path);
    if (unlink(file) == 0)
        sync_directory(path);
}

int store_publish(const char *directory, const struct manifest *m, char error[TEXT]) {
    char *text = NULL, path[TEXT];
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (!stream) {
        snprintf(error, TEXT, "no memory for a manifest");
        return MEND_APP_SYSTEM;
    }
    fprintf(stream, "mend-app manifest %d\ncheckpoint %" PRIu64 "\ncall %" PRIu64 "\nneeds %" PRIu64 "\nranks %" PRIu32 "\nprogram %s\ncontexts %s\n", FORMAT_VERSION, m->checkpoint, m->call, m->needs, m->ranks, m->program, m->where);
    for (uint32_t i = 0; i < m->ranks; i++)
        fprintf(stream, "rank %" PRIu32 " %" PRIu64 " %016" PRIx64 "%016" PRIx64 "\n", i, m->bytes[i], m->digest[i][0], m->digest[i][1]);
    fflush(stream);
    uint64_t hash[2];
    hash128(text, length, hash);
    fprintf(stream, "hash %016" PRIx64 "%016" PRIx64 "\n", hash[0], hash[1]);
    fclose(stream);
    store_path(path, directory, m->checkpoint, -1);
    int done = publish_text(path, "manifest", text, length, error);
    free(text);
    /* The directory's own entry. */
    if (done == 0 && sync_directory(directory) != 0) {
        snprintf(error, TEXT, "%.900s can't be made durable: %s", directory, strerror(errno));
        done = MEND_APP_SYSTEM;
    }
    /* Ranks remove their files then: a manifest that is there, though it may not be there for good, would count. */
    if (done != 0)
        remove_manifest(path);
    return done;
}

void manifest_clear(struct manifest *m) {
    free(m->digest);
    free(m->bytes);
    memset(m, 0, sizeof *m);
}

/* The rest of a line after `key `, without its end; the next line follows in *at. */
static bool take_line(char **at, const char *key, char **value) {
    size_t length = strlen(key);
    char *end = strchr(*at, '\n');
    if (!end || strncmp(*at, key, length) != 0 || (*at)[length] != ' ')
        return false;
    *end = 0;
    *value = *at + length + 1;
    *at = end + 1;
    return true;
}

static bool take_number(char **at, const char *key, uint64_t *number) {
    char *value, *end;
    if (!take_line(at, key, &value))
        return false;
    *number = strtoull(value, &end, 10);
    return end != value && !*end;
}

/* MEND_APP_REFUSED: it is whole, and another library's. */
static int parse(char *text, size_t length, struct manifest *m, char error[TEXT]) {
    /* The last line: "hash " and 32 digits. */
    enum { LAST = 5 + 32 + 1 };
    if (length < LAST || strncmp(text + length - LAST, "hash ", 5) != 0) {
        snprintf(error, TEXT, "its end is missing");
        return MEND_APP_DAMAGED;
    }
    uint64_t hash[2];
    char expected[40];
    hash128(text, length - LAST, hash);
    snprintf(expected, sizeof expected, "%016" PRIx64 "%016" PRIx64 "\n", hash[0], hash[1]);
    if (memcmp(text + length - LAST + 5, expected, LAST - 5) != 0) {
        snprintf(error, TEXT, "it isn't what was written: its hash differs");
        return MEND_APP_DAMAGED;
    }
    char *at = text, *value;
    uint64_t version, ranks;
    if (!take_number(&at, "mend-app manifest", &version)) {
        snprintf(error, TEXT, "it isn't a manifest");
        return MEND_APP_DAMAGED;
    }
    if (version != FORMAT_VERSION) {
        snprintf(error, TEXT, "it has format %" PRIu64 ", and this library reads format %d: use the library that wrote it", version, FORMAT_VERSION);
        return MEND_APP_REFUSED;
    }
    snprintf(error, TEXT, "it makes no sense");
    if (!take_number(&at, "checkpoint", &m->checkpoint) || !take_number(&at, "call", &m->call) || !take_number(&at, "needs", &m->needs) || !take_number(&at, "ranks", &ranks) || ranks == 0 || ranks > MOST_RANKS)
        return MEND_APP_DAMAGED;
    m->ranks = (uint32_t)ranks;
    if (!take_line(&at, "program", &value) || strlen(value) >= TEXT)
        return MEND_APP_DAMAGED;
    strcpy(m->program, value);
    if (!take_line(&at, "contexts", &value) || strlen(value) >= TEXT)
        return MEND_APP_DAMAGED;
    strcpy(m->where, value);
    m->digest = must_alloc(ranks * sizeof *m->digest);
    m->bytes = must_alloc(ranks * sizeof *m->bytes);
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t rank;
        if (!take_line(&at, "rank", &value) || sscanf(value, "%" SCNu32 " %" SCNu64 " %16" SCNx64 "%16" SCNx64, &rank, &m->bytes[i], &m->digest[i][0], &m->digest[i][1]) != 4 || rank != i)
            return MEND_APP_DAMAGED;
    }
    return 0;
}

int store_read(const char *directory, uint64_t checkpoint, struct manifest *m, char error[TEXT]) {
    char path[TEXT + 16], place[TEXT], why[TEXT];
    memset(m, 0, sizeof *m);
    store_path(place, directory, checkpoint, -1);
    snprintf(path, sizeof path, "%s/manifest", place);
    FILE *file = fopen(path, "re");
    if (!file) {
        bool lost = errno == ENOENT || errno == ENOTDIR;
        snprintf(error, TEXT, "%.900s can't be read: %s", path, strerror(errno));
        return lost ? MEND_APP_DAMAGED : MEND_APP_SYSTEM;
    }
    size_t length = 0, room = 1 << 16;
    char *text = must_alloc(room + 1);
    for (size_t got; (got = fread(text + length, 1, room - length, file)) > 0;) {
        length += got;
        if (length == room) {
            text = must_grow(text, length, 2 * room + 1);
            room *= 2;
        }
    }
    int failed = ferror(file) ? errno : 0;
    fclose(file);
    text[length] = 0;
    int done = MEND_APP_DAMAGED;
    if (failed) {
        snprintf(why, TEXT, "it can't be read: %s", strerror(failed));
        done = MEND_APP_SYSTEM;
    } else if (strlen(text) == length) {
        done = parse(text, length, m, why);
    } else {
        snprintf(why, TEXT, "it isn't text");
    }
    free(text);
    if (done == 0 && m->checkpoint != checkpoint) {
        snprintf(why, TEXT, "it is that of checkpoint %" PRIu64, m->checkpoint);
        done = MEND_APP_DAMAGED;
    }
    if (done == 0)
        return 0;
    manifest_clear(m);
    snprintf(error, TEXT, "%.500s: %.400s", path, why);
    return done;
}

static int newest_first(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

size_t store_list(const char *directory, uint64_t **numbers) {
    size_t count = 0, room = 16;
    *numbers = must_alloc(room * sizeof **numbers);
    DIR *dir = opendir(directory);
    if (!dir)
        return 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strncmp(entry->d_name, "checkpoint-", 11) != 0)
            continue;
        char *end;
        uint64_t number = strtoull(entry->d_name + 11, &end, 10);
        if (*end || number == 0)
            continue;
        if (count == room) {
            *numbers = must_grow(*numbers, count * sizeof **numbers, 2 * room * sizeof **numbers);
            room *= 2;
        }
        (*numbers)[count++] = number;
    }
    closedir(dir);
    qsort(*numbers, count, sizeof **numbers, newest_first);
    return count;
}

void store_remove(const char *directory, uint64_t checkpoint) {
    char path[TEXT], file[2 * TEXT];
    store_path(path, directory, checkpoint, -1);
    remove_manifest(path);
    DIR *dir = opendir(path);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        unlink(file);
    }
    closedir(dir);
    rmdir(path);
}

/* Its manifest's name, when it counts and when it has been set aside. */
static void manifest_path(char into[TEXT + 32], const char *directory, uint64_t checkpoint, bool aside) {
    char path[TEXT];
    store_path(path, directory, checkpoint, -1);
    snprintf(into, TEXT + 32, "%s/manifest%s", path, aside ? ".damaged" : "");
}

int store_set_aside(const char *directory, uint64_t checkpoint) {
    char manifest[TEXT + 32], aside[TEXT + 32];
    manifest_path(manifest, directory, checkpoint, false);
    manifest_path(aside, directory, checkpoint, true);
    return rename(manifest, aside);
}

bool store_counts(const char *directory, uint64_t checkpoint) {
    char manifest[TEXT + 32];
    manifest_path(manifest, directory, checkpoint, false);
    return access(manifest, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool store_is_set_aside(const char *directory, uint64_t checkpoint) {
    char aside[TEXT + 32];
    manifest_path(aside, directory, checkpoint, true);
    return access(aside, F_OK) == 0;
}

void store_retain(const char *directory, uint64_t keep, uint64_t newest) {
    uint64_t *numbers, kept = 0, kept_whole = 0, oldest_needed = UINT64_MAX;
    size_t count = store_list(directory, &numbers);
    struct chain *chains = must_alloc(count * sizeof *chains);
    for (size_t i = 0; i < count; i++) {
        struct manifest m;
        char error[TEXT];
        if (numbers[i] > newest)
            continue;
        int done = store_read(directory, numbers[i], &m, error);
        if (done != 0) {
            /* What can't be read now may be whole. */
            if (done == MEND_APP_DAMAGED && numbers[i] < oldest_needed)
                store_remove(directory, numbers[i]);
            continue;
        }
        /* Where tiers are, as many are kept of which the directory has all files: what nodes alone have may be lost. */
        bool whole = places_have_shared() && kept_whole < keep && place_is_whole(numbers[i]), needed = false;
        for (uint64_t k = 0; k < kept; k++)
            needed |= chain_has(chains[k], numbers[i]);
        if (kept < keep || whole || place_is_target(numbers[i])) {
            chains[kept++] = (struct chain){m.needs, numbers[i]};
            kept_whole += whole;
            oldest_needed = m.needs < oldest_needed ? m.needs : oldest_needed;
        } else if (!needed) {
            store_remove(directory, numbers[i]);
        }
        manifest_clear(&m);
    }
    free(chains);
    free(numbers);
}

/* All that is there: a run from an older checkpoint, or anew, leaves newer ones, and they aren't gone on from either. */
int store_mark_ended(const char *directory, uint64_t newest) {
    char text[32], error[TEXT];
    uint64_t *numbers, before;
    int done = store_ended(directory, &before);
    if (done)
        return fail(MEND_APP_SYSTEM, "%.900s/ended can't be read: %s", directory, strerror(done));
    size_t count = store_list(directory, &numbers);
    if (count && numbers[0] > newest)
        newest = numbers[0];
    free(numbers);
    if (newest <= before)
        return 0;
    int length = snprintf(text, sizeof text, "%" PRIu64 "\n", newest);
    return publish_text(directory, "ended", text, (size_t)length, error) == 0 ? 0 : fail(MEND_APP_SYSTEM, "this run doesn't count as ended: %s", error);
}

int store_ended(const char *directory, uint64_t *number) {
    char path[TEXT + 16];
    *number = 0;
    snprintf(path, sizeof path, "%s/ended", directory);
    FILE *file = fopen(path, "re");
    if (!file)
        return errno == ENOENT ? 0 : errno;
    errno = 0;
    int read = fscanf(file, "%" SCNu64, number), why = errno;
    fclose(file);
    return read == 1 ? 0 : why ? why : EBADMSG;
}
