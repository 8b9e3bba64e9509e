"""A node is drained: all ranks of all jobs of the user leave it, and none comes to it until it is undrained."""

import unittest

from cases import Rewrites
from cluster import Lab


class Drain(Rewrites):
    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(4))

    def start(self, ranks, hosts, spares, directory="."):
        placed = ("-n", str(ranks), "--hosts", hosts, "--spares", spares)
        return self.rewrite(placed, "-x", footprint=16, dirty=1, directory=directory)

    def test_two_jobs_leave_a_node_which_takes_none(self):
        one, first = self.start(4, "node1,node2", "node3,node4", "one")
        other, second = self.start(2, "node2", "node1,node3", "other")
        done = self.lab.verb("drain", "node2")
        self.assertEqual(done["still_there"], [])
        self.assertEqual(len(done["ranks"]), 4)
        self.assertEqual({rank["job"] for rank in done["ranks"]}, {first, second})
        self.assertNotIn("node2", self.lab.places(first) + self.lab.places(second))
        self.assertEqual(self.lab.verb("drain"), ["node2"])
        # Nothing goes there, by name or by choice.
        refused = self.lab.mend("migrate", first, "0", "--to", "node2")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("node2 is drained", refused.stderr)
        self.assertIn("mend undrain node2", refused.stderr)
        for _ in range(4):
            self.lab.verb("migrate", first, "0")
            self.assertNotEqual(self.lab.places(first)[0], "node2")
        # A node that nobody is on can be taken down.
        self.lab.kill("node2")
        self.ends_well(one)
        self.ends_well(other)

    def test_jobs_and_restarts_do_without_it(self):
        job, name = self.start(2, "node1,node2", "node3")
        self.lab.verb("checkpoint", name)
        self.lab.mend("kill", name)
        job.finish(137)
        self.lab.verb("drain", "node2")
        refused = self.lab.mend("run", "-n", "2", "--hosts", "node1,node2", "--", "true", cwd=self.directory)
        self.assertEqual(refused.returncode, 69)
        self.assertIn("node2 is drained", refused.stderr)
        said = self.lab.mend("run", "-n", "1", "--hosts", "node1", "--spares", "node2", "--", "true", cwd=self.directory)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("left out: node node2 is drained", said.stderr)
        job.let_go()
        again = self.lab.start(self.directory, "restart", name)
        again.finish()
        self.assertIn("left out: node node2 is drained", again.stderr())
        self.assertEqual(self.lab.verb("undrain", "node2"), {"undrained": "node2"})
        self.assertEqual(self.lab.verb("drain"), [])
        self.assertEqual(self.lab.mend("run", "-n", "2", "--hosts", "node1,node2", "--", "true", cwd=self.directory).returncode, 0)

    def test_ranks_without_another_node_stay_and_are_named(self):
        job, name = self.start(2, "node1", "node2")
        self.lab.verb("drain", "node2")
        done = self.lab.mend("drain", "node1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no other node that takes ranks", done.stderr)
        self.assertIn(f"{name}:0 {name}:1", done.stdout)
        self.lab.verb("undrain", "node2")
        self.assertEqual(self.lab.verb("drain", "node1")["still_there"], [])
        self.assertEqual(self.lab.places(name), ["node2", "node2"])
        self.ends_well(job)

    def test_what_is_no_node_is_named(self):
        for wrong in ("a,b", "a:2", "../a", ".a", ""):
            done = self.lab.mend("drain", wrong)
            self.assertEqual(done.returncode, 64, wrong)
            self.assertIn("is not the name of a node", done.stderr)
        done = self.lab.mend("undrain", "node9")
        self.assertEqual(done.returncode, 1)
        self.assertIn("node9 is not drained", done.stderr)


if __name__ == "__main__":
    unittest.main()
