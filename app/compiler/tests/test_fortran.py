"""What Fortran says in ways of its own: whole arrays, variables that stay, jumps, arrays that grow, lines for the preprocessor, included files."""

import os
import random
import re
import shutil
import unittest
import unittest.mock

from building import PROGRAMS, SEED, InDirectory, compiled_once, registered_last
from cases import skip
from test_sources import FORTRAN, InRoom

from mend_cc.analyse import analyse
from mend_cc.parse_c import CannotParse
from mend_cc.plan import Refused
from mend_cc.rewrite_fortran import Rewriter

DECLARED = "real(8) :: u(1000), v(1000), x, y"
BEFORE = "  u = 1\n  v = 0\n  x = 0\n  y = 0"
LIST = "real(8) :: u(1000)\n  real(8), allocatable :: list(:), other(:)"


class InFortran(InRoom):
    def text(self, body, declared=DECLARED, before=BEFORE, outside="", uses="", printed="u(10)"):
        return (FORTRAN % (outside, f"{uses}\n  implicit none\n  {declared}", before, body)).replace("print *, u(10)", f"print *, {printed}")

    def found(self, text, name="program.f90", flags=()):
        return analyse([(self.write(name, text), list(flags))])

    def names(self, *parts, **more):
        """What is registered."""
        found = self.found(self.text(*parts, **more))
        self.assertEqual(len(found.plan.points), 1, ([why for _, _, why in found.plan.considered], found.plan.refused))
        Rewriter(found.program, found.memory, found.plan).run()
        return {".".join((item.place[0].name, *item.place[1])) for item in found.plan.points[0].items}

    def rewritten(self, found):
        self.assertEqual(len(found.plan.points), 1, ([why for _, _, why in found.plan.considered], found.plan.refused))
        return next(iter(Rewriter(found.program, found.memory, found.plan).run().values())).decode()

    def refused(self, why, *parts, **more):
        found = self.found(self.text(*parts, **more))
        self.assertEqual(found.plan.points, [])
        self.assertIn(why, str(found.plan.considered))


class Lines(InFortran):
    def test_none_is_too_long(self):
        name = "perturbation_of_potential_temperature"
        outside = f"module m\n  type inner\n    real(8), allocatable :: {name}(:)\n  end type\n  type outer\n    type(inner) :: {name}\n  end type\n  type(outer) :: {name}\nend module\n"
        text = f"{name}%{name}%{name}"
        loop = "  do step = " + "1 + " * 24 + "1, 1000"
        whole = self.text(f"    {text}(1) = &\n    {text}(1) + step\n    u = u + &\n    {text}(1)", before=f"  u = 1\n  allocate ( &\n    {text}(10))", outside=outside, uses="  use m")
        text = self.rewritten(self.found(whole.replace("  do step = 1, 1000", loop)))
        self.assertLessEqual(max(map(len, text.splitlines())), 132)
        self.assertIn(f"'{name}.perturbation_of_potent'//", text)


    def test_devices_and_copies_of_threads(self):
        for line, option, why in (("!$acc data copy(u)", "-fopenacc", "a device has data"), ("!$omp target data map(u)", "-fopenmp", "a device has data"), ("!$omp threadprivate(u)", None, "threads")):
            text = self.text(f"    {line}\n    u = u + step")
            with self.assertRaisesRegex(CannotParse, why):
                self.found(text, flags=[option] if option else [])
            if option:
                # Without it the compiler heeds no such line.
                self.assertEqual(len(self.found(text, flags=["-O2", "-fopenmp-simd"]).plan.points), 1)


class Arrays(InFortran):
    def test_whole_arrays_are_read(self):
        for read in ("maxval(abs(u - v))", "sum(v(1:1000) * v(1:1000))", "sqrt(sum(v**2))", "dot_product(u, 2 * v)", "merge(1, 2, any(v > 3))", "size(pack(u, v > 1))", "maxval([v(3:4), u])",
                     "sum([(v(i), i = 1, 1000)])", "maxval(u, mask=v > 0)", "(-sum(-v))"):
            with self.subTest(read=read):
                self.assertIn("v" if "size" not in read else "u", self.names(f"    x = x + {read}\n    v = u\n    u = u * 2", printed="x, u"))

    def test_what_reads_all_of_an_array_does_so_for_each_element(self):
        # Of v the assignment alone would read as many elements as there are of w.
        declared = DECLARED + ", w(10)"
        self.assertIn("v", self.names("    v(1:10) = 0\n    w = sum(v)\n    v = u\n    u = u + w(1)", declared))
        self.assertNotIn("v", self.names("    v = u\n    u = sum(v)", declared))

    def test_arguments(self):
        outside = "module m\ncontains\n  subroutine add(x, t)\n    real(8) :: x(:), t\n    t = t + x(5)\n  end subroutine\n  elemental real(8) function twice(x)\n    real(8), intent(in) :: x\n    twice = 2 * x\n  end function\nend module\n"
        for call in ("call add(2 * v, x)", "x = x + sum(twice(v))", "call add(twice(v), x)"):
            with self.subTest(call=call):
                self.assertIn("v", self.names(f"    {call}\n    v = u\n    u = u + x", outside=outside, uses="  use m"))
        self.assertNotIn("v", self.names("    v = twice(u)\n    u = v", outside=outside, uses="  use m"))

    def test_components(self):
        outside = "module m\n  type state\n    real(8) :: now(100), old(100), t\n  end type\nend module\n"
        read = self.names("    s%t = s%t + maxval(abs(s%now - s%old))\n    s%old = s%now\n    s%now = s%now * 2", "type(state) :: s\n  real(8) :: u(1000)", "  u = 1\n  s%now = 1\n  s%old = 0\n  s%t = 0", outside, "  use m", "s%t, u")
        self.assertEqual(read - {"step"}, {"s.now", "s.old", "s.t"})

    FIELD = "module m\n  type field\n    integer :: n\n    real(8) :: t\n    real(8), allocatable :: a(:, :)\n    real(8) :: w(0:20)\n  end type\n  type box\n    type(field) :: f\n  end type\ncontains\n  subroutine fill(f, x)\n    type(field) :: f\n    real(8) :: x\n    f%a(1:f%n, 1:f%n) = x\n  end subroutine\n  subroutine also(f, x)\n    type(field) :: f\n    real(8) :: x\n    f%a(1:f%n, 1:f%n) = x\n  end subroutine\nend module\n"

    def test_elements_of_components(self):
        read = "x = x + sum(f%a(1:f%n, 1:f%n))"
        cases = (
            (f"f%a(1:f%n, 1:f%n) = step\n{read}", "a", True), (f"f%a = step\n{read}", "a", False), (f"f%a(1:f%n, 2:f%n) = step\n{read}", "a", False), (f"if (step > 3) f%a(1:f%n, 1:f%n) = step\n{read}", "a", False),
            (f"do i = 1, f%n\nf%a(1:f%n, i) = step\nend do\n{read}", "a", True), (f"f%n = 10 - mod(step, 2)\nf%a(1:f%n, 1:f%n) = step\nf%n = 10\n{read}", "a", False),
            ("f%a(1:f%n, 1:f%n) = step\nx = x + f%a(0, 3)", "a", False), ("f%w = step\nx = x + f%w(7)", "w", True), ("f%w(1:20) = step\nx = x + f%w(0)", "w", False), ("f%w(0:19) = f%w(1:20) + 1\nx = x + f%w(7)", "w", False),
            # A dummy that stands for one variable, and for two.
            (f"call fill(f, x)\n{read}", "a", True), (f"call also(f, x)\n{read}", "a", False), (f"call also(f, x)\n{read}", "a", False),
            # What names stand for.
            (f"associate (n => f%n, a => f%a, t => f%t)\nt = step\nif (n > 2) t = 4\na(1:n, 1:n) = t\nend associate\n{read}", "a", True), (f"associate (n => f%n - 1, a => f%a)\na(1:n, 1:n) = step\nend associate\n{read}", "a", False),
            ("associate (n => f%n, v => f%w)\ndo i = 0, 20\nv(i) = step + n\nend do\nend associate\nx = x + sum(f%w)", "w", True),
        )
        variables = [f"f{number}" for number in range(len(cases))]
        body = "\n".join(re.sub(r"\bf(?=[%,])", name, text) for name, (text, _, _) in zip(variables, cases))
        body += "\nb%f%a(1:b%f%n, 1:b%f%n) = step\nx = x + sum(b%f%a(1:b%f%n, 1:b%f%n))\ns(1)%w = step\nx = x + s(2)%w(3)\ns(2)%w(3) = x"
        before = BEFORE + "".join(f"\nallocate ({name}%a(0:11, 0:11))\n{name}%n = 10" for name in (*variables, "s(1)", "s(2)", "b%f"))
        plan = self.found(self.text(body, f"{DECLARED}\n  type(field) :: s(2), {', '.join(variables)}\n  type(box) :: b", before, self.FIELD, "  use m", "x, u")).plan
        self.assertEqual(len(plan.points), 1, plan.considered)
        found = {".".join((item.place[0].name, *item.place[1])) for item in plan.points[0].items}
        for name, (text, component, dead) in zip(variables, cases):
            with self.subTest(body=text):
                self.assertEqual(f"{name}.{component}" in found, not dead, found)
        self.assertIn("s", found)
        self.assertNotIn("b.f.a", found)

    def test_part_of_a_text_is_not_all_of_it(self):
        outside = "module m\n  type state\n    character(10) :: name, list(3)\n  end type\ncontains\n  subroutine put(s, k)\n    character(10) :: s\n    integer :: k\n    s(1:1) = achar(65 + mod(k, 26))\n  end subroutine\nend module\n"
        declared = DECLARED + "\n  character(10) :: w, words(3)\n  type(state) :: s"
        before = BEFORE + "\n  w = 'abc'\n  words = w\n  s%name = w\n  s%list = w"
        for write, name, whole in (("call put(w, step)", "w", "w"), ("w(1:1) = achar(65 + step)", "w", "w"), ("write (w(1:1), *) step", "w", "w"), ("s%name(1:1) = achar(65 + step)", "s.name", "s%name"),
                                   ("words(2)(1:1) = achar(65 + step)", "words", "words(2)"), ("s%list(2)(1:1) = achar(65 + step)", "s.list", "s%list(2)"),
                                   ("write (words(2)(1:1), '(i1)') mod(step, 9)", "words", "words(2)")):
            last = "" if "(2)" in whole else f"if (step == 7) {whole} = 'z'"
            with self.subTest(write=write):
                self.assertIn(name, self.names(f"    {write}\n    if (rank == 0) print *, {whole}\n    {last}", declared, before, outside, "  use m"))
        self.assertNotIn("w", self.names("    w = achar(65 + step)\n    if (rank == 0) print *, w(2:3)\n    u = u + 1", declared, before, outside, "  use m"))

    def test_texts_of_which_the_length_is_not_known(self):
        for declared, why in (("character(:), allocatable :: w", "a text whose length changes: give it a fixed one"), ("character(kind=4, len=8) :: w", "a text of a kind of its own"),
                              ("character(8) :: w(1000)\n  !$mend shape(w) mend_app_whole(1000)", "texts can't, so take its shape away")):
            write = f"w{'(2)' if '1000' in declared else ''}(1:1) = achar(65 + step)"
            with self.subTest(declared=declared), self.assertRaisesRegex(Refused, why):
                self.names(f"    {write}\n    if (rank == 0) print *, w", f"{DECLARED}\n  {declared}", f"{BEFORE}\n  w = 'abc'")
        text = self.rewritten(self.found(self.text("    w(1:1) = achar(65 + step)\n    if (rank == 0) print *, w", DECLARED + "\n  integer, parameter :: n = 8\n  character(n) :: w", BEFORE + "\n  w = 'abc'")))
        self.assertRegex(re.sub(r" &\n\s*", "", text), r"mend_cc_register\(0, 'w', mend_cc_address\(w\), 14, \[len\(w, kind=8\), shape\(w, kind=8\)\], ")

    def test_names_of_functions_that_added_lines_need(self):
        write, before = "    w(1:1) = achar(65 + step)\n    if (rank == 0) print *, w", BEFORE + "\n  w = 'abc'"
        for declared, needed in (("integer :: len", "len"), ("integer, parameter :: shape = 3", "shape"), ("real(8) :: storage_size(3)", "storage_size")):
            with self.subTest(declared=declared):
                with self.assertRaisesRegex(Refused, f"program.f90:2: {needed} isn't Fortran's function in program, .*: give what has this name another one"):
                    self.names(write, f"{DECLARED}\n  character(8) :: w\n  {declared}", before)
        # Without texts nothing asks for a length, and nothing at all for a size.
        found = self.found(self.text("    u(1) = u(1) + step", f"{DECLARED}\n  integer :: len, size"))
        text = next(iter(Rewriter(found.program, found.memory, found.plan, poison=True).run().values())).decode()
        self.assertRegex(re.sub(r" &\n\s*", "", text), r"call mend_cc_spoil\(mend_cc_address\(v\), storage_size\(v\) / 8 \* product\(shape\(v\)\)\)")

    def test_procedures_of_a_type_are_not_seen(self):
        outside = "module m\n  type solver\n    real(8) :: a = 0\n  contains\n    procedure :: go\n  end type\ncontains\n  real(8) function go(self)\n    class(solver) :: self\n    self%a = self%a + 1\n    go = self%a\n  end function\nend module\n"
        self.refused("messages", "    u(1) = u(1) + s%go()", "type(solver) :: s\n  real(8) :: u(1000)", outside=outside, uses="  use m", before="  u = 1")

    def test_complex_numbers_have_two_parts(self):
        self.assertLessEqual({"x", "y"}, self.names("    z = cmplx(x, y, kind=8)\n    x = step\n    y = step\n    u(3) = u(3) + abs(z)", DECLARED + "\n  complex(8) :: z"))

    def test_sections_with_gaps_that_are_sent(self):
        body = "    w(1:30, 1) = u(1:30)\n    call mpi_allreduce(w(3, :), y, 1, mpi_double_precision, mpi_sum, mpi_comm_world, ierr)\n    w(3, :) = 4\n    u(1) = u(1) + y"
        self.assertIn("w", self.names(body, DECLARED + ", w(30, 30)", BEFORE + "\n  w = 0"))

    def test_input_and_output(self):
        for body in ("    write (10, rec=i) u\n    i = i + 2", "    write (word, *) (v(i), i = 1, 10)\n    v = u\n    u = u + 1\n    i = 0"):
            with self.subTest(body=body):
                self.assertIn("i" if "rec" in body else "v", self.names(body, DECLARED + "\n  character(80) :: word", BEFORE + "\n  i = 1"))


class Kept(InFortran):
    def test_locals_that_stay(self):
        for words in ("data calls /0/", "save calls", "save"):
            outside = f"module m\ncontains\n  subroutine tick(x)\n    real(8) :: x\n    integer :: calls\n    {words}\n    calls = calls + 1\n    x = x + calls\n  end subroutine\nend module\n"
            with self.subTest(words=words):
                self.refused("tick() keeps calls (static)", "    call tick(u(1))", outside=outside, uses="  use m")

    def test_blocks_that_keep_theirs(self):
        with self.assertRaisesRegex(CannotParse, "a variable of a block keeps its value"):
            self.found(self.text("    block\n      integer, save :: n = 0\n      n = n + 1\n      u(1) = u(1) + n\n    end block"))

    def test_main_has_what_stays(self):
        self.assertIn("y", self.names("    y = y + 1\n    u(1) = u(1) + y", DECLARED + "\n  save\n  data y /3d0/"))


class Jumps(InFortran):
    def test_out_of_inner_loops(self):
        for body in ("cycle time", "exit time"):
            text = self.text(f"    x = x + step\n    do i = 1, 10\n      if (step == 990 + i) {body}\n    end do\n    y = x", printed="x, y, u").replace("  do step", "  time: do step").replace("  end do\n  if (rank", "  end do time\n  if (rank")
            found = self.found(text)
            with self.subTest(body=body):
                self.assertIn("y", {item.place[0].name for item in found.plan.points[0].items})

    def test_to_labels(self):
        self.assertIn("y", self.names("    if (u(1) > 100) goto 30\n    y = 3\n30  u(1) = u(1) * 0.5d0 + y\n    y = y + 1"))
        self.assertIn("y", self.names("    x = 1\n    open (10, err=30)\n    y = 3\n30  u(1) = u(1) * 0.5d0 + y\n    y = y + 1"))
        with self.assertRaisesRegex(CannotParse, "left from within"):
            self.found(self.text("    goto (10, 20) step\n10  u(1) = 3\n20  u(2) = 3"))

    def test_out_of_constructs_with_names(self):
        for construct in ("setup: if (step > 0) then", "setup: select case (step)\n    case (3)"):
            body = f"    {construct}\n      if (u(1) > 5) exit setup\n      y = 4\n    end {construct[7:13].split(' (')[0]} setup\n    u(1) = u(1) + y\n    y = 2"
            with self.subTest(construct=construct):
                self.assertIn("y", self.names(body))
        with self.assertRaisesRegex(CannotParse, "left from within"):
            self.found(self.text("    part: block\n      do i = 1, 3\n        if (u(i) > 5) exit part\n      end do\n    end block part"))

    def test_what_stands_at_a_label(self):
        # What is inserted before the call would be jumped over.
        outside = "subroutine work(u)\n  use mpi\n  real(8) :: u(1000)\n  integer :: k, ierr\n  k = 0\n  do while (k < 1000)\n    k = k + 1\n    u(1) = u(1) + k\n    call mpi_barrier(mpi_comm_world, ierr)\n  end do\nend subroutine\n"
        text = self.text("    u(2) = u(1)", before="  u = 1\n  if (rank < 0) goto 20\n  u(3) = 1\n20 call work(u)", outside=outside)
        found = self.found(text)
        found.plan.points = [point for point in found.plan.points if point.function == "work"]
        with self.assertRaisesRegex(Exception, "nothing can be inserted"):
            self.rewritten(found)

    def test_concurrent_loops_end(self):
        for head in ("(i = 1:1000)", "(i = 1:10, j = 1:10, i /= j)", "(i = 1000:1:-1)"):
            declared = DECLARED + "\n  integer :: j"
            with self.subTest(head=head):
                self.assertNotIn("i", self.names(f"    i = 3\n    do concurrent {head}\n      u(i) = u(i) * 0.5d0 + step\n    end do\n    u(2) = u(2) + i", declared))
        # No place is within them.
        found = self.found(self.text("    do concurrent (i = 1:1000)\n      u(i) = u(i) * 0.5d0 + step\n    end do").replace("  do step", "  step = 3\n  !").replace("  end do\n  if (rank", "  if (rank"))
        self.assertEqual(found.plan.points, [])

    def test_steps_that_are_variables(self):
        self.assertIn("y", self.names("    do i = 1, 1000, int(y)\n      u(i) = u(i) + 1\n    end do\n    y = y + 1", before=BEFORE + "\n  y = 1"))


class Spread(InFortran):
    def test_shapes(self):
        for shape, why in (("mend_app_whole(1000)", None), ("mend_app_block(4000, 1 + 1000 * rank, max(998, i), 1, 1)", None), ("mend_app_whole(10), mend_app_whole(100)", "u has 1 dimensions, and its shape 2"),
                           ("mend_app_block(1000, 1)", "is no dimension: mend_app_whole"), ("mend_app_half(1000)", "is no dimension"), ("1000", "is no dimension")):
            with self.subTest(shape=shape):
                found = self.found(self.text(f"    u = u * 0.5d0 + step\n    !$mend shape(U) {shape}"))
                if why is None:
                    self.assertIn("mend_cc_spread(0, 'u', mend_cc_address(u), 10, shape(u, kind=8),", re.sub(r" &\n\s*", "", self.rewritten(found)))
                else:
                    with self.assertRaisesRegex(Refused, why):
                        self.rewritten(found)

    def test_a_component_has_none(self):
        outside = "module m\n  type field\n    real(8) :: u(100)\n  end type\nend module\n"
        found = self.found(self.text("    f%u = f%u * 0.5d0 + step\n    !$mend shape(f) mend_app_whole(100)", "type(field) :: f", "  f%u = 1", outside, "  use m", "f%u(3)"))
        rewriter = Rewriter(found.program, found.memory, found.plan)
        rewriter.run()
        self.assertRegex(str(rewriter.warnings()), r"shape\(f\) does nothing")


class Growing(InFortran):
    BEFORE = "  u = 1\n  allocate (list(10), other(10))\n  list = 1\n  other = 1"

    def grows(self, body, declared=LIST, **more):
        self.refused("allocated or deallocated between checkpoints", body, declared, more.pop("before", self.BEFORE), printed="sum(list)", **more)

    def test_assignments(self):
        for value in ("[list, 1d0 * step]", "u", "other(1:step)", "pack(list, list > 1)"):
            with self.subTest(value=value):
                self.grows(f"    list(3) = list(4) + 1\n    list = {value}")
        for value in ("list * 2 + other", "1", "other(:) + sum(list)", "sqrt(list) * u(3)", "merge(list, other, list > 2)"):
            with self.subTest(value=value):
                self.assertIn("list", self.names(f"    list(3) = list(4) + 1\n    list = {value}", LIST, self.BEFORE, printed="sum(list)"))

    def test_sections_as_large_as_arrays(self):
        declared, before = LIST + "\n  integer :: n, k", "  u = 1\n  n = step + 5\n  k = n\n  allocate (list(n), other(0:n + 1))\n  list = 1\n  other = 1"
        self.assertIn("list", self.names("    list(3) = list(4) + 1\n    list = list + other(1:n)", declared, before, printed="sum(list)"))
        self.grows("    list(3) = list(4) + 1\n    list = list + other(1:n)\n    n = n + 1", declared, before=before)
        self.grows("    list(3) = list(4) + 1\n    list = other(1:k)", declared, before=before)
        self.grows("    list(3) = list(4) + 1\n    list = other(:n)", declared, before=before)

    def test_dummies(self):
        outside = "module m\ncontains\n  subroutine grow(a, n)\n    integer :: n\n    real(8), allocatable :: a(:)\n    deallocate (a)\n    allocate (a(n))\n    a = 0\n  end subroutine\nend module\n"
        self.grows("    list(1) = list(1) + step\n    if (step == 50) call grow(list, step)", outside=outside, uses="  use m")

    def test_components(self):
        outside = "module m\n  type cloud\n    real(8), allocatable :: x(:)\n    real(8) :: t\n  end type\nend module\n"
        for body in ("deallocate (c%x)\n    allocate (c%x(step))", "c%x = u(1:step)", "c = d"):
            with self.subTest(body=body):
                found = self.found(self.text(f"    c%x(1) = c%x(1) + 1\n    c%t = c%t + 1\n    {body}", "type(cloud) :: c, d\n  real(8) :: u(1000)", "  u = 1\n  allocate (c%x(10))\n  c%x = 0\n  c%t = 0\n  d = c", outside, "  use m", "c%x, c%t, u"))
                self.assertIn("c is allocated or deallocated", str(found.plan.considered))
        body = "    c%x = c%x * 2 + c%t\n    c%t = c%t + 1"
        self.assertLessEqual({"c.x", "c.t"}, self.names(body, "type(cloud) :: c\n  real(8) :: u(1000)", "  u = 1\n  allocate (c%x(10))\n  c%x = 0\n  c%t = 0", outside, "  use m", "c%x, c%t, u"))

    def test_sizes_are_read(self):
        outside = "module m\ncontains\n  subroutine work(u, n)\n    real(8) :: u(1000)\n    integer :: n\n    real(8), allocatable :: a(:)\n    allocate (a(n), source=u(3))\n    u(1) = u(1) + sum(a)\n  end subroutine\nend module\n"
        self.assertIn("n", self.names("    call work(u, n)\n    n = n + 1", DECLARED + "\n  integer :: n", BEFORE + "\n  n = 3", outside, "  use m"))


CALLEE = """module m
  implicit none
  type field
    real(8) :: t
    real(8), allocatable :: u(:)
  end type
contains
  subroutine make(a)
    real(8), allocatable, intent(inout) :: a(:)
    allocate (a(100))
  end subroutine
  subroutine make_both(a, f)
    real(8), allocatable, intent(inout) :: a(:)
    type(field), intent(inout) :: f
    call make(a)
    call make(f%%u)
  end subroutine
  subroutine run(a, f)
    use mpi
    real(8), allocatable, intent(inout) :: a(:)
    type(field), intent(%s) :: f
    real(8), allocatable :: other(:)
    integer :: step, ierr
    %s
    a = 0
    f%%u = 1
    do step = 1, 1000
      call mpi_barrier(mpi_comm_world, ierr)
      a(1) = a(1) + step
      f%%u(1) = f%%u(1) + step
    end do
  end subroutine
end module
program main
  use mpi
  use m
  implicit none
  integer :: ierr
  real(8), allocatable :: u(:)
  type(field) :: f
  call mpi_init(ierr)
  %s
  call run(u, f)
  print *, u(1), f%%u(1)
  call mpi_finalize(ierr)
end program
"""


class Above(InFortran):
    """Arrays of a function above the place: they are noted before its call."""

    BOTH = "allocate (a(100), f%u(100))"

    def test_another_component_that_is_allocated_on_the_way(self):
        for inside, before, refused in (
            ("allocate (f%v(100))", "", False), ("f%v = [1, 2, 3]", "", False), ("call make(f%v)", "call make(u)\n  call make(f%u)", False), ("call make_v(f)", "", False),
            ("allocate (f%v(100))\n    deallocate (f%v)", "", False), ("allocate (f%v(100))\n    deallocate (f%u)\n    allocate (f%u(50))", "", True),
        ):
            text = CALLEE.replace("allocatable :: u(:)\n", "allocatable :: u(:), v(:)\n", 1).replace("  subroutine make_both", """  subroutine make_v(f)
    type(field), intent(inout) :: f
    allocate (f%%v(10))
  end subroutine
  subroutine make_both""")
            with self.subTest(inside=inside):
                found = self.found(text % ("inout", inside, before or "allocate (u(100), f%u(100))"))
                self.assertEqual(found.plan.points == [], refused, found.plan.considered)

    def test_what_is_allocated_on_the_way(self):
        for inside, before, refused in (
            (self.BOTH, "", True), ("allocate (a(100))", "allocate (f%u(100))", True), ("allocate (f%u(100))", "allocate (u(100))", True), ("call make(a)", "allocate (f%u(100))", True),
            ("allocate (other(100))\n    call move_alloc(other, a)", "allocate (f%u(100))", True), ("allocate (other(100))", "allocate (u(100), f%u(100))", False),
            # A procedure that another call has for this array.
            ("call make(other)", "call make(u)\n  call make(f%u)", False), ("call make(f%u)", "call make(u)", True), ("call make_both(a, f)", "", True),
        ):
            with self.subTest(inside=inside):
                found = self.found(CALLEE % ("inout", inside, before))
                self.assertEqual(found.plan.points == [], refused, found.plan.considered)
                if refused and "move_alloc" not in inside:
                    self.assertRegex(str(found.plan.considered), "may be allocated or deallocated by what main.. calls on the way here")
        found = self.found(CALLEE % ("out", "allocate (f%u(100))", "allocate (u(100), f%u(100))"))
        self.assertIn("f.u may be allocated", str(found.plan.considered))

    def test_a_directive_does_not_decide(self):
        found = self.found((CALLEE % ("inout", self.BOTH, "")).replace("      call mpi_barrier", "      !$mend checkpoint\n      call mpi_barrier"))
        self.assertEqual(found.plan.points, [])
        self.assertIn("may be allocated", str(found.plan.refused))


class Datatypes(InFortran):
    TYPES = """  u = 1
  left = 0
  right = 0
  call mpi_get_address(left, at(1), ierr)
  call mpi_get_address(right, at(2), ierr)
  at = at - at(1)
  call mpi_type_create_struct(2, [1, 1], at, [mpi_double_precision, mpi_double_precision], both, ierr)
  call mpi_type_commit(both, ierr)"""
    DECLARED = "real(8) :: u(1000), left, right, more\n  integer :: both, status(mpi_status_size)\n  integer(mpi_address_kind) :: at(2)"

    def test_datatypes_that_lead_to_other_variables(self):
        receive = "call mpi_sendrecv(u, 1, mpi_double_precision, rank, 0, left, 1, both, rank, 0, mpi_comm_world, status, ierr)"
        self.assertLessEqual({"left", "right"}, self.names(f"    u(10) = u(10) + left + right\n    {receive}", self.DECLARED, self.TYPES))
        # What comes decides on messages, also where a dummy stands for the buffer.
        decides = "if (right > 0 .and. rank == 0) call mpi_send(u, 1, mpi_double_precision, 1, 0, mpi_comm_world, ierr)"
        outside = f"""module m
contains
  subroutine get(left, both, rank)
    use mpi
    real(8) :: left, u(1)
    integer :: both, rank, status(mpi_status_size), ierr
    {receive}
  end subroutine
end module
"""
        found = self.found(self.text(f"    u(10) = u(10) + left + right\n    call get(left, both, rank)\n    {decides}", self.DECLARED, self.TYPES, outside, "  use m"))
        self.assertEqual(found.plan.points, [])


class Preprocessed(InFortran):
    def read(self, lines, *flags, name="program.F90"):
        body = f"{lines}\n    u(1) = u(1) + y\n    y = y * 0.99d0"
        found = self.found(self.text(body, before=BEFORE + "\n  y = 1"), name, flags)
        return {item.place[0].name for item in found.plan.points[0].items}

    def test_branches(self):
        for condition, flags in (
            ("#ifdef RESET", ["-DRESET"]), ("#ifdef RESET", ["-D", "RESET"]), ("#if defined(RESET) && LEVEL > 2", ["-DRESET", "-DLEVEL=3"]), ("#if !defined RESET || (LEVEL + 1) * 2 == 6", ["-DLEVEL=2"]),
            ("#ifndef RESET", []), ("#if LEVEL", ["-DLEVEL=0x1"]), ("#define ON 1\n#if ON", []), ("#define ON\n#undef ON\n#ifndef ON", []), ("#if 0\n#elif 1", []), ("#if 0\n#if 1\n#endif\n#else", []),
            ("#ifdef RESET && \\\n   0", ["-DRESET"]), ("#if __GFORTRAN__", ["-D__GFORTRAN__"]),
        ):
            with self.subTest(condition=condition, flags=flags):
                self.assertNotIn("y", self.read(f"{condition}\n    y = 1\n#endif", *flags))
                self.assertIn("y", self.read(f"{condition}\n#else\n    y = 1\n#endif", *flags))

    def test_what_is_left_stays_where_it_was(self):
        text = self.text("#ifdef RESET\n    y = 1\n#else\n    x = 3\n#endif\n    u(1) = u(1) + y + x")
        made = self.rewritten(self.found(text, "program.F90"))
        self.assertIn("#ifdef RESET\n    y = 1\n#else\n", made)

    def test_what_is_not_understood(self):
        for lines, flags, why in (
            ("#define N 3\n    y = N", [], "program.F90:17: the preprocessor replaces N"), ("    y = N", ["-DN=3"], "the preprocessor replaces N"), ('#include "more.h"', [], "#include isn't understood"),
            ("#ifdef __GFORTRAN__\n#endif", [], "depends on the compiler"), ("#if F(3)\n#endif", ["-DF(x)=x"], "has arguments"), ("#if 1 +\n#endif", [], "isn't understood"), ("#if 1", [], "without its #endif"),
            ("#if N\n#endif", ["-DN=1+1"], "isn't one number"), ("#if N\n#endif", ["-DN=(N)"], None),
        ):
            with self.subTest(lines=lines, flags=flags):
                if why is None:
                    self.assertIn("y", self.read(lines, *flags))
                    continue
                with self.assertRaisesRegex(CannotParse, why):
                    self.read(lines, *flags)
        with self.assertRaisesRegex(CannotParse, "a line for the preprocessor"):
            self.read("#ifdef RESET\n#endif", name="program.f90")
        self.assertIn("y", self.read("#ifdef RESET\n#endif", "-cpp", name="program.f90"))


class Partners(InFortran):
    """Who sends to whom, as Fortran computes it."""

    SEND = "    call mpi_sendrecv(u(1), 1, mpi_double_precision, to, 0, u(2), 1, mpi_double_precision, from, 0, mpi_comm_world, mpi_status_ignore, ierr)\n    u(1) = u(1) + 1"

    def test_known_partners(self):
        ring = "modulo(rank - 1, ranks)", "modulo(rank + 1, ranks)"
        line = "merge(rank - 1, mpi_proc_null, rank > 0)", "merge(rank + 1, mpi_proc_null, rank < ranks - 1)"
        for to, source, safe in ((*ring, True), (*line, True), (ring[0], line[1], False), ("mod(rank - 1, ranks)", ring[1], False)):
            with self.subTest(to=to, source=source):
                before = f"  u = 1\n  call mpi_comm_size(mpi_comm_world, ranks, ierr)\n  to = {to}\n  from = {source}"
                self.assertEqual(len(self.found(self.text(self.SEND, "integer :: to, from, ranks\n  real(8) :: u(1000)", before)).plan.points), int(safe))

    def test_initial_values(self):
        for value in ("mpi_proc_null", "0"):
            outside = f"module m\n  use mpi\n  integer :: to = {value}, from = mpi_proc_null\nend module\n"
            self.assertEqual(len(self.found(self.text(self.SEND, outside=outside, uses="  use m")).plan.points), int(value != "0"))

    def test_results_through_dummies(self):
        outside = "module m\ncontains\n  subroutine total(x, s)\n    use mpi\n    real(8) :: x, s\n    integer :: ierr\n    call mpi_allreduce(x, s, 1, mpi_double_precision, mpi_sum, mpi_comm_world, ierr)\n  end subroutine\nend module\n"
        self.assertIn("u", self.names("    call total(u(1), x)\n    call total(u(2), y)\n    u(1) = u(1) + x\n    if (y > 3) exit", outside=outside, uses="  use m", before="  u = 1"))

    def test_elements_through_dummies(self):
        """An allocatable dummy has the bounds of what is passed."""
        outside = "module m\ncontains\n  subroutine give(x)\n    use mpi\n    integer%s :: x(:)\n    x(%d) = %s\n  end subroutine\nend module\n"
        for dummy, at, value, safe in (("", 3, "mpi_proc_null", True), ("", 3, "0", False), ("", 2, "0", True), (", allocatable", 2, "0", False)):
            with self.subTest(dummy=dummy, at=at, value=value):
                before = f"  u = 1\n  allocate(list(0:4))\n  list(1) = mpi_proc_null\n  list(2) = {'mpi_proc_null' if value == '0' else '0'}\n  call give(list)\n  to = list(2)\n  from = mpi_proc_null"
                text = self.text(self.SEND, "integer, allocatable :: list(:)\n  integer :: to, from\n  real(8) :: u(1000)", before, outside % (dummy, at, value), "  use m")
                self.assertEqual(len(self.found(text).plan.points), int(safe))


class Placed(InFortran):
    def test_names_without_a_declaration(self):
        text = self.rewritten(self.found("program p\n  use mpi\n  implicit real(8) (a-h, o-z)\n  call mpi_init(ierr)\n  x = 0\n  do istep = 1, 1000\n    x = x * 0.5 + istep\n    call mpi_barrier(mpi_comm_world, ierr)\n  end do\n  print *, x\n  call mpi_finalize(ierr)\nend program\n"))
        self.assertLess(text.index("target :: x"), text.index("call mpi_init"))
        self.assertRegex(text, r"'x', mend_cc_address\(x\), 10, ")

    def test_what_is_left_out_ends_before_the_loop(self):
        text = self.rewritten(self.found(self.text("    u(1) = u(1) + 1", before="  u = 1").replace("step = 1, 1000", "step = 1, 20")))
        self.assertLess(text.index("mend_cc_skip"), text.index("end if"))
        self.assertLess(text.index("end if"), text.index("mend_at_1 = 0"))

    def test_a_result_that_the_head_declares(self):
        outside = "module m\ncontains\nreal(8) function solve(n)\n  use mpi\n  implicit none\n  integer :: n, k, ierr\n  solve = 0\n  do k = 1, n\n    solve = solve * 0.5d0 + k\n    call mpi_barrier(mpi_comm_world, ierr)\n  end do\nend function\nend module\n"
        found = self.found(f"{outside}program p\n  use mpi\n  use m\n  integer :: ierr\n  real(8) :: x\n  call mpi_init(ierr)\n  x = solve(1000)\n  print *, x\n  call mpi_finalize(ierr)\nend program\n")
        text = self.rewritten(found)
        self.assertLess(text.index("integer :: n, k"), text.index("target :: solve"))

    def test_included_files(self):
        self.write("params.inc", "      integer, parameter :: n = 100\n      real(8) :: w(n)\n")
        text = self.rewritten(self.found(self.text("    w = w * 2\n    u(1) = u(1) + w(1)", DECLARED + "\n  include 'params.inc'\n  integer :: last", BEFORE + "\n  w = 1")))
        self.assertLess(text.index("integer :: last"), text.index("target :: w"))
        self.write("change.inc", "    w = w * 2\n    u(1) = u(1) + w(1)\n")
        self.assertIn("w", self.names("    x = 1\n    include 'change.inc'", DECLARED + "\n  include 'params.inc'", BEFORE + "\n  w = 1"))
        with self.assertRaisesRegex(CannotParse, "this file isn't found"):
            self.found(self.text("    u = u + 1", DECLARED + "\n  include 'elsewhere.inc'"))
        self.found(self.text("    u = u + 1", DECLARED + "\n  include 'mpif.h'").replace("  use mpi\n", ""))


class Restarted(InDirectory):
    """Programs as people write them: with modules, derived types, particles, named loops, lines for the preprocessor."""

    def test_programs_go_on(self):
        if not shutil.which("mpif90.mpich"):
            skip("mend-cc for Fortran", "Debian's mpif90.mpich isn't there (apt-get install mpich libmpich-dev gfortran)")
        mpif90, mpiexec = shutil.which("mpif90.mpich"), shutil.which("mpiexec.mpich")
        self.enterContext(unittest.mock.patch.dict(os.environ, MEND_CC_MPICC=compiled_once(shutil.which("mpicc.mpich"))))
        # More ranks than processors wait for each other: three where that is cheap, or where two would be neighbours on both sides. Last the bytes of a list by hand.
        programs = (
            ("chain.f90", 2, (), (60 + 60 + 62) * 8 + 2 * 8 + 4), ("fields.f90", 2, (), (26 * 18 + 24 * 16) * 8 + 2 * 8 + 4), ("drift.f90", 3, (), 400 * 20 + 8 + 3 * 4),
            ("waves.f90", 2, (), 33 * 16 + 2 * 8 + 2 * 4 + 3 * 8), ("strip.F90", 3, ("-DUSE_MPI",), 42 * 8 + 8 + 4),
        )
        # `make conformance` drops each variable that is registered; otherwise one of one program is dropped, another one with each seed.
        drawn, every = random.Random(SEED), os.environ.get("MEND_CC_EACH")
        chosen = drawn.choice(programs)[0]
        for name, ranks, flags, by_hand in programs:
            with self.subTest(program=name):
                shutil.copy(os.path.join(PROGRAMS, name), self.directory)
                program = os.path.splitext(name)[0]
                self.compile("-w", *flags, "-o", "plain", name, compiler=mpif90)
                expected = self.good(self.run_ranks(ranks, ["./plain", "60"], mpiexec))

                def build(options):
                    return self.mend_cc("--report", *options, mpif90, "-w", *flags, name, "-o", program)

                def kill():
                    self.forget()
                    code, _, errors = self.run_ranks(ranks, [f"./{program}", "60", "45"], mpiexec, calls=7)
                    self.assertNotEqual(code, 0)
                    return errors

                def go_on():
                    return self.run_ranks(ranks, [f"./{program}", "60"], mpiexec)

                registered = sorted(registered_last(build(["--poison"])))
                kill()
                self.assertLessEqual(self.saved_bytes(), 1.1 * by_hand)
                code, output, errors = go_on()
                self.assertEqual((code, output), (0, expected), errors)
                self.assertIn(f"checkpoint 42 of {ranks} ranks is restored", errors)
                for variable in registered if every else [drawn.choice(registered)] if name == chosen else ():
                    with self.subTest(without=variable):
                        code, output, errors = self.without(variable, build, kill, go_on)
                        self.assertNotEqual((code, output), (0, expected), errors)


if __name__ == "__main__":
    unittest.main()
