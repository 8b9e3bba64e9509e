"""Where a restart goes: the hosts of the last run, spares, and nodes that are dead."""

import os
import unittest

from cases import InDirectory
from cluster import Lab, compile_mpi


class Hosts(InDirectory):
    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(3))
        program = compile_mpi("mpi_iters.c", os.path.join(self.work, "iters"))
        self.argv = ["-n", "2", "--", program, "-i", "60", "-w", "200", "-m", "2", "-u", "go"]

    def start(self, *arguments):
        job = self.lab.start(self.directory, *arguments)
        return job, self.lab.running(job)

    def end(self, job, name):
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)

    def test_a_restart_goes_where_the_last_run_was_and_takes_spares(self):
        job, name = self.start("run", "--hosts", "node1", *self.argv)
        self.lab.verb("checkpoint", name)
        self.end(job, name)
        job, name = self.start("restart", name, "--hosts", "node2")
        self.end(job, name)
        self.lab.kill("node1")
        job, name = self.start("restart", name, "--spares", "node3,node1")
        self.assertEqual(self.lab.places(name), ["node2", "node2"])
        self.assertIn("left out: node node1", job.stderr())
        self.assertEqual(self.lab.verb("migrate", name, "1")["to"], "node3")
        job.let_go()
        job.finish(0)

    def test_a_dead_spare_keeps_no_job_from_starting_and_a_lost_node_is_not_waited_for(self):
        self.lab.kill("node3")
        job, name = self.start("run", "--hosts", "node1,node2", "--spares", "node3", *self.argv)
        self.assertIn("left out: node node3", job.stderr())
        self.lab.verb("checkpoint", name)
        self.lab.kill("node2")
        job.finish(75)
        job, name = self.start("restart", name)
        self.assertEqual(self.lab.places(name), ["node1", "node1"])
        self.assertIn("left out: node node2", job.stderr())
        job.let_go()
        job.finish(0)

    def test_ranks_have_the_umask_of_who_starts_them(self):
        for mask in (0o027, 0o077, 0o002):
            before = os.umask(mask)
            try:
                done = self.lab.mend("run", "-n", "2", "--hosts", "node1,node2", "--", "sh", "-c", "umask", cwd=self.directory)
            finally:
                os.umask(before)
            self.assertEqual((done.returncode, done.stdout), (0, f"{mask:04o}\n" * 2), done.stderr)

    def test_a_dead_daemon_is_shown(self):
        found = self.lab.on("node1", "pgrep", "-x", "mendd").stdout.split()
        self.assertEqual(len(found), 1)
        self.lab.on("node1", "kill", "-KILL", found[0])
        shown = self.lab.lab("ls", "--name", self.lab.name)
        self.assertEqual((shown.count("mendd is dead"), shown.count("mendd")), (1, 3))


if __name__ == "__main__":
    unittest.main()
