// Memory that is swapped out: private, private and protected, shared, with holes. While it waits, a page of each is written to
// and all goes out again. Exit code 77: this machine swaps nothing out.
#include "coverage.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { PAGES = 512, PAGE = 4096, SIZE = PAGES * PAGE };
static char *memory[3];
// How often each page was written to; itself never asked out.
static unsigned char writes[3][PAGES];

// Every fourth page never holds anything.
static int hole(int page) { return page % 4 == 3; }

static void fill(int which, int page) {
  char *at = memory[which] + page * PAGE;
  for (int i = 0; i < PAGE; i += 64) at[i] = (char)(writes[which][page] + 3 * page + i / 64 + which);
}

static int holds(int which, int page) {
  const char *at = memory[which] + page * PAGE;
  for (int i = 0; i < PAGE; i += 64)
    if (at[i] != (hole(page) ? 0 : (char)(writes[which][page] + 3 * page + i / 64 + which))) return 0;
  return 1;
}

static int page_out(int which) { return madvise(memory[which], SIZE, MADV_PAGEOUT); }

// Of one mapping, in KiB.
static long swapped(int which) {
  char line[512];
  long value = -1;
  int inside = 0;
  FILE *file = fopen("/proc/self/smaps", "re");
  while (fgets(line, sizeof line, file)) {
    unsigned long start, end;
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2) inside = (unsigned long)memory[which] >= start && (unsigned long)memory[which] < end;
    if (inside && !strncmp(line, "Swap:", 5)) value = strtol(line + 5, NULL, 10);
  }
  fclose(file);
  return value;
}

int main(void) {
  for (int which = 0; which < 3; which++) {
    int flags = MAP_ANONYMOUS | (which == 2 ? MAP_SHARED : MAP_PRIVATE);
    memory[which] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);
    NEED(memory[which] != MAP_FAILED);
    // A huge page has no holes.
    NEED(madvise(memory[which], SIZE, MADV_NOHUGEPAGE) == 0);
    for (int page = 0; page < PAGES; page++)
      if (!hole(page)) fill(which, page);
  }
  NEED(mprotect(memory[1], SIZE, PROT_NONE) == 0);
  for (int which = 0; which < 3; which++) {
    if (page_out(which)) return 77;
    if (swapped(which) < SIZE / 1024 / 2) return 77;
  }
  ready();
  for (unsigned round = 0; access("go", F_OK) != 0; round++) {
    for (int which = 0; which < 3; which++) {
      int page = 4 * (round % (PAGES / 4));
      if (which == 1) CHECK(mprotect(memory[1], SIZE, PROT_READ | PROT_WRITE) == 0);
      writes[which][page]++;
      fill(which, page);
      if (which == 1) CHECK(mprotect(memory[1], SIZE, PROT_NONE) == 0);
      CHECK(page_out(which) == 0);
    }
    usleep(20000);
  }
  CHECK(mprotect(memory[1], SIZE, PROT_READ) == 0);
  for (int which = 0; which < 3; which++) {
    int lost = 0;
    for (int page = 0; page < PAGES; page++) lost += !holds(which, page);
    if (lost) printf("%d of %d pages of mapping %d\n", lost, PAGES, which);
    CHECK(!lost);
  }
  return verdict();
}
