/* Heat on a plate, in two files, with pointers that change places, and a log. plate STEPS [KILL]: rank 0 is killed at step KILL. */
#include "plate.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, ranks, steps = atoi(argv[1]), kill_at = argc > 2 ? atoi(argv[2]) : -1;
    struct plate p;
    FILE *log = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    make_plate(&p, 64, 48, rank, ranks);
    if (rank == 0)
        log = fopen("plate.log", "w");
    for (int j = 0; j < p.columns && rank == 0; j++)
        p.now[p.columns + j] = p.next[p.columns + j] = 10;
    int up = rank ? rank - 1 : MPI_PROC_NULL, down = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    for (int step = 0; step < steps; step++) {
        if (step == kill_at && rank == 0)
            raise(SIGKILL);
        step_plate(&p, up, down);
        if (log && step % 10 == 0)
            fprintf(log, "step %d: change %.17g\n", step, total_change);
    }
    double heat = heat_of(&p);
    if (rank == 0) {
        fprintf(log, "end\n");
        fclose(log);
        printf("plate digest %.17g %.17g\n", heat, total_change);
    }
    free(p.now);
    free(p.next);
    free(p.sources);
    MPI_Finalize();
    return 0;
}
