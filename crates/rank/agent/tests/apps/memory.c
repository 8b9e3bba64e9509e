/* Registers, large sparse maps, all kinds of mappings, deep recursion, malloc under load. Ends after so many ticks, or when there is a file `end`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int failures;
static volatile int stop;
#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)
static char zeros_in_data[8192] = {1, 2, 3};

static int deep(int n, char fill) {
    volatile char frame[4096];
    memset((char *)frame, fill, sizeof frame);
    int below = n ? deep(n - 1, fill + 1) : 0;
    for (unsigned i = 0; i < sizeof frame; i += 512) if (frame[i] != fill) return -1000000;
    return below + 1;
}

__attribute__((target("avx2"))) static void *vectors(void *arg) {
    double expected[4], got[4];
    for (int i = 0; i < 4; i++) expected[i] = i * 1.25 + (long)arg;
    fesetround(FE_UPWARD);
    __m256d held = _mm256_loadu_pd(expected);
    while (!stop) {
        /* Keeps a value in a vector register across as much time as possible, without a call. */
        for (int i = 0; i < 2000000; i++) __asm__ volatile("" : "+x"(held));
        _mm256_storeu_pd(got, held);
        CHECK(!memcmp(expected, got, sizeof got));
        CHECK(fegetround() == FE_UPWARD);
    }
    return NULL;
}

static void *churn(void *arg) {
    unsigned seed = (unsigned)(long)arg;
    char *blocks[256] = {0};
    size_t sizes[256];
    while (!stop) {
        int i = rand_r(&seed) % 256;
        if (blocks[i]) {
            for (size_t k = 0; k < sizes[i]; k += 97) CHECK(blocks[i][k] == (char)i);
            free(blocks[i]);
        }
        sizes[i] = 1 + rand_r(&seed) % (i == 0 ? 4000000 : 5000);
        blocks[i] = malloc(sizes[i]);
        memset(blocks[i], i, sizes[i]);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 30;
    size_t huge = 1ull << 40;
    char *sparse = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *reserved = mmap(NULL, huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(sparse != MAP_FAILED && reserved != MAP_FAILED);
    for (size_t at = 0; at < huge; at += huge / 64) sparse[at] = (char)(at >> 34);
    char *hidden = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    strcpy(hidden + 5000, "hidden");
    mprotect(hidden, 16384, PROT_NONE);
    char *frozen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    strcpy(frozen, "read only");
    mprotect(frozen, 4096, PROT_READ);
    /* Two mappings of one anonymous shared object stay one. */
    volatile int *shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    volatile int *alias = mremap((void *)shared, 0, 65536, MREMAP_MAYMOVE);
    CHECK(alias != MAP_FAILED);
    /* A private mapping of a file, partly changed, partly zeroed. */
    int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0666);
    for (int i = 0; i < 4096 * 4; i++) CHECK(write(fd, "x", 1) == 1);
    char *private = mmap(NULL, 4096 * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    private[0] = 'y';
    memset(private + 4096, 0, 4096);
    int sfd = open("shared-data", O_RDWR | O_CREAT | O_TRUNC, 0666);
    CHECK(ftruncate(sfd, 8192) == 0);
    volatile int *file = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, sfd, 0);
    close(fd), close(sfd);
    /* Named shared memory, as MPI libraries make it: mapped and open, the name still there. */
    char shm_name[64];
    struct timespec born; /* the number is of its own namespace: another run of the tests may have it, too */
    clock_gettime(CLOCK_REALTIME, &born);
    snprintf(shm_name, sizeof shm_name, "/mend-agent-test-%d-%lx", getpid(), born.tv_nsec);
    int nfd = shm_open(shm_name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(ftruncate(nfd, 8192) == 0);
    volatile int *named = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, nfd, 0);
    int (*code)(void) = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy((void *)code, "\xb8\x2a\x00\x00\x00\xc3", 6);
    mprotect((void *)code, 4096, PROT_READ | PROT_EXEC);
    memset(zeros_in_data, 0, sizeof zeros_in_data);
    char *top = sbrk(0);
    pthread_t threads[4];
    int vector = __builtin_cpu_supports("avx2");
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, i < 2 ? (vector ? vectors : churn) : churn, (void *)i);
    struct timespec last = {0, 0};
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        shared[7] = i, file[3] = i, file[1500] = -i, named[1100] = i;
        /* Another node does not have it. */
        shm_unlink(shm_name);
        usleep(30000);
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now); /* through the vdso */
        CHECK(now.tv_sec > last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec > last.tv_nsec));
        last = now;
        CHECK(time(NULL) > 1000000000);
        for (size_t at = 0; at < huge; at += huge / 64) CHECK(sparse[at] == (char)(at >> 34));
        CHECK(sparse[huge / 2 + 12345] == 0);
        CHECK(shared[7] == i && alias[7] == i && file[3] == i && file[1500] == -i);
        int through = 0;
        CHECK(named[1100] == i && pread(nfd, &through, 4, 4400) == 4 && through == i);
        alias[9]++;
        CHECK(shared[9] == i);
        CHECK(private[0] == 'y' && private[1] == 'x' && private[4096] == 0 && private[8191] == 0 && private[8192] == 'x');
        CHECK(!strcmp(frozen, "read only") && code() == 42);
        for (unsigned k = 0; k < sizeof zeros_in_data; k++) CHECK(zeros_in_data[k] == 0);
        CHECK(deep(1000, (char)i) == 1001);
        CHECK(sbrk(0) >= (void *)top && sbrk(4096) != (void *)-1);
        CHECK(getauxval(AT_PAGESZ) == 4096);
        char path[4096] = "";
        CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0 && strstr(path, "memory"));
        printf("tick %d\n", i);
        fflush(stdout);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    mprotect(hidden, 16384, PROT_READ);
    CHECK(!strcmp(hidden + 5000, "hidden"));
    if (failures) return 1;
    puts("OK");
    return 0;
}
