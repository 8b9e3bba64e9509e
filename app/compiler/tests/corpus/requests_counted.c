/* Requests only for neighbours that exist. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int a = 0, b = 0;
    MPI_Request requests[4];
    for (int step = 0; step < steps; step++) {
        int open = 0;
        /* safe */
        if (rank > 0) {
            MPI_Irecv(&a, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, &requests[open++]);
            MPI_Isend(&x, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, &requests[open++]);
        }
        if (rank < size - 1) {
            MPI_Irecv(&b, 1, MPI_INT, rank + 1, 0, MPI_COMM_WORLD, &requests[open++]);
            MPI_Isend(&x, 1, MPI_INT, rank + 1, 0, MPI_COMM_WORLD, &requests[open++]);
        }
        /* unsafe */
        y += step;
        MPI_Waitall(open, requests, MPI_STATUSES_IGNORE);
        /* safe */
        x = a + b + 1;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
