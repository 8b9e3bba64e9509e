// A localised ensemble filter: each rank corrects the part of the domain that its partner of member_model.c has, which see for how both are started.
//
// It reads all members of its part, and moves each of them towards their mean, more where it is nearer to what was observed. Standard output: one last line "filter digest=…".
// Exit code 2 on wrong usage, 3 if anything fails.

#include "file_couple.h"

enum { MEMBERS = 4, CELLS = 64 << 10, ALL = MEMBERS * CELLS };

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  meet(1);
  if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
  char path[4096];
  snprintf(path, sizeof path, "%s/states", argv[1]);
  const int states = open_file(path);
  snprintf(path, sizeof path, "%s/analysis", argv[1]);
  const int analysis = open_file(path);
  const off_t place = (off_t)own_rank * ALL * (off_t)sizeof(uint64_t);
  uint64_t *members = calloc(ALL, sizeof *members);
  if (!members) fails("no memory");
  for (uint64_t step = 0;;) {
    MPI_Status status;
    MPI_Recv(NULL, 0, MPI_UINT64_T, own_rank, MPI_ANY_TAG, others, &status);
    if (status.MPI_TAG == ENDS) break;
    get(states, members, ALL * sizeof *members, place);
    for (int i = 0; i < CELLS && status.MPI_TAG != AGAIN; i++) {
      uint64_t mean = 0;
      const uint64_t observed = (step * CELLS + (uint64_t)i) * 0xd1342543de82ef95u;
      for (int member = 0; member < MEMBERS; member++) mean += members[member * CELLS + i] / MEMBERS;
      for (int member = 0; member < MEMBERS; member++) members[member * CELLS + i] += ((mean - members[member * CELLS + i]) >> 3) + (observed >> 40);
    }
    step += status.MPI_TAG != AGAIN;
    put(analysis, members, ALL * sizeof *members, place);
    MPI_Send(NULL, 0, MPI_UINT64_T, own_rank, GOES_ON, others);
  }
  const uint64_t digest = digest_of(members, ALL);
  if (own_rank == 0) printf("filter digest=%016" PRIx64 "\n", digest);
  MPI_Finalize();
  return 0;
}
