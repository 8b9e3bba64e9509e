! Conjugate gradients for a chain: chain STEPS [KILL].
module kinds
  implicit none
  integer, parameter :: dp = selected_real_kind(15, 307)
end module kinds

module halo
  use mpi
  use kinds
  implicit none
  private
  integer, save :: left = mpi_proc_null, right = mpi_proc_null
  public :: halo_init, halo_exchange, halo_dot
contains
  subroutine halo_init(rank, ranks)
    integer, intent(in) :: rank, ranks
    if (rank > 0) left = rank - 1
    if (rank < ranks - 1) right = rank + 1
  end subroutine halo_init

  subroutine halo_exchange(x)
    real(dp), intent(inout) :: x(0:)
    integer :: n, ierr
    n = ubound(x, 1) - 1
    call mpi_sendrecv(x(1), 1, mpi_double_precision, left, 1, x(n + 1), 1, mpi_double_precision, right, 1, &
      mpi_comm_world, mpi_status_ignore, ierr)
    call mpi_sendrecv(x(n), 1, mpi_double_precision, right, 2, x(0), 1, mpi_double_precision, left, 2, &
      mpi_comm_world, mpi_status_ignore, ierr)
  end subroutine halo_exchange

  subroutine halo_dot(a, b, total)
    real(dp), intent(in) :: a(:), b(:)
    real(dp), intent(out) :: total
    real(dp) :: mine
    integer :: ierr
    mine = dot_product(a, b)
    call mpi_allreduce(mine, total, 1, mpi_double_precision, mpi_sum, mpi_comm_world, ierr)
  end subroutine halo_dot
end module halo

module operators
  use kinds
  use halo
  implicit none
contains
  subroutine apply(x, y, n)
    integer, intent(in) :: n
    real(dp), intent(inout) :: x(0:n + 1)
    real(dp), intent(out) :: y(n)
    integer :: i
    call halo_exchange(x)
    do i = 1, n
      y(i) = 2.01_dp * x(i) - x(i - 1) - x(i + 1)
    end do
  end subroutine apply
end module operators

program chain
  use mpi
  use kinds
  use halo
  use operators
  implicit none
  integer, parameter :: n = 60
  real(dp), allocatable :: x(:), r(:), p(:), q(:)
  real(dp) :: rho, rho_old, alpha, beta, pq, worst
  integer :: rank, ranks, ierr, iteration, iterations, kill_at
  character(len=32) :: word

  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  call get_command_argument(1, word)
  read (word, *) iterations
  kill_at = -1
  if (command_argument_count() > 1) then
    call get_command_argument(2, word)
    read (word, *) kill_at
  end if
  call halo_init(rank, ranks)
  allocate (x(n), r(n), p(0:n + 1), q(n))
  x = 0
  r = 1 + rank
  p = 0
  p(1:n) = r
  worst = 0
  call halo_dot(r, r, rho)
  do iteration = 1, iterations
    if (iteration == kill_at .and. rank == 0) call abort()
    call apply(p, q, n)
    call halo_dot(p(1:n), q, pq)
    alpha = rho / pq
    x = x + alpha * p(1:n)
    r = r - alpha * q
    rho_old = rho
    call halo_dot(r, r, rho)
    beta = rho / rho_old
    p(1:n) = r + beta * p(1:n)
    worst = max(worst, maxval(abs(r)))
    if (rho < 1e-300_dp) exit
  end do
  if (rank == 0) print '(a, 3es24.16)', 'chain digest', sum(x), rho, worst
  deallocate (x, r, p, q)
  call mpi_finalize(ierr)
end program chain
