/* A process full of noise that measures itself on command. Arguments: MiB, 1 for huge pages.
 *
 * "dirty N": changes one word of every N-th page. "touch": changes one word of each page, says "touch NS" (per page).
 * "raw": the same in memory of its own, under write protection of its own. "pace MS": how fast it changes all of its memory,
 * "pace STREAM RANDOM" (ns per word, in order and not). "end".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static size_t size;
static volatile uint64_t *memory;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static volatile uint64_t *map(int huge) {
    char *base = mmap(NULL, size + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *at = (uint64_t *)(((uintptr_t)base + (2 << 20) - 1) & -(2l << 20)), x = 88172645463325252ull;
    madvise(at, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (size_t i = 0; i < size / 8; i++) x ^= x << 13, x ^= x >> 7, x ^= x << 17, at[i] = x;
    return at;
}

static double touch(volatile uint64_t *at) {
    double start = now();
    for (size_t i = 0; i < size / 8; i += 512) at[i]++;
    return (now() - start) / (size / 4096);
}

static double raw(int huge) {
    volatile uint64_t *at = map(huge);
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    struct uffdio_api api = {.api = UFFD_API, .features = 1 << 15};
    struct uffdio_register range = {{(uintptr_t)at, size}, UFFDIO_REGISTER_MODE_WP, 0};
    struct uffdio_writeprotect protect = {{(uintptr_t)at, size}, UFFDIO_WRITEPROTECT_MODE_WP};
    double took = ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range) || ioctl(fd, UFFDIO_WRITEPROTECT, &protect) ? 0 : touch(at);
    close(fd);
    munmap((void *)at, size);
    return took;
}

static double pace(double ms, int random) {
    double start = now(), end = start + ms * 1e6;
    size_t words = size / 8, count = 0;
    uint64_t x = 1;
    while (now() < end) {
        for (size_t i = 0; i < 1 << 18; i++) {
            if (random) x = x * 6364136223846793005ull + 1442695040888963407ull, memory[(x >> 20) % words]++;
            else memory[(count + i) % words]++;
        }
        count += 1 << 18;
    }
    return (now() - start) / count;
}

int main(int argc, char **argv) {
    char line[64];
    int huge = argc > 2 && atoi(argv[2]);
    size = (size_t)atol(argv[1]) << 20;
    memory = map(huge);
    puts("ready"), fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long number = atol(strchr(line, ' ') ? strchr(line, ' ') : "0");
        if (line[0] == 'd') {
            for (size_t i = 0; number && i < size / 8; i += 512 * (size_t)number) memory[i]++;
            puts("dirty");
        } else if (line[0] == 't') printf("touch %f\n", touch(memory));
        else if (line[0] == 'r') printf("raw %f\n", raw(huge));
        else if (line[0] == 'p') {
            double stream = pace(number, 0);
            printf("pace %f %f\n", stream, pace(number, 1));
        } else break;
        fflush(stdout);
    }
    puts("OK");
}
