! Arrays that are allocated, and sections of them, pass along a ring; odd ranks receive first.
program ring
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, left, right
  real(8), allocatable :: u(:, :), ghost(:)
  real(8) :: x
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  left = modulo(rank - 1, ranks)
  right = modulo(rank + 1, ranks)
  allocate (u(4, 3 + mod(rank, 2)), ghost(4))
  u = rank
  do step = 1, 5
    ! safe
    if (mod(rank, 2) == 0) then
      call mpi_ssend(u(:, 1), 4, mpi_double_precision, right, 3, mpi_comm_world, ierr)
      call mpi_recv(ghost, 4, mpi_double_precision, left, 3, mpi_comm_world, mpi_status_ignore, ierr)
    else
      call mpi_recv(ghost, 4, mpi_double_precision, left, 3, mpi_comm_world, mpi_status_ignore, ierr)
      call mpi_ssend(u(:, 1), 4, mpi_double_precision, right, 3, mpi_comm_world, ierr)
    end if
    ! safe
    u(:, 2) = 0.5d0 * ghost
    call mpi_send(u(1, 2), 1, mpi_double_precision, left, 4, mpi_comm_world, ierr)
    ! unsafe
    u(:, 1) = u(:, 1) + u(:, 2)
    call mpi_recv(u(2, 2), 1, mpi_double_precision, right, 4, mpi_comm_world, mpi_status_ignore, ierr)
    ! safe
    u(3, 2) = step
  end do
  x = sum(u(:, 1))
  print *, rank, x
  call mpi_finalize(ierr)
end program
