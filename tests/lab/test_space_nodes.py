"""Whole nodes of data spaces: with several targets each, silent ones, and those that a restart finds lost."""

import json
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from test_space import UNREACHABLE, Readers, Space, fuse_is_open


class Pairs(Space):
    """The space `pairs`, with two targets on one node and one on another; a file's bytes are on one target."""

    SIZE = 100_000

    def setUp(self):
        super().setUp()
        targets = ["node1:" + self.target("one"), "node1:" + self.target("two"), "node2:" + self.target("three")]
        self.data("create", "pairs", "--count", "1", *[word for target in targets for word in ("--target", target)])
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "pairs")

    def nodes(self, shown):
        return {target.split(":")[0] for target in shown}

    def test_the_loss_of_a_node_with_two_targets_takes_nothing_away(self):
        files = {f"{number}.dat": self.random.randbytes(self.SIZE + number) for number in range(12)}
        for name, content in files.items():
            self.write("tree/" + name, content)
        self.data("stage", f"file://{self.directory}/tree/", "pairs:")
        for name in files:
            shown = json.loads(self.data("getstripe", "--json", f"pairs:{name}").stdout)
            self.assertEqual(self.nodes(shown["keepers"]), {"node1", "node2"}, shown)
        written = {}
        if fuse_is_open():
            seen = os.path.join(self.directory, "seen")
            written = {f"out/{name}": content for name, content in files.items()}
            done = self.lab.mend("run", "--hosts", "node3", "--data", f"pairs:{seen}:rw", "--", "sh", "-c", f"mkdir {seen}/out; cp tree/* {seen}/out",
                                 cwd=self.directory)
            self.assertEqual(done.returncode, 0, done.stderr)
            for name in written:
                for copies in json.loads(self.data("getstripe", "--json", f"pairs:{name}").stdout)["objects"]:
                    self.assertEqual(self.nodes(copies), {"node1", "node2"}, name)
        self.addCleanup(self.daemon_back, "node1")
        self.lab.kill_daemon("node1")
        self.assertEqual(set(self.listed("pairs:")) - {"out"}, set(files))
        for name, content in {**files, **written}.items():
            self.got(f"pairs:{name}", content)
        # With one node left both copies of checksums are there.
        self.data("repair", "pairs:0.dat")
        self.assertEqual(self.nodes(json.loads(self.data("getstripe", "--json", "pairs:0.dat").stdout)["keepers"]), {"node2"})


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class Silent(Readers, Space):
    def signal_target(self, node, number):
        done = self.lab.on(node, "pkill", "-" + number, "-x", "-f", f".*mend-space target .*{self.target(node)} .*")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_ranks_read_on_from_the_source_while_a_target_says_nothing(self):
        # It counts as lost long after this test has failed.
        job, _ = self.begun("--genv", "MEND_SPACE_TIMEOUT_MS", "3600000", "--genv", "MEND_SPACE_PROBE_S", "0")
        self.addCleanup(self.signal_target, "node3", "CONT")
        self.signal_target("node3", "STOP")
        self.ends_well(job)


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class Restarts(Readers, Space):
    def test_a_restart_whose_data_cannot_be_had_is_told_and_with_the_source_it_goes_on(self):
        job, name = self.begun()
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        killed = self.lab.on("node3", "pkill", "-KILL", "-x", "-f", f".*mend-space target .*{self.target('node3')} .*")
        self.assertEqual(killed.returncode, 0, killed.stderr)
        shutil.rmtree(self.target("node3"))
        os.rename(self.source, self.source + ".away")
        refused = self.lab.mend("restart", "--hosts", "node1,node2", name)
        self.assertEqual(refused.returncode, UNREACHABLE, refused.stderr)
        for word in ("input:in.dat cannot be had", f"node3:{self.target('node3')}", f"file://{self.source}"):
            self.assertIn(word, refused.stderr)
        self.assertNotIn("is not there any more", refused.stderr)
        os.rename(self.source + ".away", self.source)
        os.remove(os.path.join(self.directory, "stdout"))
        job = self.lab.start(self.directory, "restart", "--hosts", "node1,node2", name)
        self.ends_well(job)


if __name__ == "__main__":
    unittest.main()
