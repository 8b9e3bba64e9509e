! What a rank knows of its neighbours stands in a derived type; a procedure of a module gets it.
module neighbours
  use mpi
  implicit none
  type :: side
    integer :: partner
    real(8) :: out, in
  end type
  type :: rank_state
    integer :: rank, ranks
    type(side) :: low, high
  end type
contains
  subroutine pass(state)
    type(rank_state), intent(inout) :: state
    integer :: ierr
    call mpi_sendrecv(state%low%out, 1, mpi_double_precision, state%low%partner, 0, &
      state%high%in, 1, mpi_double_precision, state%high%partner, 0, mpi_comm_world, mpi_status_ignore, ierr)
    ! safe
    if (state%rank == 0) call mpi_send(state%high%out, 1, &
      mpi_double_precision, state%high%partner, 1, mpi_comm_world, ierr)
    ! unsafe
    if (state%rank == 1) call mpi_recv(state%low%in, 1, &
      mpi_double_precision, state%low%partner, 1, mpi_comm_world, mpi_status_ignore, ierr)
  end subroutine
end module

program types
  use neighbours
  implicit none
  type(rank_state) :: s
  integer :: ierr, step
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, s%rank, ierr)
  call mpi_comm_size(mpi_comm_world, s%ranks, ierr)
  s%low%partner = mpi_proc_null
  if (s%rank > 0) s%low%partner = s%rank - 1
  s%high%partner = mpi_proc_null
  if (s%rank < s%ranks - 1) s%high%partner = s%rank + 1
  s%low%out = s%rank
  s%high%out = s%rank
  s%low%in = 0
  s%high%in = 0
  do step = 1, 5
    ! safe
    call pass(s)
    ! safe
    s%low%out = s%high%in + step
  end do
  print *, s%low%out
  call mpi_finalize(ierr)
end program
