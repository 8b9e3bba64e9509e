"""Ranks whose processes live go back to a checkpoint in place, when others of their job are lost."""

import os
import signal
import subprocess
import tempfile
import time
import unittest

from cases import OnMachine, Rewrites
from cluster import Lab, compile_mpi, intel_environment
from test_healing import Heals

# Rank, process id and start time of each rank's process on a node.
LOOK = """
for one in /proc/[0-9]*; do
    rank=$(tr '\\0' '\\n' <$one/environ 2>/dev/null | sed -n 's/^MEND_RANK=//p')
    stat=$(cut -d' ' -f1,22 $one/stat 2>/dev/null)
    if [ -n "$rank" ] && [ -n "$stat" ]; then echo $rank $stat; fi
done
true"""

# Counts in its middle, with a child from then on, or a thread less, once it is told to.
CHILD = """
import os, subprocess, sys, threading, time
kind, stop = sys.argv[1], threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
print("begun", file=sys.stderr, flush=True)
i = 0
while not os.path.exists("go"):
    i += 1
    time.sleep(0.01)
    if os.path.exists("change") and not stop.is_set():
        stop.set()
        if kind == "child":
            subprocess.Popen(["sleep", "1000"])
        else:
            thread.join()
        print("changed", file=sys.stderr, flush=True)
os.write(1, ("end of " + os.environ["MEND_RANK"] + chr(10)).encode())
stop.set()
os._exit(0)
"""

# Threads that compute, and wait for each other, all the time.
STEADY = """
import os, sys, threading
over, turn = threading.Event(), threading.Condition()
counted = [0, 0, 0]
def work(own):
    while not over.is_set():
        with turn:
            counted[own] += 1
            turn.wait(0.01)
threads = [threading.Thread(target=work, args=(own,)) for own in range(3)]
for thread in threads:
    thread.start()
print("begun", file=sys.stderr, flush=True)
while not os.path.exists("go"):
    with turn:
        turn.wait(0.01)
over.set()
for thread in threads:
    thread.join()
os.write(1, ("end of " + os.environ["MEND_RANK"] + " " + str(min(counted) > 0) + chr(10)).encode())
"""

# The first rank reads a file of its node, until it is told not to.
LOCAL = """
import os, sys, time
held = open(sys.argv[1], "rb") if os.environ["MEND_RANK"] == "0" else None
print("begun", file=sys.stderr, flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
    if os.path.exists("change") and held:
        held = held.close()
        print("changed", file=sys.stderr, flush=True)
os.write(1, ("end of " + os.environ["MEND_RANK"] + chr(10)).encode())
"""


def change(directory, job, ranks):
    """Has the program do what it does once it is told to, in so many ranks."""
    told = os.path.join(directory, "change")
    with open(told, "w", encoding="utf-8"):
        pass
    job.wait_for(lambda: job.stderr().count("changed") == ranks, f"{ranks} ranks have changed")
    os.unlink(told)


def processes(lab, node):
    found = {}
    for line in lab.on(node, "sh", "-c", LOOK).stdout.splitlines():
        rank, pid, began = line.split()
        found[int(rank)] = (pid, began)
    return found


def events(machine, name, *kinds):
    return [one for one in machine.verb("log", name) if one["event"] in kinds]


class Stay(Heals):
    def stays(self):
        """A daemon is killed, then another one: ranks of the nodes that live stay what they are, time and again."""
        job, name = self.start(4, "node1,node2", "--spares", "node3,node4")
        before = processes(self.lab, "node1")
        self.assertEqual(len(before), 2, before)
        stayed = []
        for times in (1, 2, 3):
            places = self.lab.places(name)
            victim = max(places)
            # Those, too, that were restarted on another node since the checkpoint.
            stayed += [rank for rank, place in enumerate(places) if place != victim]
            # Twice from one checkpoint, and from another one.
            if times != 2:
                self.lab.verb("checkpoint", name)
            self.lab.kill_daemon(victim)
            self.again(job, name, times)
            self.assertEqual(processes(self.lab, "node1"), before, events(self.lab, name, "not_in_place", "node_lost", "goes_on"))
            back = [one["rank"] for one in events(self.lab, name, "went_back")]
            self.assertEqual(sorted(back), sorted(stayed))
            self.lab.start_daemon(victim, self.directory)
        self.assertEqual(events(self.lab, name, "not_in_place"), [])
        self.ends_well(job, 4)

    def test_ranks_of_nodes_that_live_stay_what_they_are(self):
        self.stays()

    def test_with_intel_mpi(self):
        self.lab.environment |= intel_environment()
        self.stays()

    def goes_back(self, argv, may_end):
        """Ranks of the node that lives stay what they are; `may_end`: unless a thread of theirs has ended since."""
        self.argv, self.directory = argv, tempfile.mkdtemp(dir=self.work)
        job, name = self.start(3, "node1,node2", "--spares", "node3")
        self.lab.verb("checkpoint", name)
        before = processes(self.lab, "node1")
        self.lab.kill_daemon("node2")
        self.again(job, name, 1)
        if may_end:
            self.assertTrue(events(self.lab, name, "went_back", "not_in_place"))
        else:
            self.assertTrue(before)
            after = processes(self.lab, "node1")
            self.assertEqual({rank: after.get(rank) for rank in before}, before, events(self.lab, name, "not_in_place", "goes_on"))
        job.let_go()
        job.finish()
        self.lab.start_daemon("node2", self.directory)

    def test_with_windows_and_threads(self):
        for name in ("rma_epochs", "rma_windows", "threads"):
            program = compile_mpi(os.path.join("conformance", f"{name}.c"), os.path.join(self.work, name))
            with self.subTest(name):
                # One that makes threads all the time.
                self.goes_back([program, "-u", "go"], name == "threads")
        with self.subTest("threads that stay"):
            self.goes_back(["python3", "-c", STEADY], False)

    def test_windows_of_intel_mpi(self):
        program = compile_mpi(os.path.join("conformance", "rma_windows.c"), os.path.join(self.work, "rma_windows"))
        self.lab.environment |= intel_environment()
        self.goes_back([program, "-u", "go"], False)

    def test_a_rank_that_is_killed_comes_back_among_those_that_stay(self):
        job, name = self.start(4, "node1,node2")
        self.lab.verb("checkpoint", name)
        before = processes(self.lab, "node1") | processes(self.lab, "node2")
        self.assertTrue(self.lab.kill_rank("node1", 0, signal.SIGKILL))
        self.again(job, name, 1)
        after = processes(self.lab, "node1") | processes(self.lab, "node2")
        self.assertEqual({rank for rank in before if before[rank] == after[rank]}, {1, 2, 3})
        self.ends_well(job, 4)

    def moved_since(self, *tiers):
        """A rank that has moved since the checkpoint goes back where it is, not where it was."""
        job, name = self.start(4, "node1,node2", "--spares", "node3,node4", *tiers)
        self.lab.verb("checkpoint", name)
        self.lab.verb("migrate", name, "1", "--to", "node3")
        before = processes(self.lab, "node3")
        self.lab.kill_daemon("node2")
        self.again(job, name, 1)
        self.assertEqual(list(before), [1])
        self.assertEqual(processes(self.lab, "node3")[1], before[1], events(self.lab, name, "not_in_place", "node_lost", "goes_on"))
        self.assertEqual(sorted(one["rank"] for one in events(self.lab, name, "went_back")), [0, 1])
        self.ends_well(job, 4)

    def test_a_rank_that_moved_since_stays_where_it_is(self):
        self.moved_since()

    def test_a_rank_that_moved_since_has_its_image_from_its_old_node(self):
        self.moved_since("--tiers", "memory,partner")

    def test_a_rank_whose_files_its_new_node_lacks_goes_where_it_was(self):
        kept = "/mnt/scratch/kept"
        self.lab.on("node1", "sh", "-c", f"echo kept >{kept}")
        self.argv = ["python3", "-c", LOCAL, kept]
        job, name = self.start(2, "node1,node2", "--spares", "node3,node4")
        job.wait_for(lambda: job.stderr().count("begun") == 2, "both have begun")
        self.lab.verb("checkpoint", name)
        change(self.directory, job, 1)
        self.lab.verb("migrate", name, "0", "--to", "node3")
        self.lab.kill_daemon("node2")
        self.again(job, name, 1)
        self.assertIn("go where they were then", job.stderr())
        self.assertEqual(self.lab.places(name)[0], "node1")
        job.let_go()
        job.finish()
        self.assertEqual(sorted(job.stdout().splitlines()), ["end of 0", "end of 1"])

    def test_all_are_restarted_where_that_is_wanted(self):
        job, name = self.start(2, "node1,node2", "--spares", "node3", "--on-failure", "restart")
        self.lab.verb("checkpoint", name)
        before = processes(self.lab, "node1")
        self.lab.kill_daemon("node2")
        self.again(job, name, 1)
        self.assertNotEqual(processes(self.lab, "node1"), before)
        self.assertEqual(events(self.lab, name, "went_back", "ranks_paused"), [])
        self.ends_well(job, 2)


class Falls(Heals):
    """Ranks that cannot go back in place are restarted, each for itself."""

    def falls(self, kind):
        self.argv = ["python3", "-c", CHILD, kind]
        job, name = self.start(2, "node1,node2", "--spares", "node3")
        job.wait_for(lambda: job.stderr().count("begun") == 2, "both have their threads")
        self.lab.verb("checkpoint", name)
        change(self.directory, job, 2)
        before = processes(self.lab, "node1")
        self.lab.kill_daemon("node2")
        self.again(job, name, 1)
        self.assertNotEqual(processes(self.lab, "node1"), before)
        self.assertEqual(events(self.lab, name, "went_back"), [])
        job.let_go()
        job.finish()
        self.assertEqual(sorted(job.stdout().splitlines()), ["end of 0", "end of 1"])
        return events(self.lab, name, "not_in_place", "ranks_paused")

    def test_a_rank_with_a_child(self):
        found = self.falls("child")
        self.assertEqual(found, [])
        left = self.lab.on("node1", "sh", "-c", "pgrep -f '[s]leep 1000' || true").stdout
        self.assertEqual(left, "", "its child outlived it")

    def test_a_rank_that_lacks_a_thread(self):
        found = self.falls("thread")
        why = [one["data"]["why"] for one in found if one["event"] == "not_in_place"]
        self.assertEqual(len(why), 1)
        self.assertIn("has ended since", why[0])


class Controllers(Heals):
    def test_ranks_that_nobody_comes_for_end(self):
        """The controller dies between two lives: what stands still on the other node is killed after a while."""
        self.lab.set("MEND_LEASE_MS", "8000")
        self.lab.set("MEND_WAIT_FOR_NODES", "1")
        job, name = self.start(2, "node1,node2")
        self.lab.verb("checkpoint", name)
        # The daemon with rank 1 stands still, so that the job waits for its lease to end.
        self.lab.set("MEND_NODE_TIMEOUT_MS", "1000")
        self.lab.kill_daemon("node2")
        job.wait_for(lambda: "goes on by itself" in job.stderr(), "it goes on")
        job.interrupt(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while processes(self.lab, "node1") and time.monotonic() < deadline:
            time.sleep(0.2)
        self.assertEqual(processes(self.lab, "node1"), {})


class Memory(Rewrites):
    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(3))
        self.lab.set("MEND_ON_FAILURE", None)

    def test_only_what_changed_is_rewritten(self):
        """By rank that goes back: what the program rewrote since, and a few pages; with changes noticed by the kernel, and without."""
        for more in ((), ("--incremental", "4")):
            job, name = self.rewrite(("-n", "2", "--hosts", "node1,node2", "--spares", "node3", *more), footprint=96, dirty=8, directory=f"{len(more)}")
            self.lab.verb("checkpoint", name)
            time.sleep(0.5)
            self.lab.kill_daemon("node2")
            job.wait_for(lambda: "restored and run" in job.stderr(), "it has gone on")
            back = [one["data"]["bytes"] for one in events(self.lab, name, "went_back")]
            self.assertEqual(len(back), 1)
            self.assertLess(back[0], (8 + 2) << 20)
            self.ends_well(job)
            self.lab.start_daemon("node2", self.directory)


class Alone(OnMachine):
    def test_on_one_machine_the_others_stay(self):
        """The daemon that the job has started for itself lives on with them."""
        self.machine.set("MEND_ON_FAILURE", None)
        job = self.machine.start(self.directory, "run", "-n", "3", "--", "python3", "-c", CHILD, "none")
        name = self.machine.running(job)
        job.wait_for(lambda: job.stderr().count("begun") == 3, "all have their threads")
        self.machine.verb("checkpoint", name)
        found = subprocess.run(["pgrep", "-f", "^python3 -c"], capture_output=True, text=True, check=False).stdout.split()
        mine = [pid for pid in found if os.path.realpath(f"/proc/{pid}/cwd") == os.path.realpath(self.directory)]
        self.assertEqual(len(mine), 3)
        os.kill(int(mine[0]), signal.SIGKILL)
        job.wait_for(lambda: "restored and run" in job.stderr(), "it has gone on")
        self.assertTrue(all(os.path.exists(f"/proc/{pid}") for pid in mine[1:]))
        self.assertEqual(len(events(self.machine, name, "went_back")), 2)
        job.let_go()
        job.finish()
        self.assertEqual(sorted(job.stdout().splitlines()), ["end of 0", "end of 1", "end of 2"])


if __name__ == "__main__":
    unittest.main()
