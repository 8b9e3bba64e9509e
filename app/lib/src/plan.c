/* Which ranks move where. A request is a file of two lines that every rank's thread looks at (request.c):
 *
 *   ranks = 1,4-6      or: all
 *   hosts = node7, node8      dealt to the ranks in turn; left out: where MPI starts processes
 */
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static bool plain(const char *host) {
    for (const char *c = host; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-._:", *c))
            return false;
    return *host && *host != '-';
}

static int add_ranks(struct plan *p, uint64_t first, uint64_t last, int size, bool *moves, char error[TEXT]) {
    if (last >= (uint64_t)size) {
        snprintf(error, TEXT, "there is no rank %llu: ranks are 0 to %d", (unsigned long long)last, size - 1);
        return MEND_APP_REFUSED;
    }
    for (uint64_t rank = first; rank <= last; rank++) {
        p->count += !moves[rank];
        moves[rank] = true;
    }
    return 0;
}

static int parse_ranks(struct plan *p, char *text, int size, char error[TEXT]) {
    bool *moves = must_alloc((size_t)size * sizeof *moves);
    int done = 0;
    char *state = NULL;
    if (strcmp(text, "all") == 0)
        done = add_ranks(p, 0, (uint64_t)size - 1, size, moves, error);
    else
        for (char *part = strtok_r(text, ", \t", &state); part && done == 0; part = strtok_r(NULL, ", \t", &state)) {
            char *end;
            bool good = isdigit((unsigned char)*part);
            uint64_t first = strtoull(part, &end, 10), last = first;
            if (good && *end == '-') {
                good = isdigit((unsigned char)end[1]);
                last = strtoull(end + 1, &end, 10);
            }
            if (!good || *end) {
                snprintf(error, TEXT, "ranks = %.200s: numbers are needed, as in 1,4-6, or all", part);
                done = MEND_APP_INVALID;
            } else if (first > last) {
                snprintf(error, TEXT, "ranks = %.200s: the first is above the last: the lower one comes first, as in 4-6", part);
                done = MEND_APP_INVALID;
            } else {
                done = add_ranks(p, first, last, size, moves, error);
            }
        }
    if (done == 0 && (p->count == 0 || p->count > MOST_MOVES)) {
        snprintf(error, TEXT, p->count ? "%d ranks are too many at a time: %d at most" : "it names no ranks (%d of %d): ranks = 1,4-6, or all", p->count, MOST_MOVES);
        done = MEND_APP_INVALID;
    }
    for (int rank = 0, at = 0; rank < size && done == 0; rank++)
        if (moves[rank])
            p->ranks[at++] = rank;
    free(moves);
    return done;
}

static int parse_hosts(struct plan *p, char *text, char error[TEXT]) {
    const char *hosts[TEXT / 2];
    int count = 0;
    char *state = NULL;
    for (char *host = strtok_r(text, ", \t", &state); host; host = strtok_r(NULL, ", \t", &state)) {
        if (!plain(host)) {
            snprintf(error, TEXT, "hosts: \"%.200s\" isn't the name of a host", host);
            return MEND_APP_INVALID;
        }
        hosts[count++] = host;
    }
    for (int i = 0; i < p->count; i++)
        p->hosts[i] = count ? hosts[i % count] : "";
    return 0;
}

int plan_parse(struct plan *p, const char *text, int size, char error[TEXT]) {
    char *ranks = NULL, *hosts = NULL, *state = NULL;
    memset(p, 0, sizeof *p);
    snprintf(p->text, sizeof p->text, "%s", text);
    for (char *line = strtok_r(p->text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
        char *key = line + strspn(line, " \t"), *equals = strchr(key, '=');
        if (!*key || *key == '#')
            continue;
        char **into = strncmp(key, "ranks", 5) == 0 ? &ranks : strncmp(key, "hosts", 5) == 0 ? &hosts : NULL;
        if (!equals || !into || (size_t)(equals - key) != 5 + strspn(key + 5, " \t")) {
            snprintf(error, TEXT, "\"%.200s\" is neither ranks = NUMBERS nor hosts = NAMES", key);
            return MEND_APP_INVALID;
        }
        *into = equals + 1 + strspn(equals + 1, " \t");
        for (char *end = *into + strlen(*into); end > *into && isspace((unsigned char)end[-1]);)
            *--end = 0;
    }
    char nothing[1] = "";
    int done = parse_ranks(p, ranks ? ranks : nothing, size, error);
    return done ? done : parse_hosts(p, hosts ? hosts : nothing, error);
}

/* Process managers tend to end the job when they can't reach a host: so first see that there is one of that name. */
int plan_check_hosts(const struct plan *p, char error[TEXT]) {
    for (int i = 0; i < p->count; i++) {
        struct addrinfo *found = NULL;
        bool before = false;
        for (int j = 0; j < i && !before; j++)
            before = strcmp(p->hosts[j], p->hosts[i]) == 0;
        if (before || !*p->hosts[i])
            continue;
        int why = getaddrinfo(p->hosts[i], NULL, NULL, &found);
        if (why != 0) {
            snprintf(error, TEXT, "host `%.200s` isn't known to this machine: %s", p->hosts[i], gai_strerror(why));
            return MEND_APP_REFUSED;
        }
        freeaddrinfo(found);
    }
    return 0;
}

void plan_path(char into[TEXT]) {
    if (app.settings.move[0])
        snprintf(into, TEXT, "%s", app.settings.move);
    else
        snprintf(into, TEXT, "%.900s/move", app.settings.directory);
}

int plan_take(char text[TEXT], char error[TEXT]) {
    char path[TEXT];
    plan_path(path);
    FILE *file = fopen(path, "re");
    if (!file) {
        snprintf(error, TEXT, "%.800s, which asks for it, can't be read: %s", path, strerror(errno));
        return MEND_APP_SYSTEM;
    }
    size_t length = fread(text, 1, TEXT, file);
    fclose(file);
    unlink(path);
    if (length == TEXT) {
        snprintf(error, TEXT, "%.800s is too long: less than %d bytes", path, TEXT);
        return MEND_APP_INVALID;
    }
    text[length] = 0;
    return 0;
}

EXPORT int mend_app_migrate(const char *ranks, const char *hosts) {
    char error[TEXT], text[TEXT], path[TEXT], part[TEXT + 32];
    static struct plan plan;
    if (!app.started)
        return fail(MEND_APP_INVALID, "mend_app_migrate: mend_app_init comes first");
    if (!app.transport.spawn)
        return fail(MEND_APP_REFUSED, "no move: this program has no MPI that the library knows (mend_app_init_mpi)");
    int length = snprintf(text, sizeof text, "ranks = %s\nhosts = %s\n", ranks ? ranks : "", hosts ? hosts : "");
    if (length < 0 || length >= TEXT)
        return fail(MEND_APP_INVALID, "mend_app_migrate: ranks and hosts are too long: less than %d characters", TEXT);
    int done = plan_parse(&plan, text, app.transport.size, error);
    if (done)
        return fail(done, "mend_app_migrate: %s", error);
    /* Whole at once: other ranks look at it. */
    plan_path(path);
    snprintf(part, sizeof part, "%s.%d", path, app.transport.rank);
    FILE *file = fopen(part, "we");
    bool good = file && fputs(text, file) >= 0;
    if (file)
        good = fclose(file) == 0 && good;
    if (!good || rename(part, path) != 0)
        return fail(MEND_APP_SYSTEM, "mend_app_migrate: %s can't be written: %s", path, strerror(errno));
    request_raise(REQUEST_MOVE);
    return MEND_APP_OK;
}
