"""Several programs in one job (`mend run … : …`): one world, MPI_APPNUM, saved, moved and healed like any job."""

import os
import re
import unittest

from cases import InDirectory
from cluster import Lab, Machine, compile_mpi, intel_environment


class Programs(InDirectory):
    """A model, and a filter that corrects it: each a program of its own."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name in ("coupled_model", "coupled_filter"):
            setattr(cls, name, compile_mpi(f"{name}.c", os.path.join(cls.work, name)))

    def pair(self, models, filters, *more):
        return ["-n", str(models), *more, self.coupled_model, "-u", "go", ":", "-n", str(filters), self.coupled_filter]


class OnOneMachine(Programs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.machine = cls.enterClassContext(Machine())

    def mend(self, *arguments):
        return self.machine.mend("run", *arguments, cwd=self.directory)

    def test_each_program_has_its_ranks_environment_and_directory(self):
        os.mkdir(os.path.join(self.directory, "sub"))
        show = 'echo "$0 $MEND_RANK $MEND_SIZE ${A:-none} ${B:-none} ${PWD##*/} $*"'
        said = self.mend(
            "-n", "1", "-genv", "B", "b", "-env", "A", "a", "sh", "-c", show, "one", "x",
            ":", "-np", "2", "-wdir", "sub", "-env", "B", "c", "sh", "-c", show, "two",
            ":", "sh", "-c", show, "three", "-n", "9",
        )  # fmt: skip
        self.assertEqual(said.returncode, 0, said.stderr)
        here = os.path.basename(self.directory)
        expected = [f"one 0 4 a b {here} x", "two 1 4 none c sub ", "two 2 4 none c sub ", f"three 3 4 none b {here} -n 9"]
        self.assertEqual(sorted(said.stdout.splitlines()), sorted(expected))
        self.assertIn("4 rank(s)", said.stderr)

    def test_the_highest_exit_code_of_all_programs_is_that_of_the_job(self):
        said = self.mend("-n", "1", "true", ":", "-n", "1", "sh", "-c", "exit 7")
        self.assertEqual(said.returncode, 7, said.stderr)
        self.assertIn("rank 1", said.stderr)

    def test_what_is_not_understood_is_told_before_anything_starts(self):
        for given, told in (
            (["true", ":"], "missing"),
            (["true", ":", "--hosts", "a", "true"], "--hosts a true` is not understood"),
            (["true", ":", "-n", "0", "true"], "0"),
            (["true", ":", "no-such-program"], "no-such-program"),
        ):
            said = self.mend(*given)
            self.assertNotEqual(said.returncode, 0)
            self.assertIn(told, said.stderr)

    def test_the_pair_gives_the_same_for_any_number_of_filters(self):
        open(os.path.join(self.directory, "go"), "w", encoding="utf-8").close()
        results = set()
        for filters in (1, 2, 3):
            said = self.mend(*self.pair(3, filters))
            self.assertEqual(said.returncode, 0, said.stderr)
            results.add(tuple(sorted(said.stdout.splitlines())))
        self.assertEqual(len(results), 1)
        self.assertIn("filter ends, strangers=0", results.pop())


class OnNodes(Programs):
    """Saved, moved, healed and restarted."""

    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(3))
        self.lab.set("MEND_ON_FAILURE", None)

    def start(self):
        job = self.lab.start(self.directory, "run", *self.pair(2, 2, "--hosts", "node1,node2", "--spares", "node3"))
        return job, self.lab.running(job)

    def same(self, job, node="node3"):
        job.let_go()
        job.finish()
        plain = self.lab.undisturbed(*self.pair(2, 2, "--hosts", node))
        self.assertEqual(sorted(job.stdout().splitlines()), sorted(plain.splitlines()))

    def test_a_rank_of_each_program_moves(self):
        job, name = self.start()
        self.lab.verb("migrate", name, "0,3", "--to", "node3")
        self.assertEqual([self.lab.places(name)[rank] for rank in (0, 3)], ["node3", "node3"])
        self.same(job)

    def test_a_node_with_ranks_of_both_is_lost(self):
        job, name = self.start()
        self.lab.verb("migrate", name, "1,2", "--to", "node3")
        self.lab.verb("checkpoint", name)
        self.lab.kill_daemon("node3")
        job.wait_for(lambda: job.stderr().count("restored and run") == 1, "it has gone on")
        self.assertNotIn("node3", self.lab.places(name))
        self.same(job, "node1")

    def test_wrappers_have_cleared_what_is_preloaded(self):
        cleared = ["env", "-u", "LD_PRELOAD"]
        pair = ["-n", "2", "--hosts", "node1,node2", *cleared, self.coupled_model, "-u", "go", ":", "-n", "2", *cleared, self.coupled_filter]
        job = self.lab.start(self.directory, "run", *pair)
        name = self.lab.running(job)
        agents = lambda: re.findall(r"its agent answers \(.*/coupled_", self.lab.mend("log", name).stdout)
        job.wait_for(lambda: len(agents()) == 4, "the programs run, and no wrapper")
        self.lab.verb("checkpoint", name)
        self.lab.verb("migrate", name, "0", "--to", "node2")
        self.same(job)

    def test_it_ends_and_is_restarted_elsewhere(self):
        job, name = self.start()
        self.lab.verb("checkpoint", name)
        self.lab.verb("kill", name)
        job.finish(137)
        again = self.lab.start(self.directory, "restart", name, "--hosts", "node3")
        self.lab.running(again)
        self.same(again)


class OfIntel(OnNodes):
    """The same programs on Intel MPI, which has MPICH's ABI."""

    def setUp(self):
        super().setUp()
        self.lab.environment |= intel_environment()


if __name__ == "__main__":
    unittest.main()
