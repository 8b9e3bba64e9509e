! A procedure that sends is an argument of another one.
module ways
  use mpi
  implicit none
  integer :: rank, ranks
contains
  subroutine onwards(x)
    real(8), intent(inout) :: x
    integer :: ierr
    call mpi_sendrecv_replace(x, 1, mpi_double_precision, modulo(rank + 1, ranks), 0, modulo(rank - 1, ranks), 0, mpi_comm_world, &
      mpi_status_ignore, ierr)
  end subroutine
  subroutine give(x)
    real(8), intent(inout) :: x
    integer :: ierr
    if (rank == 0) call mpi_send(x, 1, mpi_double_precision, ranks - 1, 1, mpi_comm_world, ierr)
  end subroutine
  subroutine twice(way, x)
    external :: way
    real(8), intent(inout) :: x
    call way(x)
    call way(x)
  end subroutine
end module

program callback
  use ways
  implicit none
  integer :: ierr, step
  real(8) :: x, y
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  x = rank
  y = 0
  do step = 1, 5
    ! safe
    call twice(onwards, x)
    ! safe
    call twice(give, x)
    ! unsafe
    if (rank == ranks - 1) then
      call mpi_recv(y, 1, mpi_double_precision, 0, 1, mpi_comm_world, mpi_status_ignore, ierr)
      ! unsafe
      call mpi_recv(y, 1, mpi_double_precision, 0, 1, mpi_comm_world, mpi_status_ignore, ierr)
    end if
    ! safe
    x = x + 0.5d0 * y
  end do
  print *, rank, x
  call mpi_finalize(ierr)
end program
