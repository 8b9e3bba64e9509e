! Particles that move from rank to rank: drift STEPS [KILL].
module particles
  use mpi
  implicit none
  integer, parameter :: rk = 8, most = 400
  type particle
    real(rk) :: x, v
    integer :: id
  end type
  real(rk), save :: x(most), v(most)
  integer, save :: id(most)
  integer :: count = 0, moved
contains
  subroutine push(dt)
    real(rk), intent(in) :: dt
    integer :: i
    where (x(1:count) > 0.5_rk)
      v(1:count) = v(1:count) - dt * 0.3_rk
    elsewhere
      v(1:count) = v(1:count) + dt * 0.2_rk
    end where
    do i = 1, count
      x(i) = x(i) + dt * v(i)
    end do
  end subroutine

  subroutine exchange(to, from)
    integer, intent(in) :: to, from
    real(rk) :: out(2, most), in(2, most)
    integer :: ids(most), got(most), leaving, coming, i, kept, ierr
    leaving = 0
    kept = 0
    do i = 1, count
      if (x(i) >= 1) then
        leaving = leaving + 1
        out(:, leaving) = [x(i) - 1, v(i)]
        ids(leaving) = id(i)
        cycle
      end if
      kept = kept + 1
      x(kept) = x(i)
      v(kept) = v(i)
      id(kept) = id(i)
    end do
    count = kept
    moved = moved + leaving
    call mpi_sendrecv(leaving, 1, mpi_integer, to, 0, coming, 1, mpi_integer, from, 0, mpi_comm_world, mpi_status_ignore, ierr)
    call mpi_sendrecv(out, 2 * leaving, mpi_double_precision, to, 1, in, 2 * coming, mpi_double_precision, from, 1, &
      mpi_comm_world, mpi_status_ignore, ierr)
    call mpi_sendrecv(ids, leaving, mpi_integer, to, 2, got, coming, mpi_integer, from, 2, mpi_comm_world, mpi_status_ignore, ierr)
    x(count + 1:count + coming) = in(1, 1:coming)
    v(count + 1:count + coming) = in(2, 1:coming)
    id(count + 1:count + coming) = got(1:coming)
    count = count + coming
  end subroutine
end module

program drift
  use particles
  implicit none
  integer :: rank, ranks, ierr, step, steps, kill_at, i, all(2), sums(2)
  real(rk) :: energy, total
  character(32) :: word
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
  count = 50 + 5 * rank
  moved = 0
  do i = 1, count
    x(i) = real(i, rk) / count
    v(i) = 0.1_rk * mod(i * 7, 11)
    id(i) = 1000 * rank + i
  end do
  energy = 0
  do step = 1, steps
    if (step == kill_at .and. rank == 0) call abort()
    call push(0.05_rk)
    call exchange(modulo(rank + 1, ranks), modulo(rank - 1, ranks))
    energy = energy + sum(v(1:count)**2) / 2
  end do
  call mpi_reduce(energy, total, 1, mpi_double_precision, mpi_sum, 0, mpi_comm_world, ierr)
  all = [sum(id(1:count) * [(i, i = 1, count)]), moved]
  call mpi_reduce(all, sums, 2, mpi_integer, mpi_sum, 0, mpi_comm_world, ierr)
  if (rank == 0) print '(a, es24.16, 2i12)', 'drift digest', total, sums
  call mpi_finalize(ierr)
end program
