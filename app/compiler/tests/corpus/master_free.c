/* A master that hands out work as workers ask: ranks aren't in step. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) {
        int left = 3 * steps, at_work = 0;
        MPI_Status status;
        for (int to = 1; to < size; to++, at_work++)
            MPI_Send(&left, 1, MPI_INT, to, 0, MPI_COMM_WORLD);
        while (at_work > 0) {
            /* unsafe */
            MPI_Recv(&y, 1, MPI_INT, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &status);
            x += y;
            left--;
            MPI_Send(&left, 1, MPI_INT, status.MPI_SOURCE, left > 0 ? 0 : 2, MPI_COMM_WORLD);
            if (left <= 0)
                at_work--;
        }
    } else {
        for (;;) {
            MPI_Status status;
            MPI_Recv(&x, 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            /* unsafe */
            if (status.MPI_TAG == 2)
                break;
            MPI_Send(&x, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        }
    }
    /* safe */
    MPI_Barrier(MPI_COMM_WORLD);
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
