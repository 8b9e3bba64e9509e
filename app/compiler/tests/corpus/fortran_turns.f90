! One rank after the other sends to all others; what is sent in one loop is received in the next one.
program turns
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, who, to, seen
  integer :: given(64)
  real(8) :: x, y
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  x = rank
  seen = 0
  do step = 1, 3
    do who = 0, ranks - 1
      ! unsafe
      if (rank == who) then
        do to = 0, ranks - 1
          if (to /= who) call mpi_send(x, 1, mpi_double_precision, to, who, mpi_comm_world, ierr)
        end do
      end if
      ! unsafe
      given(who + 1) = who
    end do
    ! unsafe
    seen = seen + 1
    do who = 0, ranks - 1
      if (rank /= who) then
        call mpi_recv(y, 1, mpi_double_precision, who, who, mpi_comm_world, mpi_status_ignore, ierr)
        x = x + y
      end if
    end do
    ! safe
    x = x / ranks + given(1)
  end do
  print *, rank, x
  call mpi_finalize(ierr)
end program
