/* Only the receives are waited for; the sends later. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, in = 0;
    MPI_Request receive, send;
    for (int step = 0; step < steps; step++) {
        /* safe */
        MPI_Irecv(&in, 1, MPI_INT, before, 0, MPI_COMM_WORLD, &receive);
        MPI_Isend(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD, &send);
        MPI_Wait(&receive, MPI_STATUS_IGNORE);
        /* unsafe */
        y += in;
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        /* safe */
        x = y;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
