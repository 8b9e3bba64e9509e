/* Neighbours by a Cartesian communicator. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 4, x = 0, y = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int dims[2] = {0, 0}, periods[2] = {0, 1}, up, down, left, right;
    MPI_Comm grid;
    MPI_Dims_create(size, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Cart_shift(grid, 0, 1, &up, &down);
    MPI_Cart_shift(grid, 1, 1, &left, &right);
    for (int step = 0; step < steps; step++) {
        /* safe */
        MPI_Sendrecv(&x, 1, MPI_INT, down, 0, &y, 1, MPI_INT, up, 0, grid, MPI_STATUS_IGNORE);
        /* safe */
        MPI_Send(&x, 1, MPI_INT, right, 1, grid);
        /* unsafe */
        MPI_Recv(&y, 1, MPI_INT, left, 1, grid, MPI_STATUS_IGNORE);
        /* safe */
        x += y + 1;
    }
    printf("%d %d\n", rank, x + y);
    MPI_Finalize();
    return 0;
}
