! Modes that are added up: waves STEPS [KILL].
program waves
  use, intrinsic :: iso_fortran_env, only: real64, output_unit
  use mpi
  implicit none
  integer, parameter :: r8 = real64, modes = 32
  real(r8), parameter :: pi = acos(-1.0_r8), weights(3) = [0.25_r8, 0.5_r8, 0.25_r8]
  complex(r8), dimension(0:modes) :: a, b, old
  real(r8), dimension(0:modes) :: k
  real(r8) :: norm, total, dt, limit
  integer :: rank, ierr, step, steps, kill_at, m, n, stage, skipped
  logical :: done
  character(len=80) :: word
  character(len=modes / 4) :: marks(2), last
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call get_command_argument(1, word)
  read (word, *) steps
  kill_at = -1
  if (command_argument_count() > 1) then
    call get_command_argument(2, word)
    read (word, *, iostat=ierr) kill_at
  end if
  k = [(2 * pi * real(m, r8), m = 0, modes)]
  do concurrent (m = 0:modes)
    a(m) = cmplx(cos(0.1_r8 * m + rank), sin(0.3_r8 * m), kind=r8)
  end do
  b = 0
  old = a
  dt = 0.001_r8
  limit = 1e6_r8
  skipped = 0
  total = 0
  done = .false.
  marks = '-'
  last = 'none'
  time: do step = 1, steps
    if (step == kill_at .and. rank == 0) call abort()
    old = a
    stages: do stage = 1, 3
      b = (0.0_r8, 1.0_r8) * k * a * weights(stage)
      do m = 1, modes - 1
        b(m) = b(m) + 0.01_r8 * (a(m - 1) - 2 * a(m) + a(m + 1))
        if (m + 10 * stage > 60) exit stages
      end do
      a = a + dt * b
    end do stages
    norm = sum(abs(a - old)**2)
    call mpi_allreduce(mpi_in_place, norm, 1, mpi_double_precision, mpi_sum, mpi_comm_world, ierr)
    do n = 1, 3
      if (norm > n * 0.3_r8) then
        skipped = skipped + 1
        write (marks(1)(n:n + 1), '(i2)') mod(step, 100)
        last(n:n) = achar(64 + n)
        dt = dt * 0.9_r8
        cycle time
      end if
    end do
    total = total + sqrt(norm)
    select case (mod(step, 4))
    case (0)
      a(0) = cmplx(real(a(0)), aimag(b(1)), r8)
      marks(2)(2:) = marks(1)
    case (1:2)
      a(modes) = conjg(a(modes))
    case default
      if (total > 1e12_r8) exit time
    end select
  end do time
  if (rank == 0) write (output_unit, '(a, 4es24.16, i6, 3(1x, a))') 'waves digest', total, dt, sum(a), skipped, marks, last
  call mpi_finalize(ierr)
end program waves
