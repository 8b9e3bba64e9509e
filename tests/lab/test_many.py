"""Several ranks that move at once: each is copied while it runs, one at a time stands still, and what becomes of one harms no other."""

import json
import os
import unittest

import melt
from cases import InDirectory, Rewrites
from cluster import Lab, find_lammps

FOOTPRINT = 64
# Rank 0 prints what it reads, and takes its time; the others only run. None has a child.
READER = """
n=0
while [ $PMI_RANK = 0 ] && read -r line; do
    echo "$line"; n=$((n + 1))
    if [ $((n % 500)) = 0 ]; then for ((i = 0; i < 50000; i++)); do :; done; fi
done
while [ ! -e go ]; do :; done
[ $PMI_RANK = 0 ] && echo end || true
"""


class Many(Rewrites):
    """Four ranks on two nodes, two of each; two nodes are spare."""

    OPTIONS = ()

    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(4, *self.OPTIONS))

    def start(self):
        placed = ("-n", "4", "--hosts", "node1,node2", "--spares", "node3,node4")
        return self.rewrite(placed, "-x", footprint=FOOTPRINT, dirty=2)


class AtOnce(Many):
    def test_a_whole_node_moves_and_back_and_frozen_ones_do(self):
        job, name = self.start()
        before = self.lab.places(name)
        here = [rank for rank, node in enumerate(before) if node == "node2"]
        chosen = ",".join(map(str, here))
        done = self.lab.verb("migrate", name, chosen, "--to", "node3", "--mode", "live")
        self.assertEqual([one["rank"] for one in done], here)
        self.assertTrue(all(one["precopied"] for one in done))
        self.assertEqual([node for rank, node in enumerate(self.lab.places(name)) if rank in here], ["node3"] * 2)
        # Nothing of the job is left where it was.
        self.lab.kill("node2")
        done = self.lab.verb("migrate", name, "0-3", "--to", "node4", "--mode", "frozen")
        self.assertEqual([one["rank"] for one in done], [0, 1, 2, 3])
        self.assertEqual(self.lab.places(name), ["node4"] * 4)
        self.lab.verb("checkpoint", name)
        self.ends_well(job)

    def test_targets_are_spread_where_none_is_named(self):
        job, name = self.start()
        before = self.lab.places(name)
        here = [rank for rank, node in enumerate(before) if node == "node1"]
        self.lab.verb("migrate", name, ",".join(map(str, here)))
        after = [self.lab.places(name)[rank] for rank in here]
        self.assertEqual(sorted(after), ["node3", "node4"])
        self.ends_well(job)

    def test_one_that_cannot_move_keeps_no_other_from_it(self):
        job, name = self.start()
        before = self.lab.places(name)
        there = [rank for rank, node in enumerate(before) if node == "node2"]
        done = self.lab.mend("migrate", name, "0-3", "--to", "node2", "--json")
        self.assertEqual(done.returncode, 1)
        said = json.loads(done.stdout)
        self.assertEqual([one["rank"] for one in said], [0, 1, 2, 3])
        self.assertEqual([one["rank"] for one in said if "error" in one], there)
        self.assertEqual(self.lab.places(name), ["node2"] * 4)
        self.ends_well(job)

    def test_a_rank_that_there_is_not_stops_all(self):
        job, name = self.start()
        before = self.lab.places(name)
        done = self.lab.mend("migrate", name, "1,4", "--to", "node3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no rank 4", done.stderr)
        self.assertIn("0 to 3", done.stderr)
        self.assertEqual(self.lab.places(name), before)
        self.ends_well(job)

    def test_input_follows_rank_0_among_the_others(self):
        lines = "".join(f"line {number}\n" for number in range(20000))
        with open(os.path.join(self.directory, "input"), "w", encoding="utf-8") as file:
            file.write(lines)
        placed = ("-n", "3", "--hosts", "node1,node2", "--spares", "node3,node4")
        with open(os.path.join(self.directory, "input"), encoding="utf-8") as file:
            job = self.lab.start(self.directory, "run", *placed, "--", "bash", "-c", READER, stdin=file)
        name = self.lab.running(job)
        for node in ("node3", "node4") * 3:
            self.lab.verb("migrate", name, "0-2", "--to", node)
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), lines + "end\n")


class Slow(Many):
    """Over links that take seconds for a footprint: long enough to meddle."""

    OPTIONS = ("--bandwidth", "250mbit")

    def test_one_is_cancelled_and_the_other_moves(self):
        job, name = self.start()
        stays, goes = (rank for rank, node in enumerate(self.lab.places(name)) if node == "node2")
        verb = self.moving(name, (stays, goes))
        self.assertEqual(self.lab.verb("migrate", name, str(stays), "--cancel"), {"cancelled": stays})
        said = json.loads(verb.communicate()[0])
        self.assertEqual(verb.returncode, 1)
        self.assertEqual({one["rank"]: "error" in one for one in said}, {stays: True, goes: False})
        after = self.lab.places(name)
        self.assertEqual((after[stays], after[goes]), ("node2", "node3"))
        self.ends_well(job)

    def test_all_are_hurried(self):
        job, name = self.start()
        here = [rank for rank, node in enumerate(self.lab.places(name)) if node == "node2"]
        verb = self.moving(name, here)
        self.assertEqual(self.lab.mend("migrate", name, ",".join(map(str, here)), "--urgent").returncode, 0)
        said = json.loads(verb.communicate()[0])
        self.assertEqual([one["precopied"]["why"] for one in said], ["Urgent"] * 2)
        self.ends_well(job)

    def test_the_target_dies_and_all_stay(self):
        job, name = self.start()
        before = self.lab.places(name)
        here = [rank for rank, node in enumerate(before) if node == "node2"]
        verb = self.moving(name, here)
        self.lab.kill("node3")
        said = json.loads(verb.communicate()[0])
        self.assertEqual(verb.returncode, 1)
        self.assertTrue(all("error" in one for one in said), said)
        self.assertEqual(self.lab.places(name), before)
        self.lab.verb("migrate", name, ",".join(map(str, here)), "--to", "node4")
        self.ends_well(job)


class Lammps(InDirectory):
    @unittest.skipUnless(find_lammps(), "no LAMMPS here")
    def test_all_ranks_move_twice(self):
        lab = self.enterContext(Lab(4))
        argv = melt.argv(self.work, size=16)
        expected = lab.undisturbed("-n", "4", "--hosts", "node1", "--", *argv)
        job = lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3,node4", "--", *argv)
        name = lab.running(job)
        for step, node in ((50, "node3"), (150, "node4")):
            job.wait_for(lambda: melt.steps(job.stdout()) >= step, f"step {step}")
            done = lab.verb("migrate", name, "0-3", "--to", node)
            self.assertEqual([one["to"] for one in done], [node] * 4)
        job.let_go()
        job.finish()
        melt.compare(self, expected, job.stdout(), job.stderr())


if __name__ == "__main__":
    unittest.main()
