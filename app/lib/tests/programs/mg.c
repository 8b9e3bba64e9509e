/* Multigrid for Poisson's equation in a box with zero sides, after NPB's MG (see slabs.h): each step is a V-cycle. N + 1 is a power of two. A coarse plane belongs to whoever has the fine
 * one beneath it. */
#include "slabs.h"

enum { MOST_LEVELS = 12 };
/* Cells 1 to n of a level in each dimension, with zeros around; planes from `from` on, `planes` of them, and one before and after. A rank may have none of a
 * coarse level, and needs the two around all the same. */
static struct level {
    int64_t n, width;
    int *starts, from, planes;
    double *u, *f, *r;
} levels[MOST_LEVELS];
static int depth;

static double *plane(const struct level *l, double *of, int64_t i) {
    return of + (i - l->from + 1) * l->width * l->width;
}

/* Whose plane it is, or -1: beyond the box. */
static int owner(const struct level *l, int64_t i) {
    if (i < 0 || i >= l->n)
        return -1;
    int r = 0;
    while (l->starts[r + 1] <= i)
        r++;
    return r;
}

/* Each rank gets the planes before its first and after its last. Whoever has them need not be its neighbour. */
static void halo(struct level *l, double *of) {
    MPI_Request *requests = malloc((2 * (size_t)ranks + 2) * sizeof *requests);
    int made = 0, size = (int)(l->width * l->width);
    for (int r = 0; r < ranks; r++) {
        for (int side = 0; side < 2; side++) {
            int64_t wanted = side ? l->starts[r + 1] : l->starts[r] - 1;
            int from = owner(l, wanted);
            if (from == rank && r != rank)
                MPI_Isend(plane(l, of, wanted), size, MPI_DOUBLE, r, side, mend_app_world(), &requests[made++]);
            if (r == rank && from >= 0)
                MPI_Irecv(plane(l, of, wanted), size, MPI_DOUBLE, from, side, mend_app_world(), &requests[made++]);
        }
    }
    MPI_Waitall(made, requests, MPI_STATUSES_IGNORE);
    free(requests);
}

#define EACH(l, i, j, k) \
    for (int64_t i = (l)->from; i < (l)->from + (l)->planes; i++) \
        for (int64_t j = 1; j <= (l)->n; j++) \
            for (int64_t k = 1; k <= (l)->n; k++)

static double around(const struct level *l, double *of, int64_t i, int64_t at) {
    double *here = plane(l, of, i);
    return (plane(l, of, i - 1)[at] + plane(l, of, i + 1)[at]) + (here[at - l->width] + here[at + l->width]) + (here[at - 1] + here[at + 1]);
}

/* Red and black cells in turn. */
static void smooth(struct level *l, int times) {
    for (int half = 0; half < 2 * times; half++) {
        halo(l, l->u);
        EACH(l, i, j, k)
        if ((i + j + k) % 2 == half % 2) {
            int64_t at = j * l->width + k;
            plane(l, l->u, i)[at] = (around(l, l->u, i, at) + plane(l, l->f, i)[at]) / 6;
        }
    }
}

static void residual(struct level *l) {
    halo(l, l->u);
    EACH(l, i, j, k) {
        int64_t at = j * l->width + k;
        plane(l, l->r, i)[at] = plane(l, l->f, i)[at] + around(l, l->u, i, at) - 6 * plane(l, l->u, i)[at];
    }
}

/* Coarse cell i lies on fine cell 2 i + 1 (planes count from 0, rows and columns from 1). */
static double weighted(const struct level *fine, int64_t i, int64_t at) {
    double sum = 0;
    for (int di = -1; di <= 1; di++)
        for (int dj = -1; dj <= 1; dj++)
            for (int dk = -1; dk <= 1; dk++)
                sum += plane(fine, fine->r, i + di)[at + dj * fine->width + dk] / (double)(1 << (abs(di) + abs(dj) + abs(dk)));
    return sum / 8 * 4;
}

/* A fine cell between coarse ones takes the mean of those around it. */
static void correct(struct level *fine, struct level *coarse) {
    halo(coarse, coarse->u);
    EACH(fine, i, j, k) {
        int64_t planes[2] = {(i + 1) / 2 - 1, i / 2}, rows[2] = {j / 2, (j + 1) / 2}, columns[2] = {k / 2, (k + 1) / 2};
        double sum = 0;
        for (int corner = 0; corner < 8; corner++)
            sum += plane(coarse, coarse->u, planes[corner & 1])[rows[corner >> 1 & 1] * coarse->width + columns[corner >> 2]];
        plane(fine, fine->u, i)[j * fine->width + k] += sum / 8;
    }
}

static void cycle(int at) {
    struct level *l = &levels[at], *coarse = l + 1;
    if (at == depth - 1)
        return smooth(l, 2);
    smooth(l, 2);
    residual(l);
    halo(l, l->r);
    EACH(coarse, i, j, k)
    plane(coarse, coarse->f, i)[j * coarse->width + k] = weighted(l, 2 * i + 1, 2 * j * l->width + 2 * k);
    memset(coarse->u, 0, (size_t)(coarse->planes + 2) * coarse->width * coarse->width * sizeof *coarse->u);
    cycle(at + 1);
    correct(l, coarse);
    smooth(l, 2);
}

static double norm(struct level *l) {
    double *planes = calloc((size_t)n, sizeof *planes);
    EACH(l, i, j, k) {
        double r = plane(l, l->r, i)[j * l->width + k];
        planes[i - l->from] += r * r;
    }
    double sum = sum_of_planes(planes);
    free(planes);
    return sqrt(sum);
}

static void make_levels(void) {
    int *fine = starts;
    for (int64_t size = n; size >= 1 && depth < MOST_LEVELS; size = (size - 1) / 2) {
        struct level *l = &levels[depth++];
        l->n = size;
        l->width = size + 2;
        l->starts = malloc((size_t)(ranks + 1) * sizeof *l->starts);
        for (int r = 0; r <= ranks; r++)
            l->starts[r] = depth == 1 ? fine[r] : fine[r] / 2 < size ? fine[r] / 2 : (int)size;
        l->from = l->starts[rank];
        l->planes = l->starts[rank + 1] - l->from;
        fine = l->starts;
        double **fields[] = {&l->u, &l->f, &l->r};
        for (int i = 0; i < 3; i++)
            *fields[i] = calloc((size_t)(l->planes + 2) * l->width * l->width, sizeof(double));
    }
}

int main(int argc, char **argv) {
    begin(argc, argv, "mg 1");
    make_levels();
    struct level *l = &levels[0];
    double first = 0, last = 0;
    int64_t step = 0;
    if (!mend_app_restarting()) {
        EACH(l, i, j, k)
        plane(l, l->f, i)[j * l->width + k] = hashed((uint64_t)(i * n + j) * n + k, 3);
        residual(l);
        first = norm(l);
    }
    mend_app_enter("main");
    mend_app_dimension shape[] = {mend_app_block(n, start, count, 1, 1), mend_app_whole(l->width), mend_app_whole(l->width)};
    mend_app_variable("step", &step, MEND_APP_INT64, 0, NULL, MEND_APP_REPLICATED);
    mend_app_variable("first", &first, MEND_APP_DOUBLE, 0, NULL, MEND_APP_REPLICATED);
    mend_app_array("u", l->u, MEND_APP_DOUBLE, 3, shape);
    mend_app_array("f", l->f, MEND_APP_DOUBLE, 3, shape);
    for (; step < steps; step++) {
        between_steps(step);
        cycle(0);
    }
    mend_app_leave();
    residual(l);
    last = norm(l);
    /* A V-cycle with two sweeps on either side takes the residual down by a factor of 5 at the least. */
    if (rank == 0)
        printf("mg residual=%.17g of %.17g steps=%" PRId64 " %s\n", last, first, step, last < first * pow(0.2, (double)step) ? "verified" : "WRONG");
    return finish();
}
