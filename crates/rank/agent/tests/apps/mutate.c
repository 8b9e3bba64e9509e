/* Changes its memory on command, in threads, and stands still in between.
 *
 * "go SEED" changes and prints the ranges that must be in an image (range START END …) and "done SEED"; "end" looks whether
 * all is as it was after the last change.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1024, THREADS = 3, DEEP = 256 * 1024, PART = 32 << 20 };

struct worker {
    pthread_t thread;
    pthread_barrier_t go, done;
    char *arena, *block, *deep;
    size_t block_size;
    uint64_t random, sum;
};
static struct worker workers[THREADS];
static char globals[64 * PAGE];
static char *heap, *heap_end;

static uint64_t next(uint64_t *x) {
    *x += 0x9e3779b97f4a7c15ull;
    uint64_t z = *x;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull, z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void scribble(char *memory, size_t size, int times, uint64_t *random) {
    for (int i = 0; i < times; i++) *(uint64_t *)(memory + next(random) % (size / 8) * 8) = next(random);
}

static void fresh(char *at, size_t size) { mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); }

/* Far below what the thread uses of its stack while it waits. */
static char *deep_stack(uint64_t *random) {
    char room[2 * DEEP];
    char *volatile deep = room;
    scribble(deep, DEEP, 20, random);
    return deep;
}

static void operate(struct worker *w) {
    uint64_t *x = &w->random, length = 1 + next(x) % 64, start = next(x) % (PAGES - 64), to = next(x) % (PAGES - 64);
    char *at = w->arena + start * PAGE, *other = w->arena + to * PAGE;
    size_t size = length * PAGE;
    switch (next(x) % 12) {
    case 0: case 1: case 2: scribble(at, size, 8, x); break;
    case 3: madvise(at, size, MADV_DONTNEED); break;
    case 4: munmap(at, size), fresh(at, size), scribble(at, size, 3, x); break;
    case 5:
        if (other >= at + size || other + size <= at) {
            if (mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, other) == MAP_FAILED) fresh(other, size);
            fresh(at, size);
        }
        break;
    case 6: memset(at, 0, size); break;
    case 7: mprotect(at, size, PROT_READ), mprotect(at, size, PROT_READ | PROT_WRITE), scribble(at, size, 2, x); break;
    case 8: {
        size_t wanted = 200000 + next(x) % 2000000;
        w->block = realloc(w->block, wanted);
        if (wanted > w->block_size) memset(w->block + w->block_size, 1, wanted - w->block_size);
        w->block_size = wanted;
        scribble(w->block, wanted, 10, x);
        break;
    }
    case 9: {
        char *content = malloc(size);
        memset(content, (int)next(x), size);
        struct iovec local = {content, size}, remote = {at, size};
        process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
        free(content);
        break;
    }
    case 10: madvise((void *)((uintptr_t)at & -(2l << 20)), 2 << 20, MADV_HUGEPAGE), scribble(at, size, 4, x); break;
    default: w->deep = deep_stack(x);
    }
}

static uint64_t sum_of(const void *memory, size_t size) {
    uint64_t sum = 0;
    for (size_t i = 0; i < size / 8; i++) sum = sum * 31 + ((uint64_t *)memory)[i];
    return sum;
}

static uint64_t sum_of_worker(struct worker *w) {
    return sum_of(w->arena, PAGES * PAGE) + sum_of(w->block, w->block_size);
}

static void *work(void *argument) {
    struct worker *w = argument;
    for (;;) {
        pthread_barrier_wait(&w->go);
        for (int i = 0; i < 12; i++) operate(w);
        w->sum = sum_of_worker(w);
        pthread_barrier_wait(&w->done);
    }
    return NULL;
}

static void range(const char *start, const char *end) {
    uintptr_t from = ((uintptr_t)start + PAGE - 1) & -PAGE, to = (uintptr_t)end & -PAGE;
    if (from < to) printf("%lx %lx ", from, to);
}

static uint64_t sum_of_main(void) { return sum_of(globals, sizeof globals) + sum_of(heap, heap_end - heap); }

int main(void) {
    char line[64];
    uint64_t sum = 0;
    setvbuf(stdout, malloc(1 << 16), _IOFBF, 1 << 16);
    for (int i = 0; i < THREADS; i++) {
        struct worker *w = &workers[i];
        /* Whole huge pages, on both sides of where one part of a look ends. */
        char *reserved = mmap(NULL, 2 * PART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        w->arena = (char *)(((uintptr_t)reserved + (2 << 20) + PART - 1) & -(long)PART) - (2 << 20);
        fresh(w->arena, PAGES * PAGE);
        pthread_barrier_init(&w->go, NULL, 2), pthread_barrier_init(&w->done, NULL, 2);
        pthread_create(&w->thread, NULL, work, w);
    }
    heap = heap_end = sbrk(0);
    puts("ready"), fflush(stdout);
    while (fgets(line, sizeof line, stdin) && !strncmp(line, "go ", 3)) {
        uint64_t seed = strtoull(line + 3, NULL, 10), random = seed;
        for (int i = 0; i < THREADS; i++) workers[i].random = seed + i, pthread_barrier_wait(&workers[i].go);
        for (int i = 0; i < THREADS; i++) pthread_barrier_wait(&workers[i].done);
        /* Only now, as the threads' malloc may want the same. */
        if (sbrk(0) == heap_end && heap_end - heap < 64 << 20) sbrk(PAGE * (1 + next(&random) % 40)), heap_end = sbrk(0);
        scribble(heap, heap_end - heap, 10, &random), scribble(globals, sizeof globals, 5, &random);
        if (next(&random) % 4 == 0) {
            pid_t child = fork();
            if (!child) scribble(workers[0].arena, PAGES * PAGE, 50, &random), _exit(0);
            scribble(globals, sizeof globals, 5, &random), waitpid(child, NULL, 0);
        }
        sum = sum_of_main();
        printf("range ");
        range(globals, globals + sizeof globals), range(heap, heap_end);
        for (int i = 0; i < THREADS; i++) {
            struct worker *w = &workers[i];
            range(w->arena, w->arena + PAGES * PAGE), range(w->block, w->block + w->block_size);
            if (w->deep) range(w->deep, w->deep + DEEP);
        }
        printf("\ndone %lu\n", seed), fflush(stdout);
    }
    int good = sum == sum_of_main();
    for (int i = 0; i < THREADS; i++) good &= workers[i].sum == sum_of_worker(&workers[i]);
    puts(good ? "OK" : "LOST");
    return !good;
}
