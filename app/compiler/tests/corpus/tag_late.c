/* One of two messages stays until the iteration after. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, in = 0;
    for (int step = 0; step < steps; step++) {
        MPI_Send(&x, 1, MPI_INT, next, 1, MPI_COMM_WORLD);
        MPI_Send(&y, 1, MPI_INT, next, 2, MPI_COMM_WORLD);
        MPI_Recv(&in, 1, MPI_INT, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        /* unsafe */
        x += in + 1;
        if (step > 0)
            MPI_Recv(&in, 1, MPI_INT, before, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        /* unsafe */
        y += in;
    }
    MPI_Recv(&in, 1, MPI_INT, before, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
