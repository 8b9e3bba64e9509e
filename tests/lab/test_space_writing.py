"""Ranks write files into data spaces: their own and shared ones, on several nodes, while targets and writers are killed."""

import contextlib
import errno
import json
import os
import random
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB
from cluster import MEND, VENV, compile_mpi
from test_space import NODES, Space, fuse_is_open

FSX = os.path.join(VENV, "bin", "fsx")
# What is promised: no shared maps, no fallocate.
FSX_STEPS = """
flen = 4194304
[opsize]
max = 262144
[weights]
read = 10
write = 10
truncate = 2
close_open = 1
fsync = 1
fdatasync = 1
sendfile = 1
posix_fadvise = 1
mapread = 0
mapwrite = 0
"""
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

    def command(self, ranks, hosts, what, *arguments, below=""):
        return ["run", "-n", str(ranks), "--hosts", ",".join(hosts), "--data", f"input:{self.seen}:rw", "--", sys.executable, PROGRAM, what,
                self.seen + below, *arguments]

    def run_ranks(self, ranks, hosts, what, *arguments, code=0, below=""):
        done = self.lab.mend(*self.command(ranks, hosts, what, *arguments, below=below), cwd=self.directory)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done



class Posix(Writes):
    def test_a_rank_s_own_files_are_as_posix_has_them(self):
        self.stage("input:staged.dat")
        self.assertIn("all of POSIX", self.run_ranks(1, ["node1"], "posix", below="/own").stdout)
        self.got("input:staged.dat")

    def test_steps_drawn_at_random_read_as_in_memory(self):
        seed = str(self.random.randrange(1 << 30))
        self.assertIn("as in memory", self.run_ranks(1, ["node2"], "fsx", seed, "300").stdout, f"seed {seed}")
        size = self.listed()["fsx"]["size"]
        to = os.path.join(self.directory, "fsx")
        self.data("get", "input:fsx", to)
        self.assertEqual(os.path.getsize(to), size)
        with open(to, "rb") as file:
            content = file.read()
        # Each object is on two targets, and each of them alone has all of it.
        [shown] = [json.loads(self.data("getstripe", "--json", "input:fsx").stdout)["objects"]]
        self.assertEqual([len(set(copies)) for copies in shown], [2, 2, 2])
        for node in NODES:
            for path in self.objects(node):
                if path.endswith(".0"):
                    os.remove(path)
                    self.got("input:fsx", content)
                    break
            else:
                continue
            break

    @unittest.skipUnless(os.access(FSX, os.X_OK), "fsx is not installed (tests/setup.sh does that where crates.io can be reached)")
    def test_fsx_finds_nothing_also_while_a_target_is_killed(self):
        with open(os.path.join(self.directory, "fsx.toml"), "w", encoding="ascii") as file:
            file.write(FSX_STEPS)
        os.makedirs(os.path.join(self.directory, "artifacts"))
        seed = self.random.randrange(1 << 31)
        fsx = lambda seed: f"{FSX} -N 3000 -S {seed} -f fsx.toml -P artifacts {self.seen}/exercised > said 2>&1"
        script = f"{fsx(seed)} && touch half && {fsx(seed + 1)} || {{ tail -n 200 said >&2; exit 1; }}"
        job = self.lab.start(self.directory, "run", "--hosts", "node1", "--data", f"input:{self.seen}:rw", "--", "bash", "-c", script)
        job.wait_for(lambda: os.path.exists(os.path.join(self.directory, "half")), "half of the steps are done")
        killed = self.lab.on("node2", "pkill", "-KILL", "-x", "-f", f".*mend-space target .*{self.target('node2')} .*")
        self.assertEqual(killed.returncode, 0, killed.stderr)
        job.finish()

    def test_a_file_too_long_for_the_targets_file_system_is_refused_and_stays_where_it_is(self):
        self.data("create", "long", *(word for node in NODES for word in ("--target", f"{node}:{self.directory}/long-{node}")))
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "long")
        plain = os.path.join(self.directory, "plain")
        with open(plain, "wb") as file:
            try:
                file.truncate(1 << 60)
                self.skipTest("the file system of the tests has no end to files")
            except OSError as error:
                self.assertEqual(error.errno, errno.EFBIG)
        script = (f"echo begun > {self.seen}/new && {MEND} data getstripe --json long:new > {self.directory}/before;"
                  f"truncate -s {1 << 62} {self.seen}/new; echo x | dd of={self.seen}/new bs=1 seek={1 << 61} conv=notrunc status=none;"
                  f"echo more >> {self.seen}/new && cat {self.seen}/new")
        done = self.lab.mend("run", "--hosts", "node1", "--data", f"long:{self.seen}:rw", "--", "bash", "-c", script, cwd=self.directory)
        self.assertEqual((done.returncode, done.stdout), (0, "begun\nmore\n"), done.stderr)
        self.assertEqual(done.stderr.count(": File too large"), 2, done.stderr)
        with open(os.path.join(self.directory, "before")) as before:
            self.assertEqual(self.data("getstripe", "--json", "long:new").stdout, before.read())

    def test_a_space_with_one_target_is_not_written_to(self):
        self.data("create", "alone", "--target", f"node1:{self.directory}/alone")
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "alone")
        script = f"echo x > {self.seen}/new"
        done = self.lab.mend("run", "--hosts", "node1", "--data", f"alone:{self.seen}:rw", "--", "bash", "-c", script, cwd=self.directory)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("No space left", done.stderr)
        done = self.lab.mend("run", "--hosts", "node1", "--data", f"input:{self.seen}", "--", "bash", "-c", script, cwd=self.directory)
        self.assertIn("Read-only file system", done.stderr)

    def test_a_space_of_one_copy_has_each_byte_once_and_loses_it_with_its_target(self):
        places = {node: f"{self.directory}/once-{node}" for node in NODES[:2]}
        self.data("create", "once", "--copies", "1", *(word for node, place in places.items() for word in ("--target", f"{node}:{place}")))
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "once")
        # POSIX holds in it as with two copies.
        command = ["run", "--hosts", "node3", "--data", f"once:{self.seen}:rw", "--", sys.executable, PROGRAM, "posix", f"{self.seen}/own"]
        done = self.lab.mend(*command, cwd=self.directory)
        self.assertIn("all of POSIX", done.stdout, done.stderr)
        size = 3 * MIB + 4321
        write = f"head -c {size} /dev/urandom > {self.seen}/new && md5sum < {self.seen}/new"
        done = self.lab.mend("run", "--hosts", "node3", "--data", f"once:{self.seen}:rw", "--", "bash", "-c", write, cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        # What the targets have of it is as long as the file.
        shown = json.loads(self.data("getstripe", "--json", "once:new").stdout)["objects"]
        self.assertEqual([len(copies) for copies in shown], [1, 1])
        self.assertIn("in one copy", self.data("getstripe", "once:new").stdout)
        [new] = [file for file in json.loads(self.data("ls", "--json", "once:").stdout) if file["name"] == "new"]
        self.assertEqual((new["size"], new["copies"]), (size, 1))
        self.assertIn("new (1 copy)", self.data("ls", "once:").stdout)
        room = json.loads(self.data("df", "--json", "once").stdout)
        self.assertEqual(room["copies"], 1)
        self.assertIn("in one copy: it is lost with its target", self.data("df", "once").stdout)
        self.assertEqual(self.data("check", "once:").returncode, 0)
        # Without one of its objects nothing can bring it back, and that is said.
        gone = self.lab.on("node1", "sh", "-c", f"rm {places['node1']}/objects/*/*.[01]")
        self.assertEqual(gone.returncode, 0, gone.stderr)
        said = self.lab.mend("data", "check", "once:")
        self.assertEqual(said.returncode, 65, said.stdout + said.stderr)
        self.assertRegex(said.stdout + said.stderr, r"once:new: the only copy of 1 of its objects is lost, from node1:")
        said = self.lab.mend("data", "repair", "once:")
        self.assertEqual(said.returncode, 65, said.stdout + said.stderr)
        self.assertIn("have the job write the file again", said.stderr)
        refused = self.lab.mend("run", "--hosts", "node3", "--data", f"once:{self.seen}:rw", "--", "true", cwd=self.directory)
        self.assertEqual(refused.returncode, 69, refused.stderr)

    def test_copies_that_make_no_sense_are_refused(self):
        for words in (["--copies", "3"], ["--copies", "0"], ["--copies", "1", "--bucket", "s3://lab/x"]):
            done = self.lab.mend("data", "create", "never", "--nodes", "node1,node2", *words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--copies", done.stderr)
        self.assertEqual(self.lab.mend("data", "ls", "never:").returncode, 1)

    def test_full_targets_lose_nothing(self):
        small = os.path.join(self.directory, "small")
        for node in NODES[:2]:
            mounted = self.lab.on(node, "sh", "-c", f"mkdir -p {small} && mount -t tmpfs -o size=64m,mode=700 small {small}")
            self.assertEqual(mounted.returncode, 0, mounted.stderr)
            self.addCleanup(self.lab.on, node, "umount", "-l", small)
        self.data("create", "small", *(word for node in NODES[:2] for word in ("--target", f"{node}:{small}")))
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "small")
        program = [sys.executable, PROGRAM, "full", self.seen]
        done = self.lab.mend("run", "--hosts", "node3", "--data", f"small:{self.seen}:rw", "--", *program, cwd=self.directory)
        self.assertEqual((done.returncode, done.stdout), (0, "as full as can be\n"), done.stderr)


    def test_what_one_copy_has_no_room_for_is_on_neither_when_it_is_synced(self):
        place = os.path.join(self.directory, "uneven")
        for node, size in zip(NODES[:2], ("96m", "24m")):
            mounted = self.lab.on(node, "sh", "-c", f"mkdir -p {place} && mount -t tmpfs -o size={size},mode=700 uneven {place}")
            self.assertEqual(mounted.returncode, 0, mounted.stderr)
            self.addCleanup(self.lab.on, node, "umount", "-l", place)
        self.data("create", "uneven", *(word for node in NODES[:2] for word in ("--target", f"{node}:{place}")))
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "uneven")
        program = f"dd if=/dev/urandom of={self.seen}/x bs=3M count=16; stat -c %s {self.seen}/x"
        done = self.lab.mend("run", "--hosts", "node3", "--data", f"uneven:{self.seen}:rw", "--", "bash", "-c", program, cwd=self.directory)
        self.assertIn("No space left on device", done.stderr)
        self.data("check", "uneven:")
        # The one that was full has all that is left, by itself.
        [size] = [one["size"] for one in json.loads(self.data("ls", "--json", "uneven:").stdout)]
        self.assertEqual(str(size), done.stdout.strip())
        gone = self.lab.on(NODES[0], "sh", "-c", f"rm {place}/objects/*/*")
        self.assertEqual(gone.returncode, 0, gone.stderr)
        self.data("get", "uneven:x", os.path.join(self.directory, "x"))
        self.assertEqual(os.path.getsize(os.path.join(self.directory, "x")), size)
        # Also a copy on a target that is as full as can be is what another one is made from.
        filled = self.lab.on(NODES[1], "sh", "-c", f"head -c $(($(df --output=avail -B1 {place} | tail -n1) - {2 * MIB})) /dev/zero > {place}/filler")
        self.assertEqual(filled.returncode, 0, filled.stderr)
        self.data("repair", "uneven:")
        self.data("check", "uneven:")


class Shared(Writes):
    def test_ranks_of_three_nodes_write_one_file(self):
        said = self.run_ranks(6, NODES, "shared", self.meeting).stdout
        self.assertEqual(said.count("all wrote all"), 6)

    def test_ranks_claim_tasks_and_locks_by_names(self):
        said = self.run_ranks(6, NODES, "names", self.meeting).stdout
        self.assertEqual(said.count("all claimed and counted"), 6)

    def test_mpi_io_writes_strided_pieces(self):
        program = compile_mpi("mpi_strided.c", os.path.join(self.directory, "strided"))
        done = self.lab.mend("run", "-n", "4", "--hosts", "node1,node2", "--data", f"input:{self.seen}:rw", "--", program, self.seen + "/strided",
                             cwd=self.directory)
        self.assertEqual((done.returncode, done.stdout), (0, "same\n"), done.stderr)

    def test_one_node_appends(self):
        said = self.run_ranks(2, ["node1"], "append", self.meeting).stdout
        self.assertEqual(said.count("refused 0"), 2)

    def test_two_nodes_do_not_append_at_once(self):
        said = self.run_ranks(2, NODES[:2], "append", self.meeting).stdout
        self.assertEqual(said.count("refused 0"), 1, said)
        self.assertEqual(said.count("refused 20"), 1, said)

    def test_what_ranks_wrote_is_read_through_a_mount_that_is_read_only(self):
        self.run_ranks(1, ["node1"], "fsx", "1", "40")
        script = f"cat {self.seen}/fsx > plain && cmp plain {self.seen}/fsx && python3 -c \"import mmap; file = open('{self.seen}/fsx', 'rb'); " \
            "assert mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[:] == open('plain', 'rb').read()\""
        done = self.lab.mend("run", "--hosts", "node3", "--data", f"input:{self.seen}", "--", "bash", "-c", script, cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stderr)


class Losses(Writes):
    """Targets and writers are killed while ranks write."""

    DAEMONS = {"MEND_SPACE_TIMEOUT_MS": "1000", "MEND_SPACE_PROBE_S": "1"}

    def paced(self, ranks, hosts, what="pace", *more):
        self.go = os.path.join(self.meeting, "go")
        verb, *rest = self.command(ranks, hosts, what, self.go, "7")
        job = self.lab.start(self.directory, verb, "--spares", "node4", *more, *rest)
        job.wait_for(lambda: all(os.path.exists(f"{self.go}.begun.{rank}") for rank in range(ranks)), "ranks write")
        return job

    def ends_well(self, job, ranks):
        open(self.go, "wb").close()
        job.finish()
        for rank in range(ranks):
            with open(f"{self.go}.model.{rank}", "rb") as file:
                self.got(f"input:pace.{rank}", file.read())

    def kill_target(self, node):
        killed = self.lab.on(node, "pkill", "-KILL", "-x", "-f", f".*mend-space target .*{self.target(node)} .*")
        self.assertEqual(killed.returncode, 0, killed.stderr)

    def signal_mounts(self, node, name):
        signalled = self.lab.on(node, "pkill", f"-{name}", "-x", "-f", ".*mend-space ranks input")
        self.assertEqual(signalled.returncode, 0, signalled.stderr)

    def copies(self, name):
        return json.loads(self.data("getstripe", "--json", f"input:{name}").stdout)

    def test_targets_that_are_killed_and_come_back_lose_nothing(self):
        job = self.paced(2, NODES[:2])
        for node in ("node3", "node1", "node2"):
            self.kill_target(node)
            time.sleep(0.5)
            # Two that are lost at once may take both copies of something along.
            job.wait_for(lambda: not any(self.copies(f"pace.{rank}")["filling"] for rank in range(2)), f"copies are whole without {node}, or with it again")
        self.ends_well(job, 2)

    def test_a_node_that_is_lost_is_replaced_while_ranks_write(self):
        job = self.paced(2, NODES[:2])
        self.addCleanup(self.daemon_back, "node3")
        self.lab.kill_daemon("node3")
        wanted = {f"{node}:{self.target(node)}" for node in NODES[:2]}

        def replaced():
            shown = [self.copies(f"pace.{rank}") for rank in range(2)]
            return all(not one["filling"] and {target for copies in one["objects"] for target in copies} == wanted for one in shown)

        job.wait_for(replaced, "both files have their copies on the nodes that are left")
        self.ends_well(job, 2)
        self.assertTrue(replaced())

    def test_an_object_that_is_lost_while_it_is_written_is_made_again(self):
        job = self.paced(1, ["node1"])
        for path in self.objects("node2"):
            # What says that an object is being written comes and goes.
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        time.sleep(1)
        self.ends_well(job, 1)
        self.assertEqual(self.copies("pace.0")["filling"], [])

    def test_what_was_synced_outlives_the_writer(self):
        job = self.paced(1, ["node1"], "hold")
        self.signal_mounts("node1", "KILL")
        job.finish(None)
        self.assertNotEqual(job.poll(), 0)
        to = os.path.join(self.directory, "hold")
        self.data("get", "input:hold.0", to)
        with open(to, "rb") as file:
            self.assertTrue(file.read(3_000_000) == random.Random("7").randbytes(3_000_000), "what was synced is gone")
            later = file.read()
        self.assertEqual(later.strip(b"later"), b"")
        self.run_ranks(1, ["node2"], "fsx", "3", "30")

    def test_a_restart_puts_back_what_ranks_have_open(self):
        job = self.paced(2, NODES[:2])
        name = self.lab.running(job)
        self.lab.verb("checkpoint", name)
        # They write on, and what they write then is to be undone.
        time.sleep(1)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        os.remove(os.path.join(self.directory, "stdout"))
        job = self.lab.start(self.directory, "restart", "--hosts", "node2,node4", name)
        self.ends_well(job, 2)

    def test_a_rank_appends_on_when_its_node_is_lost(self):
        job = self.paced(1, ["node1"], "log", "--on-failure", "restart")
        name = self.lab.running(job)
        self.lab.verb("checkpoint", name)
        time.sleep(1)
        self.addCleanup(self.daemon_back, "node1")
        # As on a node that is lost: nobody closes the file.
        self.signal_mounts("node1", "STOP")
        self.lab.kill_daemon("node1")
        self.signal_mounts("node1", "KILL")
        job.wait_for(lambda: '"node4"' in self.lab.mend("ps", "--json").stdout, "the rank is on the spare")
        # Longer than the lost node would count as appending.
        time.sleep(25)
        open(self.go, "wb").close()
        job.finish()
        lines = int(job.stdout().split()[-2])
        self.assertGreater(lines, 30, job.stdout())

    def test_a_restart_tells_of_files_that_are_others_by_now(self):
        job = self.paced(1, ["node1"], "change")
        name = self.lab.running(job)
        self.lab.verb("checkpoint", name)
        self.changed(job, "write", "written")
        self.killed(job, name)
        job = self.lab.start(self.directory, "restart", "--hosts", "node2", name)
        name = self.lab.running(job)
        self.assertIn("table, which the program reads, is not as it was", job.stderr())
        self.changed(job, "replace", "replaced")
        self.killed(job, name)
        refused = self.lab.mend("restart", "--hosts", "node2", name)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("log is not as it was: it was replaced by another file since", refused.stderr)
        self.got("input:log", b"after\n" * 100)

    def changed(self, job, what, done):
        open(f"{self.go}.{what}", "wb").close()
        job.wait_for(lambda: os.path.exists(f"{self.go}.{done}"), f"a file is {done}")

    def killed(self, job, name):
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)

    def test_a_rank_moves_while_it_writes(self):
        job = self.paced(1, ["node1"])
        name = self.lab.running(job)
        self.assertEqual(self.lab.verb("migrate", name, "0", "--to", "node4")["to"], "node4")
        self.ends_well(job, 1)

    def test_a_closed_file_gets_its_second_copy_again(self):
        self.run_ranks(1, ["node1"], "fsx", "5", "60")
        to = os.path.join(self.directory, "before")
        self.data("get", "input:fsx", to)
        with open(to, "rb") as file:
            content = file.read()
        self.addCleanup(self.daemon_back, "node3")
        self.lab.kill_daemon("node3")
        # A job that uses the space heals it.
        job = self.paced(1, ["node1"])
        lost = f"node3:{self.target('node3')}"

        def healed():
            shown = self.copies("fsx")
            return not shown["filling"] and not any(lost in copies for copies in shown["objects"])

        job.wait_for(healed, "the second copy is elsewhere")
        self.ends_well(job, 1)
        self.got("input:fsx", content)


if __name__ == "__main__":
    unittest.main()
