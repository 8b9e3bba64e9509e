"""What pointers lead to, by all ways in which C writes that: what is missed would be missing in checkpoints."""

import unittest

from test_analysis import analysed

FIELD = "struct field { long n; double *u; };"
WORK = "for (int i = 0; i < f.n; i++) f.u[i] = f.u[i] * 2 + x;"
PRINT = 'printf("%g\\n", f.u[1]);'


class Pointers(unittest.TestCase):
    def names(self, *parts, **more):
        found = analysed(*parts, **more)
        self.assertEqual(len(found.plan.points), 1, (found.plan.considered, found.plan.refused))
        return [item.place[0].name for item in found.plan.points[0].items]

    def refused(self, why, *parts, **more):
        found = analysed(*parts, **more)
        self.assertEqual(found.plan.points, [])
        self.assertIn(why, str(found.plan.considered))

    def test_designators(self):
        self.assertIn("u", self.names("struct field f = {.u = malloc(80), .n = 10};", WORK, PRINT, outside=FIELD))

    def test_a_literal_that_is_assigned(self):
        self.assertIn("u", self.names("struct field f; f = (struct field){10, malloc(80)};", WORK, PRINT, outside=FIELD))

    def test_braces_that_are_left_out(self):
        outside = "struct whole { struct { long a, b; } head; double *u; long n; };"
        self.assertIn("u", self.names("struct whole f = {1, 2, malloc(80), 10};", WORK, PRINT, outside=outside))

    def test_a_function_that_returns_a_structure(self):
        make = "static struct field make(void) { struct field f; f.n = 10; f.u = malloc(80); return f; }"
        self.assertIn("u", self.names("struct field f = make();", WORK, PRINT, outside=FIELD + make))

    def test_the_short_form_of_a_condition(self):
        self.assertIn("u", self.names("double *have = NULL; struct field f; f.n = 10; f.u = have ?: malloc(80);", WORK, PRINT, outside=FIELD))

    def test_atomic_operations_write(self):
        self.assertIn("count", self.names("long count = 0;", "__atomic_add_fetch(&count, 2, __ATOMIC_RELAXED);", 'printf("%ld\\n", count);'))

    def test_a_pointer_that_leads_nowhere_is_refused(self):
        self.refused("where v leads to can't be seen", "double *u = malloc(80), *v; sscanf(argv[1], \"%p\", (void **)&v);", "v[1] += x;", 'printf("%g\\n", u[1]);')

    def test_one_call_that_allocates_several_types(self):
        make = "static void *make(size_t n) { void *p = malloc(n); if (!p) abort(); return p; }"
        self.refused("holds data of several types", "double *u = make(80); int *c = make(12);", "u[1] += x; c[1] += x;", 'printf("%g %d\\n", u[1], c[1]);', outside=make)
        # Bytes by which it is looked at are no other type.
        self.assertIn("u", self.names("double *u = malloc(80); unsigned char *byte = (unsigned char *)u;", "u[1] += x + byte[0];", 'printf("%g\\n", u[1]);'))

    def test_memory_that_is_handed_out_in_pieces(self):
        outside = "struct node { struct node *next; double v; }; static char *pool; static size_t used; static void *take(size_t n) { void *p = pool + used; used += n; return p; }"
        self.refused("holds data of several types", "pool = malloc(1 << 20); struct node *list = NULL;", "struct node *more = take(sizeof *more); more->next = list; more->v = x; list = more;",
                     'printf("%g\\n", list->v);', outside=outside)

    def test_what_comes_to_where_it_was_taken_from(self):
        loop = "for (int i = 0; i < 50; i++) "
        self.assertIn("a", self.names("int a[50] = {1};", f"MPI_Allreduce(MPI_IN_PLACE, a, 50, MPI_INT, MPI_SUM, MPI_COMM_WORLD); {loop} a[i] /= size;", 'printf("%d\\n", a[1]);'))
        self.assertIn("a", self.names("int a[50] = {1}, b[50] = {1}; void *from = rank ? (void *)b : MPI_IN_PLACE;", f"MPI_Allreduce(from, a, 50, MPI_INT, MPI_SUM, MPI_COMM_WORLD); {loop} a[i] /= size;", 'printf("%d\\n", a[1]);'))

    def test_parameters_that_are_written_as_arrays(self):
        loop = "for (int i = 0; i < n; i++) "
        for parameter, write in (("double u[]", "u[i] += i"), ("double u[100]", "*(u + i) += i"), ("vector u", "*u++ += i")):
            with self.subTest(parameter=parameter):
                outside = f"typedef double vector[100]; static void update({parameter}, int n) {{ {loop} {write}; }}"
                self.assertIn("u", self.names("double u[100] = {0};", "update(u, 100);", 'printf("%g\\n", u[1]);', outside=outside))
        outside = f"static void update(double h[][10], int n) {{ {loop} h[i][i] += i; }}"
        self.assertIn("u", self.names("double u[10][10] = {{0}};", "update(u, 10);", 'printf("%g\\n", u[1][1]);', outside=outside))

    UPDATE = "static void update(double *u, int n) { for (int i = 0; i < n; i++) u[i] += i; }"

    def test_pointers_that_are_loaded_through_a_parameter(self):
        outside = FIELD + self.UPDATE + "static void advance(struct field *f) { update(f->u, f->n); }"
        self.assertIn("u", self.names("struct field f = {10, calloc(10, 8)};", "advance(&f);", PRINT, outside=outside))
        outside = self.UPDATE + "static void sweep(double **a, int n) { for (int i = 0; i < n; i++) update(a[i], n); }"
        self.assertIn("a", self.names("double *a[10]; for (int i = 0; i < 10; i++) a[i] = calloc(10, 8);", "sweep(a, 10);", 'printf("%g\\n", a[1][1]);', outside=outside))
        # A function without a body gets it.
        outside = FIELD + "static void advance(struct field *f, double *v) { v[1]++; if (v[1] < 3) memcpy(f->u + 1, v, 40); }"
        self.assertIn("u", self.names("double v[10] = {0}; struct field f = {10, calloc(10, 8)};", "advance(&f, v);", PRINT, outside=outside))
        # What leads elsewhere for sure isn't taken for written.
        outside = self.UPDATE + "static void twice(double *u, int n) { update(u + 1, n - 1); update(&u[0], n); }"
        self.assertEqual(self.names("double *fixed = calloc(10, 8), *u = calloc(10, 8); twice(fixed, 10);", "twice(u, 10);", 'printf("%g %g\\n", u[1], fixed[1]);', outside=outside), ["x", "step", "u"])

    def test_functions_that_return_what_they_themselves_return(self):
        outside = "struct node { struct node *next; int k; double v; }; static struct node *find(struct node *t, int k) { if (!t || t->k == k) return t; return find(t->next, k); }"
        before = "struct node *list = calloc(1, sizeof *list), *found; list->k = 1;"
        self.assertIn("list", self.names(before, "for (int i = 0; i < 3; i++) { found = find(list, 1); found->v += i; }", 'printf("%g\\n", list->v);', outside=outside))

    SUM = "#include <stddef.h>\ntypedef struct { double mass, px, py, pz; int n; } Sum;"

    def fields(self, before, body, used, outside=""):
        """Which fields of `all` are saved."""
        found = analysed(before, body, f'printf("%g\\n", {" + ".join(f"all.{name}" for name in used)});', outside=self.SUM + outside)
        return {item.place[1][0] for item in found.plan.points[0].items if item.place[0].name == "all"}

    def test_a_pointer_to_a_field_that_moves(self):
        for body in ("double *c = &all.mass; for (int d = 0; d < 3; d++) c[d] += x;", "double *c = &all.mass; for (int d = 0; d < 3; d++) *c++ += x;", "*(&all.mass + rank) += x;"):
            with self.subTest(body=body):
                self.assertEqual(self.fields("Sum all = {1};", body, ["mass", "px", "n"]), {"mass", "px", "py", "pz"})
        outside = "static void each(double c[]) { for (int d = 0; d < 3; d++) *c++ += d; }"
        self.assertEqual(self.fields("Sum all = {1};", "each(&all.mass);", ["mass", "n"], outside), {"mass", "px", "py", "pz"})
        self.assertEqual(self.fields("Sum all = {1};", "double *c = &all.mass; *c += x;", ["mass", "px"]), {"mass"})

    def test_a_buffer_that_begins_at_a_field(self):
        before = "Sum mine = {1, 2, 3, 4, 5}, all = mine;"
        for body, saved in (
            ("if (x % 2) MPI_Allreduce(&mine.mass, &all.mass, 4, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);", {"mass", "px", "n"}),
            ("if (x % 2) MPI_Allreduce(&mine.mass, &all.mass, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);", {"mass"}),
            ("if (x % 2) MPI_Bcast(&all.mass, rank, MPI_DOUBLE, 0, MPI_COMM_WORLD);", {"mass", "px", "py", "pz", "n"}),
            # What is less than all of it isn't written as a whole.
            ("all.n += x; all.px += x; memset(&all, 0, offsetof(Sum, px));", {"px", "n"}),
            ("memset(&all, 0, sizeof all); all.n += x; all.px += x;", set()),
            ("memcpy(&all.mass, &mine.mass, sizeof(double)); all.mass += x;", set()),
        ):
            with self.subTest(body=body):
                self.assertEqual(self.fields(before, body, ["mass", "px", "n"]) - ({"mass"} if "offsetof" in body else set()), saved)


if __name__ == "__main__":
    unittest.main()
