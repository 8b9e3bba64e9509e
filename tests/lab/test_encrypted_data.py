"""Bulk data on its way between nodes, encrypted: somebody who reads the network finds nothing, and jobs are as they are without."""

import json
import os
import subprocess
import tempfile
import time
import unittest

from cases import InDirectory
from cluster import Lab, MEND, PATIENCE, Failed, compile_mpi
from test_conformance import compiled, right

SENT, KEPT = "a text in messages alone", "a text in memory alone"
# Each part of the engine that sends: short and long messages, probes, one-sided operations, collectives; and a storm of messages.
PROGRAMS = ("collectives", "pt2pt_modes", "pt2pt_flood", "pt2pt_probe", "rma_epochs", "rma_windows")


class Listener:
    """Somebody on a node's network."""

    def __init__(self, lab, node):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "listener.py")
        command = [MEND, "lab", "exec", "--name", lab.name, node, "--", "python3", script, SENT, KEPT]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "listening\n":
            raise Failed("nobody can listen on a node of the lab")

    def heard(self):
        """Bytes since the last time, and whether each of the two texts was among them."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        return told["bytes"], [count > 0 for count in told["found"]]

    def end(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


class EncryptedData(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        cls.markers = compile_mpi("mpi_markers.c", os.path.join(cls.work, "markers"))
        cls.programs = compiled(cls.work, PROGRAMS)

    def setUp(self):
        super().setUp()
        self.encrypt("on")
        self.addCleanup(self.encrypt, None)

    def encrypt(self, value):
        self.lab.set("MEND_ENCRYPT_DATA", value)

    def listened(self, encrypted):
        """Runs a job with both texts; what somebody beside rank 1 heard while ranks talked, while it moved, while its image was copied."""
        self.encrypt("on" if encrypted else "off")
        directory = tempfile.mkdtemp(dir=self.work)
        go = os.path.join(directory, "go")
        listener = Listener(self.lab, "node2")
        self.addCleanup(listener.end)
        placed = ("-n", "2", "--hosts", "node1,node2", "--spares", "node3", "--tiers", "memory,partner")
        job = self.lab.start(directory, "run", *placed, "--", self.markers, SENT, KEPT, go)
        name = self.lab.running(job)
        heard = {"talk": (0, [False, False])}
        # Megabytes, so that what is not among them is not there; the first frames are of the start.
        deadline = time.monotonic() + PATIENCE
        while heard["talk"][0] < 4 << 20:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
            before, (bytes_now, texts) = heard["talk"], listener.heard()
            heard["talk"] = (before[0] + bytes_now, [was or now for was, now in zip(before[1], texts)])
        moved = self.lab.verb("migrate", name, "1", "--to", "node3")
        heard["move"] = listener.heard()
        self.assertGreater(heard["move"][0], moved["bytes"] // 2)
        self.lab.verb("migrate", name, "1", "--to", "node2")
        listener.heard()
        taken = self.lab.verb("checkpoint", name)
        complete = lambda: self.lab.verb("checkpoints", name)[-1]["tiers"] == ["memory", "partner"]  # noqa: E731
        job.wait_for(complete, "the partner has its copies")
        heard["copy"] = listener.heard()
        self.assertGreater(heard["copy"][0], 8 << 20, taken)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), "markers are right\n")
        return {phase: texts for phase, (_, texts) in heard.items()}

    def test_a_listener_finds_everything_in_the_clear_and_nothing_of_what_is_encrypted(self):
        self.assertEqual(self.listened(False), {"talk": [True, False], "move": [True, True], "copy": [True, True]})
        self.assertEqual(self.listened(True), {"talk": [False, False], "move": [False, False], "copy": [False, False]})

    @unittest.skipUnless(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse cannot be opened")
    def test_files_of_a_data_space_are_as_other_bulk_data(self):
        source = os.path.join(self.directory, "source")
        with open(source, "w", encoding="utf-8") as file:
            file.write((SENT + "\n") * 40_000)
        targets = [word for node in ("node1", "node2") for word in ("--target", f"{node}:{os.path.join(self.directory, node)}")]
        data = lambda *words: self.lab.mend("data", *words, cwd=self.directory)  # noqa: E731
        self.assertEqual(data("create", "listened", *targets).returncode, 0)
        self.addCleanup(data, "destroy", "--force", "listened")
        listener = Listener(self.lab, "node3")
        self.addCleanup(listener.end)
        heard = {}
        for choice in ("off", "on"):
            self.encrypt(choice)
            self.assertEqual(data("stage", "file://" + source, f"listened:{choice}").returncode, 0)
            # Both targets' bytes pass node3, where the rank is. It writes what it reads.
            listener.heard()
            job = self.lab.start(self.directory, "run", "-n", "1", "--hosts", "node3", "--data", "listened:/mnt/in:rw", "--",
                                 "cp", f"/mnt/in/{choice}", f"/mnt/in/{choice}.copy")
            job.finish(0)
            heard[choice] = listener.heard()
            again = os.path.join(self.directory, choice)
            self.assertEqual(data("get", f"listened:{choice}.copy", again).returncode, 0)
            with open(again, "rb") as one, open(source, "rb") as other:
                self.assertTrue(one.read() == other.read())
        self.assertEqual([heard[choice][1] for choice in ("off", "on")], [[True, False], [False, False]])
        self.assertGreater(heard["on"][0], os.path.getsize(source))

    def disturb(self, name):
        """Checkpoints, moves, the end by force and a restart."""
        directory = tempfile.mkdtemp(dir=self.work)
        placed = ("-n", "4", "--hosts", "node1:2,node2:2", "--spares", "node3")
        job = self.lab.start(directory, "run", *placed, "--", self.programs[name], "-u", "go")
        identity = self.lab.running(job)
        self.lab.verb("checkpoint", identity)
        self.lab.verb("migrate", identity, "1", "--to", "node3")
        self.lab.verb("checkpoint", identity)
        self.assertNotIn("broke", job.stderr())
        self.assertEqual(self.lab.mend("kill", identity).returncode, 0)
        job.finish(137)
        # The end by force may have cut a packet.
        before = len(job.stderr())
        job = self.lab.start(directory, "restart", identity, "--hosts", "node2,node3")
        self.lab.running(job)
        self.lab.verb("migrate", identity, "0", "--to", "node2" if "rank 0 on node3" in self.lab.mend("explain", identity).stdout else "node3")
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), right(name, 4))
        self.assertNotIn("broke", job.stderr()[before:])

    def test_programs_are_saved_moved_and_restarted(self):
        for name in PROGRAMS:
            with self.subTest(name):
                self.disturb(name)

    def test_a_restart_may_decide_otherwise(self):
        """Open channels are in no image: what was encrypted goes on in the clear, and the other way round."""
        directory = tempfile.mkdtemp(dir=self.work)
        job = self.lab.start(directory, "run", "-n", "3", "--hosts", "node1,node2", "--", self.programs["collectives"], "-u", "go")
        for value in ("off", "on"):
            identity = self.lab.running(job)
            self.lab.verb("checkpoint", identity)
            self.lab.mend("kill", identity)
            job.finish(137)
            self.encrypt(value)
            job = self.lab.start(directory, "restart", identity)
        self.lab.running(job)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), right("collectives", 3))

    def test_a_core_provider_is_refused_and_both_settings_are_named(self):
        for channels in ("ofi", "shm, ofi,tcp"):
            self.lab.choose_channels(channels)
            self.addCleanup(self.lab.choose_channels, None)
            done = self.lab.mend("run", "-n", "2", "--hosts", "node1,node2", "--", self.programs["collectives"])
            self.assertEqual(done.returncode, 64, done.stderr)
            self.assertIn("MEND_ENCRYPT_DATA=on", done.stderr)
            self.assertIn(f"MEND_CHANNELS={channels}", done.stderr)
            self.assertIn("hint: leave ofi out", done.stderr)
        self.lab.set("MEND_ENCRYPT_DATA", "perhaps")
        done = self.lab.mend("run", "-n", "2", "--hosts", "node1,node2", "--", self.programs["collectives"])
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("MEND_ENCRYPT_DATA=perhaps: expected one of off, on", done.stderr)


if __name__ == "__main__":
    unittest.main()
