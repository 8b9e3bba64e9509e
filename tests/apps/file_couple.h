// What two programs of one job share that exchange through files of a data space: who the partner is, tokens that say that something is written, and transfers that are whole.

#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// AGAIN: what is exchanged counts for nothing.
enum { GOES_ON = 1, ENDS = 2, AGAIN = 3 };

static int own_rank, own_size;
static MPI_Comm own, others;

static void fails(const char *what) {
  fprintf(stderr, "rank %d of its program: %s\n", own_rank, what);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

// Splits the world by MPI_APPNUM into two programs with as many ranks each; rank N of one is the partner of rank N of the other.
static void meet(int expected) {
  int *number, found, world, partners;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &found);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  MPI_Comm_split(MPI_COMM_WORLD, found ? *number : 0, 0, &own);
  MPI_Comm_rank(own, &own_rank);
  MPI_Comm_size(own, &own_size);
  if (!found || *number != expected || own_size * 2 != world) fails("the other program is not there with as many ranks");
  MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, expected ? 0 : own_size, 1, &others);
  MPI_Comm_remote_size(others, &partners);
  if (partners != own_size) fails("the other program has another number of ranks");
}

// True until there is a file of this name; no name is a file that is there.
static inline int waits_for(const char *until) {
  int waits = own_rank == 0 && until && access(until, F_OK);
  MPI_Bcast(&waits, 1, MPI_INT, 0, own);
  return waits;
}

static int open_file(const char *path) {
  const int file = open(path, O_RDWR | O_CREAT, 0644);
  if (file < 0) fails("a file cannot be opened");
  return file;
}

static void put(int file, const void *bytes, size_t length, off_t at) {
  for (size_t done = 0; done < length;) {
    const ssize_t wrote = pwrite(file, (const char *)bytes + done, length - done, at + (off_t)done);
    if (wrote <= 0) fails("a write fails");
    done += (size_t)wrote;
  }
  if (fsync(file)) fails("fsync fails");
}

static inline void get(int file, void *bytes, size_t length, off_t at) {
  for (size_t done = 0; done < length;) {
    const ssize_t got = pread(file, (char *)bytes + done, length - done, at + (off_t)done);
    if (got <= 0) fails("a read fails");
    done += (size_t)got;
  }
}

static inline uint64_t digest_of(const uint64_t *words, size_t count) {
  uint64_t mine = 0, all = 0;
  for (size_t i = 0; i < count; i++) mine = mine * 31 + words[i];
  mine *= 2 * (uint64_t)own_rank + 1;
  MPI_Reduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, 0, own);
  return all;
}
