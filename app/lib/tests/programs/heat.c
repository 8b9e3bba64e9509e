/* Heat on a rod: each rank has a block of it, with a cell of each neighbour at either end. Also an array dealt in turn, and one by a list of indices. The
 * last line is the same for every number of ranks, and whatever was restored.
 *
 *   heat CELLS STEPS [-p STEP MICROSECONDS] [-k STEP] [-K STEP] [-r STEP] [-f]
 *
 * -p: pauses so long at each step from STEP on; a second one takes the place of the first from a later STEP on; -k: kills its rank 0 at STEP, in a run that
 * restored nothing; -K: in any run; -r: asks for a checkpoint at STEP; -f: has an array that doesn't change, which the last line tells of, too.
 */
#include <inttypes.h>
#include <mend_app_mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks;

static void exchange(double *u, int64_t count) {
    int left = rank ? rank - 1 : MPI_PROC_NULL, right = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(&u[1], 1, MPI_DOUBLE, left, 0, &u[count + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&u[count], 1, MPI_DOUBLE, right, 0, &u[0], 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* A sum that doesn't depend on who has which element. */
static uint64_t mixed(const void *value, uint64_t index) {
    uint64_t bits;
    memcpy(&bits, value, 8);
    bits = (bits ^ (index * 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
    return bits ^ (bits >> 29);
}

int main(int argc, char **argv) {
    int64_t cells = argc > 1 ? atoll(argv[1]) : 1000, steps = argc > 2 ? atoll(argv[2]) : 100;
    int64_t slow[2] = {INT64_MAX, INT64_MAX}, pause[2] = {0, 0}, pauses = 0, kill_at = -1, kill_again = -1, ask_at = -1, fixed = 0;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "-p") == 0 && i + 2 < argc && pauses < 2) {
            slow[pauses] = atoll(argv[++i]);
            pause[pauses++] = atoll(argv[++i]);
        } else if (strcmp(argv[i], "-k") == 0 && i + 1 < argc) {
            kill_at = atoll(argv[++i]);
        } else if (strcmp(argv[i], "-K") == 0 && i + 1 < argc) {
            kill_again = atoll(argv[++i]);
        } else if (strcmp(argv[i], "-r") == 0 && i + 1 < argc) {
            ask_at = atoll(argv[++i]);
        } else if (strcmp(argv[i], "-f") == 0) {
            fixed = 1;
        }
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (mend_app_init_mpi(MPI_COMM_WORLD, "heat 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    int fresh = !mend_app_restarting();
    int64_t start = cells * rank / ranks, count = cells * (rank + 1) / ranks - start;
    double *u = calloc(count + 2, sizeof *u), *next = calloc(count + 2, sizeof *next), *newest = u;
    mend_app_dimension rod = mend_app_block(cells, start, count, 1, 1), turns = mend_app_cyclic(cells, 3, rank, ranks);
    uint64_t *dealt = calloc(turns.extent + 1, sizeof *dealt);
    /* Every rank has the cells with its number as remainder, backwards. */
    uint64_t listed_count = (cells - rank + ranks - 1) / ranks, *indices = calloc(listed_count + 1, sizeof *indices);
    float *listed = calloc(listed_count + 1, sizeof *listed);
    for (uint64_t i = 0; i < listed_count; i++)
        indices[i] = rank + (listed_count - 1 - i) * ranks;
    mend_app_dimension list = mend_app_list(cells, listed_count, indices);
    /* Only a run that restores nothing gives it its values. */
    double *rest = calloc(count + 2, sizeof *rest);
    for (int64_t i = 0; fresh && i < count; i++)
        rest[i + 1] = 1.0 / (double)(start + i + 1);
    for (int64_t i = 0; i < count; i++)
        u[i + 1] = (start + i) % 17 == 3 ? 100.0 : 0.0;

    mend_app_enter("main");
    int64_t step = 0;
    double total = 0;
    mend_app_variable("step", &step, MEND_APP_INT64, 0, NULL, MEND_APP_REPLICATED);
    mend_app_variable("total", &total, MEND_APP_DOUBLE, 0, NULL, MEND_APP_REPLICATED);
    mend_app_array("u", u, MEND_APP_DOUBLE, 1, &rod);
    if (fixed)
        mend_app_array("rest", rest, MEND_APP_DOUBLE, 1, &rod);
    mend_app_array("dealt", dealt, MEND_APP_UINT64, 1, &turns);
    mend_app_array("listed", listed, MEND_APP_FLOAT, 1, &list);
    for (; step < steps; step++) {
        if (mend_app_checkpoint() == MEND_APP_RESTORED && rank == 0)
            fprintf(stderr, "heat: goes on at step %" PRId64 "\n", step);
        if (fresh && step == ask_at && rank == 0)
            mend_app_request();
        if (rank == 0 && ((fresh && step == kill_at) || step == kill_again))
            raise(SIGKILL);
        if (step >= slow[0])
            usleep(pause[step >= slow[1]]);
        exchange(u, count);
        for (int64_t i = 1; i <= count; i++)
            next[i] = u[i] + 0.25 * (u[i - 1] - 2 * u[i] + u[i + 1]);
        memcpy(u + 1, next + 1, count * sizeof *u);
        for (uint64_t i = 0; i < turns.extent; i++)
            dealt[i] = dealt[i] * 31 + (uint64_t)step + ((i / 3 * ranks + rank) * 3 + i % 3);
        for (uint64_t i = 0; i < listed_count; i++)
            listed[i] = listed[i] * 0.5f + (float)indices[i];
        int64_t one = 1, all;
        MPI_Allreduce(&one, &all, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
        total += (double)all;
    }
    mend_app_leave();
    uint64_t sum = 0, whole;
    for (int64_t i = 0; i < count; i++)
        sum += mixed(&newest[i + 1], start + i);
    for (int64_t i = 0; fixed && i < count; i++)
        sum += mixed(&rest[i + 1], start + i);
    for (uint64_t i = 0; i < turns.extent; i++)
        sum += mixed(&dealt[i], (i / 3 * ranks + rank) * 3 + i % 3);
    for (uint64_t i = 0; i < listed_count; i++) {
        double value = listed[i];
        sum += mixed(&value, indices[i]);
    }
    MPI_Reduce(&sum, &whole, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("heat digest=%016" PRIx64 " cells=%" PRId64 " steps=%" PRId64 " total=%g\n", whole, cells, steps, total);
    int done = mend_app_finalize();
    MPI_Finalize();
    return done < 0;
}
