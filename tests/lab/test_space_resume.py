"""Staging into a data space goes on where it was: commands, targets and the source end at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB
from cluster import MEND, PATIENCE
from test_space import NODES, UNREACHABLE, Space

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data_server.py")
# What is on its way of each of four requests: a piece, and what sockets hold.
ON_ITS_WAY = 4 * 4 * MIB


class Resumes(Space):
    """The source is `in.dat` on a slow server."""

    SIZE = 24 * MIB + 4321
    DAEMONS = {"MEND_SPACE_BEGUN_S": "20"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Of daemons that are started again.
        cls.lab.set("MEND_SPACE_BEGUN_S", cls.DAEMONS["MEND_SPACE_BEGUN_S"])

    def setUp(self):
        super().setUp()
        self.server = None
        self.serve()

    def serve(self, port=None, pause="0.01"):
        """Starts the server, anew, so many seconds before each piece."""
        self.stop()
        self.port, self.told = port or random.randrange(20000, 30000), os.path.join(self.directory, f"told.{time.monotonic_ns()}")
        command = [MEND, "lab", "exec", "--name", self.lab.name, "head", "--", sys.executable, SERVER, self.source, str(self.port), self.told, pause]
        self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(self.stop)
        until = time.monotonic() + PATIENCE
        while not os.path.exists(self.told):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        self.uri = f"http://head:{self.port}/in.dat"

    def serve_slowly(self):
        """So slowly that a command which is to be killed in between is not done before, though the test may wait for a processor meanwhile."""
        self.serve(pause="0.05")

    def stop(self):
        if self.server:
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()
            self.server = None

    def sent(self):
        with open(self.told, encoding="ascii") as file:
            return int(file.read())

    def sent_at_rest(self):
        """The server may not have noticed yet that who asked last is gone."""
        before = None
        while before != (now := self.sent()):
            before = now
            time.sleep(1)
        return now

    def begin(self):
        return subprocess.Popen(self.lab.command("data", "stage", "-q", self.uri, "input:in.dat"), env=self.lab.environment, cwd=self.directory, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def killed_in_between(self, most=6 * MIB):
        """Kills a command when the server has sent some more; false if it was done before."""
        process, moment = self.begin(), self.sent() + self.random.randrange(most)
        until = time.monotonic() + PATIENCE
        while process.poll() is None and self.sent() < moment and time.monotonic() < until:
            time.sleep(0.001)
        done = process.poll() == 0
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        process.stderr.close()
        return not done

    def staged(self):
        return json.loads(self.data("stage", "--json", self.uri, "input:in.dat").stdout)[0]

    def kill_target(self, node):
        self.lab.on(node, "pkill", "-KILL", "-x", "-f", f".*mend-space target .*{self.target(node)} .*")

    def test_a_command_that_is_killed_at_any_moment_goes_on(self):
        kills = 0
        while self.killed_in_between():
            kills += 1
            self.assertLess(kills, 100)
            if "in.dat" in self.listed():
                self.got()
        self.got()
        self.assertLess(self.sent(), self.SIZE + (kills + 1) * ON_ITS_WAY)
        self.assertGreater(kills, 0)
        self.assertEqual(self.staged()["already"], True)
        self.assertEqual(sum(len(self.objects(node)) for node in NODES), 3)

    def test_what_was_fetched_is_not_fetched_again_and_is_not_seen(self):
        self.serve_slowly()
        while self.sent() < 8 * MIB:
            self.assertTrue(self.killed_in_between(10 * MIB))
        self.assertEqual(self.listed(), {})
        before = self.sent_at_rest()
        done = self.staged()
        self.assertEqual(done["fetched"] + done["resumed"], self.SIZE)
        self.assertGreater(done["resumed"], 0)
        self.assertEqual(self.sent_at_rest() - before, done["fetched"])
        self.got()

    def test_targets_that_are_killed_cost_nothing_that_was_fetched(self):
        kills = 0
        while "in.dat" not in self.listed():
            process = self.begin()
            moment = self.sent() + self.random.randrange(8 * MIB)
            while process.poll() is None and self.sent() < moment:
                time.sleep(0.001)
            if process.poll() is None:
                self.kill_target(self.random.choice(NODES))
                kills += 1
            said = process.communicate()[1]
            self.assertIn(process.returncode, (0, 1, UNREACHABLE), said)
            self.assertLess(kills, 50, said)
        self.got()
        self.assertLess(self.sent(), self.SIZE + (kills + 1) * ON_ITS_WAY)

    def test_another_target_takes_the_place_of_one_that_is_lost(self):
        self.serve_slowly()
        while self.sent() < 6 * MIB:
            self.assertTrue(self.killed_in_between(8 * MIB))
        self.lab.kill_daemon("node2")
        try:
            done = self.staged()
            self.assertGreater(done["resumed"], 0)
            self.got()
        finally:
            self.daemon_back("node2")

    def test_a_source_that_has_changed_begins_anew_and_says_so(self):
        self.serve_slowly()
        while self.sent() < 6 * MIB:
            self.assertTrue(self.killed_in_between(8 * MIB))
        self.content = self.random.randbytes(self.SIZE)
        self.write("source/in.dat", self.content)
        self.serve(self.port)
        done = self.data("stage", "--json", self.uri, "input:in.dat")
        self.assertIn("since an earlier command fetched a part of it; that part is fetched again", done.stderr)
        self.assertEqual(json.loads(done.stdout)[0]["resumed"], 0)
        self.got()
        self.assertEqual(sum(len(self.objects(node)) for node in NODES), 3)

    def test_what_nobody_goes_on_with_goes(self):
        self.serve_slowly()
        while not any(self.objects(node) for node in NODES):
            self.assertTrue(self.killed_in_between(8 * MIB))
        until = time.monotonic() + PATIENCE
        while any(self.objects(node) for node in NODES):
            self.assertLess(time.monotonic(), until)
            self.data("df", "input")
            time.sleep(0.5)
        done = self.staged()
        self.assertEqual(done["resumed"], 0)
        self.got()


if __name__ == "__main__":
    unittest.main()
