/* A non-blocking collective. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        MPI_Request request;
        int all = 0;
        /* safe */
        MPI_Iallreduce(&x, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
        /* unsafe */
        y += step;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        /* safe */
        x = all % 7 + 1;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
