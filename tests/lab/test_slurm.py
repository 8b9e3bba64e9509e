"""Jobs in allocations of a real Slurm: no host list, spare nodes, drained nodes, a time that is up, scripts that are queued again."""

import os
import re
import unittest

from cases import InDirectory
from cluster import MEND, Failed, compile_mpi
from slurm_cluster import SlurmLab, needed_by_tests

# Stays in its middle until there is a file `go`.
PROGRAM = "./iters -i 120 -w 20 -p 2000 -u go"


class SlurmTest(InDirectory):
    @classmethod
    def setUpClass(cls):
        needed_by_tests()
        super().setUpClass()
        cls.program = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))
        cls.lab = cls.enterClassContext(SlurmLab(3))
        cls.lab.set("MEND_ON_FAILURE", None)
        cls.lab.set("MEND_BATCH_POLL_S", "1")
        cls.expected = {}

    def setUp(self):
        super().setUp()
        os.symlink(self.program, os.path.join(self.directory, "iters"))
        self.batch = None

    def tearDown(self):
        if self.batch:
            self.lab.on("head", "scancel", "--signal=KILL", "--full", str(self.batch))
            self.lab.on("head", "scancel", str(self.batch))
            self.lab.wait_for(lambda: set(self.lab.states().values()) <= {"idle"}, "all nodes are idle again")
        self.lab.set("MEND_REQUEUE", None)

    def submit(self, script, *options):
        self.batch = self.lab.submit(self.directory, script, "-N3", "--ntasks-per-node=2", "--no-kill", *options)
        return self.batch

    def out(self):
        path = os.path.join(self.directory, "out")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def said(self, what, count=1):
        try:
            self.lab.wait_for(lambda: len(re.findall(what, self.out())) >= count, f"`{what}` in the batch job's output")
        except Failed as failure:
            raise Failed(f"{failure}: {self.out()}") from None

    def let_go(self):
        with open(os.path.join(self.directory, "go"), "w", encoding="utf-8"):
            pass

    def places(self):
        """The host of each rank of the job that runs, once all run."""
        found = []

        def look():
            jobs = self.lab.verb("ps")
            ranks = jobs[0].get("status", {}).get("ranks", []) if jobs else []
            found[:] = [rank["host"] for rank in ranks]
            return ranks and all(rank["state"] == "running" for rank in ranks)

        self.lab.wait_for(look, f"all ranks run: {self.out()}")
        return found

    def saved(self):
        self.places()
        return self.lab.verb("checkpoint")["number"]

    def digest(self, ranks):
        """What the program prints last on so many ranks."""
        if ranks not in self.expected:
            alone = self.lab.mend("run", "--quiet", "-n", str(ranks), self.program, *PROGRAM.split()[1:-2])
            self.assertEqual(alone.returncode, 0, alone.stderr)
            self.expected[ranks] = alone.stdout.strip().splitlines()[-1]
        return self.expected[ranks]

    def completed(self, ranks):
        self.lab.wait_state(self.batch, "COMPLETED")
        self.assertIn(self.digest(ranks), self.out())

    def test_a_job_takes_the_nodes_of_its_allocation_and_leaves_one_that_is_drained(self):
        self.submit(f"exec {MEND} run -n 4 {PROGRAM}")
        self.assertEqual(self.places(), ["node1", "node1", "node2", "node2"])
        self.lab.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan is loud")
        try:
            self.lab.wait_for(lambda: self.places() == ["node1", "node1", "node3", "node3"], "the ranks leave node2")
            self.said("node2 is drained by the batch system: a fan is loud")
        finally:
            self.lab.slurm("scontrol", "update", "nodename=node2", "state=resume")
        self.said("node2 is not drained any more")
        self.let_go()
        self.completed(4)
        log = self.lab.mend("log").stdout
        self.assertRegex(log, "the batch system drains the node")

    def test_a_time_that_is_up_ends_the_job_at_a_checkpoint_and_the_same_script_goes_on(self):
        self.lab.set("MEND_REQUEUE", "always")
        self.submit(f"echo run ${{SLURM_RESTART_COUNT:-0}}\n{MEND} run -n 4 --tiers memory {PROGRAM}\necho code $?")
        self.places()
        # As --signal=TERM@SECONDS has it sent.
        self.lab.slurm("scancel", "--signal=TERM", str(self.batch))
        self.said("it was stopped at checkpoint 1")
        self.said("Slurm queues the batch job")
        self.said("is not finished: it goes on from its last checkpoint")
        self.let_go()
        self.said("^code 0$|\ncode 0\n")
        self.completed(4)
        self.assertEqual(self.out().count("run 1"), 1, self.out())

    def test_a_preempted_job_is_queued_again_by_itself(self):
        self.submit(f"{MEND} run -n 2 {PROGRAM}", "-p", "low")
        self.places()
        other = self.lab.submit(self.make("other"), "true", "-N3", "--exclusive", "-p", "high")
        self.said("it was stopped at checkpoint 1")
        self.lab.wait_state(other, "COMPLETED")
        self.said("goes on from its last checkpoint")
        self.let_go()
        self.completed(2)

    def make(self, name):
        path = os.path.join(self.directory, name)
        os.mkdir(path)
        return path

    def test_a_daemon_that_is_killed_costs_no_batch_job(self):
        self.submit(f"exec {MEND} run -n 4 {PROGRAM}")
        self.saved()
        self.lab.kill_daemon("node2")
        self.said("goes on by itself")
        self.assertEqual(sorted(set(self.places())), ["node1", "node3"])
        self.let_go()
        self.completed(4)

    def test_a_batch_script_without_numbers_runs_as_many_ranks_as_were_asked_for(self):
        self.submit(f"{MEND} run --quiet sh -c 'echo rank $PMI_RANK of $PMI_SIZE'\n{MEND} run --quiet --spare-nodes 1 sh -c 'echo spared $PMI_SIZE'")
        self.lab.wait_state(self.batch, "COMPLETED")
        self.assertEqual(sorted(re.findall(r"rank (\d) of 6", self.out())), list("012345"), self.out())
        self.assertEqual(len(re.findall("spared 4", self.out())), 4, self.out())

    def test_one_of_many_tasks_is_told_how_it_is_done(self):
        self.submit(f"srun -n 2 {MEND} run -n 2 true; echo code $?\nMEND_BATCH=none {MEND} run --quiet -n 2 hostname")
        self.lab.wait_state(self.batch, "COMPLETED")
        self.assertIn("it is to be started once", self.out())
        self.assertIn("without srun", self.out())
        self.assertIn("code 64", self.out())
        self.assertEqual(self.out().count("node1\n"), 2, self.out())


if __name__ == "__main__":
    unittest.main()
