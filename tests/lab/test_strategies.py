"""Moves whose image is stored in a file on its way: the strategies that the pipeline is compared with."""

import os
import subprocess
import tempfile
import unittest

from cases import InDirectory
from cluster import BIN, Lab, compile_mpi

STORED = ("shared", "local", "staged")


class Strategies(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        cls.program = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))
        cls.argv = [cls.program, "-i", "60", "-w", "200", "-m", "16", "-u", "go"]
        cls.expected = cls.lab.undisturbed("-n", "4", "--hosts", "node1", "--", *cls.argv)

    def start(self, *options):
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", *options, "--", *self.argv)
        return job, self.lab.running(job)

    def ends_well(self, job):
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), self.expected)

    def refused(self, name, *arguments, code=1):
        """Rank 3 stays on node2; what mend says."""
        done = self.lab.mend("migrate", name, "3", "--to", "node3", *arguments)
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertEqual(self.lab.places(name)[3], "node2")
        return done.stderr

    def replace_daemon(self, node, *before):
        """Kills a node's daemon and starts another with these variables."""
        daemon = f"setsid env {' '.join(before)} {BIN}/mendd --listen 0.0.0.0:7117 --name {node} >$MEND_SHARED/{node}.log 2>&1 &"
        listening = "until grep -q ':1BCD [0:]* 0A ' /proc/net/tcp; do sleep 0.05; done"
        gone = "while pgrep -x mendd; do sleep 0.05; done"
        self.lab.on(node, "sh", "-c", f"pkill -KILL -x mendd; {gone}; {daemon} {listening}")

    def test_each_strategy_moves_ranks_and_leaves_no_file(self):
        with tempfile.TemporaryDirectory(dir=self.work) as checkpoints:
            job, name = self.start("--checkpoint-dir", checkpoints)
            for number, strategy in enumerate((*STORED, "pipeline", *STORED)):
                to = ("node3", "node2")[number % 2]
                done = self.lab.verb("migrate", name, "3", "--to", to, "--strategy", strategy)
                self.assertEqual((done["to"], self.lab.places(name)[3]), (to, to))
                self.assertGreater(done["bytes"], 1 << 20)
                if strategy != "pipeline":
                    # All of it was written, and then it was read.
                    self.assertIsNone(done["precopied"])
                    self.assertGreater(done["stopped_us"], done["phases"]["write_us"])
            self.lab.verb("checkpoint", name)
            both = self.lab.verb("migrate", name, "0,1", "--to", "node3", "--strategy", "local")
            self.assertEqual([one["to"] for one in both], ["node3", "node3"])
            left = [file for _, _, files in os.walk(checkpoints) for file in files if file.endswith(".moving")]
            self.assertEqual(left, [])
            asked = [entry["data"] for entry in self.lab.verb("log", name) if entry["event"] == "migration_asked"]
            strategies = [data.get("storage", "pipeline") for data in asked]
            self.assertEqual(strategies, [*STORED, "pipeline", *STORED, "local", "local"])
            self.ends_well(job)

    def test_a_directory_that_the_nodes_do_not_share_is_named(self):
        """Each node of a lab has a /dev/shm of its own."""
        job, name = self.start("--checkpoint-dir", "/dev/shm/not-shared")
        told = self.refused(name, "--strategy", "shared")
        self.assertRegex(told, r"/dev/shm/not-shared/\S+\.moving cannot be read here")
        self.assertEqual(self.lab.on("node2", "sh", "-c", "find /dev/shm -name '*.moving'").stdout, "")
        self.lab.verb("migrate", name, "3", "--to", "node3", "--strategy", "staged")
        self.ends_well(job)

    def storing_nowhere(self, node, strategy):
        self.replace_daemon(node, "TMPDIR=/nowhere")
        try:
            job, name = self.start()
            self.assertIn("/nowhere cannot be used for an image on its way", self.refused(name, "--strategy", strategy))
            self.assertIn(f"({strategy})", self.lab.mend("log", name).stdout)
            self.lab.verb("migrate", name, "3", "--to", "node3", "--strategy", "shared")
            self.ends_well(job)
        finally:
            self.replace_daemon(node)

    def test_a_source_that_can_store_nothing_is_named_and_the_rank_goes_on(self):
        self.storing_nowhere("node2", "local")

    def test_a_target_that_can_store_nothing_is_named_and_the_rank_goes_on(self):
        self.storing_nowhere("node3", "staged")

    def test_what_is_encrypted_goes_through_no_file(self):
        self.lab.set("MEND_ENCRYPT_DATA", "on")
        self.addCleanup(self.lab.set, "MEND_ENCRYPT_DATA", None)
        job, name = self.start()
        for strategy in STORED:
            self.assertIn("files on the way of a move are not", self.refused(name, "--strategy", strategy))
        self.lab.verb("migrate", name, "3", "--to", "node3", "--strategy", "pipeline")
        self.ends_well(job)

    def test_what_excludes_each_other_is_refused(self):
        job, name = self.start()
        self.assertIn("--mode live", self.refused(name, "--strategy", "local", "--mode", "live", code=64))
        self.assertIn("pipeline, shared, local, staged", self.refused(name, "--strategy", "carrier", code=2))
        self.ends_well(job)

    def test_the_bench_measures_each_strategy_and_leaves_nothing(self):
        csv, svg = (os.path.join(self.directory, name) for name in ("moves.csv", "moves.svg"))
        measured = self.lab.verb(
            "bench", "migrate", "--hosts", "node1,node2", "--sizes", "8M", "--ranks", "1,3", "--runs", "2", "--csv", csv, "--svg", svg)
        every = ("pipeline", *STORED, "live")
        self.assertEqual([(one["ranks"], one["strategy"]) for one in measured], [(ranks, name) for ranks in (1, 3) for _ in "12" for name in every])
        for one in measured:
            self.assertGreater(one["bytes"], 8 << 20)
            self.assertEqual(one["stored_bytes"], one["bytes"] if one["strategy"] in STORED else 0)
            self.assertLess(one["stopped_bytes"], one["bytes"] if one["strategy"] == "live" else one["bytes"] + 1)
            self.assertTrue(0 < one["there_us"] <= one["stopped_us"] <= one["whole_us"])
        with open(csv, encoding="ascii") as file:
            self.assertEqual(len(file.readlines()), 1 + len(measured))
        with open(svg, encoding="utf-8") as file:
            self.assertEqual(file.read().count("<rect "), 1 + 2 * len(every) * 5 + 5)
        self.assertEqual([job for job in self.lab.verb("ps", "-a") if "bench" in job["command"]], [])

    def test_the_bench_names_what_is_wrong(self):
        for arguments, code, told in (
            (["--hosts", "node1"], 64, "ranks move between two nodes"),
            (["--hosts", "node1,node2", "--sizes", "8Q"], 2, "expected a number of bytes"),
            (["--hosts", "node1,nowhere"], 1, "node nowhere does not belong to this job"),
            (["--hosts", "node1,node2", "--sizes", "4000G", "--ranks", "1"], 1, "do not come to hold"),
        ):
            done = self.lab.mend("bench", "migrate", *arguments)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(told, done.stderr)


class OwnLab(unittest.TestCase):
    def test_the_bench_makes_a_lab_of_its_own(self):
        done = subprocess.run(
            [f"{BIN}/mend", "bench", "migrate", "--sizes", "4M", "--ranks", "1", "--runs", "1", "--strategies", "pipeline,local"],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split()[3] for line in done.stdout.splitlines() if line.startswith("4.0 MiB")], ["pipeline", "local"])
        labs = subprocess.run([f"{BIN}/mend", "lab", "ls"], capture_output=True, text=True, check=True)
        self.assertNotIn("bench-", labs.stdout)


if __name__ == "__main__":
    unittest.main()
