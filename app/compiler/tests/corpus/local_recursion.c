/* A function that calls itself, without messages. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int step = 0; step < steps; step++) {
        /* safe */
        x = fibonacci(step + rank);
        MPI_Sendrecv(&x, 1, MPI_INT, next, 0, &y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        /* safe */
        y++;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
