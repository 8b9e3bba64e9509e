"""Programs with the calls added: killed and restarted they end as if undisturbed, with all that isn't registered poisoned; nothing is registered in vain."""

import os
import random
import re
import shutil
import unittest

import h5py
from building import MPICC, PROGRAMS, InDirectory

# Sources, steps, step of the kill, calls between checkpoints, the last checkpoint before the kill, bytes of a rank's list by hand.
ROWS = 64 // 2
CASES = {
    "plate": (["plate.c", "plate_step.c"], 60, 45, 7, 42, 2 * (ROWS + 2) * 48 * 8 + 2 * 16 + 4 + 8 + 8),
    "swarm": (["swarm.c"], 60, 45, 7, 42, None),
    "solver": (["solver.c"], 12, 7, 3, 30, 3 * 202 * 8 + 3 * 8 + 3 * 4),
    "mixed": (["mixed.c"], 60, 45, 7, 42, 5 * 7 * 8 + 4 * (3 * 8 + 16 + 4) + 10 * 4 + 4 + 8 + 16 + 4),
    "stencil": (["stencil.c"], 80, 70, 9, 63, 26 * 26 * 8 + 16 * 8 + 8 + 4),
    # Both copies of a field, and the packed faces: what one call allocates is saved together.
    "halo": (["halo.c"], 40, 33, 7, 28, 4 * 14 * 12 * 10 * 8 + 2 * 2 * 2 * (10 * 8 + 12 * 8 + 12 * 10) * 8 + 4 * 16 + 3 * 8 + 4),
    "phases": (["phases.c"], 60, 45, 7, 203, 2 * 100 * 8 + 3 * 8 + 4),
}


SEED = int(os.environ.get("MEND_TEST_SEED", "1"))


class Restart(InDirectory):
    def setUp(self):
        super().setUp()
        for name in os.listdir(PROGRAMS):
            shutil.copy(os.path.join(PROGRAMS, name), self.directory)

    def undisturbed(self, name):
        sources, steps, *_ = CASES[name]
        self.compile("-O2", "-o", f"{name}.plain", *sources, "-lm")
        output = self.good(self.run_ranks(2, [f"./{name}.plain", str(steps)]))
        return output, self.logs()

    def logs(self):
        return {entry: self.read(entry) for entry in os.listdir(self.directory) if entry.endswith(".log")}

    def restarted(self, name, needed=True):
        """What the run that goes on says, and how it ended. `needed`: there must be a checkpoint."""
        _, steps, kill, calls, last, _ = CASES[name]
        self.forget()
        code, output, errors = self.run_ranks(2, [f"./{name}", str(steps), str(kill)], calls=calls)
        self.assertNotEqual(code, 0, output)
        if needed:
            self.assertEqual(self.checkpoints()[-1:], [last], errors)
        return self.run_ranks(2, [f"./{name}", str(steps)])

    def digest(self, output):
        return [line for line in output.splitlines() if "digest" in line]

    def built(self, name, *options):
        return self.mend_cc(*options, "--report", MPICC, "-O2", "-Wall", "-Werror", "-o", name, *CASES[name][0], "-lm")

    def saved_bytes(self, name):
        number = self.checkpoints()[-1]
        with h5py.File(self.path("checkpoints", f"checkpoint-{number:06}", "rank-00000.h5")) as file:
            found = sum(item.size * item.dtype.itemsize for item in file["MemBlocks"].values())
        self.assertGreater(found, 0, name)
        return found

    def goes_on(self, name):
        expected, logs = self.undisturbed(name)
        report = self.built(name, "--poison")
        self.assertNotIn("Refused", report)
        code, output, errors = self.restarted(name)
        self.assertEqual(code, 0, output + errors)
        self.assertIn("is restored", errors)
        self.assertEqual(self.digest(output), self.digest(expected))
        self.assertEqual(len(self.digest(output)), 1)
        self.assertEqual(self.logs(), logs)
        by_hand = CASES[name][5]
        if by_hand:
            self.assertLessEqual(self.saved_bytes(name), 1.1 * by_hand)
        return report, output

    def test_two_files_swapped_pointers_and_a_log(self):
        self.goes_on("plate")

    def test_a_list_that_grows_and_shrinks(self):
        report, _ = self.goes_on("swarm")
        self.assertNotIn(" out (", report)

    def test_rows_structures_and_a_pointer_that_moves(self):
        self.goes_on("mixed")

    def test_persistent_requests_in_a_structure(self):
        self.goes_on("halo")

    def test_state_of_the_caller_by_pointers(self):
        self.goes_on("stencil")

    def test_a_place_in_a_function(self):
        report, _ = self.goes_on("solver")
        self.assertIn("main/solve loop 2", report)
        self.assertNotRegex(report, r"\n    q \(")

    def test_a_restart_leaves_out_earlier_phases(self):
        report, output = self.goes_on("phases")
        self.assertIn("Left out in a restart", report)
        self.assertRegex(report, r"Left out in a restart:(\n  .*)*phases.c:19 ")
        # What the saved run had printed.
        self.assertNotIn("first phase", output)

    def test_each_registered_variable_counts(self):
        expected = {}
        # `make conformance` takes all of them; otherwise two, another two with each seed.
        names = os.environ.get("MEND_CC_EACH", "").split()
        few = not names
        for name in names or ["solver"]:
            expected[name] = self.digest(self.undisturbed(name)[0]), self.logs()
            report = self.built(name)
            last = re.findall(r"\nSafe point \d+.*?(?=\nSafe point|\nLeft out|\nCouldn|\Z)", report, re.S)[-1]
            registered = re.findall(r"\n    (\S.*?) \(\S+:\d+; ", last)
            self.assertGreater(len(registered), 3, report)
            chosen = list(dict.fromkeys(registered))
            for variable in random.Random(SEED).sample(chosen, 2) if few else chosen:
                with self.subTest(program=name, variable=variable):
                    self.built(name, "--drop", variable)
                    code, output, _ = self.restarted(name, False)
                    # Without what a pointer leads to no checkpoint is taken at all.
                    same = self.checkpoints() and code == 0 and self.digest(output) == expected[name][0] and self.logs() == expected[name][1]
                    self.assertFalse(same, f"without {variable} nothing changes")


if __name__ == "__main__":
    unittest.main()
