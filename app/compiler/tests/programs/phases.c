/* A table that takes long to make, and two phases that use it. A restart in the second leaves out the first, and what makes the table. phases STEPS [KILL] */
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, ranks, steps = atoi(argv[1]), kill_at = argc > 2 ? atoi(argv[2]) : -1;
    double table[100], field[100], sum = 0, all = 0, weight = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < 100; i++)
        for (int j = 0; j < 20000; j++)
            table[i] = j ? table[i] + sin(i + 1e-4 * j + rank) : 0;
    for (int i = 0; i < 100; i++)
        field[i] = i;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < 100; i++)
            field[i] = 0.5 * field[i] + 1e-3 * table[i] + step;
        MPI_Allreduce(&field[step % 100], &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        weight += all;
    }
    if (rank == 0)
        printf("first phase %.17g\n", weight);
    for (int step = 0; step < steps; step++) {
        if (step == kill_at && rank == 0)
            raise(SIGKILL);
        for (int i = 0; i < 100; i++)
            field[i] = 0.25 * field[i] + 1e-3 * table[99 - i] / weight;
        sum += field[step % 100];
        MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("phases digest %.17g %.17g\n", all, weight);
    MPI_Finalize();
    return 0;
}
