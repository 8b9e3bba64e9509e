/* Where a rank's files are. Alone the library has one place: DIRECTORY, which all ranks see. Whoever started the job may offer a faster one on each node, and copies of what is put there:
 *
 *   REQUESTS/tiers                                 `tiers = FIRST,SECOND,...`, `job = HEX`
 *   REQUESTS/fast/node                             the first tier is offered on this node: `node = NAME`
 *   REQUESTS/fast/own/KEY/checkpoint-000007/...    files of this node's ranks, written first and read first; KEY stands for DIRECTORY
 *   REQUESTS/fast/own/KEY/here-00003               rank 3 writes on this node
 *   REQUESTS/fast/copies/KEY/checkpoint-000007/... files of other nodes
 *   REQUESTS/fast/wanted/JOB.KEY.7.3               put here: rank 3's files of checkpoint 7 are wanted; it goes when they are among the copies, or nowhere
 *   DIRECTORY/targets                              by rank 0: `newest = N`, and for each later tier the checkpoint that is to be copied there: `TIER = N`; `keep = N`: the newest that the partners' memories have as a whole
 *   DIRECTORY/checkpoint-000007/taken-by           whose checkpoint it is: `requests = REQUESTS`, `tiers = FIRST,SECOND,...`
 *   DIRECTORY/checkpoint-000007/rank-00003.node    its files are in the first tier; .partner, .object: in another one; no promise, which a restart doesn't need
 *
 * The manifest is in DIRECTORY whichever place the files have, and is published as without tiers. Files don't change after that, so copies need no agreement. A copy is believed no more than the file: seal
 * and hashes are compared, and the next place is tried. A checkpoint is copied with all that it links to (its manifest's `needs`), and a tier has it as a whole when it has all of that. Each linked file is
 * looked for by itself (part.c). Faults assumed: what is offered goes away at any moment, with all that is in it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "internal.h"

enum { MOST_TIERS = 8, MARGIN_BYTES = 4 << 20, TMPFS = 0x01021994 };
/* A copy that has got no further for so long is given up for that of a newer checkpoint. */
#define STALLED_SECONDS 60.0
/* So long a file is waited for that is copied from another node. */
#define FETCH_SECONDS 300.0

static char fast[TEXT], key[40], job[40], tier_names[TEXT];
static _Atomic uint64_t newest_published;
/* Rank 0's: what is copied where. */
static struct lane {
    char name[TEXT];
    uint64_t target, progress;
    double since;
    struct chain had; /* the newest that the tier has had as a whole */
} lanes[MOST_TIERS];
static int lanes_count;
static const struct chain nothing = {1, 0};

static bool line_of(const char *path, const char *name, char *into, size_t room) {
    char line[2 * TEXT];
    size_t length = strlen(name);
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        found = strncmp(line, name, length) == 0 && strncmp(line + length, " = ", 3) == 0 && strlen(line + length + 3) < room;
        if (found)
            strcpy(into, line + length + 3);
    }
    if (file)
        fclose(file);
    return found;
}

/* Asked for anew each time: a rank may come to another node between two calls. */
static bool offered(void) {
    char path[TEXT + 16];
    snprintf(path, sizeof path, "%s/node", fast);
    return fast[0] && access(path, F_OK) == 0;
}

const char *places_key(void) {
    return key;
}

bool places_offered(void) {
    return tier_names[0] != 0;
}

bool places_have_shared(void) {
    for (int i = 0; i < lanes_count; i++)
        if (strcmp(lanes[i].name, "shared") == 0)
            return true;
    return false;
}

void places_start(void) {
    char path[TEXT + 64], *rest = NULL;
    uint64_t hash[2];
    fast[0] = tier_names[0] = 0;
    lanes_count = 0;
    atomic_store(&newest_published, 0);
    hash128(app.settings.directory, strlen(app.settings.directory), hash);
    snprintf(key, sizeof key, "%016" PRIx64 "%016" PRIx64, hash[0], hash[1]);
    if (!app.settings.requests[0] || strlen(app.settings.requests) > TEXT / 2)
        return;
    snprintf(path, sizeof path, "%s/tiers", app.settings.requests);
    if (!line_of(path, "job", job, sizeof job) || !line_of(path, "tiers", tier_names, sizeof tier_names)) {
        tier_names[0] = 0;
        return;
    }
    snprintf(fast, sizeof fast, "%s/fast", app.settings.requests);
    char *names = must_copy(tier_names);
    char *first = strtok_r(names, ",", &rest);
    for (char *name; first && (name = strtok_r(NULL, ",", &rest)) && lanes_count < MOST_TIERS;)
        snprintf(lanes[lanes_count++].name, TEXT, "%s", name);
    for (int i = 0; i < lanes_count; i++)
        lanes[i].target = 0, lanes[i].had = nothing;
    free(names);
}

static void make(const char *path) {
    mkdir(path, 0700);
}

/* KEY's directory among this node's own files, made with all that is in it. */
static void own_directory(char into[TEXT]) {
    char path[TEXT + 64];
    snprintf(path, sizeof path, "%.900s/own", fast);
    make(path);
    snprintf(into, TEXT, "%.900s/own/%s", fast, key);
    make(into);
    snprintf(path, sizeof path, "%.1000s/here-%05d", into, app.transport.rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
}

static uint64_t ranks_here(const char *directory) {
    uint64_t count = 0;
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += strncmp(entry->d_name, "here-", 5) == 0;
    if (dir)
        closedir(dir);
    return count ? count : 1;
}

/* Bytes that can be written there without hurting programs: of memory an eighth stays free. */
static uint64_t room_in(const char *directory) {
    struct statvfs space;
    struct statfs kind;
    if (statvfs(directory, &space) != 0 || statfs(directory, &kind) != 0)
        return 0;
    uint64_t room = (uint64_t)space.f_bavail * space.f_frsize, total = 0, available = 0;
    if (kind.f_type != TMPFS)
        return room;
    char line[256];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "MemTotal: %" SCNu64, &total);
        sscanf(line, "MemAvailable: %" SCNu64, &available);
    }
    if (file)
        fclose(file);
    uint64_t spare = available > total / 8 ? (available - total / 8) * 1024 : 0;
    return spare < room ? spare : room;
}

/* A number is taken again by a program that went back to an earlier image of its memory. Before anything of it is written over, what there was doesn't count any
 * more. Each rank sees to that, for none waits for another. */
static int forget_manifest(const char *directory, char error[TEXT]) {
    char path[TEXT + 32];
    snprintf(path, sizeof path, "%s/manifest", directory);
    if (unlink(path) == 0 ? sync_directory(directory) == 0 : errno == ENOENT)
        return 0;
    snprintf(error, TEXT, "the checkpoint that had this number before can't be removed (%.900s): %s", path, strerror(errno));
    return MEND_APP_SYSTEM;
}

/* The same of its files in all tiers. */
static void forget_copies(const char *directory, int rank) {
    static const char *const suffixes[] = {"h5", "seal", "partner", "object"};
    char path[TEXT + 32];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/rank-%05d.%s", directory, rank, suffixes[i]);
        unlink(path);
    }
}

/* Where this rank's file is written, which is about `bytes` long; its directory is made. */
int place_to_write(char path[TEXT], uint64_t checkpoint, uint64_t bytes, char error[TEXT]) {
    char own[TEXT], marker[TEXT + 32], directory[TEXT];
    int rank = app.transport.rank;
    int done = store_prepare(app.settings.directory, checkpoint, error);
    store_path(path, app.settings.directory, checkpoint, rank);
    store_path(directory, app.settings.directory, checkpoint, -1);
    done = done ? done : forget_manifest(directory, error);
    if (done || !offered())
        return done;
    snprintf(marker, sizeof marker, "%.1000s/rank-%05d.node", directory, rank);
    forget_copies(directory, rank);
    own_directory(own);
    if (strlen(own) > TEXT - 64 || room_in(own) / ranks_here(own) < bytes + MARGIN_BYTES) {
        note("the first tier has no room for %" PRIu64 " bytes: they are written to %s", bytes, app.settings.directory);
        unlink(marker);
        return 0;
    }
    store_path(directory, own, checkpoint, -1);
    make(directory);
    if (access(directory, W_OK) != 0)
        return 0;
    store_path(path, own, checkpoint, rank);
    char node[TEXT] = "", source[TEXT + 16];
    snprintf(source, sizeof source, "%s/node", fast);
    line_of(source, "node", node, sizeof node);
    store_text(marker, node);
    return 0;
}

/* A file that doesn't count goes, and what it was in. */
void place_drop(const char *path, uint64_t checkpoint) {
    char text[TEXT];
    seal_path(text, path);
    unlink(text);
    unlink(path);
    snprintf(text, sizeof text, "%s", path);
    *strrchr(text, '/') = 0;
    rmdir(text);
    store_path(text, app.settings.directory, checkpoint, -1);
    snprintf(text + strlen(text), TEXT - strlen(text), "/rank-%05d.node", app.transport.rank);
    unlink(text);
    *strrchr(text, '/') = 0;
    rmdir(text);
}

/* Has a file brought here, and waits for it. */
static void fetch(uint64_t checkpoint, uint32_t rank) {
    char path[TEXT + 160];
    double until = seconds_now() + FETCH_SECONDS;
    unsigned looks = 0;
    snprintf(path, sizeof path, "%s/wanted", fast);
    make(path);
    snprintf(path, sizeof path, "%s/wanted/%s.%s.%" PRIu64 ".%" PRIu32, fast, job, key, checkpoint, rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    close(fd);
    while (access(path, F_OK) == 0 && seconds_now() < until)
        pause_between_looks(&looks);
    unlink(path);
}

/* The places of a file, nearest first; `at` begins with 0. False: there is none left. */
bool place_next(char path[TEXT], uint64_t checkpoint, uint32_t rank, int *at) {
    char root[TEXT];
    while (*at < (offered() ? 4 : 3)) {
        int now = (*at)++;
        if (now == 3)
            fetch(checkpoint, rank);
        if (now == 2) {
            store_path(path, app.settings.directory, checkpoint, rank);
        } else {
            if (!offered())
                continue;
            snprintf(root, sizeof root, "%.900s/%s/%s", fast, now == 0 ? "own" : "copies", key);
            store_path(path, root, checkpoint, rank);
        }
        /* What can't be reached may be there: who opens it hears why it can't be read. */
        if (access(path, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR))
            return true;
    }
    return false;
}

bool place_has(uint64_t checkpoint, const uint64_t digest[2]) {
    char root[TEXT], path[TEXT];
    snprintf(root, sizeof root, "%.900s/own/%s", fast, key);
    store_path(path, root, checkpoint, app.transport.rank);
    if (offered() && seal_is(path, digest))
        return true;
    store_path(path, app.settings.directory, checkpoint, app.transport.rank);
    return seal_is(path, digest);
}

bool place_is_shared(int at) {
    return at == 3;
}

/* A copy on a node that isn't good makes way for another one. */
void place_not_good(const char *path, int at) {
    char seal[TEXT];
    if (place_is_shared(at))
        return;
    seal_path(seal, path);
    unlink(seal);
    unlink(path);
}

/* ---- rank 0: what is copied ---- */
/* Whose checkpoint it is: so whoever started the job can list and remove it. Before it counts. */
void places_sign(uint64_t checkpoint) {
    char path[TEXT], name[TEXT + 32], text[3 * TEXT];
    if (!app.settings.requests[0])
        return;
    store_path(path, app.settings.directory, checkpoint, -1);
    snprintf(name, sizeof name, "%s/taken-by", path);
    snprintf(text, sizeof text, "requests = %s\ntiers = %s\n", app.settings.requests, tier_names);
    store_text(name, text);
}

/* Whether a tier has all files of a checkpoint of so many ranks, without those that it links to. To `progress` comes a number that grows with what is there. */
static bool has_files(const char *tier, uint64_t checkpoint, uint32_t ranks, uint64_t *progress) {
    char path[TEXT], name[2 * TEXT];
    uint64_t files = 0;
    struct stat status;
    bool shared = strcmp(tier, "shared") == 0;
    store_path(path, app.settings.directory, checkpoint, -1);
    for (uint32_t i = 0; i < ranks; i++) {
        snprintf(name, sizeof name, "%s/rank-%05" PRIu32 "%s", path, i, shared ? ".seal" : strcmp(tier, "partner") == 0 ? ".partner" : ".object");
        bool there = access(name, F_OK) == 0;
        if (shared) {
            snprintf(name, sizeof name, "%s/rank-%05" PRIu32 ".h5", path, i);
            there = there && access(name, F_OK) == 0;
        }
        files += there;
    }
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (stat(name, &status) == 0)
            *progress += 1 + (uint64_t)status.st_size;
    }
    if (dir)
        closedir(dir);
    return files == ranks;
}

/* What a tier has of a checkpoint and of what it links to, but for what it `had` before; all of it, where the checkpoint counts no more. */
static bool complete(const char *tier, uint64_t checkpoint, struct chain had, uint64_t *progress, struct chain *found) {
    struct manifest m;
    char error[TEXT];
    uint64_t *numbers;
    bool whole = true;
    *progress = 0;
    *found = (struct chain){checkpoint, checkpoint};
    if (store_read(app.settings.directory, checkpoint, &m, error) != 0)
        return true;
    found->oldest = m.needs;
    manifest_clear(&m);
    size_t count = store_list(app.settings.directory, &numbers);
    for (size_t i = 0; i < count; i++) {
        uint64_t number = numbers[i];
        if (!chain_has(*found, number) || chain_has(had, number) || store_read(app.settings.directory, number, &m, error) != 0)
            continue;
        whole = has_files(tier, number, m.ranks, progress) && whole;
        manifest_clear(&m);
    }
    free(numbers);
    return whole;
}

bool place_is_whole(uint64_t checkpoint) {
    uint64_t progress;
    struct chain found;
    return complete("shared", checkpoint, nothing, &progress, &found);
}

static bool of_partners(const struct lane *lane) {
    return strcmp(lane->name, "partner") == 0;
}

/* What the partners had when rank 0 was another process: this one was moved, or started again. A run that ended well has left nothing. */
static void take_over(void) {
    char path[TEXT + 16], text[32];
    uint64_t ended, progress;
    struct chain found;
    snprintf(path, sizeof path, "%s/targets", app.settings.directory);
    if (store_ended(app.settings.directory, &ended) != 0)
        return;
    for (int i = 0; i < lanes_count; i++) {
        bool kept = line_of(path, "keep", text, sizeof text);
        if (!of_partners(&lanes[i]) || (!kept && !line_of(path, lanes[i].name, text, sizeof text)))
            continue;
        uint64_t number = strtoull(text, NULL, 10);
        if (number > ended && store_counts(app.settings.directory, number) && (complete(lanes[i].name, number, nothing, &progress, &found) || kept))
            lanes[i].had = found;
    }
}

void places_published(uint64_t checkpoint) {
    if (!tier_names[0])
        return;
    /* Not earlier: until now the process that was rank 0 before may have written it. */
    if (!atomic_load(&newest_published))
        take_over();
    atomic_store(&newest_published, checkpoint);
}

bool place_is_target(uint64_t checkpoint) {
    for (int i = 0; i < lanes_count; i++)
        if (lanes[i].target == checkpoint || (of_partners(&lanes[i]) && lanes[i].had.newest == checkpoint))
            return true;
    return false;
}

/* By the library's thread, every now and then: chooses what is copied to each tier, so that all nodes copy the same. */
void places_look(void) {
    uint64_t newest = atomic_load(&newest_published), progress;
    char path[TEXT + 16], text[4 * TEXT], now[4 * TEXT] = "";
    if (!newest)
        return;
    size_t length = (size_t)snprintf(text, sizeof text, "newest = %" PRIu64 "\n", newest);
    for (int i = 0; i < lanes_count; i++) {
        struct lane *lane = &lanes[i];
        struct chain found;
        /* What partners had may be lost with one of them: they are asked again before the next one is copied. */
        bool counted = lane->target != 0, known = lane->target == lane->had.newest && (!of_partners(lane) || lane->target == newest);
        bool over = !counted || known || complete(lane->name, lane->target, of_partners(lane) ? nothing : lane->had, &progress, &found);
        if (over && counted && lane->target != lane->had.newest)
            lane->had = found;
        if (!over && progress != lane->progress) {
            lane->progress = progress;
            lane->since = seconds_now();
        }
        if (lane->target != newest && (over || seconds_now() - lane->since > STALLED_SECONDS)) {
            lane->target = newest;
            lane->since = seconds_now();
        }
        if (length < sizeof text)
            length += (size_t)snprintf(text + length, sizeof text - length, "%.256s = %" PRIu64 "\n", lane->name, lane->target);
        if (length < sizeof text && of_partners(lane) && lane->had.newest && lane->had.newest != lane->target)
            length += (size_t)snprintf(text + length, sizeof text - length, "keep = %" PRIu64 "\n", lane->had.newest);
    }
    /* What is there may be from before this process went back to an earlier image of its memory. */
    snprintf(path, sizeof path, "%s/targets", app.settings.directory);
    FILE *file = fopen(path, "re");
    if (file) {
        now[fread(now, 1, sizeof now - 1, file)] = 0;
        fclose(file);
    }
    if (length < sizeof text && strcmp(now, text) != 0)
        store_text(path, text);
}
