"""Ranks write files into data spaces: their own and shared ones, on several nodes, while targets and writers are killed."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB
from test_space import NODES, Space, fuse_is_open

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "writing.py")


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class Writes(Space):
    """The space `input` of three nodes, which ranks see in `seen` and write into; `own` in it is made by its first rank."""

    SIZE = 2 * MIB + 7

    def setUp(self):
        super().setUp()
        self.seen = os.path.join(self.directory, "seen")
        self.meeting = os.path.join(self.directory, "meeting")
        os.makedirs(self.meeting)

    def command(self, ranks, hosts, what, *arguments):
        return ["run", "-n", str(ranks), "--hosts", ",".join(hosts), "--data", f"input:{self.seen}:rw", "--", sys.executable, PROGRAM, what,
                self.seen, *arguments]

    def run_ranks(self, ranks, hosts, what, *arguments, code=0):
        done = self.lab.mend(*self.command(ranks, hosts, what, *arguments), cwd=self.directory)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done



class Posix(Writes):
    def test_a_rank_s_own_files_are_as_posix_has_them(self):
        self.assertIn("all of POSIX", self.run_ranks(1, ["node1"], "posix").stdout)

    def test_steps_drawn_at_random_read_as_in_memory(self):
        seed = str(self.random.randrange(1 << 30))
        self.assertIn("as in memory", self.run_ranks(1, ["node2"], "fsx", seed, "300").stdout, f"seed {seed}")


class Shared(Writes):
    def test_ranks_of_three_nodes_write_one_file(self):
        said = self.run_ranks(6, NODES, "shared", self.meeting).stdout
        self.assertEqual(said.count("all wrote all"), 6)


if __name__ == "__main__":
    unittest.main()
