/* A continue that leaves out the receive. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, left = 0;
    for (int step = 0; step < steps; step++) {
        /* unsafe */
        MPI_Send(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
        left++;
        if (step % 2 == 0)
            continue;
        /* unsafe */
        MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        left--;
    }
    while (left-- > 0)
        MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
