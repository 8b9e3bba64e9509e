"""Moves by MPI alone under `mend run`, where old processes end. The last line is that of a run without moves, under MPI's own launcher."""

import os
import sys
import tempfile
import unittest

from programs import PYTHON, ROOT, program, run, skip
from test_moves import TRAVEL, Moving

sys.path.append(os.path.join(ROOT, "tests", "lab"))

# Where rank 0 waits until it is let go.
HELD = 40


class UnderMend(Moving):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import cluster

        if not os.path.exists(os.path.join(cluster.BIN, "mend")):
            skip("moves under mend run", "Mend isn't built (make build)")
        cls.new_lab = cluster.Lab

    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(type(self).new_lab(3))
        self.lab.set("MEND_APP_WATCH_SECONDS", "0.05")

    def begin(self, ranks, hosts, *arguments, options=(), steps=60):
        """A job that stays at its middle, in a directory of its own, and its name."""
        self.directory = tempfile.mkdtemp(dir=self._directory.name)
        command = [program("moves"), "1000", str(steps), "-p", "30000", "-u", str(HELD), *arguments]
        job = self.lab.start(self.directory, "run", "-n", str(ranks), "--hosts", hosts, *options, "--", *command)
        return job, self.lab.running(job)

    def status(self, name):
        return next(job for job in self.lab.verb("ps") if job["id"] == name)["status"]["ranks"]

    def living(self, name):
        """Hosts of the ranks that live, by their numbers."""
        return {rank["rank"]: rank["host"] for rank in self.status(name) if not rank["ended"]}

    def moved(self, job, name, living):
        """Waits until these ranks live, and the others have ended."""
        job.wait_for(lambda: self.living(name) == living, f"{living} live")

    def ends(self, job, ranks):
        job.let_go()
        job.finish()
        self.assertEqual(self.line(job.stdout(), "moves digest"), self.expected(ranks))
        return job.stderr()


class Moved(UnderMend):
    def test_one_half_and_all_ranks_of_a_node(self):
        for ranks, who, living in ((1, "0", {1: "node2"}), (2, "1", {0: "node1", 2: "node2"}), (2, "all", {2: "node2", 3: "node2"}),
                                   (4, "2", {0: "node1", 1: "node1", 3: "node1", 4: "node2"}), (4, "0-1", {2: "node1", 3: "node1", 4: "node2", 5: "node2"}),
                                   (4, "all", {rank: "node2" for rank in range(4, 8)})):
            with self.subTest(ranks=ranks, who=who):
                job, name = self.begin(ranks, "node1:4,node2:4", "-m", "5", who, "node2")
                self.moved(job, name, living)
                self.assertIn("moved: rank", self.ends(job, ranks))

    def test_there_and_back(self):
        job, name = self.begin(4, "node1:4,node2:4", "-m", "5", "1-3", "node2", "-m", "20", "all", "node1")
        self.moved(job, name, {rank: "node1" for rank in range(7, 11)})
        self.assertEqual(self.ends(job, 4).count("moved: ranks"), 2)

    def test_python(self):
        self.lab.set("PYTHONPATH", os.path.join(ROOT, "app", "python"))
        self.lab.set("MEND_APP_LIBRARY", os.path.join(os.environ.get("MEND_APP_OUT", os.path.join(ROOT, "target", "app")), "lib", "libmend-app.so"))
        expected = self.line(self.good(run(3, [PYTHON, TRAVEL, "50"], self.directory)), "travel digest")
        job = self.lab.start(self.directory, "run", "-n", "3", "--hosts", "node1,node2,node3", "--", PYTHON, TRAVEL, "50", "5", "all", "30", "0,2")
        job.finish()
        self.assertEqual(job.stderr().count("moved: ranks"), 2, job.stderr())
        self.assertEqual(self.line(job.stdout(), "travel digest"), expected)


class Tiers(UnderMend):
    def test_moved_ranks_write_to_their_new_node_and_its_partner_has_copies(self):
        """Rank 0, too, which says what is copied where. Then its node is lost, and the program goes on from what the partner has."""
        place = ("--tiers", "memory,partner", "--spares", "node3")
        job, name = self.begin(4, "node1:4,node2:4", "-m", "5", "0-1", "node2", "-u", "-1", options=place, steps=6000)
        self.moved(job, name, {2: "node1", 3: "node1", 4: "node2", 5: "node2"})
        [taken] = self.lab.verb("checkpoint", name, "--portable")
        number = taken["checkpoint"]
        listed = lambda: {one["number"]: one["tiers"] for one in self.lab.verb("checkpoints", name) if one["kind"] == "portable"}
        job.wait_for(lambda: listed() == {number: ["memory", "partner"]}, "both tiers have it")
        written = {node: self.lab.on(node, "sh", "-c", "find /dev/shm/mend.*/*/portable/own -name '*.h5' | sed 's|.*/||' | sort").stdout.split() for node in ("node1", "node2")}
        self.assertEqual(written, {"node1": ["rank-00002.h5", "rank-00003.h5"], "node2": ["rank-00000.h5", "rank-00001.h5"]})
        self.lab.kill("node2")
        job.finish(None)
        again = self.lab.start(self.directory, "run", "-n", "4", "--hosts", "node1:2,node3:2", "--tiers", "memory,partner", "--", program("moves"), "1000", "6000")
        again.finish(0)
        self.assertIn(f"checkpoint {number} of 4 ranks is restored", again.stderr())
        undisturbed = self.lab.undisturbed("-n", "4", "--hosts", "node1:2,node3:2", "--", program("moves"), "1000", "6000")
        self.assertEqual(self.line(again.stdout(), "moves digest"), self.line(undisturbed, "moves digest"))


class After(UnderMend):
    """What Mend does with a job of which ranks have moved."""

    def checkpointed(self, ranks, who, living, options=()):
        job, name = self.begin(ranks, "node1:4,node2:4", "-m", "5", who, "node2", options=options)
        self.moved(job, name, living)
        self.lab.verb("checkpoint", name)
        return job, name

    def test_checkpoint_and_restart(self):
        for ranks, who, living in ((1, "0", {1: "node2"}), (2, "0", {1: "node1", 2: "node2"}), (4, "all", {rank: "node2" for rank in range(4, 8)})):
            with self.subTest(ranks=ranks):
                job, name = self.checkpointed(ranks, who, living)
                self.assertEqual(self.lab.mend("kill", name).returncode, 0)
                job.finish(137)
                os.unlink(self.path("stdout"))
                job = self.lab.start(self.directory, "restart", name, "--hosts", "node3")
                self.lab.running(job)
                self.assertEqual(self.living(name), dict.fromkeys(living, "node3"))
                self.lab.verb("checkpoint", name)
                self.ends(job, ranks)

    def test_the_node_is_lost(self):
        self.lab.set("MEND_ON_FAILURE", None)
        for ranks, who, living in ((1, "0", {1: "node2"}), (2, "1", {0: "node1", 2: "node2"}), (4, "0-1", {2: "node1", 3: "node1", 4: "node2", 5: "node2"})):
            with self.subTest(ranks=ranks):
                job, name = self.checkpointed(ranks, who, living, options=("--spares", "node3"))
                self.lab.kill_daemon("node2")
                job.wait_for(lambda: "restored and run" in job.stderr(), "it has gone on")
                self.lab.running(job)
                now = self.living(name)
                self.assertEqual(now.keys(), living.keys())
                self.assertNotIn("node2", now.values())
                self.assertEqual({rank: host for rank, host in now.items() if living[rank] != "node2"}, {rank: host for rank, host in living.items() if host != "node2"})
                self.ends(job, ranks)
                self.lab.start_daemon("node2", self.directory)

    def test_it_moves_and_is_asked_for_portable_checkpoints_as_before(self):
        job, name = self.begin(2, "node1:4,node2:4", "-m", "5", "all", "node2")
        self.moved(job, name, {2: "node2", 3: "node2"})
        self.lab.verb("migrate", name, "2", "--to", "node1")
        self.assertEqual(self.living(name), {2: "node1", 3: "node2"})
        self.lab.verb("checkpoint", name)
        self.ends(job, 2)
        # It answers where it does not stay.
        job, name = self.begin(2, "node1:4,node2:4", "-m", "5", "all", "node2", "-u", "-1", steps=6000)
        self.moved(job, name, {2: "node2", 3: "node2"})
        [taken] = self.lab.verb("checkpoint", name, "--portable")
        self.assertEqual((taken["program"], taken["ranks"]), ("moves 1", 2))
        self.lab.mend("kill", name)
        job.finish(137)


if __name__ == "__main__":
    unittest.main()
