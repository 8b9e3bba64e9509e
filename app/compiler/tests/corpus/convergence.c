/* A loop until a sum that all ranks share is small. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, all = 100;
    x = 50 + rank;
    while (all > size) {
        /* safe */
        x /= 2;
        MPI_Send(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
        /* unsafe */
        MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Allreduce(&x, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        /* safe */
        y++;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
