! A plate with fields in a derived type: fields STEPS [KILL].
module field_type
  implicit none
  integer, parameter :: wp = kind(1d0)
  type :: field
    integer :: nx, ny
    real(wp) :: time = 0, change = 0
    real(wp), allocatable :: now(:, :), next(:, :), source(:, :)
  end type field
contains
  subroutine create(f, nx, ny)
    type(field), intent(inout) :: f
    integer, intent(in) :: nx, ny
    f%nx = nx
    f%ny = ny
    allocate (f%now(0:nx + 1, 0:ny + 1), f%next(0:nx + 1, 0:ny + 1), f%source(nx, ny))
    f%now = 0
    f%next = 0
    f%source = 0
    f%source(nx / 2, ny / 2) = 1
  end subroutine create

  subroutine relax(f, dt)
    type(field), intent(inout) :: f
    real(wp), intent(in) :: dt
    integer :: i, j
    associate (nx => f%nx, ny => f%ny)
      do j = 1, ny
        do i = 1, nx
          f%next(i, j) = f%now(i, j) + dt * (f%now(i - 1, j) + f%now(i + 1, j) + f%now(i, j - 1) + f%now(i, j + 1) &
            - 4 * f%now(i, j)) + f%source(i, j)
        end do
      end do
      f%change = maxval(abs(f%next(1:nx, 1:ny) - f%now(1:nx, 1:ny)))
      f%now(1:nx, 1:ny) = f%next(1:nx, 1:ny)
    end associate
    f%time = f%time + dt
  end subroutine relax
end module field_type

program fields
  use mpi
  use field_type
  implicit none
  type(field) :: f
  integer :: rank, ranks, ierr, step, steps, kill_at, up, down
  real(wp) :: change, worst
  character(len=32) :: word
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
  up = merge(rank + 1, mpi_proc_null, rank < ranks - 1)
  down = merge(rank - 1, mpi_proc_null, rank > 0)
  call create(f, 24, 16)
  worst = 0
  step = 0
  do while (step < steps)
    step = step + 1
    if (step == kill_at .and. rank == 0) call abort()
    call mpi_sendrecv(f%now(:, f%ny), f%nx + 2, mpi_double_precision, up, 0, f%now(:, 0), f%nx + 2, mpi_double_precision, &
      down, 0, mpi_comm_world, mpi_status_ignore, ierr)
    call mpi_sendrecv(f%now(:, 1), f%nx + 2, mpi_double_precision, down, 1, f%now(:, f%ny + 1), f%nx + 2, &
      mpi_double_precision, up, 1, mpi_comm_world, mpi_status_ignore, ierr)
    call relax(f, 0.1_wp)
    call mpi_allreduce(f%change, change, 1, mpi_double_precision, mpi_max, mpi_comm_world, ierr)
    worst = max(worst, change)
    f%source = f%source * 0.99_wp
  end do
  if (rank == 0) print '(a, 4es24.16)', 'fields digest', sum(f%now), f%time, worst, change
  call mpi_finalize(ierr)
end program fields
