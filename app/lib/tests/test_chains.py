"""Portable checkpoints that link to older ones, in Mend's tiers on nodes of a lab."""

import os
import re
import shutil
import unittest

from on_nodes import QUICK, STEPS, InLab
from programs import PYTHON, InDirectory, run

# Checkpoints 1, 3 and 5 are full, 2 links to 1 and 4 to 3. This copies as a daemon would: the first chain, then of the second one only the link.
COPIED_IN_PART = """
import mend_app, numpy, os, shutil, time
def copy(number):
    for part in ("h5", "seal"):
        name = f"checkpoint-{number:06}/rank-00000.{part}"
        shutil.copy(f"offered/fast/own/{os.listdir('offered/fast/own')[0]}/{name}", f"checkpoints/{name}")
def until_target(good):
    while not (os.path.exists("checkpoints/targets") and good(open("checkpoints/targets").read())):
        time.sleep(0.01)
with mend_app.Session(program="parts") as session, session.context("main"):
    state = session.scalars(step=0)
    session.array("big", numpy.random.default_rng(1).random(10000))
    for number in range(1, 6):
        session.checkpoint(now=True)
        state.step += 1
        if number == 2:
            copy(1), copy(2)
            until_target(lambda text: "shared = 2" in text)
        if number == 4:
            until_target(lambda text: "shared = 2" not in text)
            copy(4)
"""

# The partner has the first checkpoint; of the second it gets no copy. Rank 0 moves, takes the third, and is started again, also after the partner's node was lost.
NOT_COPIED_YET = """
import mend_app, os, sys, time
from mpi4py import MPI
def until_targets(*lines):
    while not (os.path.exists("checkpoints/targets") and set(lines) <= set(open("checkpoints/targets").read().splitlines())):
        time.sleep(0.01)
with mend_app.Session(MPI.COMM_WORLD, program="held") as session, session.context("main"):
    state = session.scalars(step=0)
    session.world.Get_size()
    if not session.restarting:
        session.checkpoint(now=True)
        open("checkpoints/checkpoint-000001/rank-00000.partner", "w").close()
        until_targets("partner = 1")
        session.checkpoint(now=True)
        until_targets("partner = 2", "keep = 1")
        state.step = 1
        session.migrate("0")
    while session.checkpoint() != "restored":
        time.sleep(0.01)
    until_targets(f"newest = {session.newest}")
    session.checkpoint(now=True)
    until_targets(f"newest = {session.newest}")
    print("targets", *open("checkpoints/targets").read().splitlines(), flush=True)
    os._exit(0)
"""


class Offered(InDirectory):
    def test_what_the_partner_has_is_kept_when_rank_0_moves_or_is_started_again(self):
        os.makedirs(self.path("offered", "fast"))
        self.write("offered/tiers", "tiers = memory,partner\njob = 00\n")
        self.write("offered/fast/node", "node = here\n")
        for _ in range(2):
            # It ends as one that was killed does.
            _, output = run(1, [PYTHON, "-c", NOT_COPIED_YET], self.directory, keep=1, watch_seconds=0.02, requests=self.path("offered"))
            self.assertRegex(output, r"targets newest = \d+ partner = \d+ keep = 1\n")
            self.assertIn(1, self.checkpoints())
        # The first is lost, and copied anew before a newer one is.
        os.remove(self.path("checkpoints", "checkpoint-000001", "rank-00000.partner"))
        _, output = run(1, [PYTHON, "-c", NOT_COPIED_YET], self.directory, keep=1, restart=1, watch_seconds=0.02, requests=self.path("offered"))
        self.assertRegex(output, r"targets newest = \d+ partner = 1\n")
        self.assertIn(1, self.checkpoints())

    def test_what_the_directory_has_in_part_takes_the_place_of_nothing_whole(self):
        os.makedirs(self.path("offered", "fast"))
        self.write("offered/tiers", "tiers = memory,shared\njob = 00\n")
        self.write("offered/fast/node", "node = here\n")
        self.good(self.python(COPIED_IN_PART, incremental="yes", full_every=2, keep=1, watch_seconds=0.02, requests=self.path("offered")))
        self.assertEqual([number for number in self.checkpoints() if number in (1, 2, 5)], [1, 2, 5])


class Chains(InLab):
    """Checkpoints that link to older ones: of what does not change there is one copy, and a tier has all that is linked to, or not the checkpoint."""

    def setUp(self):
        super().setUp()
        self.lab.environment.update(MEND_APP_INCREMENTAL="yes", MEND_APP_FULL_EVERY="2")

    def begin_linking(self, tiers, *options, cells="500"):
        # Short steps: between two checkpoints all changes that changes at all.
        return self.begin(tiers, steps=[cells, STEPS[1], *QUICK, "-f"], options=options)

    def two(self, job, name, *tiers):
        """A full one and one that links to it, both in these tiers."""
        first = self.take(name)
        second = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: list(tiers), second: list(tiers)}, "all tiers have both")
        return first, second

    def linked(self, number, node, rank, kind="own"):
        """The checkpoints that a rank's file in a node's memory links to."""
        seal = self.lab.on(node, "sh", "-c", f"cat /dev/shm/mend.*/*/portable/{kind}/*/checkpoint-{number:06}/rank-{rank:05}.seal").stdout
        self.assertIn("mend-app seal", seal)
        return [int(older) for older in re.findall(r"(?m)^needs (\d+)", seal)]

    def lost(self, ranks):
        """A node is lost, and the program goes on, on so many ranks."""
        job, name = self.begin_linking("memory,partner")
        first, second = self.two(job, name, "memory", "partner")
        self.assertEqual(self.linked(second, "node1", 0), [first])
        needs = {one["number"]: one["needs"] for one in self.lab.verb("checkpoints", name)}
        self.assertEqual(needs, {first: [], second: [first]})
        # The first stays as long as the second needs it, and both go when there is a new chain.
        wanted = {
            "node1": self.both("own", [first, second], (0, 1)),
            "node2": self.both("copies", [first, second], (0, 1)) + self.both("own", [first, second], (2, 3)),
            "node3": self.both("copies", [first, second], (2, 3)),
        }
        job.wait_for(lambda: {node: self.memory(node) for node in wanted} == wanted, "memory has both")
        third, fourth = self.take(name), self.take(name)
        job.wait_for(lambda: self.listed(name).get(fourth) == ["memory", "partner"], "both tiers have the fourth")
        wanted = {node: [file.replace(f"{first:06}", f"{third:06}").replace(f"{second:06}", f"{fourth:06}") for file in files] for node, files in wanted.items()}
        job.wait_for(lambda: {node: self.memory(node) for node in wanted} == wanted, "memory has the new chain alone")
        listed = lambda: {number: tiers for number, tiers in self.listed(name).items() if tiers}
        job.wait_for(lambda: listed() == {third: ["memory", "partner"], fourth: ["memory", "partner"]}, "it is told")
        self.lab.kill("node2")
        job.finish(None)
        said = self.again("memory,partner", "node3,node1", fourth, "-f", ranks=ranks)
        self.assertNotIn("can't be used", said)

    def test_a_lost_node_s_files_come_from_its_partner_with_what_they_link_to(self):
        self.lost(4)

    def test_other_ranks_find_what_a_lost_node_s_files_link_to(self):
        self.lost(3)

    def test_what_all_nodes_share_has_all_of_a_chain(self):
        job, name = self.begin_linking("memory,partner,shared")
        _, second = self.two(job, name, "memory", "partner", "shared")
        self.lab.mend("kill", name)
        job.finish(137)
        for node in ("node1", "node2", "node3"):
            self.lab.on(node, "sh", "-c", "rm -r /dev/shm/mend.*/*/portable/own /dev/shm/mend.*/*/portable/copies")
        shutil.copytree(self.path("checkpoints"), self.path("kept"))
        for ranks in (1, 2):
            shutil.rmtree(self.path("checkpoints"))
            shutil.copytree(self.path("kept"), self.path("checkpoints"))
            output = self.good(run(ranks, [self.heat, *STEPS[:2], "-f"], self.directory))
            self.assertIn(f"checkpoint {second} of 4 ranks is restored", output)
            self.assertEqual(self.line(output, "heat digest"), self.undisturbed("-f"))

    def test_a_run_that_ends_well_leaves_all_of_a_chain_in_the_directory(self):
        # Nothing is copied before the end: it comes too soon for that.
        self.lab.environment.update(MEND_APP_CALLS="160", MEND_APP_FULL_EVERY="4")
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--tiers", "memory,shared", "--", self.heat, *STEPS[:2], "-f")
        job.finish(0)
        for node in ("node1", "node2"):
            self.assertEqual(self.memory(node), [], node)
        output = self.good(run(1, [self.heat, *STEPS[:2], "-f"], self.directory, restart="newest"))
        # The third of its chain.
        self.assertIn("checkpoint 4960 of 4 ranks is restored", output)
        self.assertEqual(self.line(output, "heat digest"), self.undisturbed("-f"))

    def test_each_linked_file_is_taken_from_where_it_is_good(self):
        # Large enough that the array's bytes are no part of what a seal covers.
        job, name = self.begin_linking("memory,partner", cells="80000")
        first, second = self.two(job, name, "memory", "partner")
        self.lab.mend("kill", name)
        job.finish(137)
        # The array that doesn't change is the second in the file.
        home = f"/dev/shm/mend.*/*/portable/own/*/checkpoint-{first:06}/rank-0000"
        spoil = f"""for rank in 0 1; do at=$(sed -n 's/^data \\([0-9]*\\) .*/\\1/p' {home}$rank.seal | sed -n 2p); printf xxxxxxxx | dd of=$(echo {home}$rank.h5) bs=1 seek=$((at + 80)) conv=notrunc; done"""
        self.assertEqual(self.lab.on("node1", "sh", "-c", spoil).returncode, 0)
        self.assertEqual(self.lab.on("node2", "sh", "-c", f"rm {home}2.h5").returncode, 0)
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--tiers", "memory,partner", "--", self.heat, "80000", STEPS[1], "-f")
        job.wait_for(lambda: "is restored" in job.stderr(), "it goes on")
        said = job.stderr()
        self.assertIn(f"checkpoint {second} of 4 ranks is restored", said)
        self.assertEqual(len(re.findall(rf"own/.*checkpoint-{first:06}/.*`rest` isn't what was written", said)), 2, said)
        self.assertNotIn("can't be used", said)
        self.lab.mend("kill", self.lab.running(job))
        job.finish(137)

    def test_a_rank_that_came_to_another_node_begins_anew(self):
        self.lab.environment["MEND_APP_FULL_EVERY"] = "8"
        job, name = self.begin_linking("memory,partner")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: ["memory", "partner"]}, "both tiers have the first")
        self.lab.verb("migrate", name, "3", "--to", "node3")
        second, third = self.take(name), self.take(name)
        self.assertEqual(self.linked(second, "node3", 3), [])
        self.assertEqual(self.linked(third, "node3", 3), [second])
        # What did not change between the second and the third, it has of the second.
        self.assertIn(first, self.linked(third, "node2", 2))
        job.wait_for(lambda: self.listed(name).get(third) == ["memory", "partner"], "both tiers have the third")
        self.lab.kill("node2")
        job.finish(None)
        self.assertNotIn("can't be used", self.again("memory,partner", "node3,node1", third, "-f"))

    def test_what_a_lost_partner_had_is_offered_to_another_one(self):
        self.lab.set("MEND_APP_FULL_EVERY", "8")
        self.lab.set("MEND_ON_FAILURE", None)
        job, name = self.begin_linking("memory,partner")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name) == {first: ["memory", "partner"]}, "both tiers have the first")
        # Ranks 0 and 1 stay, with what they have; the partner that has copies of it is gone.
        for rank in ("2", "3"):
            self.lab.verb("migrate", name, rank, "--to", "node3")
        self.lab.kill("node2")
        job.wait_for(lambda: [file for file in self.memory("node3") if file.startswith("copies")] == self.both("copies", [first], range(4)), "another node has copies")
        job.wait_for(lambda: "partner" in self.listed(name)[first], "it is told")
        self.lab.mend("kill", name)
        job.finish(137)


if __name__ == "__main__":
    unittest.main()
