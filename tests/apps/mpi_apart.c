// Messages that go one way only, then a long stretch in which no rank calls MPI.
//
//   mpi_apart [-r ROUNDS] [-u FILE]
//
// All ranks reduce to rank 0 ROUNDS times, so that channels of the job are used in one direction only. Then each computes by
// itself, without a call of MPI, until FILE exists; without -u for a moment only. Then all reduce ROUNDS times once more.
// Each rank says on standard error when its first part is over.
// Standard output: one last line "apart digest=…", the same for equal ROUNDS and number of ranks.

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

static uint64_t reduce(uint64_t rounds, uint64_t *state) {
  uint64_t digest = 0;
  for (uint64_t round = 0; round < rounds; round++) {
    uint64_t mine = next(state), sum = 0;
    MPI_Reduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    digest = (digest << 1 | digest >> 63) ^ sum;
  }
  return digest;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  uint64_t rounds = 5;
  const char *until = NULL;
  for (int option; (option = getopt(argc, argv, "r:u:")) != -1;) {
    switch (option) {
      case 'r': rounds = strtoull(optarg, NULL, 10); break;
      case 'u': until = optarg; break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  uint64_t state = 0x1234567887654321u + (uint64_t)rank;
  uint64_t digest = reduce(rounds, &state);
  fprintf(stderr, "mpi_apart: rank %d computes\n", rank);
  volatile uint64_t sink = 0;
  uint64_t scratch = state;
  do {
    for (int i = 0; i < 1000000; i++) sink += next(&scratch);
  } while (until && access(until, F_OK) != 0);
  digest ^= reduce(rounds, &state);
  if (rank == 0) printf("apart digest=%016" PRIx64 "\n", digest);
  MPI_Finalize();
  return 0;
}
