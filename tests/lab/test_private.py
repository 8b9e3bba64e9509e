"""Checkpoints are their owner's alone, whatever the umask of the user or of the program, and usable to their owner."""

import os
import stat
import subprocess
import unittest

from cases import OnMachine
from cluster import compile_plain

STRANGER = 65534
PROGRAM = """\
import os, sys, time
open('started', 'w').close()
os.umask(0o777)
while not os.path.exists('go'): time.sleep(0.005)
print('done')
"""


class Private(OnMachine):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.chmod(cls.work, 0o755)
        cls.count = compile_plain("count.c", os.path.join(cls.work, "count"))

    def setUp(self):
        super().setUp()
        # What keeps others out must be the checkpoints' own modes.
        for open_to_all in (self.machine.home, self.directory):
            os.chmod(open_to_all, 0o755)

    def life(self, umask, *argv, after=None):
        """A job with two checkpoints under a umask, and its restart; the directory of its checkpoints."""
        place = os.path.join(self.directory, "checkpoints")
        os.mkdir(place)
        plain = self.machine.command
        self.machine.command = lambda *arguments: ["sh", "-c", f'umask {umask:04o} && exec "$@"', "sh", *plain(*arguments)]
        job = self.machine.start(self.directory, "run", "-n", "2", "--checkpoint-dir", place, *argv)
        name = self.machine.running(job)
        if after:
            job.wait_for(lambda: os.path.exists(os.path.join(self.directory, after)), f"it made {after}")
        for _ in range(2):
            self.machine.verb("checkpoint", name)
        self.check(os.path.join(place, name))
        self.check(os.path.join(self.machine.home, "jobs"))
        self.machine.mend("kill", name)
        job.finish(137)
        job.let_go()
        self.machine.start(self.directory, "restart", name).finish(0)
        self.check(os.path.join(place, name))

    def check(self, top):
        """Directories 0700, files 0600, and nobody else gets in."""
        self.assertEqual(stat.S_IMODE(os.stat(top).st_mode), 0o700, top)
        for base, directories, files in os.walk(top):
            for name, wanted in [(one, 0o700) for one in directories] + [(one, 0o600) for one in files]:
                path = os.path.join(base, name)
                self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), wanted, path)
        if os.geteuid() == 0:
            for path in [top] + [os.path.join(base, name) for base, _, names in os.walk(top) for name in names]:
                done = subprocess.run(["cat", path], user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, check=False)
                self.assertIn(b"Permission denied", done.stderr, path)

    def test_an_open_umask(self):
        self.life(0, self.count, "200", "100", "go")

    def test_a_umask_that_denies_everything(self):
        self.life(0o777, self.count, "200", "100", "go")

    def test_a_program_that_sets_its_umask(self):
        script = os.path.join(self.directory, "closed.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        self.life(0o022, "python3", "-S", script, after="started")


if __name__ == "__main__":
    unittest.main()
