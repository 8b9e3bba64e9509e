"""Data spaces heal while nobody reads: what a lost target had comes onto others, what is damaged is put right, and a job is told before it starts what cannot be had."""

import json
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB
from cluster import Lab, compile_mpi
from test_space import SIZE, UNREACHABLE, Space, fuse_is_open

DAMAGED = 65
BLOCK = 64 << 10


class Losses(Space):
    """Besides `input`, which is on three nodes, the space `wide` on four, whose files are on three of them."""

    @classmethod
    def setUpClass(cls):
        super(Space, cls).setUpClass()
        cls.lab = cls.enterClassContext(Lab(4, daemons={"MEND_SPACE_PROBE_S": "1", "MEND_SPACE_VERIFY_S": "2"}))

    def wide(self):
        nodes = ["node1", "node2", "node3", "node4"]
        self.data("create", "wide", "--count", "3", *[word for node in nodes for word in ("--target", f"{node}:{self.target(node)}-wide")])
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "wide")
        self.stage("wide:in.dat")

    def stripes(self, place):
        """Bytes by node, and nodes that keep checksums."""
        shown = json.loads(self.data("getstripe", "--json", place).stdout)
        node = lambda target: target.split(":")[0]
        objects = {}
        for one in shown["objects"]:
            objects[node(one["target"])] = objects.get(node(one["target"]), 0) + one["bytes"]
        return objects, {node(keeper) for keeper in shown["keepers"]}

    def lose(self, node, ending=""):
        """Kills a node's target at once, with all that it had."""
        directory = self.target(node) + ending
        # Before the kill: a mount that looks at it each second has it started again at once, and that one writes there.
        os.rename(directory, directory + ".lost")
        killed = self.lab.on(node, "pkill", "-KILL", "-x", "-f", f".*mend-space target .*{directory} .*")
        self.assertEqual(killed.returncode, 0, killed.stderr)
        shutil.rmtree(directory + ".lost")

    def repaired(self, place, code=0):
        [said] = json.loads(self.data("repair", "--json", place, code=code).stdout)
        return said

    def without_source(self):
        os.rename(self.source, self.source + ".away")


class Healing(Losses):
    """Staged files."""

    def test_what_a_lost_target_had_comes_onto_one_that_had_none(self):
        self.wide()
        self.data("check", "wide:")
        before, keepers = self.stripes("wide:in.dat")
        [spare] = {"node1", "node2", "node3", "node4"} - set(before)
        lost = sorted(keepers)[0]
        self.lose(lost, "-wide")
        [told] = json.loads(self.data("check", "--json", "wide:", code=DAMAGED).stdout)
        self.assertEqual([one["lost"] for one in told["damaged"]], [before[lost]])
        [done] = self.repaired("wide:")["repaired"]
        self.assertEqual((done["name"], done["lost"]), ("wide:in.dat", before[lost]))
        self.assertLessEqual(done["fetched"], 1.02 * before[lost])
        after, keepers = self.stripes("wide:in.dat")
        self.assertEqual(after, {spare if node == lost else node: size for node, size in before.items()})
        self.assertEqual((len(keepers), lost in keepers), (2, False))
        self.without_source()
        self.assertNotIn("came from the source", self.got("wide:in.dat"))
        self.data("check", "wide:")
        self.assertEqual(self.repaired("wide:")["repaired"], [])

    def test_one_target_after_the_other_is_lost_and_the_file_stays(self):
        self.stage()
        for node in ("node1", "node2"):
            self.lose(node)
            [done] = self.repaired("input:in.dat")["repaired"]
            self.assertLessEqual(done["fetched"], 1.02 * done["lost"])
            self.assertNotIn("came from the source", self.got())
        self.without_source()
        self.assertEqual(self.stripes("input:in.dat"), ({"node3": SIZE}, {"node3"}))
        self.got()
        # Nothing else knows what the lost ones have, if they come back: what is there stays, too.
        for _ in range(2):
            said = self.data("destroy", "input", code=UNREACHABLE).stderr
            self.assertIn("not all of its targets answer", said)
            self.assertEqual([node for node in ("node1", "node2", "node3") if node in said], ["node1", "node2"])
            self.got()
        self.data("destroy", "--force", "input")

    def test_damaged_blocks_alone_are_fetched_and_put_right(self):
        self.stage()
        [held] = self.objects("node1")
        with open(held, "rb") as file:
            whole = file.read()
        for at in (0, 70_000, 2 * MIB + 5):
            with open(held, "r+b") as file:
                file.seek(at)
                file.write(b"damaged")
        self.data("check", "input:", code=DAMAGED)
        [done] = self.repaired("input:")["repaired"]
        self.assertEqual((done["lost"], done["fetched"]), (3 * BLOCK, 3 * BLOCK))
        [held] = self.objects("node1")
        with open(held, "rb") as file:
            self.assertTrue(file.read() == whole, "the object is not as it was")
        os.remove(held)
        self.assertEqual(self.repaired("input:")["repaired"][0]["fetched"], len(whole))
        self.without_source()
        self.assertEqual(self.got(), "")

    def test_a_target_that_comes_back_lets_go_of_what_is_elsewhere(self):
        self.stage()
        [held] = self.objects("node2")
        self.lab.kill_daemon("node2")
        self.repaired("input:")
        self.assertTrue(os.path.exists(held))
        self.daemon_back("node2")
        self.without_source()
        self.assertEqual(self.got(), "")
        self.assertEqual(self.objects("node2"), [])
        self.data("check", "input:")
        room = json.loads(self.data("df", "--json", "input").stdout)
        self.assertEqual(sum(one["used"] for one in room["targets"]), SIZE)

    def test_what_no_source_gives_is_told_by_name_and_the_file_stays_where_it_was(self):
        self.stage()
        before = self.stripes("input:in.dat")
        self.lab.kill_daemon("node2")
        self.without_source()
        done = self.data("repair", "input:", code=UNREACHABLE)
        for word in ("input:in.dat", f"node2:{self.target('node2')}", f"file://{self.source}"):
            self.assertIn(word, done.stderr)
        self.assertEqual(self.stripes("input:in.dat"), before)
        self.daemon_back("node2")
        self.assertEqual(self.got(), "")

    def test_a_job_whose_data_cannot_be_had_is_told_before_it_starts(self):
        self.stage()
        self.lose("node3")
        self.without_source()
        begun = os.path.join(self.directory, "begun")
        done = self.lab.mend("run", "-n", "2", "--hosts", "node1,node2", "--data", f"input:{self.directory}/seen", "--", "touch", begun)
        self.assertEqual(done.returncode, UNREACHABLE, done.stderr)
        for word in ("input:in.dat cannot be had", f"node3:{self.target('node3')}", f"file://{self.source}", "mend data stage --force URI input:in.dat"):
            self.assertIn(word, done.stderr)
        self.assertFalse(os.path.exists(begun))

    @unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
    def test_a_job_s_data_heals_while_it_runs_and_it_never_hears_of_it(self):
        program = compile_mpi("mpi_input.c", os.path.join(self.directory, "input"))
        self.wide()
        plain = os.path.join(self.directory, "plain")
        os.makedirs(plain)
        with open(os.path.join(plain, "go"), "wb"):
            pass
        expected = self.lab.mend("run", "-q", "--", program, self.source, cwd=plain).stdout.splitlines()[-1]
        seen = os.path.join(self.directory, "seen")
        job = self.lab.start(self.directory, "run", "-n", "3", "--hosts", "node1,node2,node3", "--data", f"wide:{seen}", "--", program,
                             seen + "/in.dat", "1")
        name = self.lab.running(job)
        job.wait_for(lambda: "open\n" in self.output(), "the first half is read")
        lost = sorted(self.stripes("wide:in.dat")[0])[-1]
        self.lose(lost, "-wide")
        job.wait_for(lambda: lost not in self.stripes("wide:in.dat")[0], "its stripes are elsewhere")
        # A damaged block is found by reading, which nobody else does here.
        other = sorted(self.stripes("wide:in.dat")[0])[0]
        [held] = [os.path.join(where, name) for where, _, names in os.walk(self.target(other) + "-wide/objects") for name in names]
        with open(held, "r+b") as file:
            right = file.read(7)
            file.seek(0)
            file.write(b"damaged")

        def put_right():
            with open(held, "rb") as file:
                return file.read(7) == right

        job.wait_for(put_right, "the damaged block is as it was")
        target = lambda node: f"{node}:{self.target(node)}-wide"
        told = lambda kind: [entry["data"] for entry in self.lab.verb("log", name) if entry["event"] == kind]
        lacked = lambda: sorted(one["lacked"] for one in told("file_healed"))
        job.wait_for(lambda: len(lacked()) > 1 and told("target_lost"), "the journal tells of it")
        self.without_source()
        job.let_go()
        job.finish()
        self.assertEqual(self.output().splitlines()[-1], expected)
        # All nodes have seen the loss, and one has healed each.
        self.assertEqual([(one["space"], one["target"]) for one in told("target_lost")], [("wide", target(lost))])
        self.assertEqual(lacked(), sorted([[target(lost)], [target(other)]]))
        for one in told("file_healed"):
            self.assertEqual((one["file"], one["sources"]), ("in.dat", [f"file://{self.source}"]))
            self.assertGreaterEqual(one["fetched"], BLOCK)
        self.assertEqual([told(kind) for kind in ("target_back", "file_not_healed", "data_events_left_out")], [[], [], []])
        self.assertIn(f"target {target(lost)} of data space wide is lost, as node", self.lab.mend("log", name).stdout)
        self.assertIn(f"{target(lost)} lacked it", self.lab.mend("explain", name, "--why").stdout)
        marks = [mark["kind"] for mark in self.lab.verb("timeline", name)["marks"]]
        self.assertEqual((marks.count("mended"), "trouble" in marks), (2, True))


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class Written(Losses):
    """Files that ranks wrote have no source, and two copies."""

    def setUp(self):
        super().setUp()
        self.seen = os.path.join(self.directory, "seen")
        self.content = os.urandom(5 * MIB + 77)
        with open(os.path.join(self.directory, "content"), "wb") as file:
            file.write(self.content)

    def written(self, *more):
        command = ["run", "--hosts", "node1", "--data", f"input:{self.seen}:rw", "--", "sh", "-c", f"cp content {self.seen}/out.dat; {'; '.join(more)}"]
        if more:
            return self.lab.start(self.directory, *command)
        done = self.lab.mend(*command, cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        return None

    def damage(self, node, *offsets):
        """In each object that the node has of the file; how many that are."""
        objects = [path for path in self.objects(node) if path.rpartition(".")[2].isdigit()]
        for path in objects:
            with open(path, "r+b") as file:
                for offset in offsets:
                    file.seek(offset)
                    right = file.read(7)
                    file.seek(offset)
                    file.write(bytes(byte ^ 255 for byte in right))
        return len(objects)

    def test_each_copy_is_made_whole_from_the_other(self):
        self.written()
        self.assertIn("1 file (5.00 MiB): 1 whole", self.data("check", "input:").stdout)
        damaged = self.damage("node1", 0, 70_000) + self.damage("node2", 3 * BLOCK)
        self.assertGreater(damaged, 2)
        said = self.data("check", "input:", code=DAMAGED).stdout
        for word in ("input:out.dat", "damaged on", f"node1:{self.target('node1')}", "the other copy has them", "0 whole"):
            self.assertIn(word, said)
        [told] = json.loads(self.data("check", "--json", "input:out.dat", code=DAMAGED).stdout)
        self.assertEqual([(one["name"], one["lost"]) for one in told["damaged"]], [("input:out.dat", 0)])
        # Whoever reads it meanwhile gets what was written.
        self.got("input:out.dat", self.content)
        [done] = self.repaired("input:")["repaired"]
        self.assertEqual(done["name"], "input:out.dat")
        self.assertGreater(done["copied"], 2 * BLOCK)
        self.data("check", "input:")
        self.assertEqual(self.repaired("input:")["repaired"], [])
        self.got("input:out.dat", self.content)

    def test_a_lost_target_s_copies_come_onto_others(self):
        self.written()
        self.lose("node3")
        self.assertIn("one copy is lost, from", self.data("check", "input:", code=DAMAGED).stdout)
        self.repaired("input:")
        self.data("check", "input:")
        self.lose("node2")
        self.got("input:out.dat", self.content)
        # Two targets are too few for two copies of which one is lost.
        said = self.data("repair", "input:", code=1).stderr
        self.assertIn("no second copy can be made", said)
        self.got("input:out.dat", self.content)

    def test_what_no_copy_has_is_told_and_no_job_starts_without_both(self):
        self.written()
        for node in ("node1", "node2", "node3"):
            self.damage(node, 2 * BLOCK)
        [told] = json.loads(self.data("check", "--json", "input:", code=DAMAGED).stdout)
        self.assertEqual([one["lost"] for one in told["damaged"]], [3 * BLOCK])
        self.assertIn("damaged in both copies", self.data("repair", "input:", code=DAMAGED).stderr)
        for node in ("node1", "node2"):
            self.lose(node)
        begun = os.path.join(self.directory, "begun")
        done = self.lab.mend("run", "--hosts", "node3", "--data", f"input:{self.seen}", "--", "touch", begun)
        self.assertEqual(done.returncode, UNREACHABLE, done.stderr)
        self.assertIn("input:out.dat cannot be had: both copies of 1 of its objects are lost", done.stderr)
        self.assertFalse(os.path.exists(begun))

    def test_a_job_s_output_is_repaired_while_it_runs(self):
        job = self.written("while [ ! -e go ]; do sleep 0.1; done", f"cmp content {self.seen}/out.dat")
        job.wait_for(lambda: self.listed().get("out.dat", {}).get("size") == len(self.content), "the rank has written")
        self.damage("node2", BLOCK, 2 * BLOCK)
        job.wait_for(lambda: self.lab.mend("data", "check", "input:").returncode == 0, "the damaged blocks are as they were")
        job.let_go()
        job.finish()


if __name__ == "__main__":
    unittest.main()
