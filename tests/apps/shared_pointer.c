// One file for MPI-IO, in which each rank writes its number at the shared pointer.
//
// Rank 0 prints "open" when it is open, "changed" when it was written, which begins with a file `change`, and with a file `go` what is in it.

#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

static void until(const char *file) {
  while (access(file, F_OK) != 0) usleep(10000);
  MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_File file;
  int failed = MPI_File_open(MPI_COMM_WORLD, "shared-pointer", MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file);
  if (rank == 0) printf("open\n"), fflush(stdout);
  until("change");
  failed |= MPI_File_write_ordered(file, &rank, 1, MPI_INT, MPI_STATUS_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) printf("changed\n"), fflush(stdout);
  until("go");
  MPI_Offset length;
  int first = -1, last = -1;
  failed |= MPI_File_get_size(file, &length);
  failed |= MPI_File_read_at(file, 0, &first, 1, MPI_INT, MPI_STATUS_IGNORE);
  failed |= MPI_File_read_at(file, (size - 1) * (MPI_Offset)sizeof last, &last, 1, MPI_INT, MPI_STATUS_IGNORE);
  if (rank == 0) printf("%lld bytes, %d to %d, %s\n", (long long)length, first, last, failed ? "failed" : "good"), fflush(stdout);
  MPI_File_close(&file);
  MPI_Finalize();
  return 0;
}
