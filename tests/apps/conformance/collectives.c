/* Every blocking collective, with every root, in place and not, with counts from nothing to long, built-in and user
 * operations, basic and derived types. Sums are of integers, so that the order of reduction does not matter where it may not. */
#include "check.h"

static const int COUNTS[] = {0, 1, 5, 300, 4097, 50000};
enum { KINDS = sizeof COUNTS / sizeof *COUNTS, LONGEST = 50000 };

static int64_t word(int from, int to, int at) { return (int64_t)from * 1000003 + (int64_t)to * 7919 + at; }

static int64_t *words(int count) { return allocate((size_t)count * sizeof(int64_t)); }

/* Function composition x -> a x + b (mod 2^64): associative, not commutative. */
static void compose(void *in, void *inout, int *length, MPI_Datatype *type) {
    uint64_t *a = in, *b = inout;
    (void)type;
    for (int i = 0; i < *length; i++) {
        uint64_t scale = a[2 * i] * b[2 * i], shift = a[2 * i + 1] * b[2 * i] + b[2 * i + 1];
        b[2 * i] = scale;
        b[2 * i + 1] = shift;
    }
}

static void composed(int first, int last, int at, uint64_t result[2]) {
    result[0] = 1;
    result[1] = 0;
    for (int r = first; r <= last; r++) {
        uint64_t scale = 2 * (uint64_t)r + 3, shift = (uint64_t)r + (uint64_t)at;
        result[0] *= scale;
        result[1] = result[1] * scale + shift;
    }
}

static void rooted(int root, int count) {
    int64_t *mine = words(count), *all = words(count * size);
    for (int i = 0; i < count; i++) mine[i] = rank == root ? word(root, 0, i) : -1;
    MPI_Bcast(mine, count, MPI_INT64_T, root, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) require(mine[i] == word(root, 0, i), "MPI_Bcast from %d of %d: word %d", root, count, i);

    for (int i = 0; i < count; i++) mine[i] = word(rank, root, i);
    MPI_Gather(mine, count, MPI_INT64_T, all, count, MPI_INT64_T, root, MPI_COMM_WORLD);
    for (int i = 0; rank == root && i < count * size; i++)
        require(all[i] == word(i / count, root, i % count), "MPI_Gather to %d of %d: word %d", root, count, i);

    for (int i = 0; i < count * size; i++) all[i] = word(root, i / (count ? count : 1), i % (count ? count : 1));
    MPI_Scatter(all, count, MPI_INT64_T, rank == root ? MPI_IN_PLACE : (void *)mine, count, MPI_INT64_T, root, MPI_COMM_WORLD);
    for (int i = 0; rank != root && i < count; i++) require(mine[i] == word(root, rank, i), "MPI_Scatter from %d of %d: word %d", root, count, i);

    for (int i = 0; i < count; i++) mine[i] = word(rank, root, i);
    if (rank == root) memcpy(all, mine, (size_t)count * 8);
    MPI_Reduce(rank == root ? MPI_IN_PLACE : (void *)mine, all, count, MPI_INT64_T, MPI_SUM, root, MPI_COMM_WORLD);
    for (int i = 0; rank == root && i < count; i++) {
        int64_t sum = 0;
        for (int r = 0; r < size; r++) sum += word(r, root, i);
        require(all[i] == sum, "MPI_Reduce to %d of %d: word %d", root, count, i);
    }
    free(mine);
    free(all);
}

static void rooted_with_counts(int root) {
    int *counts = allocate(size * sizeof(int)), *places = allocate(size * sizeof(int)), total = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = r % 3 == 2 ? 0 : 10 + 900 * r;
        places[r] = total + 3;
        total += counts[r] + 3;
    }
    int64_t *all = words(total + 3), *mine = words(10 + 900 * size);
    for (int i = 0; i < total + 3; i++) all[i] = -5;
    for (int i = 0; i < counts[rank]; i++) mine[i] = word(rank, root, i);
    MPI_Gatherv(mine, counts[rank], MPI_INT64_T, all, counts, places, MPI_INT64_T, root, MPI_COMM_WORLD);
    if (rank == root) {
        for (int r = 0; r < size; r++)
            for (int i = -3; i < counts[r]; i++)
                require(all[places[r] + i] == (i < 0 ? -5 : word(r, root, i)), "MPI_Gatherv to %d: word %d of rank %d", root, i, r);
    }
    for (int r = 0; r < size; r++)
        for (int i = 0; i < counts[r]; i++) all[places[r] + i] = word(root, r, i);
    MPI_Scatterv(all, counts, places, MPI_INT64_T, mine, counts[rank], MPI_INT64_T, root, MPI_COMM_WORLD);
    for (int i = 0; i < counts[rank]; i++) require(mine[i] == word(root, rank, i), "MPI_Scatterv from %d: word %d", root, i);
    free(counts);
    free(places);
    free(all);
    free(mine);
}

static void everywhere(int count, int in_place) {
    int64_t *mine = words(count * size), *all = words(count * size);
    int some = count ? count : 1;
    for (int i = 0; i < count; i++) (in_place ? all + (size_t)rank * count : mine)[i] = word(rank, 0, i);
    MPI_Allgather(in_place ? MPI_IN_PLACE : (void *)mine, count, MPI_INT64_T, all, count, MPI_INT64_T, MPI_COMM_WORLD);
    for (int i = 0; i < count * size; i++) require(all[i] == word(i / some, 0, i % some), "MPI_Allgather of %d: word %d", count, i);

    for (int i = 0; i < count * size; i++) (in_place ? all : mine)[i] = word(rank, i / some, i % some);
    MPI_Alltoall(in_place ? MPI_IN_PLACE : (void *)mine, count, MPI_INT64_T, all, count, MPI_INT64_T, MPI_COMM_WORLD);
    for (int i = 0; i < count * size; i++) require(all[i] == word(i / some, rank, i % some), "MPI_Alltoall of %d: word %d", count, i);

    for (int i = 0; i < count; i++) (in_place ? all : mine)[i] = word(rank, 1, i);
    MPI_Allreduce(in_place ? MPI_IN_PLACE : (void *)mine, all, count, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) require(all[i] == word(size - 1, 1, i), "MPI_Allreduce of %d: word %d", count, i);

    for (int i = 0; i < count * size; i++) (in_place ? all : mine)[i] = word(rank, 2, i);
    MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : (void *)mine, all, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        int64_t sum = 0;
        for (int r = 0; r < size; r++) sum += word(r, 2, rank * count + i);
        require(all[i] == sum, "MPI_Reduce_scatter_block of %d: word %d", count, i);
    }

    for (int i = 0; i < count; i++) (in_place ? all : mine)[i] = word(rank, 3, i);
    MPI_Scan(in_place ? MPI_IN_PLACE : (void *)mine, all, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    int64_t *before = words(count);
    for (int i = 0; i < count; i++) before[i] = word(rank, 3, i);
    MPI_Exscan(in_place ? MPI_IN_PLACE : (void *)before, before, in_place ? count : 0, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        int64_t sum = 0;
        for (int r = 0; r < rank; r++) sum += word(r, 3, i);
        require(all[i] == sum + word(rank, 3, i), "MPI_Scan of %d: word %d", count, i);
        require(!in_place || rank == 0 || before[i] == sum, "MPI_Exscan of %d: word %d", count, i);
    }
    free(before);
    free(mine);
    free(all);
}

static void everywhere_with_counts(void) {
    int *counts = allocate(size * sizeof(int)), *places = allocate(size * sizeof(int)), *in = allocate(size * sizeof(int));
    int *in_places = allocate(size * sizeof(int)), total = 0, incoming = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = (rank * 5 + r * 3) % 7 * 150;
        in[r] = (r * 5 + rank * 3) % 7 * 150;
        places[r] = total;
        in_places[r] = incoming;
        total += counts[r];
        incoming += in[r];
    }
    int64_t *out = words(total), *got = words(incoming);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < counts[r]; i++) out[places[r] + i] = word(rank, r, i);
    MPI_Alltoallv(out, counts, places, MPI_INT64_T, got, in, in_places, MPI_INT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < in[r]; i++) require(got[in_places[r] + i] == word(r, rank, i), "MPI_Alltoallv: word %d of rank %d", i, r);

    MPI_Datatype *types = allocate(size * sizeof *types);
    for (int r = 0; r < size; r++) {
        types[r] = MPI_INT64_T;
        places[r] *= 8;
        in_places[r] *= 8;
    }
    memset(got, 0, (size_t)incoming * 8);
    MPI_Alltoallw(out, counts, places, types, got, in, in_places, types, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < in[r]; i++) require(got[in_places[r] / 8 + i] == word(r, rank, i), "MPI_Alltoallw: word %d of rank %d", i, r);

    total = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = r % 2 ? 0 : 200 * (r + 1);
        places[r] = total;
        total += counts[r];
    }
    int64_t *mine = words(total), *all = words(total);
    for (int i = 0; i < counts[rank]; i++) mine[i] = word(rank, 4, i);
    MPI_Allgatherv(mine, counts[rank], MPI_INT64_T, all, counts, places, MPI_INT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < counts[r]; i++) require(all[places[r] + i] == word(r, 4, i), "MPI_Allgatherv: word %d of rank %d", i, r);
    for (int i = 0; i < total; i++) mine[i] = word(rank, 5, i);
    MPI_Reduce_scatter(mine, all, counts, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < counts[rank]; i++) {
        int64_t sum = 0;
        for (int r = 0; r < size; r++) sum += word(r, 5, places[rank] + i);
        require(all[i] == sum, "MPI_Reduce_scatter: word %d", i);
    }
    free(counts);
    free(places);
    free(in);
    free(in_places);
    free(types);
    free(out);
    free(got);
    free(mine);
    free(all);
}

static void own_operation(int count) {
    MPI_Datatype pair;
    MPI_Op op;
    MPI_Type_contiguous(2, MPI_UINT64_T, &pair);
    MPI_Type_commit(&pair);
    MPI_Op_create(compose, 0, &op);
    uint64_t *mine = allocate((size_t)count * 16), *all = allocate((size_t)count * 16), expected[2];
    for (int i = 0; i < count; i++) {
        mine[2 * i] = 2 * (uint64_t)rank + 3;
        mine[2 * i + 1] = (uint64_t)(rank + i);
    }
    MPI_Allreduce(mine, all, count, pair, op, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        composed(0, size - 1, i, expected);
        require(all[2 * i] == expected[0] && all[2 * i + 1] == expected[1], "MPI_Allreduce with an operation that does not commute: %d", i);
    }
    MPI_Scan(mine, all, count, pair, op, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        composed(0, rank, i, expected);
        require(all[2 * i] == expected[0] && all[2 * i + 1] == expected[1], "MPI_Scan with an operation that does not commute: %d", i);
    }
    MPI_Op_free(&op);
    MPI_Type_free(&pair);
    free(mine);
    free(all);
}

static void built_in_operations(void) {
    struct {
        double value;
        int place;
    } pair = {(double)((rank * 7) % size), rank}, least;
    int bits = 1 << (rank % 20), all, logical = rank % 2;
    MPI_Allreduce(&pair, &least, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
    require(least.value == 0.0 && (least.place * 7) % size == 0, "MPI_MINLOC found %g at %d", least.value, least.place);
    MPI_Allreduce(&bits, &all, 1, MPI_INT, MPI_BOR, MPI_COMM_WORLD);
    require(all == (size >= 20 ? (1 << 20) - 1 : (1 << size) - 1), "MPI_BOR is %x", all);
    MPI_Allreduce(&logical, &all, 1, MPI_INT, MPI_LXOR, MPI_COMM_WORLD);
    require(all == size / 2 % 2, "MPI_LXOR is %d", all);
    float factor = 2, product;
    MPI_Allreduce(&factor, &product, 1, MPI_FLOAT, MPI_PROD, MPI_COMM_WORLD);
    require(product == (float)(1ull << size), "MPI_PROD is %g", (double)product);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        for (int kind = 0; kind < KINDS; kind++) {
            for (int root = 0; root < size; root++) rooted(root, COUNTS[kind]);
            everywhere(COUNTS[kind], 0);
            everywhere(COUNTS[kind], 1);
            own_operation(COUNTS[kind]);
            MPI_Barrier(MPI_COMM_WORLD);
        }
        for (int root = 0; root < size; root++) rooted_with_counts(root);
        everywhere_with_counts();
        built_in_operations();
    }
    return finish();
}
