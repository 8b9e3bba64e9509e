"""Data spaces whose targets are in a bucket of a real S3 server: nodes that serve them die, objects are lost and damaged, the server stands still, ends and comes back."""

import json
import os
import random
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB, InDirectory
from cluster import OTHERS, PATIENCE, Lab
from object_store import SECRET, ObjectStore
from test_space import NODES, SIZE, UNREACHABLE, Readers, Space, fuse_is_open
from tiers import commit_seed

MISUSED, BAD_VALUE, DAMAGED = 2, 64, 65
CHUNK = 4 * MIB


# Compares two files, waits, and compares them again.
HELD = """
import filecmp, os, sys, time
same = lambda: filecmp.cmp(*sys.argv[1:], shallow=False)
if same():
    open("begun." + os.environ["PMI_RANK"], "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
filecmp.clear_cache()
# In one piece: the other rank says it at the same time.
os.write(1, b"same\\n" if same() else b"different\\n")
"""


class InBucket(Space):
    """The space `input` is in the bucket `lab`, and served by three nodes."""

    @classmethod
    def setUpClass(cls):
        InDirectory.setUpClass.__func__(cls)
        cls.store = ObjectStore(cls.work)
        cls.addClassCleanup(cls.store.end)
        cls.lab = cls.enterClassContext(Lab(4, daemons={**cls.store.variables, "MEND_SPACE_PROBE_S": "1"}))
        cls.store.start(cls.lab)
        # Daemons that are started later need them; commands do not.
        for name, value in cls.store.variables.items():
            cls.lab.set(name, value)

    def setUp(self):
        InDirectory.setUp(self)
        self.random = random.Random(f"{commit_seed()} {self.id()}")
        self.content = self.random.randbytes(self.SIZE)
        self.source = self.write("source/in.dat", self.content)
        self.prefix = f"spaces/{os.path.basename(self.directory)}"
        self.create("input")
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "input")

    def create(self, name, *options, code=0, nodes=NODES):
        return self.data("create", name, "--nodes", ",".join(nodes), "--bucket", f"s3://lab/{self.prefix}", *options, code=code)

    def target(self, node):
        return f"s3://lab/{self.prefix}/input-{NODES.index(node)}"

    def objects(self, node):
        """Names of the chunks that a node's target has in the bucket."""
        return [name for name in self.store.names(f"{self.prefix}/input-{NODES.index(node)}") if "/objects/" in name]

    def all_objects(self):
        return {node: self.objects(node) for node in NODES}

    def all_back(self):
        """Starts daemons where there are none."""
        for node in [*NODES, "node4"]:
            if self.lab.on(node, "sh", "-c", OTHERS + 'for pid in $all; do [ "$(cat /proc/$pid/comm)" = mendd ] && exit 0; done; exit 1').returncode:
                self.daemon_back(node)

    def without_source(self):
        os.rename(self.source, self.source + ".away")

    def eventually(self, condition, what):
        until = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), until, f"still waiting for {what}")
            time.sleep(0.1)


class Files(InBucket):
    def test_files_are_striped_over_the_bucket_read_by_any_node_and_removed(self):
        self.assertIn("input:in.dat: 9.00 MiB in", self.stage().stdout)
        shown = json.loads(self.data("getstripe", "--json", "input:in.dat").stdout)
        self.assertEqual(sorted(one["target"] for one in shown["objects"]), [f"{node}:{self.target(node)}" for node in NODES])
        for node in NODES:
            self.assertEqual(len(self.objects(node)), 1)
        self.without_source()
        self.assertEqual(self.got(), "")
        room = json.loads(self.data("df", "--json", "input").stdout)
        self.assertEqual((room["files"], room["bytes"], sum(one["used"] for one in room["targets"])), (1, SIZE, SIZE))
        self.assertEqual([one["free"] for one in room["targets"]], [None] * 3)
        self.assertIn("1 whole", self.data("check", "input:").stdout)
        # Another space, and somebody else's object, in the same place.
        self.create("other")
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "other")
        self.store.put(f"s3://lab/{self.prefix}/input-0/mine", b"of somebody else")
        self.data("rm", "input:in.dat")
        self.eventually(lambda: not any(self.all_objects().values()), "the objects are removed")
        before = self.store.names(f"{self.prefix}/other-0")
        self.assertTrue(before)
        self.data("destroy", "input")
        self.assertEqual([self.store.names(f"{self.prefix}/input-{at}") for at in (0, 1, 2)], [[f"{self.prefix}/input-0/mine"], [], []])
        self.assertEqual(self.store.names(f"{self.prefix}/other-0"), before)
        self.data("df", "other")

    def test_many_small_files_directories_and_a_file_of_several_objects(self):
        small = {f"{number % 7}/{number}": self.random.randbytes(self.random.randrange(3000)) for number in range(60)}
        for name, content in small.items():
            self.write("tree/" + name, content)
        self.content = self.random.randbytes(3 * (2 * CHUNK + 100_000))
        self.write("tree/large", self.content)
        self.data("stage", f"file://{self.directory}/tree/", "input:run7/")
        self.assertEqual([len(self.objects(node)) for node in NODES if len(self.objects(node)) < 3], [])
        for name in ("0/0", "3/59", "6/6"):
            self.got(f"input:run7/{name}", small[name])
        self.got("input:run7/large")
        self.data("setstripe", "input:one", "--count", "1")
        self.stage("input:one/in.dat", "--force")
        self.assertEqual(len(json.loads(self.data("getstripe", "--json", "input:one/in.dat").stdout)["objects"]), 1)
        self.data("rm", "-r", "input:run7")
        self.assertEqual(sorted(self.listed()), ["one"])

    def test_a_stage_that_is_killed_goes_on_and_leaves_nothing_when_it_is_removed(self):
        self.content = self.random.randbytes(48 * MIB)
        self.write("source/in.dat", self.content)
        for _ in range(4):
            process = subprocess.Popen(self.lab.command("data", "stage", "-q", "file://" + self.source, "input:in.dat"), env=self.lab.environment,
                                       stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(self.random.uniform(0.1, 0.8))
            process.kill()
            process.wait()
        self.stage()
        self.without_source()
        self.got()
        self.data("rm", "input:in.dat")
        self.eventually(lambda: not any(self.all_objects().values()), "the objects are removed")

    def test_what_cannot_be_is_refused_with_the_way_out_and_leaves_nothing(self):
        before = self.store.names(self.prefix)
        done = self.data("create", "more", "--nodes", "node1", "--bucket", "s3://no-such-bucket/x", code=UNREACHABLE)
        self.assertIn("the bucket of s3://no-such-bucket/x/more-0 is not there", done.stderr)
        self.assertIn("make the bucket", done.stderr)
        for place in ("/tmp/x", "s3://x", "s3://lab/a b", "s3://lab/../x"):
            self.assertIn("s3://BUCKET/PREFIX", self.data("create", "more", "--nodes", "node1", "--bucket", place, code=MISUSED).stderr)
        self.data("create", "more", "--nodes", "node1", "--bucket", "s3://lab/x", "--memory", code=MISUSED)
        twice = f"s3://lab/{self.prefix}/twice"
        done = self.data("create", "more", "--target", f"node1:{twice}", "--target", f"node2:{twice}", code=BAD_VALUE)
        self.assertIn("the same place in a bucket", done.stderr)
        # The credentials are those of the daemon on the node.
        self.addCleanup(self.daemon_with, "node4", {})
        for variables, said in (({"AWS_SECRET_ACCESS_KEY": "wrong"}, ("refuses its credentials", "set AWS_ACCESS_KEY_ID")),
                                ({"AWS_ACCESS_KEY_ID": "nobody"}, ("refuses its credentials", "set AWS_ACCESS_KEY_ID")),
                                ({"AWS_ENDPOINT_URL": "http://head:9"}, ("cannot be reached", "set AWS_ENDPOINT_URL"))):
            self.daemon_with("node4", variables)
            done = self.create("more", code=UNREACHABLE, nodes=["node1", "node4"])
            for word in (f"node4:s3://lab/{self.prefix}/more-1", *said):
                self.assertIn(word, done.stderr)
            self.assertNotIn(SECRET, done.stderr)
            self.assertEqual(self.store.names(self.prefix), before)
        self.assertEqual([space["name"] for space in json.loads(self.data("ls", "--json").stdout)], ["input"])

    def daemon_with(self, node, variables):
        """A daemon of a node whose environment has these instead."""
        self.lab.kill_daemon(node)
        kept = {name: self.lab.environment[name] for name in variables}
        for name, value in variables.items():
            self.lab.set(name, value)
        self.daemon_back(node)
        for name, value in kept.items():
            self.lab.set(name, value)


class Losses(InBucket):
    def test_the_loss_of_nodes_takes_nothing_away_since_others_serve_what_they_served(self):
        self.stage()
        self.without_source()
        self.addCleanup(self.all_back)
        for node in NODES[:2]:
            self.lab.kill_daemon(node)
            self.assertEqual(self.got(), "")
            room = json.loads(self.data("df", "--json", "input").stdout)
            self.assertEqual([one.get("lost") for one in room["targets"]], [None] * 3)
        os.rename(self.source + ".away", self.source)
        self.stage("input:while-away")
        self.data("rm", "input:in.dat")
        self.all_back()
        # They serve again, and know what came meanwhile.
        self.eventually(lambda: sorted(self.listed()) == ["while-away"], "all is known")
        self.without_source()
        self.assertEqual(self.got("input:while-away"), "")
        self.data("check", "input:")

    def test_two_processes_of_one_target_never_lose_what_was_acknowledged(self):
        """A node that is cut off for a while serves on, and so does the one that took over."""
        self.stage()
        for number in range(3):
            self.lab.signal("node1", "STOP")
            try:
                self.stage(f"input:{number}")
            finally:
                self.lab.signal("node1", "CONT")
            self.assertEqual(sorted(self.listed()), [*map(str, range(number + 1)), "in.dat"])
            self.got(f"input:{number}")
        self.without_source()
        self.assertEqual(self.got(), "")

    def test_objects_that_are_lost_or_changed_come_from_the_source_and_are_put_back(self):
        self.stage()
        [held] = self.objects("node1")
        right = self.store.get(f"s3://lab/{held}")
        damaged = bytearray(right)
        for at in (0, 70_000, 2 * MIB + 5):
            damaged[at:at + 7] = b"damaged"
        self.store.put(f"s3://lab/{held}", bytes(damaged))
        self.data("check", "input:", code=DAMAGED)
        self.assertIn("came from the source", self.got())
        self.assertTrue(self.store.get(f"s3://lab/{held}") == right, "the object is not as it was")
        self.assertEqual(self.got(), "")
        self.store.put(f"s3://lab/{held}", right[:MIB + 7])
        self.assertIn("came from the source", self.got())
        [other] = self.objects("node2")
        self.assertEqual(self.store.objects("delete", f"s3://lab/{other}").returncode, 0)
        self.assertIn(self.target("node2"), self.data("check", "input:", code=DAMAGED).stdout)
        [said] = json.loads(self.data("repair", "--json", "input:").stdout)
        [done] = said["repaired"]
        self.assertLessEqual(done["fetched"], 1.02 * done["lost"])
        self.data("check", "input:")
        self.without_source()
        self.assertEqual(self.got(), "")

    def test_what_neither_bucket_nor_source_has_is_told_by_name(self):
        self.stage()
        [held] = self.objects("node3")
        self.assertEqual(self.store.objects("delete", f"s3://lab/{held}").returncode, 0)
        self.without_source()
        done = self.data("get", "input:in.dat", "got", code=1)
        for word in (f"node3:{self.target('node3')}", f"file://{self.source}"):
            self.assertIn(word, done.stderr)
        done = self.data("repair", "input:", code=UNREACHABLE)
        self.assertIn("input:in.dat", done.stderr)

    def test_a_server_that_stands_still_or_ends_is_told_and_its_return_ends_it(self):
        self.stage()
        self.got()
        for ends, returns in ((self.store.kill, lambda: self.store.start(self.lab)), (lambda: self.store.signal("STOP"), lambda: self.store.signal("CONT"))):
            ends()
            try:
                self.eventually(lambda: self.lab.mend("data", "df", "input").returncode == UNREACHABLE, "it is seen that the bucket does not answer")
                lost = json.loads(self.data("df", "--json", "input", code=UNREACHABLE).stdout)["targets"][0]["lost"]
                self.assertIn(self.target("node1"), lost)
                self.assertRegex(lost, "did not answer|cannot be reached|failed")
            finally:
                returns()
            self.eventually(lambda: self.lab.mend("data", "df", "input").returncode == 0, "the bucket answers again")
            self.assertEqual(self.got(), "")
        self.without_source()
        self.assertEqual(self.got(), "")

    def test_a_space_of_a_bucket_and_directories_has_its_second_copies_on_nodes(self):
        directory = os.path.join(self.directory, "targets")
        targets = [word for node in NODES[:2] for word in ("--target", f"{node}:{directory}/{node}")]
        self.data("create", "mixed", "--target", f"node3:s3://lab/{self.prefix}/mixed", *targets, "--count", "1")
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "mixed")
        self.stage("mixed:in.dat")
        [held] = json.loads(self.data("getstripe", "--json", "mixed:in.dat").stdout)["objects"]
        self.assertEqual(held["target"], f"node3:s3://lab/{self.prefix}/mixed", "a bucket has most room")
        self.data("replicate", "mixed:")
        [held] = json.loads(self.data("getstripe", "--json", "mixed:in.dat").stdout)["objects"]
        self.assertIn(directory, held["second"])
        self.without_source()
        for name in self.store.names(f"{self.prefix}/mixed"):
            if "/objects/" in name:
                self.assertEqual(self.store.objects("delete", f"s3://lab/{name}").returncode, 0)
        self.assertNotIn("came from the source", self.got("mixed:in.dat"))
        self.data("repair", "mixed:")
        self.data("check", "mixed:")


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class Jobs(Readers, InBucket):
    def test_ranks_read_move_and_restart_while_objects_are_lost(self):
        job, name = self.begun("--spares", "node4")
        self.assertEqual(self.lab.verb("migrate", name, "1", "--to", "node4")["to"], "node4")
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        os.remove(os.path.join(self.directory, "stdout"))
        for node in NODES:
            [held] = self.objects(node)
            self.assertEqual(self.store.objects("delete", f"s3://lab/{held}").returncode, 0)
        job = self.lab.start(self.directory, "restart", "--hosts", "node2,node4", name)
        self.ends_well(job)
        self.assertNotIn(SECRET, job.stderr())

    def test_a_job_goes_on_when_a_node_dies_that_serves_a_part_and_its_source_is_gone(self):
        self.lab.set("MEND_ON_FAILURE", None)
        self.addCleanup(self.lab.set, "MEND_ON_FAILURE", "stop")
        job, name = self.begun("--spares", "node4")
        self.lab.verb("checkpoint", name)
        self.without_source()
        self.addCleanup(self.all_back)
        self.lab.kill_daemon("node3")
        self.ends_well(job)

    def test_ranks_wait_for_a_server_that_returns_and_the_lost_object_is_healed_meanwhile(self):
        job, _ = self.begun()
        [held] = self.objects("node2")
        self.assertEqual(self.store.objects("delete", f"s3://lab/{held}").returncode, 0)
        job.wait_for(lambda: self.objects("node2") == [held], "the object is there again")
        self.store.kill()
        self.store.start(self.lab)
        self.without_source()
        self.ends_well(job)

    def test_what_ranks_write_is_refused_by_name(self):
        script = f"echo x > {self.seen}/out.dat"
        done = self.lab.mend("run", "-q", "--hosts", "node1", "--data", f"input:{self.seen}:rw", "--", "sh", "-c", script, cwd=self.directory)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Read-only file system", done.stderr)
        self.assertEqual(sorted(self.listed()), ["in.dat"])

    def test_a_space_of_a_job_is_in_a_bucket_and_a_restart_finds_it_on_other_nodes(self):
        script = self.write("job.sh", f"#!/bin/bash\n#MEND stage-in file://{self.source} scratch:in.dat\n".encode())
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "scratch")
        self.addCleanup(self.all_back)
        held = self.write("held.py", HELD.encode())
        place = f"s3://lab/{self.prefix}/own"
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "--on-failure", "stop", "--stage-script", script,
                             "--data", f"scratch:{self.seen}:create,bucket={place}", "--", sys.executable, held, self.source, f"{self.seen}/in.dat")
        job.wait_for(lambda: all(os.path.exists(os.path.join(self.directory, f"begun.{rank}")) for rank in range(2)), "both ranks have read it")
        self.assertIn(f"scratch is in {place}, served by 2 nodes of this job", job.stderr())
        name = self.lab.running(job)
        self.lab.verb("checkpoint", name)
        for node in ("node1", "node2"):
            self.lab.kill_daemon(node)
        job.finish(75)
        self.assertTrue(self.store.names(f"{self.prefix}/own"))
        job.let_go()
        job = self.lab.start(self.directory, "restart", "--hosts", "node3,node4", name)
        job.finish()
        self.assertEqual(job.stdout().split(), ["same"] * 2)
        self.assertEqual(self.store.names(f"{self.prefix}/own"), [])

    def test_credentials_are_in_no_description_of_a_space(self):
        described = self.lab.on("head", "sh", "-c", 'cat "$MEND_HOME"/spaces/*')
        self.assertIn(f"s3://lab/{self.prefix}/input-0", described.stdout)
        self.assertNotIn(SECRET, described.stdout)


if __name__ == "__main__":
    unittest.main()
