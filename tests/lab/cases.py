"""What the test classes here stand on: a directory for each class, one for each of its tests, a machine of the test's own."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from cluster import Machine, compile_mpi

MIB = 1 << 20


class InDirectory(unittest.TestCase):
    """`work` is a directory of the class, `directory` one of the test, where its jobs run."""

    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.mkdtemp(prefix=f"mend-{cls.__name__.lower()}-")
        cls.addClassCleanup(shutil.rmtree, cls.work, ignore_errors=True)

    def setUp(self):
        self.directory = tempfile.mkdtemp(dir=self.work)

    def output(self):
        """What jobs printed in the test's directory, one after the other."""
        with open(os.path.join(self.directory, "stdout"), encoding="utf-8") as file:
            return file.read()

    def key_file(self, name, digits, mode=0o600):
        """A file in the test's directory with a key of these digits; its path."""
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(digits + "\n")
        os.chmod(path, mode)
        return path


class OnMachine(InDirectory):
    """Tests that have a `machine` each: jobs are found by "the last one"."""

    def setUp(self):
        super().setUp()
        self.machine = self.enterContext(Machine())


class Rewrites(InDirectory):
    """Jobs whose ranks fill tables and rewrite a part of them all the time. Whoever inherits has a `lab`, of the class or of each test."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = compile_mpi("mpi_rewrites.c", os.path.join(cls.work, "rewrites"))

    def rewrite(self, placed, *more, footprint, dirty, directory="."):
        """Starts such a job with these options of `mend run`, and with these MiB in each rank: it and its name."""
        argv = [self.program, "-f", str(footprint), "-d", str(dirty), *more, "-u", "go"]
        directory = os.path.join(self.directory, directory)
        os.makedirs(directory, exist_ok=True)
        job = self.lab.start(directory, "run", *placed, "--", *argv)
        name = self.lab.running(job)
        job.wait_for(lambda: "begins" in job.stderr(), "the tables are filled")
        return job, name

    def ends_well(self, job):
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), "rewrites ok\n")

    def moving(self, name, ranks, *more):
        """A live move of these ranks to node3, each of which has begun to send and is not done: its process, with what it was told so far."""
        command = self.lab.command("migrate", name, ",".join(map(str, ranks)), "--to", "node3", "--mode", "live", "--json", *more)
        pipe = subprocess.PIPE
        verb = subprocess.Popen(command, env=self.lab.environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self.addCleanup(self.end, verb)
        begun = set()
        while begun != set(ranks):
            told = verb.stderr.readline()
            self.assertTrue(told, "it ended before all began to send")
            self.assertTrue(told.startswith("{"), told)
            progress = json.loads(told)
            if progress["rank"] not in begun and progress["bytes"] > 4 * MIB:
                self.assertFalse(progress["done"])
                begun.add(progress["rank"])
        return verb

    def fails(self, verb):
        """Waits for a move that comes to nothing, and says so."""
        _, told = verb.communicate()
        self.assertEqual(verb.returncode, 1, told)

    def ends_with_node2(self, job, name):
        """Rank 1 moves from node2, which is lost meanwhile: the job ends, and goes on from a checkpoint."""
        self.lab.verb("checkpoint", name)
        verb = self.moving(name, (1,))
        self.lab.kill("node2")
        verb.communicate()
        self.assertNotEqual(verb.returncode, 0)
        job.finish(75)
        job.let_go()
        self.lab.start(job.directory, "restart", name).finish()
        self.assertEqual(job.stdout(), "rewrites ok\n")

    @staticmethod
    def end(verb):
        if verb.poll() is None:
            verb.kill()
        verb.communicate()
