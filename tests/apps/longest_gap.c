// Looks at the clock all the time, and tells the longest while in which it did not come to do so: what stops ranks is seen in that.
//
//   mpiexec -n N longest_gap [-u STOP]
//
// Each rank notes the longest gap between two looks, less the time for which it waited for a processor in that gap (/proc/thread-self/schedstat, second
// number), which is the machine's doing. It begins anew with each line of standard error, "rank R gap NS ns", which comes every 100 ms. With -u it goes on until the file STOP exists, else for a second.
// Ranks exchange nothing meanwhile. Exit code 2 on wrong usage.

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { TOLD_NS = 100 * 1000 * 1000, WORTH_A_LOOK_NS = 200 * 1000 };

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

// How long this thread has waited for a processor, nanoseconds.
static int64_t delayed(int schedstat) {
  char text[128] = "";
  if (pread(schedstat, text, sizeof text - 1, 0) <= 0) return 0;
  char *end;
  strtoll(text, &end, 10);
  return strtoll(end, NULL, 10);
}

int main(int argc, char **argv) {
  const char *stop = NULL;
  for (int option; (option = getopt(argc, argv, "u:")) != -1;) {
    if (option != 'u') return 2;
    stop = optarg;
  }
  MPI_Init(&argc, &argv);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Barrier(MPI_COMM_WORLD);
  const int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
  const int64_t begun = now();
  int64_t last = begun, told = begun, waited = delayed(schedstat), longest = 0;
  while (stop ? access(stop, F_OK) != 0 : last - begun < INT64_C(1000000000)) {
    do {
      const int64_t at = now();
      if (at - last > WORTH_A_LOOK_NS) {
        // Of what was waited since the last such gap, all is taken off this one: those in between were short.
        const int64_t by_now = delayed(schedstat), gap = at - last - (by_now - waited);
        if (gap > longest) longest = gap;
        waited = by_now;
      }
      last = at;
    } while (last - told < TOLD_NS);
    waited = delayed(schedstat);
    fprintf(stderr, "rank %d gap %" PRId64 " ns\n", rank, longest);
    last = told = now();
    longest = 0;
  }
  MPI_Finalize();
  return 0;
}
