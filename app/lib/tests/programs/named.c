/* Communicators that can't be made: each call fails, and mend_app_error() says why. */
#include <mend_app_mpi.h>
#include <stdio.h>

static void told(const char *what, int code) {
    printf("%s: %d %s\n", what, code, mend_app_error());
}

int main(int argc, char **argv) {
    MPI_Comm made, row;
    int none[1] = {0}, many[1] = {99};
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    told("early", mend_app_comm_dup("early", MPI_COMM_WORLD, &made));
    told("null", mend_app_init_mpi(MPI_COMM_NULL, "named 1", NULL));
    if (mend_app_init_mpi(MPI_COMM_WORLD, "named 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Comm_set_errhandler(mend_app_world(), MPI_ERRORS_RETURN);
    told("many", mend_app_cart_create("row", mend_app_world(), 1, many, none, &row));
    told("foreign", mend_app_comm_dup("other", MPI_COMM_WORLD, &made));
    told("dimensions", mend_app_cart_create("cart", mend_app_world(), 9, none, none, &made));
    /* Its name is free again. */
    printf("row: %d\n", mend_app_comm_split("row", mend_app_world(), 0, 0, &row));
    told("twice", mend_app_comm_split("row", mend_app_world(), 0, 0, &made));
    mend_app_finalize();
    MPI_Finalize();
}
