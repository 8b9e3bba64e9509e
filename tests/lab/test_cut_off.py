"""A node of a job that nobody can ask, and whose ranks run: `mend restart` begins none of them a second time."""

import os
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster import processes_of
from test_failover import Failover


class CutOff(Failover):
    """A node that nobody can ask runs its ranks until its lease is over; a restart begins none of them beside that."""

    CUT = "ip link set dev eth0 down"

    def start_on_two(self, *more, node="head", lease_ms=20000):
        self.lab.set("MEND_LEASE_MS", str(lease_ms))
        self.lab.set("MEND_NODE_TIMEOUT_MS", "3000")
        name = self.detached(2, "node1,node2", *more, node=node)
        self.lab.verb("checkpoint", name)
        pids = self.lab.on("node2", "pgrep", "-f", self.program).stdout.split()
        self.assertTrue(pids)
        self.assertEqual(self.lab.on("node2", "sh", "-c", self.CUT).returncode, 0)
        return name

    def restarts_elsewhere(self, name):
        before = set(processes_of(self.program))
        restart = subprocess.Popen(
            self.lab.command("restart", "--detach", "--hosts", "node1,node4", name),
            cwd=self.directory,
            env=self.lab.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        most = 0
        while restart.poll() is None:
            most = max(most, len(processes_of(self.program)))
            time.sleep(0.05)
        said = restart.stderr.read().decode()
        restart.stderr.close()
        self.assertEqual(restart.returncode, 0, said)
        self.assertIn(f"ranks of job {name} may still run on node2: their end is waited for", said)
        self.assertFalse(before & set(processes_of(self.program)), "no rank runs beside its copy")
        self.assertLessEqual(most, 2)
        self.has_ended_well(name, 2, "node4")

    def test_its_controller_has_lost_power(self):
        name = self.start_on_two(node="node3")
        self.lab.kill("node3")
        self.restarts_elsewhere(name)

    def test_its_controller_has_given_it_up(self):
        name = self.start_on_two("--on-failure", "stop")
        self.assertEqual(self.lab.mend("wait", name).returncode, 75)
        self.restarts_elsewhere(name)

    def test_a_restart_that_waits_is_shown_and_killed_and_holds_up_no_other_job(self):
        other = self.lab.start(self.directory, "run", "--hosts", "node3", "--spares", "node1", "--", "sleep", "1000")
        stays = self.lab.running(other)
        name = self.start_on_two("--on-failure", "stop", lease_ms=60000)
        self.assertEqual(self.lab.mend("wait", name).returncode, 75)
        restart = self.lab.start(self.directory, "restart", "--hosts", "node1,node4", name)
        states = lambda: {listed["id"]: listed["state"] for listed in self.lab.verb("ps")}
        restart.wait_for(lambda: states().get(name) == "restarting", "it is shown")
        refused = self.lab.mend("checkpoint", name)
        self.assertIn("is being restarted", refused.stderr)
        done = self.lab.verb("drain", "node3")
        self.assertEqual((done["still_there"], done["silent"], [one["job"] for one in done["ranks"]]), ([], [], [stays]))
        self.assertEqual(states().get(name), "restarting")
        killed = self.lab.mend("kill", name)
        self.assertEqual(killed.returncode, 0, killed.stderr)
        restart.finish(137)
        self.lab.mend("kill", stays)


if __name__ == "__main__":
    unittest.main()
