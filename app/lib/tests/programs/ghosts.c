/* Lists with ghosts: each rank has its part of all elements and two of each neighbour's. In `equal` these are copies of the neighbour's values, in `unequal` they aren't. The first run saves both, the next one tells what
 * came of them. */
#include <mend_app_mpi.h>
#include <stdio.h>

enum { ALL = 12 };

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (mend_app_init_mpi(MPI_COMM_WORLD, "ghosts 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    uint64_t index[ALL], count = 0, from = (uint64_t)(ALL * rank / ranks), to = (uint64_t)(ALL * (rank + 1) / ranks);
    double equal[ALL], unequal[ALL];
    for (uint64_t i = from < 2 ? 0 : from - 2; i < to + 2 && i < ALL; i++) {
        equal[count] = mend_app_restarting() ? -1 : (double)i;
        unequal[count] = i < from || i >= to ? 0.5 : (double)i;
        index[count++] = i;
    }
    mend_app_dimension list = mend_app_list(ALL, count, index);
    int good = mend_app_array("equal", equal, MEND_APP_DOUBLE, 1, &list), bad = mend_app_array("unequal", unequal, MEND_APP_DOUBLE, 1, &list);
    if (!mend_app_restarting()) {
        mend_app_checkpoint_now();
        mend_app_finalize();
    } else {
        for (uint64_t i = 0; i < count; i++)
            good = equal[i] == (double)index[i] ? good : -1;
        printf("equal %d, unequal %d\n", good, bad);
        mend_app_abandon();
    }
    MPI_Finalize();
}
