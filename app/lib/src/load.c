/* Reads a rank's file: its table, whether all is as it was written, and the data of single blocks. Files may be truncated or edited: counts and
 * lengths are checked before they are used. The manifest's digest decides.
 *
 * Before HDF5 sees a file its seal has been compared with all but data that a hash of their own covers. What HDF5 then can't read isn't damage, but memory, permission, a disk or a
 * plug-in (MEND_APP_SYSTEM, MEND_APP_REFUSED): nobody may set the file aside for it. Damage (MEND_APP_DAMAGED) is where bytes were read, and their hash differs. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { MOST_BLOCKS = 1 << 24, PIECE_BYTES = 1 << 18 };

static hid_t open_file(const char *path) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    /* Not every parallel file system has locks; the directory has one. */
    H5Pset_file_locking(access, false, true);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    return file;
}

static bool read_text(hid_t at, const char *name, char **into) {
    hid_t made = H5Aopen(at, name, H5P_DEFAULT);
    if (made < 0)
        return false;
    hid_t type = H5Aget_type(made);
    bool good = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
    size_t size = good ? H5Tget_size(type) : 0;
    good = good && size > 0 && size < (1 << 20);
    if (good) {
        free(*into);
        *into = must_alloc(size + 1);
        good = H5Aread(made, type, *into) >= 0;
    }
    H5Tclose(type);
    H5Aclose(made);
    return good;
}

static bool read_numbers(hid_t at, const char *name, uint64_t *into, hssize_t count) {
    hid_t made = H5Aopen(at, name, H5P_DEFAULT);
    if (made < 0)
        return false;
    hid_t space = H5Aget_space(made);
    bool good = H5Sget_simple_extent_npoints(space) == count && H5Aread(made, H5T_NATIVE_UINT64, into) >= 0;
    H5Sclose(space);
    H5Aclose(made);
    return good;
}

static bool read_number(hid_t at, const char *name, uint64_t *into) {
    return read_numbers(at, name, into, 1);
}

static bool read_header(hid_t file, struct table *t, char error[TEXT]) {
    hid_t group = H5Gopen2(file, "Header", H5P_DEFAULT);
    uint64_t format = 0, rank = 0, ranks = 0, taken = 0;
    bool good = group >= 0 && read_number(group, "Format", &format);
    if (good && format != FORMAT_VERSION) {
        snprintf(error, TEXT, "it has format %" PRIu64 ", and this library reads format %d: use the library that wrote it", format, FORMAT_VERSION);
        good = false;
    }
    good = good && read_number(group, "Rank", &rank) && read_number(group, "Ranks", &ranks) && read_number(group, "Checkpoint", &t->checkpoint) && read_number(group, "Call", &t->call) && read_number(group, "Taken", &taken) && read_text(group, "Program", &t->program) && read_text(group, "Contexts", &t->where) && read_text(group, "Machine", &t->machine);
    t->rank = (uint32_t)rank;
    t->ranks = (uint32_t)ranks;
    t->taken = (int64_t)taken;
    if (group >= 0)
        H5Gclose(group);
    return good;
}

static size_t members(hid_t group) {
    H5G_info_t info;
    return H5Gget_info(group, &info) >= 0 && info.nlinks < MOST_BLOCKS ? (size_t)info.nlinks : 0;
}

static bool read_files(hid_t file, struct table *t) {
    hid_t map = H5Gopen2(file, "FileMap", H5P_DEFAULT);
    if (map < 0)
        return false;
    size_t count = members(map);
    bool good = true;
    t->files = must_alloc(count * sizeof *t->files);
    for (size_t i = 0; i < count && good; i++) {
        char name[32];
        uint64_t position = 0, length = 0;
        snprintf(name, sizeof name, "%zu", i);
        hid_t group = H5Gopen2(map, name, H5P_DEFAULT);
        struct saved_file *f = &t->files[t->files_count++];
        good = group >= 0 && read_text(group, "Name", &f->name) && read_text(group, "Path", &f->path) && read_text(group, "Mode", &f->mode) && read_number(group, "Position", &position);
        f->position = (int64_t)position;
        bool has_length = good && H5Aexists(group, "Length") > 0;
        good = good && (!has_length || read_number(group, "Length", &length));
        f->length = has_length ? (int64_t)length : -1;
        if (group >= 0)
            H5Gclose(group);
    }
    H5Gclose(map);
    return good;
}

struct walk {
    struct table *t;
    bool good;
};

/* Contexts in the order in which they were made: that of the digest. */
static herr_t read_context(hid_t parent, const char *name, const H5L_info2_t *link, void *data) {
    struct walk *walk = data;
    if (link->type != H5L_TYPE_HARD)
        return 0;
    hid_t group = H5Gopen2(parent, name, H5P_DEFAULT);
    struct table *t = walk->t;
    uint64_t active = 0;
    if (group < 0 || t->contexts_count >= MOST_BLOCKS) {
        walk->good = false;
        return 1;
    }
    t->contexts = must_grow(t->contexts, t->contexts_count * sizeof *t->contexts, (t->contexts_count + 1) * sizeof *t->contexts);
    struct saved_context *c = &t->contexts[t->contexts_count++];
    walk->good = walk->good && read_text(group, "Path", &c->path) && read_number(group, "Entered", &c->entered) && read_number(group, "Active", &active);
    c->active = active != 0;
    H5Literate2(group, H5_INDEX_NAME, H5_ITER_INC, NULL, read_context, walk);
    H5Gclose(group);
    return walk->good ? 0 : 1;
}

static bool read_contexts(hid_t file, struct table *t) {
    struct walk walk = {t, true};
    hid_t group = H5Gopen2(file, "Context", H5P_DEFAULT);
    if (group < 0)
        return false;
    H5Literate2(group, H5_INDEX_NAME, H5_ITER_INC, NULL, read_context, &walk);
    H5Gclose(group);
    return walk.good;
}

static bool read_indices(hid_t blocks, struct block *b, uint64_t number, int d) {
    char name[64];
    snprintf(name, sizeof name, "%" PRIu64 ".indices.%d", number, d);
    hid_t dataset = H5Dopen2(blocks, name, H5P_DEFAULT);
    if (dataset < 0)
        return false;
    hid_t space = H5Dget_space(dataset);
    bool good = H5Sget_simple_extent_npoints(space) == (hssize_t)b->dimension[d].extent;
    if (good) {
        b->dimension[d].indices = must_alloc(b->dimension[d].extent * sizeof(uint64_t));
        good = b->dimension[d].extent == 0 || H5Dread(dataset, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, b->dimension[d].indices) >= 0;
    }
    H5Sclose(space);
    H5Dclose(dataset);
    return good;
}

static bool read_distribution(hid_t dataset, struct block *b) {
    uint64_t parts[MEND_APP_DIMENSIONS][9] = {{0}};
    if (H5Aexists(dataset, "Distribution") <= 0) {
        b->elements = 1;
        return true;
    }
    hid_t made = H5Aopen(dataset, "Distribution", H5P_DEFAULT), space = H5Aget_space(made);
    hssize_t points = H5Sget_simple_extent_npoints(space);
    bool good = points > 0 && points % 9 == 0 && points / 9 <= MEND_APP_DIMENSIONS && H5Aread(made, H5T_NATIVE_UINT64, parts) >= 0;
    H5Sclose(space);
    H5Aclose(made);
    b->dimensions = good ? (int)(points / 9) : 0;
    b->elements = 1;
    for (int d = 0; d < b->dimensions && good; d++) {
        const uint64_t *x = parts[d];
        b->dimension[d] = (struct dimension){.kind = (uint32_t)x[0], .extent = x[1], .global = x[2], .first = x[3], .count = x[4], .start = x[5], .block = x[6], .part = x[7], .parts = x[8]};
        good = x[0] <= MEND_APP_LIST && x[3] <= x[1] && x[4] <= x[1] - x[3] && !__builtin_mul_overflow(b->elements, x[1], &b->elements) && b->elements < (UINT64_C(1) << 56);
        good = good && (x[0] != MEND_APP_CYCLIC || (x[6] > 0 && x[8] > 0));
    }
    return good;
}

/* Whether the dataset's space holds as many elements as the table says. */
static bool space_agrees(hid_t dataset, const struct block *b) {
    hid_t space = H5Dget_space(dataset);
    bool good = b->alias >= 0 ? H5Sget_simple_extent_type(space) == H5S_NULL : H5Sget_simple_extent_npoints(space) == (hssize_t)b->elements;
    H5Sclose(space);
    return good;
}

static const char *filter_name(H5Z_filter_t filter) {
    return filter == ZSTD_FILTER ? " (zstd)" : filter == LZ4_FILTER ? " (lz4)" : filter == H5Z_FILTER_DEFLATE ? " (deflate)" : "";
}

/* Filters that the writer had by plug-ins. Without one no copy of the file can be read. */
static bool filters_there(hid_t dataset, const struct block *b, char error[TEXT]) {
    hid_t properties = H5Dget_create_plist(dataset);
    int count = H5Pget_nfilters(properties);
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        unsigned flags, config;
        size_t values = 0;
        H5Z_filter_t filter = H5Pget_filter2(properties, (unsigned)i, &flags, &values, NULL, 0, NULL, &config);
        good = filter < 0 || H5Zfilter_avail(filter) > 0;
        if (!good)
            snprintf(error, TEXT, "`%.200s` is compressed by filter %d%s, for which HDF5 finds no plug-in here: name its directory in HDF5_PLUGIN_PATH", b->name, (int)filter, filter_name(filter));
    }
    H5Pclose(properties);
    return good;
}

/* A block as in an older checkpoint: where its data are, as far as their file has been found. */
static void find_link(hid_t blocks, const char *name, const struct table *t, struct block *b) {
    H5L_info2_t link;
    char value[TEXT];
    const char *file, *object;
    unsigned flags;
    uint64_t checkpoint, as;
    if (t->ancestors_count == 0 || H5Lget_info2(blocks, name, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_EXTERNAL || link.u.val_size > sizeof value)
        return;
    if (H5Lget_val(blocks, name, value, sizeof value, H5P_DEFAULT) < 0 || H5Lunpack_elink_val(value, link.u.val_size, &flags, &file, &object) < 0)
        return;
    if (sscanf(file, "../checkpoint-%" SCNu64 "/", &checkpoint) != 1 || sscanf(object, "/MemBlocks/%" SCNu64, &as) != 1)
        return;
    for (size_t i = 0; i < t->ancestors_count; i++)
        if (t->ancestors[i].checkpoint == checkpoint && t->ancestors[i].path) {
            b->held_in = &t->ancestors[i];
            b->held_by = checkpoint;
            b->held_as = as;
        }
}

static hid_t open_numbered(hid_t file, uint64_t number) {
    char name[48];
    snprintf(name, sizeof name, "/MemBlocks/%" PRIu64, number);
    return H5Dopen2(file, name, H5P_DEFAULT);
}

static const char *holder(const char *path, const struct block *b) {
    return b->held_in ? b->held_in->path : path;
}

/* A block in the file that holds its data; that file, too, is to be closed. */
static hid_t open_block(const char *path, const struct block *b, uint64_t number, hid_t *file) {
    *file = open_file(holder(path, b));
    return *file >= 0 ? open_numbered(*file, b->held_in ? b->held_as : number) : H5I_INVALID_HID;
}

static bool read_block(hid_t blocks, struct table *t, size_t number, char error[TEXT]) {
    char name[32], *type_name = NULL, *whose = NULL;
    uint64_t alias = 0;
    snprintf(name, sizeof name, "%zu", number);
    struct block *b = table_block(t);
    find_link(blocks, name, t, b);
    hid_t elsewhere = H5I_INVALID_HID;
    hid_t dataset = b->held_in ? open_block(NULL, b, number, &elsewhere) : H5Dopen2(blocks, name, H5P_DEFAULT);
    if (dataset < 0) {
        snprintf(error, TEXT, "block %zu can't be read, or the file that it links to", number);
        if (elsewhere >= 0)
            H5Fclose(elsewhere);
        return false;
    }
    bool good = read_text(dataset, "Name", &b->name) && read_text(dataset, "Context", &b->context) && read_text(dataset, "Type", &type_name) && read_text(dataset, "Whose", &whose) && read_numbers(dataset, "Hash", b->hash, 2);
    b->type = good ? element_type_by_name(type_name) : 0;
    b->whose = good && whose[0] == 's' ? WHOSE_SPREAD : good && whose[0] == 'r' ? MEND_APP_REPLICATED : MEND_APP_PRIVATE;
    good = good && b->type != 0 && read_distribution(dataset, b);
    if (good && H5Aexists(dataset, "AliasOf") > 0) {
        good = read_number(dataset, "AliasOf", &alias) && read_number(dataset, "Offset", &b->offset) && alias < MOST_BLOCKS;
        b->alias = (int64_t)alias;
    }
    hid_t type = H5Dget_type(dataset);
    b->size = H5Tget_size(type);
    H5Tclose(type);
    good = good && b->size > 0 && b->size <= 64 && space_agrees(dataset, b);
    for (int d = 0; good && d < b->dimensions; d++)
        if (b->dimension[d].kind == MEND_APP_LIST)
            good = read_indices(blocks, b, number, d);
    H5Dclose(dataset);
    if (elsewhere >= 0)
        H5Fclose(elsewhere);
    free(type_name);
    free(whose);
    if (!b->name)
        b->name = must_copy("");
    if (!b->context)
        b->context = must_copy("");
    return good;
}

/* The table of an open file, which is closed. Under hdf5_lock(). */
static struct table *load(hid_t file, struct table *t, const char *name, char error[TEXT]) {
    char why[TEXT] = "";
    bool good = file >= 0;
    if (!good)
        hdf5_message(why);
    good = good && read_header(file, t, why) && read_files(file, t) && read_contexts(file, t);
    hid_t blocks = good ? H5Gopen2(file, "MemBlocks", H5P_DEFAULT) : H5I_INVALID_HID;
    size_t links = blocks >= 0 ? members(blocks) : 0, lists = 0;
    good = good && blocks >= 0;
    for (size_t i = 0; good && t->blocks_count + lists < links; i++) {
        good = read_block(blocks, t, i, why);
        for (int d = 0; good && d < t->blocks[i].dimensions; d++)
            lists += t->blocks[i].dimension[d].kind == MEND_APP_LIST;
    }
    for (size_t i = 0; good && i < t->blocks_count; i++)
        good = t->blocks[i].alias < (int64_t)t->blocks_count;
    if (blocks >= 0)
        H5Gclose(blocks);
    if (file >= 0)
        H5Fclose(file);
    if (good)
        return t;
    snprintf(error, TEXT, "%.500s: %.400s", name, why[0] ? why : "it isn't a rank's file, or damaged");
    table_free(t);
    return NULL;
}

struct table *rank_file_load(const char *path, struct table *into, char error[TEXT]) {
    hdf5_lock();
    struct table *t = load(open_file(path), into ? into : table_new(), path, error);
    hdf5_unlock();
    return t;
}

struct table *rank_file_load_outline(struct image *image, char error[TEXT]) {
    hdf5_lock();
    struct table *t = load(image_open(image), table_new(), "the table of variables", error);
    hdf5_unlock();
    return t;
}

/* Rows of the first dimension of an open block; a scalar has one. `type` 0: as it is in the file. `stream`, or NULL, takes the bytes of the file. */
static int read_rows(hid_t dataset, const struct block *b, int type, uint64_t first, uint64_t count, void *into, struct stream *stream, char error[TEXT]) {
    uint64_t row = b->dimensions && b->dimension[0].extent ? b->elements / b->dimension[0].extent : 1, elements = count * row;
    hid_t in_file = H5Dget_type(dataset), wanted = type ? element_memory_type(type) : H5Tcopy(in_file), space = H5Dget_space(dataset);
    hsize_t at[MEND_APP_DIMENSIONS] = {first}, extents[MEND_APP_DIMENSIONS] = {count}, length = elements;
    for (int d = 1; d < b->dimensions; d++)
        extents[d] = b->dimension[d].extent;
    bool whole = b->dimensions == 0 || (first == 0 && count == b->dimension[0].extent);
    bool good = whole || H5Sselect_hyperslab(space, H5S_SELECT_SET, at, NULL, extents, NULL) >= 0;
    hid_t memory = H5Screate_simple(1, &length, NULL);
    bool same = H5Tequal(in_file, wanted) > 0;
    int done = MEND_APP_SYSTEM;
    error[0] = 0;
    /* Without conversion straight to where it belongs. Else with the file's type, then converted where it must be exact. */
    if (good && elements == 0) {
        done = 0;
    } else if (good && (same || H5Tget_size(in_file) <= H5Tget_size(wanted))) {
        good = H5Dread(dataset, same ? wanted : in_file, memory, space, H5P_DEFAULT, into) >= 0;
        if (good && stream)
            hash_more(stream, into, elements * H5Tget_size(in_file));
        done = good ? (same ? 0 : elements_convert(in_file, type, elements, into, error)) : MEND_APP_SYSTEM;
    } else if (good) {
        void *larger = must_alloc(elements * H5Tget_size(in_file));
        good = H5Dread(dataset, in_file, memory, space, H5P_DEFAULT, larger) >= 0;
        if (good && stream)
            hash_more(stream, larger, elements * H5Tget_size(in_file));
        done = good ? elements_convert(in_file, type, elements, larger, error) : MEND_APP_SYSTEM;
        if (done == 0)
            memcpy(into, larger, elements * H5Tget_size(wanted));
        free(larger);
    }
    H5Sclose(memory);
    H5Sclose(space);
    H5Tclose(wanted);
    H5Tclose(in_file);
    return done;
}

static int unreadable(const char *path, const struct block *b, char error[TEXT]) {
    char why[TEXT];
    hdf5_message(why);
    snprintf(error, TEXT, "%.400s: `%.100s` can't be read: %.300s", holder(path, b), b->name, why);
    return MEND_APP_SYSTEM;
}

int block_read_rows(const char *path, const struct block *b, uint64_t number, int type, uint64_t first, uint64_t count, void *into, char error[TEXT]) {
    int done = MEND_APP_SYSTEM;
    error[0] = 0;
    hdf5_lock();
    hid_t file, dataset = open_block(path, b, number, &file);
    if (dataset >= 0 && space_agrees(dataset, b))
        done = filters_there(dataset, b, error) ? read_rows(dataset, b, type, first, count, into, NULL, error) : MEND_APP_REFUSED;
    if (done != 0 && !error[0])
        unreadable(path, b, error);
    if (dataset >= 0)
        H5Dclose(dataset);
    if (file >= 0)
        H5Fclose(file);
    hdf5_unlock();
    return done;
}

/* Bytes of a block that lie in one piece in a file are read past HDF5, in pieces that are hashed while they are in the processor's cache: into memory, or with `into`
 * NULL only to be hashed. False: they don't, or can't be read. */
static bool read_directly(hid_t dataset, const struct block *b, unsigned char *into, struct stream *stream) {
    haddr_t offset = H5Dget_offset(dataset);
    char file[2 * TEXT];
    uint64_t bytes = b->elements * b->size;
    if (offset == HADDR_UNDEF || H5Fget_name(dataset, file, sizeof file) <= 0)
        return false;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    void *scratch = into ? NULL : must_alloc(PIECE_BYTES);
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        void *to = into ? into + done : scratch;
        ssize_t got = pread(fd, to, piece, (off_t)(offset + done));
        if (got <= 0)
            break;
        hash_more(stream, to, (size_t)got);
        done += (uint64_t)got;
    }
    close(fd);
    free(scratch);
    return done == bytes;
}

static int compare_hash(struct stream *stream, const struct block *b, const char *path, char error[TEXT]) {
    uint64_t hash[2];
    hash_end(stream, hash);
    if (hash[0] == b->hash[0] && hash[1] == b->hash[1])
        return 0;
    snprintf(error, TEXT, "%.600s: `%.200s` isn't what was written: its hash differs", holder(path, b), b->name);
    return MEND_APP_DAMAGED;
}

int block_read(const char *path, const struct block *b, uint64_t number, int type, void *into, bool verify, char error[TEXT]) {
    uint64_t rows = b->dimensions ? b->dimension[0].extent : 1;
    if (!verify)
        return block_read_rows(path, b, number, type, 0, rows, into, error);
    hdf5_lock();
    hid_t file, dataset = open_block(path, b, number, &file);
    struct stream *stream = hash_start();
    int done = MEND_APP_SYSTEM;
    error[0] = 0;
    if (dataset >= 0 && !filters_there(dataset, b, error)) {
        done = MEND_APP_REFUSED;
    } else if (dataset >= 0 && space_agrees(dataset, b)) {
        hid_t in_file = H5Dget_type(dataset), wanted = element_memory_type(type);
        bool same = H5Tequal(in_file, wanted) > 0;
        H5Tclose(wanted);
        H5Tclose(in_file);
        if (same && read_directly(dataset, b, into, stream)) {
            done = 0;
        } else {
            uint64_t ignored[2];
            hash_end(stream, ignored);
            stream = hash_start();
            done = read_rows(dataset, b, type, 0, rows, into, stream, error);
        }
    }
    if (done != 0 && !error[0])
        unreadable(path, b, error);
    int compared = compare_hash(stream, b, path, done ? (char[TEXT]){0} : error);
    if (dataset >= 0)
        H5Dclose(dataset);
    if (file >= 0)
        H5Fclose(file);
    hdf5_unlock();
    return done ? done : compared;
}

static int verify_block(hid_t dataset, const struct block *b, const char *path, char error[TEXT]) {
    uint64_t rows = b->dimensions ? b->dimension[0].extent : 1, bytes = b->elements * b->size, row = rows ? bytes / rows : 0, ignored[2];
    uint64_t step = row && row < PIECE_BYTES ? PIECE_BYTES / row : 1;
    step = step > rows ? rows : step;
    if (!filters_there(dataset, b, error))
        return MEND_APP_REFUSED;
    struct stream *stream = hash_start();
    if (read_directly(dataset, b, NULL, stream))
        return compare_hash(stream, b, path, error);
    hash_end(stream, ignored);
    stream = hash_start();
    void *piece = must_alloc(step * row);
    int done = 0;
    for (uint64_t first = 0; first < rows && done == 0; first += step)
        done = read_rows(dataset, b, 0, first, rows - first < step ? rows - first : step, piece, stream, error);
    free(piece);
    if (done != 0) {
        hash_end(stream, ignored);
        return error[0] ? done : unreadable(path, b, error);
    }
    return compare_hash(stream, b, path, error);
}

int rank_file_verify(const struct table *t, const char *path, const struct block **bad, char error[TEXT]) {
    int done = 0;
    *bad = NULL;
    hdf5_lock();
    hid_t file = open_file(path);
    for (size_t i = 0; i < t->blocks_count && done == 0; i++) {
        const struct block *b = &t->blocks[i];
        if (b->alias >= 0)
            continue;
        hid_t elsewhere = H5I_INVALID_HID, dataset = H5I_INVALID_HID;
        if (b->held_in)
            dataset = open_block(path, b, i, &elsewhere);
        else if (file >= 0)
            dataset = open_numbered(file, i);
        done = dataset >= 0 ? verify_block(dataset, b, path, error) : unreadable(path, b, error);
        if (done)
            *bad = b;
        if (dataset >= 0)
            H5Dclose(dataset);
        if (elsewhere >= 0)
            H5Fclose(elsewhere);
    }
    if (file >= 0)
        H5Fclose(file);
    hdf5_unlock();
    return done;
}
