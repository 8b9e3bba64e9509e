/* The first message is sent before the loop, the last one received behind it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    /* safe */
    MPI_Send(&rank, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
    for (int step = 0; step < steps; step++) {
        /* unsafe */
        MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        /* safe */
        x += y;
        MPI_Send(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
        /* unsafe */
        x++;
    }
    /* unsafe */
    x++;
    MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    /* safe */
    x += y;
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
