! A value carried round a ring, on ranks that move. The last line is the same with moves and without.
!
!   carry STEPS [STEP RANKS]
program carry
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use mpi
  use mend_app
  implicit none
  integer, target, save :: ring, odd
  integer(int64), target, save :: step = 0
  real(real64), allocatable, target :: x(:)
  type(mend_app_dimension) :: part(1)
  integer :: rank, ranks, ierror, before, after, done, steps, ask
  integer(int64) :: all, start, count
  real(real64) :: sum_of, from_left
  character(64) :: word, who

  call get_command_argument(1, word)
  read (word, *) steps
  ask = -1
  if (command_argument_count() > 2) then
    call get_command_argument(2, word)
    read (word, *) ask
    call get_command_argument(3, who)
  end if
  call mpi_init(ierror)
  call mend_app_init(mpi_comm_world, 'carry 1')
  call mpi_comm_rank(mend_app_world(), rank, ierror)
  call mpi_comm_size(mend_app_world(), ranks, ierror)
  call mend_app_cart_create('ring', mend_app_world(), [ranks], [.true.], ring)
  call mend_app_comm_split('odd', mend_app_world(), mod(rank, 2), rank, odd)
  all = 1000
  start = all*rank/ranks
  count = all*(rank + 1)/ranks - start
  allocate (x(count))
  x = real(rank, real64)
  part(1) = mend_app_block(all, start + 1, count, 0_int64, 0_int64)
  done = mend_app_enter('main')
  call mend_app_register('step', step, mend_app_replicated)
  call mend_app_array('x', x, part)
  do while (step < steps)
    if (rank == 0 .and. step == ask .and. .not. mend_app_restarting()) call mend_app_migrate(who)
    done = mend_app_checkpoint()
    if (rank == 0 .and. done /= mend_app_ok) print '(a, i0, a, i0)', 'carry: ', done, ' at step ', step
    call mpi_cart_shift(ring, 0, 1, before, after, ierror)
    call mpi_sendrecv(x(1), 1, mpi_double_precision, after, 1, from_left, 1, mpi_double_precision, before, 1, ring, &
      mpi_status_ignore, ierror)
    call mpi_allreduce(from_left, sum_of, 1, mpi_double_precision, mpi_sum, odd, ierror)
    x = 0.5_real64*x + sum_of/3 + real(step, real64)
    call mpi_barrier(mend_app_world(), ierror)
    call execute_command_line('sleep 0.01')
    step = step + 1
  end do
  done = mend_app_leave()
  call mpi_allreduce(sum(x), sum_of, 1, mpi_double_precision, mpi_sum, mend_app_world(), ierror)
  if (rank == 0) print '(a, es25.17, a, i0)', 'carry sum=', sum_of, ' steps=', step
  flush (6)
  call mend_app_finalize()
  call mpi_finalize(ierror)
end program
