/* Exchange in a function, called twice. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int swap(int value, int rank, int size, int way) {
    int in = 0;
    /* safe */
    MPI_Send(&value, 1, MPI_INT, (rank + way) % size, 0, MPI_COMM_WORLD);
    /* unsafe */
    MPI_Recv(&in, 1, MPI_INT, (rank + size - way) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    /* safe */
    return in;
}

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        /* safe */
        y += swap(x, rank, size, 1);
        /* safe */
        y += swap(x, rank, size, size - 1);
        x++;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
