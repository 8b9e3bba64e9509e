!> What Fortran programs that mend-cc has rewritten call: mend_cc.h tells what each does. Compiled by the user's mpif90.
module mend_cc
  use, intrinsic :: iso_c_binding, mend_cc_address => c_loc
  use, intrinsic :: iso_fortran_env, only: int64
  implicit none
  private
  public :: mend_cc_point, mend_cc_start, mend_cc_end, mend_cc_skip, mend_cc_frame, mend_cc_arrive
  public :: mend_cc_register, mend_cc_unallocated, mend_cc_spread, mend_cc_whole, mend_cc_block, mend_cc_cyclic, mend_cc_list
  public :: mend_cc_address, mend_cc_checkpoint, mend_cc_again, mend_cc_restoring, mend_cc_spoil

  type, bind(c) :: point
    integer(c_int) :: number
    type(c_ptr) :: path, probe
  end type
  type(point), save :: points(64)
  !> mend_app.h's, of which Fortran's module mend_app isn't part of the program.
  type, bind(c), public :: mend_cc_dimension
    integer(c_int) :: kind = 0
    integer(c_int64_t) :: extent = 0, global = 0, first = 0, count = 0, start = 0, block = 0, part = 0, parts = 0
    type(c_ptr) :: indices = c_null_ptr
  end type
  integer, save :: count = 0
  !> Of libmend-app's types.
  integer, parameter :: bytes(14) = [1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 16, 8, 16, 1]
  logical, save :: restored = .false., passing = .false.

  interface
    subroutine c_start(program, points, count) bind(c, name='mend_cc_start')
      import
      character(kind=c_char), intent(in) :: program(*)
      type(point), intent(in) :: points(*)
      integer(c_int), value :: count
    end subroutine
    subroutine mend_cc_end() bind(c, name='mend_cc_end')
    end subroutine
    integer(c_int) function c_skip(points) bind(c, name='mend_cc_skip')
      import
      character(kind=c_char), intent(in) :: points(*)
    end function
    subroutine c_frame(level, number) bind(c, name='mend_cc_frame')
      import
      integer(c_int), value :: level, number
    end subroutine
    integer(c_int) function c_arrive(number, known) bind(c, name='mend_cc_arrive')
      import
      integer(c_int), value :: number
      integer(c_int), intent(inout) :: known
    end function
    subroutine c_variable(level, name, address, element, dimensions, extents, whose) bind(c, name='mend_cc_variable')
      import
      integer(c_int), value :: level, element, dimensions, whose
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), value :: address
      integer(c_int64_t), intent(in) :: extents(*)
    end subroutine
    subroutine c_other_size(name, known, bytes) bind(c, name='mend_cc_other_size')
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: known, bytes
    end subroutine
    subroutine c_array(level, name, address, bytes, element, each, dimensions, spread) bind(c, name='mend_cc_array')
      import
      integer(c_int), value :: level, element, dimensions
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), value :: address
      integer(c_size_t), value :: bytes, each
      type(mend_cc_dimension), intent(in) :: spread(*)
    end subroutine
    subroutine c_other_extents(name, dimension, extent, told) bind(c, name='mend_cc_other_extents')
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: dimension
      integer(c_int64_t), value :: extent, told
    end subroutine
    type(mend_cc_dimension) function mend_cc_cyclic(global, block, part, parts) bind(c, name='mend_app_cyclic')
      import
      integer(c_int64_t), value :: global, block, part, parts
    end function
    integer(c_int) function c_checkpoint(number) bind(c, name='mend_cc_checkpoint')
      import
      integer(c_int), value :: number
    end function
    integer(c_int) function c_restoring(number) bind(c, name='mend_cc_restoring')
      import
      integer(c_int), value :: number
    end function
    subroutine c_poison(address, bytes) bind(c, name='mend_cc_poison')
      import
      type(c_ptr), value :: address
      integer(c_size_t), value :: bytes
    end subroutine
  end interface

contains

  function terminated(text) result(c)
    character(*), intent(in) :: text
    character(kind=c_char) :: c(len_trim(text) + 1)
    integer :: i
    do i = 1, len_trim(text)
      c(i) = text(i:i)
    end do
    c(len_trim(text) + 1) = c_null_char
  end function

  function kept(text) result(at)
    character(*), intent(in) :: text
    type(c_ptr) :: at
    character(kind=c_char), pointer :: copy(:)
    allocate (copy(len_trim(text) + 1))
    copy = terminated(text)
    at = mend_cc_address(copy)
  end function

  subroutine mend_cc_point(number, path, probe)
    integer, intent(in) :: number
    character(*), intent(in) :: path, probe
    count = count + 1
    points(count) = point(number, kept(path), kept(probe))
  end subroutine

  subroutine mend_cc_start(program)
    character(*), intent(in) :: program
    call c_start(terminated(program), points, count)
  end subroutine

  logical function mend_cc_skip(numbers)
    character(*), intent(in) :: numbers
    mend_cc_skip = c_skip(terminated(numbers)) /= 0
  end function

  subroutine mend_cc_frame(level, number)
    integer, intent(in) :: level, number
    call c_frame(level, number)
  end subroutine

  logical function mend_cc_arrive(number, known)
    integer, intent(in) :: number
    integer, intent(inout) :: known
    mend_cc_arrive = c_arrive(number, known) /= 0
  end function

  !> .true. where a saved state was restored by this call: a counted loop then begins again with the restored counter.
  logical function mend_cc_checkpoint(number)
    integer, intent(in) :: number
    mend_cc_checkpoint = .false.
    if (passing) then
      passing = .false.
      return
    end if
    mend_cc_checkpoint = c_checkpoint(number) == 1
    restored = mend_cc_checkpoint
  end function

  !> Once after a restore: the loop begins again, and its first safe point is that of the restore.
  logical function mend_cc_again()
    mend_cc_again = restored
    passing = restored
    restored = .false.
  end function

  logical function mend_cc_restoring(number)
    integer, intent(in) :: number
    mend_cc_restoring = c_restoring(number) /= 0
  end function

  !> `address` by mend_cc_address: an address that goes out of the program's sight keeps the compiler from assuming that nothing else writes there.
  !> `element` as libmend-app numbers types, `extents` in Fortran's order.
  !> `bits` as the compiler has them: options may change what a kind is.
  subroutine mend_cc_register(level, name, address, element, extents, whose, bits)
    integer, intent(in) :: level, element, whose, bits
    character(*), intent(in) :: name
    type(c_ptr), value :: address
    integer(int64), intent(in) :: extents(:)
    if (bits /= 8 * bytes(element)) call c_other_size(terminated(name), bytes(element), bits / 8)
    call c_variable(level, terminated(name), address, element, size(extents), extents(size(extents):1:-1), whose)
  end subroutine

  !> An array that is spread over the ranks: a directive says how.
  subroutine mend_cc_spread(level, name, address, element, extents, dimensions, bits)
    integer, intent(in) :: level, element, bits
    character(*), intent(in) :: name
    type(c_ptr), value :: address
    integer(int64), intent(in) :: extents(:)
    type(mend_cc_dimension), intent(in) :: dimensions(:)
    integer :: i
    if (bits /= 8 * bytes(element)) call c_other_size(terminated(name), bytes(element), bits / 8)
    do i = 1, size(extents)
      if (extents(i) /= dimensions(i)%extent) call c_other_extents(terminated(name), i, extents(i), dimensions(i)%extent)
    end do
    call c_array(level, terminated(name), address, product(extents) * bytes(element), element, int(bytes(element), c_size_t), &
      size(dimensions), dimensions(size(dimensions):1:-1))
  end subroutine

  type(mend_cc_dimension) function mend_cc_whole(n) result(d)
    integer(int64), intent(in) :: n
    d = mend_cc_dimension(kind=0, extent=n, global=n, count=n)
  end function

  !> Subscripts count from 1, as in the module mend_app.
  type(mend_cc_dimension) function mend_cc_block(global, start, count, before, after) result(d)
    integer(int64), intent(in) :: global, start, count, before, after
    d = mend_cc_dimension(kind=1, extent=before + count + after, global=global, first=before, count=count, start=start - 1)
  end function

  type(mend_cc_dimension) function mend_cc_list(global, subscripts) result(d)
    integer(int64), intent(in) :: global, subscripts(:)
    integer(int64), pointer :: all_of_them(:)
    allocate (all_of_them(size(subscripts)))
    all_of_them = subscripts - 1
    d = mend_cc_dimension(kind=3, extent=size(all_of_them, kind=int64), global=global, count=size(all_of_them, kind=int64))
    if (size(all_of_them) > 0) d%indices = mend_cc_address(all_of_them)
  end function

  !> An array that this run hasn't allocated: it has no elements, as it must have none in a restart.
  subroutine mend_cc_unallocated(level, name, element, whose)
    integer, intent(in) :: level, element, whose
    character(*), intent(in) :: name
    call c_variable(level, terminated(name), c_null_ptr, element, 1, [0_int64], whose)
  end subroutine

  !> Overwrites memory: tests.
  subroutine mend_cc_spoil(address, bytes)
    type(c_ptr), value :: address
    integer, intent(in) :: bytes
    call c_poison(address, int(bytes, c_size_t))
  end subroutine

end module
