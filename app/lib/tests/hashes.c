/* Compares hash.c, by whatever this processor has, with XXH3 by SSE2 or less: whole and in pieces, of all short lengths and some long ones. */
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "internal.h"

enum { LONGEST = 300013 };

void *must_alloc(size_t bytes) {
    return calloc(1, bytes ? bytes : 1);
}

int main(void) {
    unsigned char *data = malloc(LONGEST);
    for (size_t i = 0; i < LONGEST; i++)
        data[i] = (unsigned char)(i * i >> 3);
    for (size_t length = 0; length <= LONGEST; length += length < 1500 ? 1 : 7919) {
        XXH128_hash_t wanted = XXH3_128bits(data, length);
        uint64_t whole[2], pieces[2];
        hash128(data, length, whole);
        struct stream *stream = hash_start();
        for (size_t at = 0, piece = 1; at < length; at += piece, piece = piece * 3 % 4099 + 1)
            hash_more(stream, data + at, length - at < piece ? length - at : piece);
        hash_end(stream, pieces);
        if (whole[0] != wanted.high64 || whole[1] != wanted.low64 || pieces[0] != whole[0] || pieces[1] != whole[1]) {
            printf("other hashes of %zu bytes\n", length);
            return 1;
        }
    }
    free(data);
    printf("equal\n");
    return 0;
}
