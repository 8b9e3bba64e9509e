/* What the programs after NPB have in common (own code): boxes of n x n x n cells in slabs of planes, whose owners may move. Their last line is the same on any number of ranks, with
 * moves and without: each value is computed in the same way whoever does it, and sums over all planes are added in the order of planes.
 *
 *   PROGRAM N STEPS [-k STEP] [-m STEP RANKS HOSTS] [-p US]      -k: aborts there; -m: asks for a move there; -p: microseconds that each step takes longer
 */
#include <inttypes.h>
#include <math.h>
#include <mend_app_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks, *starts; /* rank r has planes [starts[r], starts[r + 1]) */
static int64_t n, steps, longer, kill_at = -1, ask_at = -1;
static const char *who = "", *hosts = "";
static int start, count;

static void begin(int argc, char **argv, const char *program) {
    n = argc > 1 ? atoll(argv[1]) : 16;
    steps = argc > 2 ? atoll(argv[2]) : 10;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "-k") == 0 && i + 1 < argc)
            kill_at = atoll(argv[++i]);
        if (strcmp(argv[i], "-p") == 0 && i + 1 < argc)
            longer = atoll(argv[++i]);
        if (strcmp(argv[i], "-m") == 0 && i + 3 < argc) {
            ask_at = atoll(argv[++i]);
            who = argv[++i];
            hosts = argv[++i];
        }
    }
    MPI_Init(&argc, &argv);
    if (mend_app_init_mpi(MPI_COMM_WORLD, program, NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Comm_rank(mend_app_world(), &rank);
    MPI_Comm_size(mend_app_world(), &ranks);
    starts = malloc((size_t)(ranks + 1) * sizeof *starts);
    for (int r = 0; r <= ranks; r++)
        starts[r] = (int)(n * r / ranks);
    start = starts[rank];
    count = starts[rank + 1] - start;
}

/* A safe point. */
static void between_steps(int64_t step) {
    if (rank == 0 && step == ask_at && !mend_app_restarting())
        mend_app_migrate(who, hosts);
    mend_app_checkpoint();
    usleep((useconds_t)longer);
    if (step == kill_at && rank == 0)
        abort();
}

static int finish(void) {
    fflush(stdout);
    int done = mend_app_finalize();
    MPI_Finalize();
    return done < 0;
}

/* The sum of one value a plane, in the order of planes. */
static double sum_of_planes(const double *mine) {
    double sum = 0, *all = malloc((size_t)n * sizeof *all);
    int *counts = malloc((size_t)ranks * sizeof *counts);
    for (int r = 0; r < ranks; r++)
        counts[r] = starts[r + 1] - starts[r];
    MPI_Allgatherv(mine, count, MPI_DOUBLE, all, counts, starts, MPI_DOUBLE, mend_app_world());
    for (int64_t i = 0; i < n; i++)
        sum += all[i];
    free(all);
    free(counts);
    return sum;
}

static inline double hashed(uint64_t i, uint64_t j) {
    uint64_t bits = i * 0x9e3779b97f4a7c15u ^ (j + 1) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 31)) * 0x94d049bb133111ebu;
    return (double)((bits ^ (bits >> 29)) >> 11) * 0x1p-53 - 0.5;
}

/* Slabs of the first dimension become slabs of the second: to[j][i][...] = from[i][j][...], with `width` doubles at each place. */
static inline void transpose(const double *from, double *to, int width) {
    int *sent = malloc(4 * (size_t)ranks * sizeof *sent), *sent_at = sent + ranks, *got = sent_at + ranks, *got_at = got + ranks;
    double *out = malloc((size_t)count * n * width * sizeof *out), *in = malloc((size_t)count * n * width * sizeof *in), *at = out;
    for (int r = 0; r < ranks; r++) {
        int theirs = starts[r + 1] - starts[r];
        sent[r] = got[r] = count * theirs * width;
        sent_at[r] = got_at[r] = count * starts[r] * width;
        for (int i = 0; i < count; i++)
            for (int j = starts[r]; j < starts[r + 1]; j++, at += width)
                memcpy(at, from + ((size_t)i * n + j) * width, width * sizeof *at);
    }
    MPI_Alltoallv(out, sent, sent_at, MPI_DOUBLE, in, got, got_at, MPI_DOUBLE, mend_app_world());
    at = in;
    for (int r = 0; r < ranks; r++)
        for (int i = starts[r]; i < starts[r + 1]; i++)
            for (int j = 0; j < count; j++, at += width)
                memcpy(to + ((size_t)j * n + i) * width, at, width * sizeof *at);
    free(sent);
    free(out);
    free(in);
}

/* Planes -1 and `count` of `planes` (which points to plane 0), each of `size` doubles, from whoever has them; beyond the box nothing comes. */
static inline void exchange(double *planes, size_t size) {
    int before = start > 0 && count ? rank - 1 : MPI_PROC_NULL, after = start + count < n && count ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(planes, (int)size, MPI_DOUBLE, before, 0, planes + count * size, (int)size, MPI_DOUBLE, after, 0, mend_app_world(), MPI_STATUS_IGNORE);
    MPI_Sendrecv(planes + (count - 1) * size, (int)size, MPI_DOUBLE, after, 1, planes - size, (int)size, MPI_DOUBLE, before, 1, mend_app_world(), MPI_STATUS_IGNORE);
}
