! A module starts an exchange in one procedure and ends it in another one.
module halo
  use mpi
  implicit none
  integer :: left, right, requests(4)
  real(8) :: out(2), in(2)
contains
  subroutine start()
    integer :: ierr
    call mpi_irecv(in(1), 1, mpi_double_precision, left, 0, mpi_comm_world, requests(1), ierr)
    call mpi_irecv(in(2), 1, mpi_double_precision, right, 1, mpi_comm_world, requests(2), ierr)
    ! unsafe
    call mpi_isend(out(1), 1, mpi_double_precision, left, 1, mpi_comm_world, requests(3), ierr)
    call mpi_isend(out(2), 1, mpi_double_precision, right, 0, mpi_comm_world, requests(4), ierr)
  end subroutine
  subroutine finish()
    integer :: ierr
    call mpi_waitall(4, requests, mpi_statuses_ignore, ierr)
    ! safe
    out = 0.5d0 * in + 1
  end subroutine
end module

program exchange
  use mpi
  use halo
  implicit none
  integer :: rank, ranks, ierr, step
  real(8) :: total
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  left = modulo(rank - 1, ranks)
  right = modulo(rank + 1, ranks)
  out = rank
  step = 0
  do while (step < 5)
    ! safe
    step = step + 1
    call start()
    ! unsafe
    total = sum(out)
    call finish()
    ! safe
    call mpi_allreduce(mpi_in_place, total, 1, mpi_double_precision, mpi_sum, mpi_comm_world, ierr)
    ! safe
    if (total > 1d9) exit
  end do
  print *, rank, total
  call mpi_finalize(ierr)
end program
