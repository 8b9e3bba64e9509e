/* A software pipeline: a rank sends in one iteration what the next one receives in the iteration after. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int in = 0;
    for (int step = 0; step < steps; step++) {
        /* unsafe */
        if (rank > 0 && step > 0)
            MPI_Recv(&in, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        x = in + step;
        if (rank < size - 1)
            MPI_Send(&x, 1, MPI_INT, rank + 1, 0, MPI_COMM_WORLD);
        /* unsafe */
        y += x;
    }
    if (rank > 0)
        MPI_Recv(&in, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    y += in;
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
