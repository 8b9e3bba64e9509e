/* The configuration: a file of `key = value` lines, overridden by the environment (MEND_APP_KEY). */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum kind { TEXT_VALUE, SECONDS, COUNT, SWITCH };
static const struct setting {
    const char *key, *about, *initial;
    enum kind kind;
    size_t offset, room;
} all[] = {
#define ENTRY(field, kind, initial, about) {#field, about, initial, kind, offsetof(struct settings, field), sizeof ((struct settings *)0)->field}
    ENTRY(directory, TEXT_VALUE, "checkpoints", "where checkpoints are kept; all ranks see it"),
    ENTRY(interval, SECONDS, "0", "seconds between checkpoints; 0: only when asked for"),
    ENTRY(calls, COUNT, "0", "a checkpoint at every so many calls of mend_app_checkpoint, without agreement; 0: none; the ranks must make the same calls"),
    ENTRY(keep, COUNT, "2", "newest checkpoints that are kept, from 1 up; what they link to stays, too"),
    ENTRY(restart, TEXT_VALUE, "auto", "auto: the newest whole checkpoint of a run that didn't end well; newest: of any run; none; or a number"),
    ENTRY(signal, TEXT_VALUE, "none", "a signal that asks for a checkpoint: USR2, USR1 (which MPICH uses itself), or none"),
    ENTRY(watch, TEXT_VALUE, "", "a file: whenever it appears or its time changes, that asks for a checkpoint; empty: `request` in the directory"),
    ENTRY(watch_seconds, SECONDS, "0.5", "how often it is looked at"),
    ENTRY(move, TEXT_VALUE, "", "a file that asks for a move of ranks (lines `ranks = 1,4-6` and `hosts = NAMES`) whenever it appears; empty: `move` in the directory"),
    ENTRY(move_through, TEXT_VALUE, "pipeline", "how a moved rank's data go: pipeline: written, sent and read at a time; memory: one after the other; disk: through files in the directory"),
    ENTRY(move_chunk, COUNT, "67108864", "bytes of data in a part of them, from 4096 up; old and new process have two parts at a time each"),
    ENTRY(move_split, TEXT_VALUE, "element", "memblock: a part is one variable; dataset: whole variables; element: variables are cut"),
    ENTRY(nothing_open, SWITCH, "no", "yes: windows, files, requests and communicators are closed at safe points: ranks move also where the library can't see that (Open MPI's Fortran)"),
    ENTRY(requests, TEXT_VALUE, "", "a directory in which whoever started the job asks for checkpoints, and is answered (`mend checkpoint --portable`); `mend run` sets it"),
    ENTRY(join_seconds, SECONDS, "600", "how long all ranks may take to learn of a request, before it is cancelled"),
    ENTRY(hold_seconds, SECONDS, "60", "how long a rank waits for the others at a call, before it goes on and cancels"),
    ENTRY(behind, SWITCH, "no", "yes: variables are copied, and a thread writes them while the program computes on"),
    ENTRY(incremental, SWITCH, "no", "yes: variables that are as in the checkpoint before are links to it"),
    ENTRY(full_every, COUNT, "8", "of so many incremental checkpoints one is full"),
    ENTRY(compress, TEXT_VALUE, "none", "none, deflate, deflate:1 to deflate:9, zstd, lz4 (the last two by plug-ins that HDF5_PLUGIN_PATH finds)"),
    ENTRY(shuffle, SWITCH, "yes", "bytes of equal weight stand together before they are compressed"),
    ENTRY(verify, TEXT_VALUE, "start", "start: all bytes are compared with their hashes before any value is restored, and an older checkpoint is used if need be; values: when a value is restored, which is faster; no: not at all"),
    ENTRY(on_error, TEXT_VALUE, "stop", "stop: a restore that fails ends the program; return: it returns an error"),
    ENTRY(quiet, SWITCH, "no", "yes: standard error tells of errors only"),
};
enum { SETTINGS = sizeof all / sizeof *all };

void *plain_numbers_start(void) {
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (!plain)
        return NULL;
    locale_t before = uselocale(plain);
    if (!before)
        freelocale(plain);
    return before;
}

void plain_numbers_end(void *before) {
    if (before)
        freelocale(uselocale(before));
}

static int set(struct settings *s, const struct setting *setting, const char *value, const char *source) {
    void *at = (char *)s + setting->offset;
    char *end = NULL;
    void *before;
    errno = 0;
    switch (setting->kind) {
    case TEXT_VALUE:
        if (strlen(value) >= setting->room)
            return fail(MEND_APP_INVALID, "%s: %s is too long: %zu characters at most", source, setting->key, setting->room - 1);
        strcpy(at, value);
        return 0;
    case SECONDS:
        before = plain_numbers_start();
        *(double *)at = strtod(value, &end);
        plain_numbers_end(before);
        if (end == value || *end || !(*(double *)at >= 0) || *(double *)at > 1e9)
            return fail(MEND_APP_INVALID, "%s: %s = %s: a number of seconds is needed, from 0 to 1e9", source, setting->key, value);
        return 0;
    case COUNT:
        *(uint64_t *)at = strtoull(value, &end, 10);
        if (end == value || *end || errno || !isdigit((unsigned char)value[0]))
            return fail(MEND_APP_INVALID, "%s: %s = %s: a whole number is needed, from 0 up", source, setting->key, value);
        return 0;
    case SWITCH:
        if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
            return fail(MEND_APP_INVALID, "%s: %s = %s: yes or no is needed", source, setting->key, value);
        *(bool *)at = value[0] == 'y';
        return 0;
    }
    return 0;
}

static int unknown(const char *source, const char *key) {
    char keys[TEXT] = "";
    for (int i = 0; i < SETTINGS; i++) {
        strcat(keys, i ? ", " : "");
        strcat(keys, all[i].key);
    }
    return fail(MEND_APP_INVALID, "%s: no setting is named %s; there are: %s", source, key, keys);
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1]))
        text[--length] = 0;
    return text;
}

/* A comment begins at the line's start or after white space: names of files may have a # in them. */
static void cut_comment(char *line) {
    for (char *hash = strchr(line, '#'); hash; hash = strchr(hash + 1, '#'))
        if (hash == line || isspace((unsigned char)hash[-1])) {
            *hash = 0;
            return;
        }
}

static int read_file(struct settings *s, const char *path, bool must_exist) {
    FILE *file = fopen(path, "re");
    if (!file && errno == ENOENT && !must_exist)
        return 0;
    if (!file)
        return fail(MEND_APP_INVALID, "the configuration %s can't be read: %s", path, strerror(errno));
    char line[2 * TEXT], source[TEXT + 32];
    int number = 0, done = 0;
    while (done == 0 && fgets(line, sizeof line, file)) {
        snprintf(source, sizeof source, "%s, line %d", path, ++number);
        cut_comment(line);
        char *equals;
        char *text = trim(line);
        if (!*text)
            continue;
        if (!(equals = strchr(text, '='))) {
            done = fail(MEND_APP_INVALID, "%s: \"%s\" isn't of the form key = value", source, text);
            break;
        }
        *equals = 0;
        char *key = trim(text);
        int at = 0;
        while (at < SETTINGS && strcmp(all[at].key, key) != 0)
            at++;
        done = at < SETTINGS ? set(s, &all[at], trim(equals + 1), source) : unknown(source, key);
    }
    if (done == 0 && ferror(file))
        done = fail(MEND_APP_INVALID, "the configuration %s can't be read: %s", path, strerror(errno));
    fclose(file);
    return done;
}

/* Numbers are added to, with a sign: half of what 64 bits hold. */
static bool is_checkpoint(const char *text) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    return isdigit((unsigned char)*text) && !*end && errno == 0 && number > 0 && number <= INT64_MAX;
}

static int check(const struct settings *s) {
    if (s->keep == 0)
        return fail(MEND_APP_INVALID, "keep = 0: at least 1 checkpoint is kept");
    if (s->full_every == 0)
        return fail(MEND_APP_INVALID, "full_every = 0: from 1 up (1: every checkpoint is full)");
    if (s->watch_seconds < 0.01)
        return fail(MEND_APP_INVALID, "watch_seconds: at least 0.01");
    if (s->join_seconds < 0.01)
        return fail(MEND_APP_INVALID, "join_seconds: at least 0.01: in no time no rank can learn of a request");
    if (s->hold_seconds < 0.01)
        return fail(MEND_APP_INVALID, "hold_seconds: at least 0.01: else no rank waits for another one");
    if (!s->directory[0])
        return fail(MEND_APP_INVALID, "directory is empty: name a directory that all ranks see");
    if (strlen(s->requests) > TEXT - 64)
        return fail(MEND_APP_INVALID, "requests is too long: %d characters at most", TEXT - 64);
    if (strlen(s->directory) > TEXT - 64)
        return fail(MEND_APP_INVALID, "directory is too long: %d characters at most", TEXT - 64);
    const char *c = s->compress;
    bool deflate = strcmp(c, "deflate") == 0 || (strncmp(c, "deflate:", 8) == 0 && c[8] >= '1' && c[8] <= '9' && !c[9]);
    if (!deflate && strcmp(c, "none") && strcmp(c, "zstd") && strcmp(c, "lz4"))
        return fail(MEND_APP_INVALID, "compress = %s: none, deflate, deflate:1 to deflate:9, zstd or lz4", c);
    if (strcmp(s->move_through, "pipeline") && strcmp(s->move_through, "memory") && strcmp(s->move_through, "disk"))
        return fail(MEND_APP_INVALID, "move_through = %s: pipeline, memory or disk", s->move_through);
    if (strcmp(s->move_split, "memblock") && strcmp(s->move_split, "dataset") && strcmp(s->move_split, "element"))
        return fail(MEND_APP_INVALID, "move_split = %s: memblock, dataset or element", s->move_split);
    if (s->move_chunk < 4096 || s->move_chunk > UINT64_C(1) << 40)
        return fail(MEND_APP_INVALID, "move_chunk = %llu: 4096 bytes to 1 TiB", (unsigned long long)s->move_chunk);
    if (strcmp(s->signal, "none") && strcmp(s->signal, "USR1") && strcmp(s->signal, "USR2"))
        return fail(MEND_APP_INVALID, "signal = %s: none, USR1 or USR2", s->signal);
    if (strcmp(s->verify, "start") && strcmp(s->verify, "values") && strcmp(s->verify, "no"))
        return fail(MEND_APP_INVALID, "verify = %s: start, values or no", s->verify);
    if (strcmp(s->on_error, "stop") && strcmp(s->on_error, "return"))
        return fail(MEND_APP_INVALID, "on_error = %s: stop or return", s->on_error);
    if (strcmp(s->restart, "auto") && strcmp(s->restart, "newest") && strcmp(s->restart, "none") && !is_checkpoint(s->restart))
        return fail(MEND_APP_INVALID, "restart = %s: auto, newest, none or the number of a checkpoint, from 1 up", s->restart);
    return 0;
}

/* The program may change its directory. The directory of checkpoints is made first (settle_directory). */
static int make_absolute(struct settings *s) {
    char *const paths[] = {s->watch, s->move, s->requests};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char path[2 * TEXT];
        if (!paths[i][0] || paths[i][0] == '/')
            continue;
        if (!app.directory_at_start[0])
            return fail(MEND_APP_SYSTEM, "the directory that the program is in can't be told, so %s could be anywhere: start the program in a directory that is there, or set absolute paths", paths[i]);
        if (snprintf(path, sizeof path, "%s/%s", app.directory_at_start, paths[i]) >= TEXT - 64)
            return fail(MEND_APP_INVALID, "%s/%s is too long: %d characters at most", app.directory_at_start, paths[i], TEXT - 65);
        strcpy(paths[i], path);
    }
    return 0;
}

static void name_of(char into[64], const struct setting *setting) {
    size_t length = (size_t)snprintf(into, 64, "MEND_APP_");
    for (const char *c = setting->key; *c; c++)
        into[length++] = (char)toupper((unsigned char)*c);
    into[length] = 0;
}

/* A misspelt name would be ignored in silence. Names that others of Mend's programs read are known. */
static void look_for_unknown(void) {
    static const char *const others[] = {"MEND_APP_CONFIG", "MEND_APP_LIBRARY", "MEND_APP_HOME", "MEND_APP_OUT", "MEND_APP_ARRIVES"};
    for (char **entry = environ; entry && *entry; entry++) {
        size_t length = strcspn(*entry, "=");
        bool known = strncmp(*entry, "MEND_APP_", 9) != 0;
        for (size_t i = 0; i < sizeof others / sizeof *others && !known; i++)
            known = strlen(others[i]) == length && strncmp(*entry, others[i], length) == 0;
        for (int i = 0; i < SETTINGS && !known; i++) {
            char name[64];
            name_of(name, &all[i]);
            known = strlen(name) == length && strncmp(*entry, name, length) == 0;
        }
        if (!known)
            note("%.*s in the environment is no setting, and is ignored: app/README.md lists the settings", (int)length, *entry);
    }
}

int settings_read(struct settings *s, const char *configuration) {
    memset(s, 0, sizeof *s);
    int done = 0;
    for (int i = 0; i < SETTINGS && done == 0; i++)
        done = set(s, &all[i], all[i].initial, "initial value");
    if (done)
        return done;
    const char *named = configuration ? configuration : getenv("MEND_APP_CONFIG");
    /* A process that arrives has all of them from the old one, in the environment: the file may be another one by now. */
    if (!app.transport.arriving)
        done = named && *named ? read_file(s, named, true) : read_file(s, "mend-app.conf", false);
    for (int i = 0; i < SETTINGS && done == 0; i++) {
        char variable[64];
        name_of(variable, &all[i]);
        const char *value = getenv(variable);
        if (value)
            done = set(s, &all[i], value, variable);
    }
    if (done == 0 && app.transport.rank == 0 && !app.transport.arriving)
        look_for_unknown();
    if (done == 0)
        done = check(s);
    return done ? done : make_absolute(s);
}

static void value_of(char into[TEXT], const struct settings *s, const struct setting *setting) {
    const void *at = (const char *)s + setting->offset;
    void *before;
    switch (setting->kind) {
    case TEXT_VALUE:
        snprintf(into, TEXT, "%s", (const char *)at);
        break;
    case SECONDS:
        before = plain_numbers_start();
        snprintf(into, TEXT, "%.17g", *(const double *)at);
        plain_numbers_end(before);
        break;
    case COUNT:
        snprintf(into, TEXT, "%" PRIu64, *(const uint64_t *)at);
        break;
    case SWITCH:
        snprintf(into, TEXT, "%s", *(const bool *)at ? "yes" : "no");
        break;
    }
}

void settings_each(const struct settings *s, void (*tell)(void *data, const char *variable, const char *value), void *data) {
    for (int i = 0; i < SETTINGS; i++) {
        char variable[64], value[TEXT];
        name_of(variable, &all[i]);
        value_of(value, s, &all[i]);
        tell(data, variable, value);
    }
}

EXPORT const char *mend_app_settings(void) {
    static char text[8 * TEXT];
    size_t length = 0;
    if (text[0])
        return text;
    for (int i = 0; i < SETTINGS; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "# %s\n%s = %s\n", all[i].about, all[i].key, all[i].initial);
    return text;
}
