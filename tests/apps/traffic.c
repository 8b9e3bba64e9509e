/* Random MPI traffic that checks itself: every message carries its sender, sequence number and a pattern that depends
 * on both, so that a lost, duplicated, reordered or altered message ends the program with status 1.
 *
 *   traffic [SECONDS] [SEED] [MAX_BYTES]
 *
 * Covers: eager and long messages, any-source and directed receives, probes with matched receives, derived types,
 * synchronous sends, cancelled receives, messages to oneself, collectives, one-sided put, get and accumulate, phases of
 * computing without MPI calls.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
static uint64_t state;
static size_t max_bytes = 300000;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "traffic: rank %d: WRONG: %s\n", rank, what);
        fflush(stderr);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned char pattern(int from, int to, uint64_t number, size_t at) {
    return (unsigned char)(from * 37 + to * 101 + number * 13 + at + (at >> 8) * 7);
}

static void fill(unsigned char *bytes, size_t length, int from, int to, uint64_t number) {
    for (size_t i = 0; i < length; i++) bytes[i] = pattern(from, to, number, i);
}

static void verify(const unsigned char *bytes, size_t length, int from, int to, uint64_t number, const char *what) {
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != pattern(from, to, number, i)) check(0, what);
    }
}

/* Mostly small, sometimes around the eager limit, sometimes long. */
static size_t length_of(uint64_t r) {
    switch (r % 8) {
    case 0: return (r >> 8) % max_bytes;
    case 1: return (r >> 8) % 65536;
    case 2: return 16384 - 4 + (r >> 8) % 9;
    default: return (r >> 8) % 2000;
    }
}

/* Every rank sends to every rank (itself too) a few messages of lengths that both sides can compute. */
static void all_pairs(uint64_t round, int any_source) {
    enum { EACH = 4 };
    int count = size * EACH;
    MPI_Request *requests = malloc(2 * count * sizeof *requests);
    unsigned char **in = malloc(count * sizeof *in), **out = malloc(count * sizeof *out);
    size_t *lengths = malloc(count * sizeof *lengths);
    int order = (int)(draw() % 2), active = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == order) {
            for (int i = 0; i < count; i++) {
                int from = i % size, k = i / size;
                uint64_t r = (round * 977 + (uint64_t)from * 31 + rank * 17 + k) * 0x9E3779B97F4A7C15ULL;
                lengths[i] = length_of(r ^ (r >> 29));
                in[i] = malloc(max_bytes + 65536);
                MPI_Irecv(in[i], (int)(max_bytes + 65536), MPI_BYTE, any_source ? MPI_ANY_SOURCE : from, any_source ? 5000 + i : 1000 + k,
                          MPI_COMM_WORLD, &requests[active++]);
            }
        } else {
            for (int i = 0; i < count; i++) {
                int to = i % size, k = i / size;
                uint64_t r = (round * 977 + (uint64_t)rank * 31 + to * 17 + k) * 0x9E3779B97F4A7C15ULL;
                size_t length = length_of(r ^ (r >> 29));
                out[i] = malloc(length + 1);
                fill(out[i], length, rank, to, round * EACH + k);
                int tag = any_source ? 5000 + rank + k * size : 1000 + k;
                if (draw() % 8 == 0) MPI_Issend(out[i], (int)length, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests[active++]);
                else MPI_Isend(out[i], (int)length, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests[active++]);
            }
        }
    }
    MPI_Waitall(active, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; i++) {
        verify(in[i], lengths[i], i % size, rank, round * EACH + i / size, "a message of all pairs");
        free(in[i]);
        free(out[i]);
    }
    free(requests);
    free(in);
    free(out);
    free(lengths);
}

/* A stream of numbered messages around the ring: order is checked by sequence numbers in the payload. */
static void ring(uint64_t round) {
    enum { COUNT = 60 };
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Request requests[COUNT];
    uint64_t *out[COUNT];
    for (int i = 0; i < COUNT; i++) {
        size_t words = 1 + length_of(draw()) / 16;
        out[i] = malloc(words * 8);
        for (size_t w = 0; w < words; w++) out[i][w] = round * COUNT + i;
        MPI_Isend(out[i], (int)words, MPI_UINT64_T, right, 77, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        MPI_Status status;
        MPI_Message message;
        int words;
        if (i % 3 == 0) {
            MPI_Mprobe(left, 77, MPI_COMM_WORLD, &message, &status);
            MPI_Get_count(&status, MPI_UINT64_T, &words);
        } else {
            MPI_Probe(left, 77, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_UINT64_T, &words);
        }
        uint64_t *in = malloc((size_t)words * 8);
        if (i % 3 == 0) MPI_Mrecv(in, words, MPI_UINT64_T, &message, &status);
        else MPI_Recv(in, words, MPI_UINT64_T, left, 77, MPI_COMM_WORLD, &status);
        for (int w = 0; w < words; w++) check(in[w] == round * COUNT + i, "the order of the ring");
        free(in);
    }
    MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < COUNT; i++) free(out[i]);
}

static void columns(uint64_t round) {
    enum { ROWS = 400, COLUMNS = 16 };
    static int matrix[ROWS][COLUMNS], got[ROWS][COLUMNS];
    MPI_Datatype column;
    MPI_Type_vector(ROWS, 3, COLUMNS, MPI_INT, &column);
    MPI_Type_commit(&column);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) matrix[i][j] = (int)(rank * 1000000 + i * COLUMNS + j + round);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Sendrecv(&matrix[0][2], 1, column, right, 5, &got[0][4], 1, column, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 3; j++) check(got[i][4 + j] == (int)(left * 1000000 + i * COLUMNS + 2 + j + round), "a strided message");
    MPI_Type_free(&column);
}

static void collectives(uint64_t round) {
    int words = (int)(1 + draw() % 3);
    MPI_Bcast(&words, 1, MPI_INT, (int)(round % size), MPI_COMM_WORLD);
    int count = words * words * 3000;
    double *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b);
    for (int i = 0; i < count; i++) a[i] = rank + i;
    MPI_Allreduce(a, b, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) check(b[i] == size * (size - 1) / 2.0 + (double)size * i, "a sum");
    int *c = malloc(size * words * sizeof *c), *d = malloc(size * words * sizeof *d);
    for (int i = 0; i < size * words; i++) c[i] = rank * 10000 + i;
    MPI_Alltoall(c, words, MPI_INT, d, words, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < size * words; i++) check(d[i] == (i / words) * 10000 + rank * words + i % words, "an alltoall");
    MPI_Barrier(MPI_COMM_WORLD);
    free(a);
    free(b);
    free(c);
    free(d);
}

static void one_sided(uint64_t round) {
    enum { WORDS = 30000 };
    uint64_t *memory;
    MPI_Win window;
    MPI_Win_allocate((MPI_Aint)(size * WORDS + 8) * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    uint64_t *mine = malloc(WORDS * 8), *seen = malloc(WORDS * 8);
    memory[size * WORDS] = 0;
    MPI_Win_fence(0, window);
    for (int i = 0; i < WORDS; i++) mine[i] = round * 1000003 + (uint64_t)rank * WORDS + i;
    uint64_t one = 1;
    for (int to = 0; to < size; to++) {
        MPI_Put(mine, WORDS, MPI_UINT64_T, to, (MPI_Aint)rank * WORDS, WORDS, MPI_UINT64_T, window);
        MPI_Accumulate(&one, 1, MPI_UINT64_T, to, (MPI_Aint)size * WORDS, 1, MPI_UINT64_T, MPI_SUM, window);
    }
    MPI_Win_fence(0, window);
    check(memory[size * WORDS] == (uint64_t)size, "an accumulate");
    for (int from = 0; from < size; from++)
        for (int i = 0; i < WORDS; i++) check(memory[from * WORDS + i] == round * 1000003 + (uint64_t)from * WORDS + i, "a put");
    int next = (rank + 1) % size;
    MPI_Get(seen, WORDS, MPI_UINT64_T, next, (MPI_Aint)rank * WORDS, WORDS, MPI_UINT64_T, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < WORDS; i++) check(seen[i] == mine[i], "a get");
    free(mine);
    free(seen);
    MPI_Win_free(&window);
}

static void cancelled(void) {
    int never;
    MPI_Request request;
    MPI_Status status;
    int flag;
    MPI_Irecv(&never, 1, MPI_INT, (rank + 1) % size, 31999, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &flag);
    check(flag, "a cancelled receive");
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double seconds = count > 1 ? atof(arguments[1]) : 5;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1, rounds = 0;
    if (count > 3) max_bytes = strtoull(arguments[3], NULL, 10);
    state = seed * 7919 + (uint64_t)rank + 1;
    double start = MPI_Wtime();
    for (int go_on = 1; go_on; rounds++) {
        all_pairs(rounds, 0);
        ring(rounds);
        all_pairs(rounds, 1);
        columns(rounds);
        collectives(rounds);
        if (rounds % 4 == 0) one_sided(rounds);
        cancelled();
        if (draw() % 4 == 0) {
            double until = MPI_Wtime() + 0.002 * (double)(draw() % 10);
            while (MPI_Wtime() < until) {
            }
        }
        go_on = MPI_Wtime() - start < seconds;
        MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (rank == 0) printf("traffic: %llu rounds right\n", (unsigned long long)rounds);
    MPI_Finalize();
    return 0;
}
