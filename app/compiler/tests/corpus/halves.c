/* One function sends, another one receives. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void begin(int value, int to) {
    MPI_Send(&value, 1, MPI_INT, to, 0, MPI_COMM_WORLD);
}

static int end(int from) {
    int in = 0;
    MPI_Recv(&in, 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return in;
}

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        /* safe */
        begin(x, (rank + 1) % size);
        /* unsafe */
        x += step;
        y += end((rank + size - 1) % size);
        /* safe */
        x++;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
