/* All ranks send to rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        /* safe */
        if (rank == 0) {
            for (int from = 1; from < size; from++) {
                MPI_Recv(&y, 1, MPI_INT, from, step, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                x += y;
            }
        } else {
            MPI_Send(&rank, 1, MPI_INT, 0, step, MPI_COMM_WORLD);
        }
        /* safe */
        y = 0;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
