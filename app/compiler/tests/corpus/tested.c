/* A request that is only tested. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, in = 0, done = 0;
    MPI_Request request;
    for (int step = 0; step < steps; step++) {
        /* safe */
        MPI_Irecv(&in, 1, MPI_INT, before, 0, MPI_COMM_WORLD, &request);
        MPI_Send(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        /* unsafe */
        x++;
        if (!done)
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        /* safe */
        y += in;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
