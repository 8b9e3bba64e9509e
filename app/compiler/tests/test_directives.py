"""mend-cc's directives, and its checking mode."""

import unittest

from building import MPICC, InDirectory, ring

SPREAD = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = atoi(argv[1]), all = 100;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int start = all * rank / size, count = all * (rank + 1) / size - start;
    double *x = malloc(count * sizeof *x), sum = 0, total;
#pragma mend shape(x) mend_app_block(all, start, count, 0, 0)
    for (int i = 0; i < count; i++)
        x[i] = start + i;
    for (int step = 0; step < steps; step++) {
        if (argc > 2 && step == atoi(argv[2]))
            abort();
        for (int i = 0; i < count; i++)
            x[i] = x[i] / 2 + step;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int i = 0; i < count; i++)
        sum += x[i] * (start + i);
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("spread digest %.10g\\n", total);
    MPI_Finalize();
    return 0;
}
"""
CHECKPOINT = "\n#pragma mend checkpoint\n"


class Directives(InDirectory):
    def test_a_directive_decides_where(self):
        self.write("ring.c", ring(start=CHECKPOINT))
        report = self.mend_cc("--check", "--report", MPICC, "ring.c", "-o", "ring")
        self.assertNotIn("isn't shown", report)
        code, output, errors = self.run_ranks(3, ["./ring", "20"], calls=5)
        self.assertEqual((code, "refused" in errors), (0, False), output + errors)
        self.assertEqual(self.checkpoints(), [15, 20])

    def test_the_checking_mode_refuses_while_a_message_is_in_transit(self):
        self.write("ring.c", ring(between=CHECKPOINT))
        report = self.mend_cc("--check", "--report", MPICC, "ring.c", "-o", "ring")
        self.assertIn("isn't shown", report)
        code, output, errors = self.run_ranks(3, ["./ring", "20"], calls=5)
        self.assertEqual(code, 0, output + errors)
        self.assertIn("refused at safe point 1: 3 messages are in transit", errors)
        self.assertEqual(self.checkpoints(), [])

    def test_the_checking_mode_counts_requests_of_one_handle(self):
        # MPICH gives sends that are done at once one handle.
        receives = "MPI_Recv(&in, 1, MPI_INT, (rank + size - 1) % size, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);" * 2
        sends = "".join(f"MPI_Isend(&step, 1, MPI_INT, (rank + 1) % size, 1, MPI_COMM_WORLD, &r[{one}]);" for one in (0, 1))
        for ends, afterwards, saved in (("MPI_Wait(&r[0], MPI_STATUS_IGNORE);", "MPI_Wait(&r[1], MPI_STATUS_IGNORE);", []), ("MPI_Request_free(&r[0]); MPI_Wait(&r[1], MPI_STATUS_IGNORE);", "", [15, 20])):
            with self.subTest(ends=ends):
                self.forget()
                self.write("ring.c", ring(start=f"MPI_Request r[2]; {sends} {receives} {ends} {CHECKPOINT} {afterwards}"))
                self.mend_cc("--check", MPICC, "ring.c", "-o", "ring")
                code, output, errors = self.run_ranks(3, ["./ring", "20"], calls=5)
                self.assertEqual((code, "3 requests are open" in errors), (0, not saved), output + errors)
                self.assertEqual(self.checkpoints(), saved)

    def test_exclude(self):
        self.write("ring.c", ring(start="\n#pragma mend exclude(seen)\n"))
        report = self.mend_cc("--report", MPICC, "ring.c", "-o", "ring")
        self.assertIn("seen is excluded by a directive", report)
        self.assertNotIn("    seen (", report)

    def test_exclude_an_allocated_array(self):
        text = ring(start="\n#pragma mend exclude(seen)\n").replace(", seen = 0", ", *seen = calloc(1, sizeof *seen)").replace("seen += in", "*seen += in").replace("\\n\", seen)", "\\n\", *seen)")
        self.write("ring.c", text)
        report = self.mend_cc("--report", MPICC, "ring.c", "-o", "ring")
        self.assertRegex(report, r"Safe point 1.*\n(.*\n)*.*seen is excluded by a directive")
        self.assertNotIn("    seen (", report)

    def test_exclude_leaves_out_no_other_array_of_that_name(self):
        text = ring(start="\n#pragma mend exclude(u)\n").replace(", seen = 0", ", seen = 0, *u = calloc(9, sizeof *u);\n    struct { double *u; } grid = {0}").replace("IN_BETWEEN", "")
        text = text.replace("    MPI_Init(", "    grid.u = calloc(9, sizeof *grid.u);\n    MPI_Init(").replace("seen += in;", "seen += in; u[1] += in; grid.u[1] += in;").replace("seen);", "seen + u[1] + (int)grid.u[1]);")
        self.write("ring.c", text)
        self.assertIn("u is excluded by a directive", self.mend_cc(MPICC, "ring.c", "-o", "ring"))
        report = self.mend_cc("--report", MPICC, "ring.c", "-o", "ring")
        self.assertRegex(report, r"\n    u \(ring.c:\d+; as large as allocated")

    def test_directives_that_name_nothing(self):
        for directive, message in (("exclude(seeen)", "seeen"), ("exclude(seen, stepp)", "stepp"), ("shape(inn) mend_app_whole(1)", "inn")):
            self.write("ring.c", ring(start=f"\n#pragma mend {directive}\n"))
            self.assertIn(f"ring.c:13: the program has no variable {message}", self.mend_cc(MPICC, "ring.c", "-o", "ring", fails=True))
        for directive, message in (("exclude seen", "`exclude(NAME, ...)` is expected"), ("exclude()", "`exclude(NAME, ...)` is expected"), ("shape(in)", "`shape(NAME) DIMENSION, ...` is expected")):
            self.write("ring.c", ring(start=f"\n#pragma mend {directive}\n"))
            self.assertIn(f"ring.c:13: {message}", self.mend_cc(MPICC, "ring.c", "-o", "ring", fails=True))
        self.write("ring.c", ring(start="\n#pragma mend shape(argv) mend_app_whole(1)\n"))
        self.assertIn("ring.c:13: shape(argv) does nothing", self.mend_cc(MPICC, "ring.c", "-o", "ring"))

    def test_a_shape_restarts_on_other_ranks(self):
        self.write("spread.c", SPREAD)
        self.spread_restarts()

    def spread_restarts(self):
        self.mend_cc(MPICC, "-O2", "spread.c", "-o", "spread")
        expected = self.good(self.run_ranks(1, ["./spread", "30"], restart="none"))
        self.assertNotEqual(self.run_ranks(2, ["./spread", "30", "20"], calls=7)[0], 0)
        code, output, errors = self.run_ranks(3, ["./spread", "30"])
        self.assertEqual((code, output), (0, expected), errors)
        self.assertIn("of 2 ranks is restored", errors)

    def test_a_shape_of_structures(self):
        # They have no pointers: bytes, all of them.
        text = SPREAD.replace("double *x", "struct cell { int number; double value; } *x").replace("*x), sum", "*x); double sum").replace("x[i]", "x[i].value")
        self.write("spread.c", text.replace("x[i].value = start + i;", "x[i] = (struct cell){i, start + i};"))
        self.spread_restarts()

    def test_a_shape_of_what_cannot_be_spread_is_refused(self):
        self.write("spread.c", SPREAD.replace("double *x", "struct cell { double *to, value; } *x").replace("*x), sum", "*x); double sum")
                   .replace("x[i] = start + i;", "x[i] = (struct cell){&sum, start + i};").replace("x[i]", "x[i].value").replace("x[i].value = (struct", "x[i] = (struct")
                   .replace("x[i].value * (start", "*x[i].to * 0 + x[i].value * (start"))
        self.assertRegex(self.mend_cc(MPICC, "spread.c", "-o", "spread"), r"spread.c:\d+: x can't be spread over ranks: .*pointers")

    def refused_shape(self, text, message):
        self.write("spread.c", text)
        self.mend_cc(MPICC, "-O2", "spread.c", "-o", "spread")
        code, output, errors = self.run_ranks(2, ["./spread", "30"], calls=7)
        self.assertNotEqual(code, 0, output + errors)
        self.assertRegex(errors, message)
        self.assertEqual(self.checkpoints(), [])

    def test_a_shape_that_is_larger_than_its_array(self):
        self.refused_shape(SPREAD.replace("count, 0, 0", "count, 1, 1"), r"x: its shape has 416 bytes, and x has 400")
        fixed = SPREAD.replace("double *x = malloc(count * sizeof *x), sum", "static double x[100]; double sum")
        self.refused_shape(fixed.replace("count, 0, 0", "count, 1, 50"), r"x: its shape has 808 bytes, and x has 800")

    def test_a_shape_that_the_library_refuses_ends_the_program(self):
        self.refused_shape(SPREAD.replace("start, count, 0", "start + 90, count, 0"), r"its distribution makes no sense[^\0]*mend-cc: x can't be registered or restored")


if __name__ == "__main__":
    unittest.main()
