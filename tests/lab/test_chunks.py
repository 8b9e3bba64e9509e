"""Ranks move in chunks of registered memory, over a provider of libfabric: nothing is lost, in both modes, whatever ends on the way."""

import os
import subprocess
import unittest

import melt
from cases import MIB, InDirectory, Rewrites
from cluster import Lab, find_lammps

FOOTPRINT, DIRTY = 48, 1
MODES = ("read", "write")
LIVE, FROZEN, STAGED = ("--mode", "live"), ("--mode", "frozen"), ("--strategy", "staged")


class ByChunks(Rewrites):
    """Whoever inherits has a lab."""

    def chunks(self, mode, **more):
        settings = {"MEND_MIGRATE_TRANSPORT": "ofi", "MEND_MIGRATE_OFI_MODE": mode, "MEND_OFI_PROVIDER": "tcp", **more}
        for name, value in settings.items():
            self.lab.set(name, value)
            self.addCleanup(self.lab.set, name, None)

    def start(self, mode, *more, directory=".", footprint=FOOTPRINT, **settings):
        self.chunks(mode, **settings)
        return self.rewrite(("-n", "2", "--hosts", "node1,node2", "--spares", "node3"), *more, footprint=footprint, dirty=DIRTY, directory=directory)

    def to_and_fro(self, name, *ways):
        """Rank 1 by each of these ways: by what it went."""
        went = []
        for number, way in enumerate(ways):
            done = self.lab.verb("migrate", name, "1", "--to", ("node3", "node2")[number % 2], *way)
            self.assertGreater(done["bytes"], FOOTPRINT * MIB)
            went.append(done["transport"])
        return went

    def carriers(self, node):
        """Processes of the node that move chunks."""
        return self.lab.named(node, "mend-chunks")


class Moves(ByChunks):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))

    def test_live_and_frozen_to_and_fro_in_both_modes(self):
        for mode in MODES:
            with self.subTest(mode):
                before = {node: set(self.carriers(node)) for node in ("node2", "node3")}
                job, name = self.start(mode, "-x", "-s", "3", "-n", directory=mode)
                self.assertEqual(self.to_and_fro(name, LIVE, FROZEN, LIVE, STAGED, FROZEN, LIVE), ["ofi", "ofi", "ofi", "tcp", "ofi", "ofi"])
                committed = [entry["data"] for entry in self.lab.verb("log", name) if entry["event"] == "migration_committed"]
                self.assertEqual([data.get("transport") for data in committed], ["ofi", "ofi", "ofi", None, "ofi", "ofi"])
                self.assertIn(" moved from node2 to node3 over ofi: ", self.lab.mend("log", name).stdout)
                # One process of a node, for all moves.
                for node, old in before.items():
                    self.assertLessEqual(len(set(self.carriers(node)) - old), 1)
                self.lab.verb("checkpoint", name)
                self.assertEqual(self.lab.mend("kill", name).returncode, 0)
                job.finish(137)
                job = self.lab.start(job.directory, "restart", name)
                self.lab.running(job)
                self.assertIn(" over ofi: ", self.lab.mend("migrate", name, "0", "--to", "node3").stdout)
                self.ends_well(job)
            self.doCleanups()

    def test_compressed_and_in_chunks_of_another_size(self):
        job, name = self.start("read", "-x", MEND_MIGRATE_COMPRESS="always", MEND_MIGRATE_CHUNK_KIB="36", MEND_MIGRATE_POOL_KIB="144")
        for number, way in enumerate((LIVE, FROZEN)):
            done = self.lab.verb("migrate", name, "1", "--to", ("node3", "node2")[number], *way)
            self.assertEqual(done["transport"], "ofi")
            self.assertLess(done["sent_bytes"], done["bytes"] * 0.7)
        self.ends_well(job)

    def test_both_ranks_to_each_other_s_node_and_both_at_once(self):
        for mode in MODES:
            with self.subTest(mode):
                job, name = self.start(mode, "-x", directory=mode)
                one, other = (self.lab.command("migrate", name, rank, "--to", node, *LIVE, "--json") for rank, node in (("0", "node2"), ("1", "node1")))
                verbs = [self.beside(command) for command in (one, other)]
                for verb in verbs:
                    told, said = verb.communicate()
                    self.assertEqual(verb.returncode, 0, said)
                    self.assertIn('"transport": "ofi"', told)
                moved = self.lab.verb("migrate", name, "0,1", "--to", "node3", *LIVE)
                self.assertEqual([one["transport"] for one in moved], ["ofi", "ofi"])
                self.ends_well(job)
            self.doCleanups()

    def beside(self, command):
        pipe = subprocess.PIPE
        verb = subprocess.Popen(command, env=self.lab.environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self.addCleanup(self.end, verb)
        return verb

    def test_what_cannot_be_used_is_refused_before_the_rank_is_stopped(self):
        job, name = self.start("read", MEND_OFI_PROVIDER="nosuch")
        for way in (LIVE, FROZEN):
            refused = self.lab.mend("migrate", name, "1", "--to", "node3", *way)
            self.assertEqual(refused.returncode, 1)
            self.assertIn('libfabric has no provider "nosuch"', refused.stderr)
            self.assertIn("MEND_MIGRATE_TRANSPORT=tcp does without", refused.stderr)
        phases = [entry["data"]["phase"] for entry in self.lab.verb("log", name) if entry["event"].startswith("phase")]
        self.assertNotIn("suspend", phases)
        self.ends_well(job)

    def test_settings_that_exclude_each_other_are_refused(self):
        self.chunks("read", MEND_ENCRYPT_DATA="on")
        refused = self.lab.mend("run", "-n", "1", "--hosts", "node1", "--", "true")
        self.assertEqual(refused.returncode, 64)
        self.assertIn("MEND_ENCRYPT_DATA=on and MEND_MIGRATE_TRANSPORT=ofi exclude each other", refused.stderr)
        self.lab.set("MEND_ENCRYPT_DATA", None)
        self.lab.set("MEND_MIGRATE_POOL_KIB", "64")
        self.addCleanup(self.lab.set, "MEND_MIGRATE_POOL_KIB", None)
        refused = self.lab.mend("run", "-n", "1", "--hosts", "node1", "--", "true")
        self.assertEqual(refused.returncode, 64)
        self.assertIn("MEND_MIGRATE_POOL_KIB=64 holds 0 chunks of MEND_MIGRATE_CHUNK_KIB=128, and has to hold 4 to 65536", refused.stderr)


class Losses(ByChunks):
    def setUp(self):
        super().setUp()
        # So slow that a move is not over before something ends that it needs.
        self.lab = self.enterContext(Lab(3, "--bandwidth", "100mbit"))

    def stays(self, job, name):
        """Rank 1 goes on where it was, and moves later."""
        self.assertEqual(self.lab.places(name)[1], "node2")
        self.assertEqual(self.lab.verb("migrate", name, "1", "--to", "node1", *LIVE)["transport"], "ofi")
        self.ends_well(job)

    def lost(self, mode, node, process):
        job, name = self.start(mode, "-n", footprint=96)
        verb = self.moving(name, (1,))
        (found,) = self.lab.named(node, process)
        self.assertEqual(self.lab.on(node, "kill", "-KILL", found).returncode, 0)
        self.fails(verb)
        self.stays(job, name)

    def test_the_source_s_carrier_ends(self):
        self.lost("read", "node2", "mend-chunks")

    def test_the_source_s_carrier_ends_that_writes(self):
        self.lost("write", "node2", "mend-chunks")

    def test_the_target_s_carrier_ends(self):
        self.lost("read", "node3", "mend-chunks")

    def test_the_target_s_carrier_ends_that_is_written_to(self):
        self.lost("write", "node3", "mend-chunks")

    def test_the_restorer_ends(self):
        self.lost("read", "node3", "mend-restorer")

    def test_the_target_s_daemon_ends(self):
        job, name = self.start("write", "-n", footprint=96)
        verb = self.moving(name, (1,))
        self.lab.kill_daemon("node3")
        self.fails(verb)
        self.stays(job, name)

    def test_the_target_s_node_is_lost(self):
        job, name = self.start("read", "-n", footprint=96)
        verb = self.moving(name, (1,))
        self.lab.kill("node3")
        self.fails(verb)
        self.stays(job, name)

    def test_the_source_s_node_is_lost(self):
        job, name = self.start("read", "-n", footprint=96)
        self.ends_with_node2(job, name)


class Without(ByChunks):
    """Nodes whose libfabric is not there."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3, daemons={"MEND_MIGRATE_LIBFABRIC": "/no/libfabric.so"}))

    def test_it_is_named(self):
        job, name = self.start("read")
        refused = self.lab.mend("migrate", name, "1", "--to", "node3")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("libfabric cannot be loaded as /no/libfabric.so", refused.stderr)
        self.ends_well(job)


class Lammps(InDirectory):
    @unittest.skipUnless(find_lammps(), "no LAMMPS here")
    def test_moves_in_both_modes(self):
        lab = self.enterContext(Lab(3))
        argv = melt.argv(self.work)
        expected = lab.undisturbed("-n", "4", "--hosts", "node1", "--", *argv)
        lab.set("MEND_MIGRATE_TRANSPORT", "ofi")
        for mode in MODES:
            lab.set("MEND_MIGRATE_OFI_MODE", mode)
            directory = os.path.join(self.directory, mode)
            os.makedirs(directory)
            job = lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
            name = lab.running(job)
            for rank, node, way in (("3", "node3", LIVE), ("0", "node2", FROZEN), ("3", "node1", LIVE)):
                self.assertEqual(lab.verb("migrate", name, rank, "--to", node, *way)["transport"], "ofi")
            job.let_go()
            job.finish()
            melt.compare(self, expected, job.stdout(), job.stderr())


if __name__ == "__main__":
    unittest.main()
