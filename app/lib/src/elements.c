/* Types of elements, in memory and in files, and conversions between machines. A conversion is exact, or it is an error: HDF5 converts there
 * and back, and what doesn't come back as it was wasn't held exactly. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static const struct {
    int type;
    const char *name;
    char kind; /* i, u: integers; f: floating point; c: complex; b: bytes; p: pointers */
} types[] = {
    {MEND_APP_INT8, "int8", 'i'}, {MEND_APP_INT16, "int16", 'i'}, {MEND_APP_INT32, "int32", 'i'}, {MEND_APP_INT64, "int64", 'i'},
    {MEND_APP_UINT8, "uint8", 'u'}, {MEND_APP_UINT16, "uint16", 'u'}, {MEND_APP_UINT32, "uint32", 'u'}, {MEND_APP_UINT64, "uint64", 'u'},
    {MEND_APP_FLOAT, "float", 'f'}, {MEND_APP_DOUBLE, "double", 'f'}, {MEND_APP_LONG_DOUBLE, "long double", 'f'},
    {MEND_APP_COMPLEX_FLOAT, "complex float", 'c'}, {MEND_APP_COMPLEX_DOUBLE, "complex double", 'c'},
    {MEND_APP_BYTES, "bytes", 'b'}, {MEND_APP_POINTER, "pointer", 'p'},
};

const char *element_name(int type) {
    return type >= 1 && type <= MEND_APP_POINTER ? types[type - 1].name : "?";
}

int element_type_by_name(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].type;
    return 0;
}

uint64_t element_size(int type) {
    static const unsigned char sizes[] = {1, 2, 4, 8, 1, 2, 4, 8, sizeof(float), sizeof(double), sizeof(long double), 2 * sizeof(float), 2 * sizeof(double), 1, sizeof(void *)};
    return type >= 1 && type <= MEND_APP_POINTER ? sizes[type - 1] : 0;
}

static bool is_byte(int type) {
    return type == MEND_APP_INT8 || type == MEND_APP_UINT8;
}

/* C's plain char is signed on some machines: integers of one byte agree, and a value that the reader's can't hold is an error as ever. */
bool element_kinds_agree(int written, int read) {
    if (is_byte(written) && is_byte(read))
        return true;
    return written >= 1 && read >= 1 && types[written - 1].kind == types[read - 1].kind;
}

static hid_t complex_type(hid_t part, size_t size) {
    hid_t type = H5Tcreate(H5T_COMPOUND, 2 * size);
    /* As h5py names them, so that NumPy sees complex numbers. */
    H5Tinsert(type, "r", 0, part);
    H5Tinsert(type, "i", size, part);
    return type;
}

hid_t element_memory_type(int type) {
    switch (type) {
    case MEND_APP_INT8: return H5Tcopy(H5T_NATIVE_INT8);
    case MEND_APP_INT16: return H5Tcopy(H5T_NATIVE_INT16);
    case MEND_APP_INT32: return H5Tcopy(H5T_NATIVE_INT32);
    case MEND_APP_INT64: return H5Tcopy(H5T_NATIVE_INT64);
    case MEND_APP_UINT8: return H5Tcopy(H5T_NATIVE_UINT8);
    case MEND_APP_UINT16: return H5Tcopy(H5T_NATIVE_UINT16);
    case MEND_APP_UINT32: return H5Tcopy(H5T_NATIVE_UINT32);
    case MEND_APP_UINT64: return H5Tcopy(H5T_NATIVE_UINT64);
    case MEND_APP_FLOAT: return H5Tcopy(H5T_NATIVE_FLOAT);
    case MEND_APP_DOUBLE: return H5Tcopy(H5T_NATIVE_DOUBLE);
    case MEND_APP_LONG_DOUBLE: return H5Tcopy(H5T_NATIVE_LDOUBLE);
    case MEND_APP_COMPLEX_FLOAT: return complex_type(H5T_NATIVE_FLOAT, sizeof(float));
    case MEND_APP_COMPLEX_DOUBLE: return complex_type(H5T_NATIVE_DOUBLE, sizeof(double));
    case MEND_APP_BYTES: return H5Tcopy(H5T_NATIVE_UINT8);
    case MEND_APP_POINTER: {
        hid_t pair = H5Tcreate(H5T_COMPOUND, 16);
        H5Tinsert(pair, "block", 0, H5T_NATIVE_INT64);
        H5Tinsert(pair, "offset", 8, H5T_NATIVE_UINT64);
        return pair;
    }
    default: return H5I_INVALID_HID;
    }
}

/* The bits of a long double that say nothing (x87: 80 of 96 or 128), set to 0, so that bytes can be compared. */
static void clear_padding(hid_t file_type, uint64_t elements, unsigned char *data) {
    size_t size = H5Tget_size(file_type), precision = H5Tget_precision(file_type);
    if (H5Tget_class(file_type) != H5T_FLOAT || precision == 8 * size || H5Tget_order(file_type) != H5T_ORDER_LE)
        return;
    for (uint64_t i = 0; i < elements; i++)
        memset(data + i * size + precision / 8, 0, size - precision / 8);
}

int elements_convert(hid_t file_type, int type, uint64_t elements, void *data, char error[TEXT]) {
    hid_t memory_type = element_memory_type(type);
    size_t in_file = H5Tget_size(file_type), in_memory = H5Tget_size(memory_type), larger = in_file > in_memory ? in_file : in_memory;
    int done = 0;
    if (H5Tequal(file_type, memory_type) > 0 || elements == 0) {
        H5Tclose(memory_type);
        return 0;
    }
    /* In pieces that stay in the cache. What is converted lies at the end of the larger room, so from there when it grows. */
    enum { PIECE = 4096 };
    unsigned char *bytes = data, *before = must_alloc(PIECE * larger), *after = must_alloc(PIECE * larger), *back = must_alloc(PIECE * larger),
                  *background = must_alloc(PIECE * larger); /* Compounds are converted through it. */
    bool grows = in_memory > in_file;
    uint64_t pieces = (elements + PIECE - 1) / PIECE;
    for (uint64_t n = 0; n < pieces && done == 0; n++) {
        uint64_t piece = grows ? pieces - 1 - n : n, first = piece * PIECE, count = elements - first < PIECE ? elements - first : PIECE;
        memcpy(before, bytes + first * in_file, count * in_file);
        clear_padding(file_type, count, before);
        memcpy(after, before, count * in_file);
        if (H5Tconvert(file_type, memory_type, count, after, background, H5P_DEFAULT) < 0) {
            snprintf(error, TEXT, "HDF5 can't convert to %s", element_name(type));
            done = MEND_APP_SYSTEM;
            break;
        }
        memcpy(back, after, count * in_memory);
        if (H5Tconvert(memory_type, file_type, count, back, background, H5P_DEFAULT) < 0) {
            snprintf(error, TEXT, "HDF5 can't convert from %s", element_name(type));
            done = MEND_APP_SYSTEM;
            break;
        }
        clear_padding(file_type, count, back);
        for (uint64_t i = 0; i < count; i++)
            if (memcmp(before + i * in_file, back + i * in_file, in_file) != 0) {
                snprintf(error, TEXT, "element %llu, as written with %zu bytes, can't be held exactly by %s of %zu bytes here", (unsigned long long)(first + i), in_file, element_name(type), in_memory);
                done = MEND_APP_REFUSED;
                break;
            }
        memcpy(bytes + first * in_memory, after, count * in_memory);
    }
    free(before);
    free(after);
    free(back);
    free(background);
    H5Tclose(memory_type);
    return done;
}
