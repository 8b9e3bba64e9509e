/* A case without break: one send more than receives. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int step = 0; step < steps; step++) {
        /* unsafe */
        switch (step % 2) {
        case 0:
            MPI_Send(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
            /* unsafe */
            x++;
        case 1:
            MPI_Send(&y, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
        }
        MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    for (int late = 0; late < (steps + 1) / 2; late++)
        MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
