/* Derived datatypes: every constructor, sent as one type and received as another, packed, resized, nested, of lengths from
 * nothing to many packets; what they say about themselves. */
#include "check.h"

enum { WORDS = 60000 };

static int out[WORDS], in[WORDS], flat[WORDS];

/* Sends one element of `type` to the right and receives it as plain integers, then the other way round; `places` says
 * where its `count` integers lie, in the order of the type. */
static void both_ways(MPI_Datatype type, const int *places, int count, const char *what) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, bytes, received;
    MPI_Status status;
    MPI_Type_commit(&type);
    MPI_Type_size(type, &bytes);
    require(bytes == count * 4, "%s has %d bytes instead of %d", what, bytes, count * 4);
    for (int i = 0; i < WORDS; i++) {
        out[i] = rank * 1000000 + i;
        in[i] = flat[i] = -1;
    }
    MPI_Sendrecv(out, 1, type, right, 1, flat, count, MPI_INT, left, 1, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_INT, &received);
    require(received == count, "%s arrived as %d integers instead of %d", what, received, count);
    for (int i = 0; i < count; i++) require(flat[i] == left * 1000000 + places[i], "%s: integer %d is %d", what, i, flat[i]);
    MPI_Sendrecv(flat, count, MPI_INT, right, 2, in, 1, type, left, 2, MPI_COMM_WORLD, &status);
    int two_left = (left + size - 1) % size, at = 0;
    for (int i = 0; i < count; i++) require(in[places[i]] == two_left * 1000000 + places[i], "%s: place %d is %d", what, places[i], in[places[i]]);
    for (int i = 0; i < WORDS; i++) at += in[i] == -1;
    require(at == WORDS - count, "%s wrote outside of its places", what);
    int room, position = 0;
    MPI_Pack_size(1, type, MPI_COMM_WORLD, &room);
    char *packed = allocate(room);
    MPI_Pack(out, 1, type, packed, room, &position, MPI_COMM_WORLD);
    MPI_Sendrecv_replace(packed, position, MPI_PACKED, right, 3, left, 3, MPI_COMM_WORLD, &status);
    for (int i = 0; i < WORDS; i++) in[i] = -1;
    room = position;
    position = 0;
    MPI_Unpack(packed, room, &position, in, 1, type, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) require(in[places[i]] == left * 1000000 + places[i], "%s, packed: place %d", what, places[i]);
    free(packed);
    MPI_Type_free(&type);
}

static void constructors(int blocks, int length, int stride) {
    MPI_Datatype type, inner;
    int *places = allocate(WORDS * sizeof(int)), count = 0;
    int *lengths = allocate(blocks * sizeof(int)), *displacements = allocate(blocks * sizeof(int));
    MPI_Aint *bytes = allocate(blocks * sizeof(MPI_Aint));
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < length; i++) places[count++] = b * stride + i;
    MPI_Type_vector(blocks, length, stride, MPI_INT, &type);
    both_ways(type, places, count, "a vector");
    MPI_Type_create_hvector(blocks, length, (MPI_Aint)stride * 4, MPI_INT, &type);
    both_ways(type, places, count, "an hvector");

    /* Blocks of different lengths, back to front. */
    count = 0;
    for (int b = 0; b < blocks; b++) {
        lengths[b] = 1 + b % length;
        displacements[b] = (blocks - 1 - b) * stride;
        bytes[b] = (MPI_Aint)displacements[b] * 4;
        for (int i = 0; i < lengths[b]; i++) places[count++] = displacements[b] + i;
    }
    MPI_Type_indexed(blocks, lengths, displacements, MPI_INT, &type);
    both_ways(type, places, count, "an indexed type");
    MPI_Type_create_hindexed(blocks, lengths, bytes, MPI_INT, &type);
    both_ways(type, places, count, "an hindexed type");
    count = 0;
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < length; i++) places[count++] = displacements[b] + i;
    MPI_Type_create_indexed_block(blocks, length, displacements, MPI_INT, &type);
    both_ways(type, places, count, "an indexed block type");
    MPI_Type_create_hindexed_block(blocks, length, bytes, MPI_INT, &type);
    both_ways(type, places, count, "an hindexed block type");

    /* A structure of a vector and integers, in a contiguous run of a resized type. */
    MPI_Datatype parts[2] = {MPI_INT, MPI_INT}, resized;
    int sizes[2] = {2, 1};
    MPI_Aint where[2] = {0, 20};
    MPI_Type_create_struct(2, sizes, where, parts, &inner);
    MPI_Type_create_resized(inner, 0, 28, &resized);
    MPI_Type_contiguous(blocks, resized, &type);
    count = 0;
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < 3; i++) places[count++] = b * 7 + (i < 2 ? i : 5);
    if (blocks * 7 < WORDS) both_ways(type, places, count, "a run of structures");
    else MPI_Type_free(&type);
    MPI_Aint low, extent;
    MPI_Type_get_extent(resized, &low, &extent);
    require(low == 0 && extent == 28, "a resized type has an extent of %lld", (long long)extent);
    MPI_Type_free(&inner);
    MPI_Type_free(&resized);
    free(places);
    free(lengths);
    free(displacements);
    free(bytes);
}

static void arrays(void) {
    int sizes[3] = {20, 30, 40}, parts[3] = {7, 11, 13}, starts[3] = {2, 9, 21}, *places = allocate(WORDS * sizeof(int)), count = 0;
    MPI_Datatype type;
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 11; j++)
            for (int k = 0; k < 13; k++) places[count++] = ((i + 2) * 30 + j + 9) * 40 + k + 21;
    MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &type);
    both_ways(type, places, count, "a subarray");
    count = 0;
    for (int k = 0; k < 13; k++)
        for (int j = 0; j < 11; j++)
            for (int i = 0; i < 7; i++) places[count++] = ((k + 21) * 30 + j + 9) * 20 + i + 2;
    MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_FORTRAN, MPI_INT, &type);
    both_ways(type, places, count, "a subarray in Fortran's order");
    /* Block-cyclic: process 1 of 3 owns blocks of 5 of a vector of 1000. */
    int length = 1000, distribution = MPI_DISTRIBUTE_CYCLIC, argument = 5, processes = 3;
    MPI_Type_create_darray(3, 1, 1, &length, &distribution, &argument, &processes, MPI_ORDER_C, MPI_INT, &type);
    count = 0;
    for (int i = 0; i < length; i++)
        if (i / 5 % 3 == 1) places[count++] = i;
    both_ways(type, places, count, "a distributed array");
    free(places);
}

/* A type whose parts lie at absolute addresses, sent from MPI_BOTTOM; and a copy of it. */
static void absolute(void) {
    static int first[3000], second[3000];
    int right = (rank + 1) % size, left = (rank + size - 1) % size, lengths[2] = {3000, 3000}, combiner, integers, addresses, types;
    MPI_Aint places[2];
    MPI_Datatype type, copy;
    MPI_Get_address(first, &places[0]);
    MPI_Get_address(second, &places[1]);
    MPI_Type_create_hindexed(2, lengths, places, MPI_INT, &type);
    MPI_Type_dup(type, &copy);
    MPI_Type_commit(&copy);
    MPI_Type_get_envelope(copy, &integers, &addresses, &types, &combiner);
    require(combiner == MPI_COMBINER_DUP, "a copied type says combiner %d", combiner);
    for (int i = 0; i < 3000; i++) {
        first[i] = rank + i;
        second[i] = rank - i;
    }
    MPI_Sendrecv_replace(MPI_BOTTOM, 1, copy, right, 4, left, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < 3000; i++) require(first[i] == left + i && second[i] == left - i, "absolute addresses: integer %d", i);
    MPI_Type_free(&type);
    MPI_Type_free(&copy);
}

static void external(void) {
    int words[3] = {1, -2, rank}, got[3] = {0};
    MPI_Aint room, position = 0;
    MPI_Pack_external_size("external32", 3, MPI_INT, &room);
    unsigned char packed[64];
    require(room == 12, "three integers in external32 have %lld bytes", (long long)room);
    MPI_Pack_external("external32", words, 3, MPI_INT, packed, room, &position);
    require(packed[3] == 1 && packed[4] == 0xff && packed[7] == 0xfe, "external32 is not big-endian");
    position = 0;
    MPI_Unpack_external("external32", packed, room, &position, got, 3, MPI_INT);
    require(memcmp(words, got, sizeof words) == 0, "external32 there and back");
}

/* A receive of a longer type than was sent: the count of basic elements says how much came. */
static void partial(void) {
    struct {
        double a;
        int b;
    } out_pairs[4], in_pairs[4];
    int right = (rank + 1) % size, left = (rank + size - 1) % size, count;
    MPI_Status status;
    memset(out_pairs, 0, sizeof out_pairs);
    for (int i = 0; i < 4; i++) {
        out_pairs[i].a = rank + i;
        out_pairs[i].b = i;
    }
    MPI_Sendrecv(out_pairs, 3, MPI_DOUBLE_INT, right, 5, in_pairs, 4, MPI_DOUBLE_INT, left, 5, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_DOUBLE_INT, &count);
    require(count == 3, "%d pairs came instead of 3", count);
    MPI_Get_elements(&status, MPI_DOUBLE_INT, &count);
    require(count == 6, "%d basic elements came instead of 6", count);
    for (int i = 0; i < 3; i++) require(in_pairs[i].a == left + i && in_pairs[i].b == i, "pair %d", i);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        constructors(1, 1, 1);
        constructors(40, 3, 7);
        constructors(900, 5, 60);
        constructors(20, 2500, 2900);
        constructors(20000, 1, 2);
        arrays();
        absolute();
        external();
        partial();
    }
    return finish();
}
