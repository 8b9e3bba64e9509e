// More memory than its control group may have (argument: the group's directory), in use: round after round every page is looked at and
// written to, so that the kernel always has some of them swapped out.
#include "coverage.h"

enum { PAGE = 4096 };

static FILE *file_of(const char *group, const char *name, const char *mode) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", group, name);
  return fopen(path, mode);
}

int main(int argc, char **argv) {
  NEED(argc == 2);
  long limit = 0;
  FILE *file = file_of(argv[1], "memory.max", "re");
  NEED(file && fscanf(file, "%ld", &limit) == 1 && fclose(file) == 0);
  file = file_of(argv[1], "cgroup.procs", "we");
  NEED(file && fprintf(file, "%d", getpid()) > 0 && fclose(file) == 0);
  size_t pages = (size_t)limit / PAGE;
  char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEED(memory != MAP_FAILED);
  volatile uint64_t *at = (volatile uint64_t *)memory;
  for (size_t page = 0; page < pages; page++) at[page * 512 + 1] = page + 1;
  // The program itself did not fit beside them.
  NEED(proc_number("/proc/self/status", "VmSwap:", 10) > 0);
  ready();
  for (uint64_t round = 1; access("go", F_OK) != 0; round++) {
    size_t lost = 0;
    for (size_t page = 0; page < pages; page++) {
      lost += at[page * 512] != round - 1 || at[page * 512 + 1] != page + 1;
      at[page * 512] = round;
    }
    CHECK(!lost);
  }
  return verdict();
}
