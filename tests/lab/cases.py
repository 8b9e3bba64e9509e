"""What the test classes here stand on: a directory for each class, one for each of its tests, a machine of the test's own."""

import os
import shutil
import tempfile
import unittest

from cluster import Machine


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
