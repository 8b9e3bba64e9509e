"""Which nodes write to a directory that all of them see, at any moment while a test goes on: by the partial files there."""

import os
import re
import subprocess

from cluster import MEND, PATIENCE

# Every partial file there is, in rows, until the directory is removed or `stop` is there.
WATCH = 'cd "$1" && while [ ! -e stop ]; do echo $(ls -d */.*.partial 2>/dev/null); sleep 0.01; done'


class Writers:
    """Watches until it is asked what it saw, or the context ends."""

    def __init__(self, lab, place):
        self.lab, self.place = lab, place

    def __enter__(self):
        command = [MEND, "lab", "exec", "--name", self.lab.name, "head", "--", "sh", "-c", WATCH, "sh", self.place]
        self.watcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=self.lab.environment)
        return self

    def __exit__(self, *_):
        self.watcher.kill()
        self.watcher.communicate()

    def in_turn(self, test, host):
        """Asserts that each of these nodes was seen to write, and no two at a time; `host`: of each rank, by its number."""
        stop = os.path.join(self.place, "stop")
        test.assertEqual(self.lab.on("head", "touch", stop).returncode, 0)
        rows = [re.findall(r"rank-(\d+)\.", row) for row in self.watcher.communicate(timeout=PATIENCE)[0].splitlines()]
        seen = [{host[int(rank)] for rank in ranks} for ranks in rows]
        test.assertEqual(set().union(*seen), set(host.values()), "not all nodes were seen to write")
        test.assertEqual([nodes for nodes in seen if len(nodes) > 1][:3], [])
        test.assertEqual(self.lab.on("head", "rm", stop).returncode, 0)
