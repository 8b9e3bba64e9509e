/* Fills memory with noise, then waits. Arguments: MiB, 1 for huge pages. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    size_t size = (size_t)atoi(argv[1]) << 20;
    uint64_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), x = 88172645463325252ull;
    madvise(memory, size, argc > 2 && atoi(argv[2]) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (size_t i = 0; i < size / 8; i++) x ^= x << 13, x ^= x >> 7, x ^= x << 17, memory[i] = x;
    uint64_t sum = 0;
    for (size_t i = 0; i < size / 8; i++) sum += memory[i];
    puts("ready");
    fflush(stdout);
    char line[64];
    if (!fgets(line, sizeof line, stdin)) return 1;
    uint64_t again = 0;
    for (size_t i = 0; i < size / 8; i++) again += memory[i];
    puts(sum == again ? "OK" : "LOST");
    return sum != again;
}
