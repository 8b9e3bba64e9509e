"""Several ranks that move at once: each is copied while it runs, one at a time stands still, and what becomes of one harms no other."""

import json
import os
import subprocess
import unittest

import melt
from cases import MIB, InDirectory, Rewrites
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

    def start(self, *more):
        placed = ("-n", "4", "--hosts", "node1,node2", "--spares", "node3,node4")
        return self.rewrite(placed, "-x", *more, footprint=FOOTPRINT, dirty=2)


def limited_group(limit):
    """A control group in which processes get so many bytes, and its directory; or why there is none."""
    reasons = []
    with open("/proc/self/cgroup", encoding="ascii") as file:
        lines = [line.strip().split(":", 2) for line in file]
    for _, controllers, path in lines:
        mount, name = {"": ("/sys/fs/cgroup", "memory.max"), "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")}.get(controllers, (None, None))
        if not mount:
            continue
        place = os.path.join(mount, path.lstrip("/"), f"mend-test-room-{os.getpid()}")
        try:
            os.mkdir(place)
        except OSError as error:
            reasons.append(str(error))
            continue
        try:
            with open(os.path.join(place, name), "r+", encoding="ascii") as file:
                file.write(str(limit))
            return place
        except OSError as error:
            reasons.append(str(error))
            os.rmdir(place)
    raise unittest.SkipTest(f"no control group with a limit of memory: {'; '.join(reasons)}")


class Room(Many):
    """One of the spares has too little memory for a rank."""

    def test_a_rank_goes_where_it_fits_and_nowhere_else(self):
        group = limited_group((FOOTPRINT // 2) * MIB)
        pids = subprocess.run(["pgrep", "-x", "mendd"], capture_output=True, text=True, check=True).stdout.split()
        own = [pid for pid in pids if "node3" in open(f"/proc/{pid}/cmdline", encoding="ascii").read().split("\0")]
        mine = [pid for pid in own if self.lab.name in open(f"/proc/{pid}/environ", encoding="utf-8").read()]
        self.addCleanup(os.rmdir, group)
        for pid in mine:
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(pid)
        self.addCleanup(self.lab.kill, "node3")
        job, name = self.start()
        before = self.lab.places(name)
        refused = self.lab.mend("migrate", name, "0", "--to", "node3")
        self.assertEqual(refused.returncode, 1)
        self.assertRegex(refused.stderr, r"rank 0 takes \S+ MiB, and node node3 has \S+ MiB of memory left")
        self.assertIn("name a node with more memory", refused.stderr)
        self.assertEqual(self.lab.places(name), before)
        # Where none is named, the empty node that has too little is passed over, for all of them.
        for rank in range(4):
            self.lab.verb("migrate", name, str(rank))
        self.assertNotIn("node3", self.lab.places(name))
        self.ends_well(job)


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
    """Over links that take seconds for a footprint of noise, which cannot be compressed: long enough to meddle, also on a busy machine."""

    OPTIONS = ("--bandwidth", "100mbit")

    def start(self):
        return super().start("-n")

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
