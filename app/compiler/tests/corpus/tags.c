/* Two messages with two tags, received in the other order. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, in[2] = {0, 0};
    for (int step = 0; step < steps; step++) {
        /* safe */
        MPI_Send(&x, 1, MPI_INT, next, 1, MPI_COMM_WORLD);
        MPI_Send(&y, 1, MPI_INT, next, 2, MPI_COMM_WORLD);
        /* unsafe */
        MPI_Recv(&in[1], 1, MPI_INT, before, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        /* unsafe */
        MPI_Recv(&in[0], 1, MPI_INT, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        /* safe */
        x += in[0] + 1;
        y += in[1];
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
