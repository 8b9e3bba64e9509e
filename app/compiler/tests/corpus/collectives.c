/* Collectives, also in a function. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int sum(int value) {
    int all = 0;
    /* safe */
    MPI_Allreduce(&value, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    /* safe */
    return all;
}

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        /* safe */
        x = sum(rank + step);
        /* safe */
        MPI_Bcast(&x, 1, MPI_INT, 0, MPI_COMM_WORLD);
        /* safe */
        y += x;
    }
    /* safe */
    MPI_Barrier(MPI_COMM_WORLD);
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
