// Ranks that read the same parts of a file in pairs: rank N what rank N + size/2 reads, as coupled programs do whose partners are on other nodes.
//
//   mend run -n SIZE --data SPACE:/mnt shared_reads /mnt/FILE [-o] [-x MIB [-q QUIET]] [-u STOP]
//
// In each round a rank reads its pair's part of the file in pieces of 64 KiB and adds them up; the sums are reduced over all. With -o each rank reads a part of its
// own, so that nobody shares anything. With -x the ranks 2 N and 2 N + 1 send each other so many MiB by MPI in each round, until the file QUIET exists. With -u the rounds go on until the file STOP exists. What was read leaves the kernel's cache after each round, so that it is asked for
// again. Standard output: one last line "reads ok" of rank 0, if each round gave the sum of the first. Exit code 2 on wrong usage, 3 for another sum or a file that cannot be read.

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 64 << 10, MESSAGE = 1 << 20, ROUNDS = 5, PAUSE_US = 20000 };

static uint64_t sum_of(int file, off_t from, off_t to) {
  static unsigned char piece[PIECE];
  uint64_t sum = 0;
  for (off_t at = from; at < to; at += PIECE) {
    const ssize_t got = pread(file, piece, to - at < PIECE ? (size_t)(to - at) : PIECE, at);
    if (got <= 0) MPI_Abort(MPI_COMM_WORLD, 3);
    for (ssize_t i = 0; i < got; i++) sum = sum * 31 + piece[i];
  }
  return sum;
}

static void exchange(int rank, int size, int mib) {
  static unsigned char out[MESSAGE], in[MESSAGE];
  const int neighbour = rank ^ 1;
  if (neighbour >= size) return;
  for (int i = 0; i < mib; i++) {
    memset(out, rank + i, sizeof out);
    MPI_Sendrecv(out, MESSAGE, MPI_BYTE, neighbour, 0, in, MESSAGE, MPI_BYTE, neighbour, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (in[0] != (unsigned char)(neighbour + i) || in[MESSAGE - 1] != in[0]) MPI_Abort(MPI_COMM_WORLD, 3);
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  const char *until = NULL, *quiet = NULL;
  int rank, size, own = 0, mib = 0;
  for (int option; (option = getopt(argc, argv, "oq:u:x:")) != -1;) {
    switch (option) {
      case 'o': own = 1; break;
      case 'q': quiet = optarg; break;
      case 'u': until = optarg; break;
      case 'x': mib = atoi(optarg); break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int file = optind < argc ? open(argv[optind], O_RDONLY) : -1;
  if (file < 0) MPI_Abort(MPI_COMM_WORLD, 2);
  const off_t length = lseek(file, 0, SEEK_END);
  const int parts = own || size < 2 ? size : size / 2, part = rank % parts;
  // Parts begin and end with a piece.
  const off_t each = length / parts / PIECE * PIECE;
  uint64_t first = 0;
  for (int round = 0, ends = 0; !ends; round++) {
    const uint64_t mine = sum_of(file, part * each, (part + 1) * each);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    exchange(rank, size, mib);
    uint64_t sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (round == 0) first = sum;
    if (sum != first) {
      fprintf(stderr, "shared_reads: rank %d: round %d gave %016" PRIx64 "\n", rank, round, sum);
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
    ends = rank == 0 && round + 1 >= ROUNDS && (!until || access(until, F_OK) == 0);
    if (rank == 0 && quiet && access(quiet, F_OK) == 0) mib = 0;
    int told[] = {ends, mib};
    MPI_Bcast(told, 2, MPI_INT, 0, MPI_COMM_WORLD);
    ends = told[0], mib = told[1];
    usleep(PAUSE_US);
  }
  if (rank == 0) printf("reads ok\n");
  MPI_Finalize();
  return 0;
}
