"""Second copies of staged files: made and removed by hand, read when a target is lost or says nothing, made again by what heals. The source is away in most of these tests."""

import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB
from cluster import Lab, compile_mpi
from test_space import NODES, SIZE, UNREACHABLE, Space, fuse_is_open

DAMAGED = 65


def node(target):
    return target.split(":")[0]


class Copies(Space):
    """The space `input` on three nodes of four, with a file `in.dat` that has second copies."""

    @classmethod
    def setUpClass(cls):
        super(Space, cls).setUpClass()
        cls.lab = cls.enterClassContext(Lab(4, daemons={"MEND_SPACE_PROBE_S": "1", "MEND_SPACE_COPY_DELAY_S": "1", "MEND_SPACE_CACHE_MB": "1"}))

    def setUp(self):
        super().setUp()
        self.stage()

    def replicate(self, *arguments, code=0):
        [said] = json.loads(self.data("replicate", "--json", *arguments, code=code).stdout)
        return said

    def without_source(self):
        os.rename(self.source, self.source + ".away")

    def copies(self, place="input:in.dat"):
        """For each object its nodes."""
        objects = json.loads(self.data("getstripe", "--json", place).stdout)["objects"]
        return [[node(one["target"])] + ([node(one["second"])] if "second" in one else []) for one in objects]

    def room(self, space="input"):
        shown = json.loads(self.data("df", "--json", space).stdout)
        return shown, sum(one["used"] for one in shown["targets"])

    def processes(self, name, sign):
        """Sends a signal to a node's target of `input`."""
        done = self.lab.on(name, "pkill", f"-{sign}", "-x", "-f", f".*mend-space target .*{self.target(name)} .*")
        self.assertEqual(done.returncode, 0, done.stderr)

    def stop(self, name):
        self.processes(name, "STOP")
        self.addCleanup(self.lab.on, name, "pkill", "-CONT", "-x", "-f", f".*mend-space target .*{self.target(name)} .*")

    def lose(self, name):
        self.processes(name, "KILL")
        shutil.rmtree(self.target(name))

    def whole(self, but=()):
        """True if each object is on two nodes, which are none of these."""
        return all(len(nodes) == 2 and not set(nodes) & set(but) for nodes in self.copies())


class ByHand(Copies):
    def test_copies_are_on_other_nodes_shown_counted_and_removed(self):
        self.assertEqual(self.room()[1], SIZE)
        done = self.replicate("input:")
        self.assertEqual((done["files"], done["bytes"], done["failed"]), (1, SIZE, 0))
        self.assertTrue(all(len(set(nodes)) == 2 for nodes in self.copies()), self.copies())
        self.assertEqual((self.listed()["in.dat"]["copies"], self.listed()["in.dat"]["copied"]), (2, SIZE))
        shown, used = self.room()
        self.assertEqual((shown["bytes"], shown["copied"], used), (SIZE, SIZE, 2 * SIZE))
        self.assertIn("second copy", self.data("getstripe", "input:in.dat").stdout)
        self.data("check", "input:")
        again = self.replicate("input:in.dat")
        self.assertEqual((again["files"], again["bytes"], again["already"]), (0, 0, 1))
        self.assertEqual(self.replicate("--remove", "input:")["bytes"], SIZE)
        self.assertEqual((self.room()[0]["copied"], self.room()[1], self.listed()["in.dat"]["copies"]), (0, SIZE, 1))
        self.assertEqual([len(self.objects(name)) for name in NODES], [1, 1, 1])
        self.assertEqual(self.replicate("--remove", "input:")["already"], 1)
        self.assertEqual(self.got(), "")

    def test_what_cannot_be_copied_is_told(self):
        self.assertIn("is not there", self.data("replicate", "input:no.dat", code=1).stderr)
        self.data("create", "one", "--target", f"node4:{self.target('one')}")
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "one")
        self.stage("one:in.dat")
        self.assertIn("its second copy is not made: there is no other target for it", self.data("replicate", "one:", code=1).stderr)
        small = os.path.join(self.directory, "small")
        mounted = self.lab.on("node4", "sh", "-c", f"mkdir -p {small} && mount -t tmpfs -o size=8m,mode=700 small {small}")
        self.assertEqual(mounted.returncode, 0, mounted.stderr)
        self.addCleanup(self.lab.on, "node4", "umount", "-l", small)
        self.data("create", "small", "--target", f"node3:{self.target('large')}", "--target", f"node4:{small}", "--count", "1")
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "small")
        self.stage("small:in.dat")
        self.assertIn("small:in.dat: its second copy is not made: there is no room for it", self.data("replicate", "small:", code=1).stderr)
        self.without_source()
        self.got("small:in.dat")

    def test_a_command_that_is_killed_leaves_the_files_readable_and_is_repeated(self):
        files = {f"many/{number}": self.random.randbytes(self.random.randrange(3 * MIB)) for number in range(12)}
        for name, content in files.items():
            self.write("source/" + name, content)
        self.data("stage", f"file://{self.directory}/source/many/", "input:many/")
        shutil.rmtree(os.path.join(self.directory, "source"))
        command = [*self.lab.command("data", "replicate", "input:")]
        killed = 0
        # At once, then later and later, so that it is killed at each of its steps and comes to its end.
        for attempt in range(40):
            process = subprocess.Popen(command, cwd=self.directory, env=self.lab.environment, stdout=subprocess.DEVNULL, start_new_session=True)
            try:
                code = process.wait(self.random.uniform(0.01, 0.02) * 1.2**attempt if attempt else 0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                killed += 1
                name = self.random.choice(sorted(files))
                self.got("input:" + name, files[name])
                continue
            self.assertEqual(code, 0)
            break
        else:
            self.data("replicate", "input:")
        self.assertGreater(killed, 0)
        self.data("check", "input:")
        total = SIZE + sum(map(len, files.values()))
        self.assertEqual((self.room()[0]["copied"], self.room()[1]), (total, 2 * total), f"killed {killed} times")
        self.lab.kill_daemon("node1")
        for name, content in files.items():
            self.assertNotIn("came from the source", self.got("input:" + name, content))
        self.daemon_back("node1")


class Lost(Copies):
    def setUp(self):
        super().setUp()
        self.replicate("input:")
        self.without_source()

    def test_any_target_may_be_lost_or_silent_and_all_is_read(self):
        for name in NODES:
            self.stop(name)
            self.assertNotIn("came from the source", self.got())
            self.processes(name, "CONT")
        for name in NODES:
            self.lab.kill_daemon(name)
            self.assertNotIn("came from the source", self.got())
            self.daemon_back(name)
        self.data("check", "input:")

    def test_one_target_after_the_other_is_lost_and_repair_makes_copies_again(self):
        self.lose("node1")
        [told] = json.loads(self.data("check", "--json", "input:", code=DAMAGED).stdout)
        [one] = told["damaged"]
        self.assertEqual(one["lost"], 0)
        self.assertGreater(one["single"], 0)
        self.assertIn("input:in.dat: its second copy stays: target node1", self.data("replicate", "--remove", "input:", code=UNREACHABLE).stderr)
        [said] = json.loads(self.data("repair", "--json", "input:").stdout)
        self.assertEqual([one["fetched"] for one in said["repaired"]], [0])
        self.assertTrue(self.whole(but=["node1"]), self.copies())
        self.assertEqual(self.room_of_two()[1], 2 * SIZE)
        self.lose("node2")
        self.data("repair", "input:", code=1)
        self.assertEqual({tuple(nodes) for nodes in self.copies()}, {("node3",)})
        self.assertNotIn("came from the source", self.got())

    def room_of_two(self):
        shown = json.loads(self.data("df", "--json", "input", code=UNREACHABLE).stdout)
        return shown, sum(one.get("used", 0) for one in shown["targets"])

    def test_damage_of_one_copy_is_put_right_by_the_other(self):
        [first, _] = self.copies()[0]
        for held in self.objects(first):
            with open(held, "r+b") as file:
                file.seek(70_000)
                file.write(b"damaged")
        self.data("check", "input:", code=DAMAGED)
        [said] = json.loads(self.data("repair", "--json", "input:").stdout)
        self.assertEqual([one["fetched"] for one in said["repaired"]], [0])
        self.data("check", "input:")
        self.assertTrue(self.whole(), self.copies())
        self.assertEqual(self.room()[1], 2 * SIZE)
        # A target that is slow here is told, too.
        self.lab.set("MEND_SPACE_HEDGE_MS", "10000")
        self.assertEqual(self.got(), "")

    def test_a_target_that_comes_back_keeps_nothing_that_is_elsewhere(self):
        self.lab.kill_daemon("node2")
        self.data("repair", "input:")
        self.assertTrue(self.whole(but=["node2"]), self.copies())
        self.daemon_back("node2")
        self.assertNotIn("came from the source", self.got())
        self.assertEqual((self.objects("node2"), self.room()[1]), ([], 2 * SIZE))

    @unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
    def test_a_job_reads_on_while_one_target_dies_and_another_one_stands_still(self):
        program = compile_mpi("mpi_input.c", os.path.join(self.directory, "input"))
        plain = os.path.join(self.directory, "plain")
        os.makedirs(plain)
        with open(os.path.join(plain, "go"), "wb"):
            pass
        expected = self.lab.mend("run", "-q", "--", program, self.source + ".away", cwd=plain).stdout.splitlines()[-1]
        seen = os.path.join(self.directory, "seen")
        # The cache is small, so that the second half is not there yet.
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node3,node4", "--data", f"input:{seen}", "--", program,
                             seen + "/in.dat", "1")
        job.wait_for(lambda: "open\n" in self.output(), "the first half is read")
        self.lose("node1")
        job.wait_for(lambda: self.whole(but=["node1"]), "its copies are made again")
        self.stop("node2")
        job.let_go()
        job.finish()
        self.assertEqual(self.output().splitlines()[-1], expected)
        self.assertNotIn("came from the source", job.stderr())


if __name__ == "__main__":
    unittest.main()
