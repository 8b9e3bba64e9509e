/* What libmend-app costs, beside plain system calls in the same run. Times are those of the slowest rank; each line is a sample.
 *
 *   costs call CALLS          nanoseconds of a call without a request
 *   costs loop STEPS SIZE on|off   milliseconds of a loop that computes on SIZE doubles, with or without a safe point a step
 *   costs write MIB RUNS      milliseconds of a checkpoint and of write + fsync of as many bytes, in turns
 *   costs read MIB RUNS       after `write`: milliseconds of read into fresh memory; then of the restart: start with verification, values
 */
#include <fcntl.h>
#include <inttypes.h>
#include <mend_app_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int rank, ranks;

/* Without spinning: where ranks share processors, those that are done would slow down the slowest one, which is measured. */
static void await(MPI_Request request) {
    for (int done = 0; !done; usleep(50))
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

static double begin(void) {
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    await(request);
    return MPI_Wtime();
}

static double end(double since) {
    double mine = (MPI_Wtime() - since) * 1e3, slowest;
    MPI_Request request;
    MPI_Iallreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD, &request);
    await(request);
    return slowest;
}

/* In large pages, as NumPy's. */
static void *fresh(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static double plain_write(const void *data, size_t bytes) {
    char name[64];
    snprintf(name, sizeof name, "plain-%d", rank);
    double since = begin();
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    for (size_t done = 0; done < bytes;) {
        ssize_t wrote = write(fd, (const char *)data + done, bytes - done);
        if (wrote <= 0)
            MPI_Abort(MPI_COMM_WORLD, 3);
        done += (size_t)wrote;
    }
    fsync(fd);
    close(fd);
    return end(since);
}

static double plain_read(size_t bytes) {
    char name[64];
    snprintf(name, sizeof name, "plain-%d", rank);
    void *into = fresh(bytes);
    double since = begin();
    int fd = open(name, O_RDONLY);
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, (char *)into + done, bytes - done);
        if (got <= 0)
            MPI_Abort(MPI_COMM_WORLD, 3);
        done += (size_t)got;
    }
    close(fd);
    double took = end(since);
    munmap(into, bytes);
    return took;
}

static void fill(double *data, size_t count, int run) {
    uint64_t state = 88172645463325252u + (uint64_t)(rank * 1000 + run);
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data[i] = (double)(state >> 11);
    }
}

static void start(void) {
    if (mend_app_init_mpi(MPI_COMM_WORLD, "costs 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 2);
    mend_app_enter("main");
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *mode = argc > 1 ? argv[1] : "";
    size_t number = argc > 2 ? (size_t)atoll(argv[2]) : 0, second = argc > 3 ? (size_t)atoll(argv[3]) : 0;
    if (strcmp(mode, "call") == 0) {
        start();
        double since = begin();
        for (size_t i = 0; i < number; i++)
            mend_app_checkpoint();
        double took = end(since);
        if (rank == 0)
            printf("call %g\n", took * 1e6 / (double)number);
    } else if (strcmp(mode, "loop") == 0) {
        int on = argc > 4 && strcmp(argv[4], "on") == 0;
        double *data = calloc(second, sizeof *data), sum = 0;
        start();
        double since = begin();
        for (size_t step = 0; step < number; step++) {
            if (on)
                mend_app_checkpoint();
            for (size_t i = 0; i < second; i++)
                data[i] = data[i] * 0.5 + (double)step;
        }
        double took = end(since);
        for (size_t i = 0; i < second; i++)
            sum += data[i];
        if (rank == 0)
            printf("loop %g\n", took + 0 * sum);
    } else {
        size_t bytes = number << 20, count = bytes / sizeof(double);
        uint64_t extent = count;
        int writes = strcmp(mode, "write") == 0;
        double plain[64];
        for (size_t run = 0; !writes && run < second && run < 64; run++)
            plain[run] = plain_read(bytes);
        double *data = fresh(bytes);
        if (writes)
            fill(data, count, 0);
        double since = begin();
        start();
        double began = end(since);
        since = begin();
        mend_app_variable("data", data, MEND_APP_DOUBLE, 1, &extent, MEND_APP_PRIVATE);
        double values = end(since);
        if (!writes) {
            if (mend_app_checkpoint() != MEND_APP_RESTORED)
                MPI_Abort(MPI_COMM_WORLD, 4);
            for (size_t run = 0; rank == 0 && run < second && run < 64; run++)
                printf("read %g %g %g\n", began, values, plain[run]);
        }
        for (size_t run = 0; writes && run < second; run++) {
            fill(data, count, (int)run);
            double theirs = plain_write(data, bytes);
            since = begin();
            if (mend_app_checkpoint_now() != MEND_APP_TAKEN)
                MPI_Abort(MPI_COMM_WORLD, 5);
            double ours = end(since);
            if (rank == 0)
                printf("write %g %g\n", ours, theirs);
        }
    }
    mend_app_leave();
    mend_app_finalize();
    MPI_Finalize();
    return 0;
}
