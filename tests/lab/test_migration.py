"""Migration between lab nodes, and everything that can keep one from happening: the job goes on either way."""

import os
import unittest

from cases import InDirectory
from cluster import BIN, Lab, compile_mpi


class Migration(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        cls.program = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))
        cls.argv = [cls.program, "-i", "60", "-w", "200", "-m", "16", "-u", "go"]
        cls.expected = cls.lab.undisturbed("-n", "4", "--hosts", "node1", "--", *cls.argv)

    def start(self, *place, argv=None):
        job = self.lab.start(self.directory, "run", "-n", "4", *place, "--", *(argv or self.argv))
        return job, self.lab.running(job)

    def test_to_a_spare_and_back_and_all_on_one_node(self):
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3")
        for rank, node in ((3, "node3"), (3, "node2"), (0, "node2"), (1, "node2"), (2, "node1")):
            done = self.lab.verb("migrate", name, str(rank), "--to", node)
            self.assertEqual(done["to"], node)
            self.assertGreater(done["bytes"], 1 << 20)
            self.assertEqual(self.lab.places(name)[rank], node)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), self.expected)

    def test_the_spare_is_chosen(self):
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3")
        self.assertEqual(self.lab.verb("migrate", name, "1")["to"], "node3")
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), self.expected)

    def test_a_rank_that_moved_begins_its_chain_anew(self):
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3", "--incremental", "5")
        self.lab.verb("checkpoint", name)
        self.lab.verb("checkpoint", name)
        self.lab.verb("migrate", name, "3", "--to", "node3")
        self.lab.verb("checkpoint", name)
        self.lab.verb("checkpoint", name)
        found = self.lab.verb("checkpoints", name)
        self.assertEqual([one["kind"] for one in found], ["full", "incremental", "partly full", "incremental"])
        self.assertEqual([one["needs"] for one in found], [[], [1], [1, 2], [1, 2, 3]])
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        job.let_go()
        self.lab.start(job.directory, "restart", name).finish()
        self.assertEqual(job.stdout(), self.expected)

    def test_ranks_that_compute_let_others_move(self):
        """Channels are used one way only, and no program makes a call: agents alone must see to it that they drain."""
        program = compile_mpi("mpi_apart.c", os.path.join(self.work, "apart"))
        expected = self.lab.undisturbed("-n", "4", "--hosts", "node1", "--", program)
        job, name = self.start("--hosts", "node1,node2", argv=[program, "-u", "go"])
        job.wait_for(lambda: job.stderr().count("computes") == 4, "all ranks compute")
        self.lab.verb("checkpoint", name)
        for rank, node in ((2, "node1"), (0, "node2"), (2, "node2"), (3, "node1")):
            self.assertEqual(self.lab.verb("migrate", name, str(rank), "--to", node)["to"], node)
            self.lab.verb("checkpoint", name)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), expected)

    def test_wrong_targets_are_named(self):
        job, name = self.start("--hosts", "node1,node2")
        for arguments, text in (
            (["0", "--to", "node9"], "node9 does not belong"),
            (["0", "--to", "node1"], "is on node1 already"),
            (["9", "--to", "node1"], "no rank 9"),
            (["x", "--to", "node1"], "not a rank"),
        ):
            done = self.lab.mend("migrate", name, *arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), self.expected)

    def replace_daemon(self, before):
        """Kills node3's daemon and starts another, after a shell command, in the same shell."""
        daemon = f"setsid {BIN}/mendd --listen 0.0.0.0:7117 --name node3 >$MEND_SHARED/daemon.log 2>&1 &"
        # Column 4 of /proc/net/tcp is the state: 0A listens; 1BCD is port 7117.
        listening = "until grep -q ':1BCD [0:]* 0A ' /proc/net/tcp; do sleep 0.05; done"
        gone = "while pgrep -x mendd; do sleep 0.05; done"
        self.lab.on("node3", "sh", "-c", f"pkill -KILL -x mendd; {gone}; ({before}; {daemon}) ; {listening}")

    def test_a_target_without_memory_leaves_the_rank_where_it_is(self):
        """The target's daemon lives under a limit of address space that the rank's image does not fit into."""
        self.replace_daemon("ulimit -v 400000")
        try:
            large = [self.program, "-i", "40", "-w", "200", "-m", "500", "-u", "go"]
            job, name = self.start("--hosts", "node1,node2", "--spares", "node3", argv=large)
            # The memory has to be there before it can be too much.
            size = lambda: self.lab.verb("explain", name)[2]["inspection"]["Ok"]["image_bytes"]
            job.wait_for(lambda: size() > 450 << 20, "rank 2 has its table")
            done = self.lab.mend("migrate", name, "2", "--to", "node3")
            self.assertNotEqual(done.returncode, 0, done.stdout)
            self.assertIn("rank 2", done.stderr)
            self.assertEqual(self.lab.places(name)[2], "node2")
            job.let_go()
            job.finish()
            self.assertIn("iters digest=", job.stdout())
        finally:
            self.replace_daemon("true")


if __name__ == "__main__":
    unittest.main()
