! Loops that are left early: by what all ranks know, and by what each one has.
program leave
  use mpi
  implicit none
  integer :: rank, ranks, ierr, step, turn
  real(8) :: x, total
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_size(mpi_comm_world, ranks, ierr)
  x = rank
  outer: do step = 1, 9
    ! safe
    call mpi_allreduce(x, total, 1, mpi_double_precision, mpi_sum, mpi_comm_world, ierr)
    do turn = 1, 3
      ! safe
      if (total > 100) exit outer
      if (turn == 2) cycle
      if (rank == 0) call mpi_send(x, 1, mpi_double_precision, ranks - 1, turn, mpi_comm_world, ierr)
      ! unsafe
      if (rank == ranks - 1) call mpi_recv(total, 1, mpi_double_precision, 0, turn, mpi_comm_world, mpi_status_ignore, ierr)
      call mpi_bcast(total, 1, mpi_double_precision, ranks - 1, mpi_comm_world, ierr)
    end do
    x = 2 * x + 1
  end do outer
  do while (x > 10)
    ! unsafe
    x = x / 2
    if (rank == 0) exit
  end do
  ! safe
  x = x + 1
  print *, rank, x
  call mpi_finalize(ierr)
end program
