/* Partners at powers of two; ranks without a partner do nothing. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        /* safe */
        for (int bit = 1; bit < size; bit *= 2) {
            int partner = rank ^ bit;
            /* safe */
            if (partner < size) {
                MPI_Send(&x, 1, MPI_INT, partner, 0, MPI_COMM_WORLD);
                MPI_Recv(&y, 1, MPI_INT, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            /* safe */
            x += y;
        }
        x = x % 1000 + rank;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
