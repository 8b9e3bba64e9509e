"""Data spaces heal while no job uses them: daemons look at them, and what is away for a while is not taken for lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster import OTHERS, PATIENCE, Lab
from test_space import NODES, Space
from test_space_healing import Losses

NEVER_S = "86400"
# As a removal that was killed leaves the description.
MARKED = """cd "${MEND_HOME:-$HOME/.mend}/spaces" && sed '$ s/}$/, "ending": true }/' input.json >marked && mv marked input.json"""
SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data_server.py")
WATCHING = OTHERS + r"""
for pid in $all; do tr '\0' ' ' </proc/$pid/cmdline | grep -q -e 'mend-space watch ' -e mend-data && echo $pid; done 2>/dev/null; true"""


class Idle(Losses):
    """Daemons look once a second."""

    LOST_S = "3"

    @classmethod
    def setUpClass(cls):
        super(Space, cls).setUpClass()
        settings = {"MEND_SPACE_WATCH_S": "1", "MEND_SPACE_LOST_S": cls.LOST_S, "MEND_SPACE_TIMEOUT_MS": "1000", "MEND_DATA_TIMEOUT_MS": "60000"}
        cls.lab = cls.enterClassContext(Lab(4, daemons=settings))
        for name, value in settings.items():
            # Of daemons that are started again.
            cls.lab.set(name, value)

    def wait_for(self, condition, what):
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                self.fail(f"still waiting for {what}")
            time.sleep(0.2)

    def some_looks(self):
        """Waits for so many looks that whatever counted as lost at the first of them would be elsewhere by now."""
        time.sleep(10)

    def watching(self, node):
        """Processes of a node that look at spaces, or heal them."""
        return self.lab.on(node, "sh", "-c", WATCHING).stdout.split()


class Lost(Idle):
    """A target that is silent for three seconds is lost."""

    def test_what_a_dead_node_had_is_fetched_and_it_lets_go_of_it_when_it_is_back(self):
        self.wide()
        before, _ = self.stripes("wide:in.dat")
        # Heard by all that look.
        self.some_looks()
        lost = sorted(before)[-1]
        self.lab.kill_daemon(lost)
        self.wait_for(lambda: lost not in self.stripes("wide:in.dat")[0], "its stripes to be elsewhere")
        after, keepers = self.stripes("wide:in.dat")
        self.assertEqual((sorted(after.values()), lost in keepers), (sorted(before.values()), False))
        self.without_source()
        self.assertNotIn("came from the source", self.got("wide:in.dat"))
        self.daemon_back(lost)
        held = os.path.join(self.target(lost) + "-wide", "objects")
        self.wait_for(lambda: not [name for _, _, names in os.walk(held) for name in names], "it to let go of what is elsewhere")
        self.data("check", "wide:")

    def test_nodes_that_boot_one_after_the_other_lose_nothing(self):
        self.stage()
        before = self.stripes("input:in.dat")
        for node in ("node1", "node2", "node3", "node4"):
            self.lab.kill_daemon(node)
        for node in ("node1", "node2"):
            self.daemon_back(node)
        # The third has not answered any of those that look now.
        self.some_looks()
        self.assertEqual(self.stripes("input:in.dat"), before)
        for node in ("node3", "node4"):
            self.daemon_back(node)
        self.data("check", "input:")

    def test_a_node_that_is_cut_off_heals_nothing(self):
        self.stage()
        before = self.stripes("input:in.dat")
        self.some_looks()
        [held] = self.objects("node1")
        for node in ("node2", "node3"):
            self.lab.kill_daemon(node)
        os.remove(held)
        self.some_looks()
        self.assertFalse(os.path.exists(held))
        self.assertEqual(self.stripes("input:in.dat"), before)
        for node in ("node2", "node3"):
            self.daemon_back(node)
        self.wait_for(lambda: os.path.exists(held), "its object to be there again")

    def test_what_looks_ends_with_its_daemon(self):
        self.stage()
        self.wait_for(lambda: self.watching("node1"), "node1 to look")
        self.lab.on("node1", "kill", "-TERM", *self.lab.named("node1", "mendd"))
        self.wait_for(lambda: not self.watching("node1"), "nothing of it to be left")
        self.daemon_back("node1")
        self.wait_for(lambda: self.watching("node1"), "node1 to look again")
        self.lab.kill_daemon("node1")
        self.wait_for(lambda: not self.watching("node1"), "nothing of it to be left")
        self.daemon_back("node1")


class Away(Idle):
    """A target that is silent is never lost here; what one lacks that answers is."""

    LOST_S = NEVER_S

    def test_an_object_that_is_gone_comes_back_and_a_silent_target_keeps_its_stripes(self):
        self.wide()
        before, keepers = self.stripes("wide:in.dat")
        self.some_looks()
        away, short = sorted(before)[-1], sorted(before)[0]
        self.lab.kill_daemon(away)
        [held] = [os.path.join(where, name) for where, _, names in os.walk(self.target(short) + "-wide/objects") for name in names]
        with open(held, "rb") as file:
            whole = file.read()
        os.remove(held)
        self.wait_for(lambda: os.path.exists(held) and os.path.getsize(held) == len(whole), "the object to be there again")
        self.assertEqual(self.stripes("wide:in.dat"), (before, keepers))
        self.daemon_back(away)
        self.data("check", "wide:")

    def test_a_space_that_is_removed_and_made_again_is_the_new_one(self):
        self.stage()
        self.wait_for(lambda: self.watching("node1"), "node1 to look")
        os.remove(self.objects("node1")[0])
        self.data("destroy", "input")
        self.some_looks()
        self.assertFalse(any(os.path.exists(self.target(node)) for node in NODES))
        self.assertEqual(self.watching("node1"), [])
        self.data("create", "input", *[word for node in NODES for word in ("--target", f"{node}:{self.target(node)}")])
        self.stage()
        [held] = self.objects("node2")
        os.remove(held)
        self.wait_for(lambda: os.path.exists(held), "the object of the new one to be there again")

    def test_a_space_whose_removal_was_interrupted_is_neither_used_nor_healed(self):
        self.stage()
        marked = self.lab.on("head", "sh", "-c", MARKED)
        self.assertEqual(marked.returncode, 0, marked.stderr)
        [held] = self.objects("node1")
        os.remove(held)
        self.some_looks()
        self.assertFalse(os.path.exists(held))
        self.assertIn("is being removed", self.data("ls", "input:", code=1).stderr)
        self.assertIn("input (being removed)", self.data("ls").stdout)
        # One target has left already.
        for process in self.lab.named("node2", "mend-space"):
            self.lab.on("node2", "kill", "-KILL", process)
        shutil.rmtree(self.target("node2"))
        left = self.data("destroy", "input", code=69)
        self.assertIn("there is no target in this directory", left.stderr)
        self.assertFalse(any(os.path.exists(self.target(node)) for node in NODES))
        self.data("destroy", "--force", "input")
        self.assertEqual(self.data("ls").stdout, "")

    def test_a_source_that_hangs_holds_up_no_other_space(self):
        self.stage()
        self.wide()
        files = lambda node, ending: {os.path.join(where, name) for where, _, names in os.walk(self.target(node) + ending + "/objects") for name in names}
        known = {node: files(node, "-wide") for node in NODES}
        port, told = random.randrange(20000, 30000), os.path.join(self.directory, "told")
        command = [*self.lab.inside("head", sys.executable, SERVER), self.source, str(port), told, "0"]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(server.wait)
        self.addCleanup(os.killpg, server.pid, signal.SIGKILL)
        self.wait_for(lambda: os.path.exists(told), "the server")
        self.data("stage", f"http://head:{port}/in.dat", "wide:slow.dat")
        # The kernel takes connections for it, and nobody answers.
        stopped = f"data_server.py .* {port} "
        self.lab.on("head", "pkill", "-STOP", "-f", stopped)
        hangs = next(held for node in NODES for held in files(node, "-wide") - known[node])
        os.remove(hangs)
        self.wait_for(lambda: any(self.healing(node) for node in ("node1", "node2", "node3", "node4")), "a process that heals")
        [held] = self.objects("node2")
        os.remove(held)
        self.wait_for(lambda: os.path.exists(held) and os.path.getsize(held) > 0, "the object of the other space to be there again")
        self.assertFalse(os.path.exists(hangs))
        self.lab.on("head", "pkill", "-CONT", "-f", stopped)
        self.wait_for(lambda: os.path.exists(hangs), "the object whose source hung to be there again")

    def healing(self, node):
        return self.lab.named(node, "mend-data")


if __name__ == "__main__":
    unittest.main()
