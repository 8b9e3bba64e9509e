module rod_grid
  implicit none
  integer, parameter :: dp = kind(1.0d0)
  real(dp), allocatable :: u(:, :), next(:, :)
  real(dp) :: total = 0
contains
  subroutine step_all(n, m)
    integer, intent(in) :: n, m
    integer :: i, j
    do j = 1, m
      do i = 2, n - 1
        next(i, j) = u(i, j) + 0.2d0 * (u(i + 1, j) + u(i - 1, j) + u(i, j - 1) + u(i, j + 1) - 4 * u(i, j))
      end do
    end do
    do j = 1, m
      u(2:n - 1, j) = next(2:n - 1, j)
    end do
    total = total + sum(u(2:n - 1, 1:m))
  end subroutine
end module
