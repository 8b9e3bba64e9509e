"""The comparisons of two runs: of LAMMPS in the demo and in the lab, and of IMB. Timings are masked, and no line is missed."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "demo"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab"))
import melt  # noqa: E402
from compare import DATA, TEXTS, differences, equal_but_for_replays, masked  # noqa: E402

TEXT = """\
  create_atoms CPU = 0.0{a} seconds
   Step          Temp
        50   1.670298{value}
Loop time of 16.94{a} on 4 procs for 500 steps with 108000 atoms
Performance: 1274{a}.204 tau/day, 29.512 timesteps/s, 3.187 Matom-step/s
42.{a}% CPU use with 4 MPI tasks x 1 OpenMP threads
Pair    | 10.35{a}     | 10.442     | 10.494     |   1.7 | 61.63
Other   |            | 0.04{a}4     |            |       |  0.25
Nlocal:          27000 ave       27058 max       26932 min
Total wall time: 0:00:1{a}
"""


class Comparison(unittest.TestCase):
    def setUp(self):
        base = tempfile.TemporaryDirectory()
        self.addCleanup(base.cleanup)
        self.left, self.right = os.path.join(base.name, "left"), os.path.join(base.name, "right")
        for directory, a in ((self.left, 1), (self.right, 2)):
            os.mkdir(directory)
            for name in TEXTS:
                self.write(directory, name, TEXT.format(a=a, value=6))
            for name in DATA:
                self.write(directory, name, "atoms")

    def write(self, directory, name, text):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(text)

    def test_timings_are_no_difference(self):
        self.assertEqual(differences(self.left, self.right), [])

    def test_a_digit_is(self):
        self.write(self.right, "stdout", TEXT.format(a=2, value=7))
        (found,) = differences(self.left, self.right)
        self.assertIn("stdout:3:", found)

    def test_a_line_more_is(self):
        self.write(self.right, "log.lammps", TEXT.format(a=2, value=6) + "again\n")
        self.assertTrue(differences(self.left, self.right))

    def test_what_a_restart_printed_again_and_said_so_is_none(self):
        lines = TEXT.format(a=2, value=6).splitlines(keepends=True)
        # Killed after the line of step 50; gone on with from before the first timing, which came out otherwise.
        again = lines[:3] + TEXT.format(a=3, value=6).splitlines(keepends=True)
        self.write(self.right, "stdout", "".join(again))
        self.assertEqual(differences(self.left, self.right, replays=1), [])
        self.assertTrue(differences(self.left, self.right))
        self.write(self.right, "stdout", "".join(again[:5] + again[6:]))
        self.assertTrue(differences(self.left, self.right, replays=1))
        # What a program writes to a file is there once.
        self.write(self.right, "stdout", "".join(lines))
        self.write(self.right, "log.lammps", "".join(again))
        self.assertTrue(differences(self.left, self.right, replays=1))

    def test_a_byte_of_data_is(self):
        self.write(self.right, "final.dump", "atomz")
        self.assertEqual(differences(self.left, self.right), ["final.dump: differs from byte 4"])

    def test_nothing_is_never_equal_to_nothing(self):
        for directory in (self.left, self.right):
            self.write(directory, "final.dump", "")
            self.write(directory, "stdout", "")
            os.remove(os.path.join(directory, "trajectory.dump"))
        self.assertEqual(len(differences(self.left, self.right)), 4)

    def test_the_text_around_a_timing_counts(self):
        self.assertNotEqual(masked("Loop time of 1.5 on 4 procs for 500 steps"), masked("Loop time of 1.5 on 4 procs for 501 steps"))
        self.assertEqual(masked("Nlocal: 27000 ave"), "Nlocal: 27000 ave")


class Tables(unittest.TestCase):
    @staticmethod
    def said(last, skip=None, lone=False):
        """All lines to this step, but for one; then perhaps the first of the next interval."""
        steps = [step for start in range(0, last, melt.INTERVAL) for step in (start, start + melt.INTERVAL)] + [last] * lone
        return "".join(f"  {step} 1.5 -2.5 3 4e-05\n" for at, step in enumerate(steps) if at != skip)

    def same(self, undisturbed, disturbed, said=""):
        try:
            melt.compare(self, undisturbed, disturbed, said)
        except AssertionError:
            return False
        return True

    def test_one_may_have_gone_on_for_longer(self):
        self.assertTrue(self.same(self.said(400), self.said(750)))
        self.assertTrue(self.same(self.said(400), self.said(700, lone=True)))

    def test_what_a_restart_printed_again_and_said_so_is_there_once(self):
        lines = self.said(400).splitlines(keepends=True)
        said = "mend: rank 0: its standard output is not what it was before the restart, from byte 7 on"
        # Killed in the interval from 150 on, or two later; gone on with from before its first line.
        for killed in (7, 11):
            again = "".join(lines[:killed] + lines[6:])
            self.assertTrue(self.same(self.said(400), again, said))
            self.assertFalse(self.same(self.said(400), again))
            self.assertFalse(self.same(self.said(400), "".join(lines[:killed] + lines[6:9] + lines[6:]), said))

    def test_no_line_is_missed(self):
        for wrong in (self.said(400, skip=7), self.said(400, skip=15), self.said(350), self.said(350, lone=True), self.said(750, skip=3)):
            self.assertFalse(self.same(self.said(400), wrong), wrong)


class Rows(unittest.TestCase):
    def test_replays_are_allowed_as_often_as_they_were_told(self):
        rows = list("ABCABDE")
        self.assertTrue(equal_but_for_replays(rows, rows, 0))
        self.assertTrue(equal_but_for_replays(rows, list("ABCA" "BCABDE"), 1))
        self.assertTrue(equal_but_for_replays(rows, list("ABC" "BCABD" "ABDE"), 2))
        self.assertFalse(equal_but_for_replays(rows, list("ABC" "BCABD" "ABDE"), 1))
        whole = ["one", "two", "three"]
        self.assertTrue(equal_but_for_replays(whole, ["one", "tw", "one", "two", "three"], 1))
        self.assertFalse(equal_but_for_replays(whole, ["one", "tw", "three"], 1))
        self.assertFalse(equal_but_for_replays(whole, ["one", "two", "th"], 1))
        for wrong in ("ABCABD", "ABCADE", "ABCABDEF", "ABDE", "ABCABXE"):
            self.assertFalse(equal_but_for_replays(rows, list(wrong), 9), wrong)


if __name__ == "__main__":
    unittest.main()
