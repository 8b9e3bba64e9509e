"""What daemons and real agents say to each other, by kind, when a job is saved, moved and restarted. The simulator's agents are checked
against records of this (`tests/simulation/conversations`, by `tests/simulation/tests/contract.rs`); here the records are compared with what is
said today.

    MEND_RECORD_CONVERSATIONS=1 tests/lab/run.py test_conversations        writes the records
"""

import os
import re
import unittest

from cases import InDirectory
from cluster import BIN, Lab, compile_mpi

RECORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "simulation", "conversations")
LINE = re.compile(r" TRACE (\d+)\.(\d+) ([<>] \S+)$")
# When they are said depends on when the program begins to use MPI, on what there is to report, and on how long copying takes.
BESIDE = ("> fabric-in-use", "> fabric-up", "> report", "> round")
WRITTEN = "> written"


class Conversations(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        before = os.environ.get("MEND_LOG")
        os.environ["MEND_LOG"] = "warn,mend_conversation=trace"
        try:
            cls.lab = cls.enterClassContext(Lab(3))
        finally:
            del os.environ["MEND_LOG"]
            if before is not None:
                os.environ["MEND_LOG"] = before
        cls.program = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))

    def setUp(self):
        super().setUp()
        self.seen = {node: len(self.log(node)) for node in ("node1", "node2", "node3")}

    def log(self, node):
        return self.lab.on("head", "sh", "-c", f"cat $MEND_SHARED/log/{node}.log").stdout.splitlines()

    def start(self, *options):
        argv = ["-n", "2", *options, "--", self.program, "-i", "60", "-w", "200", "-m", "4", "-u", "go"]
        job = self.lab.start(self.directory, "run", *argv)
        return job, self.lab.running(job)

    def said(self):
        """The conversations since the test began: one list of lines for each process."""
        found = {}
        for node, before in self.seen.items():
            for line in self.log(node)[before:]:
                if (match := LINE.search(line)) and match[3] not in BESIDE:
                    found.setdefault((node, int(match[1]), int(match[2])), []).append(match[3])
        return found

    def text(self):
        """The same as it stands in a record, with processes in the order of nodes and ranks."""
        lines = []
        # Processes are numbered anew: their numbers depend on which of them the daemon heard of first.
        for at, ((node, rank, _), said) in enumerate(sorted(self.said().items())):
            if WRITTEN in said:
                # While an image is written in the background, other things are said. That it was written stands last.
                self.assertGreater(said.index(WRITTEN), said.index("> saved-behind"), said)
                said.append(said.pop(said.index(WRITTEN)))
            lines += [f"{rank}.{node.removeprefix('node')}{at} {line}\n" for line in said]
        self.assertTrue(any("< save" in line for line in lines), lines)
        return "".join(lines)

    def compare(self, name):
        text = self.text()
        path = os.path.join(RECORDS, name)
        if os.environ.get("MEND_RECORD_CONVERSATIONS"):
            os.makedirs(RECORDS, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(text, file.read(), f"agents talk in another way than {name} has it: see this test's head")

    def end(self, job, name):
        # The last words of the agents are in the logs when all ranks have gone on.
        self.lab.verb("explain", name)
        job.let_go()
        job.finish()

    def test_a_checkpoint_that_stops_the_ranks(self):
        job, name = self.start("--hosts", "node1,node2")
        self.lab.verb("checkpoint", name, "--mode", "stop")
        self.end(job, name)
        self.compare("checkpoint-stop")

    def test_a_checkpoint_that_is_written_in_the_background(self):
        job, name = self.start("--hosts", "node1,node2")
        self.lab.verb("checkpoint", name, "--mode", "copy-on-write")
        self.end(job, name)
        self.compare("checkpoint-in-the-background")

    def test_a_migration(self):
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3")
        self.lab.verb("migrate", name, "1", "--to", "node3", "--mode", "frozen")
        self.end(job, name)
        self.compare("migration")

    def test_a_live_migration(self):
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3")
        self.lab.verb("migrate", name, "1", "--to", "node3", "--mode", "live")
        self.end(job, name)
        self.compare("migration-live")

    def test_a_migration_that_is_undone(self):
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3")
        # On that node the restorer is another program, which says nothing.
        restorer = os.path.join(BIN, "mend-restorer")
        covered = self.lab.on("node3", "mount", "--bind", "/bin/true", restorer)
        self.assertEqual(covered.returncode, 0, covered.stderr)
        done = self.lab.mend("migrate", name, "1", "--to", "node3", "--mode", "frozen")
        self.lab.on("node3", "umount", restorer)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.end(job, name)
        self.compare("migration-undone")

    def test_a_restart(self):
        job, name = self.start("--hosts", "node1,node2")
        self.lab.verb("checkpoint", name, "--mode", "stop")
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        self.lab.mend("ps")
        self.seen = {node: len(self.log(node)) for node in self.seen}
        job = self.lab.start(self.directory, "restart", name)
        self.lab.running(job)
        self.lab.verb("checkpoint", name, "--mode", "stop")
        self.end(job, name)
        self.compare("restart")


if __name__ == "__main__":
    unittest.main()
