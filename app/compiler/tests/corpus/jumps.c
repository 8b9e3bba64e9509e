/* A loop made of goto, and continue. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int step = 0, next = (rank + 1) % size, before = (rank + size - 1) % size;
    again:
    /* safe */
    step++;
    MPI_Send(&x, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
    /* unsafe */
    MPI_Recv(&y, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (step % 3 == 0) {
        /* safe */
        x++;
        if (step < steps)
            goto again;
    }
    x += y;
    if (step < steps)
        goto again;
    /* safe */
    x++;
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
