"""Each part of MPI over the provider, on two nodes, and with checkpoints, moves and a restart in the middle.

The short selection; conformance.py runs all numbers of ranks and nodes, IMB, mpi4py's tests and fi_pingpong.
"""

import os
import tempfile
import unittest

from cases import InDirectory
from cluster import Lab, ROOT, compile_mpi

SOURCES = os.path.join("tests", "apps", "conformance")
PROGRAMS = sorted(name[:-2] for name in os.listdir(os.path.join(ROOT, SOURCES)) if name.endswith(".c"))
# Those that are checkpointed, moved and restarted.
DISTURBED = tuple(name for name in PROGRAMS if name != "dynamic")
# It writes over what it wrote, in a file, and a restart does not bring back what a file held.
NOT_RESTARTED = ("files",)
ONE_SIDED = tuple(name for name in DISTURBED if name.startswith("rma_"))
OTHER_CHANNELS = tuple(os.environ.get("MEND_TEST_CHANNELS", "tcp ofi shm,ofi").split())


def right(name, ranks):
    """All that a program prints."""
    return f"{name}: right with {ranks} ranks\n"


def ended_in_first_rounds(ranks):
    """Processes of `spawn` that have ended when its first four rounds are over, after which nothing more is spawned: of each round three children of all
    and one of each rank, and three that could not be started: of all, or of each rank."""
    return 4 * (3 + ranks) + 2 * 3 * (1 + ranks)


def compiled(directory, names=tuple(PROGRAMS)):
    """Paths by name of the programs, built in a directory."""
    return {name: compile_mpi(os.path.join("conformance", f"{name}.c"), os.path.join(directory, name)) for name in names}


class Conformance(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        cls.programs = compiled(cls.work)

    def setUp(self):
        super().setUp()
        self.addCleanup(self.lab.choose_channels, None)

    def start(self, name, ranks, hosts, *arguments):
        directory = tempfile.mkdtemp(dir=self.work)
        return self.lab.start(directory, "run", "-n", str(ranks), "--hosts", hosts, "--spares", "node3", "--", self.programs[name], *arguments)

    def test_every_program_on_two_nodes(self):
        for name in PROGRAMS:
            with self.subTest(name):
                job = self.start(name, 3, "node1:2,node2:1")
                job.finish()
                self.assertEqual(job.stdout(), right(name, 3))

    def test_every_program_with_more_ranks_than_processors(self):
        """Where a rank waits for a processor, messages and their ends meet in orders that few ranks do not bring about."""
        for name in PROGRAMS:
            with self.subTest(name):
                job = self.start(name, 8, "node1:4,node2:4")
                job.finish()
                self.assertEqual(job.stdout(), right(name, 8))

    def test_every_program_over_a_core_provider(self):
        for channels in ("ofi", "shm,ofi"):
            self.lab.choose_channels(channels)
            for name in PROGRAMS:
                with self.subTest(name, channels=channels):
                    job = self.start(name, 3, "node1:2,node2:1")
                    job.finish()
                    self.assertEqual(job.stdout(), right(name, 3))
                    self.assertNotIn("no ofi channels here", job.stderr())

    def test_every_program_alone(self):
        for name in PROGRAMS:
            with self.subTest(name):
                job = self.start(name, 1, "node1")
                job.finish()
                self.assertEqual(job.stdout(), right(name, 1))

    def test_why_a_spawn_fails_is_told_once(self):
        job = self.start("spawn", 3, "node1:2,node2:1")
        job.finish()
        told = [line for line in job.stderr().splitlines() if "asked for more processes (MPI_Comm_spawn) and gets an MPI error" in line]
        self.assertEqual(len(told), 2, job.stderr())
        self.assertTrue(any("no such program: no such file" in line for line in told), told)
        self.assertTrue(any("a process exited with code 1 before it called MPI_Init" in line for line in told), told)

    def ranks(self, identity):
        return next(job for job in self.lab.verb("ps") if job["id"] == identity)["status"]["ranks"]

    def place(self, identity, rank):
        return self.ranks(identity)[rank]["host"]

    def disturb(self, name):
        """Two checkpoints, a move to the spare and back, the end by force, a restart on other nodes, another move."""
        job = self.start(name, 3, "node1:2,node2:1", "-u", "go")
        identity = self.lab.running(job)
        if name == "spawn":
            # Before, children end all the time, and a move that one of them was to stop for is given up: see test_spawn.py.
            ended = lambda: sum(rank["ended"] for rank in self.ranks(identity))
            job.wait_for(lambda: ended() == ended_in_first_rounds(3), "the first rounds are over")
        self.lab.verb("checkpoint", identity)
        self.lab.verb("migrate", identity, "1", "--to", "node3")
        self.lab.verb("checkpoint", identity)
        self.lab.verb("migrate", identity, "1", "--to", "node2")
        self.lab.verb("checkpoint", identity)
        if name not in NOT_RESTARTED:
            self.assertEqual(self.lab.mend("kill", identity).returncode, 0)
            job.finish(137)
            job = self.lab.start(job.directory, "restart", identity, "--hosts", "node2,node3")
            self.lab.running(job)
        moved = self.lab.verb("migrate", identity, "0", "--to", "node2" if self.place(identity, 0) == "node3" else "node3")
        self.assertEqual(self.place(identity, 0), moved["to"])
        self.lab.verb("checkpoint", identity)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), right(name, 3))
        self.assertNotIn("no ofi channels here", job.stderr())

    def test_every_program_is_saved_moved_and_restarted(self):
        for name in DISTURBED:
            with self.subTest(name):
                self.disturb(name)

    def test_every_program_is_saved_moved_and_restarted_over_other_channels(self):
        """Each over one; over which, events.py draws."""
        for number, name in enumerate(DISTURBED):
            channels = OTHER_CHANNELS[number % len(OTHER_CHANNELS)]
            with self.subTest(name, channels=channels):
                self.lab.choose_channels(channels)
                self.disturb(name)

    def test_one_sided_programs_where_ranks_cannot_name_each_other(self):
        """By packets, all of it."""
        self.lab.set("MEND_PID_NAMESPACE", "rank")
        self.addCleanup(self.lab.set, "MEND_PID_NAMESPACE", None)
        for name in ONE_SIDED:
            with self.subTest(name):
                self.disturb(name)

    def test_a_target_that_computes_is_not_waited_for(self):
        """It makes no call of MPI, with checkpoints in the middle of that, until it finds in its memory what is written last."""
        passive = compile_mpi("rma_passive.c", os.path.join(self.work, "rma_passive"))
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1", "--", passive, "-u", "go")
        identity = self.lab.running(job)
        job.wait_for(lambda: "computing" in job.stdout(), "rank 1 computes")
        for _ in range(3):
            self.lab.verb("checkpoint", identity)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), "computing\n" + right("rma_passive", 2))


if __name__ == "__main__":
    unittest.main()
