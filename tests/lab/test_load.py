"""Nodes on which far more is to be done than there are processors: they are slow, and healthy."""

import os
import subprocess
import unittest

from cases import InDirectory
from cluster import MEND, PATIENCE, Failed, Lab, compile_mpi

BUSY = 80


class Modest(Lab):
    """A lab that, as all that runs in it, leaves the processors to whoever else uses this machine."""

    def lab(self, verb, *arguments, env=None):
        command = ["nice", "-n", "19", MEND, "lab", verb, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)
        if done.returncode:
            raise Failed(f"mend lab {verb} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def command(self, *arguments):
        return ["nice", "-n", "19", *super().command(*arguments)]


class Load(InDirectory):
    def setUp(self):
        super().setUp()
        for _ in range(BUSY):
            busy = subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"])
            self.addCleanup(busy.wait)
            self.addCleanup(busy.kill)

    def test_a_job_starts_is_saved_and_moves_beside_80_busy_processes(self):
        """Every wait of daemons, agents and ranks is for somebody who lives, however slow."""
        program = compile_mpi("mpi_apart.c", os.path.join(self.work, "apart"))
        lab = self.enterContext(Modest(2))
        # The lease goes by the clock. Beside so many, and other tests, a daemon may well have no processor for its 3 seconds.
        lab.set("MEND_LEASE_MS", "60000")
        job = lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--", program, "-u", "go")
        name = lab.running(job)
        job.wait_for(lambda: job.stderr().count("computes") == 4, "all ranks compute")
        lab.verb("checkpoint", name)
        self.assertEqual(lab.verb("migrate", name, "2", "--to", "node1")["to"], "node1")
        job.let_go()
        job.finish()
        self.assertRegex(job.stdout(), r"\Aapart digest=[0-9a-f]{16}\n\Z")


if __name__ == "__main__":
    unittest.main()
