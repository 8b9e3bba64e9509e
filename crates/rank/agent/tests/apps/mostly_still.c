/* Most of its memory stays as it is; round after round it writes the number of the round into the pages of the rest, one after the
   other, without end of rounds (argument: rounds). All of it is checked all the time: an image of two instants, or one
   that lacks pages, would show. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 8192
#define EVERY 16

int main(int argc, char **argv) {
    long rounds = atol(argv[1]);
    size_t size = PAGES * 4096;
    volatile uint64_t *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 2;
    madvise((void *)at, size, MADV_NOHUGEPAGE);
    for (long page = 0; page < PAGES; page++)
        for (int word = 0; word < 512; word++) at[page * 512 + word] = page % EVERY ? page * 512 + word : 0;
    puts("ready");
    fflush(stdout);
    for (long round = 1; round <= rounds; round++) {
        for (long page = 0; page < PAGES; page++) {
            uint64_t expected = page % EVERY ? (uint64_t)page * 512 + 511 : (uint64_t)round - 1;
            if (at[page * 512 + 511] != expected) {
                printf("LOST page %ld: %lu in round %ld\n", page, at[page * 512 + 511], round);
                return 1;
            }
            if (page % EVERY == 0) at[page * 512 + 511] = round;
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
