/* Persistent requests. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, in = 0;
    MPI_Request requests[2];
    MPI_Recv_init(&in, 1, MPI_INT, before, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Send_init(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD, &requests[1]);
    for (int step = 0; step < steps; step++) {
        /* safe */
        x++;
        MPI_Startall(2, requests);
        /* unsafe */
        y += step;
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        /* safe */
        y += in;
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
