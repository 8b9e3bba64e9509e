/* copy_floor BYTES COUNT...: what it costs to read another process's memory, without MPI. Per BYTES a line: bytes, microseconds
 * by pread of its /proc/PID/mem, microseconds by process_vm_readv; each the median of 7 rounds of COUNT reads.
 *
 * The first goes through a page of the kernel's (mem_rw: two copies, a page at a time) and needs only a descriptor, so that it
 * works between PID namespaces. The second copies once and needs a process number that the reader can name. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 7 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

static char *fresh(size_t bytes, int salt) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    memset(memory, salt, bytes);
    return memory;
}

/* One read of all bytes by either way. */
static void take(int file, pid_t owner, char *to, char *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        struct iovec local = {to + done, bytes - done}, remote = {from + done, bytes - done};
        ssize_t got = file >= 0 ? pread(file, to + done, bytes - done, (off_t)(size_t)(from + done)) : process_vm_readv(owner, &local, 1, &remote, 1, 0);
        if (got <= 0) fail(file >= 0 ? "pread of /proc/PID/mem" : "process_vm_readv");
        done += (size_t)got;
    }
}

static double median_time(int file, pid_t owner, char *to, char *from, size_t bytes, long count) {
    double rounds[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (long i = 0; i < count; i++) take(file, owner, to, from, bytes);
        rounds[round] = (now() - start) / count;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, ascending);
    return rounds[ROUNDS / 2];
}

int main(int count, char **arguments) {
    for (int at = 1; at + 1 < count; at += 2) {
        size_t bytes = strtoul(arguments[at], NULL, 10);
        long times = strtol(arguments[at + 1], NULL, 10);
        if (!bytes || times < 1) return 2;
        char *from = fresh(bytes, 1), *to = fresh(bytes, 2), path[64];
        int ready[2];
        if (pipe(ready)) fail("pipe");
        pid_t owner = fork();
        if (owner < 0) fail("fork");
        if (owner == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            memset(from, 3, bytes);
            if (write(ready[1], "", 1) != 1) _exit(1);
            for (;;) pause();
        }
        if (read(ready[0], path, 1) != 1) fail("read");
        snprintf(path, sizeof path, "/proc/%d/mem", (int)owner);
        int file = open(path, O_RDONLY);
        if (file < 0) fail(path);
        take(file, owner, to, from, bytes);
        if (to[0] != 3 || to[bytes - 1] != 3) return 1;
        double first = median_time(file, owner, to, from, bytes, times), second = median_time(-1, owner, to, from, bytes, times);
        printf("%zu %.3f %.3f\n", bytes, first, second);
        fflush(stdout);
        kill(owner, SIGKILL);
        waitpid(owner, NULL, 0);
        close(file);
        close(ready[0]);
        close(ready[1]);
        munmap(from, bytes);
        munmap(to, bytes);
    }
    return 0;
}
