/* Whether a message is sent depends on each rank's data. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int seed = rank;
    for (int step = 0; step < steps; step++) {
        /* safe */
        seed = (seed * 1103515245 + 12345) & 0x7fffffff;
        int wants = seed % 3 == 0, others[64];
        MPI_Allgather(&wants, 1, MPI_INT, others, 1, MPI_INT, MPI_COMM_WORLD);
        /* safe */
        if (wants && rank != 0)
            MPI_Send(&seed, 1, MPI_INT, 0, step, MPI_COMM_WORLD);
        /* unsafe */
        if (rank == 0)
            for (int from = 1; from < size; from++)
                if (others[from])
                    MPI_Recv(&y, 1, MPI_INT, from, step, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        x += y;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
