/* Even ranks send first, odd ones receive first. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int partner = rank % 2 == 0 ? rank + 1 : rank - 1;
    if (partner >= size)
        partner = MPI_PROC_NULL;
    for (int step = 0; step < steps; step++) {
        /* safe */
        if (rank % 2 == 0) {
            MPI_Send(&x, 1, MPI_INT, partner, 0, MPI_COMM_WORLD);
            /* unsafe */
            MPI_Recv(&y, 1, MPI_INT, partner, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(&y, 1, MPI_INT, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(&x, 1, MPI_INT, partner, 1, MPI_COMM_WORLD);
        }
        /* safe */
        x += y + 1;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
