"""Every choice of channels carries a job through checkpoint, migration and restart, with the results of an undisturbed run.

Four ranks on two nodes, so that each choice has pairs of ranks on one node and pairs on two, and a move makes the one the
other.
"""

import os
import tempfile
import unittest

import melt
from cases import InDirectory
from cluster import Lab, compile_mpi

CHOICES = ("shm,tcp", "tcp", "ofi", "shm,ofi", "ofi,shm")


class Channels(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        cls.iters = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))
        cls.checksums = compile_mpi("mpi_checksums.c", os.path.join(cls.work, "checksums"))
        cls.seldom = compile_mpi("mpi_seldom.c", os.path.join(cls.work, "seldom"))

    def setUp(self):
        super().setUp()
        self.addCleanup(self.lab.choose_channels, None)

    def plain(self, argv):
        """What the program prints when nothing happens to it."""
        self.lab.choose_channels(None)
        return self.lab.undisturbed("-n", "4", "--hosts", "node1", "--", *argv)

    def disturbed(self, argv, channels, provider=None):
        """Two checkpoints, moves between and to nodes, an end by force, a restart, another move and another checkpoint."""
        self.lab.choose_channels(channels, provider)
        directory = tempfile.mkdtemp(dir=self.work)
        job = self.lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
        name = self.lab.running(job)
        self.lab.verb("checkpoint", name)
        self.lab.verb("migrate", name, "3", "--to", "node3")
        self.lab.verb("migrate", name, "0", "--to", "node2")
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        self.assertNotIn("no ofi channels here", job.stderr())
        again = self.lab.start(directory, "restart", name)
        self.lab.running(again)
        self.lab.verb("migrate", name, "1", "--to", "node3")
        self.lab.verb("checkpoint", name)
        again.let_go()
        again.finish()
        self.assertNotIn("no ofi channels here", again.stderr())
        return again.stdout()

    def test_what_was_sent_comes_whatever_its_sender_does_then(self):
        """It computes, or ends before its receiver looks: longer before than a peer that cannot be reached is waited for."""
        late = compile_mpi("mpi_late.c", os.path.join(self.work, "late"))
        for channels in (None, "ofi"):
            self.lab.choose_channels(channels)
            directory = tempfile.mkdtemp(dir=self.work)
            job = self.lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--", late, "5")
            job.finish()
            self.assertEqual(job.stdout(), "late: all came\n")

    def test_who_ends_waits_for_receives_that_come_late(self):
        """Of messages beyond what a receiver holds, and of a long one, the sender has the bytes. While it waits it can be saved and moved."""
        late = compile_mpi("mpi_late.c", os.path.join(self.work, "late-receives"))
        for channels in (None, "ofi"):
            with self.subTest(channels=channels):
                self.lab.choose_channels(channels)
                directory = tempfile.mkdtemp(dir=self.work)
                argv = ["run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", late, "5", "go"]
                job = self.lab.start(directory, *argv)
                name = self.lab.running(job)
                job.wait_for(lambda job=job: "rank 0 computes" in job.stderr(), "all have sent what they send")
                self.lab.verb("checkpoint", name)
                self.lab.verb("migrate", name, "3", "--to", "node3")
                self.lab.verb("migrate", name, "0", "--to", "node3")
                self.lab.verb("checkpoint", name)
                self.assertEqual(self.lab.mend("kill", name).returncode, 0)
                job.finish(137)
                again = self.lab.start(directory, "restart", name)
                self.lab.running(again)
                self.lab.verb("migrate", name, "2", "--to", "node3")
                again.let_go()
                again.finish()
                self.assertEqual(again.stdout(), "late: all came\n")

    def test_what_the_system_would_drop_is_waited_for(self):
        """Linux drops what it still holds of a process that has ended, minutes later; here soon."""
        late = compile_mpi("mpi_late.c", os.path.join(self.work, "late-reads"))
        limit = "/proc/sys/net/ipv4/tcp_rto_max_ms"
        for node in ("node1", "node2"):
            before = self.lab.on(node, "cat", limit).stdout.strip()
            if not before:
                self.skipTest("this kernel takes three minutes for that (no tcp_rto_max_ms)")
            self.addCleanup(self.lab.on, node, "sh", "-c", f"echo {before} > {limit}")
            done = self.lab.on(node, "sh", "-c", f"echo 1000 > {limit}")
            self.assertEqual(done.returncode, 0, done.stderr)
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--", late, "8")
        job.finish()
        self.assertEqual(job.stdout(), "late: all came\n")

    def test_results_stay_over_every_choice_of_channels(self):
        argv = [self.iters, "-i", "60", "-w", "100", "-m", "8", "-u", "go"]
        expected = self.plain(argv)
        for channels in CHOICES:
            with self.subTest(channels=channels):
                self.assertEqual(self.disturbed(argv, channels), expected)

    def test_results_stay_where_ranks_cannot_name_each_other(self):
        """Long messages are read by descriptor then."""
        argv = [self.checksums, "-s", "5", "-r", "300", "-u", "go"]
        expected = self.plain(argv)
        self.lab.set("MEND_PID_NAMESPACE", "rank")
        self.addCleanup(self.lab.set, "MEND_PID_NAMESPACE", None)
        self.assertEqual(self.disturbed(argv, None), expected)

    def test_results_stay_over_other_core_providers(self):
        """One with threads and connections of its own making, and one that libfabric layers over another."""
        argv = [self.iters, "-i", "60", "-w", "100", "-m", "8", "-u", "go"]
        expected = self.plain(argv)
        for provider in ("sockets", "tcp;ofi_rxm"):
            with self.subTest(provider=provider):
                self.assertEqual(self.disturbed(argv, "ofi", provider), expected)

    def test_messages_of_all_sizes_stay_whole(self):
        """Random traffic up to 1 MiB, checked byte by byte, under checkpoints and moves; then from the last image again."""
        for channels in ("ofi", "shm,ofi"):
            with self.subTest(channels=channels):
                argv = [self.checksums, "-s", "7", "-r", "300", "-u", "go"]
                expected = self.plain(argv)
                self.lab.choose_channels(channels)
                directory = tempfile.mkdtemp(dir=self.work)
                job = self.lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
                name = self.lab.running(job)
                for rank, node in ((0, "node2"), (3, "node1"), (0, "node3")):
                    self.lab.verb("checkpoint", name)
                    self.lab.verb("migrate", name, str(rank), "--to", node)
                job.let_go()
                job.finish()
                self.assertNotIn("no ofi channels here", job.stderr())
                self.assertEqual(job.stdout(), expected)
                again = self.lab.start(directory, "restart", name, "--repeat-output")
                again.finish()
                self.assertEqual(again.stdout(), expected * 2)

    def test_connections_that_break_end_the_job_which_can_go_on(self):
        """Both ranks live and would wait for each other for ever."""
        argv = [self.iters, "-i", "60", "-w", "100", "-m", "8", "-p", "2000", "-u", "go"]
        expected = self.plain(argv)
        for channels in ("shm,tcp", "ofi"):
            with self.subTest(channels=channels):
                self.lab.choose_channels(channels)
                directory = tempfile.mkdtemp(dir=self.work)
                job = self.lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--", *argv)
                name = self.lab.running(job)
                # Soon after this line it stays where it is, and exchanges messages all the time.
                job.wait_for(lambda job=job: "iteration 20 " in job.stderr(), "messages are under way")
                self.lab.verb("checkpoint", name)
                if not self.lab.break_channels("node1"):
                    self.skipTest("this kernel closes no connections for others (CONFIG_INET_DIAG_DESTROY)")
                job.finish(75)
                self.assertRegex(job.stderr(), r"messages between rank \d on node\d and rank \d on node\d are lost \(.+\); the job was stopped")
                self.assertIn(f"`mend restart {name}` continues the job from checkpoint 1", job.stderr())
                again = self.lab.start(directory, "restart", name)
                again.let_go()
                again.finish()
                self.assertEqual(again.stdout(), expected)

    def test_a_rank_that_seldom_looks_is_reached(self):
        """Channels are opened by, and to, a rank that looks for messages some 20 times a second and waits for none; after a move again."""
        argv = ["-n", "3", "--hosts", "node1:1,node2:2", "--spares", "node3", "--", self.seldom, "-p", "50", "-u", "go"]
        for channels in ("shm,tcp", "ofi"):
            with self.subTest(channels=channels):
                self.lab.choose_channels(channels)
                job = self.lab.start(tempfile.mkdtemp(dir=self.work), "run", *argv)
                name = self.lab.running(job)
                job.wait_for(lambda job=job: "has heard of all" in job.stderr(), "messages of all ranks have come")
                self.lab.verb("migrate", name, "0", "--to", "node3")
                job.let_go()
                job.finish()
                self.assertEqual(job.stdout(), "seldom sum=6002\n")

    def test_lammps_results_stay(self):
        argv = melt.argv(self.work)
        expected = self.plain(argv)
        self.lab.choose_channels("ofi")
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
        name = self.lab.running(job)
        job.wait_for(lambda: melt.steps(job.stdout()) >= 100, "the first steps are done")
        self.lab.verb("migrate", name, "2", "--to", "node3")
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        again = self.lab.start(self.directory, "restart", name)
        self.lab.running(again)
        again.let_go()
        again.finish()
        self.assertNotIn("no ofi channels here", again.stderr())
        melt.compare(self, expected, self.output(), again.stderr())


if __name__ == "__main__":
    unittest.main()
