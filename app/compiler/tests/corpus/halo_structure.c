/* Neighbours and requests in arrays of structures: of one in main, and of one on the heap. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

struct side {
    int peer[2];
    MPI_Request requests[4];
    double in[2], out[2];
};

struct solver {
    int rank, size, neighbour[2];
    MPI_Comm comm;
};

static void connect(struct side *s, const struct solver *v) {
    for (int k = 0; k < 2; k++) {
        s->peer[k] = v->neighbour[k];
        s->out[k] = v->rank + k;
        MPI_Recv_init(&s->in[k], 1, MPI_DOUBLE, s->peer[k], 1 - k, v->comm, &s->requests[k]);
        MPI_Send_init(&s->out[k], 1, MPI_DOUBLE, s->peer[k], k, v->comm, &s->requests[2 + k]);
    }
}

static double once(const struct solver *v, const int *peer, double mine) {
    double got = 0;
    MPI_Send(&mine, 1, MPI_DOUBLE, peer[1], 7, v->comm);
    MPI_Recv(&got, 1, MPI_DOUBLE, peer[0], 7, v->comm, MPI_STATUS_IGNORE);
    return got;
}

int main(int argc, char **argv) {
    struct side side;
    double sum = 0;
    MPI_Init(&argc, &argv);
    int steps = argc > 1 ? atoi(argv[1]) : 4;
    struct solver *v = malloc(sizeof *v);
    MPI_Comm_dup(MPI_COMM_WORLD, &v->comm);
    MPI_Comm_rank(v->comm, &v->rank);
    MPI_Comm_size(v->comm, &v->size);
    v->neighbour[0] = v->rank > 0 ? v->rank - 1 : MPI_PROC_NULL;
    v->neighbour[1] = v->rank < v->size - 1 ? v->rank + 1 : MPI_PROC_NULL;
    connect(&side, v);
    for (int step = 0; step < steps; step++) {
        /* safe */
        MPI_Startall(4, side.requests);
        /* unsafe */
        sum += step;
        MPI_Waitall(2, side.requests + 2, MPI_STATUSES_IGNORE);
        MPI_Waitall(2, side.requests, MPI_STATUSES_IGNORE);
        /* safe */
        sum += once(v, v->neighbour, sum);
        /* safe */
        if (v->neighbour[1] != MPI_PROC_NULL)
            MPI_Send(&sum, 1, MPI_DOUBLE, v->neighbour[1], 3, v->comm);
        /* unsafe */
        sum += side.in[0] + side.in[1];
        if (v->neighbour[0] != MPI_PROC_NULL)
            MPI_Recv(&side.out[0], 1, MPI_DOUBLE, v->neighbour[0], 3, v->comm, MPI_STATUS_IGNORE);
        /* safe */
        side.out[1] = sum;
    }
    for (int k = 0; k < 4; k++)
        MPI_Request_free(&side.requests[k]);
    printf("%d %g\n", v->rank, sum);
    MPI_Comm_free(&v->comm);
    free(v);
    MPI_Finalize();
    return 0;
}
