"""A job's lease on its nodes: a controller that stands still for less is nothing; after its end no rank writes another byte."""

import concurrent.futures
import json
import os
import signal
import time
import unittest

from cases import InDirectory
from cluster import OTHERS, Lab, compile_mpi

# Writes a byte at a time, without end.
WRITER = 'while :; do printf x >> "$0"; done'

# All of a node stands still for longer than the lease; how much its rank has written when that begins, and after it.
STOPPED_PAST_THE_LEASE = OTHERS + """
kill -STOP $all 2>/dev/null; sleep 1; stat -c %s "$1"; sleep 11; kill -CONT $all 2>/dev/null; sleep 2; stat -c %s "$1"
"""


class Leases(InDirectory):
    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(2))
        # Far more than is stood still for: others use this machine, too.
        self.lab.set("MEND_LEASE_MS", "20000")
        self.lab.set("MEND_NODE_TIMEOUT_MS", "20000")

    def controller(self, name):
        """Sends signals to `mend run` itself, whatever stands between."""
        found = self.lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout
        pid = str(json.loads(found)["controller_pid"])
        return lambda number: self.lab.on("head", "kill", f"-{number}", pid)

    def test_a_controller_that_stands_still_for_a_while_is_nothing(self):
        program = compile_mpi("mpi_iters.c", os.path.join(self.work, "iters"))
        argv = [program, "-i", "60", "-w", "200", "-m", "8", "-u", "go"]
        expected = self.lab.undisturbed("-n", "2", "--hosts", "node1", "--", *argv)
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "--", *argv)
        name = self.lab.running(job)
        send = self.controller(name)
        for _ in range(2):
            send(signal.SIGSTOP.value)
            time.sleep(3)
            send(signal.SIGCONT.value)
            # `mend lab exec` stops with its command, as job control expects.
            job.interrupt(signal.SIGCONT)
            self.lab.verb("checkpoint", name)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), expected)
        self.assertNotIn("is lost", job.stderr())

    def break_connections(self):
        """Resets all connections of the controller to node2's daemon. Returns how many there were."""
        head = self.lab.on("node2", "getent", "hosts", "head").stdout.split()[0]
        chosen = f"sport = :7117 and dst {head}"
        closed = self.lab.on("node2", "ss", "--kill", "--no-header", "--tcp", "--numeric", "state", "established", chosen)
        self.assertEqual(closed.returncode, 0, closed.stderr)
        return len(closed.stdout.splitlines())

    def test_connections_that_break_again_and_again_are_nothing(self):
        """Whatever was under way, either way: output, orders of a checkpoint and a migration. The journal says that they broke."""
        program = compile_mpi("mpi_iters.c", os.path.join(self.work, "iters"))
        argv = [program, "-i", "60", "-w", "200", "-m", "8", "-p", "2000", "-u", "go"]
        expected = self.lab.undisturbed("-n", "2", "--hosts", "node1", "--", *argv)
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "--", *argv)
        name = self.lab.running(job)
        broken = 0
        verbs = (["checkpoint", name], ["migrate", name, "1", "--to", "node1"], ["migrate", name, "1", "--to", "node2"])
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for verb in verbs * 3:
                asked = pool.submit(self.lab.verb, *verb)
                for _ in range(4):
                    broken += self.break_connections()
                asked.result()
        if not broken:
            self.skipTest("this kernel closes no connections for others (CONFIG_INET_DIAG_DESTROY)")
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), expected)
        self.assertIn("was opened again; nothing was lost", self.lab.mend("log", name).stdout)

    def test_a_link_that_is_cut_for_less_than_the_lease_is_nothing(self):
        program = compile_mpi("mpi_iters.c", os.path.join(self.work, "iters"))
        argv = [program, "-i", "60", "-w", "200", "-m", "8", "-u", "go"]
        expected = self.lab.undisturbed("-n", "2", "--hosts", "node1", "--", *argv)
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "--", *argv)
        name = self.lab.running(job)
        cut = "ip link set dev eth0 down; sleep 3; ip link set dev eth0 up"
        for _ in range(2):
            self.assertEqual(self.lab.on("node2", "sh", "-c", cut).returncode, 0)
            self.lab.verb("checkpoint", name)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), expected)

    def test_no_byte_is_written_after_a_lease_whatever_stood_still(self):
        """Everything on the node is stopped, what holds the lease included, and goes on when it has ended."""
        # Longer than a busy machine stands still by itself, and shorter than this node does.
        self.lab.set("MEND_LEASE_MS", "8000")
        self.lab.set("MEND_NODE_TIMEOUT_MS", "11000")
        files = [os.path.join(self.directory, f"written-{rank}") for rank in range(2)]
        script = f'exec sh -c \'{WRITER}\' {self.directory}/written-$MEND_RANK'
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "--", "sh", "-c", script)
        job.wait_for(lambda: all(os.path.exists(path) for path in files), "both ranks write")
        self.lab.running(job)
        before, after = self.lab.on("node2", "sh", "-c", STOPPED_PAST_THE_LEASE, "sh", files[1]).stdout.split()
        self.assertGreater(int(before), 0)
        self.assertEqual(before, after)
        job.finish(75)


if __name__ == "__main__":
    unittest.main()
