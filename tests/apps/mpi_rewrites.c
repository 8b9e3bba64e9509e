// Memory that changes all the time, in every way that tracking has to notice, and a check of all of it.
//
//   mpi_rewrites [-f MIB] [-d MIB] [-s SEED] [-n] [-x] [-p PAUSE_US] [-u FILE]
//
// Each rank fills a table of -f MiB once with numbers that are alike, or with -n with noise, and then rewrites its first -d MiB again and again. With -x it also, as its
// seed says, maps, fills, moves, grows, drops, protects and unmaps areas of anonymous memory, moves its break, writes to a private
// mapping of its own executable, and to a memory object by mapping, pwrite and hole punching. What each page must hold follows
// from a number that is kept for it elsewhere; some pages are checked after each step, all of them in the end and now and then.
// It goes on until FILE exists; rank 0 looks for it, and a reduction tells the others.
// Standard output: one last line "rewrites ok". Progress goes to standard error. Exit code 0, 3 where a page is wrong, 2 on wrong usage.

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, AREAS = 24, MOST = 192, FILE_PAGES = 64 };

struct area {
  char *base;
  size_t pages;
  uint32_t stamps[MOST];  // 0: the page holds zeros.
};

static uint64_t state = 1;
static struct area areas[AREAS];
static uint32_t stamp;
static int rank;
static int noise;

static uint64_t draw(uint64_t below) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (state * 0x2545f4914f6cdd1du >> 11) % below;
}

static void *must(void *got, const char *what) {
  if (got == MAP_FAILED || got == NULL) {
    perror(what);
    MPI_Abort(MPI_COMM_WORLD, 4);
  }
  return got;
}

// What a word of a page is, by the page's number.
static uint64_t word(uint32_t with, int i) {
  uint64_t alike = (with * 0x9e3779b97f4a7c15u) ^ (uint64_t)i;
  if (with == 0) return 0;
  if (!noise) return alike;
  alike = (alike ^ alike >> 30) * 0xbf58476d1ce4e5b9u;
  alike = (alike ^ alike >> 27) * 0x94d049bb133111ebu;
  return alike ^ alike >> 31;
}

static void fill(char *page, uint32_t with) {
  uint64_t *words = (uint64_t *)page;
  for (int i = 0; i < PAGE / 8; i++) words[i] = word(with, i);
}

static void check(const char *page, uint32_t with, const char *what) {
  const uint64_t *words = (const uint64_t *)page;
  for (int i = 0; i < PAGE / 8; i++) {
    uint64_t wanted = word(with, i);
    if (words[i] == wanted) continue;
    fprintf(stderr, "mpi_rewrites: rank %d: %s, page %p, word %d is %" PRIx64 ", not %" PRIx64 "\n", rank, what, (const void *)page, i,
            words[i], wanted);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
}

static void set(struct area *area, size_t page) {
  area->stamps[page] = ++stamp;
  fill(area->base + page * PAGE, stamp);
}

static void check_area(const struct area *area) {
  for (size_t page = 0; page < area->pages; page++) check(area->base + page * PAGE, area->stamps[page], "an area");
}

static void remap_area(struct area *area, size_t pages) {
  int flags = MREMAP_MAYMOVE | (draw(2) == 0 && pages == area->pages ? MREMAP_DONTUNMAP : 0);
  if (flags & MREMAP_DONTUNMAP) {
    char *old = area->base;
    size_t length = area->pages * PAGE;
    area->base = must(mremap(old, length, length, flags, NULL), "mremap");
    munmap(old, length);
    return;
  }
  for (size_t page = area->pages; page < pages; page++) area->stamps[page] = 0;
  area->base = must(mremap(area->base, area->pages * PAGE, pages * PAGE, flags, NULL), "mremap");
  area->pages = pages;
}

// One change to anonymous memory.
static void step(void) {
  struct area *area = &areas[draw(AREAS)];
  if (area->base == NULL) {
    size_t pages = 1 + draw(MOST);
    area->base = must(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), "mmap");
    area->pages = pages;
    memset(area->stamps, 0, sizeof area->stamps);
    if (draw(4) == 0) madvise(area->base, pages * PAGE, MADV_HUGEPAGE);
    for (size_t count = draw(pages + 1); count > 0; count--) set(area, draw(pages));
    return;
  }
  size_t first = draw(area->pages), count = 1 + draw(area->pages - first);
  switch (draw(10)) {
    case 0:
      munmap(area->base, area->pages * PAGE);
      area->base = NULL;
      return;
    case 1:
      madvise(area->base + first * PAGE, count * PAGE, MADV_DONTNEED);
      for (size_t page = first; page < first + count; page++) area->stamps[page] = 0;
      break;
    case 2: remap_area(area, 1 + draw(MOST)); break;
    case 3:
      // Mapped anew where it was.
      must(mmap(area->base, area->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), "mmap");
      memset(area->stamps, 0, sizeof area->stamps);
      break;
    case 4:
      mprotect(area->base + first * PAGE, count * PAGE, PROT_READ);
      check(area->base + first * PAGE, area->stamps[first], "a protected page");
      mprotect(area->base, area->pages * PAGE, PROT_READ | PROT_WRITE);
      break;
    case 5:
      // Zeros that are written.
      for (size_t page = first; page < first + count; page++) {
        area->stamps[page] = 0;
        fill(area->base + page * PAGE, 0);
      }
      break;
    default:
      for (size_t page = first; page < first + count; page++) set(area, page);
  }
  size_t page = draw(area->pages);
  check(area->base + page * PAGE, area->stamps[page], "an area");
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  uint64_t mib = 64, dirty = 1, pause_us = 0;
  int strange = 0;
  const char *until = NULL;
  for (int option; (option = getopt(argc, argv, "f:d:s:nxp:u:")) != -1;) {
    switch (option) {
      case 'f': mib = strtoull(optarg, NULL, 10); break;
      case 'd': dirty = strtoull(optarg, NULL, 10); break;
      case 's': state = strtoull(optarg, NULL, 10) * 2 + 1; break;
      case 'n': noise = 1; break;
      case 'x': strange = 1; break;
      case 'p': pause_us = strtoull(optarg, NULL, 10); break;
      case 'u': until = optarg; break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  if (dirty > mib || mib == 0 || until == NULL) MPI_Abort(MPI_COMM_WORLD, 2);
  state += 1000003 * (uint64_t)rank;
  size_t pages = mib << 8, hot = dirty << 8;
  char *table = must(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), "mmap");
  for (size_t page = 0; page < pages; page++) fill(table + page * PAGE, (uint32_t)page + 1);
  int object = memfd_create("rewrites", 0);
  if (object < 0 || ftruncate(object, FILE_PAGES * PAGE) != 0) MPI_Abort(MPI_COMM_WORLD, 4);
  char *shared = must(mmap(NULL, FILE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, object, 0), "mmap");
  uint32_t objects[FILE_PAGES] = {0}, files[4] = {0};
  int self = open("/proc/self/exe", O_RDONLY);
  char *private = must(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, self, 0), "mmap");
  char *broken = NULL;
  size_t grown = 0;
  static uint32_t breaks[1024];
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) fprintf(stderr, "rewrites: begins\n");
  uint32_t round = 0;
  for (uint64_t seen = 0; !seen;) {
    round++;
    for (size_t page = 0; page < hot; page++) {
      fill(table + page * PAGE, round * 2654435761u | 1);
      if (pause_us && page % 256 == 0) usleep(pause_us);
    }
    if (strange) {
      for (int i = 0; i < 200; i++) step();
      for (int i = 0; i < 4; i++) {
        size_t page = draw(FILE_PAGES);
        objects[page] = ++stamp;
        char copy[PAGE];
        fill(copy, stamp);
        if (draw(2) && pwrite(object, copy, PAGE, (off_t)page * PAGE) != PAGE) MPI_Abort(MPI_COMM_WORLD, 4);
        fill(shared + page * PAGE, stamp);
        page = draw(FILE_PAGES);
        objects[page] = 0;
        if (fallocate(object, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)page * PAGE, PAGE) != 0) objects[page] = 0;
      }
      size_t page = draw(4);
      files[page] = ++stamp;
      fill(private + page * PAGE, stamp);
      if (grown < 1024 && draw(4) == 0) {
        char *more = sbrk(PAGE);
        // Others may have moved it meanwhile.
        if (broken == NULL || more != broken + grown * PAGE) broken = more, grown = 0;
        breaks[grown] = ++stamp;
        fill(more, stamp);
        grown++;
      }
    }
    if (round % 64 == 0) {
      for (int i = 0; i < AREAS; i++)
        if (areas[i].base) check_area(&areas[i]);
    }
    if (round % 16 == 0 || !strange) {
      uint64_t mine = rank == 0 && access(until, F_OK) == 0;
      MPI_Allreduce(&mine, &seen, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    }
  }
  for (size_t page = 0; page < pages; page++)
    check(table + page * PAGE, page < hot ? round * 2654435761u | 1 : (uint32_t)page + 1, "the table");
  for (int i = 0; i < AREAS; i++)
    if (areas[i].base) check_area(&areas[i]);
  for (int i = 0; i < FILE_PAGES; i++) check(shared + i * PAGE, objects[i], "the memory object");
  for (int i = 0; i < 4; i++)
    if (files[i]) check(private + i * PAGE, files[i], "the private mapping of a file");
  for (size_t i = 0; i < grown; i++) check(broken + i * PAGE, breaks[i], "behind the break");
  if (rank == 0) printf("rewrites ok\n");
  MPI_Finalize();
  return 0;
}
