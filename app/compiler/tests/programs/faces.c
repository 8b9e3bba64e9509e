/* Two fields on a ring of boxes; faces are packed by a count that goes on, and change places with the neighbour's. faces STEPS [KILL] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int nx, ny, nz; /* without ghosts */
    double *heat, *dye;
} box_t;

static size_t at(const box_t *b, int i, int j, int k) {
    return ((size_t)i * (b->ny + 2) + j) * (b->nz + 2) + k;
}

static void append(double *to, int *m, double value) {
    to[(*m)++] = value;
}

static int pack(const box_t *b, int i, double *to) {
    int m = 0;
    for (int j = 0; j < b->ny; j++)
        for (int k = 0; k < b->nz; k++) {
            append(to, &m, b->heat[at(b, i, j + 1, k + 1)]);
            append(to, &m, b->dye[at(b, i, j + 1, k + 1)]);
        }
    for (int k = 0; k < b->nz; k++)
        to[m++] = b->heat[at(b, i, 1, k + 1)] + b->dye[at(b, i, b->ny, k + 1)];
    return m;
}

static double unpack(box_t *b, int i, const double *from) {
    int m = 0;
    double edge = 0;
    for (int j = 0; j < b->ny; j++)
        for (int k = 0; k < b->nz; k++) {
            b->heat[at(b, i, j + 1, k + 1)] = from[m++];
            b->dye[at(b, i, j + 1, k + 1)] = from[m++];
        }
    for (int k = 0; k < b->nz; k++)
        edge += from[m++];
    return edge;
}

int main(int argc, char **argv) {
    int rank, size, steps = atoi(argv[1]), stop = argc > 2 ? atoi(argv[2]) : -1;
    double edges = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    box_t b = {16 / size, 40 - size, 30 + size, NULL, NULL};
    size_t cells = (size_t)(b.nx + 2) * (b.ny + 2) * (b.nz + 2);
    b.heat = calloc(cells, sizeof(double));
    b.dye = calloc(cells, sizeof(double));
    double *low = malloc(sizeof(double) * (2 * b.ny + 1) * b.nz), *high = malloc(sizeof(double) * (2 * b.ny + 1) * b.nz);
    for (size_t c = 0; c < cells; c++) {
        b.heat[c] = (c * 7 + rank) % 11;
        b.dye[c] = (c * 5 + 2 * rank) % 13;
    }
    for (int step = 0; step < steps; step++) {
        if (step == stop && rank == 0)
            abort();
        int count = pack(&b, 1, low);
        MPI_Sendrecv_replace(low, count, MPI_DOUBLE, (rank + size - 1) % size, 0, (rank + 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        count = pack(&b, b.nx, high);
        MPI_Sendrecv_replace(high, count, MPI_DOUBLE, (rank + 1) % size, 1, (rank + size - 1) % size, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        edges += 0.001 * unpack(&b, b.nx + 1, low);
        edges -= 0.002 * unpack(&b, 0, high);
        for (int i = 1; i <= b.nx; i++)
            for (int j = 1; j <= b.ny; j++)
                for (int k = 1; k <= b.nz; k++) {
                    size_t c = at(&b, i, j, k), up = at(&b, i - 1, j, k), down = at(&b, i + 1, j, k);
                    b.heat[c] += 0.1 * (b.heat[up] + b.heat[down] - 2 * b.heat[c]) - 0.01 * b.dye[c];
                    b.dye[c] += 0.05 * (b.dye[up] + b.dye[down] - 2 * b.dye[c]) + 0.01 * b.heat[c];
                }
    }
    double sum = 0, all = 0;
    for (int i = 1; i <= b.nx; i++)
        for (int j = 1; j <= b.ny; j++)
            for (int k = 1; k <= b.nz; k++)
                sum += b.heat[at(&b, i, j, k)] * (i + 2 * j + 3 * k) + b.dye[at(&b, i, j, k)];
    sum += edges;
    MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("digest %.17g\n", all);
    free(low);
    free(high);
    free(b.heat);
    free(b.dye);
    MPI_Finalize();
    return 0;
}
