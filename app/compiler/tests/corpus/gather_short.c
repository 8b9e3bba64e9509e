/* Rank 0 takes one message too few per iteration, and the rest behind the loop. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        /* unsafe */
        if (rank == 0) {
            for (int from = 2; from < size; from++)
                MPI_Recv(&y, 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(&rank, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        }
        /* unsafe */
        x += y;
    }
    if (rank == 0 && size > 1)
        for (int step = 0; step < steps; step++)
            MPI_Recv(&y, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
