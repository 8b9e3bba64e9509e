/* Messages in macros. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define SEND(what, to) MPI_Send(&(what), 1, MPI_INT, to, 0, MPI_COMM_WORLD)
#define RECEIVE(what, from) MPI_Recv(&(what), 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
#define EXCHANGE(what, into, to, from) do { SEND(what, to); RECEIVE(into, from); } while (0)

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int step = 0; step < steps; step++) {
        /* safe */
        SEND(x, next);
        /* unsafe */
        RECEIVE(y, before);
        /* safe */
        x += y + 1;
        EXCHANGE(x, y, next, before);
        /* safe */
        x++;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
