"""The controller is lost when all ranks have ended, and what they printed last is not printed yet."""

import os
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from test_detach import until
from test_failover import Failover


class LastOutput(Failover):
    def test_a_successor_prints_it_and_puts_the_end_on_record(self):
        much, pipe = 200_000, subprocess.PIPE
        writes = f"head -c {much} /dev/zero | tr '\\0' x; : > over"
        command = self.lab.command("run", "-n", "1", "--hosts", "node1", "sh", "-c", writes)
        job = subprocess.Popen(command, env=self.lab.environment, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        until(lambda: os.path.exists(os.path.join(self.directory, "over")), "all is written")
        [name] = [one["id"] for one in self.lab.verb("ps")]
        # Its nodes have let it go. Without a reader it goes no further.
        time.sleep(2)
        self.kill_controller(name)
        out, _ = job.communicate()
        self.assertLess(len(out), much)
        waited = self.lab.mend("wait", name)
        self.assertEqual(waited.returncode, 0, waited.stderr)
        self.assertEqual(len(out) + len(self.logs(name).stdout), much)
        self.assertIn("took_over", self.events(name))


if __name__ == "__main__":
    unittest.main()
