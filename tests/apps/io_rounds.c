// Ranks that write one file and read what others wrote, after mpi_io_test of the PVFS distribution: in each round rank N reads what rank N + i wrote.
//
//   mend run -n SIZE --data SPACE:/mnt:rw io_rounds /mnt/FILE [-b KIB] [-r ROUNDS] [-i DISTANCE,…] [-p PAUSE_MS] [-s] [-u STOP]
//
// The ranks go through the distances one after the other, ROUNDS rounds each (8). With -u the rounds of the last one go on until the file STOP exists. Each rank writes KIB
// (4096) in each round: in segments, or with -s in strides of 256 KiB. Everything that is read is compared with what must have been written. Rounds are followed by a pause.
// Standard error has a line for each round: "round R distance I write SECONDS read SECONDS", of the slowest rank. Standard output: one last line of rank 0, "rounds ok
// digest=…", of what the file has at its end. Exit code 2 on wrong usage, 3 for other bytes or a file that fails.

#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STRIDE = 256 << 10, MOST_DISTANCES = 16 };

static int rank, size, strided;
static size_t length;

static void fails(const char *what) {
  fprintf(stderr, "io_rounds: rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

// What a rank writes in a round, from word `first` on.
static void fill(uint64_t *words, size_t count, int of, long round, size_t first) {
  for (size_t i = 0; i < count; i++) words[i] = ((uint64_t)of << 48 ^ (uint64_t)round << 32 ^ (first + i)) * 0x9e3779b97f4a7c15u;
}

static MPI_Offset place(int of, size_t at) {
  return strided ? (MPI_Offset)(at / STRIDE * STRIDE) * size + (MPI_Offset)of * STRIDE : (MPI_Offset)of * (MPI_Offset)length + (MPI_Offset)at;
}

static double slowest(double seconds) {
  double all;
  MPI_Reduce(&seconds, &all, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  return all;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int distances[MOST_DISTANCES] = {1}, count = 0;
  long rounds = 8, kib = 4096, pause_ms = 0;
  const char *until = NULL;
  for (int option; (option = getopt(argc, argv, "b:r:i:p:su:")) != -1;) {
    switch (option) {
      case 'b': kib = strtol(optarg, NULL, 10); break;
      case 'r': rounds = strtol(optarg, NULL, 10); break;
      case 'i':
        for (char *word = strtok(optarg, ","); word && count < MOST_DISTANCES; word = strtok(NULL, ",")) distances[count++] = atoi(word);
        break;
      case 'p': pause_ms = strtol(optarg, NULL, 10); break;
      case 's': strided = 1; break;
      case 'u': until = optarg; break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  if (optind + 1 != argc || kib <= 0 || rounds <= 0 || (strided && kib * 1024 % STRIDE)) MPI_Abort(MPI_COMM_WORLD, 2);
  length = (size_t)kib << 10;
  const size_t step = strided ? STRIDE : length, words = step / sizeof(uint64_t);
  uint64_t *mine = malloc(step), *theirs = malloc(step);
  MPI_File file;
  if (!mine || !theirs) fails("no memory");
  if (MPI_File_open(MPI_COMM_WORLD, argv[optind], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file)) fails("the file cannot be opened");
  long round = 0;
  for (int phase = 0; phase < (count ? count : 1); phase++) {
    const int last = phase + 1 == (count ? count : 1), distance = distances[phase];
    for (long of_phase = 0, ends = 0; !ends; of_phase++, round++) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double begun = MPI_Wtime();
      for (size_t at = 0; at < length; at += step) {
        fill(mine, words, rank, round, at / sizeof(uint64_t));
        if (MPI_File_write_at(file, place(rank, at), mine, (int)words, MPI_UINT64_T, MPI_STATUS_IGNORE)) fails("a write fails");
      }
      // What was written is seen by the others after sync, barrier, sync (MPI 4.1, section 14.6.1).
      if (MPI_File_sync(file)) fails("sync fails");
      const double wrote = slowest(MPI_Wtime() - begun);
      MPI_Barrier(MPI_COMM_WORLD);
      MPI_File_sync(file);
      MPI_Barrier(MPI_COMM_WORLD);
      const double between = MPI_Wtime();
      const int other = (rank + distance) % size;
      for (size_t at = 0; at < length; at += step) {
        if (MPI_File_read_at(file, place(other, at), theirs, (int)words, MPI_UINT64_T, MPI_STATUS_IGNORE)) fails("a read fails");
        fill(mine, words, other, round, at / sizeof(uint64_t));
        if (memcmp(mine, theirs, step)) fails("other bytes were read than were written");
      }
      const double read = slowest(MPI_Wtime() - between);
      if (rank == 0) fprintf(stderr, "round %ld distance %d write %.6f read %.6f\n", round, distance, wrote, read);
      ends = of_phase + 1 >= rounds && (!last || !until || (rank == 0 && access(until, F_OK) == 0));
      if (last && until) MPI_Bcast(&ends, 1, MPI_LONG, 0, MPI_COMM_WORLD);
      usleep((useconds_t)pause_ms * 1000);
    }
  }
  // The last content does not depend on how many rounds there were.
  uint64_t sum = 0, digest = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  for (size_t at = 0; at < length; at += step) {
    fill(mine, words, rank, -1, at / sizeof(uint64_t));
    if (MPI_File_write_at(file, place(rank, at), mine, (int)words, MPI_UINT64_T, MPI_STATUS_IGNORE)) fails("a write fails");
  }
  MPI_File_sync(file);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_File_sync(file);
  for (size_t at = 0; at < length; at += step) {
    if (MPI_File_read_at(file, place((rank + 1) % size, at), theirs, (int)words, MPI_UINT64_T, MPI_STATUS_IGNORE)) fails("a read fails");
    for (size_t i = 0; i < words; i++) sum = sum * 31 + theirs[i];
  }
  MPI_File_close(&file);
  sum *= 2 * (uint64_t)rank + 1;
  MPI_Reduce(&sum, &digest, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("rounds ok digest=%016" PRIx64 "\n", digest);
  MPI_Finalize();
  return 0;
}
