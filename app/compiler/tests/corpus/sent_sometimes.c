/* A message that is sent in one iteration and received in another. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int step = 0; step < 2 * steps; step++) {
        /* unsafe */
        if (step % 2 == 0)
            MPI_Send(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
        /* unsafe */
        if (step % 2 == 1)
            MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        x += y + 1;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
