! Every third step the first rank gathers by hand. What it sends in each step is received a step later, by the last one.
program master
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, from
  real(8) :: x, y
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  x = rank
  do step = 1, 5
    ! unsafe
    if (step > 1 .and. rank == ranks - 1) then
      call mpi_recv(y, 1, mpi_double_precision, 0, 7, mpi_comm_world, mpi_status_ignore, ierr)
    end if
    ! safe
    if (mod(step, 3) == 0) then
      if (rank == 0) then
        do from = 1, ranks - 1
          call mpi_recv(y, 1, mpi_double_precision, from, 0, mpi_comm_world, mpi_status_ignore, ierr)
          x = x + y
        end do
      else
        call mpi_send(x, 1, mpi_double_precision, 0, 0, mpi_comm_world, ierr)
      end if
    end if
    x = x * 0.5d0
    if (rank == 0) call mpi_send(x, 1, mpi_double_precision, ranks - 1, 7, mpi_comm_world, ierr)
    ! unsafe
    x = x + step
  end do
  if (rank == ranks - 1) call mpi_recv(y, 1, mpi_double_precision, 0, 7, mpi_comm_world, mpi_status_ignore, ierr)
  ! safe
  print *, rank, x
  call mpi_finalize(ierr)
end program
