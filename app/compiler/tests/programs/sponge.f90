! Two loops behind one call, and a layer that only some runs have.
module state
  implicit none
  type layers
    real(8), allocatable :: sponge(:), rest(:, :)
  end type
  type(layers) :: l
  real(8), allocatable :: u(:)
contains
  subroutine relax(steps, stop, omega)
    use mpi
    integer, intent(in) :: steps, stop
    real(8), intent(inout) :: omega
    integer :: s, i, ierr
    do s = 1, steps
      call MPI_Barrier(MPI_COMM_WORLD, ierr)
      if (s == stop) call abort
      do i = 1, 100
        u(i) = u(i) + omega * (1 - u(i))
        if (allocated(l%sponge)) l%sponge(i) = l%sponge(i) * 0.9d0 + u(i)
        if (allocated(l%rest)) l%rest(i, 2) = l%rest(i, 2) + u(i)
      end do
      omega = omega * 0.9d0
    end do
    do s = 1, steps
      call MPI_Barrier(MPI_COMM_WORLD, ierr)
      do i = 1, 100
        u(i) = u(i) * 0.99d0 + 2
      end do
    end do
  end subroutine
end module

program main
  use mpi
  use state
  implicit none
  integer :: ierr, steps, stop, wanted
  real(8) :: omega
  character(len=20) :: argument
  call MPI_Init(ierr)
  call get_command_argument(1, argument)
  read (argument, *) wanted
  call get_command_argument(2, argument)
  read (argument, *) steps
  call get_command_argument(3, argument)
  read (argument, *) stop
  allocate (u(100))
  u = 0
  if (wanted > 0) then
    allocate (l%sponge(100), l%rest(100, 2))
    l%sponge = 1
    l%rest = 2
  end if
  omega = 1.5d0
  call relax(steps, stop, omega)
  print *, "digest", u(3)
  if (wanted > 0) print *, l%sponge(5), l%rest(5, 2)
  call MPI_Finalize(ierr)
end program
