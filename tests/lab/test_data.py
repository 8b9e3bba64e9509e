"""`mend data` as people use it: files are staged, checked and repaired, whatever their sources and processes do meanwhile."""

import glob
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB, OnMachine
from cluster import PATIENCE, ROOT
from data_server import DataServer
from tiers import commit_seed

DAMAGED, UNREACHABLE, BAD_VALUE = 65, 69, 64
SIZE = 12 * MIB + 4321


class Data(OnMachine):
    """`content` is what is staged, from a `server` or the file `source`."""

    def setUp(self):
        super().setUp()
        self.random = random.Random(f"{commit_seed()} {self.id()}")
        self.content = self.random.randbytes(SIZE)
        self.source = self.write("source.dat", self.content)
        self.path = os.path.join(self.directory, "in put.dat")
        self.machine.set("MEND_DATA_REQUEST_MB", "2")
        self.machine.set("MEND_DATA_TIMEOUT_MS", "10000")
        self.machine.set("no_proxy", "127.0.0.1")

    def write(self, name, content):
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def read(self, path=None):
        with open(path or self.path, "rb") as file:
            return file.read()

    def served(self):
        return self.enterContext(DataServer(self.content))

    def data(self, *arguments, code=0, **options):
        done = self.machine.mend("data", *arguments, cwd=self.directory, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def staged(self, *uris, path=None):
        self.data("stage", *(uris or ["file://" + self.source]), path or self.path)
        self.assertEqual(self.read(path), self.content)

    def spoil(self, offset, bytes_=b"spoiled"):
        with open(self.path, "r+b") as file:
            file.seek(offset)
            file.write(bytes_)

    def found(self, *arguments, code=DAMAGED):
        """Ranges in MiB by cause, as a check finds them in the file."""
        [one] = json.loads(self.data("check", "--json", *arguments, self.path, code=code).stdout)["details"]
        return [(damage["offset"] / MIB, damage["cause"]) for damage in one["damages"]]

    def plugin(self, name, script):
        path = self.write(f"plugins/mend-source-{name}", script.encode())
        os.chmod(path, 0o755)
        self.machine.set("MEND_DATA_PLUGINS", os.path.join(self.directory, "plugins"))

    def left_over(self):
        return [name for name in os.listdir(self.directory) if ".mend-part" in name or name.endswith(".new")]


class Stage(Data):
    def test_a_file_is_fetched_in_ranges_and_is_there_when_it_is_whole(self):
        server = self.served()
        server.watch = lambda _: self.assertFalse(os.path.exists(self.path))
        said = self.data("stage", server.uri(), self.path)
        self.assertEqual(self.read(), self.content)
        self.assertIn("12.00 MiB in", said.stdout)
        # Nothing of a bar where there is no terminal.
        self.assertEqual((said.stderr, self.left_over()), ("", []))
        self.assertEqual(len(server.requests), 7)
        self.assertIn("there already", self.data("stage", server.uri(), self.path).stdout)
        self.assertEqual(server.sent, SIZE)

    def test_what_is_there_and_is_something_else_stays_unless_it_is_forced(self):
        self.write("in put.dat", b"mine")
        done = self.data("stage", "file://" + self.source, self.path, code=1)
        self.assertIn("is there, and is not what its source holds now", done.stderr)
        self.assertEqual(self.read(), b"mine")
        self.data("stage", "--force", "file://" + self.source, self.path)
        self.assertEqual(self.read(), self.content)

    def test_a_server_that_ignores_ranges_or_refuses_heads_will_do(self):
        server = self.served()
        server.ranges = False
        self.staged(server.uri())
        # One answer told that it is so, another one was the file.
        self.assertLessEqual(len(server.requests), 2)
        server.head = False
        for ranges in (False, True):
            server.ranges = ranges
            self.staged(server.uri(), path=os.path.join(self.directory, f"head {ranges}"))

    def test_what_was_fetched_before_a_kill_is_not_fetched_again(self):
        server = self.served()
        kills = 0
        while not os.path.exists(self.path):
            self.assertLess(kills, 200)
            process = subprocess.Popen(self.machine.command("data", "stage", "-q", server.uri(), self.path), env=self.machine.environment)
            # Early kills at first; later ones let it come to its end.
            moment = server.sent + self.random.randrange(4 * MIB)
            until = time.monotonic() + PATIENCE
            while process.poll() is None and server.sent < moment and time.monotonic() < until:
                time.sleep(0.001)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
            process.wait()
            if os.path.exists(self.path):
                self.assertEqual(self.read(), self.content)
        self.data("stage", server.uri(), self.path)
        self.assertEqual(self.left_over(), [])
        self.assertEqual(self.found(code=0), [])
        # Each kill loses the blocks on their way, of four requests: their parts, and what the sockets hold.
        self.assertGreater(kills, 0)
        self.assertLess(server.sent, SIZE + (kills + 1) * 4 * 4 * MIB)

    def test_blocks_that_are_claimed_and_damaged_are_fetched_again(self):
        server = self.served()
        # Three of seven answers come whole: the rest is missing.
        answers = iter([0, 0, 0])
        server.takes = lambda fault: fault == "break_off" and next(answers, 1)
        self.machine.set("MEND_DATA_ATTEMPTS", "1")
        self.data("stage", server.uri(), self.path, code=UNREACHABLE)
        [part] = glob.glob(glob.escape(self.directory) + "/.*.mend-part")
        with open(part, "r+b") as file:
            file.write(bytes(1000))
        before, server.takes = server.sent, lambda fault: False
        self.staged(server.uri())
        self.assertLess(server.sent - before, SIZE)

    def test_a_source_that_breaks_off_or_stalls_is_asked_again_and_named_in_the_end(self):
        self.machine.set("MEND_DATA_TIMEOUT_MS", "1000")
        server = self.served()
        server.break_off, server.stall = 2, 1
        self.staged(server.uri())
        server.stall = -1
        os.remove(self.path)
        self.machine.set("MEND_DATA_ATTEMPTS", "2")
        done = self.data("stage", server.uri(), self.path, code=UNREACHABLE)
        self.assertRegex(done.stderr, rf"cannot be had from {server.uri()}: .*(nothing for 1000 ms|timed out)")
        self.assertFalse(os.path.exists(self.path))

    def test_a_slow_source_has_all_the_time_it_needs(self):
        server = self.served()
        server.content = self.content = self.content[:MIB]
        server.pause = 0.5
        self.machine.set("MEND_DATA_TIMEOUT_MS", "5000")
        self.machine.set("MEND_DATA_ATTEMPTS", "1")
        self.staged(server.uri())

    def test_mirrors_share_the_work_and_stand_in_for_each_other(self):
        one, two = self.served(), self.served()
        self.staged(one.uri(), two.uri())
        self.assertGreater(min(one.sent, two.sent), 2 * MIB)
        os.remove(self.path)
        two.break_off = -1
        self.machine.set("MEND_DATA_ATTEMPTS", "2")
        done = self.data("stage", one.uri(), two.uri(), self.path)
        self.assertEqual(self.read(), self.content)
        self.assertIn(two.uri(), done.stderr)
        self.assertNotIn(one.uri(), done.stderr)

    def test_a_mirror_that_holds_something_else_is_named_and_left_out(self):
        one, longer, other = self.served(), self.served(), self.served()
        longer.content = self.content + b"!"
        other.content = bytes([self.content[0] ^ 1]) + self.content[1:]
        done = self.data("stage", one.uri(), longer.uri(), other.uri(), self.path)
        self.assertEqual(self.read(), self.content)
        self.assertIn(f"without {longer.uri()}: it has {SIZE + 1} bytes", done.stderr)
        self.assertIn(f"without {other.uri()}: it holds other bytes than {one.uri()}", done.stderr)
        # What was left out is not remembered.
        sources = json.loads(self.data("sources", "--json", self.path).stdout)["sources"]
        self.assertEqual([source["uri"] for source in sources], [one.uri()])

    def test_a_source_that_changes_meanwhile_is_never_mixed(self):
        server = self.served()
        new = self.random.randbytes(SIZE)

        def change(sent):
            if sent > 4 * MIB and server.etag == '"1"':
                server.content, server.etag = new, '"2"'
        server.watch = change
        done = self.data("stage", server.uri(), self.path, code=DAMAGED)
        self.assertIn("it has changed: its entity tag was", done.stderr)
        self.assertFalse(os.path.exists(self.path))
        done = self.data("stage", server.uri(), self.path)
        self.assertIn("since an earlier command fetched a part of it; that part is fetched again", done.stderr)
        self.assertEqual(self.read(), new)

    def test_two_at_once_do_not_meet(self):
        server = self.served()
        begun, go = threading.Event(), threading.Event()

        def hold(_):
            begun.set()
            go.wait(PATIENCE)
        server.watch = hold
        self.machine.set("MEND_DATA_TIMEOUT_MS", "100000")
        first = subprocess.Popen(self.machine.command("data", "stage", "-q", server.uri(), self.path), env=self.machine.environment)
        self.addCleanup(lambda: (go.set(), first.wait()))
        self.assertTrue(begun.wait(PATIENCE))
        done = self.data("stage", "file://" + self.source, self.path, code=1)
        self.assertIn("another mend data is fetching", done.stderr)
        go.set()
        self.assertEqual(first.wait(PATIENCE), 0)
        self.assertEqual(self.read(), self.content)

    def test_directories_names_and_sizes_of_all_kinds(self):
        tree = {"a b/c%20d#?.dat": b"x" * 5, "empty": b"", "..b/é": b"y" * 100, "deep/er/big": self.content}
        for name, content in tree.items():
            self.write(f"tree/{name}", content)
        os.symlink("/", os.path.join(self.directory, "tree", "loop"))
        self.data("stage", f"file://{self.directory}/tree/", "copy")
        for name, content in tree.items():
            self.assertEqual(self.read(os.path.join(self.directory, "copy", name)), content)
        self.assertFalse(os.path.lexists(os.path.join(self.directory, "copy", "loop")))
        self.assertIn("4 whole", self.data("check", "copy").stdout)
        if os.geteuid():
            closed = os.path.join(self.directory, "copy", "deep")
            os.chmod(closed, 0)
            said = self.data("check", "copy", code=1)
            os.chmod(closed, 0o755)
            self.assertIn("Permission denied", said.stdout + said.stderr)
        # Into a directory that is there, under its own name; through a link, to where it points.
        self.data("stage", "file://" + self.source, "copy/")
        self.assertEqual(self.read(os.path.join(self.directory, "copy", "source.dat")), self.content)

    def test_a_sparse_file_stays_sparse_whatever_its_size(self):
        size = 1 << 40
        with open(self.source, "r+b") as file:
            file.truncate(size)
        self.data("stage", "file://" + self.source, self.path)
        found = os.stat(self.path)
        self.assertEqual(found.st_size, size)
        self.assertLess(found.st_blocks * 512, SIZE + 4 * MIB)
        self.assertEqual(self.found(code=0), [])
        self.spoil(size - 7)
        self.assertEqual(self.found(), [(size / MIB - 1, "differs")])
        self.data("repair", self.path)
        self.assertEqual(self.found(code=0), [])

    def test_a_full_disk_is_told_and_nothing_is_lost(self):
        # The limit of a process stands for the disk's end: what follows is the same.
        limited = ["sh", "-c", 'ulimit -f 8192; trap "" XFSZ; exec "$@"', "sh", *self.machine.command("data", "stage", "file://" + self.source, self.path)]
        done = subprocess.run(limited, env=self.machine.environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("File too large", done.stderr)
        self.assertFalse(os.path.exists(self.path))
        self.staged()

    def test_bad_input_is_named(self):
        for arguments, code, said in [
            (("stage", "source.dat", "x"), BAD_VALUE, "source.dat is no address of a source"),
            (("stage", "ftp://me:secret@host/x", "x"), BAD_VALUE, "the address of host has a password in it"),
            (("stage", "file:///nonexistent/x", "x"), UNREACHABLE, "No such file or directory"),
            (("stage", f"file://{self.directory}", "x"), UNREACHABLE, "it is a directory: end both names with a slash"),
            (("stage", "nobody://x/y", "x"), UNREACHABLE, "there is no mend-source-nobody"),
            (("stage", "file://" + self.source, "x", "--credentials", "env:MEND_TEST_UNSET"), 0, ""),
            (("stage", "http://127.0.0.1:9/x", "y", "--credentials", "env:MEND_TEST_UNSET"), UNREACHABLE, "its credentials are not in env:MEND_TEST_UNSET"),
            (("stage", "file://" + self.source, "y", "--credentials", "s3cr3t"), 2, "and not the credentials themselves"),
            (("sources", "source.dat"), 1, "no source is known for it"),
            (("check", "source.dat"), 1, "no source is known for it"),
            (("check", "nonexistent"), 1, "No such file or directory"),
            (("stage", "--script", "nonexistent"), BAD_VALUE, "name a job script"),
        ]:
            with self.subTest(arguments=arguments):
                self.machine.set("MEND_DATA_ATTEMPTS", "1")
                self.assertIn(said, self.data(*arguments, code=code).stderr)

    def test_a_job_script_says_what_it_needs(self):
        self.write("tree/x", b"x")
        script = f"""#!/bin/sh
#SBATCH -N 1
#DW jobdw type=scratch capacity=1GB
#MEND stage-in file://{self.source} "staged/in put"
#DW stage_in source={self.directory}/tree destination=$PLACE/tree type=directory
srun ./app
"""
        self.write("job.sh", script.encode())
        done = self.data("stage", "--script", "job.sh", code=BAD_VALUE)
        self.assertIn("line 5: the variable PLACE is not set", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.directory, "staged")))
        self.machine.set("PLACE", "staged")
        done = self.data("stage", "--script", "job.sh")
        self.assertIn("job.sh line 3: passed over: #DW jobdw", done.stderr)
        self.assertEqual(self.read(os.path.join(self.directory, "staged", "in put")), self.content)
        self.assertIn("2 whole", self.data("check", "--script", "job.sh").stdout)
        self.spoil_and_check("staged/in put")

    def spoil_and_check(self, name):
        self.path = os.path.join(self.directory, name)
        self.spoil(5)
        self.data("check", "--script", "job.sh", code=DAMAGED)


class Repair(Data):
    def test_what_differs_or_is_missing_is_found_and_only_that_is_fetched(self):
        server = self.served()
        self.staged(server.uri())
        before, told = os.stat(self.path), server.sent
        os.chmod(self.path, 0o640)
        self.spoil(3 * MIB - 2)
        self.spoil(7 * MIB)
        os.truncate(self.path, 10 * MIB + 5)
        os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertEqual(self.found(), [(2, "differs"), (7, "differs"), (10 + 5 / MIB, "short")])
        with open(self.path, "rb") as job:
            self.assertIn("repaired", self.data("repair", self.path).stdout)
            # Who has it open reads on in the same file.
            self.assertEqual(job.read(), self.content)
        after = os.stat(self.path)
        self.assertEqual((after.st_ino, stat.S_IMODE(after.st_mode), after.st_mtime_ns), (before.st_ino, 0o640, before.st_mtime_ns))
        self.assertEqual(server.sent - told, 3 * MIB + SIZE - 10 * MIB)
        self.assertEqual(self.found(code=0), [])

    def test_what_is_too_much_is_cut_off(self):
        self.staged()
        with open(self.path, "ab") as file:
            file.write(b"more")
        self.assertEqual(self.found(), [(SIZE / MIB, "longer")])
        self.assertIn("cut 4 bytes off", self.data("repair", self.path).stdout)
        self.assertEqual(self.read(), self.content)

    def test_a_repair_that_is_killed_is_repeated(self):
        server = self.served()
        self.staged(server.uri())
        kills = 0
        for _ in range(6):
            length = min(os.stat(self.path).st_size, self.random.randrange(6 * MIB, SIZE))
            for offset in range(0, length - MIB, 2 * MIB):
                self.spoil(offset)
            os.truncate(self.path, length)
            process = subprocess.Popen(self.machine.command("data", "repair", self.path), env=self.machine.environment, stdout=subprocess.DEVNULL)
            moment = server.sent + self.random.randrange(6 * MIB)
            until = time.monotonic() + PATIENCE
            while process.poll() is None and server.sent < moment and time.monotonic() < until:
                time.sleep(0.001)
            kills += process.poll() is None
            process.kill()
            process.wait()
            # What it grew by is right: it grew from its front.
            now = self.read()
            self.assertEqual(now[length:], self.content[length:len(now)])
        self.data("repair", self.path)
        self.assertEqual((self.read(), self.left_over()), (self.content, []))
        self.assertGreater(kills, 0)

    def test_a_source_that_changed_since_is_named_and_another_one_asked(self):
        one, two = self.served(), self.served()
        self.staged(one.uri(), two.uri())
        self.spoil(5 * MIB)
        spoiled = self.read()
        one.content, one.etag = self.random.randbytes(SIZE), '"2"'
        self.data("sources", self.path, "--remove", two.uri())
        done = self.data("repair", self.path, code=DAMAGED)
        self.assertIn(f'{one.uri()}: it has changed since: its entity tag was "1", and is "2"', done.stderr)
        self.assertEqual(self.read(), spoiled)
        self.data("sources", self.path, "--add", two.uri())
        done = self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)
        self.assertIn(one.uri(), done.stderr)

    def test_a_source_that_sends_other_bytes_is_to_blame(self):
        one, two = self.served(), self.served()
        self.staged(one.uri(), two.uri())
        self.spoil(5 * MIB)
        self.spoil(8 * MIB)
        one.corrupt = 5 * MIB + 77
        self.data("sources", self.path, "--remove", two.uri())
        done = self.data("repair", self.path, code=UNREACHABLE)
        self.assertIn(f"{one.uri()}: it sent other bytes than were staged, at offset {5 * MIB}", done.stderr)
        # What it sent well was put in.
        self.assertEqual(self.found(), [(5, "differs")])
        self.data("sources", self.path, "--add", two.uri())
        self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)

    def test_a_link_stands_for_its_file_whatever_its_size(self):
        self.content = self.random.randbytes(130 * MIB)
        self.write("source.dat", self.content)
        self.staged()
        link = os.path.join(self.directory, "links", "to it")
        os.makedirs(os.path.dirname(link))
        os.symlink("../in put.dat", link)
        self.assertIn("1 whole", self.data("check", link).stdout)
        self.spoil(100 * MIB)
        self.assertIn(f"{100 * MIB}", self.data("check", link, code=DAMAGED).stdout)
        self.data("repair", link)
        self.assertEqual(self.read(), self.content)
        # The file is gone: it comes back, and the link stays one.
        os.unlink(self.path)
        self.data("repair", link)
        self.assertEqual(self.read(), self.content)
        self.assertTrue(os.path.islink(link))
        self.assertEqual(os.listdir(os.path.dirname(link)), ["to it"])

    def test_a_source_that_holds_something_else_is_not_added(self):
        self.staged()
        for at in (0, 6 * MIB, SIZE - 1):
            other = self.write("other.dat", self.content[:at] + bytes([self.content[at] ^ 1]) + self.content[at + 1:])
            done = self.data("sources", self.path, "--add", "file://" + other, code=DAMAGED)
            self.assertIn(f"holds other bytes than the checksums of {self.path} say, at offset {at // MIB * MIB}", done.stderr)
        same = self.write("the same.dat", self.content)
        # An address and its other spelling are one source.
        self.data("sources", self.path, "--add", "file://" + same.replace(" ", "%20"))
        self.data("sources", self.path, "--add", "file://" + same)
        sources = json.loads(self.data("sources", self.path, "--json").stdout)["sources"]
        self.assertEqual([one["uri"] for one in sources], ["file://" + self.source, "file://" + same])
        self.data("sources", self.path, "--remove", "file://" + same.replace(" ", "%20"))
        self.assertEqual(len(json.loads(self.data("sources", self.path, "--json").stdout)["sources"]), 1)

    def test_a_file_that_is_gone_comes_back_if_something_remembers_it(self):
        self.content = self.random.randbytes(150 * MIB)
        self.write("source.dat", self.content)
        self.data("stage", "file://" + self.source, self.path)
        [beside] = glob.glob(glob.escape(self.directory) + "/.*.mend-source")
        os.remove(self.path)
        self.assertIn("it is gone", self.data("check", self.directory, code=DAMAGED).stdout)
        self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)
        self.data("mv", self.path, "moved.dat")
        self.assertFalse(os.path.exists(beside))
        self.path = os.path.join(self.directory, "moved.dat")
        self.assertEqual(self.found(code=0), [])
        # Without its companion, or with a stranger's, it is told and nothing is made up.
        [beside] = glob.glob(glob.escape(self.directory) + "/.*.mend-source")
        os.rename(beside, os.path.join(self.directory, "kept"))
        self.spoil(20 * MIB)
        done = self.data("check", self.path)
        self.assertIn("with its checksums is gone", done.stderr)
        self.assertIn("1 readable, without checksums", done.stdout)
        shutil.copy(os.path.join(self.directory, "kept"), beside)
        self.assertEqual(self.found(), [(20, "differs")])
        with open(beside, "r+b") as file:
            file.write(b"strange")
        self.assertIn("no record of a source, or a damaged one", self.data("check", self.path).stderr)

    def test_a_file_that_was_there_gets_its_source_and_checksums(self):
        self.write("in put.dat", self.content[:-10])
        server = self.served()
        said = self.data("sources", self.path, "--add", server.uri())
        self.assertIn("no checksums", said.stdout)
        self.assertEqual(self.found(), [((SIZE - 10) / MIB, "short")])
        self.spoil(MIB)
        self.assertEqual(self.found("--against-source"), [(1, "differs"), ((SIZE - 10) / MIB, "short")])
        self.data("repair", "--against-source", self.path)
        self.assertEqual(self.read(), self.content)
        self.assertIn("13 checksums", self.data("sources", self.path).stdout)

    def test_many_small_files_are_looked_at(self):
        count = 100_000
        directory = os.path.join(self.directory, "many")
        os.mkdir(directory)
        for at in range(count):
            os.close(os.open(f"{directory}/{at}", os.O_CREAT | os.O_WRONLY))
        report = json.loads(self.data("check", "--json", "many").stdout)
        self.assertEqual((report["files"], report["unknown"], report["damaged"]), (count, count, 0))


class Plugins(Data):
    def test_members_of_an_archive_are_files(self):
        self.write("tree/a b", b"x" * 70_000)
        archive = os.path.join(self.directory, "a.tar")
        with tarfile.open(archive, "w") as opened:
            opened.add(self.source, "in.dat")
            opened.add(os.path.join(self.directory, "tree"), "tree")
        self.staged(f"tar://{archive}#in.dat")
        self.spoil(5 * MIB)
        self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)
        self.data("stage", f"tar://{archive}#tree/", "copy/")
        self.assertEqual(self.read(os.path.join(self.directory, "copy", "a b")), b"x" * 70_000)
        self.assertIn("there is no file nope in", self.data("stage", f"tar://{archive}#nope", "x", code=UNREACHABLE).stderr)

    def test_archives_that_change_and_hard_links(self):
        archive = os.path.join(self.directory, "b.tar")
        os.makedirs(os.path.join(self.directory, "pair"))
        first = self.write("pair/first", b"x" * 70_000)
        os.link(first, os.path.join(self.directory, "pair", "second"))

        def pack(content):
            with open(first, "wb") as file:
                file.write(content)
            with tarfile.open(archive, "w") as opened:
                opened.add(os.path.join(self.directory, "pair"), "pair")

        pack(b"x" * 70_000)
        self.data("stage", f"tar://{archive}#pair/", "pair-copy/")
        for name in ("first", "second"):
            self.assertEqual(self.read(os.path.join(self.directory, "pair-copy", name)), b"x" * 70_000)
        self.data("stage", f"tar://{archive}#/", "all/")
        self.assertEqual(sorted(os.listdir(os.path.join(self.directory, "all", "pair"))), ["first", "second"])
        self.assertIn("no file below nope/", self.data("stage", f"tar://{archive}#nope/", "x/", code=UNREACHABLE).stderr)
        # A member keeps the name that it has in the archive.
        self.data("stage", f"tar://{archive}#pair/first", "all/")
        self.assertEqual(self.read(os.path.join(self.directory, "all", "first")), b"x" * 70_000)
        # Within one session, too.
        session = subprocess.Popen([os.path.join(ROOT, "plugins", "mend-source-tar")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(session.communicate)

        def asked(line):
            session.stdin.write(line + "\n")
            session.stdin.flush()
            return session.stdout.readline()

        before = asked(f"stat tar://{archive}#pair/first")
        self.assertEqual(asked(f"stat tar://{archive}#pair/first"), before)
        pack(b"y" * 70_000)
        self.assertNotEqual(asked(f"stat tar://{archive}#pair/first"), before)

    def test_one_that_is_no_more_needed_is_told_to_end(self):
        said = os.path.join(self.directory, "said")
        self.plugin("polite", "#!/bin/sh\nwhile read line; do echo $line >> " + said + '''
            case $line in
                mend-source*) echo mend-source 1;;
                stat*) echo size 4;;
                read*) echo data 4; printf data;;
                quit) exit;;
            esac
        done\n''')
        self.data("stage", "polite://x/y", self.path)
        self.assertEqual(self.read(self.path), b"data")
        self.assertEqual(self.read(said).decode().splitlines()[-1], "quit")

    def test_one_that_hangs_or_lies_is_killed_and_named(self):
        self.machine.set("MEND_DATA_TIMEOUT_MS", "1000")
        self.machine.set("MEND_DATA_ATTEMPTS", "2")
        greet = "#!/bin/sh\nread hello; echo mend-source 1\n"
        cases = {
            "dies": ("#!/bin/sh\n", "mend-source-dies has ended"),
            "hangs": (greet + f"echo $$ > {self.directory}/pid; exec sleep 1000\n", "mend-source-hangs said nothing for 1000 ms; it was killed"),
            "babbles": (greet + "read stat; echo size much\n", "none of the answers it may give; it was killed"),
            "floods": (greet + "read stat; echo size 10; read range; echo data 5000; head -c 5000 /dev/zero\n", "sends more bytes than it was asked for"),
            "refuses": (greet + "read stat; echo error not today\n", "not today"),
        }
        for name, (script, said) in cases.items():
            with self.subTest(name):
                self.plugin(name, script)
                done = self.data("stage", f"{name}://x/y", self.path, code=UNREACHABLE)
                self.assertIn(said, done.stderr)
                self.assertFalse(os.path.exists(self.path))
        with open(os.path.join(self.directory, "pid"), encoding="ascii") as file:
            place = f"/proc/{file.read().strip()}/stat"
        until = time.monotonic() + PATIENCE
        # Dead, or gone.
        while os.path.exists(place) and self.read(place).rsplit(b") ", 1)[1][:1] != b"Z":
            self.assertLess(time.monotonic(), until, "it lives")
            time.sleep(0.01)

    def test_a_name_that_leads_out_of_the_directory_is_refused(self):
        self.plugin("evil", "#!/bin/sh\nread hello; echo mend-source 1; read list; echo name good; echo name ..%2fbad; echo end; read more\n")
        done = self.data("stage", "evil://x/", "copy/", code=UNREACHABLE)
        self.assertIn("would lead out of", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.directory, "copy")))

    def test_the_shipped_one_is_installed_beside_mend(self):
        self.assertEqual(self.read(os.path.join(ROOT, "plugins", "mend-source-tar")), self.read(os.path.join(os.path.dirname(self.machine.command()[0]), "mend-source-tar")))


if __name__ == "__main__":
    unittest.main()
