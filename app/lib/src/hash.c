/* XXH3, the same on all machines: by AVX2 where the processor has it (hash_avx2.c), else by what the compiler may take for granted. */
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "internal.h"

struct stream {
    XXH3_state_t *state;
};

static bool has_avx2(void) {
#ifdef HASH_AVX2
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

uint64_t hash64(const void *data, size_t bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(data, bytes, seed);
}

struct stream *hash_start(void) {
    struct stream *stream = must_alloc(sizeof *stream);
    if (!(stream->state = XXH3_createState()))
        abort();
    XXH3_128bits_reset(stream->state);
    return stream;
}

void hash_more(struct stream *stream, const void *data, size_t bytes) {
    if (has_avx2())
        hash_more_avx2(stream->state, data, bytes);
    else
        XXH3_128bits_update(stream->state, data, bytes);
}

void hash_end(struct stream *stream, uint64_t into[2]) {
    XXH128_hash_t hash = XXH3_128bits_digest(stream->state);
    XXH3_freeState(stream->state);
    free(stream);
    into[0] = hash.high64;
    into[1] = hash.low64;
}

void hash128(const void *data, size_t bytes, uint64_t into[2]) {
    if (has_avx2()) {
        hash128_avx2(data, bytes, into);
        return;
    }
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    into[0] = hash.high64;
    into[1] = hash.low64;
}
