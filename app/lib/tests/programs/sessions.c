/* Sessions that begin twice, or end where not all ranks are done: sessions twice, or sessions STEPS [SKIP]: rank 1 comes to no safe point with SKIP, rank 0 aborts at step 5 without. */
#include <mend_app_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int twice(void) {
    MPI_Comm row;
    int size = 0;
    mend_app_init_mpi(MPI_COMM_WORLD, "sessions", NULL);
    mend_app_comm_dup("row", mend_app_world(), &row);
    int again = mend_app_init_mpi(MPI_COMM_WORLD, "sessions", NULL);
    if (mend_app_world() != MPI_COMM_NULL)
        MPI_Comm_size(row, &size);
    printf("again %d, row %d\n", again, size);
    mend_app_finalize();
    return again == MEND_APP_INVALID && size == 1 ? 0 : 1;
}

int main(int argc, char **argv) {
    int rank, step = 0, skip = argc > 2, bad = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (strcmp(argv[1], "twice") == 0) {
        bad = twice();
    } else {
        mend_app_init_mpi(MPI_COMM_WORLD, "sessions", NULL);
        mend_app_enter("main");
        mend_app_variable("step", &step, MEND_APP_INT, 0, NULL, MEND_APP_REPLICATED);
        for (; step < atoi(argv[1]) && !(skip && rank == 1); step++) {
            mend_app_checkpoint_now();
            if (!skip && step == 5 && rank == 0)
                abort();
        }
        mend_app_leave();
        mend_app_finalize();
    }
    MPI_Finalize();
    return bad;
}
