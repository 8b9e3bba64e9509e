// A process full of noise, for measuring what can be done with it.
//
//   noise MIB [huge]
//
// Fills MIB MiB of private memory with random words (of huge pages if the second argument is there), says "ready", and obeys
// standard input, line by line:
//
//   fork          forks, as bare as can be, and says "fork MICROSECONDS"
//   dirty N [K]   changes one word of every N-th page, from the K-th on (K < N, default 0), and says "dirty"
//   work SECONDS  changes one word of every page, over and over; says "work START_S PAGES_PER_S" for each 50 ms (monotonic clock)
//   watch FILE    from here on looks at the clock, and nothing else; two words of FILE, which it shares, hold how often it did so, and
//                 the longest time between two looks, nanoseconds
//   end           ends
//
// At the end of its input it stays until it is killed: a restarted process has no input.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static int watch(const char *path) {
  int file = open(path, O_RDWR);
  volatile uint64_t *shared = mmap(NULL, 2 * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file < 0 || shared == MAP_FAILED) return 1;
  for (double last = now();;) {
    double next = now();
    uint64_t between = (uint64_t)((next - last) * 1e9);
    if (between > shared[1]) shared[1] = between;
    shared[0]++;
    last = next;
  }
}

int main(int argc, char **argv) {
  size_t size = (size_t)atol(argc > 1 ? argv[1] : "64") << 20, words = size / 8;
  uint64_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), x = 88172645463325252u;
  if (memory == MAP_FAILED) return 1;
  madvise(memory, size, argc > 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  for (size_t i = 0; i < words; i++) x ^= x << 13, x ^= x >> 7, x ^= x << 17, memory[i] = x;
  puts("ready");
  fflush(stdout);
  char line[4096];
  while (fgets(line, sizeof line, stdin)) {
    long number = 0, first = 0;
    double seconds = 0;
    line[strcspn(line, "\n")] = 0;
    if (line[0] == 'e') return 0;
    if (!strncmp(line, "watch ", 6)) return watch(line + 6);
    if (line[0] == 'f') {
      double start = now();
      pid_t child = fork();
      if (child == 0) _exit(0);
      double took = now() - start;
      waitpid(child, NULL, 0);
      printf("fork %.0f\n", took * 1e6);
    } else if (sscanf(line, "dirty %ld %ld", &number, &first) >= 1 && number > 0 && first >= 0) {
      for (size_t i = 512 * (size_t)first; i < words; i += 512 * (size_t)number) memory[i]++;
      puts("dirty");
    } else if (sscanf(line, "work %lf", &seconds) == 1) {
      double end = now() + seconds, start = now();
      for (size_t at = 0, done = 0; now() < end;) {
        for (int i = 0; i < 256; i++, at = (at + 512) % words) memory[at]++;
        done += 256;
        if (now() - start >= 0.05) {
          printf("work %.6f %.0f\n", start, done / (now() - start));
          start = now();
          done = 0;
        }
      }
      puts("worked");
    }
    fflush(stdout);
  }
  for (;;) pause();
}
