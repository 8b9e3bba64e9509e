// Time steps of equal work, each ended by an exchange with a neighbour and a reduction.
//
//   mpi_steps [-n STEPS] [-w WORK] [-q] [-a MIB] [-l FILE]
//
// A step stirs WORK thousand words. Each is told to Mend by mend_step, but not with -q. With -a a table of MIB MiB is in each rank's image.
// With -l rank 0 writes when each step was done, seconds since 1970, a line each.
// Standard output: one last line "steps digest=…", the same for equal arguments and number of ranks. Standard error: rank 0 says "begins" after the
// first step, and "ended after S s" at the end, where S is the time of all steps.

#include "../../app/step/mend_step.h"
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// xorshift64* (Vigna 2016).
static uint64_t next(uint64_t *state) {
  uint64_t x = *state;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  *state = x;
  return x * 0x2545f4914f6cdd1du;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  uint64_t steps = 1000, work = 1000, mib = 1;
  int quiet = 0, rank, ranks;
  const char *log = NULL;
  for (int option; (option = getopt(argc, argv, "n:w:a:l:q")) != -1;) {
    switch (option) {
      case 'n': steps = strtoull(optarg, NULL, 10); break;
      case 'w': work = strtoull(optarg, NULL, 10); break;
      case 'a': mib = strtoull(optarg, NULL, 10); break;
      case 'l': log = optarg; break;
      case 'q': quiet = 1; break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  char *table = malloc(mib << 20);
  if (!table) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(table, rank + 1, mib << 20);
  uint64_t state = (uint64_t)rank * 2 + 1, digest = 0;
  FILE *times = log && rank == 0 ? fopen(log, "w") : NULL;
  double began = MPI_Wtime();
  for (uint64_t step = 1; step <= steps; step++) {
    for (uint64_t i = 0; i < work * 1000; i++) next(&state);
    uint64_t from = 0, all = 0;
    MPI_Sendrecv(&state, 1, MPI_UINT64_T, (rank + 1) % ranks, 0, &from, 1, MPI_UINT64_T, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    state ^= from | 1;
    MPI_Allreduce(&state, &all, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
    digest = digest * 31 + all;
    state |= 1;
    if (!quiet) mend_step(step, steps);
    if (times) {
      struct timespec now;
      clock_gettime(CLOCK_REALTIME, &now);
      fprintf(times, "%.6f\n", now.tv_sec + now.tv_nsec / 1e9);
      fflush(times);
    }
    if (step == 1 && rank == 0) fprintf(stderr, "mpi_steps: begins\n");
  }
  double took = MPI_Wtime() - began;
  if (table[(mib << 20) - 1] != rank + 1) MPI_Abort(MPI_COMM_WORLD, 3);
  if (rank == 0) fprintf(stderr, "mpi_steps: ended after %.3f s\n", took);
  if (rank == 0) printf("steps digest=%016" PRIx64 "\n", digest);
  if (times) fclose(times);
  free(table);
  MPI_Finalize();
  return 0;
}
