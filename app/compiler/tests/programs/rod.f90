! Heat in Fortran: rod STEPS [KILL]. Rank 0 aborts at step KILL.
program rod
  use mpi
  use rod_grid
  implicit none
  integer :: rank, ranks, ierr, step, steps, left, right, n, m, kill_at
  character(len=16) :: word
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  call get_command_argument(1, word)
  read (word, *) steps
  kill_at = -1
  if (command_argument_count() > 1) then
    call get_command_argument(2, word)
    read (word, *) kill_at
  end if
  n = 50
  m = 20
  allocate (u(n, 0:m + 1), next(n, 0:m + 1))
  u = 0
  if (rank == 0) u(:, 1) = 100
  left = rank - 1
  if (rank == 0) left = mpi_proc_null
  right = rank + 1
  if (rank == ranks - 1) right = mpi_proc_null
  do step = 1, steps
    if (step == kill_at .and. rank == 0) call abort()
    call mpi_sendrecv(u(1, m), n, mpi_double_precision, right, 0, u(1, 0), n, mpi_double_precision, left, 0, &
      mpi_comm_world, mpi_status_ignore, ierr)
    call mpi_sendrecv(u(1, 1), n, mpi_double_precision, left, 1, u(1, m + 1), n, mpi_double_precision, right, 1, &
      mpi_comm_world, mpi_status_ignore, ierr)
    call step_all(n, m)
    if (mod(step, 10) == 0) call gather(n)
  end do
  if (rank == 0) print '(a, es24.16)', 'rod digest', total
  call mpi_finalize(ierr)

end program

subroutine gather(n)
  use mpi
  use rod_grid
  implicit none
  integer, intent(in) :: n
  real(dp) :: all
  integer :: ierr
  call mpi_allreduce(total, all, 1, mpi_double_precision, mpi_sum, mpi_comm_world, ierr)
  total = all / n
end subroutine
