// One file that all ranks map, shared, and keep open: each counts in a page of its own, and looks at the others'.
//
// Rank 0 prints "open". Then each rank counts at its own pace, without a message to any other, until there is a file `change`; rank 0 prints "changed".
// All count on until there is a file `go`, and rank 0 prints a last line "digest=…", the same in every run. Exit code 0; 3 where a rank's page does not hold what it counted.
//
// Odd ranks do not stop at once when they are told to (the signal is that of park/mod.rs in the agent): the others are saved by then, with an older page of theirs.

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, STOP_SIGNAL = 33 };
static const double STRETCH_S = 0.3;

static int rank, ranks;
static volatile uint64_t *pages;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// The C library's functions keep this signal for themselves.
static void stop_later(int how) {
  uint64_t only = 1ull << (STOP_SIGNAL - 1);
  if (rank % 2) syscall(SYS_rt_sigprocmask, how, &only, NULL, sizeof only);
}

static void count_until(const char *file, uint64_t *count) {
  volatile uint64_t *own = pages + (size_t)rank * PAGE / sizeof *pages;
  uint64_t others = 0;
  double until = 0;
  while (access(file, F_OK)) {
    if (now() > until) {
      stop_later(SIG_UNBLOCK);
      until = now() + STRETCH_S;
    }
    stop_later(SIG_BLOCK);
    for (int turn = 0; turn < 10000; turn++) {
      if (*own != *count) {
        fprintf(stderr, "mpi_mapped: rank %d counted %" PRIu64 " and its page holds %" PRIu64 "\n", rank, *count, *own);
        MPI_Abort(MPI_COMM_WORLD, 3);
      }
      *own = ++*count;
    }
    for (int other = 0; other < ranks; other++) others += pages[(size_t)other * PAGE / sizeof *pages];
  }
  stop_later(SIG_UNBLOCK);
  (void)others;
}

static void say(const char *what) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank) return;
  puts(what);
  fflush(stdout);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int file = open("mapped", O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, (off_t)ranks * PAGE)) MPI_Abort(MPI_COMM_WORLD, 1);
  pages = mmap(NULL, (size_t)ranks * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (pages == MAP_FAILED) MPI_Abort(MPI_COMM_WORLD, 1);
  uint64_t count = pages[(size_t)rank * PAGE / sizeof *pages] = 0;
  say("open");
  count_until("change", &count);
  say("changed");
  count_until("go", &count);
  say("digest=good");
  MPI_Finalize();
  return 0;
}
