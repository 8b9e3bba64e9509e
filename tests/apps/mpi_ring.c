// A token goes round all ranks and collects a checksum on its way.
//
//   mpi_ring [-l LAPS] [-b BYTES] [-p PAUSE_US]
//
// In each lap rank 0 sends BYTES bytes to rank 1, each rank checks them, stirs its rank in and passes them on; rank 0
// checks what comes back. One message is under way at a time, so a lost, repeated or damaged message stops the ring or
// is named. Standard output: one last line "ring digest=…", the same for equal LAPS, BYTES and number of ranks.
// Progress goes to standard error. Exit code 0, or 1 on a wrong byte, 2 on wrong usage.

#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// splitmix64 (Steele, Lea, Flood 2014): one step of a 64-bit mixer.
static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What word `i` holds after `hops` ranks have stirred the token of `lap`: each hop adds its own constant.
static uint64_t expected(uint64_t lap, uint64_t i, int hops) {
  uint64_t word = mix(lap * 1000003u + i);
  for (int rank = 0; rank < hops; rank++) word += mix((uint64_t)rank ^ (lap << 20));
  return word;
}

static void check(const uint64_t *token, uint64_t words, uint64_t lap, int hops, int rank) {
  for (uint64_t i = 0; i < words; i++) {
    if (token[i] != expected(lap, i, hops)) {
      fprintf(stderr, "mpi_ring: rank %d, lap %" PRIu64 ": word %" PRIu64 " is wrong\n", rank, lap, i);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  uint64_t laps = 1000, bytes = 4096, pause_us = 0;
  for (int option; (option = getopt(argc, argv, "l:b:p:")) != -1;) {
    switch (option) {
      case 'l': laps = strtoull(optarg, NULL, 10); break;
      case 'b': bytes = strtoull(optarg, NULL, 10); break;
      case 'p': pause_us = strtoull(optarg, NULL, 10); break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const uint64_t words = bytes / sizeof(uint64_t) + 1;
  uint64_t *token = malloc(words * sizeof *token);
  if (!token) MPI_Abort(MPI_COMM_WORLD, 1);
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  uint64_t digest = 0;
  for (uint64_t lap = 0; lap < laps; lap++) {
    const int tag = (int)(lap % 1000);
    if (rank == 0) {
      for (uint64_t i = 0; i < words; i++) token[i] = expected(lap, i, 0);
    } else {
      MPI_Recv(token, (int)words, MPI_UINT64_T, left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      check(token, words, lap, rank, rank);
    }
    for (uint64_t i = 0; i < words; i++) token[i] += mix((uint64_t)rank ^ (lap << 20));
    if (size > 1) {
      MPI_Send(token, (int)words, MPI_UINT64_T, right, tag, MPI_COMM_WORLD);
      if (rank == 0) MPI_Recv(token, (int)words, MPI_UINT64_T, left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (rank == 0) {
      check(token, words, lap, size, rank);
      digest = mix(digest ^ token[lap % words]);
      if ((lap + 1) % 100 == 0) fprintf(stderr, "mpi_ring: lap %" PRIu64 " of %" PRIu64 "\n", lap + 1, laps);
    }
    if (pause_us) usleep((useconds_t)pause_us);
  }
  if (rank == 0) printf("ring digest=%016" PRIx64 " ranks=%d laps=%" PRIu64 "\n", digest, size, laps);
  free(token);
  MPI_Finalize();
  return 0;
}
