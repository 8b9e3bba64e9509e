/* Ranks in loops that are in step or not, for requests. Each call at which a checkpoint was taken is a line on standard output.
 *
 *   loops CALLS MICROSECONDS [step | uneven | early | places | replicas | inside | rush | late | still] [-r CALL] [-s CALLS]
 *
 * step: a message to each neighbour between calls. uneven: rank 1 makes two calls where the others make one. early: rank 1 makes half of the calls, and
 * nobody waits for it. still: rank 1 stands still for a second at its tenth call, and nobody waits for it. places: rank 1 is in another context. replicas: a replicated
 * variable differs; inside: it lies in a private one. rush: in step, and only rank 0 is slow. late: rank 0 is, too, and rank 1 waits after its first call until there is a
 * file `go`.
 * -r: every rank asks at its call CALL plus its number. -s: it stops so many calls after its first checkpoint.
 */
#include <inttypes.h>
#include <mend_app_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int64_t calls = argc > 1 ? atoll(argv[1]) : 100, pause = argc > 2 ? atoll(argv[2]) : 0, ask_at = -1, stop_after = 0;
    const char *mode = argc > 3 ? argv[3] : "step";
    int rank, ranks;
    for (int i = 4; i + 1 < argc; i++)
        if (strcmp(argv[i], "-r") == 0)
            ask_at = atoll(argv[i + 1]);
        else if (strcmp(argv[i], "-s") == 0)
            stop_after = atoll(argv[i + 1]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (mend_app_init_mpi(MPI_COMM_WORLD, "loops 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    int64_t call = 0, pair[2] = {0}, *replica = &pair[1];
    int inside = strcmp(mode, "inside") == 0;
    mend_app_enter(strcmp(mode, "places") == 0 && rank == 1 ? "elsewhere" : "loop");
    mend_app_variable("call", &call, MEND_APP_INT64, 0, NULL, MEND_APP_PRIVATE);
    if (inside)
        mend_app_variable("pair", pair, MEND_APP_INT64, 1, (uint64_t[]){2}, MEND_APP_PRIVATE);
    mend_app_variable("replica", replica, MEND_APP_INT64, 0, NULL, MEND_APP_REPLICATED);
    int late = strcmp(mode, "late") == 0, early = strcmp(mode, "early") == 0, still = strcmp(mode, "still") == 0, uneven = strcmp(mode, "uneven") == 0, rush = strcmp(mode, "rush") == 0;
    if (inside || strcmp(mode, "replicas") == 0)
        *replica = rank;
    int64_t mine = early && rank == 1 ? calls / 2 : calls;
    printf("rank %d starts\n", rank);
    fflush(stdout);
    for (; call < mine; call++) {
        if (ask_at >= 0 && call + 1 == ask_at + rank)
            mend_app_request();
        for (int again = 0; again < (uneven && rank == 1 ? 2 : 1); again++)
            if (mend_app_checkpoint() == MEND_APP_TAKEN) {
                printf("rank %d took at %" PRId64 "\n", rank, call + 1);
                if (stop_after && call + stop_after < mine)
                    mine = call + stop_after;
            }
        if (late && rank == 1 && call == 0) {
            printf("rank 1 waits\n");
            fflush(stdout);
            while (access("go", F_OK) != 0)
                usleep(5000);
        }
        if (pause && (!(rush || late) || rank == 0))
            usleep((useconds_t)pause);
        if (still && rank == 1 && call == 9)
            sleep(1);
        if (!early && !late && !still && ranks > 1) {
            int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, out = 1, in;
            MPI_Sendrecv(&out, 1, MPI_INT, left, 0, &in, 1, MPI_INT, right, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Sendrecv(&out, 1, MPI_INT, right, 0, &in, 1, MPI_INT, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    mend_app_leave();
    int done = mend_app_finalize();
    printf("rank %d ends\n", rank);
    MPI_Finalize();
    return done < 0;
}
