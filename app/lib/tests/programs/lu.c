/* Symmetric successive over-relaxation with wavefronts, after NPB's LU (see slabs.h): five coupled values a cell, swept forwards and backwards over planes, rows and columns. A rank computes
 * a row of its planes when the row of the plane before has come, and passes its last one on. The solution is known. */
#include "slabs.h"

enum { C = 5 };
static const double omega = 1.2;
static double *u, *f; /* planes -1 to count, rows and columns with a border */
static int64_t width;
static double diagonal[C][C], inverse[C][C];

static double *cell(double *of, int64_t i, int64_t j, int64_t k) {
    return of + (((i + 1) * width + j + 1) * width + k + 1) * C;
}

static double exact(int64_t i, int64_t j, int64_t k, int c) {
    double h = 1.0 / (double)(n + 1);
    return sin(M_PI * (double)(i + 1) * h) * (double)((j + 1) * (n - j) * (k + 1) * (n - k)) * h * h * h * h * (1 + c);
}

/* Diffusion with a little wind, and a coupling of the five. */
static void apply(const double *before, const double *after, const double *up, const double *down, const double *left, const double *right, const double *here, double *out) {
    for (int c = 0; c < C; c++) {
        double sum = -(1.1 * before[c] + 0.9 * after[c] + up[c] + down[c] + left[c] + right[c]);
        for (int d = 0; d < C; d++)
            sum += diagonal[c][d] * here[d];
        out[c] = sum;
    }
}

static void make_diagonal(void) {
    double both[C][2 * C];
    for (int c = 0; c < C; c++)
        for (int d = 0; d < C; d++) {
            diagonal[c][d] = c == d ? 6.5 : 0.1 / (1 + abs(c - d));
            both[c][d] = diagonal[c][d];
            both[c][C + d] = c == d;
        }
    for (int p = 0; p < C; p++)
        for (int c = 0; c < C; c++) {
            double factor = both[c][p] / both[p][p];
            for (int d = 0; c != p && d < 2 * C; d++)
                both[c][d] -= factor * both[p][d];
        }
    for (int c = 0; c < C; c++)
        for (int d = 0; d < C; d++)
            inverse[c][d] = both[c][C + d] / both[c][c];
}

static void relax(int64_t i, int64_t j, int64_t k) {
    double out[C], *here = cell(u, i, j, k), *right = cell(f, i, j, k);
    apply(cell(u, i - 1, j, k), cell(u, i + 1, j, k), cell(u, i, j - 1, k), cell(u, i, j + 1, k), cell(u, i, j, k - 1), cell(u, i, j, k + 1), here, out);
    for (int c = 0; c < C; c++) {
        double change = 0;
        for (int d = 0; d < C; d++)
            change += inverse[c][d] * (right[d] - out[d]);
        here[c] += omega * change;
    }
}

static void sweep(int forwards) {
    int first = rank == 0, last = rank == ranks - 1, from = forwards ? (first ? MPI_PROC_NULL : rank - 1) : (last ? MPI_PROC_NULL : rank + 1),
        to = forwards ? (last ? MPI_PROC_NULL : rank + 1) : (first ? MPI_PROC_NULL : rank - 1), row = (int)n * C;
    for (int64_t step = 0; step < n; step++) {
        int64_t j = forwards ? step : n - 1 - step;
        MPI_Recv(cell(u, forwards ? -1 : count, j, 0), row, MPI_DOUBLE, from, 2, mend_app_world(), MPI_STATUS_IGNORE);
        for (int p = 0; p < count; p++)
            for (int64_t q = 0; q < n; q++)
                relax(forwards ? p : count - 1 - p, j, forwards ? q : n - 1 - q);
        MPI_Send(cell(u, forwards ? count - 1 : 0, j, 0), row, MPI_DOUBLE, to, 2, mend_app_world());
    }
}

/* What the operator makes of u, less f (or all of it), squared and summed. */
static double residual(double *out) {
    double *planes = calloc((size_t)n, sizeof *planes), r[C];
    exchange(cell(u, 0, -1, -1), (size_t)(width * width * C));
    for (int i = 0; i < count; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t k = 0; k < n; k++) {
                apply(cell(u, i - 1, j, k), cell(u, i + 1, j, k), cell(u, i, j - 1, k), cell(u, i, j + 1, k), cell(u, i, j, k - 1), cell(u, i, j, k + 1), cell(u, i, j, k), r);
                for (int c = 0; c < C; c++) {
                    if (out)
                        cell(out, i, j, k)[c] = r[c];
                    double off = r[c] - cell(f, i, j, k)[c];
                    planes[i] += off * off;
                }
            }
    double sum = sum_of_planes(planes);
    free(planes);
    return sqrt(sum);
}

int main(int argc, char **argv) {
    begin(argc, argv, "lu 1");
    make_diagonal();
    width = n + 2;
    size_t values = (size_t)(count + 2) * width * width * C;
    u = calloc(values, sizeof *u);
    f = calloc(values, sizeof *f);
    double first = 0;
    int64_t step = 0;
    if (!mend_app_restarting()) {
        for (int i = 0; i < count; i++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t k = 0; k < n; k++)
                    for (int c = 0; c < C; c++)
                        cell(u, i, j, k)[c] = exact(start + i, j, k, c);
        residual(f);
        memset(u, 0, values * sizeof *u);
        first = residual(NULL);
    }
    mend_app_enter("main");
    mend_app_dimension shape[] = {mend_app_block(n, start, count, 1, 1), mend_app_whole(width), mend_app_whole(width * C)};
    mend_app_variable("step", &step, MEND_APP_INT64, 0, NULL, MEND_APP_REPLICATED);
    mend_app_variable("first", &first, MEND_APP_DOUBLE, 0, NULL, MEND_APP_REPLICATED);
    mend_app_array("u", u, MEND_APP_DOUBLE, 3, shape);
    mend_app_array("f", f, MEND_APP_DOUBLE, 3, shape);
    for (; step < steps; step++) {
        between_steps(step);
        exchange(cell(u, 0, -1, -1), (size_t)(width * width * C));
        sweep(1);
        exchange(cell(u, 0, -1, -1), (size_t)(width * width * C));
        sweep(0);
    }
    mend_app_leave();
    double last = residual(NULL), *planes = calloc((size_t)n, sizeof *planes);
    for (int i = 0; i < count; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t k = 0; k < n; k++)
                for (int c = 0; c < C; c++)
                    planes[i] += fabs(cell(u, i, j, k)[c] - exact(start + i, j, k, c));
    double off = sum_of_planes(planes) / ((double)n * (double)n * (double)n * C);
    free(planes);
    if (rank == 0)
        printf("lu residual=%.17g of %.17g off=%.17g steps=%" PRId64 " %s\n", last, first, off, step, last < first * pow(0.9, (double)step) ? "verified" : "WRONG");
    return finish();
}
