"""Portable checkpoints in Mend's tiers, on nodes of a lab: written to memory, copied to a partner and to the directory behind the program, found again when a node is lost, listed and removed."""

import os
import re
import shutil
import sys
import unittest

from programs import ROOT, InDirectory, program, run, skip

sys.path.append(os.path.join(ROOT, "tests", "lab"))

# Each step takes 8 ms, so that there is time to copy.
STEPS = ["500", "5000", "-p", "0", "8000"]
FILES = "find /dev/shm/mend.* -path '*/portable/*' -name 'rank-*' | sed 's|.*/portable/||; s|/[0-9a-f]*/|/|' | sort"


class Tiers(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import cluster

        if not os.path.exists(os.path.join(cluster.BIN, "mend")):
            skip("portable checkpoints in Mend's tiers", "Mend isn't built (make build)")
        cls.cluster = cluster
        cls.heat = program("heat")

    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(self.cluster.Lab(3))

    def begin(self, tiers, hosts="node1,node2", steps=STEPS, options=()):
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", hosts, "--spares", "node3", "--tiers", tiers, *options, "--", self.heat, *steps)
        name = self.lab.running(job)
        job.wait_for(lambda: self.lab.mend("checkpoint", name, "--portable", "--timeout", "0.001").returncode == 1
                     and "no answer came" in self.lab.mend("checkpoint", name, "--portable", "--timeout", "0.001").stderr, "the library is there")
        return job, name

    def take(self, name):
        [taken] = self.lab.verb("checkpoint", name, "--portable", "--timeout", "60")
        return taken["checkpoint"]

    def listed(self, name):
        return {one["number"]: one["tiers"] for one in self.lab.verb("checkpoints", name) if one["kind"] == "portable"}

    def memory(self, node):
        return self.lab.on(node, "sh", "-c", FILES).stdout.split()

    def both(self, kind, number, ranks):
        return [f"{kind}/checkpoint-{number:06}/rank-{rank:05}.{suffix}" for rank in ranks for suffix in ("h5", "seal")]

    def undisturbed(self):
        os.mkdir(self.path("undisturbed"))
        return self.line(self.good(run(1, [self.heat, *STEPS[:2]], self.path("undisturbed"))), "heat digest")

    def again(self, tiers, hosts, wanted, **environment):
        """Runs the program again to its end; what standard error says."""
        self.lab.environment.update(environment)
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", hosts, *(("--tiers", tiers) if tiers else ()), "--", self.heat, *STEPS[:2])
        job.finish(0)
        said = job.stderr()
        self.assertIn(f"checkpoint {wanted} of 4 ranks is restored", said)
        self.assertEqual(self.line(job.stdout(), "heat digest"), self.undisturbed())
        return said

    def test_a_lost_node_s_files_come_from_its_partner(self):
        job, name = self.begin("memory,partner")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: ["memory", "partner"]}, "both tiers have the first")
        second = self.take(name)
        job.wait_for(lambda: self.listed(name).get(second) == ["memory", "partner"], "both tiers have the second")
        # One is kept in memory. The directory has no variables at all.
        wanted = {
            "node1": self.both("own", second, (0, 1)),
            "node2": self.both("copies", second, (0, 1)) + self.both("own", second, (2, 3)),
            "node3": self.both("copies", second, (2, 3)),
        }
        job.wait_for(lambda: {node: self.memory(node) for node in wanted} == wanted, "memory has the second alone")
        self.assertEqual([entry for entry in os.listdir(self.path("checkpoints", f"checkpoint-{second:06}")) if entry.endswith(".h5")], [])
        self.lab.kill("node2")
        job.finish(None)
        # Ranks 2 and 3 begin on node3 and node1: what one of them has not, the other one sends.
        said = self.again("memory,partner", "node3,node1", second)
        self.assertNotIn("can't be used", said)
        # A run that ended well leaves nothing in memory.
        for node in ("node1", "node3"):
            self.assertEqual(self.memory(node), [], node)

    def test_what_all_nodes_share_has_it_when_both_memories_are_lost(self):
        job, name = self.begin("memory,partner,shared")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: ["memory", "partner", "shared"]}, "all tiers have it")
        for node in ("node1", "node2", "node3"):
            self.lab.on(node, "sh", "-c", "rm -r /dev/shm/mend.*/*/portable/own /dev/shm/mend.*/*/portable/copies")
        self.lab.mend("kill", name)
        job.finish(137)
        # Without tiers, as any mpiexec.
        shutil.copytree(self.path("checkpoints"), self.path("kept"))
        output = self.good(run(1, [self.heat, *STEPS[:2]], self.directory))
        self.assertIn(f"checkpoint {first} of 4 ranks is restored", output)
        shutil.rmtree(self.path("checkpoints"))
        shutil.move(self.path("kept"), self.path("checkpoints"))
        self.again("memory,partner,shared", "node1,node2", first)

    def test_a_copy_that_is_not_good_is_passed_over_for_another_one(self):
        job, name = self.begin("memory,partner")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: ["memory", "partner"]}, "both tiers have it")
        self.lab.mend("kill", name)
        job.finish(137)
        spoil = 'for file in /dev/shm/mend.*/*/portable/own/*/*/rank-*.h5; do truncate -s 700 "$file"; done'
        self.lab.on("node1", "sh", "-c", spoil)
        said = self.again("memory,partner", "node1,node2", first)
        self.assertEqual(len(re.findall(r"own/.*truncated", said)), 2, said)
        self.assertNotIn("can't be used", said)

    def test_lost_wholly_an_older_one_is_used(self):
        job, name = self.begin("memory,shared")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: ["memory", "shared"]}, "the directory has the first")
        second = self.take(name)
        self.lab.kill("node2")
        job.finish(None)
        for entry in os.listdir(self.path("checkpoints", f"checkpoint-{second:06}")):
            if entry.endswith((".h5", ".seal")):
                os.remove(self.path("checkpoints", f"checkpoint-{second:06}", entry))
        said = self.again("memory,shared", "node1,node3", first)
        self.assertIn(f"checkpoint {second} can't be used", said)
        self.assertIn("nor on any node of this job", said)

    def test_listed_and_removed_with_the_job(self):
        job, name = self.begin("memory,shared")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: ["memory", "shared"]}, "all tiers have it")
        self.assertRegex(self.lab.mend("checkpoints", name).stdout, rf"(?m)^ *{first} .*portable.*memory shared.*checkpoint-{first:06}")
        self.lab.mend("kill", name)
        job.finish(137)
        done = self.lab.mend("rm", name)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("other tiers stay", done.stdout)
        self.assertEqual(self.checkpoints(), [])


if __name__ == "__main__":
    unittest.main()
