!> libmend-app for Fortran 2018. Compile this file with your mpif90, mend_app_mpi.c with your mpicc.
!>
!> Subscripts count from 1, and dimensions are in Fortran's order; in files they are reversed, as C and h5py read them. Arrays must be
!> contiguous, and have the attribute target (or be pointers), since the library keeps their address. `status` is that of the C functions:
!> below 0 it is an error; without it such a one ends the program.
module mend_app
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int8, int16, int32, int64, real32, real64, error_unit
  implicit none
  private

  integer, parameter, public :: mend_app_ok = 0, mend_app_restored = 1, mend_app_skip = 2, mend_app_taken = 3, &
    mend_app_moved = 4
  integer, parameter, public :: mend_app_private = 0, mend_app_replicated = 1

  !> One dimension of an array over the ranks: see mend_app.h.
  type, bind(c), public :: mend_app_dimension
    integer(c_int) :: kind = 0
    integer(c_int64_t) :: extent = 0, global = 0, first = 0, count = 0, start = 0, block = 0, part = 0, parts = 0
    type(c_ptr) :: indices = c_null_ptr
  end type

  public :: mend_app_init, mend_app_finalize, mend_app_checkpoint, mend_app_checkpoint_now, mend_app_restarting
  public :: mend_app_enter, mend_app_leave, mend_app_forget, mend_app_request, mend_app_register, mend_app_array
  public :: mend_app_whole, mend_app_block, mend_app_cyclic, mend_app_list, mend_app_error, mend_app_saved_shape

  public :: mend_app_world, mend_app_arriving, mend_app_migrate, mend_app_departing
  public :: mend_app_comm_dup, mend_app_comm_split, mend_app_cart_create, mend_app_comm_free

  interface
    !> The ranks' communicator: asked for anew after mend_app_moved.
    integer(c_int) function mend_app_world() bind(c, name='mend_app_world_f')
      import
    end function
    integer(c_int) function c_arriving() bind(c, name='mend_app_arriving')
      import
    end function
    integer(c_int) function c_migrate(ranks, hosts) bind(c, name='mend_app_migrate')
      import
      character(kind=c_char), intent(in) :: ranks(*), hosts(*)
    end function
    !> Has a subroutine (bind(c), with one argument type(c_ptr), value) called in the old process of a rank that has moved.
    subroutine mend_app_departing(release, data) bind(c, name='mend_app_departing')
      import
      type(c_funptr), value :: release
      type(c_ptr), value :: data
    end subroutine
    integer(c_int) function c_comm_dup(name, comm, made) bind(c, name='mend_app_comm_dup_f')
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: comm
      type(c_ptr), value :: made
    end function
    integer(c_int) function c_comm_split(name, comm, color, key, made) bind(c, name='mend_app_comm_split_f')
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: comm, color, key
      type(c_ptr), value :: made
    end function
    integer(c_int) function c_cart_create(name, comm, dimensions, extents, periods, made) bind(c, name='mend_app_cart_create_f')
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: comm, dimensions
      integer(c_int), intent(in) :: extents(*), periods(*)
      type(c_ptr), value :: made
    end function
    integer(c_int) function c_comm_free(made) bind(c, name='mend_app_comm_free_f')
      import
      type(c_ptr), value :: made
    end function
    integer(c_int) function c_init(comm, program, configuration) bind(c, name='mend_app_init_mpi_f')
      import
      integer(c_int), value :: comm
      type(c_ptr), value :: program, configuration
    end function
    integer(c_int) function mend_app_checkpoint() bind(c, name='mend_app_checkpoint')
      import
    end function
    integer(c_int) function mend_app_checkpoint_now() bind(c, name='mend_app_checkpoint_now')
      import
    end function
    integer(c_int) function mend_app_leave() bind(c, name='mend_app_leave')
      import
    end function
    integer(c_int) function c_restarting() bind(c, name='mend_app_restarting')
      import
    end function
    integer(c_int) function c_finalize() bind(c, name='mend_app_finalize')
      import
    end function
    integer(c_int) function c_enter(name) bind(c, name='mend_app_enter')
      import
      character(kind=c_char), intent(in) :: name(*)
    end function
    integer(c_int) function c_forget(name) bind(c, name='mend_app_forget')
      import
      character(kind=c_char), intent(in) :: name(*)
    end function
    integer(c_int) function c_saved_shape(name, extents) bind(c, name='mend_app_saved_shape')
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), intent(out) :: extents(*)
    end function
    integer(c_int) function c_variable(name, address, element, dimensions, extents, whose) bind(c, name='mend_app_variable')
      import
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), value :: address
      integer(c_int), value :: element, dimensions, whose
      integer(c_int64_t), intent(in) :: extents(*)
    end function
    integer(c_int) function c_array(name, address, element, dimensions, spread) bind(c, name='mend_app_array')
      import
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), value :: address
      integer(c_int), value :: element, dimensions
      type(mend_app_dimension), intent(in) :: spread(*)
    end function
    type(c_ptr) function c_error() bind(c, name='mend_app_error')
      import
    end function
    integer(c_size_t) function c_length(text) bind(c, name='strlen')
      import
      type(c_ptr), value :: text
    end function
    subroutine mend_app_request() bind(c, name='mend_app_request')
    end subroutine
    type(mend_app_dimension) function c_cyclic(global, block, part, parts) bind(c, name='mend_app_cyclic')
      import
      integer(c_int64_t), value :: global, block, part, parts
    end function
  end interface

  !> Registers a scalar or an array of any number of dimensions: call mend_app_register(name, x [, whose] [, status]).
  interface mend_app_register
    procedure register_i1, register_i2, register_i4, register_i8, register_r4, register_r8, register_c4, register_c8
  end interface

  !> Registers an array that is spread over the ranks: call mend_app_array(name, x, dimensions [, status]).
  interface mend_app_array
    procedure array_i4, array_i8, array_r4, array_r8, array_c4, array_c8
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

  !> The newest error, or an empty text.
  function mend_app_error() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: c(:)
    type(c_ptr) :: at
    integer :: i
    at = c_error()
    call c_f_pointer(at, c, [c_length(at)])
    allocate (character(size(c)) :: text)
    do i = 1, size(c)
      text(i:i) = c(i)
    end do
  end function

  subroutine tell(result, status)
    integer(c_int), intent(in) :: result
    integer, intent(out), optional :: status
    if (present(status)) then
      status = result
    else if (result < 0) then
      error stop 1
    end if
  end subroutine

  !> By all ranks of the communicator (mpi_comm_world, or the mpi_val of an mpi_f08 one), after MPI_Init.
  subroutine mend_app_init(comm, program, configuration, status)
    integer, intent(in) :: comm
    character(*), intent(in), optional :: program, configuration
    integer, intent(out), optional :: status
    character(kind=c_char), allocatable, target :: name(:), file(:)
    type(c_ptr) :: name_at, file_at
    name_at = c_null_ptr
    file_at = c_null_ptr
    if (present(program)) then
      name = terminated(program)
      name_at = c_loc(name)
    end if
    if (present(configuration)) then
      file = terminated(configuration)
      file_at = c_loc(file)
    end if
    call tell(c_init(int(comm, c_int), name_at, file_at), status)
  end subroutine

  subroutine mend_app_finalize(status)
    integer, intent(out), optional :: status
    call tell(c_finalize(), status)
  end subroutine

  !> From the start until a saved state is restored.
  logical function mend_app_restarting()
    mend_app_restarting = c_restarting() /= 0
  end function

  !> In the new process of a rank that moves, until its state is there: nothing may be sent to or awaited from the other ranks meanwhile.
  logical function mend_app_arriving()
    mend_app_arriving = c_arriving() /= 0
  end function

  !> Asks for a move of ranks ('1,4-6' or 'all') to hosts (names, separated by commas); one rank calls it.
  subroutine mend_app_migrate(ranks, hosts, status)
    character(*), intent(in) :: ranks
    character(*), intent(in), optional :: hosts
    integer, intent(out), optional :: status
    if (present(hosts)) then
      call tell(c_migrate(terminated(ranks), terminated(hosts)), status)
    else
      call tell(c_migrate(terminated(ranks), terminated('')), status)
    end if
  end subroutine

  !> A duplicate of mend_app_world() or of what was made here: `made`, which has the attribute target, gets its new handle when ranks move.
  subroutine mend_app_comm_dup(name, comm, made, status)
    character(*), intent(in) :: name
    integer, intent(in) :: comm
    integer, intent(inout), target :: made
    integer, intent(out), optional :: status
    call tell(c_comm_dup(terminated(name), int(comm, c_int), c_loc(made)), status)
  end subroutine

  !> As mpi_comm_split.
  subroutine mend_app_comm_split(name, comm, color, key, made, status)
    character(*), intent(in) :: name
    integer, intent(in) :: comm, color, key
    integer, intent(inout), target :: made
    integer, intent(out), optional :: status
    call tell(c_comm_split(terminated(name), int(comm, c_int), int(color, c_int), int(key, c_int), c_loc(made)), status)
  end subroutine

  !> As mpi_cart_create, without reordering.
  subroutine mend_app_cart_create(name, comm, extents, periods, made, status)
    character(*), intent(in) :: name
    integer, intent(in) :: comm, extents(:)
    logical, intent(in) :: periods(:)
    integer, intent(inout), target :: made
    integer, intent(out), optional :: status
    call tell(c_cart_create(terminated(name), int(comm, c_int), size(extents, kind=c_int), int(extents, c_int), &
      merge(1_c_int, 0_c_int, periods), c_loc(made)), status)
  end subroutine

  !> Ends one of these, by all ranks that have it.
  subroutine mend_app_comm_free(made, status)
    integer, intent(inout), target :: made
    integer, intent(out), optional :: status
    call tell(c_comm_free(c_loc(made)), status)
  end subroutine

  !> mend_app_skip: the saved run had done with this part.
  integer function mend_app_enter(name)
    character(*), intent(in) :: name
    mend_app_enter = c_enter(terminated(name))
  end function

  subroutine mend_app_forget(name, status)
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    call tell(c_forget(terminated(name)), status)
  end subroutine

  !> Shape that a variable had in the checkpoint that is being restored, in Fortran's order; empty if there is none.
  function mend_app_saved_shape(name) result(extents)
    character(*), intent(in) :: name
    integer(int64), allocatable :: extents(:)
    integer(c_int64_t) :: c(7)
    integer(c_int) :: count
    count = c_saved_shape(terminated(name), c)
    if (count < 0) count = 0
    extents = c(count:1:-1)
  end function

  !> All n elements on every rank.
  type(mend_app_dimension) function mend_app_whole(n) result(d)
    integer(int64), intent(in) :: n
    d = mend_app_dimension(kind=0, extent=n, global=n, count=n)
  end function

  !> count elements from global subscript start (from 1) on, with before and after further ones around them in memory.
  type(mend_app_dimension) function mend_app_block(global, start, count, before, after) result(d)
    integer(int64), intent(in) :: global, start, count, before, after
    d = mend_app_dimension(kind=1, extent=before + count + after, global=global, first=before, count=count, start=start - 1)
  end function

  !> Blocks of block elements dealt to parts owners in turn; part counts from 0, as ranks do.
  type(mend_app_dimension) function mend_app_cyclic(global, block, part, parts) result(d)
    integer(int64), intent(in) :: global, block, part, parts
    d = c_cyclic(global, block, part, parts)
  end function

  !> Elements with the global subscripts given (from 1), all this rank's own. The list is copied, and kept to the program's end.
  type(mend_app_dimension) function mend_app_list(global, subscripts) result(d)
    integer(int64), intent(in) :: global, subscripts(:)
    integer(int64), pointer :: kept(:)
    allocate (kept(size(subscripts)))
    kept = subscripts - 1
    d = mend_app_dimension(kind=3, extent=size(kept, kind=int64), global=global, count=size(kept, kind=int64))
    if (size(kept) > 0) d%indices = c_loc(kept)
  end function

  subroutine register_any(name, address, element, extents, whose, status)
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: element
    integer(int64), intent(in) :: extents(:)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    integer :: owner
    owner = mend_app_private
    if (present(whose)) owner = whose
    call tell(c_variable(terminated(name), address, int(element, c_int), size(extents, kind=c_int), extents(size(extents):1:-1), &
      int(owner, c_int)), status)
  end subroutine

  subroutine array_any(name, address, element, extents, dimensions, status)
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: element
    integer(int64), intent(in) :: extents(:)
    type(mend_app_dimension), intent(in) :: dimensions(:)
    integer, intent(out), optional :: status
    logical :: fits
    fits = size(extents) == size(dimensions)
    if (fits) fits = all(extents == dimensions%extent)
    if (.not. fits) then
      write (error_unit, '(3a)') 'mend-app: array `', trim(name), '`: its shape isn''t that of its distribution'
      call tell(-1_c_int, status)
      return
    end if
    call tell(c_array(terminated(name), address, int(element, c_int), size(dimensions, kind=c_int), &
      dimensions(size(dimensions):1:-1)), status)
  end subroutine

  subroutine register_i1(name, x, whose, status)
    character(*), intent(in) :: name
    integer(int8), intent(in), target, contiguous :: x(..)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    call register_any(name, c_loc(x), 1, shape(x, kind=int64), whose, status)
  end subroutine

  subroutine register_i2(name, x, whose, status)
    character(*), intent(in) :: name
    integer(int16), intent(in), target, contiguous :: x(..)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    call register_any(name, c_loc(x), 2, shape(x, kind=int64), whose, status)
  end subroutine

  subroutine register_i4(name, x, whose, status)
    character(*), intent(in) :: name
    integer(int32), intent(in), target, contiguous :: x(..)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    call register_any(name, c_loc(x), 3, shape(x, kind=int64), whose, status)
  end subroutine

  subroutine register_i8(name, x, whose, status)
    character(*), intent(in) :: name
    integer(int64), intent(in), target, contiguous :: x(..)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    call register_any(name, c_loc(x), 4, shape(x, kind=int64), whose, status)
  end subroutine

  subroutine register_r4(name, x, whose, status)
    character(*), intent(in) :: name
    real(real32), intent(in), target, contiguous :: x(..)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    call register_any(name, c_loc(x), 9, shape(x, kind=int64), whose, status)
  end subroutine

  subroutine register_r8(name, x, whose, status)
    character(*), intent(in) :: name
    real(real64), intent(in), target, contiguous :: x(..)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    call register_any(name, c_loc(x), 10, shape(x, kind=int64), whose, status)
  end subroutine

  subroutine register_c4(name, x, whose, status)
    character(*), intent(in) :: name
    complex(real32), intent(in), target, contiguous :: x(..)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    call register_any(name, c_loc(x), 12, shape(x, kind=int64), whose, status)
  end subroutine

  subroutine register_c8(name, x, whose, status)
    character(*), intent(in) :: name
    complex(real64), intent(in), target, contiguous :: x(..)
    integer, intent(in), optional :: whose
    integer, intent(out), optional :: status
    call register_any(name, c_loc(x), 13, shape(x, kind=int64), whose, status)
  end subroutine

  subroutine array_i4(name, x, dimensions, status)
    character(*), intent(in) :: name
    integer(int32), intent(in), target, contiguous :: x(..)
    type(mend_app_dimension), intent(in) :: dimensions(:)
    integer, intent(out), optional :: status
    call array_any(name, c_loc(x), 3, shape(x, kind=int64), dimensions, status)
  end subroutine

  subroutine array_i8(name, x, dimensions, status)
    character(*), intent(in) :: name
    integer(int64), intent(in), target, contiguous :: x(..)
    type(mend_app_dimension), intent(in) :: dimensions(:)
    integer, intent(out), optional :: status
    call array_any(name, c_loc(x), 4, shape(x, kind=int64), dimensions, status)
  end subroutine

  subroutine array_r4(name, x, dimensions, status)
    character(*), intent(in) :: name
    real(real32), intent(in), target, contiguous :: x(..)
    type(mend_app_dimension), intent(in) :: dimensions(:)
    integer, intent(out), optional :: status
    call array_any(name, c_loc(x), 9, shape(x, kind=int64), dimensions, status)
  end subroutine

  subroutine array_r8(name, x, dimensions, status)
    character(*), intent(in) :: name
    real(real64), intent(in), target, contiguous :: x(..)
    type(mend_app_dimension), intent(in) :: dimensions(:)
    integer, intent(out), optional :: status
    call array_any(name, c_loc(x), 10, shape(x, kind=int64), dimensions, status)
  end subroutine

  subroutine array_c4(name, x, dimensions, status)
    character(*), intent(in) :: name
    complex(real32), intent(in), target, contiguous :: x(..)
    type(mend_app_dimension), intent(in) :: dimensions(:)
    integer, intent(out), optional :: status
    call array_any(name, c_loc(x), 12, shape(x, kind=int64), dimensions, status)
  end subroutine

  subroutine array_c8(name, x, dimensions, status)
    character(*), intent(in) :: name
    complex(real64), intent(in), target, contiguous :: x(..)
    type(mend_app_dimension), intent(in) :: dimensions(:)
    integer, intent(out), optional :: status
    call array_any(name, c_loc(x), 13, shape(x, kind=int64), dimensions, status)
  end subroutine

end module
