// One file that all ranks write to, whose size is set anew.
//
//   mpi_files [-b KIB]
//
// Each rank writes a block of KIB KiB (default 64) into the shared file `shared`; rank 0 prints "open". When there is a file `change` all
// read the whole file, the size is set to 0 and to three blocks for each rank, and other blocks are written; rank 0 prints "changed". When there is
// a file `go` all is read once more, and rank 0 prints a last line "digest=…", the same in every run. Between the two every
// rank writes into its block at its own pace, without a message to any other. Exit code 0; 3 where something read isn't what was written.

#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t stir(uint64_t digest, const unsigned char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++) digest = (digest ^ bytes[i]) * 1099511628211u;
  return digest;
}

static void fill(unsigned char *block, size_t length, int rank, int round) {
  for (size_t i = 0; i < length; i++) block[i] = (unsigned char)((i * 31 + (size_t)rank * 7 + (size_t)round * 101) >> 3);
}

static int rank, ranks;
static size_t length;
static unsigned char *block, *other;

// Until rank 0 sees the file, every rank counts in the first words of its block, and checks that what it wrote last is there.
static void wait_for(const char *file, MPI_File shared, uint64_t *count) {
  for (int seen = 0; !seen;) {
    for (int turn = 0; turn < 50; turn++) {
      uint64_t found;
      MPI_File_read_at(shared, (MPI_Offset)length * rank, &found, sizeof found, MPI_BYTE, MPI_STATUS_IGNORE);
      if (found != *count) {
        fprintf(stderr, "mpi_files: rank %d wrote %" PRIu64 " and reads %" PRIu64 "\n", rank, *count, found);
        MPI_Abort(MPI_COMM_WORLD, 3);
      }
      ++*count;
      MPI_File_write_at(shared, (MPI_Offset)length * rank, count, sizeof *count, MPI_BYTE, MPI_STATUS_IGNORE);
      usleep(100);
    }
    seen = rank == 0 && access(file, F_OK) == 0;
    MPI_Bcast(&seen, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
}

static uint64_t check(MPI_File shared, int round, int blocks, uint64_t digest) {
  for (int owner = 0; owner < ranks; owner++) {
    MPI_Offset at = (MPI_Offset)length * (owner + ranks * (blocks - 1));
    MPI_File_read_at(shared, at, other, (int)length, MPI_BYTE, MPI_STATUS_IGNORE);
    fill(block, length, owner, round);
    size_t counted = blocks == 1 ? sizeof(uint64_t) : 0;
    for (size_t i = counted; i < length; i++) {
      if (block[i] == other[i]) continue;
      fprintf(stderr, "mpi_files: rank %d: byte %zu of rank %d's block is wrong in round %d\n", rank, i, owner, round);
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
    digest = stir(digest, other + counted, length - counted);
  }
  return digest;
}

static uint64_t write_block(MPI_File shared, int round, int blocks) {
  fill(block, length, rank, round);
  uint64_t count = 0;
  if (blocks == 1) *(uint64_t *)block = count;
  MPI_File_write_at_all(shared, (MPI_Offset)length * (rank + ranks * (blocks - 1)), block, (int)length, MPI_BYTE, MPI_STATUS_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
  return count;
}

static void say(const char *what) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank) return;
  puts(what);
  fflush(stdout);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  length = 64 << 10;
  if (argc == 3) length = strtoull(argv[2], NULL, 10) << 10;
  block = malloc(length), other = malloc(length);
  if (!block || !other) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_File shared;
  if (MPI_File_open(MPI_COMM_WORLD, "shared", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &shared)) MPI_Abort(MPI_COMM_WORLD, 1);
  uint64_t digest = 14695981039346656037u, count = write_block(shared, 1, 1);
  say("open");
  wait_for("change", shared, &count);
  MPI_Barrier(MPI_COMM_WORLD);
  digest = check(shared, 1, 1, digest);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_File_set_size(shared, 0);
  MPI_File_set_size(shared, (MPI_Offset)length * ranks * 3);
  count = write_block(shared, 2, 1);
  write_block(shared, 3, 3);
  say("changed");
  wait_for("go", shared, &count);
  MPI_Barrier(MPI_COMM_WORLD);
  digest = check(shared, 2, 1, digest);
  digest = check(shared, 3, 3, digest);
  MPI_File_close(&shared);
  uint64_t sum;
  MPI_Reduce(&digest, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("digest=%016" PRIx64 "\n", sum);
  MPI_Finalize();
  return 0;
}
