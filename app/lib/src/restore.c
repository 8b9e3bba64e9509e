/* Values come back: a variable when it is registered, pointers as soon as what they point to is registered. A restore is complete at the first safe point in the saved contexts, where nothing may be
 * missing. There files get their positions: on the way the program may read a header again, and writes what is written already. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static void shape_text(char into[TEXT], int dimensions, const uint64_t *extents) {
    size_t length = (size_t)snprintf(into, TEXT, "[");
    for (int d = 0; d < dimensions; d++)
        length += (size_t)snprintf(into + length, TEXT - length, "%s%" PRIu64, d ? ", " : "", extents[d]);
    snprintf(into + length, TEXT - length, "]");
}

static bool same_shape(const struct variable *v, const struct block *b) {
    if (v->dimensions != b->dimensions)
        return false;
    for (int d = 0; d < v->dimensions; d++)
        if (v->dimension[d].extent != b->dimension[d].extent)
            return false;
    return true;
}

static bool same_distribution(const struct variable *v, const struct block *b) {
    if (b->whose != WHOSE_SPREAD || !same_shape(v, b))
        return false;
    for (int d = 0; d < v->dimensions; d++) {
        const mend_app_dimension *x = &v->dimension[d];
        const struct dimension *y = &b->dimension[d];
        if ((uint32_t)x->kind != y->kind || x->global != y->global || x->first != y->first || x->count != y->count || x->start != y->start || x->block != y->block || x->part != y->part || x->parts != y->parts)
            return false;
        if (x->kind == MEND_APP_LIST && x->extent && memcmp(x->indices, y->indices, x->extent * sizeof *x->indices) != 0)
            return false;
    }
    return true;
}

/* The block that holds the data, and from which of its elements on. */
static int read_own(const struct variable *v, const struct block *b, uint64_t number, char error[TEXT]) {
    bool pointers = v->type == MEND_APP_POINTER;
    void *into = pointers ? (void *)v->pending : v->address;
    if (app.arriving && app.saved.own_path[0] == 0)
        return b->alias < 0 ? arrival_read(number, 0, b->elements, v->type, into, error) : arrival_read((uint64_t)b->alias, b->offset, b->elements, v->type, into, error);
    if (b->alias < 0)
        return block_read(app.saved.own_path, b, number, v->type, into, app.saved.verify_values, error);
    const struct block *owner = &app.saved.own->blocks[b->alias];
    uint64_t size = pointers ? 16 : element_size(v->type), larger = owner->size > size ? owner->size : size;
    if (owner->alias >= 0 || b->offset > owner->elements || b->elements > owner->elements - b->offset) {
        snprintf(error, TEXT, "alias `%.200s` is of nothing", b->name);
        return MEND_APP_DAMAGED;
    }
    unsigned char *whole = must_alloc(owner->elements * larger);
    int done = block_read(app.saved.own_path, owner, (uint64_t)b->alias, v->type, whole, app.saved.verify_values, error);
    if (done == 0)
        memcpy(into, whole + b->offset * size, b->elements * size);
    free(whole);
    return done;
}

static const struct variable *registered(const struct block *b) {
    for (const struct variable *v = app.variables; v; v = v->next) {
        if (strcmp(v->name, b->name) != 0)
            continue;
        char *context = context_path(v->context);
        bool same = strcmp(context, b->context) == 0;
        free(context);
        if (same)
            return v;
    }
    return NULL;
}

/* Its values are those of elements that lie elsewhere now, or on another rank. */
static int refuse_alias(const struct block *b, const struct variable *owner) {
    return fail_restore(MEND_APP_REFUSED, "`%s` lay in the memory of `%s` when checkpoint %" PRIu64 " was taken, which is spread over the ranks otherwise now: restart with the distribution that it had", b->name, owner->name, app.saved.own->checkpoint);
}

int restore_variable(struct variable *v) {
    struct table *t = app.saved.own;
    char *context = context_path(v->context), error[TEXT] = "";
    const struct block *b = table_find(t, context, v->name);
    char where[TEXT];
    snprintf(where, sizeof where, "%s%.300s", *context ? " in context " : "", context);
    free(context);
    if (!b && app.arriving)
        return fail_restore(MEND_APP_REFUSED, "the old process has no variable `%s`%s: the program must register the same in both", v->name, where);
    if (!b)
        return fail_restore(MEND_APP_REFUSED, "checkpoint %" PRIu64 " has no variable `%s`%s: the program has changed; set restart = none to start anew", t->checkpoint, v->name, where);
    if (!element_kinds_agree(b->type, v->type))
        return fail_restore(MEND_APP_REFUSED, "`%s`%s was %s when checkpoint %" PRIu64 " was taken, and is %s now", v->name, where, element_name(b->type), t->checkpoint, element_name(v->type));
    if (v->whose == WHOSE_SPREAD && b->whose == WHOSE_SPREAD && !(app.saved.same_ranks && same_distribution(v, b))) {
        /* The data of this rank alone come. */
        if (app.arriving)
            return fail_restore(MEND_APP_REFUSED, "`%s`%s is spread otherwise than in the old process", v->name, where);
        v->spread_anew = true;
        int done = spread_restore(v, b);
        v->restored = done == 0;
        return done == 0 ? MEND_APP_RESTORED : done;
    }
    const struct variable *owner = b->alias >= 0 ? registered(&t->blocks[b->alias]) : NULL;
    if (owner && owner->spread_anew)
        return refuse_alias(b, owner);
    if ((v->whose == WHOSE_SPREAD) != (b->whose == WHOSE_SPREAD) && !app.saved.same_ranks)
        return fail_restore(MEND_APP_REFUSED, "`%s`%s was %s over the ranks when checkpoint %" PRIu64 " was taken, and %s now: it restarts on %" PRIu32 " ranks only", v->name, where, b->whose == WHOSE_SPREAD ? "spread" : "not spread", t->checkpoint, b->whose == WHOSE_SPREAD ? "isn't" : "is", app.saved.manifest.ranks);
    if (b->whose == MEND_APP_PRIVATE && !app.saved.same_ranks)
        return fail_restore(MEND_APP_REFUSED, "checkpoint %" PRIu64 " is of %" PRIu32 " ranks, and these are %d: `%s`%s is private to each rank. Register it as replicated or as an array that is spread, or restart on %" PRIu32 " ranks", t->checkpoint, app.saved.manifest.ranks, app.transport.size, v->name, where, app.saved.manifest.ranks);
    if (!same_shape(v, b)) {
        char saved[TEXT], now[TEXT];
        uint64_t extents[MEND_APP_DIMENSIONS];
        for (int d = 0; d < b->dimensions; d++)
            extents[d] = b->dimension[d].extent;
        shape_text(saved, b->dimensions, extents);
        for (int d = 0; d < v->dimensions; d++)
            extents[d] = v->dimension[d].extent;
        shape_text(now, v->dimensions, extents);
        return fail_restore(MEND_APP_REFUSED, "`%s`%s had the shape %.300s when checkpoint %" PRIu64 " was taken, and has %.300s now", v->name, where, saved, t->checkpoint, now);
    }
    if (v->type == MEND_APP_POINTER)
        v->pending = must_alloc(v->elements * 16);
    double since = seconds_now();
    int done = v->elements ? read_own(v, b, (uint64_t)(b - t->blocks), error) : 0;
    if (app.arriving)
        arrival_has_read(seconds_now() - since);
    if (done == MEND_APP_DAMAGED && !app.arriving) {
        if (store_set_aside(app.settings.directory, t->checkpoint) != 0 && errno != ENOENT)
            return fail_restore(done, "`%s`%s: %s. Checkpoint %" PRIu64 " can't be set aside (%s): make the directory writable, or set restart to an older one's number", v->name, where, error, t->checkpoint, strerror(errno));
        return fail_restore(done, "`%s`%s: %s. Checkpoint %" PRIu64 " is set aside: start the program again, and an older one is used", v->name, where, error, t->checkpoint);
    }
    if (done && done != MEND_APP_DAMAGED && !app.arriving)
        return fail_restore(done, "`%s`%s: %s. Checkpoint %" PRIu64 " stays as it is", v->name, where, error, t->checkpoint);
    if (done)
        return fail_restore(done, "`%s`%s: %s", v->name, where, error);
    v->restored = true;
    restore_pointers(false);
    return MEND_APP_RESTORED;
}

/* Pointers whose targets are registered by now. `all`: what is left is an error. */
int restore_pointers(bool all) {
    const struct table *t = app.saved.own;
    for (struct variable *v = app.variables; v; v = v->next) {
        if (!v->pending)
            continue;
        bool left = false;
        for (uint64_t i = 0; i < v->elements && !left; i++) {
            int64_t block = (int64_t)v->pending[2 * i];
            uint64_t offset = v->pending[2 * i + 1];
            void **pointer = &((void **)v->address)[i];
            if (block == -1) {
                *pointer = NULL;
                continue;
            }
            if (block < 0 || (uint64_t)block >= t->blocks_count || offset > t->blocks[block].elements)
                return fail_restore(MEND_APP_DAMAGED, "pointer `%s` [%" PRIu64 "] points outside of all that was saved", v->name, i);
            const struct variable *target = registered(&t->blocks[block]);
            /* Its beginning is there in any case. */
            if (target && target->spread_anew && offset != 0)
                return fail_restore(MEND_APP_REFUSED, "pointer `%s` points into `%s`, which is spread over the ranks otherwise now: restart with the distribution that it had", v->name, target->name);
            left = !target;
            if (target && offset <= target->elements)
                *pointer = (char *)target->address + offset * element_size(target->type);
            else if (target || all)
                return fail_restore(MEND_APP_REFUSED, "pointer `%s` points to `%s`, which %s", v->name, t->blocks[block].name, target ? "is shorter now" : "isn't registered");
        }
        if (!left) {
            free(v->pending);
            v->pending = NULL;
        }
    }
    return 0;
}

/* Whether a file is to be cut to its length. One that is changed in place (r+) several ranks may have open: their lengths aren't of the same moment, and who cuts it could cut off what
 * another rank has written. In a move nobody has written since. */
static bool is_cut(const struct saved_file *file) {
    char why[TEXT];
    if (file->mode[0] != 'r')
        return true;
    if (!strchr(file->mode, '+') || file->length < 0 || app.arriving)
        return false;
    if (app.transport.size > 1 && saved_load_all(false, why) != 0) {
        complain("file `%.200s` (%.300s) is longer than when checkpoint %" PRIu64 " was taken, and isn't cut: whether another rank had it open can't be told: %s", file->name, file->path, app.saved.manifest.checkpoint, why);
        return false;
    }
    for (uint32_t rank = 0; app.transport.size > 1 && rank < app.saved.manifest.ranks; rank++) {
        const struct table *other = app.saved.all[rank];
        for (size_t i = 0; i < other->files_count; i++)
            if (rank != (uint32_t)app.transport.rank && strcmp(other->files[i].path, file->path) == 0)
                return false;
    }
    return true;
}

static int64_t whole_length(const struct saved_file *saved) {
    return saved->length < 0 ? saved->position : saved->length;
}

int restore_file(struct open_file *f, bool complete) {
    const struct table *t = app.saved.own;
    for (size_t i = 0; i < t->files_count; i++) {
        const struct saved_file *saved = &t->files[i];
        if (strcmp(saved->name, f->name) != 0)
            continue;
        if (!app.saved.same_ranks)
            return fail_restore(MEND_APP_REFUSED, "file `%s` was open on each of %" PRIu32 " ranks, and these are %d", f->name, app.saved.manifest.ranks, app.transport.size);
        int64_t whole = whole_length(saved);
        int64_t needed = saved->mode[0] != 'r' || whole < saved->position ? whole : saved->position;
        int64_t position = complete ? saved->position : saved->mode[0] == 'r' ? 0 : whole;
        struct stat status;
        if (complete && (saved->mode[0] != 'r' || strchr(saved->mode, '+')) && fflush(f->stream) != 0)
            return fail_restore(MEND_APP_SYSTEM, "file `%s` (%s) can't be written: %s", f->name, f->path, strerror(errno));
        if (fstat(fileno(f->stream), &status) != 0)
            return fail_restore(MEND_APP_SYSTEM, "file `%s` (%s): its length can't be told: %s", f->name, f->path, strerror(errno));
        if (status.st_size < needed)
            return fail_restore(MEND_APP_REFUSED, "file `%s` (%s) is shorter than when checkpoint %" PRIu64 " was taken: %" PRId64 " bytes are needed", f->name, f->path, t->checkpoint, needed);
        bool cut = status.st_size > whole && is_cut(saved);
        if ((cut && ftruncate(fileno(f->stream), whole) != 0) || fseeko(f->stream, position, SEEK_SET) != 0)
            return fail_restore(MEND_APP_SYSTEM, "file `%s` (%s) can't be set to where it was: %s", f->name, f->path, strerror(errno));
        f->restored = true;
        return MEND_APP_RESTORED;
    }
    return MEND_APP_OK;
}

void restore_undo(struct open_file *f) {
    struct stat status;
    for (size_t i = 0; f->restored && i < app.saved.own->files_count; i++) {
        const struct saved_file *saved = &app.saved.own->files[i];
        if (strcmp(saved->name, f->name) != 0 || saved->mode[0] == 'r')
            continue;
        /* What can't be written now is dropped when the process ends. */
        fflush(f->stream);
        if (fstat(fileno(f->stream), &status) == 0 && status.st_size > whole_length(saved) && ftruncate(fileno(f->stream), whole_length(saved)) != 0)
            complain("what the new process has written to file `%s` (%s) can't be cut off: %s: it begins at byte %" PRId64, f->name, f->path, strerror(errno), whole_length(saved));
    }
}

/* What was one memory must be one again: a program may count on it. */
static int check_aliases(void) {
    const struct table *t = app.saved.own;
    for (size_t i = 0; i < t->blocks_count; i++) {
        const struct block *b = &t->blocks[i];
        const struct variable *v = b->alias >= 0 ? registered(b) : NULL, *owner = v ? registered(&t->blocks[b->alias]) : NULL;
        if (v && owner && owner->spread_anew)
            return refuse_alias(b, owner);
        if (v && owner && app.saved.same_ranks && (char *)v->address != (char *)owner->address + b->offset * element_size(owner->type))
            return fail_restore(MEND_APP_REFUSED, "`%s` lay in the memory of `%s` when checkpoint %" PRIu64 " was taken, and lies elsewhere now", v->name, owner->name, t->checkpoint);
    }
    return 0;
}

int restore_check_complete(void) {
    const struct table *t = app.saved.own;
    char missing[TEXT] = "";
    size_t length = 0;
    for (size_t i = 0; i < t->blocks_count; i++) {
        const struct variable *v = registered(&t->blocks[i]);
        if ((!v || !v->restored) && length < TEXT - 250)
            length += (size_t)snprintf(missing + length, TEXT - length, "%s`%s`", length ? ", " : "", t->blocks[i].name);
    }
    if (length && app.arriving)
        return fail_restore(MEND_APP_REFUSED, "the old process also holds %s: the program hasn't registered that before its safe point", missing);
    if (length)
        return fail_restore(MEND_APP_REFUSED, "checkpoint %" PRIu64 " also holds %s: the program hasn't registered that before its safe point", t->checkpoint, missing);
    for (size_t i = 0; i < t->files_count; i++) {
        bool open = false;
        for (const struct open_file *f = app.files; f; f = f->next)
            open |= strcmp(f->name, t->files[i].name) == 0;
        if (!open)
            return fail_restore(MEND_APP_REFUSED, "file `%s` (%s) was open when checkpoint %" PRIu64 " was taken, and isn't: open it with mend_app_fopen before the safe point", t->files[i].name, t->files[i].path, t->checkpoint);
    }
    int done = check_aliases();
    if (done == 0)
        done = restore_pointers(true);
    for (struct open_file *f = app.files; f && done >= 0; f = f->next)
        done = f->restored ? restore_file(f, true) : 0;
    return done < 0 ? done : 0;
}

EXPORT int mend_app_restarting(void) {
    return app.restarting;
}

EXPORT int mend_app_arriving(void) {
    return app.arriving;
}

EXPORT int mend_app_saved_shape(const char *name, uint64_t *extents) {
    if (!app.restarting || !name || !extents)
        return MEND_APP_REFUSED;
    char *context = context_path(app.current);
    const struct block *b = table_find(app.saved.own, context, name);
    free(context);
    if (!b)
        return MEND_APP_REFUSED;
    for (int d = 0; d < b->dimensions; d++)
        extents[d] = b->dimension[d].extent;
    return b->dimensions;
}

void saved_drop_all(void) {
    for (uint32_t i = 0; app.saved.all && i < app.saved.manifest.ranks; i++)
        table_free(app.saved.all[i]);
    for (uint32_t i = 0; app.saved.paths && i < app.saved.manifest.ranks; i++)
        free(app.saved.paths[i]);
    free(app.saved.all);
    free(app.saved.paths);
    app.saved.all = NULL;
    app.saved.paths = NULL;
}

void saved_clear(void) {
    saved_drop_all();
    table_free(app.saved.own);
    manifest_clear(&app.saved.manifest);
    memset(&app.saved, 0, sizeof app.saved);
}
