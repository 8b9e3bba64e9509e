"""Arrays that change places by their pointers: of the one that is overwritten before it is read only the rest is saved, where that is certain."""

import unittest

from building import MPICC, InDirectory
from test_analysis import analysed

from mend_cc.overwritten import call, overwritten

# An array of three is both sources at every third step, and is read where it is overwritten then.
TURNS = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int steps = atoi(argv[1]), stop = argc > 2 ? atoi(argv[2]) : -1, last = argc > 3 ? atoi(argv[3]) : 999;
    int rank;
    double sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double *now = malloc(8003), *next = malloc(8003), *spare = malloc(8003);
    for (int i = 0; i < 1000; i++)
        now[i] = next[i] = spare[i] = i % 7 + rank;
    next[999] = 11;
    for (int step = 0; step < steps; step++) {
        if (step == stop)
            abort();
        for (int i = 1; i < last; i++)
            next[i] = now[i] + 0.25 * (now[i - 1] - 2 * now[i] + now[i + 1]) + 0.01 * i;
        if (step % 5 == 4)
            next[0] = now[1];
        double *old = now;
        now = next;
        if (step % 3 == 2) {
            next = now;
            spare = old;
        } else {
            next = step % 3 == 0 ? spare : old;
        }
        sum = now[0] + now[1] + now[500] + now[999];
        MPI_Barrier(MPI_COMM_WORLD);
    }
    printf("digest %.17g %.17g\\n", sum, now[998]);
    MPI_Finalize();
    return 0;
}
"""


class Known(unittest.TestCase):
    BEFORE = "double *now = calloc(50, 8), *next = calloc(50, 8), *more = calloc(50, 8), *old; int n = 50;"
    FILL, SWAP, PRINT = "for (int i = 1; i < n; i++) next[i] = now[i - 1] + x;", "old = now; now = next; next = old;", 'printf("%g\\n", now[x % 50]);'

    def told(self, *parts, **more):
        found = analysed(*parts, **more)
        self.assertEqual(len(found.plan.points), 1, (found.plan.considered, found.plan.refused))
        return [call(one) for one in overwritten(found.program, found.memory, found.plan.points[0])]

    def test_what_the_run_is_told(self):
        (text,) = self.told(self.BEFORE, self.FILL + self.SWAP, self.PRINT)
        self.assertRegex(text, r"mend_cc_overwritten\(&next, 8, 1, \(const int\[\]\)\{1, 2, 0\}, \(const void \*const\[\]\)\{&now, NULL\}, \(const int64_t\[\]\)\{1, 1, 1, \(int64_t\)n \+ -2, -1\}\);")
        # An allocation in a function, read after the exchange.
        outside = "static double *make(int n) { double *made = calloc(n, 8); MPI_Comm_rank(MPI_COMM_WORLD, &n); made[0] = n; return made; }"
        self.assertEqual(len(self.told("double *now = make(50), *next = make(50), *old; int n = 50;", f"{self.FILL}{self.SWAP} for (int i = 0; i < n; i++) x += now[i] > 9;", self.PRINT, outside)), 1)

    def test_what_is_not_certain(self):
        for body, why in (
            (f"if (x % 3) {{ {self.FILL} }} {self.SWAP}", "it may not be written"), (f"x += next[5]; {self.FILL}{self.SWAP}", "it is read first"), (f"if (x > 900) break; {self.FILL}{self.SWAP}", "the loop may end before"),
            (f"more = rank ? now : next; x += more[3]; {self.FILL}{self.SWAP}", "it is read through a pointer of which isn't told where it leads"), (f"{self.FILL}{self.SWAP} n = 50 - x % 2;", "how much is written changes"),
            (f"next++; {self.FILL} next--; {self.SWAP}", "it leads elsewhere"),
            (f"x += more[1] > 9; {self.FILL}{self.SWAP} more = now + 1;", "a saved pointer leads into it"),
        ):
            with self.subTest(why=why):
                self.assertEqual(self.told(self.BEFORE, body, self.PRINT), [])

    def test_bytes_of_larger_elements(self):
        before = "char *now = malloc(400), *next = malloc(400), *old; double *a = (double *)now, *b = (double *)next; for (int i = 0; i < 50; i++) a[i] = b[i] = i;"
        body = "memset(next, 0, 200); a = (double *)now; b = (double *)next; for (int i = 1; i < 50; i++) b[i] += a[i - 1] + x; old = now; now = next; next = old;"
        self.assertEqual(self.told(before, body, 'printf("%g\\n", ((double *)now)[x % 50]);'), [])

    def test_numbers_that_a_restart_has_from_the_checkpoint(self):
        count = "for (int i = 0; i < 500; i++) for (int j = 0; j < 500; j++) if (sin(i * j) > 0.5 && n < 50) n++;"
        for before in (f"n = 0; {count}", "n = rand() % 50;"):
            with self.subTest(before=before):
                self.assertEqual(self.told(f"{self.BEFORE} {before}", "\n#pragma mend checkpoint\n" + self.FILL + self.SWAP, self.PRINT, outside="#include <math.h>"), [])

    def test_what_a_restart_does_not_make_again(self):
        costly = "for (int i = 0; i < 500; i++) for (int j = 0; j < 500; j++) next[i % 50] += sin(j);"
        for before, remade in (("", 1), (costly, 0), ("next[0] = drand48();", 0)):
            with self.subTest(before=before):
                (text,) = self.told(f"{self.BEFORE} {before}", "\n#pragma mend checkpoint\n" + self.FILL + self.SWAP, self.PRINT, outside="#include <math.h>")
                self.assertTrue(text.startswith(f"mend_cc_overwritten(&next, 8, {remade}, "), text)


class Saved(InDirectory):
    def test_a_pointer_that_leads_to_what_is_read(self):
        self.write("turns.c", TURNS)
        self.compile("-O2", "-o", "plain", "turns.c")
        expected = self.good(self.run_ranks(1, ["./plain", "20"]))
        self.mend_cc("--poison", MPICC, "-O2", "-Wall", "-Werror", "-o", "turns", "turns.c")
        # Before these steps `next` leads to what `now` does, and to another array.
        for stop, arrays in ((12, 3), (13, 2)):
            with self.subTest(stop=stop):
                self.forget()
                self.run_ranks(1, ["./turns", "20", str(stop)], calls=1, quiet="yes")
                self.assertEqual(self.saved_bytes() // 8000, arrays)
                code, output, errors = self.run_ranks(1, ["./turns", "20"])
                self.assertEqual((code, output), (0, expected), errors)
        # Two elements less are overwritten, which as many bytes of bits have.
        code, output, errors = self.run_ranks(1, ["./turns", "20", "-1", "997"], restart=14)
        self.assertEqual((code != 0, output), (True, ""), errors)
        self.assertIn("another part is overwritten in this run", errors)


if __name__ == "__main__":
    unittest.main()
