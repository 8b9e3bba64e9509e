/* A message behind a function pointer that is always the same. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int swap(int value, int rank, int size) {
    int in = 0;
    MPI_Sendrecv(&value, 1, MPI_INT, (rank + 1) % size, 0, &in, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return in;
}

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int (*hook)(int, int, int) = swap;
    for (int step = 0; step < steps; step++) {
        /* safe */
        y += hook(x, rank, size);
        /* safe */
        x++;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
