"""`mend bench` that is interrupted: what it made to measure with is gone then."""

import os
import signal
import subprocess
import unittest

from cases import InDirectory
from cluster import MEND, PATIENCE
from test_space import fuse_is_open


class Interrupted(InDirectory):
    def labs(self):
        done = subprocess.run([MEND, "lab", "ls"], capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if "bench-" in line]

    def interrupt(self, whole_group, *arguments):
        """Ends it when it has begun to measure, by what a terminal or somebody else sends. Its exit code, and what it says then."""
        command = [MEND, "bench", *arguments, "--runs", "1000"]
        bench = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            self.assertRegex(bench.stderr.readline(), "^mend: ")
            self.assertEqual(len(self.labs()), 1)
            if whole_group:
                os.killpg(bench.pid, signal.SIGINT)
            else:
                bench.terminate()
            _, said = bench.communicate(timeout=PATIENCE)
        finally:
            if bench.poll() is None:
                os.killpg(bench.pid, signal.SIGKILL)
        self.assertEqual(self.labs(), [])
        return bench.returncode, said

    def test_moves(self):
        for whole_group, code in ((True, 130), (False, 143)):
            ended, said = self.interrupt(whole_group, "migrate", "--sizes", "16M", "--ranks", "1", "--strategies", "pipeline")
            self.assertEqual(ended, code, said)
            self.assertIn("what was made for it is removed", said)

    @unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so the pipe cannot be mounted")
    def test_pipe(self):
        for whole_group, code in ((True, 130), (False, 143)):
            ended, said = self.interrupt(whole_group, "pipe", "--size", "8M", "--chunks", "64K", "--pools", "8M", "--writers", "1")
            self.assertEqual(ended, code, said)


if __name__ == "__main__":
    unittest.main()
