/* What the programs that measure floors share. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static inline double nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static inline void fail(const char *what) {
    perror(what);
    exit(1);
}

static inline int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

/* Sorts them. */
static inline double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

static inline char *fresh(size_t bytes, int salt) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    memset(memory, salt, bytes);
    return memory;
}

static inline int open_memory(pid_t owner) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", (int)owner);
    int file = open(path, O_RDONLY);
    if (file < 0) fail(path);
    return file;
}

/* Reads another process's memory: from its /proc/PID/mem, or by process_vm_readv if `file` is negative. */
static inline void take_memory(int file, pid_t owner, char *to, char *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        struct iovec local = {to + done, bytes - done}, remote = {from + done, bytes - done};
        ssize_t got = file >= 0 ? pread(file, to + done, bytes - done, (off_t)(size_t)(from + done)) : process_vm_readv(owner, &local, 1, &remote, 1, 0);
        if (got <= 0) fail(file >= 0 ? "pread of /proc/PID/mem" : "process_vm_readv");
        done += (size_t)got;
    }
}

static inline void stay(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set)) perror("sched_setaffinity");
}
