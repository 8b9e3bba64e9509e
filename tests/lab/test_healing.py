"""A job that loses a node, or a rank to a signal, goes on by itself from its last checkpoint; what it prints reads as if nothing had happened."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from cases import InDirectory, OnMachine
from cluster import MEND, STOPPED, Lab, compile_mpi

# Prints what it reads, and stays where it is told to, without a child.
READER = 'while read -r line; do echo "got $line"; case $line in stay*) while [ ! -e go ]; do :; done;; esac; done; echo end'

# Each rank counts in a file of its own: two writers of one file would show.
WRITER = 'exec 3>>"$0-$MEND_RANK"; i=0; while :; do i=$((i + 1)); echo $i >&3; done'


class Heals(InDirectory):
    """Jobs of `mpi_iters`, which stay in their middle until they are let go."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))

    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(4))
        self.lab.set("MEND_ON_FAILURE", None)
        self.argv = [self.program, "-i", "60", "-w", "200", "-m", "8", "-u", "go"]

    def start(self, ranks, hosts, *more):
        job = self.lab.start(self.directory, "run", "-n", str(ranks), "--hosts", hosts, *more, "--", *self.argv)
        return job, self.lab.running(job)

    def again(self, job, name, times):
        """Waits until all ranks run again, for the so manieth time."""
        job.wait_for(lambda: job.stderr().count("restored and run") == times, f"it has gone on {times} times")
        self.assertEqual(self.lab.running(job), name)

    def ends_well(self, job, ranks, node="node1"):
        """And has printed what it prints if nothing happens, as on this node."""
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), self.lab.undisturbed("-n", str(ranks), "--hosts", node, "--", *self.argv))

    def record(self, name):
        return json.loads(self.lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout)


class Nodes(Heals):
    def test_a_run_that_was_given_up_is_not_gone_on_with(self):
        job, name = self.start(2, "node1,node2", "--spares", "node3")
        for _ in range(3):
            self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        restart = lambda *more: self.lab.start(self.directory, "restart", name, "--repeat-output", "--hosts", "node1,node2", "--spares", "node3", *more)
        job = restart("--checkpoint", "1")
        self.lab.running(job)
        self.assertIn("checkpoints 2 to 3 are given up by that", job.stderr())
        self.lab.kill_daemon("node2")
        self.again(job, name, 2)
        self.assertIn("goes on by itself, from checkpoint 1 if that is good", job.stderr())
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        # So it is without a failure, until another one is taken.
        job = self.lab.start(self.directory, "restart", name, "--hosts", "node1,node3")
        self.lab.running(job)
        self.assertIn(f"restarting {name} from checkpoint 1 ", job.stderr())
        self.assertEqual(self.lab.verb("checkpoint", name)["number"], 4)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        job = self.lab.start(self.directory, "restart", name, "--hosts", "node1,node3")
        self.lab.running(job)
        self.assertIn(f"restarting {name} from checkpoint 4", job.stderr())
        job.let_go()
        job.finish(0)

    def test_a_node_dies_and_a_spare_takes_its_ranks(self):
        self.lab.set("MEND_LEASE_MS", "6000")
        self.lab.set("MEND_NODE_TIMEOUT_MS", "3000")
        job, name = self.start(4, "node1,node2", "--spares", "node3")
        self.lab.verb("checkpoint", name)
        self.lab.kill("node2")
        self.again(job, name, 1)
        places = self.lab.places(name)
        self.assertEqual((places.count("node1"), places.count("node3")), (2, 2))
        self.assertIn("goes on by itself, from checkpoint 1", job.stderr())
        self.assertIn("goes_on", [one["event"] for one in self.lab.verb("log", name)])
        # It is a job like any other: verbs, another checkpoint, another failure.
        self.lab.verb("checkpoint", name)
        self.lab.verb("migrate", name, "0", "--to", "node3")
        self.lab.kill("node1")
        self.again(job, name, 2)
        self.assertEqual(self.lab.places(name), ["node3"] * 4)
        self.ends_well(job, 4, "node4")

    def test_daemons_are_killed_ten_times_in_a_row(self):
        job, name = self.start(3, "node1,node2,node3", "--spares", "node4")
        for times in range(1, 11):
            self.lab.verb("checkpoint", name)
            places = self.lab.places(name)
            victim = places[times % 3]
            self.lab.kill_daemon(victim)
            self.again(job, name, times)
            self.assertNotIn(victim, self.lab.places(name))
            self.lab.start_daemon(victim, self.directory)
        self.ends_well(job, 3)

    def test_images_come_from_the_memory_of_partners(self):
        """Nothing of a checkpoint is on a disk; what the lost node had, its partner has, too."""
        job, name = self.start(3, "node1,node2,node3", "--tiers", "memory,partner")
        for times, victim in ((1, "node2"), (2, "node1")):
            self.lab.verb("checkpoint", name)
            whole = lambda: self.lab.verb("checkpoints", name)[-1]["tiers"] == ["memory", "partner"]
            job.wait_for(whole, "partners have their copies")
            self.lab.kill_daemon(victim)
            self.again(job, name, times)
            self.assertNotIn(victim, self.lab.places(name))
        self.ends_well(job, 3, "node3")

    def test_a_daemon_dies_while_the_job_goes_on(self):
        """The second one while ranks are rebuilt, or a moment before or after."""
        for pause in (0.3, 0.6, 0.9):
            job, name = self.start(4, "node1,node2", "--spares", "node3,node4")
            self.lab.verb("checkpoint", name)
            self.lab.kill_daemon("node2")
            time.sleep(pause)
            self.lab.kill_daemon("node1")
            # Both may have been noticed at once.
            restored = lambda: "restored and run" in job.stderr().rpartition("goes on by itself")[2]
            job.wait_for(lambda: restored() and set(self.lab.places(name)) == {"node3", "node4"}, "it has gone on without both")
            self.lab.running(job)
            self.ends_well(job, 4, "node3")
            for node in ("node1", "node2"):
                self.lab.start_daemon(node, self.directory)
            self.directory = tempfile.mkdtemp(dir=self.work)

    def test_without_a_checkpoint_or_where_it_is_not_wanted_it_ends(self):
        job, name = self.start(2, "node1,node2")
        self.lab.kill_daemon("node2")
        job.finish(75)
        self.assertIn("the job was stopped", job.stderr())
        self.assertNotIn("by itself", job.stderr())
        other, name = self.start(2, "node1,node3", "--on-failure", "stop")
        self.lab.verb("checkpoint", name)
        self.lab.kill_daemon("node3")
        other.finish(75)
        self.assertIn(f"`mend restart {name}` continues it", other.stderr())
        self.assertNotIn("by itself", job.stderr())

    def test_a_node_that_has_the_only_copy_of_an_image_is_waited_for(self):
        """And the job says what it waits for."""
        disk = os.path.join(self.directory, "disk")
        os.mkdir(disk)
        for node in ("node1", "node2"):
            self.lab.on(node, "mount", "-t", "tmpfs", "-o", "size=256m,mode=1777", "none", disk)
        job, name = self.start(2, "node1,node2", "--spares", "node3", "--tiers", f"local:{disk}", "--wait-for-nodes", "60")
        self.lab.verb("checkpoint", name)
        self.lab.kill_daemon("node2")
        job.wait_for(lambda: "waits for nodes" in job.stderr(), "it waits")
        self.lab.start_daemon("node2", self.directory)
        self.again(job, name, 1)
        # Now a life begins, and finds out that an image is nowhere. That is not the job's end.
        self.assertTrue(self.lab.kill_rank("node1", self.lab.places(name).index("node1"), 9))
        self.again(job, name, 2)
        said = len(job.stderr())
        self.lab.kill_daemon("node2")
        job.wait_for(lambda: "waits for nodes" in job.stderr()[said:], "it waits")
        time.sleep(2.5)
        self.assertEqual(job.stderr()[said:].count("restarting"), 1)
        self.assertIsNone(self.record(name)["ended"])
        self.assertEqual(next(one for one in self.lab.verb("ps") if one["id"] == name)["state"], "restarting")
        self.lab.start_daemon("node2", self.directory)
        self.again(job, name, 3)
        self.ends_well(job, 2)

    def test_a_node_with_the_only_copy_that_does_not_come_back_ends_the_job(self):
        job, name = self.start(2, "node1,node2", "--spares", "node3", "--tiers", "memory", "--wait-for-nodes", "4")
        self.lab.verb("checkpoint", name)
        self.assertTrue(self.lab.kill_rank("node1", self.lab.places(name).index("node1"), 9))
        self.again(job, name, 1)
        self.lab.kill_daemon("node2")
        job.finish(75)
        self.assertIn("no good copy in any tier", job.stderr())
        self.assertIn(f"`mend restart {name}` when nodes are there again", job.stderr())
        self.assertEqual(self.record(name)["exit_code"], 75)
        # By hand it is as far.
        again = self.lab.mend("restart", name, cwd=self.directory)
        self.assertEqual(again.returncode, 65, again.stderr)
        self.assertEqual(self.record(name)["exit_code"], 65)
        self.lab.start_daemon("node2", self.directory)
        job.let_go()
        done = self.lab.mend("restart", name, cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.record(name)["exit_code"], 0)

    def test_where_no_node_is_left_it_waits_or_ends(self):
        job, name = self.start(2, "node1")
        self.lab.verb("checkpoint", name)
        self.lab.kill_daemon("node1")
        job.finish(75)
        self.assertIn(f"job {name} cannot go on by itself: none of the hosts node1 answers", job.stderr())
        self.assertIn("--wait-for-nodes", job.stderr())
        ended = next(one for one in self.lab.verb("ps", "--all") if one["id"] == name)
        self.assertEqual(ended["cause"]["code"], "unreachable")
        job, name = self.start(2, "node2", "--wait-for-nodes", "600")
        self.lab.verb("checkpoint", name)
        self.lab.kill_daemon("node2")
        job.wait_for(lambda: "the job waits for nodes" in job.stderr(), "it waits")
        self.assertEqual(next(one for one in self.lab.verb("ps") if one["id"] == name)["state"], "restarting")
        # A verb waits, too, and is answered by the next life.
        asked = subprocess.Popen(self.lab.command("checkpoint", name, "--json"), env=self.lab.environment, stdout=subprocess.PIPE)
        # It tries again and again, and says once that it does.
        time.sleep(3)
        self.assertEqual(job.stderr().count("left out: node node2"), 1)
        self.lab.start_daemon("node2", self.directory)
        self.again(job, name, 1)
        self.assertEqual(json.loads(asked.communicate(timeout=60)[0])["number"], 2)
        self.ends_well(job, 2, "node2")

    def test_a_job_that_waits_for_nodes_can_be_ended(self):
        ends = (
            (143, lambda name: self.lab.on("head", "kill", "-TERM", str(self.record(name)["controller_pid"]))),
            (137, lambda name: self.lab.verb("kill", name)),
            # Its controller is on another node, whose processes a signal from here does not reach.
            (137, lambda name: self.assertEqual(self.lab.on("node3", MEND, "kill", name).returncode, 0)),
        )
        for node, (code, end) in zip(("node1", "node2", "node1"), ends, strict=True):
            self.directory = tempfile.mkdtemp(dir=self.work)
            job, name = self.start(2, node, "--wait-for-nodes", "600")
            self.lab.verb("checkpoint", name)
            self.lab.kill_daemon(node)
            job.wait_for(lambda: "the job waits for nodes" in job.stderr(), "it waits")
            end(name)
            job.finish(code)
            self.assertIsNotNone(self.record(name)["ended"])
            self.lab.start_daemon(node, self.directory)

    def test_a_job_one_of_whose_lives_ends_can_be_ended(self):
        """A node that stands still makes the end of the life take long."""
        self.lab.set("MEND_LEASE_MS", "60000")
        self.lab.set("MEND_NODE_TIMEOUT_MS", "60000")
        ends = (
            (137, lambda name: self.lab.verb("kill", name)),
            (128 + signal.SIGINT, lambda name: self.lab.on("head", "kill", "-INT", str(self.record(name)["controller_pid"]))),
        )
        for code, end in ends:
            self.directory = tempfile.mkdtemp(dir=self.work)
            job, name = self.start(2, "node1,node2")
            self.lab.verb("checkpoint", name)
            self.lab.signal("node2", "STOP")
            self.lab.kill_rank("node1", 0, signal.SIGKILL.value)
            job.wait_for(lambda: "rank 0 on node1 was ended by signal 9" in job.stderr(), "the life ends")
            end(name)
            job.finish(code)
            self.assertNotIn("goes on by itself", job.stderr())
            self.lab.signal("node2", "CONT")

    def test_a_node_that_ended_its_ranks_for_the_lease_says_so(self):
        """It stands still for longer than the lease, and nobody takes it for dead meanwhile."""
        self.lab.set("MEND_ON_FAILURE", "stop")
        self.lab.set("MEND_LEASE_MS", "8000")
        self.lab.set("MEND_NODE_TIMEOUT_MS", "60000")
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "sleep", "600")
        self.lab.running(job)
        self.lab.on("node2", "sh", "-c", STOPPED, "sh", "13")
        job.finish(75)
        told = r"without a word from the job's controller for 8000 ms, for (\d+) ms of which the node itself stood still, it ended its ranks"
        self.assertRegex(job.stderr(), told)
        # Most of the lease. It says less where, on a busy machine, somebody looked late.
        still = int(re.search(told, job.stderr())[1])
        self.assertTrue(1000 <= still <= 8000, still)
        self.assertIn("MEND_LEASE_MS", job.stderr())

    def test_ranks_of_a_silent_node_have_ended_before_others_take_their_place(self):
        """All of the node stands still for longer than the lease, and then runs again: no byte comes from it."""
        self.lab.set("MEND_LEASE_MS", "8000")
        self.lab.set("MEND_NODE_TIMEOUT_MS", "4000")
        base = os.path.join(self.directory, "written")
        script = ["sh", "-c", WRITER, base]
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "--spares", "node3", "--", *script)
        name = self.lab.running(job)
        job.wait_for(lambda: all(os.path.exists(f"{base}-{rank}") for rank in range(2)), "both ranks write")
        self.lab.verb("checkpoint", name)
        asleep = self.lab.command()
        asleep = [*asleep[: asleep.index("head")], "node2", "--", "sh", "-c", STOPPED, "sh", "14"]
        stopped = subprocess.Popen(asleep, env=self.lab.environment)
        self.again(job, name, 1)
        self.assertIn("ranks on a node that cannot be asked may live for so long", job.stderr())
        size = os.path.getsize(f"{base}-1")
        stopped.wait(60)
        time.sleep(1)
        self.assertGreater(os.path.getsize(f"{base}-1"), size)
        self.lab.verb("kill", name)
        job.finish(137)
        for rank in range(2):
            with open(f"{base}-{rank}", encoding="ascii") as file:
                lines = file.read().splitlines()
            # The last one may be cut by the end.
            self.assertEqual(lines[:-1], [str(number + 1) for number in range(len(lines) - 1)])


class Ranks(OnMachine):
    def setUp(self):
        super().setUp()
        self.machine.set("MEND_ON_FAILURE", None)

    def test_a_rank_that_is_killed_is_tried_again_so_often(self):
        script = 'echo begun; while [ ! -e die ]; do :; done; echo dying; kill -SEGV $$'
        job = self.machine.start(self.directory, "run", "--retries", "2", "sh", "-c", script)
        name = self.machine.running(job)
        job.wait_for(lambda: "begun" in job.stdout(), "it runs")
        self.machine.verb("checkpoint", name)
        with open(os.path.join(self.directory, "die"), "w", encoding="utf-8"):
            pass
        job.finish(128 + signal.SIGSEGV)
        self.assertEqual(job.stdout(), "begun\ndying\n")
        self.assertEqual(job.stderr().count("was ended by signal 11"), 3)
        self.assertEqual(job.stderr().count("goes on by itself"), 2)
        self.assertIn("went on from checkpoint 1 2 times and failed again", job.stderr())
        causes = [one["data"]["cause"] for one in self.machine.verb("log", name) if one["event"] in ("goes_on", "ended")]
        self.assertEqual([cause["code"] for cause in causes], ["rank_signal"] * 3)

    def test_who_ends_the_job_ends_it(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            job = self.machine.start(self.directory, "run", "sh", "-c", "while :; do :; done")
            name = self.machine.running(job)
            self.machine.verb("checkpoint", name)
            job.interrupt(number)
            job.finish(code)
        job = self.machine.start(self.directory, "run", "sh", "-c", "while :; do :; done")
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        self.machine.verb("kill", name)
        job.finish(137)
        self.assertNotIn("by itself", job.stderr())

    def test_a_program_s_own_failure_is_its_end(self):
        job = self.machine.start(self.directory, "run", "sh", "-c", "while [ ! -e go ]; do :; done; exit 9")
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        job.let_go()
        job.finish(9)
        self.assertNotIn("by itself", job.stderr())

    def reads(self, stdin, feed):
        """A job that reads `stay` in its middle is killed there, and again when it has gone on; `feed` gives it the rest."""
        job = self.machine.start(self.directory, "run", "bash", "-c", READER, stdin=stdin)
        name = self.machine.running(job)
        feed("a\nb\nstay\n")
        job.wait_for(lambda: "got stay" in job.stdout(), "it has read to its middle")
        self.machine.verb("checkpoint", name)
        # More than a pipe holds: it is read, kept and not taken when the rank dies.
        feed("".join(f"line {i}\n" for i in range(20000)))
        for times in (1, 2):
            self.kill_rank()
            job.wait_for(lambda: job.stderr().count("restored and runs") == times, "it has gone on")
            self.machine.running(job)
        feed("last\n")
        job.let_go()
        feed(None)
        job.finish()
        lines = ["a", "b", "stay", *(f"line {i}" for i in range(20000)), "last"]
        self.assertEqual(job.stdout(), "".join(f"got {line}\n" for line in lines) + "end\n")
        return job

    def kill_rank(self):
        """The one process that runs the program in this directory."""
        found = subprocess.run(["pgrep", "-f", "^bash -c while read"], capture_output=True, text=True, check=False)
        mine = [pid for pid in found.stdout.split() if os.path.realpath(f"/proc/{pid}/cwd") == os.path.realpath(self.directory)]
        self.assertEqual(len(mine), 1)
        os.kill(int(mine[0]), signal.SIGKILL)

    def test_standard_input_from_a_pipe_goes_on(self):
        reader, writer = os.pipe()
        def feed(text):
            if text is None:
                for thread in threads:
                    thread.join(60)
                os.close(writer)
                return
            thread = threading.Thread(target=self.write_all, args=(writer, text, threads[-1] if threads else None))
            threads.append(thread)
            thread.start()

        threads = []
        self.reads(reader, feed)
        os.close(reader)

    @staticmethod
    def write_all(writer, text, after):
        if after:
            after.join()
        data = text.encode()
        while data:
            data = data[os.write(writer, data):]

    def test_standard_input_from_a_file_goes_on(self):
        path = os.path.join(self.directory, "input")
        with open(path, "w", encoding="utf-8") as file:
            file.write("a\nb\nstay\n" + "".join(f"line {i}\n" for i in range(20000)) + "last\n")
        with open(path, encoding="utf-8") as file:
            self.reads(file, lambda text: None)


if __name__ == "__main__":
    unittest.main()
