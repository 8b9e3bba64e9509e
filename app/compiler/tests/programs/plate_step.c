#include "plate.h"

#include <math.h>
#include <mpi.h>
#include <stdlib.h>

double total_change;
static double largest;

void make_plate(struct plate *p, int all, int columns, int rank, int ranks) {
    p->first = all * rank / ranks;
    p->rows = all * (rank + 1) / ranks - p->first;
    p->columns = columns;
    p->now = calloc((size_t)(p->rows + 2) * columns, sizeof(double));
    p->next = calloc((size_t)(p->rows + 2) * columns, sizeof(double));
    p->sources = malloc((size_t)(p->rows + 2) * columns * sizeof(double));
    for (int i = 0; i < (p->rows + 2) * columns; i++)
        p->sources[i] = sin(0.1 * i + p->first);
}

static void exchange(struct plate *p, int up, int down) {
    int n = p->columns;
    MPI_Request requests[4];
    MPI_Irecv(p->now, n, MPI_DOUBLE, up, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(p->now + (p->rows + 1) * n, n, MPI_DOUBLE, down, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(p->now + n, n, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(p->now + p->rows * n, n, MPI_DOUBLE, down, 0, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

void step_plate(struct plate *p, int up, int down) {
    int n = p->columns;
    double change = 0, all;
    exchange(p, up, down);
    for (int i = 1; i <= p->rows; i++)
        for (int j = 1; j < n - 1; j++) {
            double *u = &p->now[i * n + j];
            p->next[i * n + j] = *u + 0.2 * (u[-n] + u[n] + u[-1] + u[1] - 4 * *u) + 0.001 * p->sources[i * n + j];
            change += fabs(p->next[i * n + j] - *u);
        }
    MPI_Allreduce(&change, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    total_change += all;
    if (all > largest)
        largest = all;
    double *old = p->now;
    p->now = p->next;
    p->next = old;
}

double heat_of(const struct plate *p) {
    double mine = largest, all;
    for (int i = 1; i <= p->rows; i++)
        for (int j = 0; j < p->columns; j++)
            mine += p->now[i * p->columns + j] * (i + p->first + 0.5 * j);
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}
