"""Programs after NPB: each verifies its result, and its last line is the same undisturbed, killed and restarted on as many ranks and on others, and with a rank that moved. Where sums over ranks
are taken up, as in CG, results on other numbers of ranks are the same within a tolerance."""

import re
import shutil
import unittest

from programs import InDirectory, program, run

STEPS = 12
# Relative to the value (README.md, Limits).
TOLERANCE = 1e-12


class AfterNpb(InDirectory):
    def last(self, name, outcome):
        line = self.line(self.good(outcome), f"{name} ")
        self.assertTrue(line.endswith(" verified"), line)
        return line

    def disturbed(self, name, size):
        command = [program(name), str(size), str(STEPS)]
        expected = self.last(name, run(1, command, self.directory))
        code, output = run(3, [*command, "-k", "9"], self.directory, calls=4)
        self.assertNotEqual(code, 0, output)
        self.assertEqual(self.checkpoints(), [4, 8], output)
        shutil.copytree(self.path("checkpoints"), self.path("kept"))
        for ranks in (3, 2):
            with self.subTest(name, ranks=ranks):
                outcome = run(ranks, command, self.directory, calls=4)
                self.assertIn("checkpoint 8 of 3 ranks is restored", outcome[1])
                self.assertEqual(self.last(name, outcome), expected)
                shutil.rmtree(self.path("checkpoints"))
                shutil.copytree(self.path("kept"), self.path("checkpoints"))
        with self.subTest(name, moved=1):
            outcome = run(2, [*command, "-m", "3", "1", "", "-p", "60000"], self.directory, restart="none", watch_seconds=0.05)
            self.assertIn("moved: rank 1;", outcome[1])
            self.assertEqual(self.last(name, outcome), expected)

    def test_ft_fourier_transforms_with_transposes(self):
        self.disturbed("ft", 16)

    def test_mg_v_cycles(self):
        self.disturbed("mg", 15)

    def test_lu_wavefronts(self):
        self.disturbed("lu", 10)

    def test_bt_block_tridiagonal_lines(self):
        self.disturbed("bt", 10)

    def test_sp_pentadiagonal_lines(self):
        self.disturbed("sp", 10)

    def test_cg_takes_up_sums_over_ranks(self):
        def values(outcome):
            found = re.match(r"cg x\.x=(\S+) r\.r=(\S+) steps=12$", self.line(self.good(outcome), "cg "))
            return [float(value) for value in found.groups()]

        command = [program("cg"), "20000", str(STEPS)]
        undisturbed = values(run(3, command, self.directory))
        code, output = run(3, [*command, "-k", "9"], self.directory, calls=4)
        self.assertNotEqual(code, 0, output)
        outcome = run(2, command, self.directory)
        self.assertIn("checkpoint 8 of 3 ranks is restored", outcome[1])
        # Another order of sums has other last digits: that is what the tolerance is for.
        self.assertNotEqual(values(outcome), undisturbed)
        for found, expected in zip(values(outcome), undisturbed):
            self.assertLessEqual(abs(found - expected), TOLERANCE * expected)


if __name__ == "__main__":
    unittest.main()
