/* Each rank goes round until its own value is small: not in step. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    x = 50 << rank;
    while (x > 1) {
        /* unsafe */
        x /= 2;
    }
    /* safe */
    MPI_Barrier(MPI_COMM_WORLD);
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
