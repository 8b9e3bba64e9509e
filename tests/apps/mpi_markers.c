// Texts that somebody on the way could look for: one in messages, another in memory that is never sent.
//
//   mpi_markers SENT KEPT FILE
//
// Rank 0 and the last rank exchange messages of 64 KiB full of SENT, short ones among them, and check what comes, until FILE exists;
// each keeps 8 MiB full of KEPT. Standard output: one last line "markers are right". Exit code 0, or 1 where one isn't, 2 on wrong usage.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE = 64 << 10, TABLE = 8 << 20 };

static void fill(char *bytes, size_t size, const char *text) {
  const size_t length = strlen(text);
  for (size_t i = 0; i < size; i++) bytes[i] = text[i % length];
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 4 || size < 2) MPI_Abort(MPI_COMM_WORLD, 2);
  char *table = malloc(TABLE), *right = malloc(TABLE), *sent = malloc(MESSAGE), *got = malloc(MESSAGE);
  if (!table || !right || !sent || !got) MPI_Abort(MPI_COMM_WORLD, 1);
  fill(table, TABLE, argv[2]);
  fill(sent, MESSAGE, argv[1]);
  const int peer = rank == 0 ? size - 1 : rank == size - 1 ? 0 : MPI_PROC_NULL;
  for (int round = 0, over = 0; !over; round++) {
    const int length = round % 3 ? MESSAGE : 200;
    if (peer != MPI_PROC_NULL) {
      MPI_Sendrecv(sent, length, MPI_CHAR, peer, 0, got, length, MPI_CHAR, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (memcmp(got, sent, (size_t)length)) MPI_Abort(MPI_COMM_WORLD, 1);
    }
    over = rank == 0 && access(argv[3], F_OK) == 0;
    MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    usleep(200);
  }
  fill(right, TABLE, argv[2]);
  if (memcmp(table, right, TABLE)) MPI_Abort(MPI_COMM_WORLD, 1);
  if (rank == 0) printf("markers are right\n");
  MPI_Finalize();
  return 0;
}
