// A step of waves on a ring that is divided among ranks: integers only, so that the result does not depend on who comes first.

#include <mpi.h>
#include <stdint.h>

// Moves this rank's cells on, with its neighbours' edges.
static void move_on(uint64_t *cells, int count, MPI_Comm own, int rank, int size) {
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  uint64_t from_left, from_right;
  MPI_Sendrecv(&cells[count - 1], 1, MPI_UINT64_T, right, 0, &from_left, 1, MPI_UINT64_T, left, 0, own, MPI_STATUS_IGNORE);
  MPI_Sendrecv(&cells[0], 1, MPI_UINT64_T, left, 1, &from_right, 1, MPI_UINT64_T, right, 1, own, MPI_STATUS_IGNORE);
  uint64_t before = from_left;
  for (int i = 0; i < count; i++) {
    const uint64_t here = cells[i], after = i + 1 < count ? cells[i + 1] : from_right;
    cells[i] = (here << 7 | here >> 57) + (before ^ after) + 1;
    before = here;
  }
}
