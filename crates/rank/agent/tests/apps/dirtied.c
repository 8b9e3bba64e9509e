/* Fills memory with noise; each line of input renews a tenth of its pages. Ends with a check of all. Argument: MiB. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t word(uint64_t page, uint64_t round, uint64_t i) {
    uint64_t x = (page << 32 | round << 16 | i) + 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 27;
}

static void renew(uint64_t *memory, uint64_t page, uint64_t round) {
    for (uint64_t i = 0; i < 512; i++) memory[page * 512 + i] = word(page, round, i);
}

int main(int argc, char **argv) {
    uint64_t pages = (argc > 1 ? strtoull(argv[1], NULL, 10) : 16) << 8, round = 0;
    uint64_t *memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint16_t *last = calloc(pages, sizeof *last);
    madvise(memory, pages << 12, MADV_NOHUGEPAGE);
    for (uint64_t page = 0; page < pages; page++) renew(memory, page, 0);
    char line[64];
    do {
        printf("round %d\n", (int)round);
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return 1;
        round++;
        if (strcmp(line, "end\n"))
            for (uint64_t page = round % 10; page < pages; page += 10) renew(memory, page, round), last[page] = round;
    } while (strcmp(line, "end\n"));
    for (uint64_t page = 0; page < pages; page++)
        for (uint64_t i = 0; i < 512; i++)
            if (memory[page * 512 + i] != word(page, last[page], i)) return printf("LOST page %lu\n", (unsigned long)page), 1;
    puts("OK");
    return 0;
}
