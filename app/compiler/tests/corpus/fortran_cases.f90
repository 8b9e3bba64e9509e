! What is sent in a step depends on its number: select case, a loop with a negative step, and partners in an array.
program cases
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, i, partner(3)
  real(8) :: x, y
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  partner = (/ ranks - 1, 0, mpi_proc_null /)
  x = rank
  y = 0
  do step = 6, 1, -1
    ! unsafe
    select case (mod(step, 3))
    case (0)
      if (rank == 0) call mpi_send(x, 1, mpi_double_precision, partner(1), 0, mpi_comm_world, ierr)
    case (1)
      if (rank == ranks - 1) call mpi_recv(y, 1, mpi_double_precision, partner(2), 0, mpi_comm_world, mpi_status_ignore, ierr)
    case default
      call mpi_send(x, 1, mpi_double_precision, partner(3), 0, mpi_comm_world, ierr)
    end select
    do i = 3, 1, -1
      ! unsafe
      x = x + i
    end do
  end do
  ! safe
  x = x + y
  print *, rank, x
  call mpi_finalize(ierr)
end program
