/* Writes the number of the round into every page of memory of all kinds, one after the other, without end of rounds (argument: rounds).
   Before it writes a page, the page must have the number of the last round: an image of two different instants would not. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES 2048
#define KINDS 8

static uint64_t bss[PAGES][512];

static void *map(size_t size, int flags, int fd) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) exit(2);
    return at;
}

int main(int argc, char **argv) {
    long rounds = atol(argv[1]);
    size_t size = PAGES * 4096;
    int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    int memory = memfd_create("instant", 0);
    if (memory < 0 || ftruncate(memory, size)) return 2;
    FILE *file = fopen("instant.data", "w+");
    if (!file || ftruncate(fileno(file), size)) return 2;
    void *kinds[KINDS] = {
        map(size, anonymous, -1),           map(size, anonymous, -1),        map(size, anonymous, -1), malloc(size),
        map(size, MAP_SHARED | MAP_ANONYMOUS, -1), map(size, MAP_SHARED, memory), map(size, MAP_PRIVATE, fileno(file)), bss,
    };
    madvise(kinds[0], size, MADV_DONTFORK);
    madvise(kinds[1], size, MADV_WIPEONFORK);
    for (int kind = 0; kind < KINDS; kind++)
        for (int page = 0; page < PAGES; page++) ((volatile uint64_t *)kinds[kind])[page * 512] = 0;
    puts("ready");
    fflush(stdout);
    for (long round = 1; round <= rounds; round++) {
        for (int kind = 0; kind < KINDS; kind++) {
            volatile uint64_t *at = kinds[kind];
            for (int page = 0; page < PAGES; page++) {
                if (at[page * 512] != (uint64_t)round - 1) {
                    printf("LOST kind %d page %d: %lu in round %ld\n", kind, page, at[page * 512], round);
                    return 1;
                }
                at[page * 512] = round;
            }
        }
        if (round % 50 == 0) {
            printf("round %ld\n", round);
            fflush(stdout);
        }
        usleep(200);
    }
    puts("OK");
    return 0;
}
