! Heat with and without MPI: strip STEPS [KILL].
#ifndef PRECISION
#define PRECISION_IS_DOUBLE
#endif
module settings
#ifdef USE_MPI
  use mpi
#endif
  implicit none
#if defined(PRECISION_IS_DOUBLE) && !defined(SINGLE)
  integer, parameter :: rp = kind(1.0d0)
#else
  integer, parameter :: rp = kind(1.0)
#endif
  integer :: rank = 0, ranks = 1
contains
  subroutine begin()
#ifdef USE_MPI
    integer :: ierr
    call mpi_init(ierr)
    call mpi_comm_rank(mpi_comm_world, rank, ierr)
    call mpi_comm_size(mpi_comm_world, ranks, ierr)
#endif
  end subroutine
  subroutine finish()
#ifdef USE_MPI
    integer :: ierr
    call mpi_finalize(ierr)
#endif
  end subroutine
  subroutine borders(u)
    real(rp), intent(inout) :: u(0:)
    integer :: n
#ifdef USE_MPI
    integer :: left, right, ierr, requests(4)
    n = size(u) - 2
    left = rank - 1
    right = rank + 1
    if (left < 0) left = mpi_proc_null
    if (right == ranks) right = mpi_proc_null
    call mpi_irecv(u(0), 1, mpi_double_precision, left, 1, mpi_comm_world, requests(1), ierr)
    call mpi_irecv(u(n + 1), 1, mpi_double_precision, right, 0, mpi_comm_world, requests(2), ierr)
    call mpi_isend(u(1), 1, mpi_double_precision, left, 0, mpi_comm_world, requests(3), ierr)
    call mpi_isend(u(n), 1, mpi_double_precision, right, 1, mpi_comm_world, requests(4), ierr)
    call mpi_waitall(4, requests, mpi_statuses_ignore, ierr)
#else
    n = size(u) - 2
    u(0) = 0
    u(n + 1) = 0
#endif
  end subroutine
end module

program strip
  use settings
  implicit none
  integer, parameter :: n = 40
  real(rp), allocatable :: u(:), next(:)
  real(rp) :: flux, all
  integer :: step, steps, kill_at, i
#ifdef USE_MPI
  integer :: ierr
#endif
  character(len=16) :: word
  call begin()
  call get_command_argument(1, word)
  read (word, *) steps
  kill_at = -1
  if (command_argument_count() > 1) then
    call get_command_argument(2, word)
    read (word, *) kill_at
  end if
  allocate (u(0:n + 1), next(0:n + 1), source=0.0_rp)
  u(n / 2) = 100 + rank
  flux = 0
  do step = 1, steps
    if (step == kill_at .and. rank == 0) call abort()
    call borders(u)
#ifdef FORGET
    flux = 0
#endif
    do i = 1, n
      next(i) = u(i) + 0.2_rp * (u(i - 1) - 2 * u(i) + u(i + 1))
    end do
    flux = flux + sum(abs(next(1:n) - u(1:n)))
    u(1:n) = next(1:n)
  end do
  all = flux
#ifdef USE_MPI
  call mpi_reduce(flux, all, 1, mpi_double_precision, mpi_sum, 0, mpi_comm_world, ierr)
#endif
  if (rank == 0) print '(a, 2es24.16)', 'strip digest', all, maxval(u)
  call finish()
end program
