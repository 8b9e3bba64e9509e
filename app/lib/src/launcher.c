/* Requests that whoever started the job puts into a directory, and their answers: `mend checkpoint --portable`. Rank 0 alone looks there; the others learn of a request as of any other.
 *
 *   DIRECTORY/R.library     written here: there is a program to be asked, by its launcher's rank R; removed at its end. A process that arrives
 *                           writes it when the move counts, and the old one removes its own then
 *   DIRECTORY/R.directory   the same, and the key of its directory (places.c); stays when the program has ended
 *   DIRECTORY/R.request     put there whole: `id = HEX`; removed when it is answered
 *   DIRECTORY/R.answer-ID   written here
 *
 * A request is answered by the first checkpoint that begins after it was seen. It stays there until then: who goes back to an earlier image of its memory sees it again.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { ID = 33, PATH = 2 * TEXT };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char place[TEXT + 32];                        /* DIRECTORY/R; empty: nobody asks */
static _Atomic bool announces;                       /* the library's thread may use that */
static char announced[3 * TEXT];                     /* what R.library says */
static char seen[ID], answering[ID], answered[ID];   /* requests */
static uint64_t bytes_published;

static void name_of(char path[PATH], const char *suffix, const char *id) {
    snprintf(path, PATH, "%s.%s%s", place, suffix, id);
}

static void announce(void) {
    char path[PATH];
    name_of(path, "library", "");
    if (access(path, F_OK) == 0)
        return;
    char directory[TEXT + 32];
    strcpy(directory, place);
    *strrchr(directory, '/') = 0;
    /* Where the launcher's directory isn't, nobody asks. */
    mkdir(directory, 0700);
    store_text(path, announced);
}

/* The id of the request that is there, or "". */
static void read_request(char id[ID]) {
    char path[PATH], line[64] = "";
    id[0] = 0;
    name_of(path, "request", "");
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    if (fgets(line, sizeof line, file) && strncmp(line, "id = ", 5) == 0 && line[strlen(line) - 1] == '\n') {
        line[strlen(line) - 1] = 0;
        const char *text = line + 5;
        size_t length = strlen(text);
        if (length > 0 && length < ID && strspn(text, "0123456789abcdef") == length)
            strcpy(id, text);
    }
    fclose(file);
}

void launcher_start(const struct settings *s, const char *program, int ranks) {
    atomic_store(&announces, false);
    place[0] = seen[0] = answering[0] = answered[0] = 0;
    if (!s->requests[0])
        return;
    /* PMI's is a rank of one world. */
    const char *rank = getenv("MEND_RANK") ? getenv("MEND_RANK") : getenv("PMI_RANK");
    bool number = rank && *rank && strlen(rank) < 11 && strspn(rank, "0123456789") == strlen(rank);
    snprintf(place, sizeof place, "%s/%s", s->requests, number ? rank : "0");
    snprintf(announced, sizeof announced, "directory = %s\nranks = %d\nprogram = %s\n", s->directory, ranks, program);
    announce();
    char path[PATH], text[4 * TEXT];
    name_of(path, "directory", "");
    snprintf(text, sizeof text, "%skey = %s\n", announced, places_key());
    store_text(path, text);
    atomic_store(&announces, true);
}

/* The library's thread: whether there is a new request. */
bool launcher_look(void) {
    char id[ID];
    if (!atomic_load(&announces))
        return false;
    announce();
    read_request(id);
    pthread_mutex_lock(&lock);
    bool new = id[0] && strcmp(id, seen) != 0 && strcmp(id, answered) != 0;
    if (new)
        strcpy(seen, id);
    pthread_mutex_unlock(&lock);
    return new;
}

void launcher_taking(void) {
    pthread_mutex_lock(&lock);
    strcpy(answering, seen);
    pthread_mutex_unlock(&lock);
}

void launcher_published(uint64_t bytes) {
    bytes_published = bytes;
}

/* `checkpoint` is complete; 0: there is none, `why` tells. */
void launcher_answer(uint64_t checkpoint, const char *why) {
    char id[ID], there[ID], path[PATH], text[2 * TEXT];
    if (!place[0])
        return;
    pthread_mutex_lock(&lock);
    /* One that was given up before it was taken answers what asked for it. */
    strcpy(id, answering[0] || checkpoint ? answering : seen);
    if (strcmp(id, seen) == 0)
        seen[0] = 0;
    answering[0] = 0;
    if (id[0])
        strcpy(answered, id);
    pthread_mutex_unlock(&lock);
    if (!id[0])
        return;
    if (checkpoint)
        snprintf(text, sizeof text, "checkpoint = %" PRIu64 "\nbytes = %" PRIu64 "\n", checkpoint, bytes_published);
    else
        snprintf(text, sizeof text, "why = %.1000s\n", why);
    name_of(path, "answer-", id);
    if (!store_text(path, text))
        note("a request can't be answered: %s: %s", path, strerror(errno));
    read_request(there);
    if (strcmp(there, id) == 0) {
        name_of(path, "request", "");
        unlink(path);
    }
}

void launcher_stop(const char *why) {
    char path[PATH];
    if (!place[0])
        return;
    launcher_look();
    launcher_answer(0, why);
    name_of(path, "library", "");
    unlink(path);
    place[0] = 0;
}
