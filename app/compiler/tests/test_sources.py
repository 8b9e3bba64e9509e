"""What sources say otherwise than it seems at one place: initial values elsewhere, headers, directives, calls that can't be changed."""

import os
import shutil
import tempfile
import unittest

from building import InDirectory
from test_analysis import FLAGS, FRAME, analysed

from mend_cc.analyse import analyse
from mend_cc.parse_c import CannotParse
from mend_cc.plan import Refused
from mend_cc.rewrite import Rewriter
from mend_cc.rewrite_fortran import Rewriter as FortranRewriter

SEND = "MPI_Send(&x, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);"
PRINT = 'printf("%d\\n", x);'
FORTRAN = """%s
program program
  use mpi
%s
  integer :: rank, ierr, step, i
  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
%s
  do step = 1, 1000
%s
    call mpi_barrier(mpi_comm_world, ierr)
  end do
  if (rank == 0) print *, u(10)
  call mpi_finalize(ierr)
end program
"""


class InRoom(unittest.TestCase):
    def setUp(self):
        self.room = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.room)

    def write(self, name, text):
        path = os.path.join(self.room, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def analysed(self, *texts):
        return analyse([(self.write(f"source{number}.c", text), FLAGS) for number, text in enumerate(texts)])

    def rewritten(self, found):
        self.assertEqual(len(found.plan.points), 1, (found.plan.considered, found.plan.refused))
        return next(iter(Rewriter(found.program, found.memory, found.plan).run().values())).decode()


class Initial(InRoom):
    def safe(self, found):
        body = next(stmt for stmt in found.program.functions["main"].body.walk() if stmt.kind == "loop" and stmt.expr.args[1].op == "var" and stmt.expr.args[1].value.name == "steps")
        point = found.lockstep.points.get(body.parts[0].parts[0])
        return point is not None and not point.why

    def test_a_global_that_another_source_initialises(self):
        main = FRAME % ("extern int deep;", "", f"if (deep && rank == 0) {SEND}", "")
        self.assertTrue(self.safe(self.analysed(main, "int deep;")))
        self.assertFalse(self.safe(self.analysed(main, "int deep = 1;")))
        self.assertFalse(self.safe(self.analysed("int deep = 1;", main)))
        self.assertFalse(self.safe(self.analysed(main)))

    def test_other_initial_values(self):
        self.assertFalse(self.safe(analysed("static int on = 1;", f"if (on && rank == 0) {SEND}")))
        self.assertFalse(self.safe(analysed("", f"if (mode[0] && rank == 0) {SEND}", outside='static char mode[4] = "on";')))
        self.assertFalse(self.safe(analysed("", f"if (on && rank == 0) {SEND}", outside="extern int on;\nint on = 1;")))


class Rewritten(InRoom):
    def refused(self, why, *parts, **more):
        outside, replaced = more.pop("outside", ""), more.pop("replaced", None)
        text = FRAME % (outside, *parts)
        found = self.analysed(text.replace(*replaced) if replaced else text)
        with self.assertRaisesRegex(Refused, why):
            self.rewritten(found)

    def test_free_through_a_pointer(self):
        outside = "static void each(double *p, void (*f)(void *)) { f(p); }"
        self.refused("may be freed through a pointer", "double *t = malloc(80);", "if (t) t[1] += x; if (x == 3) { each(t, free); t = NULL; }", PRINT, outside=outside)

    def test_a_function_around_fopen(self):
        outside = 'static FILE *xopen(const char *path) { FILE *f = fopen(path, "w"); if (!f) abort(); return f; }'
        self.refused("opened by a function around fopen", 'FILE *log = xopen("log");', 'fprintf(log, "%d\\n", x);', "fclose(log);", outside=outside)

    def test_a_file_that_is_opened_before_init(self):
        # By a function before it, and in the function that calls it.
        after = ("MPI_Init(&argc, &argv);", "begin(&argc, &argv);")
        for outside, replaced in (
            ("static FILE *log; static void early(void) { log = fopen(\"log\", \"w\"); }", (after[0], f"early(); {after[0]}")),
            ("static FILE *log; static void begin(int *n, char ***v) { log = fopen(\"log\", \"w\"); MPI_Init(n, v); }", after),
        ):
            self.refused("log is opened before MPI_Init", "", 'fprintf(log, "%d\\n", x);', "fclose(log);", outside=outside, replaced=replaced)
        outside = "static FILE *log; static void begin(int *n, char ***v) { MPI_Init(n, v); log = fopen(\"log\", \"w\"); }"
        self.assertIn("mend_cc_fopen", self.rewritten(self.analysed((FRAME % (outside, "", 'fprintf(log, "%d\\n", x);', "fclose(log);")).replace(*after))))

    def test_a_file_after_an_init_that_may_be_left_out(self):
        guarded = "int flag; MPI_Initialized(&flag); if (!flag) MPI_Init(&argc, &argv);"
        opened = 'FILE *log = fopen("log", "w");'
        parts = ("", opened, 'fprintf(log, "%d\\n", x);', "fclose(log);")
        self.assertIn("mend_cc_fopen", self.rewritten(self.analysed((FRAME % parts).replace("MPI_Init(&argc, &argv);", guarded))))
        begin = "static FILE *log; static void begin(int *n, char ***v) { int flag; MPI_Initialized(&flag); if (!flag) MPI_Init(n, v); log = fopen(\"log\", \"w\"); }"
        parts = (begin, "", *parts[2:])
        self.assertIn("mend_cc_fopen", self.rewritten(self.analysed((FRAME % parts).replace("MPI_Init(&argc, &argv);", "begin(&argc, &argv);"))))
        self.refused("log is opened before MPI_Init", "", *parts[2:], outside="static FILE *log;", replaced=("MPI_Init(&argc, &argv);", f'log = fopen("log", "w"); {guarded}'))

    def test_globals_of_one_name_in_two_sources(self):
        main = FRAME % ("static int count; void note(int);", "", "count++; note(x + count);", 'printf("%d\\n", count);')
        other = "int count; double sum; void note(int x) { count++; sum += x * count; }"
        for texts in ((main, other), (other, main)):
            point = self.analysed(*texts).plan.points[0]
            self.assertEqual([item.place[0].name for item in point.items].count("count"), 2)

    def test_datatypes_that_lead_to_other_variables(self):
        types = '''MPI_Datatype both; int one[2] = {1, 1}; MPI_Aint at[2]; MPI_Datatype t[2] = {MPI_DOUBLE, MPI_DOUBLE};
    MPI_Get_address(&left, &at[0]); MPI_Get_address(&right, &at[1]); %s
    MPI_Type_create_struct(2, one, at, t, &both); MPI_Type_commit(&both);'''
        for buffer, more in (("MPI_BOTTOM", ""), ("&left", "at[1] -= at[0]; at[0] = 0;")):
            for receive in ("MPI_Bcast({}, 1, both, 0, MPI_COMM_WORLD);", "MPI_Sendrecv(&x, 1, MPI_INT, rank, 0, {}, 1, both, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);",
                            "MPI_Allgather(&x, 1, MPI_INT, {}, 1, both, MPI_COMM_WORLD);"):
                body = f"u += left + right; {receive.format(buffer)}"
                point = analysed(types % more, body, 'printf("%g\\n", u);', "static double left, right, u;").plan.points[0]
                with self.subTest(body=body):
                    self.assertLessEqual({"left", "right"}, {item.place[0].name for item in point.items})
        # MPI's own types lead nowhere else.
        point = analysed(types % "", "u += left; MPI_Bcast(&u, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);", 'printf("%g\\n", u);', "static double left, right, u;").plan.points[0]
        self.assertEqual({item.place[0].name for item in point.items} & {"left", "right"}, set())

    def test_datatypes_of_fields(self):
        outside = "static struct { MPI_Comm comm; double u[10][10], v[10][10]; int up; double *more; } d;"
        before = """MPI_Datatype both; int one[2] = {1, 1}; MPI_Aint at[2]; MPI_Datatype t[2] = {MPI_DOUBLE, MPI_DOUBLE};
    d.comm = MPI_COMM_WORLD; d.up = rank;
    MPI_Get_address(&d%s, &at[0]); MPI_Get_address(&d.v[0][0], &at[1]); at[1] -= at[0]; at[0] = 0;
    MPI_Type_create_struct(2, one, at, t, &both); MPI_Type_commit(&both);"""
        body = "d.u[1][1] += d.v[2][2]; MPI_Sendrecv(&d.u[1][0], 1, both, rank, 0, &d.u[0][0], 1, both, d.up, 0, d.comm, MPI_STATUS_IGNORE);"
        for first, saved in ((".u[0][0]", {"u", "v"}), (".u", {"u", "v"}), ("", {"u", "v", "up"})):
            with self.subTest(first=first):
                # Of a whole structure all may be received into but what no message holds. Then its partner isn't known.
                found = analysed(before % first, body if first else body.replace("d.up,", "rank,"), 'printf("%g %d\\n", d.u[0][0] + d.v[0][0], d.up);', outside)
                self.assertEqual(len(found.plan.points), 1, found.plan.considered)
                self.assertEqual({item.place[1][-1] for item in found.plan.points[0].items if item.place[0].name == "d"}, saved)

    def test_addresses_that_only_describe_a_type(self):
        frame = """typedef struct {{ double x, y; int id; }} part;
static part all[100];
{file}
static MPI_Datatype make(void) {{
    {own}
    MPI_Aint at[3], base; MPI_Datatype t, k[2] = {{MPI_DOUBLE, MPI_INT}}; int c[2] = {{2, 1}};
    MPI_Get_address({of}, &base); MPI_Get_address(&({of})->x, &at[0]); MPI_Get_address(&({of})->id, &at[1]);
    at[0] -= base; at[1] -= base; {more}
    MPI_Type_create_struct(2, c, at, k, &t); MPI_Type_commit(&t);
    return t;
}}"""
        body = "MPI_Bcast(all, 100, t, 0, MPI_COMM_WORLD); all[x % 100].x += all[3].y;"
        for own, of, more, file, good in (
            ("static part d;", "&d", "", "", True), ("part *d = NULL;", "d", "", "", True), ("part *d; d = 0;", "d", "", "", True), ("static part *d;", "d", "", "", True), ("", "(part *)0", "", "", True), ("", "d", "", "static part *d = NULL;", True),
            ("part d;", "&d", "", "", True), ("static part d;", "&d", "d.x += 1;", "", False), ("static part d;", "&d", "MPI_Bcast(MPI_BOTTOM, 1, MPI_INT, 0, MPI_COMM_WORLD);", "", False),
        ):
            with self.subTest(own=own, of=of, more=more, file=file):
                found = analysed("MPI_Datatype t = make();", body, 'printf("%g\\n", all[3].x);', frame.format(own=own, of=of, more=more, file=file)).plan
                self.assertEqual(len(found.points), int(good), found.considered)
                self.assertLessEqual({item.place[0].name for point in found.points for item in point.items}, {"all", "step", "x"})
        # One that leads somewhere.
        for file in ("static part one, *d = &one;", "static part one; static part *d = NULL; static void set(void) { d = &one; }"):
            found = analysed("MPI_Datatype t = make();" + ("set();" if "set" in file else ""), body + " all[4].x += one.x;", 'printf("%g\\n", all[3].x);', frame.format(own="", of="d", more="", file=file)).plan
            self.assertEqual(len(found.points), 1, found.considered)
            self.assertIn("one", {item.place[0].name for item in found.points[0].items})

    def test_init_that_is_returned(self):
        self.refused("nothing can follow MPI_Init here", "", "", PRINT, outside="static int begin(int *n, char ***v) { return MPI_Init(n, v); }", replaced=("MPI_Init(&argc", "begin(&argc"))

    def test_what_is_defined_for_headers_stays_first(self):
        text = self.rewritten(self.analysed("#define _XOPEN_SOURCE 700\n#ifdef NEVER\n#include <math.h>\n#endif\n" + FRAME % ("", "", "", PRINT)))
        self.assertLess(text.index("_XOPEN_SOURCE"), text.index("mend_cc.h"))
        self.assertLess(text.index("string.h"), text.index("mend_cc.h"))
        self.assertLess(text.index("mend_cc.h"), text.index("int main"))

    def test_a_shape_is_that_of_one_array(self):
        before = "struct { double *u; } g; g.u = malloc(800); double *u = malloc(80);\n#pragma mend shape(u) mend_app_block(10 * size, 10 * rank, 10, 0, 0)\nu[1] = 0;"
        text = self.rewritten(self.analysed(FRAME % ("", before, "u[1] += x; g.u[2] += x;", 'printf("%g %g\\n", u[1], g.u[2]);')))
        self.assertEqual((text.count("mend_cc_heap_array("), text.count("mend_cc_heap(")), (1, 1), text)

    def test_a_directive_at_a_place_that_is_not_shown_to_be_safe(self):
        found = analysed("double mine = 0;", f"mine += rank;\n#pragma mend checkpoint\nif (size > 100) {SEND}", 'printf("%g\\n", mine);')
        self.assertEqual(found.plan.points[0].replicated, set())
        self.assertTrue(found.plan.points[0].warnings)

    def test_functions_of_headers_stand_in_their_own_file(self):
        self.write("twice.h", "static inline double twice(double x) {\n    double y = 2 * x;\n    return y;\n}\n")
        found = self.analysed(FRAME % ('#include "twice.h"', "double u = 0;", "u = twice(u) + x;", 'printf("%g\\n", u);'))
        files = {stmt.place.file for name, function in found.program.functions.items() if function.source == "twice" for stmt in function.body.walk()}
        self.assertEqual({os.path.basename(file) for file in files}, {"twice.h"})

    def test_builtins(self):
        outside = "#include <math.h>\n#include <stdarg.h>\nstatic int sum(int n, ...) { va_list all; va_start(all, n); va_end(all); return n; }"
        found = analysed("double u = INFINITY;", "if (isnan(u) || !isfinite(u) || __builtin_expect(x, 0)) u = x + (NAN != u);", PRINT + " sum(1);", outside=outside)
        self.assertEqual(len(found.plan.points), 1)

    def test_integers_that_no_type_is_for(self):
        found = analysed("__int128 sum = 1;", "sum = sum * 3 + x;", 'printf("%d\\n", (int)sum);')
        self.assertIn("sum is an integer of 16 bytes", str(found.plan.considered))


    def test_bit_fields_have_no_address(self):
        declared = "struct { unsigned mode : 3, on : 1; int n; } f = {0, 0, 0};"
        text = self.rewritten(self.analysed(FRAME % ("", declared, "f.mode += x;", 'printf("%d\\n", f.mode);')))
        self.assertIn('"f", &f, MEND_APP_BYTES', text)
        self.refused("a bit-field", declared.replace("int n", "char *n"), "f.mode += x;", 'printf("%d\\n", f.mode);')

    def test_nothing_is_registered_twice(self):
        declared = "struct { struct { unsigned mode : 3, on : 1; int n; } in; int m; } f = {{0, 0, 0}, 0};"
        for order in ("f.in.mode += x; f.in.n += x; f.m += x;", "f.m += x; f.in.n += x; f.in.mode += x;"):
            found = self.analysed(FRAME % ("", declared, order, 'printf("%d %d %d\\n", f.in.mode, f.in.n, f.m);'))
            self.assertEqual({item.place[1] for item in found.plan.points[0].items if item.place[0].name == "f"}, {("in",), ("m",)})

    def test_structures_without_names(self):
        declared = """struct { union { struct { double x, y; }; double v[2]; }; int n; } p = {{{0, 0}}, 0};
            struct { struct { double a; struct { int b; }; unsigned : 4; }; double *next; union { int i; float f; }; } q = {0}, *all = calloc(3, sizeof *all);
            struct { struct { unsigned on : 1; int m; }; int k; } r = {{0, 0}, 0};"""
        body = "p.x += 1; p.v[1] += 1; p.n += 2; q.a += 2; q.b += 1; all[1].a += 2; all[2].i += 1; r.on += x; r.m += x;"
        used = 'printf("%g %d %g %d %g %d %d %d\\n", p.v[0], p.n, q.a, q.b, all[1].a, all[2].i, r.on, r.m);'
        text = self.rewritten(self.analysed(FRAME % ("", declared, body, used)))
        for one in ('"p", &p, MEND_APP_BYTES', '"q.a", &q.a, MEND_APP_DOUBLE', '"q.b", &q.b, MEND_APP_INT32', '{"%0", 0, MEND_APP_BYTES, 16}, {"next", 16, MEND_APP_POINTER, 1}', '"r", &r, MEND_APP_BYTES'):
            self.assertIn(one, text)
        self.assertNotRegex(text, "anonymous|unnamed")

    def test_assertions(self):
        text = self.rewritten(self.analysed("#include <assert.h>\n" + FRAME % ("", "double u = 0;", "assert(u >= 0 && rank < size); u += x;", 'assert(x); printf("%g\\n", u);')))
        self.assertIn("mend_cc_checkpoint(1);", text)

    def test_structures_in_structures(self):
        outside = "typedef struct { double *data; int n; } Field; typedef struct { Field f; double t; } Patch; typedef struct { Patch p; int k; } Block; static Block blocks[4];"
        body = "for (int i = 0; i < 4; i++) { blocks[i].p.t += x; blocks[i].p.f.data[1] += x; } if (x == 9) blocks[0].p.f.data = blocks[1].p.f.data;"
        text = self.rewritten(self.analysed(FRAME % (outside, "for (int i = 0; i < 4; i++) blocks[i].p.f.data = calloc(10, 8);", body, 'printf("%g\\n", blocks[0].p.t + blocks[0].p.f.data[1]);')))
        self.assertIn('{"p.f.data", 0, MEND_APP_POINTER, 1}, {"p.t", 16, MEND_APP_DOUBLE, 1}}', text)
        self.assertNotIn("MEND_APP_BYTES", text)

    def test_unions_in_structures(self):
        for union, outcome in (("union { int n; float f; }", '"s.u", &s.u, MEND_APP_BYTES'), ("union { int n; int *p; }", None)):
            found = self.analysed(FRAME % (f"static struct {{ double t; {union} u; }} s;", "", "s.t += x; s.u.n += x;", 'printf("%g %d\\n", s.t, s.u.n);'))
            if outcome:
                self.assertIn(outcome, self.rewritten(found))
            else:
                with self.assertRaisesRegex(Refused, "a union"):
                    self.rewritten(found)


MODULE = """module %s
%s
contains
  subroutine relax(new, old, n)
    integer :: n, i
    real(8) :: new(n), old(n)
    do i = 1, n
      %s(i) = %s(i) + 1
    end do
  end subroutine
end module
"""


class Fortran(InRoom):
    def text(self, uses="", declared="real(8) :: u(1000)", before="  u = 1", body="    do i = 1, 1000\n      u(i) = u(i) * 2\n    end do", outside=""):
        return FORTRAN % (outside, uses + "\n  implicit none\n  " + declared, before, body)

    def fortran(self, text):
        return analyse([(self.write("program.f90", text), [])])

    def rewritten(self, found):
        self.assertEqual(len(found.plan.points), 1, (found.plan.considered, found.plan.refused))
        return next(iter(FortranRewriter(found.program, found.memory, found.plan).run().values())).decode()

    def test_kinds_by_other_names(self):
        found = self.fortran(self.text("  use, intrinsic :: iso_fortran_env, only: dp => real64", "real(dp) :: u(1000)"))
        self.assertRegex(self.rewritten(found), r"'u', mend_cc_address\(u\), 10, ")
        found = self.fortran(self.text("  use elsewhere, only: dp", "real(dp) :: u(1000)"))
        with self.assertRaisesRegex(Refused, "the kind dp isn't known"):
            self.rewritten(found)

    def test_the_size_is_compared_when_it_runs(self):
        self.assertIn("storage_size(u))", self.rewritten(self.fortran(self.text(declared="real :: u(1000)"))))

    def test_statements_that_share_a_line(self):
        found = self.fortran(self.text(body="    call mpi_recv(i, 1, mpi_integer, 0, 0, mpi_comm_world, mpi_status_ignore, ierr); u(1) = u(1) + i\n    call mpi_send(i, 1, mpi_integer, 0, 0, mpi_comm_world, ierr)"))
        self.assertEqual(found.plan.points, [])

    def test_calls_within_other_constructs(self):
        found = self.fortran(self.text(body="    associate (x => u)\n      call mpi_send(x, 1, mpi_double_precision, 0, 0, mpi_comm_world, ierr)\n    end associate"))
        self.assertEqual(found.plan.points, [])
        self.assertEqual(len(self.fortran(self.text(body="    associate (x => u)\n      x(1) = x(1) + step\n    end associate")).plan.points), 1)

    def test_memory_with_several_names(self):
        for line in ("common /fields/ u", "equivalence (u, v)"):
            with self.assertRaisesRegex(CannotParse, "memory that several names share"):
                self.fortran(self.text(declared=f"real(8) :: u(1000), v(1000)\n  {line}"))

    def registered(self, uses, call, outside):
        found = self.fortran(self.text(uses, "real(8) :: u(1000), v(1000)\n  integer, parameter :: n = 1000", "  u = 1\n  v = 2", f"    {call}\n    u(2) = v(2)", outside))
        self.rewritten(found)
        return [item.place[0].name for item in found.plan.points[0].items if item.place[0].name in "uv"]

    def test_arguments_by_their_keywords(self):
        outside = MODULE % ("m", "", "new", "new")
        self.assertEqual(self.registered("  use m", "call relax(n=1000, old=u, new=v)", outside), ["u", "v"])
        self.assertEqual(self.registered("  use m", "call relax(n=1000, old=v, new=u)", outside), ["u"])
        self.assertEqual(self.registered("", "call mpi_comm_rank(mpi_comm_world, i, ierror=ierr)", ""), ["u"])
        with self.assertRaisesRegex(CannotParse, "arguments of MPI_Comm_rank by their keywords"):
            self.registered("", "call mpi_comm_rank(comm=mpi_comm_world, rank=i, ierror=ierr)", "")
        with self.assertRaisesRegex(CannotParse, "relax has no such argument"):
            self.registered("  use m", "call relax(v, u, count=n)", outside)

    def test_procedures_of_one_name(self):
        for private, uses, call, changes in (
            ("", "  use a", "relax", ["u", "v"]), ("", "  use b", "relax", ["u"]), ("", "  use b, only: extra\n  use a", "relax", ["u", "v"]),
            ("  private :: relax", "  use b\n  use a", "relax", ["u", "v"]), ("  private\n  public :: extra", "  use b\n  use a", "relax", ["u", "v"]),
            ("", "  use b, only: smooth => relax\n  use a", "smooth", ["u"]), ("", "  use b, smooth => relax\n  use a", "relax", ["u", "v"]),
        ):
            with self.subTest(private=private, uses=uses):
                outside = MODULE % ("a", "", "new", "new") + MODULE % ("b", "  integer :: extra\n" + private, "old", "old")
                self.assertEqual(self.registered(uses, f"call {call}(v, u, 1000)", outside), changes)

    def test_arguments_that_are_expressions(self):
        outside = MODULE % ("m", "", "new", "old")
        self.assertEqual(self.registered("  use m", "call relax(v, u, n)\n    call relax(u, v, n - 1)", outside), ["u", "v"])

    def test_arrays_that_are_allocated_again(self):
        found = self.fortran(self.text(declared="real(8), allocatable :: u(:)", before="  allocate (u(1000))\n  u = 1",
                                       body="    u(1) = u(1) + step\n    if (step == 5) then\n      deallocate (u)\n      allocate (u(2000))\n      u = 3\n    end if"))
        self.assertEqual(found.plan.points, [])
        self.assertIn("u is allocated or deallocated between checkpoints", str(found.plan.considered))


BLOCKS = r"""
static double *make(long n, double v) {
    double *p = malloc(n * sizeof *p);
    for (long i = 0; i < n; i++)
        p[i] = v;
    return p;
}
"""


class Blocks(InDirectory):
    def test_blocks_of_one_place_are_found_again_where_one_was_freed(self):
        body = """if (argc > 2 && step == atoi(argv[2])) abort();
        if (first) { a[1] += first[1]; free(first); first = NULL; }
        a[1] = a[1] * 1.5 + 1; b[1] = b[1] * 1.25 + 2; MPI_Barrier(MPI_COMM_WORLD);"""
        self.write("blocks.c", FRAME % (BLOCKS, "double *first = make(100, 1), *a = make(100, 2), *b = make(100, 3);", body, 'printf("blocks digest %.17g %.17g\\n", a[1], b[1]);'))
        self.mend_cc("mpicc", "-o", "blocks", "blocks.c")
        expected = self.good(self.run_ranks(1, ["./blocks", "20"], restart="none"))
        self.assertNotEqual(self.run_ranks(1, ["./blocks", "20", "14"], calls=4)[0], 0)
        code, output, errors = self.run_ranks(1, ["./blocks", "20"])
        self.assertEqual((code, output), (0, expected), errors)
        self.assertIn("is restored", errors)


TWICE = r"""#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
static void relax(double *u, int steps, int stop, double *omega) {
    for (int s = 0; s < steps; s++) {
        if (s == stop) abort();
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < 100; i++) u[i] += *omega * (1 - u[i]);
        *omega *= 0.9;
    }
    for (int s = 0; s < steps; s++) {
        if (s == stop - 100) abort();
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < 100; i++) u[i] = 0.99 * u[i] + 2;
    }
}
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    double omega = 1.5, u[100] = {0};
    relax(u, atoi(argv[1]), argc > 2 ? atoi(argv[2]) : -1, &omega);
    printf("digest %.17g\n", u[3]);
    MPI_Finalize();
    return 0;
}
"""


class Callers(InDirectory):
    def test_variables_of_a_caller_of_two_places(self):
        self.write("twice.c", TWICE)
        report = self.mend_cc("--report", "mpicc", "-o", "twice", "twice.c")
        self.assertIn("main/relax loop 3", report)
        expected = self.good(self.run_ranks(1, ["./twice", "20"], restart="none"))
        for stop, where in (("14", "12"), ("107", "28")):
            self.forget()
            self.assertNotEqual(self.run_ranks(1, ["./twice", "20", stop], calls=4)[0], 0)
            code, output, errors = self.run_ranks(1, ["./twice", "20"])
            self.assertEqual((code, output), (0, expected), errors)
            self.assertIn(f"checkpoint {where} of", errors)


if __name__ == "__main__":
    unittest.main()
