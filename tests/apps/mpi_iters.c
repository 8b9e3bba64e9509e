// Long stretches of computation, each ended by a reduction over all ranks.
//
//   mpi_iters [-i ITERATIONS] [-w WORK] [-m MIB] [-p PAUSE_US] [-u FILE]
//
// An iteration stirs WORK thousand words of a private table of MIB MiB (so the image has that many pages that change),
// then reduces a checksum over all ranks, whose result every rank stirs in again: a rank restored with one wrong word
// spoils every later iteration of all. Integers only, so the result doesn't depend on the order of the reduction.
// With -u the job stays in its middle, filling, reducing and checking a second table again and again, until FILE exists:
// whoever disturbs it decides when it ends, on a fast machine as on a slow one.
// Standard output: one last line "iters digest=…", the same for equal arguments and number of ranks. Progress goes to
// standard error. Exit code 0, or 1 without memory, 2 on wrong usage, 3 where a word of the second table was lost.

#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// xorshift64* (Vigna 2016): cheap, never 0 from a seed that isn't.
static uint64_t next(uint64_t *state) {
  uint64_t x = *state;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  *state = x;
  return x * 0x2545f4914f6cdd1du;
}

static uint64_t mix(uint64_t round, uint64_t i) {
  uint64_t state = round * 0x9e3779b97f4a7c15u + i + 1;
  return next(&state);
}

// Fills and checks `table`, round by round, until rank 0 sees the file. Aborts the job where a word isn't what was written.
static void stay_until(const char *file, int rank, uint64_t *table, uint64_t words) {
  for (uint64_t round = 1, seen = 0; !seen; round++) {
    for (uint64_t i = 0; i < words; i++) table[i] = mix(round, i);
    uint64_t mine = rank == 0 && access(file, F_OK) == 0;
    MPI_Allreduce(&mine, &seen, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    for (uint64_t i = 0; i < words; i++) {
      if (table[i] == mix(round, i)) continue;
      fprintf(stderr, "mpi_iters: rank %d round %" PRIu64 ": word %" PRIu64 " is wrong\n", rank, round, i);
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  uint64_t iterations = 1000, work = 1000, mib = 8, pause_us = 0;
  const char *until = NULL;
  for (int option; (option = getopt(argc, argv, "i:w:m:p:u:")) != -1;) {
    switch (option) {
      case 'i': iterations = strtoull(optarg, NULL, 10); break;
      case 'w': work = strtoull(optarg, NULL, 10); break;
      case 'm': mib = strtoull(optarg, NULL, 10); break;
      case 'p': pause_us = strtoull(optarg, NULL, 10); break;
      case 'u': until = optarg; break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  if (mib == 0) mib = 1;
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const uint64_t words = (mib << 20) / sizeof(uint64_t);
  uint64_t *table = malloc(words * sizeof *table), *second = until ? malloc(words / 8 * sizeof *second) : NULL;
  if (!table || (until && !second)) MPI_Abort(MPI_COMM_WORLD, 1);
  uint64_t state = 0x1234567887654321u + (uint64_t)rank;
  for (uint64_t i = 0; i < words; i++) table[i] = next(&state);
  uint64_t digest = 0;
  for (uint64_t iteration = 0; iteration < iterations; iteration++) {
    if (until && iteration == iterations / 2) stay_until(until, rank, second, words / 8);
    uint64_t sum = digest;
    for (uint64_t i = 0; i < work * 1000; i++) {
      const uint64_t r = next(&state), at = r % words;
      table[at] += r ^ digest;
      sum = (sum << 1 | sum >> 63) ^ table[at];
    }
    uint64_t all[2] = {0, 0}, mine[2] = {sum, sum * (uint64_t)(rank + 1)};
    MPI_Allreduce(mine, all, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    digest = all[0] ^ (all[1] << 7 | all[1] >> 57);
    if (rank == 0 && (iteration + 1) % 20 == 0) fprintf(stderr, "mpi_iters: iteration %" PRIu64 " of %" PRIu64 "\n", iteration + 1, iterations);
    if (pause_us) usleep((useconds_t)pause_us);
  }
  if (rank == 0) printf("iters digest=%016" PRIx64 " ranks=%d iterations=%" PRIu64 "\n", digest, size, iterations);
  free(second);
  free(table);
  MPI_Finalize();
  return 0;
}
