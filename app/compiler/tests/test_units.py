"""Fortran's units: a restart opens them anew, and would write over their files."""

import unittest

from test_fortran import BEFORE, DECLARED, InFortran


class Units(InFortran):
    MODULE = """module logs
  integer, parameter :: results = 20
  integer :: log, units(3)
contains
  subroutine start()
    open (newunit=log, file='log')
  end subroutine
  subroutine say(unit, x)
    integer :: unit
    real(8) :: x
    write (unit, *) x
  end subroutine
  subroutine put(unit, x)
    integer :: unit
    real(8) :: x
    open (unit, file='b', position='append')
    write (unit, *) x
    close (unit)
  end subroutine
  subroutine next(unit)
    integer :: unit
    unit = unit + 1
  end subroutine
  subroutine pick(unit)
    integer, intent(out) :: unit
    unit = merge(10, 6, command_argument_count() > 0)
  end subroutine
  integer function choose()
    choose = merge(10, 6, command_argument_count() > 0)
  end function
end module
"""

    def taken(self, before, inside):
        found = self.found(self.text(f"    u(1) = u(1) * 0.5d0 + step\n    {inside}", DECLARED, f"{BEFORE}\n  {before}", self.MODULE, "  use logs\n  use, intrinsic :: iso_fortran_env, only: output => output_unit, output_unit\n  use elsewhere, only: screen"))
        self.warnings = [warning for point in found.plan.points for warning in point.warnings]
        return len(found.plan.points) == 1, str([why for _, _, why in found.plan.considered])

    def test_a_unit_that_is_open_at_the_place(self):
        for before, inside, where in (("open (10, file='a')", "write (10, *) u(1)", "opened at line 47"), ("call start()", "write (log, *) u(1)", "opened at line 6"), ("call start()", "call say(log, x)", "opened at line 6"),
                                      ("open (10, file='a')\n  if (x > 3) close (10)", "write (10, *) u(1)", "opened at line 47"), ("", "write (11, *) u(1)", "without open"), ("open (6, file='a')", "write (6, *) x", "opened"),
                                      ("", "if (step == 3) open (results, file='a')\n    if (step > 3) write (results, *) x", "opened"), ("open (10, file='a', access='direct', recl=8, status='replace')", "write (10, rec=step) x", "opened"),
                                      ("open (10, file='a')", "associate (t => x)\n    write (10, *) t\n    end associate", "opened at line 47"), ("", "block\n    open (10, file='a')\n    write (10, *) x\n    close (10)\n    end block", "opened"),
                                      ("open (newunit=log, file='a')", "associate (l => log)\n    write (l, *) x\n    end associate", "opened"), ("open (100 + rank, file='a')", "write (100 + rank, *) x", "opened at line 47"),
                                      ("", "open (100 + i, file='a')\n    write (100 + i, *) x\n    i = i + 1\n    close (100 + i)", "opened"), ("call start()", "call say(6, x)\n    call say(log, x)", "opened at line 6"),
                                      ("", "open (newunit=units(1), file='a')\n    write (units(1), *) x\n    units(1) = 7\n    close (units(1))", "opened"),
                                      ("", "open (100 + i, file='a')\n    call next(i)\n    close (100 + i)\n    write (100 + i, *) x", "opened"), ("log = 11\n  open (log)\n  log = 12\n  open (log)\n  close (log)", "write (11, *) x", ""),
                                      # A copy of its number; one of several that a dummy stands for; one that isn't opened on each way.
                                      ("call start()\n  i = log", "write (i, *) x", "opened at line 6"), ("open (10, file='a')", "call say(6, x)\n    call say(10, x)", "opened at line 47"),
                                      ("open (newunit=units(1), file='a')", "if (step == 3) open (newunit=log, file='b')\n    write (log, *) x", "opened"), ("open (newunit=units(1), file='a')", "open (newunit=log, file='b')\n    log = units(1)\n    write (log, *) x", "opened"),
                                      ("open (newunit=units(1), file='a')", "open (newunit=units(2), file='b')\n    write (units(2), *) x", "opened at line 50"), ("open (10, file='a')", "call say(6, x)\n    call say(screen, x)", "opened at line 47"),
                                      # A variable of which isn't told what it gets.
                                      ("open (10, file='a')\n  log = merge(10, 6, rank == 0)", "call say(log, x)", "opened at line 47"), ("open (newunit=i, file='a')\n  log = merge(i, 6, rank == 0)", "call say(log, x)", "opened at line 47"),
                                      ("open (10, file='a')\n  log = choose()", "call say(log, x)", "opened at line 47"), ("open (10, file='a')\n  call pick(log)", "call say(log, x)", "opened at line 47")):
            with self.subTest(before=before, inside=inside):
                taken, why = self.taken(before, inside)
                self.assertFalse(taken)
                self.assertRegex(why, rf"a unit is written between checkpoints and is open at them \({where}.*Open it with position='append', write and close it within a step")

    def test_other_units(self):
        for before, inside in (("", "open (10, file='a', position='append')\n    write (10, *) u(1)\n    close (10)"), ("", "call start()\n    write (log, *) x\n    close (log)"), ("open (10, file='a')", "x = x + 1"), ("", "print *, x"),
                               ("i = 6", "write (i, *) x"), ("", "write (output, *) x"), ("", "call say(6, x)\n    call say(output_unit, x)"), ("i = 6", "call say(i, x)"),
                               ("", "open (100 + rank, file='a', position='append')\n    write (100 + rank, *) x\n    close (100 + rank)"), ("", "call put(step, x)"), ("", "call put(12, x)"), ("open (newunit=units(1), file='a')", "write (6, *) x"),
                               ("", "open (newunit=units(2), file='a', position='append')\n    write (units(2), *) x\n    close (units(2))"), ("", "associate (t => x)\n    write (6, *) t\n    end associate"), ("open (10, file='a', access='direct', recl=8)", "write (10, rec=step) x"), ("open (10, file='a')\n  read (10, *) x", "x = x + 1"),
                               # What a dummy may stand for; what newunit= has just opened.
                               ("open (10, file='a')", "call say(6, x)\n    call say(0, x)"), ("open (10, file='a')", "call say(6, x)\n    open (newunit=log, file='b', position='append')\n    call say(log, x)\n    close (log)"),
                               ("open (newunit=units(1), file='a')", "open (newunit=log, file='b', position='append')\n    do i = 1, 3\n      write (log, *) x\n    end do\n    close (log)"),
                               ("open (newunit=units(1), file='a')", "open (newunit=units(2), file='b', position='append')\n    write (units(2), *) x\n    close (units(2))")):
            with self.subTest(before=before, inside=inside):
                taken, why = self.taken(before, inside)
                self.assertTrue(taken, why)
                self.assertEqual(self.warnings, [])

    def test_a_unit_of_which_is_not_told_which(self):
        for inside in ("call say(step, x)", "write (screen, *) x", "write (step + 10, *) x", "block\n      integer :: mine\n      mine = 6\n      write (mine, *) x\n    end block"):
            with self.subTest(inside=inside):
                taken, why = self.taken("", inside)
                self.assertTrue(taken, why)
                self.assertRegex(str(self.warnings), "it can't be told which unit is written: if it has a file, a restart writes over it unless it is opened with position='append'")


if __name__ == "__main__":
    unittest.main()
