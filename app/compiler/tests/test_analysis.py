"""The analysis by itself: small programs, what is safe in them, what is registered, what can't be seen."""

import os
import tempfile
import unittest

from building import MPICC

from mend_cc import parse_c
from mend_cc.analyse import analyse
from mend_cc.lockstep import Lockstep
from mend_cc.memory import Heap
from mend_cc.names import item_names
from mend_cc.plan import Item, Point
from mend_cc.polynomials import Section, constant, plus

FLAGS = parse_c.compiler_flags([MPICC])
FRAME = """#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
%s
int main(int argc, char **argv) {
    int rank, size, steps = atoi(argv[1]), x = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    %s
    for (int step = 0; step < steps; step++) {
        x++;
        %s
    }
    %s
    MPI_Finalize();
}
"""


def analysed(before, body, after="", outside="", flags=()):
    with tempfile.TemporaryDirectory() as room:
        path = os.path.join(room, "program.c")
        with open(path, "w", encoding="utf-8") as file:
            file.write(FRAME % (outside, before, body, after))
        return analyse([(path, [*FLAGS, *flags])])


class Places(unittest.TestCase):
    def safe(self, *parts, **more):
        """Whether the start of the loop's body is safe."""
        found = analysed(*parts, **more)
        body = next(stmt for stmt in found.program.functions["main"].body.walk() if stmt.kind == "loop" and stmt.expr.args[1].op == "var" and stmt.expr.args[1].value.name == "steps")
        point = found.lockstep.points.get(body.parts[0].parts[0])
        return point is not None and not point.why

    SEND = "MPI_Send(&x, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);"

    def test_what_only_many_ranks_do_counts(self):
        self.assertTrue(self.safe("", ""))
        self.assertFalse(self.safe("", f"if (size > 100) {self.SEND}"))
        self.assertFalse(self.safe("", f"if (rank == 1000) {self.SEND}"))
        self.assertFalse(self.safe("", f"if (rank / 70 == 1) {self.SEND}"))
        self.assertFalse(self.safe("", f"if (rank >> 5) {self.SEND}"))
        self.assertFalse(self.safe("", f"if (rank & 32) {self.SEND}"))

    def test_arrays_that_decide(self):
        self.assertFalse(self.safe("", f"if (table[1][0] && rank == 0) {self.SEND}", outside="static int table[2][2] = {{0, 0}, {1, 0}};"))
        self.assertFalse(self.safe("int on[3] = {0, 0, 1};", f"if (on[2]) {self.SEND}"))
        self.assertTrue(self.safe("int on[3] = {0, 0};", f"if (on[2]) {self.SEND}"))

    def test_one_memory_by_two_names(self):
        self.assertFalse(self.safe("union { int a; int b; } u; u.a = 0;", f"u.b = 1; if (u.a) {self.SEND}"))
        self.assertFalse(self.safe("int on = 0, *p = &on;", f"*p = 1; if (on) {self.SEND}"))
        self.assertFalse(self.safe("long number = argc; int *p = (int *)number;", "*p = 1;"))

    def test_arrays_in_structures(self):
        decide = f"if (s.on[1]) {self.SEND}"
        self.assertTrue(self.safe("struct { int n, on[2]; } s; s.on[0] = 1; s.on[1] = 0;", decide))
        self.assertFalse(self.safe("struct { int n, on[2]; } s; s.on[0] = 0; s.on[1] = 1;", decide))
        self.assertTrue(self.safe("struct { int n, on[2]; } s; s.on[1] = 1; memset(&s, 0, sizeof s);", decide))
        self.assertTrue(self.safe("struct { int n, on[2]; } *s = malloc(sizeof *s); s->on[0] = 1; s->on[1] = 0;", decide.replace("s.", "s->")))
        # Of several structures.
        self.assertFalse(self.safe("struct { struct { int n, on[2]; } c[2]; } s; s.c[0].n = 1; s.c[1].n = 0;", f"if (s.c[0].n) {self.SEND}"))
        self.assertFalse(self.safe("struct { int on[2]; } c[2]; c[0].on[1] = 1; c[1].on[1] = 0;", f"if (c[0].on[1]) {self.SEND}"))
        self.assertFalse(self.safe("struct { int on[2]; } *c = malloc(2 * sizeof *c); c[0].on[1] = 1; c[1].on[1] = 0;", f"if (c[0].on[1]) {self.SEND}"))

    def test_elements_through_pointers(self):
        outside = f"static void tell(const int *on, int x) {{ if (on[1]) {self.SEND} }}"
        for first, safe in (("1, 0", True), ("0, 1", False)):
            self.assertEqual(self.safe(f"int on[2] = {{{first}}};", "tell(on, x);", outside=outside), safe)
        self.assertFalse(self.safe("int a[2][4] = {{0}}, (*p)[4] = &a[1]; memset(a, 0, sizeof a); (*p)[0] = 1; a[0][0] = 0;", f"if (a[1][0]) {self.SEND}"))
        self.assertFalse(self.safe("int a[2][3][4]; memset(a, 0, sizeof a); a[1][0][0] = 1; a[0][1][0] = 0;", f"if (a[1][0][0]) {self.SEND}"))
        self.assertFalse(self.safe("static int a[8000]; a[5000] = 1;", f"if (a[5000]) {self.SEND}"))

    def test_the_command_line_is_the_same_after_the_start(self):
        self.assertTrue(self.safe("steps = argc > 1 ? atoi(argv[1]) : 3;", ""))

    def test_threads(self):
        self.assertFalse(self.safe("", f"\n#pragma omp parallel\n{{ {self.SEND} MPI_Recv(&x, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); }}"))

    def test_what_is_compared_with_decides_how_many_ranks_are_tried(self):
        found = analysed("", "if (rank == 20) x++;")
        self.assertIsInstance(found.lockstep, Lockstep)
        self.assertIn(21, found.lockstep.tried)


class Registered(unittest.TestCase):
    def names(self, *parts, **more):
        found = analysed(*parts, **more)
        self.assertEqual(len(found.plan.points), 1, (found.plan.considered, found.plan.refused))
        return [item.place[0].name for item in found.plan.points[0].items]

    def test_a_pointer_to_one_of_several_functions(self):
        outside = "static double a, b; static void set(void) { a = b; } static void other(void) { b++; }"
        body, after = "op(); b += a; a = b / 2;", 'printf("%g", b);'
        self.assertIn("a", self.names("void (*op)(void) = rank ? set : other;", body, after, outside))
        self.assertNotIn("a", self.names("void (*op)(void) = set;", body, after, outside))

    def test_what_a_function_writes_where_its_argument_leads(self):
        for write, dead in (("*to = x;", True), ("if (x > 3) *to = x;", False), ("if (x > 3) return; *to = x;", False), ("to = &other; *to = x;", False), ("x += *to; *to = x;", False),
                            ("MPI_Allreduce(&other, to, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);", True), ("MPI_Allreduce(&other, to, x, MPI_INT, MPI_SUM, MPI_COMM_WORLD);", False), ("inner(to, x);", True),
                            ("*(short *)to = x;", False)):
            outside = f"static int other; static void inner(int *to, int x) {{ *to = x; }} static void give(int *to, int x) {{ {write} }}"
            with self.subTest(write=write):
                found = self.names("int a = 0, b = 0;", "give(&a, x); other += a; give(&b, a); a = b = other;", 'printf("%d", other);', outside)
                self.assertEqual("a" in found, not dead)

    def test_fields_of_structures_with_pointers(self):
        before = "struct { int *to; double now, same; } s[3]; for (int i = 0; i < 3; i++) { s[i].to = &x; s[i].now = s[i].same = i; }"
        for body, fields in (("s[1].now += s[2].same;", {("now",)}), ("s[1].now += *s[2].to; s[1].to = &x;", {("now",), ("to",)})):
            items = analysed(before, body, 'printf("%g", s[x % 3].now);').plan.points[0].items
            self.assertEqual(next(item.fields for item in items if item.place[0].name == "s"), fields)
        # A pointer to all of one needs all of it.
        items = analysed(before + "void *p = &s[0];", "s[1].now += *s[2].to; if (x > 9) p = &s[x % 3];", 'printf("%g %p", s[x % 3].now, p);').plan.points[0].items
        self.assertTrue(next(item for item in items if item.place[0].name == "s").has(("same",)))

    def test_jumps_ahead(self):
        before, after = "double a[10] = {0}, b = 0;", 'printf("%g", b);'
        fill = "for (int i = 0; i < 10; i++) a[i] = x + i;"
        for body, dead in ((f"{fill} if (x > 50) goto on; b += 1; on: b += a[3]; a[3] = b;", True), (f"if (x > 50) goto on; {fill} on: b += a[3]; a[3] = b;", False),
                           ("int n = 10; if (x > 50) { n = 5; goto on; } n = 10; on: for (int i = 0; i < n; i++) a[i] = 1; b += a[8]; a[8] = b;", False),
                           (f"for (int k = 0; k < 3; k++) {{ {fill} if (b > k) goto on; }} on: b += a[3]; a[3] = b;", True), (f"for (int k = 0; k < x; k++) {{ {fill} if (b > k) goto on; }} on: b += a[3]; a[3] = b;", False),
                           (f"for (int k = 0; k < 3; k++) {{ if (b > k) goto on; {fill} }} on: b += a[3]; a[3] = b;", False), (f"int k = 0; again: if (k) {{ b += a[3]; a[3] = b; }} else {fill} if (!k++) goto again;", False)):
            with self.subTest(body=body):
                self.assertEqual("a" in self.names(before, body, after), not dead)

    def test_elements_that_are_not_told_of_an_array_that_is_written(self):
        before, after = "double a[4][10], b = 0; memset(a, 0, sizeof a);", 'printf("%g", b);'
        for rows, dead in ((4, True), (3, False)):
            body = f"for (int i = 0; i < {rows}; i++) for (int j = 0; j < 10; j++) a[i][j] = x; b += a[x % 4][(int)b % 10]; a[3][x % 10] = b;"
            self.assertEqual("a" in self.names(before, body, after), not dead)

    PRINT = 'printf("%d\\n", x);'

    def test_only_what_changes_and_is_used(self):
        self.assertEqual(self.names("int fixed = 3, unused = 0;", "unused = step; x += fixed + rank;", self.PRINT), ["x", "step"])

    def test_an_array_that_is_written_first_is_not(self):
        loop = "for (int i = 0; i < 50; i++) "
        self.assertEqual(self.names("int a[50], b[50] = {0};", f"{loop} a[i] = b[i] + step; {loop} b[i] = a[i];", "printf(\"%d\", b[3]);"), ["x", "b", "step"])
        # One element of it is not.
        self.assertIn("a", self.names("int a[51], b[50] = {0};", f"{loop} a[i] = b[i] + step; {loop} b[i] = a[i + 1];", "printf(\"%d\", b[3]);"))
        self.assertIn("a", self.names("int a[51], b[50] = {0};", f"{loop} if (i != rank) a[i] = b[i] + step; {loop} b[i] = a[i];", "printf(\"%d\", b[3]);"))
        self.assertIn("a", self.names("int a[51], b[50] = {0};", f"{loop} {{ if (i == step) break; a[i] = b[i]; }} {loop} b[i] = a[i] + 1;", "printf(\"%d\", b[3]);"))

    def test_memset_and_collectives_write_all(self):
        self.assertNotIn("a", self.names("int a[50];", "memset(a, 0, sizeof a); for (int i = 0; i < 50; i++) x += a[i] += step;", self.PRINT))
        self.assertNotIn("a", self.names("int a[50], b[50] = {1};", "MPI_Allreduce(b, a, 50, MPI_INT, MPI_SUM, MPI_COMM_WORLD); for (int i = 0; i < 50; i++) x += a[i];", self.PRINT))
        # A receive may be from MPI_PROC_NULL, and writes nothing then.
        self.assertIn("a", self.names("int a[50] = {0};", "MPI_Sendrecv(&x, 1, MPI_INT, (rank + 1) % size, 0, a, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); x += a[0];", self.PRINT))

    def test_ways_that_leave_a_write_out(self):
        loop = "for (int i = 0; i < 50; i++) "
        after = "printf(\"%d\", x);"
        read = f"{loop} x += a[i];"
        self.assertNotIn("a", self.names("int a[50] = {0};", f"{loop} a[i] = step; {read}", after))
        self.assertIn("a", self.names("int a[50] = {0};", f"switch (step % 2) {{ case 0: {loop} a[i] = step; break; default: {read} }}", after))
        self.assertIn("a", self.names("int a[50] = {0};", f"if (step % 2) {loop} a[i] = step; {read}", after))
        self.assertIn("a", self.names("int a[50] = {0}, i = 0;", "step % 2 ? (i = 3) : 0; a[3] = step; x += a[i]; i = 0;", after))
        outside = "static int n = 20; static void grow(void) { n = 40; }"
        self.assertIn("a", self.names("int a[50] = {0};", "n = 20; for (int i = 0; i < 20; i++) a[i] = step; for (int i = 0; i < n; i++) { x += a[i]; grow(); }", after, outside=outside))

    def test_a_loop_that_may_not_run_at_all_writes_nothing(self):
        inside = "for (int i = 0; i < 50; i++) "
        found = [self.names("int w[50] = {0}; int again = 0;", f"for (int k = 0; k < {times}; k++) {inside} w[i] = step; {inside} x += w[i]; again = step % 3 == 0;", self.PRINT) for times in ("again", "2")]
        self.assertEqual(["w" in one for one in found], [True, False])

    def test_blocks_of_one_place_are_not_one(self):
        body = "int *old = now; now = malloc(50 * sizeof *now); for (int i = 0; i < 50; i++) now[i] = step; for (int i = 0; i < 50; i++) x += old[i]; free(old);"
        self.assertIn("now", self.names("int *now = calloc(50, sizeof *now);", body, self.PRINT))

    FIELDS = "struct field { int n; double *v; };"

    def test_a_field_of_one_structure_is_not_that_of_all(self):
        """What is written through one structure of an array covers nothing that is read through another."""
        each = "for (int k = 0; k < 2; k++) { f[k].n = 50 + k; f[k].v = calloc(60, 8); }"
        loop = "for (int i = 0; i < %s; i++) %s"
        fill, add = loop % ("f[0].n", "f[0].v[i] = step;"), loop % ("f[1].n", "x += f[1].v[i] += f[0].v[i];")
        self.assertIn("v", self.names(f"struct field f[2]; {each}", fill + add, self.PRINT, outside=self.FIELDS))
        functions = """static void fill(struct field *f, double v) { for (int i = 0; i < f->n; i++) f->v[i] = v; }
            static double add(struct field *f, struct field *g) { double s = 0; for (int i = 0; i < f->n; i++) s += f->v[i] += g->v[i]; return s; }"""
        self.assertIn("v", self.names(f"struct field f[2]; {each}", "fill(&f[0], step); x += add(&f[1], &f[0]);", self.PRINT, outside=self.FIELDS + functions))
        lengths = (loop % ("f[0].n", "a[i] = step;")) + loop % ("f[1].n", "x += a[i];")
        for declared in ("struct field f[2];", "struct field *f = malloc(2 * sizeof *f);"):
            self.assertIn("a", self.names(f"double a[60] = {{0}}; {declared} {each}", lengths, self.PRINT, outside=self.FIELDS))
        # One that is alone is known.
        one = (loop % ("f->n", "f->v[i] = step;")) + loop % ("f->n", "x += f->v[i];")
        for declared in ("struct field *f = malloc(sizeof *f);", "struct field g, *f = &g;"):
            self.assertNotIn("v", self.names(f"{declared} f->n = 50; f->v = calloc(60, 8);", one, self.PRINT, outside=self.FIELDS))

    def test_rows_that_are_exchanged(self):
        before = "double *a[2], *b; for (int i = 0; i < 2; i++) a[i] = calloc(50, 8);"
        fill, read = "for (int i = 0; i < 50; i++) a[0][i] = step;", "for (int i = 0; i < 50; i++) x += a[0][i];"
        # The pointers, and what they lead to.
        self.assertEqual(self.names(before, f"{fill} b = a[0]; a[0] = a[1]; a[1] = b; {read}", self.PRINT).count("a"), 2)
        self.assertEqual(self.names(before, f"{fill} {read}", self.PRINT).count("a"), 0)

    def test_elements_of_another_size(self):
        loop = "for (int i = 0; i < 50; i++) "
        read = f"{loop} x += a[i];"
        for write in (f"char *c = (char *)a; {loop} c[i] = 0;", f"void *v = a; char *c = v; {loop} c[i] = 0;", "char *c = (char *)a; memset(c, 0, 50);", f"{loop} ((char *)a)[i] = 0;",
                      f"double *b = (double *)((char *)a + 8); {loop} b[i - 1] = 0;", f"{loop} u.f[i] = 0;"):
            with self.subTest(write=write):
                where = "u.a" if "u.f" in write else "a"
                declared = "union { double a[60]; float f[120]; } u;" if "u.f" in write else "static double a[60];"
                self.assertIn("u" if "u.f" in write else "a", self.names(declared, write + read.replace("a[i]", f"{where}[i]"), self.PRINT + f" x = {where}[1];"))
        self.assertNotIn("a", self.names("double a[50];", f"double *b = (double *)(void *)a; {loop} b[i] = step; {read}", self.PRINT))

    def test_rows_of_an_array(self):
        rows = "for (int i = 0; i < %d; i++) for (int j = 0; j < 10; j++) "
        read = (rows % 5) + "x += a[i][j];"
        self.assertNotIn("a", self.names("double a[5][10];", (rows % 5) + "a[i][j] = step;" + read, self.PRINT))
        self.assertNotIn("a", self.names("double a[5][10];", "double (*b)[10] = a; " + (rows % 5) + "(*(b + i))[j] = step;" + read, self.PRINT))
        self.assertIn("a", self.names("double a[5][10] = {{0}};", "double (*b)[10] = a + 1; " + (rows % 4) + "b[i][j] = step;" + read, self.PRINT))
        self.assertIn("a", self.names("double a[5][10] = {{0}}, b[5][10];", "for (int j = 0; j < 10; j++) a[0][j] = step; memcpy(b, a, sizeof a); x += b[1][1];", self.PRINT))

    def test_less_than_a_union(self):
        declared = "union { struct { int low, high; } part; long whole; struct { unsigned on : 1; unsigned more : 31; } bits; } u; u.whole = 0;"
        for body, saved in (("u.part.low = step; u.part.high += 2;", True), ("u.bits.on = 1;", True), ("u.whole = step;", False)):
            with self.subTest(body=body):
                self.assertEqual("u" in self.names(declared, body, 'printf("%ld\\n", u.whole);'), saved)

    def test_what_is_gathered_is_read_as_far_as_it_is_sent(self):
        loop = "for (int i = 0; i < 50; i++) "
        for call, saved in (("MPI_Allgather(a, 50, MPI_INT, b, 50, MPI_INT, MPI_COMM_WORLD);", False), ("MPI_Allgather(a, 51, MPI_INT, b, 51, MPI_INT, MPI_COMM_WORLD);", True),
                            ("MPI_Gather(a, 50, MPI_INT, b, 50, MPI_INT, 0, MPI_COMM_WORLD);", False), ("MPI_Alltoall(a, 50, MPI_INT, b, 50, MPI_INT, MPI_COMM_WORLD);", True)):
            with self.subTest(call=call):
                self.assertEqual("a" in self.names("int a[60] = {0}, *b = malloc(60 * 4 * size);", f"{loop} a[i] = step; {call} x += b[3];", self.PRINT), saved)

    def test_a_datatype_of_another_size(self):
        self.assertIn("a", self.names("double a[50] = {0}, b[50] = {1};", "MPI_Allreduce(b, a, 50, MPI_CHAR, MPI_MAX, MPI_COMM_WORLD); for (int i = 0; i < 50; i++) x += a[i] > 0;", self.PRINT))

    def test_what_another_run_would_not_make_again_is(self):
        self.assertIn("seed", self.names("unsigned seed = rand();", "x += seed;", self.PRINT))

    def test_what_chance_decides_or_sends_is_not_made_again(self):
        receive = "MPI_Recv(&k, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);"
        outside = "static int k, sent = 3; static int chance(void) { return drand48() < 0.5; } static void set(void) { k = 2; }"
        for before, saved in (
            ("if (drand48() < 0.3) k = 1;", True), ("int seed = time(NULL); if (seed % 2) k = 1;", True), ("for (int i = 0; i < 3; i++) if (drand48() < 0.3) set();", True), ("k = chance();", True),
            (f"sent = rand(); if (rank == 0) for (int i = 1; i < size; i++) MPI_Send(&sent, 1, MPI_INT, i, 0, MPI_COMM_WORLD); else {receive}", True),
            (f"if (rank == 0) for (int i = 1; i < size; i++) MPI_Send(&sent, 1, MPI_INT, i, 0, MPI_COMM_WORLD); else {receive}", False),
            ("if (drand48() < 0.3) sent = 1; k = 1;", False), ("double at = MPI_Wtime(); if (at > 3) k = 1;", False),
        ):
            with self.subTest(before=before):
                found = analysed(before, "\n#pragma mend checkpoint\nx += k;", self.PRINT, outside="#include <time.h>\n" + outside)
                self.assertEqual("k" in [item.place[0].name for item in found.plan.points[0].items], saved)

    def test_what_moves_a_stream_is_not_left_out(self):
        def left_out(work):
            before = f'FILE *in = fopen("in", "r"), *log = fopen("log", "w"); double u[500] = {{0}}; int every = 2; for (int i = 0; i < 500; i++) for (int j = 0; j < 500; j++) {{ u[i] += sin(j); {work} }}'
            found = analysed(before, "\n#pragma mend checkpoint\nfor (int i = 0; i < 500; i++) u[i] += x % every;", 'fclose(log); printf("%g\\n", u[1]);', outside="#include <math.h>")
            return any(stmt.kind == "loop" for stmt in found.plan.skips)

        for work, can_be in (("", True), ('printf("%d\\n", i);', True), ('fprintf(log, "%d\\n", i);', True), ('fprintf(in, "%d\\n", i);', False), ('fscanf(in, "%lf", &u[i]);', False), ('scanf("%lf", &u[i]);', False)):
            with self.subTest(work=work):
                self.assertEqual(left_out(work), can_be)

    def test_a_pointer_to_what_is_excluded(self):
        found = analysed("int *a = calloc(9, sizeof *a), *b = calloc(9, sizeof *b);", "\n#pragma mend exclude(a)\nint *c = a; a = b; b = c; a[1] = a[2] + x; b[1] = x;", "printf(\"%d %d\", a[1], b[1]);")
        self.assertEqual(len(found.plan.points), 0)
        self.assertIn("b points to a, which a directive excludes: exclude b as well", str(found.plan.considered))

    def test_names_of_blocks_differ(self):
        # The second block of the first place is called "u 2".
        items = [Item((Heap(number, None, "main", name="u"), ()), "", -1) for number in range(1, 5)]
        found = list(item_names(Point(1, "main", None, None, [], items)).values())
        self.assertEqual(len(set(found)), 4)
        self.assertFalse({f"{first} {number}" for first in found for number in range(2, 6)} & set(found), found)


class Sections(unittest.TestCase):
    def test_what_lies_in_what(self):
        n = {("n",): 1}
        row = Section("a", constant(1), [(constant(1), plus(n, constant(3), -1))])
        self.assertTrue(row.covers(Section("a", constant(2), [(constant(1), plus(n, constant(4), -1))])))
        self.assertFalse(row.covers(Section("a", constant(0), [(constant(1), plus(n, constant(4), -1))])))
        self.assertFalse(row.covers(Section("a", constant(2), [(constant(1), plus(n, constant(3), -1))])))
        self.assertFalse(row.covers(Section("b", constant(1))))
        plate = Section("a", plus(n, constant(1)), [(n, constant(3)), (constant(1), constant(7))])
        self.assertTrue(plate.covers(Section("a", plus(n, constant(2)), [(constant(1), constant(5))])))
        self.assertFalse(plate.covers(Section("a", constant(1), [(n, constant(3))])))
        # It may be empty.
        self.assertFalse(Section("a", constant(0), [(n, {("m",): 1})]).covers(Section("a", constant(0))))


if __name__ == "__main__":
    unittest.main()
