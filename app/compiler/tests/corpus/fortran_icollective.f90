! Collective functions that go on in the background.
program background
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, request
  real(8) :: x, total
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  x = rank
  total = 0
  do step = 1, 5
    ! safe
    call mpi_iallreduce(x, total, 1, mpi_double_precision, mpi_sum, mpi_comm_world, request, ierr)
    ! unsafe
    x = x + step
    call mpi_wait(request, mpi_status_ignore, ierr)
    ! safe
    x = x + 0.1d0 * total
    call mpi_barrier(mpi_comm_world, ierr)
    ! safe
    x = x - 1
  end do
  print *, rank, x
  call mpi_finalize(ierr)
end program
