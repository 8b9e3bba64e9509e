"""Messages that are begun at one place and completed at another: persistent requests, and what a restart leaves out of an exchange."""

import unittest

from building import InDirectory
from test_analysis import FRAME, analysed

RING = "int next = (rank + 1) % size, before = (rank + size - 1) % size;"
INIT = "MPI_Request r[2]; MPI_Recv_init(IN, 1, MPI_DOUBLE, before, 0, MPI_COMM_WORLD, &r[0]); MPI_Send_init(OUT, 1, MPI_DOUBLE, next, 0, MPI_COMM_WORLD, &r[1]);"
EXCHANGE = "MPI_Startall(2, r); MPI_Waitall(2, r, MPI_STATUSES_IGNORE);"
PRINT = 'printf("digest %.17g\\n", sum);'


def prepared(receive="&in", send="&out"):
    return f"double in = 0, out = 0, sum = 0, a[50] = {{0}}, b[50] = {{0}}; {RING} {INIT.replace('IN', receive).replace('OUT', send)}"


class Persistent(unittest.TestCase):
    def names(self, before, body):
        found = analysed(before, body, PRINT)
        self.assertEqual(len(found.plan.points), 1, (found.plan.considered, found.plan.refused))
        return {item.place[0].name for item in found.plan.points[0].items} - {"step", "x"}

    def test_what_is_received_is_written_when_the_request_is_completed(self):
        self.assertEqual(self.names(prepared(), f"sum = 0.5 * sum + in; out = sum + rank; {EXCHANGE}"), {"in", "sum"})
        self.assertEqual(self.names(prepared(receive="&a[3]"), f"sum = 0.5 * sum + a[3]; out = sum + rank; {EXCHANGE}"), {"a", "sum"})

    def test_what_is_sent_is_read_when_the_request_is_started(self):
        # What is received may come from MPI_PROC_NULL, and is as before then.
        self.assertEqual(self.names(prepared() + "out = rank;", f"{EXCHANGE} sum = 0.5 * sum + in; out = sum + rank;"), {"in", "out", "sum"})
        self.assertEqual(self.names(prepared(send="&b[3]") + "b[3] = rank;", f"{EXCHANGE} sum = 0.5 * sum + in; b[3] = sum + rank;"), {"in", "b", "sum"})

    def test_what_comes_decides(self):
        found = analysed(prepared() + "in = 0;", f"{EXCHANGE} if (in) MPI_Send(&x, 1, MPI_INT, next, 1, MPI_COMM_WORLD);")
        self.assertEqual(found.plan.points, [])


WORK = "for (int k = 0; k < 50; k++) for (int i = 1; i <= 100; i++) u[i] = sin(i + rank + k) * exp(-i) * cos(u[i]);"
OUTSIDE = "#include <math.h>\nstatic double u[102]; static MPI_Request r[2];\n"
# What begins an exchange, as a function, and what ends it in main.
HALVES = (
    ("", "MPI_Send(&u[100], 1, MPI_DOUBLE, next, 0, MPI_COMM_WORLD);", "MPI_Recv(&u[0], 1, MPI_DOUBLE, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);"),
    ("", "MPI_Irecv(&u[0], 1, MPI_DOUBLE, before, 0, MPI_COMM_WORLD, &r[0]); MPI_Isend(&u[100], 1, MPI_DOUBLE, next, 0, MPI_COMM_WORLD, &r[1]);", "MPI_Waitall(2, r, MPI_STATUSES_IGNORE);"),
    (INIT.replace("MPI_Request r[2];", "").replace("IN", "&u[0]").replace("OUT", "&u[100]"), "MPI_Startall(2, r);", "MPI_Waitall(2, r, MPI_STATUSES_IGNORE);"),
)


def halves(prepare, begin, end, together):
    """A program that does half of an exchange in a function that takes long, or all of it there."""
    function = f"static void initialise(int rank, int before, int next) {{ {WORK} {begin} {end if together else ''} }}"
    body = "if (argc > 2 && step == atoi(argv[2])) abort(); for (int i = 1; i <= 100; i++) u[i] = 0.5 * (u[i - 1] + u[i]) + x; MPI_Barrier(MPI_COMM_WORLD);"
    after = 'double sum = 0; for (int i = 0; i < 102; i++) sum += (i + 1) * u[i]; printf("digest %d %.17g\\n", rank, sum);'
    return f"{RING} {prepare} initialise(rank, before, next); {'' if together else end}", body, after, OUTSIDE + function


class LeftOut(InDirectory):
    def test_half_of_an_exchange_is_not_left_out(self):
        for prepare, begin, end in HALVES:
            for together in (False, True):
                with self.subTest(begin=begin, together=together):
                    *parts, outside = halves(prepare, begin, end, together)
                    found = analysed(*parts, outside=outside)
                    self.assertEqual([point.function for point in found.plan.points][1:], ["main"])
                    self.assertEqual({stmt.kind for stmt in found.plan.skips}, {"expr"} if together else set())

    def test_a_request_that_the_loop_waits_for(self):
        post = "static void post(int rank, int before, int next) { %s %s }" % (WORK, HALVES[1][1])
        body = 'MPI_Waitall(2, r, MPI_STATUSES_IGNORE);\n#pragma mend checkpoint\nfor (int i = 1; i <= 100; i++) u[i] = 0.5 * (u[i - 1] + u[i]) + x; ' + HALVES[1][1]
        found = analysed(f"{RING} post(rank, before, next);", body, 'MPI_Waitall(2, r, MPI_STATUSES_IGNORE); printf("%g\\n", u[1]);', outside=OUTSIDE + post)
        self.assertEqual((len(found.plan.points), found.plan.skips), (1, {}), found.plan.refused)

    def test_it_restarts(self):
        for number, (prepare, begin, end) in enumerate(HALVES):
            with self.subTest(begin=begin):
                before, body, after, outside = halves(prepare, begin, end, False)
                name = f"half{number}"
                self.write(f"{name}.c", FRAME % (outside, before, body, after))
                self.forget()
                self.mend_cc("--poison", "mpicc", "-o", name, f"{name}.c", "-lm")
                expected = self.good(self.run_ranks(2, [f"./{name}", "20"], restart="none"))
                self.assertNotEqual(self.run_ranks(2, [f"./{name}", "20", "14"], calls=4)[0], 0)
                code, output, errors = self.run_ranks(2, [f"./{name}", "20"])
                self.assertEqual((code, sorted(output.splitlines())), (0, sorted(expected.splitlines())), errors)
                self.assertIn("is restored", errors)

    def test_a_persistent_exchange_restarts(self):
        body = f"if (argc > 2 && step == atoi(argv[2])) abort(); sum = 0.5 * sum + in; out = sum + rank; {EXCHANGE}"
        self.write("ring.c", FRAME % ("", prepared(), body, PRINT))
        self.mend_cc("--poison", "mpicc", "-o", "ring", "ring.c")
        expected = self.good(self.run_ranks(2, ["./ring", "20"], restart="none"))
        self.assertNotEqual(self.run_ranks(2, ["./ring", "20", "14"], calls=4)[0], 0)
        code, output, errors = self.run_ranks(2, ["./ring", "20"])
        self.assertEqual((code, sorted(output.splitlines())), (0, sorted(expected.splitlines())), errors)
        self.assertIn("is restored", errors)


if __name__ == "__main__":
    unittest.main()
