/* Takes memory when a line comes (arguments: pages, rounds), says so, and writes the number of the round into each page, without end of
   rounds. Before it writes a page, the page must have the number of the last round. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long pages = atol(argv[1]), rounds = atol(argv[2]);
    char line[64];
    puts("waiting");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 2;
    volatile uint64_t *at = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 2;
    for (long page = 0; page < pages; page++) {
        at[page * 512] = 0;
        at[page * 512 + 1] = page + 1;
    }
    puts("ready");
    fflush(stdout);
    for (long round = 1; round <= rounds; round++) {
        for (long page = 0; page < pages; page++) {
            if (at[page * 512] != (uint64_t)round - 1 || at[page * 512 + 1] != (uint64_t)page + 1) {
                printf("LOST page %ld: %lu in round %ld\n", page, at[page * 512], round);
                return 1;
            }
            at[page * 512] = round;
        }
        printf("round %ld\n", round);
        fflush(stdout);
        usleep(20000);
    }
    puts("OK");
    return 0;
}
