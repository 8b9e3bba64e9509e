// A small model whose domain is divided among its ranks. It runs an ensemble of members, and another program, member_filter.c, corrects them: both exchange through files.
//
//   mend run -n N --data SPACE:/mnt:rw member_model DIRECTORY STEPS [STOP] : -n N member_filter DIRECTORY
//
// In each step a rank moves its part of each member on, with its neighbours' edges, writes all of them to DIRECTORY/states at a place of its own, and tells its partner. The
// partner writes what it makes of them to DIRECTORY/analysis, which the model goes on from. Integers only. Before the last step more is exchanged, which counts for nothing, until
// the file STOP exists. Standard error has the time of each exchange: "step S took SECONDS". Standard output: one last line "model digest=…". Exit code 2 on wrong usage, 3 if anything fails.

#include "file_couple.h"
#include "ring.h"

enum { MEMBERS = 4, CELLS = 64 << 10, ALL = MEMBERS * CELLS };

static int states, analysis;
static uint64_t *field;

// Has the partner correct the members, or with AGAIN give them back as they are: other bytes each time, or nothing new would have to be sent.
static void exchange(long step, int how) {
  const off_t place = (off_t)own_rank * ALL * (off_t)sizeof(uint64_t);
  static uint64_t again;
  const uint64_t salt = how == AGAIN ? ++again : 0;
  for (int i = 0; i < ALL; i++) field[i] ^= salt;
  const double begun = MPI_Wtime();
  put(states, field, ALL * sizeof *field, place);
  MPI_Send(NULL, 0, MPI_UINT64_T, own_rank, how, others);
  MPI_Recv(NULL, 0, MPI_UINT64_T, own_rank, GOES_ON, others, MPI_STATUS_IGNORE);
  get(analysis, field, ALL * sizeof *field, place);
  double took = MPI_Wtime() - begun, slowest;
  for (int i = 0; i < ALL; i++) field[i] ^= salt;
  MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, own);
  if (own_rank == 0) fprintf(stderr, "step %ld took %.6f\n", step, slowest);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  meet(0);
  if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
  char path[4096];
  snprintf(path, sizeof path, "%s/states", argv[1]);
  states = open_file(path);
  snprintf(path, sizeof path, "%s/analysis", argv[1]);
  analysis = open_file(path);
  const long steps = strtol(argv[2], NULL, 10);
  const char *until = argc > 3 ? argv[3] : NULL;
  field = malloc(ALL * sizeof *field);
  if (!field) fails("no memory");
  for (int i = 0; i < ALL; i++) field[i] = (uint64_t)(own_rank * ALL + i) * 0x9e3779b97f4a7c15u;
  for (long step = 0; step < steps; step++) {
    for (int member = 0; member < MEMBERS; member++) move_on(field + member * CELLS, CELLS, own, own_rank, own_size);
    while (step + 1 == steps && waits_for(until)) exchange(step, AGAIN);
    exchange(step, GOES_ON);
  }
  MPI_Send(NULL, 0, MPI_UINT64_T, own_rank, ENDS, others);
  const uint64_t digest = digest_of(field, ALL);
  if (own_rank == 0) printf("model digest=%016" PRIx64 "\n", digest);
  MPI_Finalize();
  return 0;
}
