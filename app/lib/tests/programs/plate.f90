! Heat on a plate, in columns over the ranks. The last line is the same for every number of ranks.
program plate
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use mpi
  use mend_app
  implicit none
  integer(int64), parameter :: rows = 12, columns = 40
  integer(int64) :: first, count, i, j
  integer(int64), target :: step
  integer :: rank, ranks, error, left, right, got, steps, kill_at
  real(real64), allocatable, target :: u(:, :), next(:, :)
  real(real64), target :: weights(3)
  real(real64) :: mine, total
  character(32) :: argument

  steps = 60
  kill_at = -1
  if (command_argument_count() > 0) then
    call get_command_argument(1, argument)
    read (argument, *) kill_at
  end if
  call mpi_init(error)
  call mpi_comm_rank(mpi_comm_world, rank, error)
  call mpi_comm_size(mpi_comm_world, ranks, error)
  call mend_app_init(mpi_comm_world, program='plate 1')
  if (mend_app_restarting()) kill_at = -1
  first = columns * rank / ranks + 1
  count = columns * (rank + 1) / ranks - first + 1
  allocate (u(rows, 0:count + 1), next(rows, 0:count + 1))
  u = 0
  do j = 1, count
    do i = 1, rows
      u(i, j) = real(mod(i * 7 + (first + j - 1) * 13, 29_int64), real64)
    end do
  end do
  next = u
  step = 0
  weights = [0.5_real64, 0.25_real64, 0.125_real64]
  if (mend_app_enter('main') /= 0) stop 2
  call mend_app_register('step', step, mend_app_replicated)
  call mend_app_register('weights', weights, mend_app_replicated)
  call mend_app_array('u', u, [mend_app_whole(rows), mend_app_block(columns, first, count, 1_int64, 1_int64)])
  left = merge(rank - 1, mpi_proc_null, rank > 0)
  right = merge(rank + 1, mpi_proc_null, rank < ranks - 1)
  do while (step < steps)
    got = mend_app_checkpoint()
    if (got == mend_app_restored .and. rank == 0) write (0, '(a,i0)') 'plate: goes on at step ', step
    if (step == kill_at .and. rank == 0) error stop 9
    call mpi_sendrecv(u(:, 1), int(rows), mpi_double_precision, left, 0, u(:, count + 1), int(rows), mpi_double_precision, right, &
      0, mpi_comm_world, mpi_status_ignore, error)
    call mpi_sendrecv(u(:, count), int(rows), mpi_double_precision, right, 0, u(:, 0), int(rows), mpi_double_precision, left, &
      0, mpi_comm_world, mpi_status_ignore, error)
    do j = 1, count
      do i = 2, rows - 1
        next(i, j) = weights(1) * u(i, j) + weights(3) * (u(i - 1, j) + u(i + 1, j) + u(i, j - 1) + u(i, j + 1))
      end do
    end do
    u(:, 1:count) = next(:, 1:count)
    step = step + 1
  end do
  error = mend_app_leave()
  mine = 0
  ! Sums of whole numbers are exact in any order.
  do j = 1, count
    do i = 1, rows
      mine = mine + real(mod(int(u(i, j) * 2.0_real64**20, int64) * (i + rows * (first + j - 2)), 1000003_int64), real64)
    end do
  end do
  call mpi_reduce(mine, total, 1, mpi_double_precision, mpi_sum, 0, mpi_comm_world, error)
  if (rank == 0) print '(a,f0.0,a,i0)', 'plate digest=', total, ' steps=', step
  call mend_app_finalize()
  call mpi_finalize(error)
end program
