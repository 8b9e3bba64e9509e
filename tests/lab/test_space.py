"""Data spaces as people use them: files are striped over nodes, read by ranks through a mount, and outlive a target's loss."""

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB, InDirectory
from cluster import Lab, compile_mpi
from tiers import commit_seed

NODES = ["node1", "node2", "node3"]
SIZE = 9 * MIB + 4321
UNREACHABLE, BAD_VALUE = 69, 64


def fuse_is_open():
    return os.access("/dev/fuse", os.R_OK | os.W_OK)


class Space(InDirectory):
    """Three nodes with a target each; the space `input`, and its `content` in the file `source`."""

    # Of the content; settings of the daemons; options of the lab.
    SIZE, DAEMONS, OPTIONS = SIZE, {}, ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(4, *cls.OPTIONS, daemons=cls.DAEMONS))

    def setUp(self):
        super().setUp()
        self.random = random.Random(f"{commit_seed()} {self.id()}")
        self.content = self.random.randbytes(self.SIZE)
        self.source = self.write("source/in.dat", self.content)
        targets = [word for node in NODES for word in ("--target", f"{node}:{self.target(node)}")]
        self.data("create", "input", *targets)
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "input")

    def target(self, node):
        return os.path.join(self.directory, "targets", node)

    def write(self, name, content):
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def data(self, *arguments, code=0, **options):
        done = self.lab.mend("data", *arguments, cwd=self.directory, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def stage(self, path="input:in.dat", *options):
        return self.data("stage", *options, "file://" + self.source, path)

    def listed(self, place="input:"):
        return {one["name"]: one for one in json.loads(self.data("ls", "--json", place).stdout)}

    def got(self, place="input:in.dat", content=None):
        """Reads a file back; what was said of it."""
        to = os.path.join(self.directory, "got")
        said = self.data("get", place, to)
        with open(to, "rb") as file:
            self.assertTrue(file.read() == (self.content if content is None else content), "other bytes came back")
        return said.stderr

    def objects(self, node):
        return sorted(glob.glob(self.target(node) + "/objects/*/*"))

    def daemon_back(self, node):
        """Starts a daemon where one was killed."""
        self.lab.start_daemon(node, self.directory)


class Files(Space):
    def test_files_are_striped_listed_and_read_back(self):
        said = self.stage()
        self.assertIn("input:in.dat: 9.00 MiB in", said.stdout)
        shown = json.loads(self.data("getstripe", "--json", "input:in.dat").stdout)
        self.assertEqual(sorted(one["target"] for one in shown["objects"]), [f"{node}:{self.target(node)}" for node in NODES])
        self.assertEqual(sum(one["bytes"] for one in shown["objects"]), SIZE)
        self.assertEqual(len(shown["keepers"]), 2)
        for node in NODES:
            [held] = self.objects(node)
            self.assertGreaterEqual(os.path.getsize(held), 3 * MIB)
        self.assertEqual(self.got(), "")
        self.assertIn("there already", self.stage().stdout)
        room = json.loads(self.data("df", "--json", "input").stdout)
        self.assertEqual((room["files"], room["bytes"], sum(one["used"] for one in room["targets"])), (1, SIZE, SIZE))

    def test_directories_are_staged_spread_as_they_say_and_removed(self):
        small = {"a.dat": b"a", "b/empty": b"", "b/c/d.dat": self.random.randbytes(200_000)}
        for name, content in small.items():
            self.write("tree/" + name, content)
        self.data("setstripe", "input:run7/b", "--count", "1", "--stripe", "64K")
        self.data("stage", f"file://{self.directory}/tree/", "input:run7/")
        self.assertEqual(sorted(self.listed()), ["run7"])
        self.assertEqual({name: one["directory"] for name, one in self.listed("input:run7/").items()}, {"a.dat": False, "b": True})
        for name, content in small.items():
            self.got(f"input:run7/{name}", content)
        self.assertEqual(len(json.loads(self.data("getstripe", "--json", "input:run7/b/c/d.dat").stdout)["objects"]), 1)
        self.assertIn("is a directory", self.data("rm", "input:run7/b", code=BAD_VALUE).stderr)
        self.data("rm", "input:run7/a.dat")
        self.data("rm", "-r", "input:run7")
        self.assertEqual(self.listed(), {})
        self.assertEqual([self.objects(node) for node in NODES], [[], [], []])
        self.assertIn("is no file that is there", self.data("get", "input:run7/a.dat", "x", code=1).stderr)

    def test_holes_of_a_file_are_neither_sent_nor_stored(self):
        size, pieces = 3 << 30, {0: b"first", 1_500_000_000: self.random.randbytes(100_000), (3 << 30) - 5: b"last!"}
        path = self.write("sparse", b"")
        os.truncate(path, size)
        with open(path, "r+b") as file:
            for at, content in pieces.items():
                os.pwrite(file.fileno(), content, at)
        if os.stat(path).st_blocks * 512 > 16 * MIB:
            self.skipTest("the file system of the tests keeps no holes")
        self.data("stage", f"file://{path}", "input:sparse")
        stored = [os.stat(found) for node in NODES for found in self.objects(node)]
        self.assertEqual(sum(one.st_size for one in stored), size)
        self.assertLess(sum(one.st_blocks * 512 for one in stored), 16 * MIB)
        to = os.path.join(self.directory, "got")
        self.data("get", "input:sparse", to)
        self.assertEqual(os.path.getsize(to), size)
        self.assertLess(os.stat(to).st_blocks * 512, 16 * MIB)
        with open(to, "rb") as file:
            for at, content in pieces.items():
                self.assertEqual(os.pread(file.fileno(), len(content), at), content)
            self.assertEqual(os.pread(file.fileno(), MIB, 5 * MIB), bytes(MIB))

    def test_a_slash_at_the_end_means_into_the_directory(self):
        self.data("stage", "file://" + self.source, "input:run7/")
        name = os.path.basename(self.source)
        self.assertIn(f"input:run7/{name}", self.data("stage", "file://" + self.source, "input:run7/").stdout)
        self.assertIn(name, self.data("ls", "input:run7").stdout)

    def test_a_file_of_a_long_name_is_copied_out_and_touches_no_other(self):
        name = "x" * 252
        self.stage(f"input:{name}")
        place = os.path.join(self.directory, "out")
        os.mkdir(place)
        self.data("get", f"input:{name}", place)
        self.stage()
        other = self.write("out/in.dat.mend-part", b"mine")
        self.data("get", "input:in.dat", place)
        with open(other, "rb") as file:
            self.assertEqual(file.read(), b"mine")
        self.assertEqual(sorted(os.listdir(place)), ["in.dat", "in.dat.mend-part", name])

    def test_what_is_there_stays_unless_it_is_forced(self):
        self.stage()
        self.content = self.random.randbytes(SIZE // 2)
        self.write("source/in.dat", self.content)
        self.assertIn("is not what its source holds now", self.data("stage", "file://" + self.source, "input:", code=1).stderr)
        self.stage("input:in.dat", "--force")
        self.got()
        self.assertEqual(sum(len(self.objects(node)) for node in NODES), 3)
        self.assertIn("in.dat is a file", self.data("stage", "file://" + self.source, "input:in.dat/x", code=1).stderr)
        done = self.data("stage", "file://" + self.source, "other:in.dat", code=1)
        self.assertIn("there is no data space other", done.stderr)
        self.assertIn("./other:in.dat", done.stderr)

    def test_a_space_of_many_targets_whose_checks_ask_one_for_checksums(self):
        targets = [f"{node}:{self.target(node)}-{number}" for node in NODES for number in range(24)]
        self.data("create", "many", "--stripe", "64K", *[word for target in targets for word in ("--target", target)])
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "many")
        self.stage("many:in.dat")
        self.assertEqual(len(json.loads(self.data("getstripe", "--json", "many:in.dat").stdout)["objects"]), len(targets))
        for _ in range(3):
            self.assertIn("1 whole", self.data("check", "many:").stdout)

    def test_spaces_that_cannot_be_are_refused_and_leave_nothing(self):
        self.assertIn("there is a data space input", self.data("create", "input", "--nodes", "node1", code=1).stderr)
        there = self.target("node1")
        self.assertIn("another data space", self.data("create", "more", "--target", f"node1:{there}", code=UNREACHABLE).stderr)
        here, mine = os.path.join(self.directory, "new"), os.path.dirname(self.source)
        done = self.data("create", "more", "--target", f"node1:{here}", "--target", f"node2:{mine}", code=UNREACHABLE)
        self.assertIn("other files in it", done.stderr)
        self.assertFalse(os.path.exists(here))
        self.assertTrue(os.path.exists(self.source))
        for words in (["../x", "--nodes", "node1"], ["more", "--nodes", "node1", "--stripe", "1000"], ["more", "--nodes", "node1", "--count", "2"],
                      ["more", "--nodes", "no-such-host"], ["more", "--nodes", "node1,node1"]):
            self.data("create", *words, code=BAD_VALUE)
        for words, said in ((["--stripe", "100"], "in stripes of 100 bytes"), (["--count", "2"], "over 2 targets: there are 1")):
            self.assertIn(said, self.data("create", "more", "--nodes", "node1", *words, code=BAD_VALUE).stderr)
        # Nodes of a lab have one file system, as those that share a directory do.
        shared = self.data("create", "more", "--nodes", "node1,node2", "--directory", os.path.join(self.directory, "shared"), code=UNREACHABLE)
        self.assertIn("that nodes do not share", shared.stderr)
        self.assertEqual([space["name"] for space in json.loads(self.data("ls", "--json").stdout)], ["input"])

    def test_a_stage_that_is_killed_leaves_all_of_the_file_or_nothing(self):
        started = time.monotonic()
        self.stage()
        whole = time.monotonic() - started
        self.data("rm", "input:in.dat")
        killed = tried = 0
        # A busy machine may not come to the kill in time.
        while tried < 12 or (not killed and tried < 60):
            process = subprocess.Popen(self.lab.command("data", "stage", "-q", "file://" + self.source, "input:in.dat"), env=self.lab.environment,
                                       stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(self.random.uniform(0, whole))
            process.send_signal(signal.SIGKILL)
            process.wait()
            tried += 1
            if self.listed():
                self.assertEqual(self.got(), "")
                self.data("rm", "input:in.dat")
            else:
                killed += 1
        self.assertGreater(killed, 0)
        self.stage()
        self.assertEqual(self.got(), "")


class Losses(Space):
    def test_no_target_s_loss_takes_a_name_or_a_byte_away(self):
        self.stage()
        self.data("setstripe", "input:alone", "--count", "1")
        for number in range(4):
            self.stage(f"input:alone/{number}")
        names = sorted(self.listed("input:alone"))
        for node in NODES:
            self.lab.kill_daemon(node)
            self.assertEqual(sorted(self.listed("input:alone")), names, f"without {node}")
            said = self.got()
            self.assertIn(f"that target {node}:{self.target(node)} lacks came from the source", said)
            for name in names:
                self.got(f"input:alone/{name}")
            self.assertIn("lost", self.data("df", "input", code=UNREACHABLE).stdout)
            # New files go to those that are there.
            self.stage(f"input:without-{node}")
            self.data("rm", "input:without-" + node)
            self.daemon_back(node)
        # What was removed while its target was away does not come back.
        self.assertEqual(sorted(self.listed()), ["alone", "in.dat"])
        self.assertEqual(self.got(), "")

    def test_what_no_source_gives_back_is_told_with_the_target_and_the_source(self):
        self.stage()
        self.write("source/in.dat", self.content[:-1] + b"!")
        self.lab.kill_daemon("node2")
        done = self.data("get", "input:in.dat", "got", code=1)
        self.assertIn(f"node2:{self.target('node2')} cannot be reached", done.stderr)
        self.assertIn(f"file://{self.source}: it has changed since", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.directory, "got")))
        self.daemon_back("node2")
        self.got()

    def test_damaged_blocks_come_from_the_source_and_are_put_back(self):
        self.stage()
        [held] = self.objects("node1")
        with open(held, "rb") as file:
            before = file.read()
        for at in (0, 70_000, 2 * MIB + 5):
            with open(held, "r+b") as file:
                file.seek(at)
                file.write(b"damaged")
        self.assertIn("came from the source", self.got())
        with open(held, "rb") as file:
            self.assertTrue(file.read() == before, "the object is not as it was")
        self.assertEqual(self.got(), "")
        os.truncate(held, 1 * MIB + 7)
        self.assertIn("came from the source", self.got())
        os.remove(held)
        self.assertIn("came from the source", self.got())

    def test_a_target_that_is_started_anew_serves_what_it_had(self):
        self.stage()
        for _ in range(3):
            node = self.random.choice(NODES)
            killed = self.lab.on(node, "pkill", "-KILL", "-x", "-f", f".*mend-space target .*{self.target(node)} .*")
            self.assertEqual(killed.returncode, 0, killed.stderr)
            self.assertEqual(self.got(), "")


class Readers:
    """For tests of ranks that read the space `input` through a mount in `seen`; beside a class that has the space."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = compile_mpi("mpi_input.c", os.path.join(cls.work, "input"))

    def setUp(self):
        super().setUp()
        self.stage()
        self.seen = os.path.join(self.directory, "seen")
        self.expected = self.plain()

    def plain(self):
        """What the program prints of the source itself."""
        directory = os.path.join(self.directory, "plain")
        os.makedirs(directory)
        with open(os.path.join(directory, "go"), "wb"):
            pass
        done = self.lab.mend("run", "-q", "--", self.program, self.source, cwd=directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()[-1]

    def begun(self, *options, ranks=3, passes=1):
        """A job whose ranks have read half of the file through the mount."""
        job = self.lab.start(self.directory, "run", "-n", str(ranks), "--hosts", ",".join(NODES), *options, "--data", f"input:{self.seen}", "--",
                             self.program, self.seen + "/in.dat", str(passes))
        job.wait_for(lambda: "open\n" in self.output(), "the first half is read")
        return job, self.lab.running(job)

    def ends_well(self, job):
        job.let_go()
        job.finish()
        self.assertEqual(self.output().splitlines()[-1], self.expected)


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class Ranks(Readers, Space):
    def test_another_space_of_the_same_name_is_another_one(self):
        """A job still runs that sees the one that was destroyed."""
        job, name = self.begun(ranks=1)
        self.data("destroy", "input")
        self.data("create", "input", *(word for node in NODES for word in ("--target", f"{node}:{self.target(node)}-2")))
        self.source = self.write("source/other.dat", b"another content")
        self.stage("input:other.dat")
        script = f"ls {self.seen}; cat {self.seen}/other.dat"
        done = self.lab.mend("run", "-q", "--hosts", NODES[0], "--data", f"input:{self.seen}", "--", "sh", "-c", script, cwd=self.directory)
        self.assertEqual((done.returncode, done.stdout), (0, "other.dat\nanother content"), done.stderr)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)

    def test_ranks_read_move_and_lose_a_target(self):
        job, name = self.begun("--spares", "node4")
        self.assertEqual(os.listdir(self.seen), [], "the mount is seen outside of the ranks")
        self.assertEqual(self.lab.verb("migrate", name, "1", "--to", "node4")["to"], "node4")
        self.assertEqual(self.lab.verb("migrate", name, "0", "--to", "node2", "--mode", "live")["to"], "node2")
        [held] = self.objects("node3")
        os.remove(held)
        self.ends_well(job)

    def test_a_job_s_settings_are_those_of_its_mounts(self):
        job, _ = self.begun("--genv", "MEND_SPACE_CACHE_MB", "7")
        script = "for one in $(pgrep -x mend-space); do tr '\\0' '\\n' < /proc/$one/environ | grep ^MEND_SPACE_CACHE_MB; done"
        self.assertIn("MEND_SPACE_CACHE_MB=7", self.lab.on("node1", "sh", "-c", script).stdout)
        self.ends_well(job)

    def test_a_checkpoint_is_restarted_with_its_open_files(self):
        job, name = self.begun()
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        os.remove(os.path.join(self.directory, "stdout"))
        job = self.lab.start(self.directory, "restart", "--hosts", "node2,node4", name)
        self.ends_well(job)

    def test_a_job_whose_node_dies_goes_on_with_its_input(self):
        self.lab.set("MEND_ON_FAILURE", None)
        self.addCleanup(self.lab.set, "MEND_ON_FAILURE", "stop")
        job, name = self.begun("--spares", "node4")
        self.lab.verb("checkpoint", name)
        # With the daemon its target is lost, too.
        self.addCleanup(self.daemon_back, "node3")
        self.lab.kill_daemon("node3")

        def moved():
            status = next(one for one in self.lab.verb("ps") if one["id"] == name).get("status")
            return status and [rank["host"] for rank in status["ranks"]] == ["node1", "node2", "node4"]

        job.wait_for(moved, "the rank is on the spare")
        self.ends_well(job)

    def test_a_space_that_cannot_be_seen_ends_the_job_with_a_reason(self):
        in_the_way = self.write("file", b"a file")
        for text, said in ((f"other:{self.seen}", "there is no data space other"), ("input:seen", "must be absolute"),
                           (f"input:/proc/{os.getpid()}/no", "a program needs what is in /proc"),
                           (f"input:{self.seen},input:{self.seen}/below", "one within the other"),
                           (f"input:{in_the_way}/below", f"no directory for a data space could be made: {in_the_way}/below"),
                           (f"input:{self.seen}:rw,ro", "`rw` and `ro` exclude each other")):
            done = self.lab.mend("run", "-n", "2", "--hosts", "node1,node2", "--data", text, "--", "true", cwd=self.directory)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)

    @unittest.skipUnless(os.geteuid() == 0 or shutil.which("fusermount3"), "mounting outside of a job takes root or fusermount3")
    def test_a_mount_outside_of_a_job_is_read_like_any_directory(self):
        os.makedirs(self.seen)
        self.write("tree/b/c.dat", b"content")
        self.data("stage", f"file://{self.directory}/tree/", "input:")
        script = """set -e
            "$1" data mount input "$2"
            trap '"$1" data unmount "$2"' EXIT
            cmp "$2/in.dat" "$3"
            [ "$(cat "$2/b/c.dat")" = content ]
            [ "$(ls "$2")" = "b
in.dat" ]
            [ "$(stat -c '%s %a %h' "$2/in.dat")" = "$4 444 1" ]
            ! touch "$2/new" 2>/dev/null
            ! [ -e "$2/none" ]
            "$1" data rm input:b/c.dat
            sleep 2.2
            ! [ -e "$2/b" ]
            "$1" data stage -q "file://$3" input:late
            sleep 1.2
            cmp "$2/late" "$3"
            df "$2" | grep -q mend-input"""
        done = self.lab.on("head", "bash", "-c", script, "bash", os.path.join(os.path.dirname(self.lab.command()[0]), "mend"), self.seen, self.source,
                           str(SIZE))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
