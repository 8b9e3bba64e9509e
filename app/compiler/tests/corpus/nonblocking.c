/* Non-blocking exchange: open until it is waited for. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int left = rank ? rank - 1 : MPI_PROC_NULL, right = rank < size - 1 ? rank + 1 : MPI_PROC_NULL, a = 0, b = 0;
    MPI_Request requests[4];
    for (int step = 0; step < steps; step++) {
        /* safe */
        MPI_Irecv(&a, 1, MPI_INT, left, 0, MPI_COMM_WORLD, &requests[0]);
        /* unsafe */
        MPI_Irecv(&b, 1, MPI_INT, right, 0, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(&x, 1, MPI_INT, right, 0, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(&x, 1, MPI_INT, left, 0, MPI_COMM_WORLD, &requests[3]);
        /* unsafe */
        y += step;
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        /* safe */
        x = a + b;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
