// A model of waves on a ring that is corrected by another program of the same job (coupled_filter.c), as weather models are by
// the assimilation of what was observed.
//
//   mend run -n M coupled_model [-i STEPS] [-u FILE] : -n F coupled_filter
//
// The two meet in MPI_COMM_WORLD and know each other by MPI_APPNUM. In each step a rank of the model takes its neighbours' edges, moves
// its part of the ring on, and sends what the filter observes of it; the correction that comes back is added. Integers only, so the
// result doesn't depend on who comes first. With -u the steps go on from their middle until FILE exists, on a field beside the first.
// Standard output: one last line "model digest=…" of its rank 0. Exit code 2 on wrong usage, 3 if the programs don't find each other.

#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ring.h"

enum { CELLS = 1 << 15, OBSERVED = 64, GOES_ON = 1, ENDS = 2 };

static void step(uint64_t *field, MPI_Comm own, MPI_Comm filter, int rank, int size) {
  move_on(field, CELLS, own, rank, size);
  uint64_t seen[OBSERVED], correction[OBSERVED];
  for (int k = 0; k < OBSERVED; k++) seen[k] = field[k * (CELLS / OBSERVED)];
  int others;
  MPI_Comm_remote_size(filter, &others);
  MPI_Send(seen, OBSERVED, MPI_UINT64_T, rank % others, GOES_ON, filter);
  MPI_Recv(correction, OBSERVED, MPI_UINT64_T, rank % others, 0, filter, MPI_STATUS_IGNORE);
  for (int k = 0; k < OBSERVED; k++) field[k * (CELLS / OBSERVED)] += correction[k];
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  long steps = 100;
  const char *until = NULL;
  for (int option; (option = getopt(argc, argv, "i:u:")) != -1;) {
    switch (option) {
      case 'i': steps = strtol(optarg, NULL, 10); break;
      case 'u': until = optarg; break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  int *number, found, world, rank, size;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &found);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  MPI_Comm own, filter;
  MPI_Comm_split(MPI_COMM_WORLD, found ? *number : 0, 0, &own);
  MPI_Comm_rank(own, &rank);
  MPI_Comm_size(own, &size);
  if (!found || *number != 0 || size == world) {
    fprintf(stderr, "coupled_model: no filter in this job, or MPI_APPNUM is not 0\n");
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, size, 1, &filter);
  uint64_t *field = malloc(CELLS * sizeof *field), *beside = malloc(CELLS * sizeof *beside);
  if (!field || !beside) MPI_Abort(MPI_COMM_WORLD, 1);
  for (int i = 0; i < CELLS; i++) beside[i] = field[i] = (uint64_t)(rank * CELLS + i) * 0x9e3779b97f4a7c15u;
  for (long i = 0; i < steps; i++) {
    for (int seen = 0; until && i == steps / 2 && !seen;) {
      step(beside, own, filter, rank, size);
      seen = rank == 0 && access(until, F_OK) == 0;
      MPI_Bcast(&seen, 1, MPI_INT, 0, own);
    }
    step(field, own, filter, rank, size);
  }
  int others;
  MPI_Comm_remote_size(filter, &others);
  MPI_Send(NULL, 0, MPI_UINT64_T, rank % others, ENDS, filter);
  uint64_t mine = 0, digest = 0;
  for (int i = 0; i < CELLS; i++) mine = mine * 31 + field[i];
  MPI_Reduce(&mine, &digest, 1, MPI_UINT64_T, MPI_BXOR, 0, own);
  if (rank == 0) printf("model digest=%016" PRIx64 "\n", digest);
  MPI_Finalize();
  return 0;
}
