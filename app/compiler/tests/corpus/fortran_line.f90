! A send and its receive with work between them, along a line of ranks; then a sendrecv.
program line
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, left, right
  real(8) :: x, y
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  left = merge(rank - 1, mpi_proc_null, rank > 0)
  right = merge(rank + 1, mpi_proc_null, rank < ranks - 1)
  x = rank
  y = 0
  do step = 1, 5
    ! safe
    call mpi_send(x, 1, mpi_double_precision, right, 0, mpi_comm_world, ierr)
    ! unsafe
    x = x * 0.5d0 + step
    call mpi_recv(y, 1, mpi_double_precision, left, 0, mpi_comm_world, mpi_status_ignore, ierr)
    ! safe
    call mpi_sendrecv(x, 1, mpi_double_precision, left, 1, y, 1, mpi_double_precision, right, 1, mpi_comm_world, &
      mpi_status_ignore, ierr)
    ! safe
    x = x + y
  end do
  print *, rank, x
  call mpi_finalize(ierr)
end program
