/* A master and its workers, in rounds. */
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
            for (int to = 1; to < size; to++) {
                int work = step * to;
                MPI_Send(&work, 1, MPI_INT, to, 0, MPI_COMM_WORLD);
            }
            for (int count = 1; count < size; count++) {
                MPI_Recv(&y, 1, MPI_INT, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                x += y;
            }
        } else {
            MPI_Recv(&x, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            /* unsafe */
            x *= 2;
            MPI_Send(&x, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        }
        /* safe */
        y++;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
