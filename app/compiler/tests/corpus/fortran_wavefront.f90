! Each rank waits for the one before it.
program wavefront
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step
  real(8) :: x
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  x = rank
  do step = 1, 5
    ! safe
    if (rank > 0) call mpi_recv(x, 1, mpi_double_precision, rank - 1, 0, mpi_comm_world, mpi_status_ignore, ierr)
    ! unsafe
    x = x + 1
    if (rank < ranks - 1) call mpi_send(x, 1, mpi_double_precision, rank + 1, 0, mpi_comm_world, ierr)
    ! safe
    x = x * 0.5d0
  end do
  ! safe
  x = x + 1
  print *, rank, x
  call mpi_finalize(ierr)
end program
