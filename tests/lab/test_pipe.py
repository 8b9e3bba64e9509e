"""The pipe as people use it: what a tool writes into a mount on one node is read from a mount on another, while it comes."""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB, InDirectory
from cluster import MEND, PATIENCE, Lab
from test_space import fuse_is_open

UNREACHABLE, BAD_VALUE = 69, 64
SILENCE = 3
# What the kernel says to who waits, and to who comes later.
OWN_MOUNT_GONE = "Software caused connection abort|Transport endpoint is not connected"
# Writes a stream that its seed makes, and prints its checksum. Bytes repeat after a prime number of them, so no two chunks are alike.
WRITE = """
import hashlib, random, sys
path, seed, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
noise, sum, left = random.Random(seed).randbytes(1048573), hashlib.sha256(), size
with open(path, "wb", buffering=0) as file:
    while left:
        part = memoryview(noise)[:left]
        sum.update(part)
        left -= len(part)
        while part:
            part = part[file.write(part):]
print(sum.hexdigest())
"""
READ = """
import hashlib, sys, os, time
path, sum, size = sys.argv[1], hashlib.sha256(), 0
until = time.monotonic() + 60
while not os.path.exists(path) and time.monotonic() < until:
    time.sleep(0.02)
with open(path, "rb", buffering=0) as file:
    while part := file.read(131072):
        sum.update(part)
        size += len(part)
print(size, sum.hexdigest())
"""
FAILS = """
import errno, os, sys, time
def fails(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, (call, error)
        return
    raise AssertionError(f"{call} {arguments} was not refused")
"""
# Tries what a stream cannot do, in the mount where it is written.
REFUSED_WRITER = FAILS + """
where = sys.argv[1]
path = where + "/stream"
file = os.open(path, os.O_WRONLY | os.O_CREAT)
assert os.write(file, b"first ") == 6
fails(errno.ESPIPE, os.lseek, file, 0, os.SEEK_SET)
fails(errno.ESPIPE, os.pwrite, file, b"x", 0)
fails(errno.EINVAL, os.ftruncate, file, 0)
fails(errno.EBUSY, os.open, path, os.O_WRONLY)
fails(errno.EBUSY, os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
fails(errno.EACCES, os.open, where + "/other", os.O_RDWR | os.O_CREAT)
fails(errno.EPERM, os.rename, path, where + "/other")
fails(errno.EPERM, os.link, path, where + "/other")
fails(errno.EPERM, os.symlink, path, where + "/other")
fails(errno.EPERM, os.mkdir, where + "/other")
fails(errno.EPERM, os.unlink, path)
assert os.listdir(where) == ["stream"]
assert os.write(file, b"second") == 6
os.fsync(file)
os.close(file)
"""
# The kernel tells of a close when `close` has long returned: what comes of it is looked for again and again.
REFUSED_READER = FAILS + """
where = sys.argv[1]
path = where + "/stream"
until = time.monotonic() + 20
def opened_again():
    while True:
        try:
            return os.open(path, os.O_RDONLY)
        except OSError as error:
            assert error.errno == errno.EBUSY and time.monotonic() < until, error
        time.sleep(0.02)
assert os.listdir(where) == ["stream"]
fails(errno.ENOENT, os.open, where + "/none", os.O_RDONLY)
fails(errno.EROFS, os.open, where + "/none", os.O_WRONLY | os.O_CREAT)
os.close(os.open(path, os.O_RDONLY))
file = opened_again()
fails(errno.EBUSY, os.open, path, os.O_RDONLY)
assert os.read(file, 4) == b"firs"
fails(errno.ESPIPE, os.lseek, file, 0, os.SEEK_SET)
fails(errno.ESPIPE, os.pread, file, 1, 0)
text = b""
while part := os.read(file, 100):
    text += part
assert text == b"t second", text
os.close(file)
while left := os.listdir(where):
    assert time.monotonic() < until, left
    time.sleep(0.02)
"""


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so the pipe cannot be mounted")
class Pipe(InDirectory):
    """node1 writes, node2 reads."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))

    def setUp(self):
        super().setUp()
        self.started = []
        self.addCleanup(self.end_all)
        self.into, self.out = self.mount("node2", "in", "--listen"), self.mount("node1", "out", "--to", "node2")

    def end_all(self):
        # The lab's `exec` passes signals on to what it runs.
        for process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdout, process.stderr):
                stream.close()

    def begin(self, node, *command):
        """Starts a command on a node; it is killed on the node itself, by the number that it has there."""
        full = [MEND, "lab", "exec", "--name", self.lab.name, node, "--", "sh", "-c", 'echo $$; exec "$@"', "sh", *command]
        environment = dict(self.lab.environment, MEND_PIPE_TIMEOUT_MS=str(SILENCE * 1000))
        process = subprocess.Popen(full, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        process.node, process.number = node, process.stdout.readline().strip()
        self.started.append(process)
        return process

    def mount(self, node, name, *side):
        directory = os.path.join(self.directory, name)
        os.makedirs(directory, exist_ok=True)
        process = self.begin(node, MEND, "pipe", "mount", *side, directory)
        line = process.stdout.readline()
        self.assertTrue(line.startswith("ready"), line or process.stderr.read())
        process.directory = directory
        return process

    def kill(self, process, name="KILL"):
        done = self.lab.on(process.node, "kill", f"-{name}", process.number)
        self.assertEqual(done.returncode, 0, done.stderr)

    def write(self, name, seed, size):
        return self.begin("node1", sys.executable, "-c", WRITE, f"{self.out.directory}/{name}", str(seed), str(size))

    def read(self, name):
        return self.begin("node2", sys.executable, "-c", READ, f"{self.into.directory}/{name}")

    def finished(self, process, code=0):
        out, error = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, code, error)
        return out.strip() if code == 0 else error

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end, f"did not happen: {what}")
            time.sleep(0.05)

    def peak(self, mount):
        """MiB that a mount's process had in memory at most."""
        status = self.lab.on(mount.node, "cat", f"/proc/{mount.number}/status").stdout
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024

    def flows(self, reader):
        """Waits until a stream has come to its reader: more than Python reads to begin."""
        def has_read():
            found = re.search(r"^rchar: (\d+)$", self.lab.on(reader.node, "cat", f"/proc/{reader.number}/io").stdout, re.MULTILINE)
            return found and int(found[1]) > 64 * MIB

        self.until(has_read, "the stream is read")

    def streams(self):
        return self.lab.on("node2", "ls", self.into.directory).stdout.split()

    def test_one_two_four_and_eight_writers_at_once(self):
        for count in (1, 2, 4, 8):
            size = 256 * MIB // count + 4321
            writers = [self.write(f"image{at}", 100 * count + at, size) for at in range(count)]
            readers = [self.read(f"image{at}") for at in range(count)]
            sums = [self.finished(writer) for writer in writers]
            self.assertEqual([self.finished(reader) for reader in readers], [f"{size} {one}" for one in sums])
            self.until(lambda: self.streams() == [], "no stream is left")
        for mount in (self.into, self.out):
            self.assertLess(self.peak(mount), 40)

    def test_streams_whose_readers_come_later_hold_up_no_other(self):
        writers = [self.write(f"image{at}", at, 40 * MIB) for at in range(8)]
        self.until(lambda: len(self.streams()) == 8, "all streams are there")
        time.sleep(1)
        for at in reversed(range(8)):
            read = self.finished(self.read(f"image{at}"))
            self.assertEqual(read, f"{40 * MIB} {self.finished(writers[at])}")

    def test_a_stream_of_a_gibibyte_passes_through_little_memory(self):
        writer, reader = self.write("core", 7, 1024 * MIB), self.read("core")
        sum = self.finished(writer)
        self.assertEqual(self.finished(reader), f"{1024 * MIB} {sum}")
        for mount in (self.into, self.out):
            self.assertLess(self.peak(mount), 40)

    def test_a_tree_is_packed_here_and_unpacked_there(self):
        tree, to = os.path.join(self.directory, "tree"), os.path.join(self.directory, "to")
        for at in range(200):
            os.makedirs(f"{tree}/{at % 7}/{at % 3}", exist_ok=True)
            with open(f"{tree}/{at % 7}/{at % 3}/{at}", "wb") as file:
                file.write(os.urandom(at * 777))
        os.makedirs(to)
        writer = self.begin("node1", "tar", "-C", tree, "-cf", f"{self.out.directory}/tree.tar", ".")
        self.until(lambda: self.streams() == ["tree.tar"], "the stream is there")
        done = self.lab.on("node2", "tar", "-C", to, "-xf", f"{self.into.directory}/tree.tar")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.finished(writer)
        self.assertEqual(subprocess.run(["diff", "-r", tree, to], check=False).returncode, 0)

    def test_what_a_stream_cannot_do_is_refused(self):
        done = self.lab.on("node1", sys.executable, "-c", REFUSED_WRITER, self.out.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.lab.on("node2", sys.executable, "-c", REFUSED_READER, self.into.directory)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_bytes_are_read_before_the_writer_closes(self):
        writer = self.begin("node1", "sh", "-c", f'exec 3>"{self.out.directory}/log"; echo one >&3; sleep 600')
        self.until(lambda: self.streams() == ["log"], "the stream is there")
        done = self.lab.on("node2", "head", "-c", "4", f"{self.into.directory}/log")
        self.assertEqual(done.stdout, "one\n")
        self.kill(writer)

    def test_a_writer_that_is_killed_is_never_an_end(self):
        writer, reader = self.write("core", 1, 100_000 * MIB), self.read("core")
        self.flows(reader)
        self.kill(writer)
        self.assertIn("Input/output error", self.finished(reader, 1))
        # One that waits for memory is let go, too.
        writer = self.write("waits", 1, 1000 * MIB)
        self.until(lambda: "waits" in self.streams(), "the stream is there")
        time.sleep(1)
        self.kill(writer)
        writer.wait(PATIENCE)
        self.assertIn("Input/output error", self.finished(self.read("waits"), 1))

    def test_a_reader_that_closes_early_or_is_killed_ends_its_writer(self):
        writer = self.write("core", 1, 100_000 * MIB)
        self.until(lambda: self.streams() == ["core"], "the stream is there")
        self.assertEqual(len(self.lab.on("node2", "head", "-c", "1000", f"{self.into.directory}/core", encoding="latin-1").stdout), 1000)
        self.assertIn("Broken pipe", self.finished(writer, 1))
        writer, reader = self.write("core", 1, 100_000 * MIB), self.read("core")
        self.flows(reader)
        self.kill(reader)
        self.assertIn("Broken pipe", self.finished(writer, 1))
        writer = self.write("unwanted", 1, 1000 * MIB)
        self.until(lambda: self.streams() == ["unwanted"], "the stream is there")
        self.assertEqual(self.lab.on("node2", "rm", "-f", f"{self.into.directory}/unwanted").returncode, 0)
        self.assertIn("Broken pipe", self.finished(writer, 1))

    def test_a_mount_that_is_killed_breaks_what_it_carried(self):
        writer, reader = self.write("core", 1, 100_000 * MIB), self.read("core")
        self.flows(reader)
        self.kill(self.out)
        self.assertIn("Input/output error", self.finished(reader, 1))
        self.assertRegex(self.finished(writer, 1), OWN_MOUNT_GONE)
        self.assertIn("Transport endpoint is not connected", self.finished(self.write("core", 1, 1), 1))
        self.lab.on("node1", "umount", self.out.directory)
        self.out = self.mount("node1", "out2", "--to", "node2")
        writer, reader = self.write("core", 1, 100_000 * MIB), self.read("core")
        self.flows(reader)
        self.kill(self.into)
        self.assertIn("Input/output error", self.finished(writer, 1))
        self.assertRegex(self.finished(reader, 1), OWN_MOUNT_GONE)
        self.lab.on("node2", "umount", self.into.directory)
        self.assertIn("No route to host", self.finished(self.write("core", 1, 1), 1))
        # The writing mount finds another one in its place.
        self.into = self.mount("node2", "in2", "--listen")
        writer, reader = self.write("core", 1, MIB), self.read("core")
        self.assertEqual(self.finished(reader), f"{MIB} {self.finished(writer)}")

    def test_a_node_that_is_cut_off_breaks_both_ends(self):
        writer, reader = self.write("core", 1, 100_000 * MIB), self.read("core")
        self.flows(reader)
        self.addCleanup(self.lab.on, "node1", "ip", "link", "set", "dev", "eth0", "up")
        self.assertEqual(self.lab.on("node1", "ip", "link", "set", "dev", "eth0", "down").returncode, 0)
        self.assertIn("Input/output error", self.finished(writer, 1))
        self.assertIn("Input/output error", self.finished(reader, 1))

    def test_an_unmount_sends_what_was_closed_and_interrupts_nobody_else(self):
        sum = hashlib.sha256(b"last words").hexdigest()
        self.assertEqual(self.lab.on("node1", "sh", "-c", f'printf "last words" > "{self.out.directory}/note"').returncode, 0)
        self.kill(self.out, "TERM")
        self.assertEqual(self.out.wait(PATIENCE), 0)
        self.assertEqual(self.finished(self.read("note")), f"10 {sum}")

    def test_strangers_are_not_let_in(self):
        other = os.path.join(self.directory, "stranger")
        os.makedirs(other + "/mount")
        with open(other + "/secret", "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("11" * 32 + "\n")
        environment = dict(self.lab.environment, MEND_SECRET_FILE=other + "/secret")
        done = self.lab.on("node3", MEND, "pipe", "mount", "--to", "node2", other + "/mount", env=environment)
        self.assertEqual(done.returncode, UNREACHABLE, done.stderr)
        self.assertIn("secret", done.stderr)
        talk = "import socket, sys\ns = socket.create_connection(('node2', 7118))\ns.sendall(bytes(4096))\nassert len(s.recv(100)) <= 48"
        self.assertEqual(self.lab.on("node3", sys.executable, "-c", talk).returncode, 0)
        writer, reader = self.write("core", 1, MIB), self.read("core")
        self.assertEqual(self.finished(reader), f"{MIB} {self.finished(writer)}")

    def test_mounts_that_cannot_be_say_why(self):
        where = self.out.directory
        for arguments, code, said in (
            (["--to", "node3", where], UNREACHABLE, "mend pipe mount --listen"),
            (["--to", "node3:x", where], BAD_VALUE, "no port"),
            (["--to", "nowhere.invalid", where], BAD_VALUE, "nowhere.invalid"),
            (["--listen=127.0.0.1:0", self.directory + "/none"], 1, "cannot be mounted"),
            (["--listen=127.0.0.1:0", "/etc"], BAD_VALUE, "/etc is not empty"),
            (["--listen=99999", where], BAD_VALUE, "99999 is no port"),
        ):
            done = self.lab.on("node1", MEND, "pipe", "mount", *arguments)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(said, done.stderr)


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so the pipe cannot be mounted")
class Bench(InDirectory):
    """`mend bench pipe`."""

    def bench(self, *arguments, code=0):
        done = subprocess.run([MEND, "bench", "pipe", *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_each_case_is_measured_in_a_lab_of_its_own(self):
        csv, svg = (os.path.join(self.directory, name) for name in ("pipe.csv", "pipe.svg"))
        done = self.bench("--chunks", "64K,1M", "--pools", "8M,16M", "--writers", "1,4", "--size", "8M", "--runs", "2", "--csv", csv,
                          "--svg", svg, "--json")
        measured = json.loads(done.stdout)
        self.assertIn("left out: 4 writer(s) with chunks of 1.0 MiB need more memory than 8.0 MiB", done.stderr)
        cases = [(8, 1, 64), (8, 1, 1024), (8, 4, 64), (16, 1, 64), (16, 1, 1024), (16, 4, 64), (16, 4, 1024)]
        self.assertEqual([(one["pool"] >> 20, one["writers"], one["chunk"] >> 10) for one in measured], [case for case in cases for _ in "12"])
        for one in measured:
            self.assertTrue(all(one[stage] > 0 for stage in ("aggregation", "network", "pipeline")), one)
        with open(csv, encoding="ascii") as file:
            self.assertEqual(len(file.readlines()), 1 + len(measured))
        with open(svg, encoding="utf-8") as file:
            self.assertEqual(file.read().count("<title>"), 3 * len(cases))
        labs = subprocess.run([MEND, "lab", "ls"], capture_output=True, text=True, check=True)
        self.assertNotIn("bench-", labs.stdout)

    def test_what_cannot_be_measured_is_named(self):
        for arguments, code, said in (
            (["--chunks", "3K"], 2, "from 4K to 1M"),
            (["--pools", "1500K"], 2, "whole MiB"),
            (["--to", "b:x"], 64, "that is no port"),
            (["--listen", "--to", "b"], 2, "cannot be used with"),
        ):
            self.assertIn(said, self.bench(*arguments, code=code).stderr)


if __name__ == "__main__":
    unittest.main()
