/* Preloaded into a program of others, keeps it in its middle: its first MPI_Sendrecv, which all ranks must come to, is done
 * again and again until there is a file `go`. */
#include <mpi.h>
#include <unistd.h>

int MPI_Sendrecv(const void *out, int out_count, MPI_Datatype out_type, int to, int out_tag, void *in, int in_count, MPI_Datatype in_type,
                 int from, int in_tag, MPI_Comm comm, MPI_Status *status) {
    static int gone;
    int code;
    do {
        code = PMPI_Sendrecv(out, out_count, out_type, to, out_tag, in, in_count, in_type, from, in_tag, comm, status);
        if (!gone) {
            gone = access("go", F_OK) == 0;
            PMPI_Bcast(&gone, 1, MPI_INT, 0, MPI_COMM_WORLD);
        }
    } while (!gone && code == MPI_SUCCESS);
    return code;
}
