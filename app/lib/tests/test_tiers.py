"""Portable checkpoints in Mend's tiers, on nodes of a lab: written to memory, copied to a partner and to the directory behind the program, found again when a node is lost, listed and removed."""

import os
import random
import re
import shutil
import time
import unittest

from on_nodes import QUICK, STEPS, InLab
from programs import run

# For those that shall be killed anywhere: many checkpoints soon after each other.
QUICK_STEPS = [*STEPS[:2], *QUICK]


class Tiers(InLab):
    def test_a_lost_node_s_files_come_from_its_partner(self):
        job, name = self.begin("memory,partner")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: ["memory", "partner"]}, "both tiers have the first")
        second = self.take(name)
        job.wait_for(lambda: self.listed(name).get(second) == ["memory", "partner"], "both tiers have the second")
        # One is kept in memory. The directory has no variables at all.
        wanted = {
            "node1": self.both("own", [second], (0, 1)),
            "node2": self.both("copies", [second], (0, 1)) + self.both("own", [second], (2, 3)),
            "node3": self.both("copies", [second], (2, 3)),
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

    def test_killed_anywhere_the_newest_whole_one_is_used(self):
        """Ranks, daemons and nodes are killed while checkpoints are taken and copied. What was announced as taken is there as long as a copy of it must be."""
        from tiers import commit_seed

        draw = random.Random(f"{commit_seed()} {self.id()}")
        # A checkpoint at every twentieth step, of four one full.
        self.lab.environment.update(MEND_APP_CALLS="20", MEND_APP_INCREMENTAL="yes", MEND_APP_FULL_EVERY="4")
        undisturbed = self.undisturbed("-f")
        for earlier, blow in enumerate(("rank", "job", "daemon", "node")):
            with self.subTest(blow):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                job, name = self.begin("memory,partner,shared", steps=[*QUICK_STEPS, "-f"], options=("--on-failure", "stop"))
                whole = lambda: [number for number, tiers in self.listed(name).items() if "partner" in tiers or "shared" in tiers]
                job.wait_for(whole, "one has two copies")
                safe = max(whole())
                time.sleep(draw.uniform(0, 0.5))
                if blow == "rank":
                    self.assertTrue(self.lab.kill_rank("node2", 2, 9))
                elif blow == "job":
                    self.lab.mend("kill", name)
                elif blow == "daemon":
                    self.lab.kill_daemon("node2")
                else:
                    self.lab.kill("node2")
                job.finish(None)
                if blow == "daemon":
                    self.lab.start_daemon("node2", self.directory)
                hosts = "node1,node3" if blow == "node" else "node1,node2"
                again = self.lab.start(self.directory, "run", "-n", "4", "--hosts", hosts, "--tiers", "memory,partner,shared", "--", self.heat, *STEPS[:2], "-f")
                again.finish(0)
                # Of the last run: all write to the same files.
                restored = re.findall(r"checkpoint (\d+) of 4 ranks is restored", again.stderr())
                self.assertEqual(len(restored), earlier + 1, again.stderr())
                self.assertGreaterEqual(int(restored[-1]), safe)
                self.assertEqual(again.stdout().splitlines()[-1], undisturbed)


class InTurn(InLab):
    def test_nodes_write_to_the_directory_in_turn(self):
        from partial import Writers

        # Slow enough to be seen.
        self.lab.environment.update(MEND_TIER_WRITERS="1", MEND_TIER_RATE_MIB="4")
        job, name = self.begin("memory,shared", hosts="node1,node2,node3", steps=["400000", *STEPS[1:]])
        status = next(one["status"] for one in self.lab.verb("ps") if one["id"] == name)
        host = {rank["rank"]: rank["host"] for rank in status["ranks"]}
        self.assertEqual(set(host.values()), {"node1", "node2", "node3"})
        with Writers(self.lab, self.path("checkpoints")) as writers:
            for _ in range(2):
                number = self.take(name)
                job.wait_for(lambda number=number: self.listed(name).get(number) == ["memory", "shared"], "both tiers have it")
            writers.in_turn(self, host)
        self.lab.mend("kill", name)
        job.finish(137)


if __name__ == "__main__":
    unittest.main()
