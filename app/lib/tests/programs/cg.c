/* Conjugate gradients, after NPB's CG (own code): a sparse symmetric matrix in blocks of rows. The last line is the same with moves and without: sums over ranks are
 * added in the order of ranks. On another number of ranks they are other sums, and each step takes them up.
 *
 *   cg ROWS STEPS [-m STEP RANKS HOSTS | -k STEP]
 */
#include <inttypes.h>
#include <mend_app_mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDES = 6, ROW = 2 * SIDES + 1 };
/* An element stands so far from the diagonal. */
static const int64_t distance[SIDES] = {1, 7, 61, 523, 1999, 4099};
static int rank, ranks;
static int64_t rows, start, count;
static double *values, *x, *r, *p, *q, *all;
static int32_t *columns;
static int *counts, *starts;

static double hashed(int64_t i, int64_t j) {
    uint64_t bits = (uint64_t)(i < j ? i : j) * 0x9e3779b97f4a7c15u ^ (uint64_t)(i < j ? j : i) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 31)) * 0x94d049bb133111ebu;
    return (double)(bits >> 11) * 0x1p-53 - 0.5;
}

static void make_matrix(void) {
    for (int64_t i = 0; i < count; i++) {
        int64_t row = start + i, at = i * ROW;
        columns[at] = (int32_t)row;
        values[at++] = 2.0 * SIDES;
        for (int d = 0; d < SIDES; d++)
            for (int side = -1; side <= 1; side += 2) {
                int64_t column = (row + side * distance[d] + rows) % rows;
                columns[at] = (int32_t)column;
                values[at++] = hashed(row, column);
            }
    }
}

static double dot(const double *a, const double *b) {
    double mine = 0, sum = 0, *parts = malloc((size_t)ranks * sizeof *parts);
    for (int64_t i = 0; i < count; i++)
        mine += a[i] * b[i];
    MPI_Allgather(&mine, 1, MPI_DOUBLE, parts, 1, MPI_DOUBLE, mend_app_world());
    for (int i = 0; i < ranks; i++)
        sum += parts[i];
    free(parts);
    return sum;
}

static void release(void *data) {
    (void)data;
    free(all);
}

int main(int argc, char **argv) {
    int64_t steps, step = 0, ask = -1, kill_at = -1;
    const char *who = "", *hosts = "";
    rows = argc > 1 ? atoll(argv[1]) : 20000;
    steps = argc > 2 ? atoll(argv[2]) : 20;
    if (argc > 6 && strcmp(argv[3], "-m") == 0) {
        ask = atoll(argv[4]);
        who = argv[5];
        hosts = argv[6];
    } else if (argc > 4 && strcmp(argv[3], "-k") == 0) {
        kill_at = atoll(argv[4]);
    }
    MPI_Init(&argc, &argv);
    if (mend_app_init_mpi(MPI_COMM_WORLD, "cg 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Comm_rank(mend_app_world(), &rank);
    MPI_Comm_size(mend_app_world(), &ranks);
    start = rows * rank / ranks;
    count = rows * (rank + 1) / ranks - start;
    values = malloc(count * ROW * sizeof *values);
    columns = malloc(count * ROW * sizeof *columns);
    double **vectors[] = {&x, &r, &p, &q};
    for (int i = 0; i < 4; i++)
        *vectors[i] = calloc(count, sizeof(double));
    all = malloc(rows * sizeof *all);
    counts = malloc(ranks * sizeof *counts);
    starts = malloc(ranks * sizeof *starts);
    for (int i = 0; i < ranks; i++) {
        starts[i] = (int)(rows * i / ranks);
        counts[i] = (int)(rows * (i + 1) / ranks) - starts[i];
    }
    if (!mend_app_restarting()) {
        make_matrix();
        for (int64_t i = 0; i < count; i++)
            r[i] = p[i] = 1.0 + hashed(start + i, -1);
    }
    mend_app_departing(release, NULL);

    mend_app_dimension part = mend_app_block(rows, start, count, 0, 0), matrix[] = {part, mend_app_whole(ROW)};
    double rho = mend_app_restarting() ? 0 : dot(r, r);
    mend_app_enter("main");
    mend_app_variable("step", &step, MEND_APP_INT64, 0, NULL, MEND_APP_REPLICATED);
    mend_app_variable("rho", &rho, MEND_APP_DOUBLE, 0, NULL, MEND_APP_REPLICATED);
    mend_app_array("values", values, MEND_APP_DOUBLE, 2, matrix);
    mend_app_array("columns", columns, MEND_APP_INT32, 2, matrix);
    mend_app_array("x", x, MEND_APP_DOUBLE, 1, &part);
    mend_app_array("r", r, MEND_APP_DOUBLE, 1, &part);
    mend_app_array("p", p, MEND_APP_DOUBLE, 1, &part);
    for (; step < steps; step++) {
        if (rank == 0 && step == ask && !mend_app_restarting())
            mend_app_migrate(who, hosts);
        mend_app_checkpoint();
        if (rank == 0 && step == kill_at)
            raise(SIGKILL);
        MPI_Allgatherv(p, (int)count, MPI_DOUBLE, all, counts, starts, MPI_DOUBLE, mend_app_world());
        for (int64_t i = 0; i < count; i++) {
            double sum = 0;
            for (int64_t at = i * ROW; at < (i + 1) * ROW; at++)
                sum += values[at] * all[columns[at]];
            q[i] = sum;
        }
        double alpha = rho / dot(p, q);
        for (int64_t i = 0; i < count; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        double next = dot(r, r), beta = next / rho;
        rho = next;
        for (int64_t i = 0; i < count; i++)
            p[i] = r[i] + beta * p[i];
    }
    mend_app_leave();
    double norm = dot(x, x);
    if (rank == 0)
        printf("cg x.x=%.17g r.r=%.17g steps=%" PRId64 "\n", norm, rho, step);
    fflush(stdout);
    int done = mend_app_finalize();
    MPI_Finalize();
    return done < 0;
}
