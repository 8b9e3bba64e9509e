/* A reduction tree by recursion, and one step per iteration. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int reduce(int value, int rank, int size, int distance) {
    int other = 0;
    if (distance >= size)
        return value;
    /* unsafe */
    if (rank % (2 * distance) == 0) {
        if (rank + distance < size) {
            MPI_Recv(&other, 1, MPI_INT, rank + distance, distance, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            value += other;
        }
        return reduce(value, rank, size, 2 * distance);
    }
    MPI_Send(&value, 1, MPI_INT, rank - distance, distance, MPI_COMM_WORLD);
    return value;
}

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        /* safe */
        x = reduce(rank + step, rank, size, 1);
        y += x;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
