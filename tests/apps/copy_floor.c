/* copy_floor BYTES COUNT...: what it costs to read another process's memory, without MPI. Per BYTES a line: bytes, microseconds
 * by pread of its /proc/PID/mem, microseconds by process_vm_readv, the same where the two places begin 32 bytes apart in their cache
 * lines; each the median of 7 rounds of COUNT reads.
 *
 * The first goes through a page of the kernel's (mem_rw: two copies, a page at a time) and needs only a descriptor, so that it
 * works between PID namespaces. The second copies once and needs a process number that the reader can name. */
#define _GNU_SOURCE
#include "floor.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ROUNDS = 7, SHIFT = 32 };

static double median_time(int file, pid_t owner, char *to, char *from, size_t bytes, long count) {
    double rounds[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double start = nanoseconds();
        for (long i = 0; i < count; i++) take_memory(file, owner, to, from, bytes);
        rounds[round] = (nanoseconds() - start) / 1e3 / count;
    }
    return median(rounds, ROUNDS);
}

int main(int count, char **arguments) {
    for (int at = 1; at + 1 < count; at += 2) {
        size_t bytes = strtoul(arguments[at], NULL, 10);
        long times = strtol(arguments[at + 1], NULL, 10);
        if (!bytes || times < 1) return 2;
        char *from = fresh(bytes, 1), *to = fresh(bytes + SHIFT, 2), told;
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
        if (read(ready[0], &told, 1) != 1) fail("read");
        int file = open_memory(owner);
        take_memory(file, owner, to, from, bytes);
        if (to[0] != 3 || to[bytes - 1] != 3) return 1;
        double first = median_time(file, owner, to, from, bytes, times), second = median_time(-1, owner, to, from, bytes, times);
        double shifted = median_time(-1, owner, to + SHIFT, from, bytes, times);
        printf("%zu %.3f %.3f %.3f\n", bytes, first, second, shifted);
        fflush(stdout);
        kill(owner, SIGKILL);
        waitpid(owner, NULL, 0);
        close(file);
        close(ready[0]);
        close(ready[1]);
        munmap(from, bytes);
        munmap(to, bytes + SHIFT);
    }
    return 0;
}
