/* Parts of a rank's data as small HDF5 files in memory, for moves: /MemBlocks/N holds elements of block N, flattened. Of a block that is cut they have the attributes
 * of split checkpoint files (Cores et al., Reducing the overhead of an MPI application-level migration approach, 2016): isNotFirstChunk, FragmentTotalElements,
 * PositionOfFragment (in elements). The file's memory is ours, so that HDF5 makes no copy of it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

enum { PIECE_BYTES = 1 << 17, OVERHEAD = 1 << 12, HEADER = 1 << 10, MOST_INCREMENT = 1 << 19 };

/* ---- files in memory ---- */

static void *grow(struct image *image, size_t size) {
    size_t room = size ? size : 1;
    void *made = image->bytes ? mremap(image->bytes, image->room, room, MREMAP_MAYMOVE) : mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    image->bytes = made;
    image->room = room;
    return made;
}

void *image_alloc(struct image *image, size_t length) {
    *image = (struct image){.length = length};
    return grow(image, length);
}

static void *give(size_t size, H5FD_file_image_op_t op, void *data) {
    (void)size, (void)op;
    return ((struct image *)data)->bytes;
}

static void *same(void *to, const void *from, size_t size, H5FD_file_image_op_t op, void *data) {
    (void)op, (void)data;
    return to == from ? to : memcpy(to, from, size);
}

static void *resize(void *at, size_t size, H5FD_file_image_op_t op, void *data) {
    (void)at, (void)op;
    return grow(data, size);
}

static herr_t keep(void *at, H5FD_file_image_op_t op, void *data) {
    (void)at, (void)op, (void)data;
    return 0;
}

static void *same_data(void *data) {
    return data;
}

static herr_t keep_data(void *data) {
    (void)data;
    return 0;
}

static hid_t in_memory(struct image *image, size_t increment) {
    H5FD_file_image_callbacks_t callbacks = {give, same, resize, keep, same_data, keep_data, image};
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_core(access, increment, false);
    H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    H5Pset_file_image_callbacks(access, &callbacks);
    return access;
}

/* HDF5 takes files of one name for the same file, also in memory. */
static const char *unique_name(void) {
    static char name[48];
    static unsigned long count;
    snprintf(name, sizeof name, "in-memory-%lu", ++count);
    return name;
}

hid_t image_create(struct image *image, size_t expected) {
    *image = (struct image){0};
    /* HDF5 clears each increment at once: in small ones, so that messages need not wait for it. */
    hid_t access = in_memory(image, expected < MOST_INCREMENT ? expected : MOST_INCREMENT);
    hid_t file = H5Fcreate(unique_name(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    return file;
}

int image_close(struct image *image, hid_t file) {
    /* Without memory for it HDF5 tells how long it is. */
    ssize_t length = file >= 0 && H5Fflush(file, H5F_SCOPE_LOCAL) >= 0 ? H5Fget_file_image(file, NULL, 0) : -1;
    bool good = length > 0;
    if (file >= 0)
        good = H5Fclose(file) >= 0 && good;
    image->length = good ? (size_t)length : 0;
    return good ? 0 : MEND_APP_SYSTEM;
}

hid_t image_open(struct image *image) {
    hid_t access = in_memory(image, 1 << 16), file = H5I_INVALID_HID;
    if (H5Pset_file_image(access, image->bytes, image->length) >= 0)
        file = H5Fopen(unique_name(), H5F_ACC_RDONLY, access);
    H5Pclose(access);
    return file;
}

void image_free(struct image *image) {
    if (image->bytes)
        munmap(image->bytes, image->room);
    *image = (struct image){0};
}

/* ---- where in the data ---- */

static bool has_data(const struct block *b) {
    return b->alias < 0 && b->elements > 0;
}

struct cursor cursor_settled(const struct table *t, struct cursor at) {
    while (at.block < t->blocks_count && (!has_data(&t->blocks[at.block]) || at.element >= t->blocks[at.block].elements))
        at = (struct cursor){at.block + 1, 0};
    return at;
}

bool cursor_less(struct cursor a, struct cursor b) {
    return a.block != b.block ? a.block < b.block : a.element < b.element;
}

/* How many elements of the block at `at` this fragment takes, which holds `bytes` already; 0: none. */
static uint64_t take(const struct block *b, struct cursor at, uint64_t bytes, const struct settings *s) {
    uint64_t left = b->elements - at.element, room = s->move_chunk > bytes ? s->move_chunk - bytes : 0;
    /* A block alone; or what fits in whole, and what never does alone; or cut where the fragment is full. */
    if (strcmp(s->move_split, "memblock") == 0)
        return bytes == 0 ? left : 0;
    if (strcmp(s->move_split, "dataset") == 0)
        return bytes == 0 || left * b->size <= room ? left : 0;
    uint64_t fits = room / b->size;
    return left < fits ? left : fits;
}

static struct cursor extent(const struct table *t, struct cursor at, const struct settings *s, uint64_t *bytes, uint64_t *datasets) {
    at = cursor_settled(t, at);
    *bytes = *datasets = 0;
    while (at.block < t->blocks_count) {
        const struct block *b = &t->blocks[at.block];
        uint64_t count = take(b, at, *bytes, s);
        if (count == 0 || *datasets == 4096)
            break;
        *bytes += count * b->size;
        ++*datasets;
        at.element += count;
        if (at.element < b->elements)
            break;
        at = cursor_settled(t, at);
    }
    return at;
}

/* ---- writing ---- */

static bool number(hid_t dataset, const char *name, uint64_t value) {
    hid_t space = H5Screate(H5S_SCALAR), made = H5Acreate2(dataset, name, H5T_NATIVE_UINT64, space, H5P_DEFAULT, H5P_DEFAULT);
    bool good = made >= 0 && H5Awrite(made, H5T_NATIVE_UINT64, &value) >= 0;
    H5Aclose(made);
    H5Sclose(space);
    return good;
}

/* In pieces, so that messages move on in between. */
static bool pieces(hid_t dataset, hid_t type, uint64_t size, uint64_t at, uint64_t count, unsigned char *memory, bool writes, void (*between)(void)) {
    uint64_t step = PIECE_BYTES / size ? PIECE_BYTES / size : 1;
    bool good = true;
    for (uint64_t done = 0; done < count && good; done += step) {
        hsize_t from = at + done, many = count - done < step ? count - done : step;
        hid_t space = H5Dget_space(dataset), piece = H5Screate_simple(1, &many, NULL);
        good = H5Sselect_hyperslab(space, H5S_SELECT_SET, &from, NULL, &many, NULL) >= 0;
        if (good && writes)
            good = H5Dwrite(dataset, type, piece, space, H5P_DEFAULT, memory + done * size) >= 0;
        else if (good)
            good = H5Dread(dataset, type, piece, space, H5P_DEFAULT, memory + done * size) >= 0;
        H5Sclose(piece);
        H5Sclose(space);
        between();
    }
    return good;
}

static bool write_part(hid_t blocks, const struct block *b, struct cursor at, uint64_t count, void (*between)(void)) {
    char name[32];
    hsize_t many = count;
    snprintf(name, sizeof name, "%" PRIu64, at.block);
    hid_t type = element_memory_type(b->type), space = H5Screate_simple(1, &many, NULL), properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
    hid_t dataset = H5Dcreate2(blocks, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    bool good = dataset >= 0;
    if (good && count < b->elements)
        good = number(dataset, "isNotFirstChunk", at.element > 0) && number(dataset, "FragmentTotalElements", count) && number(dataset, "PositionOfFragment", at.element);
    good = good && pieces(dataset, type, b->size, 0, count, (unsigned char *)b->data + at.element * b->size, true, between);
    if (dataset >= 0)
        H5Dclose(dataset);
    H5Pclose(properties);
    H5Sclose(space);
    H5Tclose(type);
    return good;
}

int fragment_write(const struct table *t, struct fragment *f, const struct settings *s, void (*between)(void), char error[TEXT]) {
    uint64_t bytes, datasets;
    struct cursor at = f->from = cursor_settled(t, f->from);
    f->to = extent(t, at, s, &bytes, &datasets);
    f->file = 0;
    hdf5_lock();
    hid_t file = image_create(&f->image, bytes + OVERHEAD + HEADER * datasets);
    hid_t blocks = file >= 0 ? H5Gcreate2(file, "MemBlocks", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT) : H5I_INVALID_HID;
    bool good = blocks >= 0;
    for (at = f->from; good && cursor_less(at, f->to); at = cursor_settled(t, at)) {
        const struct block *b = &t->blocks[at.block];
        uint64_t count = at.block == f->to.block ? f->to.element - at.element : b->elements - at.element;
        good = write_part(blocks, b, at, count, between);
        at.element += count;
    }
    if (blocks >= 0)
        H5Gclose(blocks);
    good = image_close(&f->image, file) == 0 && good;
    if (!good) {
        char why[TEXT];
        hdf5_message(why);
        snprintf(error, TEXT, "a fragment can't be made in memory: %.800s", why);
    }
    hdf5_unlock();
    return good ? 0 : MEND_APP_SYSTEM;
}

/* ---- reading ---- */

int fragment_read(struct fragment *f, uint64_t block, uint64_t first, uint64_t count, int type, void *into, void (*between)(void), char error[TEXT]) {
    char name[48];
    uint64_t position = block == f->from.block ? f->from.element : 0;
    hdf5_lock();
    if (f->file <= 0)
        f->file = image_open(&f->image);
    snprintf(name, sizeof name, "/MemBlocks/%" PRIu64, block);
    hid_t dataset = f->file > 0 ? H5Dopen2(f->file, name, H5P_DEFAULT) : H5I_INVALID_HID, wanted = element_memory_type(type);
    bool good = dataset >= 0 && first >= position && pieces(dataset, wanted, H5Tget_size(wanted), first - position, count, into, false, between);
    if (dataset >= 0)
        H5Dclose(dataset);
    H5Tclose(wanted);
    if (!good) {
        char why[TEXT];
        hdf5_message(why);
        snprintf(error, TEXT, "a fragment can't be read: %.800s", why);
    }
    hdf5_unlock();
    return good ? 0 : MEND_APP_SYSTEM;
}

void fragment_free(struct fragment *f) {
    hdf5_lock();
    if (f->file > 0)
        H5Fclose(f->file);
    hdf5_unlock();
    image_free(&f->image);
    *f = (struct fragment){0};
}
