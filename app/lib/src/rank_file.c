/* One rank's file, in HDF5:
 *
 *   /Header          attributes: format, libraries, machine, rank, number of the checkpoint, call, program, contexts
 *   /FileMap/N       an open file: name, path, mode, position, length
 *   /Context/main()/solve()/u   contexts as groups (they were entered so often; were active), variables as links to their blocks
 *   /MemBlocks/N     the data of a variable, with its type, distribution and hash; an alias is an empty dataset
 *   /MemBlocks/N.indices.D      global indices of dimension D
 *
 * Blocks as in an older checkpoint are external links to its file. Of an array parts that are zero are left out: HDF5 reads them as
 * zero. Metadata is in HDF5's format of release 1.10, which has checksums.
 *
 * Threads: everything under hdf5_lock(), since HDF5 is built without its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { CHUNK_BYTES = 1 << 20, COMPACT_BYTES = 1024, SEALED_BYTES = 1 << 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What HDF5 said of the first failure since hdf5_lock(): its own innermost word, which has the system's in it. Later calls forget it. */
static char failure[TEXT];

static herr_t innermost(unsigned n, const H5E_error2_t *e, void *into) {
    if (n == 0 && e->desc && *e->desc)
        snprintf(into, TEXT, "%s", e->desc);
    return 0;
}

static herr_t remember(hid_t stack, void *unused) {
    (void)unused;
    if (!failure[0])
        H5Ewalk2(stack, H5E_WALK_UPWARD, innermost, failure);
    return 0;
}

void hdf5_message(char into[TEXT]) {
    snprintf(into, TEXT, "%s", failure[0] ? failure : "HDF5 doesn't say why");
}

void hdf5_lock(void) {
    static bool opened;
    pthread_mutex_lock(&lock);
    if (!opened) {
        H5dont_atexit();
        H5open();
        H5Eset_auto2(H5E_DEFAULT, remember, NULL);
        opened = true;
    }
    failure[0] = 0;
}

void hdf5_unlock(void) {
    pthread_mutex_unlock(&lock);
}

static void attribute(hid_t at, const char *name, hid_t type, int dimensions, const hsize_t *extents, const void *value, bool *good) {
    hid_t space = dimensions ? H5Screate_simple(dimensions, extents, NULL) : H5Screate(H5S_SCALAR);
    hid_t made = H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    *good = *good && made >= 0 && H5Awrite(made, type, value) >= 0;
    H5Aclose(made);
    H5Sclose(space);
}

static void text_attribute(hid_t at, const char *name, const char *text, bool *good) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, strlen(text) + 1);
    H5Tset_cset(type, H5T_CSET_UTF8);
    attribute(at, name, type, 0, NULL, text, good);
    H5Tclose(type);
}

static void number_attribute(hid_t at, const char *name, uint64_t number, bool *good) {
    attribute(at, name, H5T_NATIVE_UINT64, 0, NULL, &number, good);
}

static void write_header(hid_t file, const struct table *t, bool *good) {
    unsigned major, minor, release;
    char hdf5[48];
    H5get_libversion(&major, &minor, &release);
    snprintf(hdf5, sizeof hdf5, "%u.%u.%u", major, minor, release);
    hid_t group = H5Gcreate2(file, "Header", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    number_attribute(group, "Format", FORMAT_VERSION, good);
    text_attribute(group, "Library", MEND_APP_VERSION, good);
    text_attribute(group, "HDF5", hdf5, good);
    text_attribute(group, "Machine", t->machine, good);
    text_attribute(group, "Program", t->program, good);
    text_attribute(group, "Contexts", t->where, good);
    number_attribute(group, "Rank", t->rank, good);
    number_attribute(group, "Ranks", t->ranks, good);
    number_attribute(group, "Checkpoint", t->checkpoint, good);
    number_attribute(group, "Call", t->call, good);
    number_attribute(group, "Taken", (uint64_t)t->taken, good);
    *good = *good && group >= 0;
    H5Gclose(group);
}

static void write_files(hid_t file, const struct table *t, bool *good) {
    hid_t map = H5Gcreate2(file, "FileMap", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (size_t i = 0; i < t->files_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "%zu", i);
        hid_t group = H5Gcreate2(map, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        text_attribute(group, "Name", t->files[i].name, good);
        text_attribute(group, "Path", t->files[i].path, good);
        text_attribute(group, "Mode", t->files[i].mode, good);
        number_attribute(group, "Position", (uint64_t)t->files[i].position, good);
        number_attribute(group, "Length", (uint64_t)t->files[i].length, good);
        *good = *good && group >= 0;
        H5Gclose(group);
    }
    H5Gclose(map);
}

/* "main/solve" as "Context/main()/solve()". */
static void group_path(char *into, size_t room, const char *context) {
    size_t length = (size_t)snprintf(into, room, "Context%s", *context ? "/" : "");
    for (const char *c = context; *c && length + 4 < room; c++) {
        if (*c == '/') {
            into[length++] = '(';
            into[length++] = ')';
        }
        into[length++] = *c;
    }
    snprintf(into + length, room - length, "%s", *context ? "()" : "");
}

static void write_contexts(hid_t file, const struct table *t, bool *good) {
    char path[8 * TEXT], target[64];
    H5Gclose(H5Gcreate2(file, "Context", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    for (size_t i = 0; i < t->contexts_count; i++) {
        group_path(path, sizeof path, t->contexts[i].path);
        hid_t group = H5Gcreate2(file, path, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        text_attribute(group, "Path", t->contexts[i].path, good);
        number_attribute(group, "Entered", t->contexts[i].entered, good);
        number_attribute(group, "Active", t->contexts[i].active, good);
        *good = *good && group >= 0;
        H5Gclose(group);
    }
    for (size_t i = 0; i < t->blocks_count; i++) {
        group_path(path, sizeof path, t->blocks[i].context);
        size_t length = strlen(path);
        snprintf(path + length, sizeof path - length, "/%s", t->blocks[i].name);
        snprintf(target, sizeof target, "/MemBlocks/%zu", i);
        *good = *good && H5Lcreate_soft(target, file, path, H5P_DEFAULT, H5P_DEFAULT) >= 0;
    }
}

/* Chunks that lie in one piece in memory: [1, ..., 1, rows, all, ..., all]. Returns the dimension that is cut. */
static int chunk_shape(const struct block *b, hsize_t *chunk) {
    uint64_t inner = b->size;
    int cut = b->dimensions - 1;
    while (cut > 0 && inner * b->dimension[cut].extent <= CHUNK_BYTES)
        inner *= b->dimension[cut--].extent;
    for (int d = 0; d < b->dimensions; d++)
        chunk[d] = d < cut ? 1 : b->dimension[d].extent;
    uint64_t rows = CHUNK_BYTES / inner ? CHUNK_BYTES / inner : 1;
    if (rows < chunk[cut])
        chunk[cut] = rows;
    return cut;
}

/* One chunk's place, memory and length; visits all. */
struct chunks {
    const struct block *b;
    int cut;
    hsize_t shape[MEND_APP_DIMENSIONS], at[MEND_APP_DIMENSIONS];
    uint64_t inner, outer, outers; /* bytes of a row; which of the leading index tuples */
    const unsigned char *data;
    uint64_t bytes;
};

static bool next_chunk(struct chunks *c) {
    const struct block *b = c->b;
    if (c->data) {
        c->at[c->cut] += c->shape[c->cut];
        if (c->at[c->cut] >= b->dimension[c->cut].extent) {
            c->at[c->cut] = 0;
            c->outer++;
        }
    } else {
        c->cut = chunk_shape(b, c->shape);
        c->inner = b->size;
        c->outers = 1;
        for (int d = 0; d < b->dimensions; d++) {
            if (d > c->cut)
                c->inner *= b->dimension[d].extent;
            else if (d < c->cut)
                c->outers *= b->dimension[d].extent;
        }
    }
    if (c->outer >= c->outers)
        return false;
    uint64_t rest = c->outer;
    for (int d = c->cut - 1; d >= 0; d--) {
        c->at[d] = rest % b->dimension[d].extent;
        rest /= b->dimension[d].extent;
    }
    uint64_t left = b->dimension[c->cut].extent - c->at[c->cut], rows = left < c->shape[c->cut] ? left : c->shape[c->cut];
    c->data = (const unsigned char *)b->data + (c->outer * b->dimension[c->cut].extent + c->at[c->cut]) * c->inner;
    c->bytes = rows * c->inner;
    return true;
}

static bool set_filters(hid_t properties, const struct settings *s, char error[TEXT]) {
    if (strcmp(s->compress, "none") == 0)
        return true;
    if (s->shuffle && H5Pset_shuffle(properties) < 0)
        return false;
    if (strncmp(s->compress, "deflate", 7) == 0)
        return H5Pset_deflate(properties, s->compress[7] == ':' ? (unsigned)(s->compress[8] - '0') : 4) >= 0;
    H5Z_filter_t filter = strcmp(s->compress, "zstd") == 0 ? ZSTD_FILTER : LZ4_FILTER;
    if (H5Zfilter_avail(filter) <= 0) {
        snprintf(error, TEXT, "compress = %s: HDF5 finds no plug-in for filter %d: name its directory in HDF5_PLUGIN_PATH, or set compress = deflate", s->compress, filter);
        return false;
    }
    return H5Pset_filter(properties, filter, H5Z_FLAG_MANDATORY, 0, NULL) >= 0;
}

static bool write_chunks(hid_t dataset, const struct block *b, hid_t type, bool filtered) {
    struct chunks c = {.b = b};
    unsigned char *padded = NULL;
    bool good = true;
    while (good && next_chunk(&c)) {
        uint64_t whole = c.shape[c.cut] * c.inner;
        if (all_zero(c.data, c.bytes))
            continue;
        if (filtered) {
            hsize_t count[MEND_APP_DIMENSIONS], length = c.bytes / b->size;
            memcpy(count, c.shape, sizeof count);
            count[c.cut] = c.bytes / c.inner;
            hid_t file_space = H5Dget_space(dataset), memory_space = H5Screate_simple(1, &length, NULL);
            good = H5Sselect_hyperslab(file_space, H5S_SELECT_SET, c.at, NULL, count, NULL) >= 0 && H5Dwrite(dataset, type, memory_space, file_space, H5P_DEFAULT, c.data) >= 0;
            H5Sclose(file_space);
            H5Sclose(memory_space);
        } else if (c.bytes == whole) {
            good = H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, c.at, whole, c.data) >= 0;
        } else {
            if (!padded)
                padded = must_alloc(whole);
            memset(padded, 0, whole);
            memcpy(padded, c.data, c.bytes);
            good = H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, c.at, whole, padded) >= 0;
        }
    }
    free(padded);
    return good;
}

static bool has_zero_chunk(const struct block *b) {
    struct chunks c = {.b = b};
    while (next_chunk(&c))
        if (all_zero(c.data, c.bytes))
            return true;
    return false;
}

static void block_attributes(hid_t dataset, const struct block *b, bool *good) {
    static const char *const whose[] = {"private", "replicated", "spread"};
    text_attribute(dataset, "Name", b->name, good);
    text_attribute(dataset, "Context", b->context, good);
    text_attribute(dataset, "Type", element_name(b->type), good);
    text_attribute(dataset, "Whose", whose[b->whose], good);
    hsize_t shape[2] = {(hsize_t)b->dimensions, 9}, two = 2;
    if (b->dimensions) {
        uint64_t parts[MEND_APP_DIMENSIONS][9];
        for (int d = 0; d < b->dimensions; d++) {
            const struct dimension *x = &b->dimension[d];
            const uint64_t values[] = {x->kind, x->extent, x->global, x->first, x->count, x->start, x->block, x->part, x->parts};
            memcpy(parts[d], values, sizeof values);
        }
        attribute(dataset, "Distribution", H5T_NATIVE_UINT64, 2, shape, parts, good);
    }
    attribute(dataset, "Hash", H5T_NATIVE_UINT64, 1, &two, b->hash, good);
    if (b->alias >= 0) {
        number_attribute(dataset, "AliasOf", (uint64_t)b->alias, good);
        number_attribute(dataset, "Offset", b->offset, good);
    }
}

static bool write_indices(hid_t blocks, const struct block *b, uint64_t number) {
    bool good = true;
    for (int d = 0; d < b->dimensions && good; d++) {
        const struct dimension *x = &b->dimension[d];
        if (x->kind != MEND_APP_LIST)
            continue;
        char name[64];
        hsize_t length = x->extent;
        snprintf(name, sizeof name, "%" PRIu64 ".indices.%d", number, d);
        hid_t space = H5Screate_simple(1, &length, NULL);
        hid_t made = H5Dcreate2(blocks, name, H5T_NATIVE_UINT64, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        good = made >= 0 && (length == 0 || H5Dwrite(made, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, x->indices) >= 0);
        H5Dclose(made);
        H5Sclose(space);
    }
    return good;
}

static bool write_block(hid_t blocks, const struct table *t, size_t number, const struct settings *s, char error[TEXT]) {
    struct block *b = &t->blocks[number];
    char name[32];
    bool good = true;
    snprintf(name, sizeof name, "%zu", number);
    if (b->held_by != t->checkpoint) {
        char file[TEXT], object[64];
        snprintf(file, sizeof file, "../checkpoint-%06" PRIu64 "/rank-%05" PRIu32 ".h5", b->held_by, t->rank);
        snprintf(object, sizeof object, "/MemBlocks/%" PRIu64, b->held_as);
        good = H5Lcreate_external(file, object, blocks, name, H5P_DEFAULT, H5P_DEFAULT) >= 0;
        return good && write_indices(blocks, b, number);
    }
    hsize_t extents[MEND_APP_DIMENSIONS];
    for (int d = 0; d < b->dimensions; d++)
        extents[d] = b->dimension[d].extent;
    uint64_t bytes = b->elements * b->size;
    hid_t type = element_memory_type(b->type), properties = H5Pcreate(H5P_DATASET_CREATE);
    hid_t space = b->alias >= 0 ? H5Screate(H5S_NULL) : b->dimensions ? H5Screate_simple(b->dimensions, extents, NULL) : H5Screate(H5S_SCALAR);
    bool data = b->has_data && bytes > 0, filtered = strcmp(s->compress, "none") != 0 && bytes > COMPACT_BYTES;
    bool chunked = data && b->dimensions && bytes > COMPACT_BYTES && (filtered || has_zero_chunk(b));
    H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
    if (b->zero || chunked)
        H5Pset_fill_time(properties, H5D_FILL_TIME_IFSET);
    if (chunked) {
        hsize_t chunk[MEND_APP_DIMENSIONS];
        chunk_shape(b, chunk);
        good = H5Pset_chunk(properties, b->dimensions, chunk) >= 0 && set_filters(properties, s, error);
    } else if (data && bytes <= COMPACT_BYTES) {
        H5Pset_layout(properties, H5D_COMPACT);
    }
    hid_t dataset = good ? H5Dcreate2(blocks, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT) : H5I_INVALID_HID;
    good = good && dataset >= 0;
    if (good)
        block_attributes(dataset, b, &good);
    if (good && chunked)
        good = write_chunks(dataset, b, type, filtered);
    else if (good && data)
        good = H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, b->data) >= 0;
    if (good && data && !chunked && bytes >= SEALED_BYTES) {
        haddr_t at = H5Dget_offset(dataset);
        b->at = at == HADDR_UNDEF ? 0 : at;
    }
    if (dataset >= 0)
        good = H5Dclose(dataset) >= 0 && good;
    H5Sclose(space);
    H5Pclose(properties);
    H5Tclose(type);
    return good && write_indices(blocks, b, number);
}

static bool make_durable(const char *path, uint64_t *bytes) {
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool good = fd >= 0 && fsync(fd) == 0 && fstat(fd, &status) == 0;
    if (good)
        *bytes = (uint64_t)status.st_size;
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    if (!good)
        return false;
    char directory[TEXT];
    snprintf(directory, sizeof directory, "%s", path);
    *strrchr(directory, '/') = 0;
    return sync_directory(directory) == 0;
}

static bool write_all(hid_t file, struct table *t, const struct settings *s, char error[TEXT]) {
    bool good = true;
    write_header(file, t, &good);
    write_files(file, t, &good);
    hid_t blocks = H5Gcreate2(file, "MemBlocks", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (size_t i = 0; i < t->blocks_count && good; i++)
        good = write_block(blocks, t, i, s, error);
    H5Gclose(blocks);
    if (good)
        write_contexts(file, t, &good);
    return good;
}

int rank_file_outline(struct table *t, struct image *into, char error[TEXT]) {
    error[0] = 0;
    hdf5_lock();
    hid_t file = image_create(into, 1 << 16);
    bool good = file >= 0 && write_all(file, t, &app.settings, error);
    good = image_close(into, file) == 0 && good;
    if (!good) {
        char why[TEXT];
        hdf5_message(why);
        snprintf(error, TEXT, "the table of variables can't be written: %.800s", why);
        image_free(into);
    }
    hdf5_unlock();
    return good ? 0 : MEND_APP_SYSTEM;
}

int rank_file_write(struct table *t, const char *path, const struct settings *s, uint64_t *bytes, char error[TEXT]) {
    error[0] = 0;
    hdf5_lock();
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    /* Not every parallel file system has locks; the directory has one. */
    H5Pset_file_locking(access, false, true);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    bool good = file >= 0;
    if (good)
        good = write_all(file, t, s, error) && H5Fflush(file, H5F_SCOPE_LOCAL) >= 0;
    if (!good && !error[0]) {
        char why[TEXT];
        hdf5_message(why);
        snprintf(error, TEXT, "%.500s: %.400s", path, why);
    }
    if (file >= 0) {
        /* What can't be written HDF5 keeps for ever, and the file open: let it be written where there is room. */
        int *fd = NULL, elsewhere;
        if (!good && H5Fget_vfd_handle(file, H5P_DEFAULT, (void **)&fd) >= 0 && fd && (elsewhere = memfd_create("mend-app", MFD_CLOEXEC)) >= 0) {
            dup3(elsewhere, *fd, O_CLOEXEC);
            close(elsewhere);
        }
        if (H5Fclose(file) < 0 && good) {
            good = false;
            snprintf(error, TEXT, "%.900s can't be closed", path);
        }
    }
    H5Pclose(access);
    hdf5_unlock();
    if (good)
        good = seal_write(t, path, error) == 0;
    if (good && !make_durable(path, bytes)) {
        good = false;
        snprintf(error, TEXT, "%.900s can't be made durable: %s", path, strerror(errno));
    }
    if (!good) {
        char seal[TEXT];
        seal_path(seal, path);
        unlink(seal);
        unlink(path);
    }
    return good ? 0 : MEND_APP_SYSTEM;
}
