"""Ranks whose processes live go back to a checkpoint in place, when others of their job are lost."""

import unittest

from test_healing import Heals


class InPlace(Heals):
    def processes(self, node):
        """Rank, process id and start time of each rank's process on a node."""
        look = "for one in /proc/[0-9]*; do r=$(tr '\\0' '\\n' <$one/environ 2>/dev/null | sed -n 's/^MEND_RANK=//p'); [ -n \"$r\" ] && echo $r $(cut -d' ' -f1,22 $one/stat); done; true"
        found = {}
        for line in self.lab.on(node, "sh", "-c", look).stdout.splitlines():
            rank, pid, began = line.split()
            found[int(rank)] = (pid, began)
        return found

    def test_ranks_of_nodes_that_live_stay_what_they_are(self):
        job, name = self.start(4, "node1,node2", "--spares", "node3")
        self.lab.verb("checkpoint", name)
        before = self.processes("node1")
        self.assertEqual(len(before), 2, before)
        self.lab.kill_daemon("node2")
        self.again(job, name, 1)
        self.assertEqual(self.processes("node1"), before)
        went_back = [one for one in self.lab.verb("log", name) if one["event"] == "went_back"]
        self.assertEqual({one["rank"] for one in went_back}, set(before), self.lab.verb("log", name))
        self.ends_well(job, 4, "node3")


if __name__ == "__main__":
    unittest.main()
