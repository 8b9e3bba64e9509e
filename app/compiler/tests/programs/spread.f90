! An array that a directive spreads over the ranks: spread STEPS KILL HALO. A HALO other than 1 isn't the array's.
program spread_over
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, steps, stop_at, first, n, i, j, halo
  integer, parameter :: all = 60, m = 4
  real(8), allocatable :: u(:, :)
  real(8) :: total, mine
  character(32) :: word
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  call get_command_argument(1, word)
  read (word, *) steps
  call get_command_argument(2, word)
  read (word, *) stop_at
  call get_command_argument(3, word)
  read (word, *) halo
  first = all * rank / ranks + 1
  n = all * (rank + 1) / ranks - first + 1
  allocate (u(m, 0:n + 1))
  u = 0
  do i = 1, n
    do j = 1, m
      u(j, i) = first + i + 0.1d0 * j
    end do
  end do
  !$mend shape(u) mend_app_whole(m), mend_app_block(all, first, n, 1, halo)
  do step = 1, steps
    if (step == stop_at .and. rank == 0) call abort()
    call mpi_barrier(mpi_comm_world, ierr)
    do i = 1, n
      do j = 1, m
        u(j, i) = u(j, i) * 0.5d0 + step
      end do
    end do
  end do
  mine = 0
  do i = 1, n
    mine = mine + sum(u(:, i)) * (first + i)
  end do
  call mpi_reduce(mine, total, 1, mpi_double_precision, mpi_sum, 0, mpi_comm_world, ierr)
  if (rank == 0) print '(a, es20.10)', 'spread digest', total
  call mpi_finalize(ierr)
end program
