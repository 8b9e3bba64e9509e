! An exchange without blocking, by names and arrays of requests.
program open_requests
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, left, right, one
  integer :: requests(3)
  real(8) :: x, y, in(2)
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  left = merge(rank - 1, mpi_proc_null, rank > 0)
  right = merge(rank + 1, mpi_proc_null, rank < ranks - 1)
  x = rank
  in = 0
  do step = 1, 5
    ! safe
    call mpi_irecv(in(1), 1, mpi_double_precision, left, 0, mpi_comm_world, requests(1), ierr)
    call mpi_irecv(in(2), 1, mpi_double_precision, right, 0, mpi_comm_world, requests(2), ierr)
    ! unsafe
    call mpi_isend(x, 1, mpi_double_precision, left, 0, mpi_comm_world, requests(3), ierr)
    call mpi_isend(x, 1, mpi_double_precision, right, 0, mpi_comm_world, one, ierr)
    ! unsafe
    y = step
    call mpi_waitall(3, requests, mpi_statuses_ignore, ierr)
    ! unsafe
    y = y + 1
    call mpi_wait(one, mpi_status_ignore, ierr)
    ! safe
    x = y + sum(in)
  end do
  print *, rank, x
  call mpi_finalize(ierr)
end program
