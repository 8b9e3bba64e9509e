/* What the program registers: variables, contexts, files. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

struct app app;

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void say(const char *format, va_list arguments, char *into, size_t room) {
    size_t length = 0;
    if (app.transport.size > 1)
        length = (size_t)snprintf(into, room, "rank %d: ", app.transport.rank);
    void *before = plain_numbers_start();
    vsnprintf(into + length, room - length, format, arguments);
    plain_numbers_end(before);
}

int fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments, app.error, sizeof app.error);
    va_end(arguments);
    fprintf(stderr, "mend-app: %s\n", app.error);
    return code;
}

int fail_restore(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments, app.error, sizeof app.error);
    va_end(arguments);
    fprintf(stderr, "mend-app: the state can't be restored: %s\n", app.error);
    if (app.arriving)
        arrival_failed();
    if (strcmp(app.settings.on_error, "return") == 0)
        return code;
    fflush(NULL);
    if (app.transport.stop)
        app.transport.stop(app.transport.state, 1);
    exit(1);
}

void complain(const char *format, ...) {
    char text[2 * TEXT];
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments, text, sizeof text);
    va_end(arguments);
    fprintf(stderr, "mend-app: %s\n", text);
}

void note(const char *format, ...) {
    char text[2 * TEXT];
    va_list arguments;
    if (app.settings.quiet)
        return;
    va_start(arguments, format);
    say(format, arguments, text, sizeof text);
    va_end(arguments);
    fprintf(stderr, "mend-app: %s\n", text);
}

EXPORT int mend_app_report(int code, const char *text) {
    app.reported = app.reported || code < 0;
    return fail(code, "%s", text);
}

EXPORT int mend_app_nothing_open(void) {
    return app.settings.nothing_open;
}

EXPORT const char *mend_app_error(void) {
    return app.error;
}

EXPORT mend_app_dimension mend_app_whole(uint64_t n) {
    return (mend_app_dimension){.kind = MEND_APP_WHOLE, .extent = n, .global = n, .count = n};
}

EXPORT mend_app_dimension mend_app_block(uint64_t global, uint64_t start, uint64_t count, uint64_t before, uint64_t after) {
    return (mend_app_dimension){.kind = MEND_APP_BLOCK, .extent = before + count + after, .global = global, .first = before, .count = count, .start = start};
}

EXPORT mend_app_dimension mend_app_cyclic(uint64_t global, uint64_t block, uint64_t part, uint64_t parts) {
    mend_app_dimension d = {.kind = MEND_APP_CYCLIC, .global = global, .block = block, .part = part, .parts = parts};
    uint64_t round;
    if (block == 0 || parts == 0 || part >= parts)
        return d;
    if (__builtin_mul_overflow(block, parts, &round)) {
        /* It makes no sense, and is refused where it is registered. */
        d.block = 0;
        return d;
    }
    uint64_t rest = global % round, mine = part * block;
    d.extent = d.count = global / round * block + (rest <= mine ? 0 : rest - mine < block ? rest - mine : block);
    return d;
}

EXPORT mend_app_dimension mend_app_list(uint64_t global, uint64_t count, const uint64_t *indices) {
    return (mend_app_dimension){.kind = MEND_APP_LIST, .extent = count, .global = global, .count = count, .indices = indices};
}

char *context_path(const struct context *c) {
    if (!c->parent)
        return must_copy("");
    char *above = context_path(c->parent), *path = must_alloc(strlen(above) + strlen(c->name) + 2);
    sprintf(path, "%s%s%s", above, *above ? "/" : "", c->name);
    free(above);
    return path;
}

uint64_t where_hash(void) {
    char *path = context_path(app.current);
    uint64_t hash = hash64(path, strlen(path), 0);
    free(path);
    return hash;
}

/* A name that is a link's name in HDF5. */
static int check_name(const char *what, const char *name) {
    if (!app.started)
        return fail(MEND_APP_INVALID, "%s \"%s\": mend_app_init comes first", what, name ? name : "");
    if (!name || !*name || strlen(name) > NAME_MAX_LENGTH)
        return fail(MEND_APP_INVALID, "a %s needs a name of 1 to %d characters", what, NAME_MAX_LENGTH);
    size_t length = strlen(name);
    bool control = false;
    for (const char *c = name; *c; c++)
        control |= (unsigned char)*c < ' ';
    if (strchr(name, '/') || strcmp(name, ".") == 0 || control || (length > 2 && strcmp(name + length - 2, "()") == 0))
        return fail(MEND_APP_INVALID, "%s \"%s\": a name has no slash and no control characters, isn't \".\" and doesn't end with \"()\"", what, name);
    return 0;
}

static struct variable *find(const char *name) {
    for (struct variable *v = app.variables; v; v = v->next)
        if (v->context == app.current && strcmp(v->name, name) == 0)
            return v;
    return NULL;
}

static int check_dimension(const char *name, int d, const mend_app_dimension *x) {
    bool good = x->first <= x->extent && x->count <= x->extent - x->first;
    switch (x->kind) {
    case MEND_APP_WHOLE:
        good = good && x->count == x->extent && x->global == x->extent;
        break;
    case MEND_APP_BLOCK:
        good = good && x->count <= x->global && x->start <= x->global - x->count;
        break;
    case MEND_APP_CYCLIC:
        good = good && x->block > 0 && x->part < x->parts && x->count == mend_app_cyclic(x->global, x->block, x->part, x->parts).count;
        break;
    case MEND_APP_LIST:
        good = good && x->count == x->extent && (x->extent == 0 || x->indices);
        for (uint64_t i = 0; good && i < x->extent; i++)
            if (x->indices[i] >= x->global)
                return fail(MEND_APP_INVALID, "array `%s`, dimension %d: index %llu of the list is %llu, of %llu elements in all", name, d, (unsigned long long)i, (unsigned long long)x->indices[i], (unsigned long long)x->global);
        break;
    default:
        good = false;
    }
    return good ? 0 : fail(MEND_APP_INVALID, "array `%s`, dimension %d: its distribution makes no sense: make it by mend_app_whole, _block, _cyclic or _list", name, d);
}

static int add(const char *name, void *address, int type, int dimensions, const mend_app_dimension *dimension, int whose) {
    int done = check_name("variable", name);
    if (done)
        return done;
    if (type < 1 || type > MEND_APP_POINTER)
        return fail(MEND_APP_INVALID, "variable `%s`: there is no type %d", name, type);
    if (dimensions < 0 || dimensions > MEND_APP_DIMENSIONS || (dimensions && !dimension))
        return fail(MEND_APP_INVALID, "variable `%s`: 0 to %d dimensions", name, MEND_APP_DIMENSIONS);
    if (find(name))
        return fail(MEND_APP_INVALID, "variable `%s` is registered already in this context: mend_app_forget() comes first", name);
    uint64_t elements = 1, bytes;
    for (int d = 0; d < dimensions; d++) {
        if ((done = check_dimension(name, d, &dimension[d])) != 0)
            return done;
        if (__builtin_mul_overflow(elements, dimension[d].extent, &elements))
            return fail(MEND_APP_INVALID, "variable `%s` is larger than memory can be", name);
    }
    if (__builtin_mul_overflow(elements, element_size(type), &bytes) || bytes > SIZE_MAX / 2)
        return fail(MEND_APP_INVALID, "variable `%s` is larger than memory can be", name);
    if (!address && elements)
        return fail(MEND_APP_INVALID, "variable `%s` has no address", name);
    struct variable *v = must_alloc(sizeof *v);
    v->context = app.current;
    v->name = must_copy(name);
    v->address = address;
    v->type = type;
    v->whose = whose;
    v->dimensions = dimensions;
    v->elements = elements;
    if (dimensions)
        memcpy(v->dimension, dimension, (size_t)dimensions * sizeof *dimension);
    if (app.last)
        app.last->next = v;
    else
        app.variables = v;
    app.last = v;
    return app.restarting ? restore_variable(v) : MEND_APP_OK;
}

EXPORT int mend_app_variable(const char *name, void *address, int type, int dimensions, const uint64_t *extents, int whose) {
    mend_app_dimension whole[MEND_APP_DIMENSIONS];
    if (whose != MEND_APP_PRIVATE && whose != MEND_APP_REPLICATED)
        return fail(MEND_APP_INVALID, "variable `%s`: MEND_APP_PRIVATE or MEND_APP_REPLICATED", name ? name : "");
    for (int d = 0; d < dimensions && d < MEND_APP_DIMENSIONS && extents; d++)
        whole[d] = mend_app_whole(extents[d]);
    return add(name, address, type, dimensions, extents ? whole : NULL, whose);
}

EXPORT int mend_app_array(const char *name, void *address, int type, int dimensions, const mend_app_dimension *dimension) {
    if (dimensions < 1)
        return fail(MEND_APP_INVALID, "array `%s`: 1 to %d dimensions", name ? name : "", MEND_APP_DIMENSIONS);
    if (type == MEND_APP_POINTER)
        return fail(MEND_APP_INVALID, "array `%s`: pointers can't be spread over ranks", name ? name : "");
    return add(name, address, type, dimensions, dimension, WHOSE_SPREAD);
}

static void drop(bool (*wanted)(const struct variable *, const void *), const void *what) {
    struct variable *last = NULL;
    for (struct variable **at = &app.variables; *at;) {
        struct variable *v = *at;
        if (wanted(v, what)) {
            *at = v->next;
            free(v->name);
            free(v->pending);
            free(v);
        } else {
            last = v;
            at = &v->next;
        }
    }
    app.last = last;
}

static bool is_it(const struct variable *v, const void *what) {
    return v == what;
}

static bool is_in(const struct variable *v, const void *what) {
    return v->context == what;
}

EXPORT int mend_app_forget(const char *name) {
    int done = check_name("variable", name);
    if (done)
        return done;
    struct variable *v = find(name);
    if (!v)
        return fail(MEND_APP_INVALID, "variable `%s` isn't registered in this context", name);
    drop(is_it, v);
    return 0;
}

EXPORT int mend_app_enter(const char *name) {
    int done = check_name("context", name);
    if (done)
        return done;
    struct context *c = app.current->children;
    while (c && strcmp(c->name, name) != 0)
        c = c->next;
    if (!c) {
        c = must_alloc(sizeof *c);
        c->name = must_copy(name);
        c->parent = app.current;
        c->next = app.current->children;
        app.current->children = c;
    }
    if (app.restarting) {
        char *path = context_path(c);
        const struct saved_context *saved = table_context(app.saved.own, path);
        free(path);
        if (saved) {
            c->entered = saved->entered;
            if (!saved->active)
                return MEND_APP_SKIP;
            c->active = true;
            app.current = c;
            return MEND_APP_OK;
        }
    }
    c->entered++;
    c->active = true;
    app.current = c;
    return MEND_APP_OK;
}

EXPORT int mend_app_leave(void) {
    if (!app.started || !app.current->parent)
        return fail(MEND_APP_INVALID, "mend_app_leave: no context was entered");
    drop(is_in, app.current);
    app.current->active = false;
    app.current = app.current->parent;
    return MEND_APP_OK;
}

EXPORT FILE *mend_app_fopen(const char *name, const char *path, const char *mode) {
    if (check_name("file", name) != 0 || !path || !mode) {
        errno = EINVAL;
        return NULL;
    }
    for (struct open_file *f = app.files; f; f = f->next)
        if (strcmp(f->name, name) == 0) {
            fail(MEND_APP_INVALID, "file `%s` is open already", name);
            errno = EINVAL;
            return NULL;
        }
    bool saved = false;
    for (size_t i = 0; app.restarting && i < app.saved.own->files_count; i++) {
        const struct saved_file *file = &app.saved.own->files[i];
        if (strcmp(file->name, name) != 0)
            continue;
        saved = true;
        /* To cut another file to this one's length would lose what is in it. */
        if (strcmp(file->path, path) != 0) {
            fail_restore(MEND_APP_REFUSED, "file `%s` was %.400s when checkpoint %llu was taken, and is %.400s now: open the same one, or set restart = none to start anew", name, file->path, (unsigned long long)app.saved.own->checkpoint, path);
            errno = EINVAL;
            return NULL;
        }
    }
    /* What was written before the checkpoint is kept. */
    FILE *stream = fopen(path, saved && mode[0] == 'w' ? "r+" : mode);
    if (!stream)
        return NULL;
    /* A checkpoint counts on a new file's name, too. Some directories can't be read or aren't on a disk: their names can't be made durable. */
    if (mode[0] != 'r' && sync_parent(path) != 0 && errno == EIO) {
        fclose(stream);
        errno = EIO;
        return NULL;
    }
    struct open_file *f = must_alloc(sizeof *f);
    f->name = must_copy(name);
    f->path = must_copy(path);
    f->mode = must_copy(mode);
    f->stream = stream;
    f->next = app.files;
    app.files = f;
    if (saved && restore_file(f, false) < 0) {
        mend_app_fclose(stream);
        errno = EINVAL;
        return NULL;
    }
    return stream;
}

static void drop_file(struct open_file **at) {
    struct open_file *f = *at;
    *at = f->next;
    free(f->name);
    free(f->path);
    free(f->mode);
    free(f);
}

/* The program may use and close its files after the library's end. */
void files_clear(void) {
    while (app.files)
        drop_file(&app.files);
}

int files_flush(void) {
    int done = 0;
    for (const struct open_file *f = app.files; f; f = f->next)
        if ((f->mode[0] != 'r' || strchr(f->mode, '+')) && fflush(f->stream) != 0)
            done = fail(MEND_APP_SYSTEM, "file `%s` (%s) can't be written: %s: make room or put right what is wrong there, and run the program again; it goes on from the newest checkpoint", f->name, f->path, strerror(errno));
    return done;
}

EXPORT int mend_app_fclose(FILE *stream) {
    for (struct open_file **at = &app.files; *at; at = &(*at)->next)
        if ((*at)->stream == stream) {
            /* Should the move fail, this file couldn't be cut any more. */
            if (app.arriving)
                restore_undo(*at);
            drop_file(at);
            break;
        }
    return fclose(stream) == 0 ? MEND_APP_OK : fail(MEND_APP_SYSTEM, "a file can't be closed: %s", strerror(errno));
}
