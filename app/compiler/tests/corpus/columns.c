/* A communicator for each parity; messages within it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm mine;
    int place, count;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &mine);
    MPI_Comm_rank(mine, &place);
    MPI_Comm_size(mine, &count);
    for (int step = 0; step < steps; step++) {
        /* safe */
        if (place > 0)
            MPI_Send(&x, 1, MPI_INT, place - 1, 0, mine);
        /* unsafe */
        if (place < count - 1)
            MPI_Recv(&y, 1, MPI_INT, place + 1, 0, mine, MPI_STATUS_IGNORE);
        /* safe */
        x += y + 1;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
