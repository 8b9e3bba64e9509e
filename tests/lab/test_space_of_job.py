"""Data spaces that are made for a job on its own nodes, and go with it."""

import glob
import json
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB, InDirectory
from cluster import MEND, Lab, Machine
from data_server import DataServer
from slurm_cluster import SlurmLab, needed_by_tests
from test_space import fuse_is_open
from tiers import commit_seed

BAD_VALUE, UNREACHABLE = 64, 69

HELD = """
import os, sys, time
directory, go, *same = sys.argv[1:]
rank = os.environ["PMI_RANK"]
with open(f"{directory}/rank.{rank}", "w", buffering=1) as file:
    print("begin", file=file)
    os.fsync(file.fileno())
    open(f"{go}.begun.{rank}", "w").close()
    while not os.path.exists(go):
        time.sleep(0.02)
    print("end", file=file)
with open(f"{directory}/rank.{rank}") as file:
    print(file.read(), end="")
if same:
    one, other = (open(path, "rb").read() for path in same)
    # In one piece: the other rank says it at the same time.
    sys.stdout.flush()
    os.write(1, b"same\\n" if one == other else b"different\\n")
"""


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class OfJob(InDirectory):
    """Ranks see the space `scratch` in `seen`; its targets are below `local`."""

    def setUp(self):
        super().setUp()
        self.random = random.Random(f"{commit_seed()} {self.id()}")
        self.seen, self.local, self.go = (os.path.join(self.directory, name) for name in ("seen", "local", "go"))
        os.mkdir(self.local)
        self.lab.set("MEND_SPACE_DIRECTORY", self.local)
        self.addCleanup(self.lab.set, "MEND_SPACE_DIRECTORY", None)
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "scratch")

    def write(self, name, content):
        path = os.path.join(self.directory, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def command(self, script, *options, hosts="node1,node2", ranks=2, how="create"):
        where = ["--hosts", hosts] if hosts else []
        return ["run", "-n", str(ranks), *where, "--data", f"scratch:{self.seen}:{how}", *options, "--", "bash", "-c", script]

    def run_ranks(self, script, *options, code=0, **others):
        done = self.lab.mend(*self.command(script, *options, **others), cwd=self.directory)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def data(self, *arguments, code=0):
        done = self.lab.mend("data", *arguments, cwd=self.directory)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def is_gone(self):
        self.assertNotIn("scratch", self.data("ls").stdout)
        self.assertEqual(os.listdir(self.local), [])

    def begun(self):
        return all(os.path.exists(f"{self.go}.begun.{rank}") for rank in range(2))

    def let_go(self):
        open(self.go, "w", encoding="ascii").close()

    def held(self):
        """A command that writes a file, syncs it, waits for `go`, and adds to it."""
        return f"exec {sys.executable} {self.write('held.py', HELD.encode())} {self.seen} {self.go}"


class OnNodes(OfJob):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(4))

    def test_it_is_on_the_job_s_nodes_and_goes_with_the_job_which_names_what_was_sent_nowhere(self):
        job = self.lab.start(self.directory, *self.command(self.held(), "--spares", "node3"))
        job.wait_for(self.begun, "both ranks have written")
        room = json.loads(self.data("df", "--json", "scratch").stdout)
        self.assertEqual([one["target"].split(":")[0] for one in room["targets"]], ["node1", "node2", "node3"])
        self.assertEqual(sorted(one["target"].split(":")[1] for one in room["targets"]), sorted(glob.glob(self.local + "/*")))
        done = self.lab.mend(*self.command("true", hosts="node4"), cwd=self.directory)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "the data space scratch was made for job bash-")
        self.let_go()
        job.finish()
        self.assertEqual(job.stdout().split(), ["begin", "end"] * 2)
        self.assertIn("and 2 files in it that were sent nowhere: rank.0, rank.1", job.stderr())
        self.is_gone()

    def test_what_is_sent_away_is_not_named(self):
        away = os.path.join(self.directory, "away")
        done = self.run_ranks(f"echo $PMI_RANK > {self.seen}/rank.$PMI_RANK; exit 3", "--offload", f"scratch=file://{away}", code=3)
        self.assertEqual(sorted(os.listdir(away)), ["rank.0", "rank.1"])
        self.assertNotIn("sent nowhere", done.stderr)
        self.is_gone()

    def test_it_stays_when_something_could_not_be_sent(self):
        away = os.path.join(self.directory, "not", "mounted")
        done = self.run_ranks(f"echo $PMI_RANK > {self.seen}/rank.$PMI_RANK", "--offload", f"scratch=file://{away}")
        self.assertIn("the data space scratch stays", done.stderr)
        os.mkdir(os.path.dirname(away))
        self.data("offload", "scratch:", f"file://{away}", "--settle", "0")
        self.assertEqual(sorted(os.listdir(away)), ["rank.0", "rank.1"])
        self.data("destroy", "scratch")
        self.is_gone()

    def test_one_that_is_kept_is_in_memory_if_asked_for_and_serves_the_next_job(self):
        self.run_ranks(f"echo first > {self.seen}/x", how="rw,create,memory,keep", ranks=1)
        room = json.loads(self.data("df", "--json", "scratch").stdout)
        self.assertEqual([one["target"].split(":")[1].rsplit("-", 2)[0] for one in room["targets"]], [f"/dev/shm/mend-space-scratch-{os.geteuid()}"] * 2)
        done = self.run_ranks(f"cat {self.seen}/x", hosts="node3", ranks=1)
        self.assertEqual(done.stdout, "first\n")
        self.assertEqual(self.run_ranks(f"cat {self.seen}/x", how="ro", ranks=1).stdout, "first\n")
        self.data("destroy", "scratch")
        self.is_gone()

    def test_ranks_write_one_copy_if_asked_for(self):
        script = f"head -c {MIB} /dev/zero | tr '\\0' x > {self.seen}/rank.$PMI_RANK"
        self.run_ranks(script, how="create,keep,copies=1")
        written = [path for path in glob.glob(f"{self.local}/*/objects/*/*") if not path.endswith(".sums")]
        self.assertEqual(sum(os.path.getsize(path) for path in written), 2 * MIB)
        self.assertIn("1 copy", self.data("ls", "scratch:").stdout + self.data("ls").stdout)

    def test_a_job_that_is_to_be_restarted_finds_it_again(self):
        job = self.lab.start(self.directory, *self.command(self.held(), "--on-failure", "stop", "--spares", "node3"))
        job.wait_for(self.begun, "both ranks have written")
        name = self.lab.running(job)
        self.lab.verb("checkpoint", name)
        self.lab.kill_daemon("node2")
        job.finish(75)
        for node in ("node1", "node3"):
            self.lab.kill_daemon(node)
            self.lab.start_daemon(node, self.directory)
        self.lab.start_daemon("node2", self.directory)
        self.assertIn("rank.0", self.data("ls", "scratch:").stdout)
        self.let_go()
        job = self.lab.start(self.directory, "restart", name)
        job.finish()
        self.assertEqual(job.stdout().split(), ["begin", "end"] * 2)
        self.is_gone()
        done = self.lab.mend("restart", name, cwd=self.directory)
        self.assertEqual(done.returncode, UNREACHABLE, done.stderr)
        self.assertIn(f"the data space scratch that was made for job {name} is not there any more", done.stderr)

    def test_what_a_script_stages_in_is_there_before_ranks_start(self):
        content = self.random.randbytes(3 * MIB + 5)
        source = self.write("in.dat", content)
        script = self.write("job.sh", f"#!/bin/bash\n#MEND stage-in file://{source} scratch:run7/in.dat\nmend run …\n".encode())
        done = self.run_ranks(f"cmp {source} {self.seen}/run7/in.dat && echo same", "--stage-script", script, how="create,ro")
        self.assertEqual(done.stdout, "same\nsame\n")
        self.assertNotIn("sent nowhere", done.stderr)
        os.remove(source)
        done = self.run_ranks("true", "--stage-script", script, code=UNREACHABLE)
        self.assertIn("ranks were not started", done.stderr)
        self.is_gone()

    def test_what_makes_no_sense_is_refused(self):
        for how, said in (("keep", "add `create`"), ("create,rw,bucket=s3://lab/x", "ranks only read what is in a bucket"), ("create,copies=3", "`copies=3` is no NAME:DIRECTORY"),
                           ("create,keeep", "`keeep` is no NAME:DIRECTORY, and no option of one")):
            self.assertIn(said, self.run_ranks("true", how=how, code=BAD_VALUE).stderr)
        self.lab.set("MEND_SPACE_DIRECTORY", "local")
        self.assertIn("is no absolute path", self.run_ranks("true", code=BAD_VALUE).stderr)
        self.lab.set("MEND_SPACE_DIRECTORY", "/proc/none")
        self.assertIn("ranks were not started", self.run_ranks("true", code=UNREACHABLE).stderr)
        self.assertIn("in a job of Slurm's its nodes are taken", self.data("create", "scratch", code=BAD_VALUE).stderr)
        self.is_gone()


class OnThisMachine(OfJob):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Machine())

    def test_a_job_without_hosts_has_one_too(self):
        away = os.path.join(self.directory, "away")
        done = self.run_ranks(f"echo $PMI_RANK > {self.seen}/rank.$PMI_RANK", "--offload", f"scratch=file://{away}", hosts=None)
        self.assertEqual(sorted(os.listdir(away)), ["rank.0", "rank.1"])
        self.assertIn("scratch is on 1 node of this job", done.stderr)
        self.is_gone()

    def test_a_job_whose_input_is_still_staged_is_ended_as_any_other(self):
        with DataServer(self.random.randbytes(MIB)) as server:
            server.stall = -1
            script = self.write("job.sh", f"#MEND stage-in {server.uri()} scratch:in.dat\n".encode())
            for code, end in ((137, lambda job: self.lab.verb("kill")), (130, lambda job: job.interrupt())):
                server.requests.clear()
                job = self.lab.start(self.directory, *self.command("true", "--stage-script", script, hosts=None))
                job.wait_for(lambda: server.requests, "it is staged")
                self.assertEqual([(one["state"], one["ranks"]) for one in self.lab.verb("ps")], [("staging", 2)])
                self.assertEqual(self.lab.verb("drain", "node1")["still_there"], [])
                self.lab.verb("undrain", "node1")
                end(job)
                job.finish(code)
                self.is_gone()
            causes = {one["cause"]["code"] for one in self.lab.verb("ps", "--all")}
            self.assertLessEqual({"killed", "interrupted"}, causes)


class InSlurm(OfJob):
    @classmethod
    def setUpClass(cls):
        needed_by_tests()
        super().setUpClass()
        cls.lab = cls.enterClassContext(SlurmLab(3))
        cls.lab.set("MEND_ON_FAILURE", None)

    def setUp(self):
        super().setUp()
        self.lab.set("MEND_REQUEUE", "always")
        self.addCleanup(self.lab.set, "MEND_REQUEUE", None)

    def out(self):
        path = os.path.join(self.directory, "out")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def test_a_batch_job_that_is_queued_again_finds_its_own(self):
        source = self.write("in.dat", self.random.randbytes(MIB))
        held = self.held().removeprefix("exec ")
        command = f'{MEND} run -n 2 --stage-script "$0" --data scratch:{self.seen}:create -- {held} {source} {self.seen}/in.dat'
        script = f"#MEND stage-in file://{source} scratch:in.dat\n{command}\necho code $?"
        batch = self.lab.submit(self.directory, script, "-N3", "--ntasks-per-node=1", "--no-kill")
        self.lab.wait_for(self.begun, "both ranks have written")
        self.lab.slurm("scancel", "--signal=TERM", str(batch))
        self.lab.wait_for(lambda: "Slurm queues the batch job" in self.out(), f"it is queued again: {self.out()}")
        self.let_go()
        self.lab.wait_state(batch, "COMPLETED", patience=240)
        self.assertEqual(self.out().count("\nsame"), 2, self.out())
        self.is_gone()

    def test_create_takes_the_nodes_of_the_allocation(self):
        for name in self.lab.node_names():
            self.lab.start_daemon(name, self.directory)
        batch = self.lab.submit(self.directory, f"{MEND} data create scratch && {MEND} data df --json scratch > df && {MEND} data destroy scratch\necho code $?", "-N2")
        self.lab.wait_state(batch, "COMPLETED")
        self.assertIn("code 0", self.out())
        with open(os.path.join(self.directory, "df"), encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["targets"]), 2)


if __name__ == "__main__":
    unittest.main()
