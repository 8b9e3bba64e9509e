"""Ranks that move while they run: nothing of what they change meanwhile is lost, and what fails costs them nothing."""

import json
import os
import subprocess
import unittest

import melt
from cases import MIB, InDirectory, Rewrites
from cluster import Lab, find_lammps

FOOTPRINT, DIRTY = 192, 4
# What cannot be compressed takes as long as it is long, and can be meddled with on a busy machine, too.
NOISE = ("-n",)
# Shared memory and tables, which go with the image in any case.
BESIDES = MIB


class Live(Rewrites):
    """One footprint, of which a part is rewritten all the time."""

    def start(self, *more, footprint=FOOTPRINT, dirty=DIRTY, options=()):
        placed = ("-n", "2", "--hosts", "node1,node2", "--spares", "node3", *options)
        return self.rewrite(placed, *more, footprint=footprint, dirty=dirty)


class InOneLab(Live):
    TRACKING = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        if cls.TRACKING:
            cls.lab.set("MEND_TRACKING", cls.TRACKING)


class Rates(Live):
    """What a live move has measured is known to the next one of the rank, to the job's next life, and to later jobs of the program."""

    def test_a_rank_that_changes_faster_than_it_can_be_sent_is_stopped_at_once_next_time(self):
        self.lab = self.enterContext(Lab(3, "--bandwidth", "500mbit"))
        job, name = self.start(footprint=64, dirty=64)
        # Nothing is known yet.
        first = self.lab.verb("migrate", name, "1", "--to", "node3", "--mode", "auto")
        self.assertIsNotNone(first["precopied"])
        second = self.lab.verb("migrate", name, "1", "--to", "node2", "--mode", "auto")
        self.assertIsNone(second["precopied"])
        # Whoever wants it otherwise says so.
        self.assertIsNotNone(self.lab.verb("migrate", name, "1", "--to", "node3", "--mode", "live")["precopied"])
        self.lab.verb("checkpoint", name)
        self.lab.mend("kill", name)
        job.finish(137)
        again = self.lab.start(self.directory, "restart", name)
        self.assertEqual(self.lab.running(again), name)
        self.assertIsNone(self.lab.verb("migrate", name, "1", "--mode", "auto")["precopied"])
        again.let_go()
        again.finish()
        os.unlink(os.path.join(self.directory, "go"))
        other, name = self.start(footprint=64, dirty=64)
        self.assertIsNone(self.lab.verb("migrate", name, "0", "--mode", "auto")["precopied"])
        other.let_go()
        other.finish()


class Moves(InOneLab):
    def test_what_is_sent_while_it_stands_still_is_what_changed_last(self):
        job, name = self.start()
        done = self.lab.verb("migrate", name, "1", "--to", "node3", "--mode", "live")
        live = done["precopied"]
        self.assertGreaterEqual(live["bytes"], FOOTPRINT * MIB)
        self.assertLessEqual(live["stopped_bytes"], (DIRTY + 1) * MIB + BESIDES)
        self.assertEqual(done["bytes"], live["bytes"] + live["stopped_bytes"])
        self.assertEqual(self.lab.places(name), ["node1", "node3"])
        # And back, with as much.
        back = self.lab.verb("migrate", name, "1", "--to", "node2", "--mode", "live")["precopied"]
        self.assertLessEqual(back["stopped_bytes"], (DIRTY + 1) * MIB + BESIDES)
        self.ends_well(job)

    def test_rank_0_moves_and_the_other_after_it_and_all_the_way_back(self):
        job, name = self.start("-x", "-s", "7")
        for rank, node in ((0, "node3"), (1, "node1"), (0, "node2"), (1, "node3"), (0, "node1")):
            done = self.lab.verb("migrate", name, str(rank), "--to", node, "--mode", "live")
            self.assertIsNotNone(done["precopied"])
            self.assertEqual(self.lab.places(name)[rank], node)
        self.ends_well(job)

    def test_frozen_still_moves(self):
        job, name = self.start("-x", footprint=32)
        done = self.lab.verb("migrate", name, "1", "--to", "node3", "--mode", "frozen")
        self.assertIsNone(done["precopied"])
        self.ends_well(job)

    def test_a_deadline_that_leaves_no_time_stops_it_early(self):
        job, name = self.start()
        done = self.lab.verb("migrate", name, "1", "--to", "node3", "--mode", "live", "--deadline", "0.001")
        self.assertEqual(done["precopied"]["why"], "Deadline")
        self.ends_well(job)

    def test_its_journal_tells_of_rounds(self):
        job, name = self.start()
        self.lab.verb("migrate", name, "1", "--to", "node3", "--mode", "live")
        said = self.lab.mend("log", name).stdout
        self.assertIn("round 0 of copying it took", said)
        self.assertIn("while it stood still", said)
        self.ends_well(job)


class Slow(Live):
    """Over links that take seconds for a footprint: long enough to meddle. Each test has a lab of its own: some end nodes, and a link that
    is full of one test's pages would keep the next one's daemons from being found."""

    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(3, "--bandwidth", "100mbit"))

    def stays(self, job, name):
        """The rank is where it was, runs, and can be checkpointed and moved after all."""
        self.assertEqual(self.lab.places(name), ["node1", "node2"])
        self.lab.verb("checkpoint", name)
        self.ends_well(job)

    def test_cancelled(self):
        job, name = self.start(*NOISE)
        verb = self.moving(name, (1,))
        self.assertEqual(self.lab.verb("migrate", name, "1", "--cancel"), {"cancelled": 1})
        _, told = verb.communicate()
        self.assertEqual(verb.returncode, 1)
        self.assertIn("cancelled", told)
        refused = self.lab.mend("migrate", name, "1", "--cancel")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("not being moved", refused.stderr)
        several = self.lab.mend("migrate", name, "0,1", "--cancel", "--json")
        self.assertEqual(several.returncode, 1)
        ended = json.loads(several.stdout)
        self.assertEqual([one["rank"] for one in ended], [0, 1])
        self.assertIn("not being moved", ended[1]["error"])
        self.stays(job, name)

    def received(self, node):
        """Bytes that have come to it over the network."""
        lines = [line.split(":") for line in self.lab.on(node, "cat", "/proc/net/dev").stdout.splitlines()[2:]]
        return sum(int(counts.split()[0]) for name, counts in lines if name.strip() != "lo")

    def test_cancelled_while_it_stands_still(self):
        job, name = self.start(*NOISE)
        before = self.received("node3")
        command = self.lab.command("migrate", name, "1", "--to", "node3", "--mode", "frozen")
        pipe = subprocess.PIPE
        verb = subprocess.Popen(command, env=self.lab.environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self.addCleanup(self.end, verb)
        while self.received("node3") < before + 8 * MIB:
            self.assertIsNone(verb.poll())
        self.assertEqual(self.lab.verb("migrate", name, "1", "--cancel"), {"cancelled": 1})
        _, told = verb.communicate()
        self.assertEqual(verb.returncode, 1)
        self.assertIn("cancelled", told)
        # All of it would be a little less than the footprint.
        self.assertLess(self.received("node3"), before + FOOTPRINT * MIB * 3 // 4)
        self.stays(job, name)

    def test_urgent(self):
        job, name = self.start(*NOISE)
        verb = self.moving(name, (1,))
        self.assertEqual(self.lab.verb("migrate", name, "1", "--urgent"), {"hurried": 1})
        done = json.loads(verb.communicate()[0])
        self.assertEqual(done["precopied"]["why"], "Urgent")
        self.assertLess(done["precopied"]["bytes"], FOOTPRINT * MIB)
        # What was sent before is not sent again.
        self.assertLess(done["bytes"], (FOOTPRINT + 32) * MIB)
        self.assertEqual(self.lab.places(name), ["node1", "node3"])
        self.ends_well(job)

    def test_a_checkpoint_that_is_asked_for_meanwhile_waits(self):
        job, name = self.start(options=("--incremental", "5"))
        self.lab.verb("checkpoint", name)
        verb = self.moving(name, (1,))
        self.lab.verb("checkpoint", name)
        self.assertEqual(verb.wait(), 0)
        self.lab.verb("checkpoint", name)
        found = self.lab.verb("checkpoints", name)
        self.assertEqual([one["kind"] for one in found], ["full", "partly full", "incremental"])
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        job.let_go()
        self.lab.start(job.directory, "restart", name).finish()
        self.assertEqual(job.stdout(), "rewrites ok\n")

    def test_the_receiver_dies(self):
        job, name = self.start()
        verb = self.moving(name, (1,))
        self.lab.on("node3", "pkill", "-KILL", "-x", "mend-restorer")
        self.fails(verb)
        self.stays(job, name)

    def test_the_receiver_s_node_dies(self):
        job, name = self.start()
        verb = self.moving(name, (1,))
        self.lab.kill("node3")
        self.fails(verb)
        self.stays(job, name)

    def test_the_rank_dies(self):
        job, name = self.start()
        self.ends_with_node2(job, name)


class ByHashes(InOneLab):
    TRACKING = "hash"

    def test_it_moves(self):
        job, name = self.start("-x", "-s", "3", footprint=48, dirty=1)
        for node in ("node3", "node1"):
            done = self.lab.verb("migrate", name, "1", "--to", node, "--mode", "live")
            self.assertIsNotNone(done["precopied"])
        self.ends_well(job)


class Lammps(InDirectory):
    @unittest.skipUnless(find_lammps(), "no LAMMPS here")
    def test_three_moves(self):
        lab = self.enterContext(Lab(3))
        argv = melt.argv(self.work, size=16)
        expected = lab.undisturbed("-n", "4", "--hosts", "node1", "--", *argv)
        job = lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
        name = lab.running(job)
        for step, rank, node in ((50, 3, "node3"), (150, 0, "node2"), (250, 3, "node1")):
            job.wait_for(lambda: melt.steps(job.stdout()) >= step, f"step {step}")
            done = lab.verb("migrate", name, str(rank), "--to", node, "--mode", "live")
            self.assertIsNotNone(done["precopied"])
        job.let_go()
        job.finish()
        melt.compare(self, expected, job.stdout(), job.stderr())


if __name__ == "__main__":
    unittest.main()
