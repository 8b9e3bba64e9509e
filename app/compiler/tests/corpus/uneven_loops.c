/* Ranks go round unequally often, by their rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps + rank; step++) {
        /* unsafe */
        x += step;
    }
    /* safe */
    MPI_Barrier(MPI_COMM_WORLD);
    /* safe */
    y++;
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
