! Persistent requests, which some steps start and all complete.
program persistent
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, requests(2)
  real(8) :: x, from
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  x = rank
  from = 0
  call mpi_recv_init(from, 1, mpi_double_precision, modulo(rank - 1, ranks), 0, mpi_comm_world, requests(1), ierr)
  call mpi_send_init(x, 1, mpi_double_precision, modulo(rank + 1, ranks), 0, mpi_comm_world, requests(2), ierr)
  do step = 1, 6
    ! safe
    call mpi_startall(2, requests, ierr)
    ! unsafe
    call mpi_wait(requests(2), mpi_status_ignore, ierr)
    ! unsafe
    call mpi_wait(requests(1), mpi_status_ignore, ierr)
    ! safe
    x = x + 0.5d0 * from
  end do
  ! safe
  x = x + 1
  call mpi_request_free(requests(1), ierr)
  call mpi_request_free(requests(2), ierr)
  print *, rank, x
  call mpi_finalize(ierr)
end program
