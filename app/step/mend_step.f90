!> Tells Mend which time step is done, so that a rank that had to leave a node goes back when that is worth it (docs/back-migration.md).
!>
!>   use mend_step_module, only: mend_step
!>   do step = 1, steps
!>     call compute()
!>     call mend_step(step, steps)
!>   end do
!>
!> mend_step(now, total): `now` steps are done of `total`; a total of 0: it is not known. Both are of the default kind, or of int64. Without Mend it
!> does nothing. Compile this file with the program (Fortran 2008); there is nothing to link (with glibc before 2.34: -ldl).
module mend_step_module
  use, intrinsic :: iso_c_binding, only: c_char, c_funptr, c_int64_t, c_null_char, c_null_ptr, c_associated, c_f_procpointer, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64
  implicit none
  private
  public :: mend_step

  interface mend_step
    module procedure step_int32, step_int64
  end interface

  abstract interface
    subroutine told(now, total) bind(c)
      import :: c_int64_t
      integer(c_int64_t), value :: now, total
    end subroutine
  end interface

  interface
    type(c_funptr) function dlsym(handle, name) bind(c, name='dlsym')
      import :: c_funptr, c_ptr, c_char
      type(c_ptr), value :: handle
      character(kind=c_char), intent(in) :: name(*)
    end function
  end interface

  logical, save :: looked = .false.
  procedure(told), pointer, save :: tell => null()

contains

  subroutine step_int64(now, total)
    integer(int64), intent(in) :: now, total
    type(c_funptr) :: found
    if (.not. looked) then
      found = dlsym(c_null_ptr, 'mend_fi_step' // c_null_char)
      if (c_associated(found)) call c_f_procpointer(found, tell)
      looked = .true.
    end if
    if (associated(tell)) call tell(int(now, c_int64_t), int(total, c_int64_t))
  end subroutine

  subroutine step_int32(now, total)
    integer(int32), intent(in) :: now, total
    call step_int64(int(now, int64), int(total, int64))
  end subroutine
end module
