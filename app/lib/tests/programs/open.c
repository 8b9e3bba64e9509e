/* What mend_app_mpi.c sees that is open, from calls that are made to this process itself; it is compiled into this file, for what it sees is its own. Prints what isn't so. */
#include "mend_app_mpi.c"

static int wrong;

static void expect(const char *made_by, int open) {
    char expected[64];
    const char *found = what_is_open();
    snprintf(expected, sizeof expected, "of %s", made_by);
    if (open ? found && strstr(found, expected) : !found)
        return;
    wrong++;
    printf("%s: %s\n", made_by, found ? found : "nothing is open");
}

/* A request that has begun ends by MPI_Wait, a persistent one is freed. */
#define BEGINS(name, arguments) (MPI_##name arguments, expect("MPI_" #name, 1), MPI_Wait(&request, MPI_STATUS_IGNORE), expect("MPI_" #name, 0))
#define STAYS(name, arguments) (MPI_##name arguments, expect("MPI_" #name, 1), MPI_Request_free(&request), expect("MPI_" #name, 0))
#define OPENS(name, arguments, end) (MPI_##name arguments, expect("MPI_" #name, 1), end, expect("MPI_" #name, 0))

int main(int argc, char **argv) {
    int a[4] = {0}, b[4] = {0}, zero[1] = {0}, one[1] = {1}, degrees[] = {0};
    MPI_Request request;
    MPI_Comm comm, self;
    MPI_Init(&argc, &argv);
    self = MPI_COMM_SELF;
    BEGINS(Isend, (a, 1, MPI_INT, MPI_PROC_NULL, 0, self, &request));
    BEGINS(Irecv, (a, 1, MPI_INT, MPI_PROC_NULL, 0, self, &request));
    BEGINS(Iexscan, (a, b, 1, MPI_INT, MPI_SUM, self, &request));
    BEGINS(Ialltoallv, (a, one, zero, MPI_INT, b, one, zero, MPI_INT, self, &request));
    BEGINS(Iscatterv, (a, one, zero, MPI_INT, b, 1, MPI_INT, 0, self, &request));
    STAYS(Recv_init, (a, 1, MPI_INT, 0, 0, self, &request));
    OPENS(Comm_dup, (self, &comm), MPI_Comm_free(&comm));
    OPENS(Graph_create, (self, 1, degrees, zero, 0, &comm), MPI_Comm_free(&comm));
    OPENS(Comm_idup, (self, &comm, &request), (MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_Comm_free(&comm)));
#if MPI_VERSION >= 4
    const MPI_Count many[1] = {1};
    const MPI_Aint at[1] = {0};
    void *memory;
    MPI_Win window;
    BEGINS(Isendrecv, (a, 1, MPI_INT, 0, 0, b, 1, MPI_INT, 0, 0, self, &request));
    BEGINS(Isendrecv_replace, (a, 1, MPI_INT, 0, 0, 0, 0, self, &request));
    BEGINS(Irecv_c, (a, 1, MPI_INT, MPI_PROC_NULL, 0, self, &request));
    BEGINS(Isendrecv_c, (a, 1, MPI_INT, 0, 0, b, 1, MPI_INT, 0, 0, self, &request));
    BEGINS(Iallreduce_c, (a, b, 1, MPI_INT, MPI_SUM, self, &request));
    BEGINS(Iallgatherv_c, (a, 1, MPI_INT, b, many, at, MPI_INT, self, &request));
    STAYS(Send_init_c, (a, 1, MPI_INT, 0, 0, self, &request));
    STAYS(Psend_init, (a, 2, 2, MPI_INT, 0, 0, self, MPI_INFO_NULL, &request));
    STAYS(Precv_init, (a, 2, 2, MPI_INT, 0, 0, self, MPI_INFO_NULL, &request));
    STAYS(Barrier_init, (self, MPI_INFO_NULL, &request));
    STAYS(Allreduce_init, (a, b, 1, MPI_INT, MPI_SUM, self, MPI_INFO_NULL, &request));
    STAYS(Alltoallv_init_c, (a, many, at, MPI_INT, b, many, at, MPI_INT, self, MPI_INFO_NULL, &request));
    OPENS(Comm_idup_with_info, (self, MPI_INFO_NULL, &comm, &request), (MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_Comm_free(&comm)));
    OPENS(Win_allocate_c, (sizeof a, 1, MPI_INFO_NULL, self, &memory, &window), MPI_Win_free(&window));
#endif
    printf("open: %d wrong, calls %s\n", wrong, calls_are_seen ? "are seen" : "aren't seen");
    MPI_Finalize();
    return wrong != 0;
}
