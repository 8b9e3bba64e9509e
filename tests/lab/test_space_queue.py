"""Second copies of staged files follow the queue of a real Slurm: jobs that run or start soon have them, others do not."""

import json
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import InDirectory
from cluster import BIN, ROOT
from slurm_cluster import SlurmLab, needed_by_tests

FILES = ("a.dat", "b.dat", "c.dat", "d.dat")
SIZE = 300_000
LIBRARY = os.path.join(ROOT, "tests", "lab", "library.py")


class Queue(InDirectory):
    """The space `input` on Slurm's three nodes, with four files."""

    @classmethod
    def setUpClass(cls):
        needed_by_tests()
        super().setUpClass()
        cls.lab = cls.enterClassContext(SlurmLab(3))
        for name in cls.lab.node_names():
            cls.lab.start_daemon(name, cls.work)

    def setUp(self):
        super().setUp()
        targets = [word for name in self.lab.node_names() for word in ("--target", f"{name}:{self.directory}/targets/{name}")]
        self.data("create", "input", *targets)
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "input")
        for name in FILES:
            with open(os.path.join(self.directory, name), "wb") as file:
                file.write(os.urandom(SIZE))
            self.data("stage", f"file://{self.directory}/{name}", f"input:{name}")
        self.jobs = []
        self.addCleanup(self.cancel)

    def cancel(self, *numbers):
        for number in numbers or self.jobs:
            self.lab.on("head", "scancel", str(number))
            self.lab.wait_state(number, "CANCELLED", "COMPLETED", "FAILED")

    def data(self, *arguments, code=0):
        done = self.lab.mend("data", *arguments, cwd=self.directory)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def submit(self, directives, *options):
        self.jobs.append(self.lab.submit(self.directory, f"{directives}\nsleep 600\n", "--exclusive", "-N3", *options))
        return self.jobs[-1]

    def copied(self):
        listed = json.loads(self.data("ls", "--json", "input:").stdout)
        return [one["name"] for one in listed if one.get("copies") == 2 and one["copied"] == one["size"]]

    def follow(self, *arguments):
        [said] = json.loads(self.data("replicate", "--queue", "--json", *arguments, "input:").stdout)
        return said

    def test_jobs_that_run_or_start_soon_have_copies_of_what_they_read(self):
        runs = self.submit("#MEND data input:a.dat")
        self.lab.wait_state(runs, "RUNNING")
        first = self.submit(f"#MEND stage-in file://{self.directory}/b.dat input:b.dat")
        second = self.submit("#MEND data input:c.dat input:nothing")
        third = self.submit("#MEND data input:d.dat")
        # Three nodes are in use: two jobs of three nodes are more than that, one is not.
        said = self.follow()
        self.assertEqual((said["jobs"], said["made"], said["failed"]), ([str(number) for number in (runs, first, second)], 3 * SIZE, 0))
        self.assertEqual(self.copied(), ["a.dat", "b.dat", "c.dat"])
        said = self.follow()
        self.assertEqual((said["made"], said["removed"]), (0, 0))
        # The one that ran is over, and the next one runs. One that is held is not in line.
        self.lab.slurm("scontrol", "hold", str(second))
        self.cancel(runs)
        self.lab.wait_state(first, "RUNNING")
        said = self.follow()
        self.assertEqual((said["jobs"], said["removed"]), ([str(first), str(third)], 2 * SIZE))
        self.assertEqual(self.copied(), ["b.dat", "d.dat"])
        # A small job is let in between, wherever it stands.
        self.lab.slurm("scontrol", "release", str(second))
        small = self.submit("#MEND data input:a.dat", "-N1")
        self.assertNotIn(str(small), self.follow()["jobs"])
        self.assertIn(str(small), self.follow("--small", "0.4")["jobs"])
        self.cancel()
        self.assertEqual((self.follow()["jobs"], self.copied()), ([], []))

    def test_the_queue_is_followed_until_the_command_is_interrupted(self):
        command = self.lab.command("data", "replicate", "--queue", "--every", "1", "input:", "input:many/f1")
        log = os.path.join(self.directory, "followed")
        with open(log, "wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.lab.environment, start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        runs = self.submit("#MEND data input:a.dat\n#MEND data nothing")
        self.lab.wait_for(lambda: self.copied() == ["a.dat"], "the data of the job has a second copy")
        # What may be staged later comes to be, and ranks write it.
        node = self.lab.node_names()[0]
        done = self.lab.on(node, "env", f"PYTHONPATH={os.path.join(BIN, 'python')}", sys.executable, LIBRARY, "write", "input", "2", cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        passed_over = "input:many/f1 has two copies anyway: ranks write it; it is passed over"

        def said():
            with open(log, encoding="utf-8") as file:
                return file.read()

        self.lab.wait_for(lambda: passed_over in said(), "a file that ranks write is passed over")
        self.cancel(runs)
        self.lab.wait_for(lambda: self.copied() == [], "it has none any more")
        self.assertIsNone(process.poll())
        self.assertEqual(said().count("nothing is no place in a data space"), 1)

    def test_without_slurm_it_is_told_what_to_do(self):
        # As where there is no slurmctld; the real squeue takes a minute to say so.
        program = os.path.join(self.directory, "bin", "squeue")
        os.makedirs(os.path.dirname(program))
        with open(program, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
        os.chmod(program, 0o755)
        environment = dict(self.lab.environment, PATH=os.path.dirname(program) + os.pathsep + self.lab.environment["PATH"])
        done = self.lab.mend("data", "replicate", "--queue", "input:", env=environment)
        self.assertEqual(done.returncode, 1)
        for word in ("Unable to contact slurm controller", "name files without --queue"):
            self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main()
