/* Heat on a rod and sums over rows, columns and a ring, on ranks that move. The last line is the same with moves and without.
 *
 *   moves CELLS STEPS [-m STEP RANKS HOSTS] [-o WHAT STEP] [-a WHAT] [-c STEP] [-k STEP] [-p MICROSECONDS] [-u STEP] [-n STEP] [-b STEP] [-l]
 *
 * -m: rank 0 asks for a move at STEP (several times). -o: from STEP on rank 1 or 0 has something open for forty steps: window, request, persistent, exscan, communicator, graph, inter, file. -a: in a new process:
 * order (registers in another order), missing (doesn't register `total`, and closes its file), more (registers another variable), spread (`u` with another halo), early (ends before the safe point), silent (leaves out a
 * communicator); each that opens its file writes to it on the way. -c: a checkpoint is asked for. -k: rank 0 kills itself in a first run. -p: pause at each step. -u: rank 0 waits at STEP until there is a file `go`.
 * -n: a checkpoint is taken at STEP by mend_app_checkpoint_now(). -b: the library is
 * abandoned at STEP and started anew, and the program ends. -l: after a move the other ranks make no call before rank 0 has made calls for half a second.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <mend_app_mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 8 };
struct request {
    int64_t step;
    const char *ranks, *hosts;
};

static int rank, ranks;
static int64_t cells, start, count;
static double *u, *scratch;
static const char *what_open = "", *what_else = "";
static MPI_Win window = MPI_WIN_NULL;
static MPI_Request request = MPI_REQUEST_NULL;
static MPI_Comm other = MPI_COMM_NULL;
static MPI_File file = MPI_FILE_NULL;
static int received, base;

static void exchange(MPI_Comm world) {
    int left = rank ? rank - 1 : MPI_PROC_NULL, right = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(&u[1], 1, MPI_DOUBLE, left, 0, &u[count + 1], 1, MPI_DOUBLE, right, 0, world, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&u[count], 1, MPI_DOUBLE, right, 0, &u[0], 1, MPI_DOUBLE, left, 0, world, MPI_STATUS_IGNORE);
}

static int is(const char *what, const char *name) {
    return strcmp(what, name) == 0;
}

static void open_it(MPI_Comm world) {
    int self = rank == (ranks > 1);
    if (is(what_open, "window")) {
        MPI_Win_create(&base, sizeof base, 1, MPI_INFO_NULL, world, &window);
        MPI_Win_set_name(window, "halo");
    } else if (is(what_open, "communicator")) {
        MPI_Comm_dup(world, &other);
        MPI_Comm_set_name(other, "mine");
    } else if (is(what_open, "graph")) {
        int degrees[] = {1, 2}, edges[] = {1, 0};
        MPI_Graph_create(world, 2, degrees, edges, 0, &other);
        MPI_Comm_set_name(other, "mine");
    } else if (is(what_open, "inter")) {
        MPI_Intercomm_create(MPI_COMM_SELF, 0, world, 1 - rank, 7, &other);
        MPI_Comm_set_name(other, "mine");
    } else if (is(what_open, "exscan")) {
        /* It isn't complete at either rank before both have asked. */
        MPI_Iexscan(&rank, &received, 1, MPI_INT, MPI_SUM, world, &request);
    } else if (is(what_open, "file")) {
        MPI_File_open(world, "moves.out", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    } else if (is(what_open, "request") && self) {
        MPI_Irecv(&received, 1, MPI_INT, rank, 77, world, &request);
    } else if (is(what_open, "persistent") && self) {
        MPI_Recv_init(&received, 1, MPI_INT, rank, 77, world, &request);
    }
}

static void close_it(MPI_Comm world) {
    if (window != MPI_WIN_NULL)
        MPI_Win_free(&window);
    if (other != MPI_COMM_NULL)
        MPI_Comm_free(&other);
    if (file != MPI_FILE_NULL)
        MPI_File_close(&file);
    if (request != MPI_REQUEST_NULL && is(what_open, "persistent"))
        MPI_Request_free(&request);
    if (request != MPI_REQUEST_NULL && is(what_open, "exscan"))
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (request != MPI_REQUEST_NULL) {
        MPI_Send(&rank, 1, MPI_INT, rank, 77, world);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

static void at_exit(void) {
    fprintf(stderr, "moves: exit, departed: %d\n", mend_app_departed());
}

static void release(void *data) {
    (void)data;
    free(scratch);
}

/* A sum that doesn't depend on who has which element. */
static uint64_t mixed(const void *value, uint64_t index) {
    uint64_t bits;
    memcpy(&bits, value, 8);
    bits = (bits ^ (index * 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
    return bits ^ (bits >> 29);
}

int main(int argc, char **argv) {
    struct request asks[MOST];
    int asked = 0, done, alone = 0;
    int64_t steps, open_at = -1, checkpoint_at = -1, kill_at = -1, pause = 0, until = -1, now_at = -1, abandon_at = -1;
    cells = argc > 1 ? atoll(argv[1]) : 1000;
    steps = argc > 2 ? atoll(argv[2]) : 60;
    for (int i = 3; i < argc; i++) {
        if (is(argv[i], "-m") && i + 3 < argc && asked < MOST) {
            asks[asked++] = (struct request){atoll(argv[i + 1]), argv[i + 2], argv[i + 3]};
            i += 3;
        } else if (is(argv[i], "-o") && i + 2 < argc) {
            what_open = argv[++i];
            open_at = atoll(argv[++i]);
        } else if (is(argv[i], "-a") && i + 1 < argc) {
            what_else = argv[++i];
        } else if (is(argv[i], "-c") && i + 1 < argc) {
            checkpoint_at = atoll(argv[++i]);
        } else if (is(argv[i], "-k") && i + 1 < argc) {
            kill_at = atoll(argv[++i]);
        } else if (is(argv[i], "-p") && i + 1 < argc) {
            pause = atoll(argv[++i]);
        } else if (is(argv[i], "-u") && i + 1 < argc) {
            until = atoll(argv[++i]);
        } else if (is(argv[i], "-n") && i + 1 < argc) {
            now_at = atoll(argv[++i]);
        } else if (is(argv[i], "-b") && i + 1 < argc) {
            abandon_at = atoll(argv[++i]);
        } else if (is(argv[i], "-l")) {
            alone = 1;
        }
    }
    atexit(at_exit);
    MPI_Init(&argc, &argv);
    if (mend_app_init_mpi(MPI_COMM_WORLD, "moves 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    int restarted = mend_app_restarting() && !mend_app_arriving();
    if (!mend_app_arriving())
        what_else = "";
    MPI_Comm_rank(mend_app_world(), &rank);
    MPI_Comm_size(mend_app_world(), &ranks);
    if (is(what_else, "early")) {
        done = mend_app_finalize();
        MPI_Finalize();
        return 1;
    }

    static MPI_Comm half, row, ring, twin, once, kept;
    int sides[1] = {ranks}, round[1] = {1};
    mend_app_comm_split("half", mend_app_world(), rank % 2, rank, &half);
    mend_app_comm_dup("twin", half, &twin);
    mend_app_comm_split("row", twin, rank / 4, -rank, &row);
    mend_app_comm_free(&twin);
    for (int i = 0; i < 3; i++) {
        /* One name several times, as in a function of the program. */
        if (mend_app_comm_dup("once", mend_app_world(), &once) < 0 || mend_app_comm_dup("kept", mend_app_world(), &kept) < 0)
            MPI_Abort(MPI_COMM_WORLD, 1);
        mend_app_comm_free(&once);
        if (i < 2)
            mend_app_comm_free(&kept);
    }
    if (!is(what_else, "silent"))
        mend_app_cart_create("ring", mend_app_world(), 1, sides, round, &ring);

    start = cells * rank / ranks;
    count = cells * (rank + 1) / ranks - start;
    u = calloc(count + 2, sizeof *u);
    scratch = calloc(4096, sizeof *scratch);
    mend_app_departing(release, NULL);
    mend_app_dimension rod = mend_app_block(cells, start, count, 1, 1);
    if (is(what_else, "spread"))
        rod = mend_app_block(cells, start - 1, count + 1, 0, 1);
    for (int64_t i = 0; i < count; i++)
        u[i + 1] = (start + i) % 17 == 3 ? 100.0 : 0.0;

    mend_app_enter("main");
    int64_t step = 0, moved = 0;
    double total = 0, *middle = &u[count / 2];
    FILE *log = NULL;
    if (is(what_else, "order"))
        mend_app_array("u", u, MEND_APP_DOUBLE, 1, &rod);
    mend_app_variable("step", &step, MEND_APP_INT64, 0, NULL, MEND_APP_REPLICATED);
    if (!is(what_else, "missing"))
        mend_app_variable("total", &total, MEND_APP_DOUBLE, 0, NULL, MEND_APP_PRIVATE);
    if (!is(what_else, "order"))
        mend_app_array("u", u, MEND_APP_DOUBLE, 1, &rod);
    mend_app_variable("middle", &middle, MEND_APP_POINTER, 0, NULL, MEND_APP_PRIVATE);
    char name[32];
    snprintf(name, sizeof name, "log-%d", rank);
    log = mend_app_fopen("log", name, "w");
    if (*what_else) {
        fprintf(log, "%1000s\n", "written");
        fflush(log);
        fprintf(log, "on the way\n");
    }
    if (is(what_else, "missing"))
        mend_app_fclose(log);
    if (is(what_else, "more"))
        mend_app_variable("more", &moved, MEND_APP_INT64, 0, NULL, MEND_APP_PRIVATE);
    for (; step < steps; step++) {
        for (int i = 0; i < asked && rank == 0; i++)
            if (asks[i].step == step && !mend_app_restarting() && mend_app_migrate(asks[i].ranks, asks[i].hosts) < 0)
                printf("moves: not asked: %s\n", mend_app_error());
        if (step == checkpoint_at && rank == 0)
            mend_app_request();
        if (step == open_at)
            open_it(mend_app_world());
        done = step == now_at && !mend_app_restarting() ? mend_app_checkpoint_now() : mend_app_checkpoint();
        if (done == MEND_APP_MOVED && rank == 0)
            printf("moves: at step %" PRId64 " others have moved\n", step);
        if (done == MEND_APP_RESTORED && rank == 0)
            fprintf(stderr, "moves: goes on at step %" PRId64 "\n", step);
        if (alone && (done == MEND_APP_MOVED || done == MEND_APP_RESTORED)) {
            for (int i = 0; i < 150 && rank == 0; i++) {
                usleep(10000);
                mend_app_checkpoint();
            }
            while (rank == 0 ? close(creat("alone", 0600)) != 0 : access("alone", F_OK) != 0)
                usleep(5000);
        }
        if (step == open_at + 40)
            close_it(mend_app_world());
        if (step == kill_at && rank == 0 && !restarted)
            raise(SIGKILL);
        if (step == abandon_at) {
            mend_app_abandon();
            done = mend_app_init_mpi(MPI_COMM_WORLD, "moves 1", NULL);
            mend_app_comm_dup("half", mend_app_world(), &half);
            printf("moves: begins again: %d, and ends: %d\n", done, mend_app_finalize());
            MPI_Finalize();
            return done < 0;
        }
        if (pause)
            usleep(pause);
        while (step == until && rank == 0 && access("go", F_OK) != 0)
            usleep(10000);
        fprintf(log, "step %" PRId64 "\n", step);
        exchange(mend_app_world());
        scratch[0] = u[0];
        for (int64_t i = 1; i <= count; i++) {
            scratch[1] = u[i];
            u[i] = u[i] + 0.25 * (scratch[0] - 2 * u[i] + u[i + 1]);
            scratch[0] = scratch[1];
        }
        int64_t sums[3] = {0}, mine = (rank + 1) * (step + 1) % 1000003;
        int before, after;
        MPI_Allreduce(&mine, &sums[0], 1, MPI_INT64_T, MPI_SUM, half);
        MPI_Barrier(kept);
        MPI_Allreduce(&mine, &sums[1], 1, MPI_INT64_T, MPI_SUM, row);
        MPI_Cart_shift(ring, 0, 1, &before, &after);
        MPI_Sendrecv(&mine, 1, MPI_INT64_T, after, 1, &sums[2], 1, MPI_INT64_T, before, 1, ring, MPI_STATUS_IGNORE);
        total += (double)(sums[0] + 3 * sums[1] + 7 * sums[2]) + *middle;
    }
    mend_app_fclose(log);
    mend_app_leave();
    uint64_t sum = mixed(&total, rank), whole;
    for (int64_t i = 0; i < count; i++)
        sum += mixed(&u[i + 1], start + i);
    MPI_Reduce(&sum, &whole, 1, MPI_UINT64_T, MPI_SUM, 0, mend_app_world());
    if (rank == 0)
        printf("moves digest=%016" PRIx64 " cells=%" PRId64 " steps=%" PRId64 "\n", whole, cells, steps);
    fflush(stdout);
    mend_app_comm_free(&row);
    done = mend_app_finalize();
    MPI_Finalize();
    return done < 0;
}
