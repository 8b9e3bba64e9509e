// An ensemble filter that corrects another program of the same job, coupled_model.c, which see for how both are started.
//
// Each rank serves the ranks of the model that it shares its number with, modulo its size: it takes what is observed and answers with a
// correction towards the mean. Standard output: one last line "filter ends, strangers=0" of its rank 0, when each rank of the model has said
// that it is done. Exit code 3 if MPI_APPNUM is not 1.

#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { OBSERVED = 64, ENDS = 2 };

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int *number, found, rank, size, models;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &found);
  MPI_Comm own, model;
  MPI_Comm_split(MPI_COMM_WORLD, found ? *number : 0, 0, &own);
  MPI_Comm_rank(own, &rank);
  MPI_Comm_size(own, &size);
  if (!found || *number != 1) {
    fprintf(stderr, "coupled_filter: MPI_APPNUM is not 1\n");
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, 0, 1, &model);
  MPI_Comm_remote_size(model, &models);
  int serves = 0;
  for (int other = rank; other < models; other += size) serves++;
  uint64_t unmatched = 0;
  for (int done = 0; done < serves;) {
    uint64_t seen[OBSERVED], correction[OBSERVED];
    MPI_Status status;
    MPI_Recv(seen, OBSERVED, MPI_UINT64_T, MPI_ANY_SOURCE, MPI_ANY_TAG, model, &status);
    if (status.MPI_TAG == ENDS) {
      done++;
      continue;
    }
    uint64_t mean = 0;
    for (int k = 0; k < OBSERVED; k++) mean += seen[k] / OBSERVED;
    for (int k = 0; k < OBSERVED; k++) correction[k] = (mean - seen[k]) >> 3;
    unmatched += (uint64_t)(status.MPI_SOURCE % size != rank);
    MPI_Send(correction, OBSERVED, MPI_UINT64_T, status.MPI_SOURCE, 0, model);
  }
  uint64_t all = 0;
  MPI_Reduce(&unmatched, &all, 1, MPI_UINT64_T, MPI_SUM, 0, own);
  if (rank == 0) printf("filter ends, strangers=%" PRIu64 "\n", all);
  MPI_Finalize();
  return 0;
}
