"""Buffers that are packed by counts that go on: which of them are written before they are read, and which are only written in part."""

import unittest

from test_analysis import analysed
from test_fortran import InFortran

from mend_cc.memory import Heap

PRINT = 'printf("%d\\n", x);'
OUTSIDE = """
static void put(double *to, int *m, double value) { to[(*m)++] = value; }
static void put_some(double *to, int *m, double value) { if (value < 3) return; to[(*m)++] = value; }
static void nothing(void) {}
static int pack(double *to, int n, double value) { int m = 0; for (int i = 0; i < n; i++) to[m++] = value; return m; }
static int pack_some(double *to, int n, double value) { int m = 0; if (value < 3) return n; for (int i = 0; i < n; i++) to[m++] = value; return m; }
static unsigned char pack_few(double *to, int n, double value) { int m = 0; for (int i = 0; i < n; i++) to[m++] = value; return m + 1; }
static int most(double *to, int n, double value) { int m = 0; for (int i = 0; i < n; i++) to[m++] = value; return n > 3 ? n + 1 : m; }
static int count, limit; static void set(int value) { if (value < 3) return; limit = 50; }
"""


class Packed(unittest.TestCase):
    def registered(self, body, before="", buffer="double *to = calloc(900, 8);", outside=OUTSIDE):
        found = analysed(f"{buffer} double u[30][30]; int n = atoi(argv[1]), k = atoi(argv[2]), m; memset(u, 0, sizeof u); {before}", f"\n#pragma mend checkpoint\n{body}", PRINT, outside)
        self.assertEqual(len(found.plan.points), 1, ([why for _, _, why in found.plan.considered], found.plan.refused))
        return "to" in [item.place[0].name for item in found.plan.points[0].items if isinstance(item.place[0], Heap)]

    def each(self, bodies, registered, **more):
        for body in bodies:
            with self.subTest(body=body):
                self.assertEqual(self.registered(body, **more), registered)

    SEND = "MPI_Bcast(to, %s, MPI_DOUBLE, 0, MPI_COMM_SELF);"
    ROWS = "m = 0; for (int i = 0; i < n; i++) "
    BOTH = "m = 0; for (int i = 0; i < n; i++) for (int j = 0; j < k; j++) "

    def test_all_that_is_read_is_written_first(self):
        self.each((
            f"{self.ROWS} to[m++] = u[i][1] + step; {self.SEND % 'm'}",
            f"{self.ROWS} to[m++] = u[i][1] + step; {self.SEND % 'n'}",
            f"{self.ROWS} to[m++] = u[i][1] + step; for (int i = 0; i < n; i++) x += to[i];",
            f"{self.ROWS} {{ to[m++] = u[i][1]; to[m++] = u[i][2] + step; }} {self.SEND % '2 * n'}",
            f"{self.ROWS} {{ to[m] = u[i][1]; to[m + 1] = u[i][2] + step; m += 2; }} {self.SEND % 'm'}",
            f"m = -1; for (int i = 0; i < n; i++) to[++m] = step; {self.SEND % 'n'}",
            f"{self.ROWS} {{ to[m] = step; m = m + 1; }} {self.SEND % 'm'}",
            f"{self.BOTH} to[m++] = u[i][j] + step; {self.SEND % 'm'}",
            f"{self.BOTH} {{ to[m++] = u[i][j]; to[m++] = step; }} m = 0; for (int i = 0; i < n; i++) for (int j = 0; j < k; j++) {{ x += to[m++]; x -= to[m++]; }}",
            f"{self.BOTH} to[m++] = u[i][j] + step; for (int i = 0; i < n; i++) to[m++] = u[i][0]; {self.SEND % 'm'}",
            f"{self.BOTH} put(to, &m, u[i][j] + step); {self.SEND % 'm'}",
            f"m = pack(to, n, step); nothing(); {self.SEND % 'm'}",
            f"m = pack(to, n, step); m += pack(to + m, k, step); {self.SEND % 'n'}",
            f"m = 0; for (int i = 0; i < 30; i++) for (int j = 0; j < 30; j++) to[m++] = u[i][j] + step; {self.SEND % '900'}",
            "m = 0; for (int i = 0; i < 30; i++) for (int j = 0; j < 30; j++) to[m++] = u[i][j] + step; for (int i = 0; i < 900; i++) x += to[i];",
            f"{self.ROWS} {{ m++; for (int j = 0; j < k; j++) to[i] = step; m--; }} for (int i = 0; i < n; i++) to[m++] = step; {self.SEND % 'n'}",
        ), False)

    def test_a_part_is_not_written(self):
        self.each((
            # Too little, a gap, from too far.
            f"{self.ROWS} to[m++] = step; {self.SEND % 'n + 1'}",
            f"{self.ROWS} to[m++] = step; m++; {self.SEND % 'm'}",
            f"{self.ROWS} {{ to[m] = step; m += 2; }} {self.SEND % 'm'}",
            f"{self.ROWS} {{ to[m++] = step; m++; }} {self.SEND % '2 * n'}",
            f"m = 1; for (int i = 0; i < n; i++) to[m++] = step; {self.SEND % 'n'}",
            f"m = 0; for (int i = 0; i < n; i++) to[++m] = step; {self.SEND % 'n'}",
            f"{self.BOTH} to[m++] = step; m++; {self.SEND % 'm'}",
            f"m = 0; for (int i = 0; i < n; i++) {{ for (int j = 0; j < k; j++) to[m++] = step; m++; }} {self.SEND % 'm'}",
            f"m = 0; for (int i = 0; i < 30; i++) for (int j = 0; j < 29; j++) to[m++] = step; {self.SEND % '900'}",
            *(f"m = {how}(to, n, step); {self.SEND % 'm'}" for how in ("pack_some", "pack_few", "most")),
            f"m = pack(to, n, step) + 1; {self.SEND % 'm'}",
            f"m = pack(to + 1, n, step); {self.SEND % 'm'}",
            # Both may be negative.
            f"{self.BOTH} to[m++] = step; {self.SEND % 'n * k'}",
            # It is read first, or what it stands in isn't told.
            f"x += to[3]; {self.ROWS} to[m++] = step; {self.SEND % 'm'}",
            f"{self.ROWS} {{ x += to[m + 1]; to[m++] = step; }} {self.SEND % 'm'}",
            f"m = 0; for (int i = n; i > 0; i--) to[m++] = step; x += to[x % 20]; {self.SEND % 'm'}",
            f"{self.ROWS} to[m--] = step; {self.SEND % 'n'}",
            f"m = n; for (int i = 0; i < n; i++) to[m--] = step; {self.SEND % 'n'}",
        ), True)

    def test_counts_that_do_not_go_on_in_each_pass(self):
        self.each((
            f"{self.ROWS} if (u[i][0] < 3) to[m++] = step; {self.SEND % 'n'}",
            f"{self.ROWS} {{ if (u[i][0] < 3) continue; to[m++] = step; }} {self.SEND % 'n'}",
            f"{self.ROWS} {{ if (u[i][0] < 3) break; to[m++] = step; }} {self.SEND % 'n'}",
            f"{self.ROWS} {{ if (u[i][0] < 3) goto end; to[m++] = step; }} end: {self.SEND % 'n'}",
            f"{self.ROWS} {{ switch (i % 3) {{ case 0: m++; break; case 1: to[m++] = step; }} }} {self.SEND % 'n'}",
            f"{self.ROWS} {{ to[m] = step; u[i][0] < 3 && m++; }} {self.SEND % 'n'}",
            f"{self.ROWS} to[u[i][0] < 3 ? m++ : 0] = step; {self.SEND % 'n'}",
            f"{self.ROWS} {{ to[m++] = step; if (i == x) m = 0; }} {self.SEND % 'n'}",
            f"{self.ROWS} {{ to[m] = step; m += i; }} {self.SEND % 'n'}",
            f"int by = 1; {self.ROWS} {{ to[m] = step; m += by; by++; }} {self.SEND % 'n'}",
            f"{self.ROWS} {{ to[m] = step; m += x % 2; }} {self.SEND % 'n'}",
            f"{self.ROWS} {{ to[m] = step; m *= 2; }} {self.SEND % 'n'}",
            f"{self.ROWS} {{ to[m] = step; m = 2 * m + 1; }} {self.SEND % 'n'}",
            f"m = 0; for (int i = 0; i < n; i += 2) to[m++] = step; {self.SEND % 'n'}",
            f"m = 0; for (int i = 0; i < n; i++) {{ to[m++] = step; i++; }} {self.SEND % 'n'}",
            f"{self.ROWS} {{ to[m++] = step; n -= x % 2; }} {self.SEND % '20'}",
            f"m = 0; while (m < n) to[m++] = step; x += to[x % 20]; {self.SEND % 'n'}",
            f"{self.ROWS} for (int j = 0; j < i; j++) to[m++] = step; {self.SEND % 'n'}",
            f"{self.BOTH} put_some(to, &m, u[i][j]); {self.SEND % 'k'}",
            f"int *p = &m; {self.ROWS} {{ to[m++] = step; *p = 0; }} {self.SEND % 'n'}",
            f"int *p = u[1][1] > 3 ? &m : &x; {self.ROWS} {{ to[m++] = step; *p += 1; }} {self.SEND % 'n'}",
            f"m = 0; for (int i = 0; i < n; i++) {{ for (int j = 0; j < k; j++) if (j == x) break; else m++; to[i] = step; }} for (int i = 0; i < n; i++) to[m++] = 1; x += to[n + m]; {self.SEND % 'n'}",
        ), True)

    def test_loops_that_may_not_run(self):
        self.each((
            f"m = 0; for (int j = 0; j < k; j++) {{ m = 0; for (int i = 0; i < n; i++) to[m++] = step; }} {self.SEND % 'n'}",
            f"m = 0; for (int i = 0; i < n; i++) {{ for (int j = 0; j < k; j++) to[m++] = step; m -= k; }} {self.SEND % 'n'}",
            f"m = n; for (int i = 0; i < n; i++) m--; for (int i = 0; i < 20; i++) to[m++] = step; {self.SEND % '20'}",
            f"m = 0; for (int i = 0; i < n - k; i++) to[m++] = step; for (int i = 0; i < k; i++) to[m++] = step; {self.SEND % 'n'}",
        ), True)

    def test_small_integers_begin_again(self):
        self.each((
            "unsigned char c = 0; for (int i = 0; i < 900; i++) to[c++] = step; " + self.SEND % "900",
            "for (int i = 0; i < 900; i++) to[(unsigned char)i] = step; " + self.SEND % "900",
            "for (int i = 0; i < 900; i++) { unsigned char c = i; to[c] = step; } " + self.SEND % "900",
            "for (int i = 0; i < 900; i++) { short c = i * 1000; to[(c & 255) + i - i] = step; } " + self.SEND % "900",
        ), True)

    def test_buffers_by_other_names(self):
        other = "double *other = k > 3 ? to : calloc(900, 8);"
        self.each((f"{self.ROWS} other[m++] = step; {self.SEND % 'm'}", f"{self.ROWS} to[m++] = step; x += other[3]; {self.SEND % 'm'}", f"to = other; {self.ROWS} to[m++] = step; to = other + 1; {self.SEND % 'm'}"), True, before=other)
        # Many blocks of one place in the source.
        rows = "double *row[3]; for (int i = 0; i < 3; i++) { double *to = calloc(900, 8); row[i] = to; }"
        self.each((f"{self.ROWS} row[0][m++] = step; x += row[1][5]; row[1][5] = x;",), True, buffer=rows + "double *to;")

    def test_a_function_that_may_come_back_early(self):
        self.each((f"limit = 5; set(x); for (int i = 0; i < limit; i++) to[i] = step; {self.SEND % '50'}", f"limit = 5; set(x); count = 0; for (int i = 0; i < limit; i++) to[count++] = step; {self.SEND % '50'}"), True)


class InLoopsOfFortran(InFortran):
    PACK = "m = 0\n do j = 1, k\n do i = 1, n\n {before}\n m = m + 1\n v(m) = u(i + n * (j - 1)) + step\n {after}\n end do\n end do\n"
    UNPACK = "m = 0\n do j = 1, k\n do i = 1, n\n m = m + 1\n u(m) = u(m) + v(m)\n end do\n end do"

    def test_packed_by_a_count(self):
        declared, before = "real(8) :: u(1000), v(1000)\n integer :: n, k, m, j", "u = 1\n v = 0\n n = 10 + rank\n k = 20 + rank"
        send = "call mpi_allreduce(mpi_in_place, v, m, mpi_double_precision, mpi_sum, mpi_comm_self, ierr)\n"
        for given, between, registered in (
            ({}, send, False), ({}, "", False), ({}, "v(1) = v(m)\n", True), ({"after": "m = m + 1"}, send, True), ({"before": "if (u(i) > 3) cycle"}, send, True), ({"before": "if (u(i) > 3) exit"}, "", True),
            ({"after": "if (u(i) > 3) m = 0"}, "", True), ({}, "k = k + 1\n", True), ({"before": "if (u(i) > 3) then"} | {"after": "end if"}, "", True),
        ):
            with self.subTest(given=given, between=between):
                pack = self.PACK.format(**({"before": "", "after": ""} | given))
                self.assertEqual("v" in self.names(f"!$mend checkpoint\n{pack}{between}{self.UNPACK}", declared, before), registered)


if __name__ == "__main__":
    unittest.main()
