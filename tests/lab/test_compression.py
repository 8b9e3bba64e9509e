"""Memory of ranks that move is compressed on its way, where that is of use, and nothing of it is lost."""

import unittest

from cases import MIB, Rewrites
from cluster import Lab

FOOTPRINT, DIRTY = 48, 1


class Compressed(Rewrites):
    OPTIONS = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3, *cls.OPTIONS))

    def start(self, setting, *more, directory=".", **variables):
        for name, value in {"MEND_MIGRATE_COMPRESS": setting, **variables}.items():
            self.lab.set(name, value)
            self.addCleanup(self.lab.set, name, None)
        return self.rewrite(("-n", "2", "--hosts", "node1,node2", "--spares", "node3"), *more, footprint=FOOTPRINT, dirty=DIRTY, directory=directory)

    def moves(self, name, *ways):
        """Rank 1, to and fro by each of these ways: bytes as they are before compression, and as they were sent."""
        moved = []
        for number, way in enumerate(ways):
            done = self.lab.verb("migrate", name, "1", "--to", ("node3", "node2")[number % 2], *way)
            self.assertGreater(done["bytes"], FOOTPRINT * MIB)
            self.assertLessEqual(done["sent_bytes"], done["bytes"])
            moved.append((done["bytes"], done["sent_bytes"]))
        return moved


LIVE, FROZEN, STAGED, LOCAL = ("--mode", "live"), ("--mode", "frozen"), ("--strategy", "staged"), ("--strategy", "local")


class OverASlowLink(Compressed):
    OPTIONS = ("--bandwidth", "200mbit")

    def test_whatever_the_way_less_is_sent_and_all_arrives(self):
        job, name = self.start("always", "-x", "-s", "3")
        for before, sent in self.moves(name, LIVE, FROZEN, STAGED, LIVE):
            self.assertLess(sent, before * 0.7)
        # A file on the way is as one that is kept.
        ((before, sent),) = self.moves(name, LOCAL)
        self.assertEqual(sent, before)
        committed = [entry["data"] for entry in self.lab.verb("log", name) if entry["event"] == "migration_committed"]
        self.assertEqual(["sent_bytes" in data for data in committed], [True] * 4 + [False])
        self.assertIn(", sent as ", self.lab.mend("log", name).stdout)
        moves = [one for one in self.lab.verb("timeline", name)["operations"] if one.get("bytes")]
        self.assertEqual([one.get("sent_bytes") for one in moves], [data.get("sent_bytes") for data in committed])
        self.lab.verb("checkpoint", name)
        self.ends_well(job)

    def test_a_rank_that_stands_still_is_compressed_by_itself(self):
        job, name = self.start("auto")
        # Not while something else of the machine keeps the receiver from its work.
        moved = self.moves(name, *[FROZEN] * 4)
        self.assertTrue(any(sent < before * 0.9 for before, sent in moved), moved)
        self.ends_well(job)

    def test_a_rank_that_runs_is_compressed_or_not_and_loses_nothing(self):
        """By what the processors have to do, which is not this test's."""
        job, name = self.start("auto", "-x", "-s", "5")
        self.moves(name, LIVE, LIVE)
        self.ends_well(job)

    def test_noise_is_sent_as_it_is(self):
        for setting in ("auto", "always"):
            with self.subTest(setting):
                job, name = self.start(setting, "-n", directory=setting)
                for before, sent in self.moves(name, FROZEN, LIVE):
                    # What is rewritten is alike from page to page, and what else a process has is shorter.
                    self.assertGreater(sent, (FOOTPRINT - DIRTY) * MIB)
                    self.assertGreater(sent, before * 0.8)
                self.ends_well(job)

    def test_encrypted_on_its_way(self):
        job, name = self.start("always", MEND_ENCRYPT_DATA="on")
        for before, sent in self.moves(name, LIVE, FROZEN):
            self.assertLess(sent, before * 0.7)
        self.ends_well(job)

    def test_off(self):
        job, name = self.start("off")
        for before, sent in self.moves(name, FROZEN, LIVE):
            self.assertEqual(sent, before)
        self.ends_well(job)


class OverAFastLink(Compressed):
    def test_a_rank_moves_and_loses_nothing(self):
        """Whether a busy machine's link is the slower side is not this test's."""
        job, name = self.start("auto", "-x", "-s", "7")
        self.moves(name, FROZEN, LIVE, FROZEN)
        self.ends_well(job)


if __name__ == "__main__":
    unittest.main()
