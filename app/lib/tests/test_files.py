"""What is in the files: read by h5py and h5dump, without zeros, with links to what is unchanged; and SIGKILL before any system call."""

import os
import random
import re
import shutil
import subprocess
import unittest
import unittest.mock

import h5py
import numpy

from programs import OUT, PYTHON, ROOT, VENV, InDirectory, program, run, skip

SEED = int(os.environ.get("MEND_TEST_SEED", "1"))
MIB = 1 << 20

# Removing a checkpoint's directory takes longer than taking one.
SLOW_REMOVAL = """
#include <sys/syscall.h>
#include <unistd.h>
int rmdir(const char *path) {
    usleep(50000);
    return (int)syscall(SYS_rmdir, path);
}
"""


# A thread that isn't the first can't make a file durable before there is a file `go`.
HELD_BACK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int fd) {
    while (gettid() != getpid() && access("go", F_OK) != 0)
        usleep(1000);
    return (int)syscall(SYS_fsync, fd);
}
"""


class Read(InDirectory):
    def save(self, body, **settings):
        script = f"import mend_app, numpy, os\nwith mend_app.Session(program='files') as session:\n    with session.context('main'):\n{body}"
        return self.good(self.python("\n".join(line if number < 2 else line for number, line in enumerate(script.splitlines())), **settings))

    def test_a_number_that_is_taken_again(self):
        # As a program does that went back to an earlier image of its memory. The second one doesn't become whole.
        output = self.save("""
        import resource, shutil
        x = numpy.arange(1000.0)
        session.array("x", x)
        session.checkpoint(now=True)
        shutil.copytree("checkpoints/checkpoint-000001", "checkpoints/checkpoint-000002")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        session.checkpoint(now=True)
""")
        self.assertIn("File too large", output)
        self.assertEqual(self.checkpoints(), [1])

    def test_a_file_that_is_none(self):
        self.save("""
        import ctypes
        library = ctypes.CDLL(os.environ["MEND_APP_LIBRARY"])
        library.mend_app_fopen.restype = ctypes.c_void_p
        log = ctypes.c_void_p(library.mend_app_fopen(b"log", b"/dev/null", b"w"))
        x = numpy.arange(10.0)
        session.array("x", x)
        ctypes.CDLL(None).fputs(b"written\\n", log)
        session.checkpoint(now=True)
""")
        self.assertEqual(self.checkpoints(), [1])
        self.assertIn("1 0.0", self.good(self.python("""
import ctypes, os, mend_app, numpy
with mend_app.Session(program='files') as session:
    with session.context('main'):
        library = ctypes.CDLL(os.environ["MEND_APP_LIBRARY"])
        library.mend_app_fopen.restype = ctypes.c_void_p
        log = library.mend_app_fopen(b"log", b"/dev/null", b"w")
        x = numpy.ones(10)
        session.array("x", x)
        session.checkpoint()
        print(int(bool(log)), x[0])
""", restart="newest")))

    def rank_file(self, number=1, rank=0):
        return self.path("checkpoints", f"checkpoint-{number:06}", f"rank-{rank:05}.h5")

    def test_the_hierarchy(self):
        """Also of what is compressed, and of what is a link to the checkpoint before."""
        self.save("""
        import ctypes
        library = ctypes.CDLL(os.environ["MEND_APP_LIBRARY"])
        library.mend_app_fopen.restype = ctypes.c_void_p
        log = ctypes.c_void_p(library.mend_app_fopen(b"log", b"log.txt", b"w"))
        ctypes.CDLL(None).fputs(b"four\\n", log)
        x = numpy.arange(12.0).reshape(3, 4)
        session.array("x", x)
        big = numpy.arange(60000).reshape(3, 20000)
        session.array("big", big)
        z = numpy.arange(30000) * (1 - 2j)
        session.array("z", z)
        session.scalars(step=7)
        with session.context("solve"):
            session.array("part", x[1:])
            session.checkpoint(now=True)
            z += 1j
            session.checkpoint(now=True)
        ctypes.CDLL(None).rewind(log)
""", compress="deflate", incremental="yes")
        with h5py.File(self.rank_file(2)) as file:
            self.assertEqual(sorted(file), ["Context", "FileMap", "Header", "MemBlocks"])
            self.assertEqual(file["Header"].attrs["Program"], b"files")
            self.assertEqual(file["Header"].attrs["Contexts"], b"main/solve")
            self.assertEqual(file["Context/main()/x"][:].tolist(), numpy.arange(12.0).reshape(3, 4).tolist())
            self.assertEqual(file["Context/main()/z"].compression, "gzip")
            self.assertEqual(file["Context/main()/z"][:].tolist(), (numpy.arange(30000) * (1 - 2j) + 1j).tolist())
            self.assertEqual(file["Context/main()/step"][()], 7)
            alias = file["Context/main()/solve()/part"]
            self.assertEqual((file[f"MemBlocks/{alias.attrs['AliasOf']}"].attrs["Name"], alias.attrs["Offset"]), (b"x", 4))
            # In the file of checkpoint 1, by the link.
            big = file["Context/main()/big"]
            self.assertEqual((os.path.normpath(big.file.filename), big.compression, big[2, 19999]), (self.rank_file(1), "gzip", 59999))
            self.assertEqual(list(file["FileMap"]), ["0"])
            self.assertEqual(dict(file["FileMap/0"].attrs), {"Name": b"log", "Path": b"log.txt", "Mode": b"w", "Position": 5, "Length": 5})
        if not shutil.which("h5dump"):
            skip("h5dump", "it isn't there (apt-get install hdf5-tools)")
        for what, start, count, line in (("x", "2,0", "1,4", r"\(2,0\): 8, 9, 10, 11"), ("big", "2,19998", "1,2", r"\(2,19998\): 59998, 59999"), ("z", "29999", "1", r"29999,\s+-59997\b")):
            dumped = subprocess.run(["h5dump", "-d", f"/Context/main()/{what}", "-s", start, "-c", count, self.rank_file(2)], capture_output=True, text=True, check=True).stdout
            self.assertRegex(dumped, line)

    def test_zeros_are_left_out_and_come_back(self):
        body = """
        x = numpy.ones((64, 131072))
        y = numpy.ones(1 << 20)
        session.array("x", x)
        session.array("y", y)
        if not session.restarting:
            x[:] = 0
            x[5, 7] = 3
            x[63, 131071] = 4
            y[:] = 0
            session.checkpoint(now=True)
        else:
            session.checkpoint()
            print("values", x[5, 7], x[63, 131071], numpy.count_nonzero(x), numpy.count_nonzero(y))
"""
        self.save(body)
        self.assertLess(os.path.getsize(self.rank_file()), 3 * MIB)
        with h5py.File(self.rank_file()) as file:
            self.assertEqual(file["Context/main()/x"][:].sum(), 7)
        self.assertIn("values 3.0 4.0 2 0", self.save(body, restart="newest"))

    def test_size(self):
        self.save("""
        x = numpy.random.default_rng(1).random(1 << 20)
        session.array("x", x)
        session.scalars(**{f"s{number}": number for number in range(20)})
        session.checkpoint(now=True)
""")
        self.assertLess(os.path.getsize(self.rank_file()), 1.01 * 8 * MIB)

    def test_what_is_unchanged_is_a_link_and_stays(self):
        body = """
        big = numpy.random.default_rng(1).random(1 << 17)
        state = session.scalars(step=0)
        session.array("big", big)
        while state.step < 9:
            session.checkpoint(now=not session.restarting)
            state.step += 1
"""
        for behind in ("no", "yes"):
            self.save(body, incremental="yes", full_every=4, keep=1, behind=behind, restart="none", watch=self.path("never"))
            numbers = self.checkpoints()
            with h5py.File(self.rank_file(numbers[-1])) as file:
                self.assertIsInstance(file["MemBlocks"].get("1", getlink=True), (h5py.ExternalLink, h5py.HardLink))
                self.assertEqual(file["Context/main()/big"].shape, (1 << 17,))
            links = []
            for number in numbers:
                with h5py.File(self.rank_file(number)) as file:
                    links.append(isinstance(file["MemBlocks"].get("1", getlink=True), h5py.ExternalLink))
            # The ninth of 1 + 4 + 4 is full; what was linked to before is gone, but not while it was linked to.
            self.assertEqual(links, [False], numbers)
            shutil.rmtree(self.path("checkpoints"))
        self.save(body.replace("< 9", "< 8"), incremental="yes", full_every=4, keep=1)
        self.assertEqual(self.checkpoints(), [5, 6, 7, 8])
        self.assertLess(os.path.getsize(self.rank_file(8)), MIB // 2)
        # Elsewhere as a whole it is whole.
        os.rename(self.path("checkpoints"), self.path("moved"))
        code, output = run(0, [PYTHON, "-c", "import mend_app, numpy\nwith mend_app.Session(program='files') as s, s.context('main'):\n    x = numpy.zeros(1 << 17)\n    print(s.scalars(step=0).step, s.array('big', x), x.sum() > 1)\n    s.checkpoint()"],
                           self.directory, restart="newest", directory="moved")
        self.assertEqual(code, 0, output)
        self.assertIn("7 True True", output)
        # And without what it links to, it isn't.
        shutil.rmtree(self.path("moved", "checkpoint-000005"))
        code, output = run(0, [PYTHON, "-c", "import mend_app\nmend_app.Session(program='files')"], self.directory, restart="newest", directory="moved")
        self.assertEqual(code, 1)
        self.assertIn("checkpoint 8 can't be used: ", output)
        self.assertIn("what it links to isn't there: rank 0's file of checkpoint 5", output)

    def test_checkpoints_that_come_faster_than_old_ones_are_removed(self):
        """The thread that removes them may be late by two: then the program waits for it."""
        slow = self.path("slow.so")
        subprocess.run([os.path.join(VENV, "bin", "mpicc"), "-shared", "-fPIC", self.write("slow.c", SLOW_REMOVAL), "-o", slow], check=True)
        with unittest.mock.patch.dict(os.environ, {"LD_PRELOAD": slow}):
            output = self.save("""
        import glob
        state = session.scalars(step=0)
        most = 0
        while state.step < 20:
            session.checkpoint(now=True)
            most = max(most, len(glob.glob("checkpoints/checkpoint-*")))
            state.step += 1
        print("at most", most)
""", keep=2)
        self.assertLessEqual(int(re.search(r"at most (\d+)", output).group(1)), 4)

    def test_what_is_written_behind_is_not_waited_for(self):
        held_back = self.path("held.so")
        subprocess.run([os.path.join(VENV, "bin", "mpicc"), "-shared", "-fPIC", self.write("held.c", HELD_BACK), "-o", held_back], check=True)
        with unittest.mock.patch.dict(os.environ, {"LD_PRELOAD": held_back}):
            output = self.save("""
        x = numpy.ones(100000)
        session.array("x", x)
        session.checkpoint(now=True)
        print("goes on", session.newest)
        for step in range(20):
            x += 1
            session.checkpoint()
        print("computed", session.newest, os.path.exists("checkpoints/checkpoint-000001/manifest"))
        open("go", "w").close()
        while not session.newest:
            session.checkpoint()
        print("complete", session.newest, x[0])
""", behind="yes")
        self.assertIn("goes on 0\ncomputed 0 False\n", output)
        self.assertIn("complete 1 21.0\n", output)
        with h5py.File(self.rank_file()) as file:
            self.assertEqual(set(file["Context/main()/x"][:]), {1.0})

    def test_filters(self):
        try:
            import hdf5plugin
        except ImportError:
            skip("zstd and lz4", "hdf5plugin isn't installed")
        body = """
        x = numpy.arange(1 << 18)
        session.array("x", x)
        session.checkpoint(now=not session.restarting)
        print("sum", x.sum())
"""
        sizes = {}
        os.environ["HDF5_PLUGIN_PATH"] = hdf5plugin.PLUGIN_PATH
        self.addCleanup(os.environ.pop, "HDF5_PLUGIN_PATH")
        for compress in ("none", "deflate", "zstd", "lz4"):
            self.save(body, compress=compress)
            sizes[compress] = os.path.getsize(self.rank_file())
            with h5py.File(self.rank_file()) as file:
                self.assertTrue((file["Context/main()/x"][:] == numpy.arange(1 << 18)).all())
            self.assertIn(f"sum {sum(range(1 << 18))}", self.save(body, restart="newest"))
            shutil.rmtree(self.path("checkpoints"))
        for compress in ("deflate", "zstd", "lz4"):
            self.assertLess(sizes[compress], sizes["none"] / 4)
        os.environ["HDF5_PLUGIN_PATH"] = "/nowhere"
        self.assertIn("compress = zstd: HDF5 finds no plug-in for filter 32015: name its directory in HDF5_PLUGIN_PATH", self.save(body, compress="zstd"))


class Opened(InDirectory):
    """Files of mend_app_fopen have the length and the position that they had, wherever that position is."""

    def contents(self):
        with open(self.path("out.txt"), encoding="utf-8") as file:
            return file.read()

    def test_lengths_and_positions(self):
        # With first = 5 a file that is appended to hasn't been touched at the checkpoint, and is at its start.
        for mode, first, at in (("w", 0, 7), ("w+", 0, 7), ("a", 0, 7), ("a+", 0, 7), ("a+", 5, 6), ("a", 5, 6), ("r+", 0, 7)):
            with self.subTest(mode=mode, first=first):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                self.write("out.txt", "from before\n")
                arguments = [program("lines"), mode, "9", str(first)]
                self.good(run(1, [*arguments, "-1"], self.directory, restart="none"))
                expected = self.contents()
                self.write("out.txt", "from before\n")
                self.assertNotEqual(run(1, [*arguments, str(at)], self.directory, restart="none", calls=5)[0], 0)
                self.assertEqual(self.checkpoints(), [5])
                with open(self.path("out.txt"), "a", encoding="utf-8") as file:
                    file.write("after the checkpoint\n")
                self.assertIn("checkpoint 5 of 1 ranks is restored", self.good(run(1, [*arguments, "-1"], self.directory)))
                self.assertEqual(self.contents(), expected)

    def test_a_file_that_ranks_share_is_not_cut(self):
        for shared, cut in (("shared", False), ("", True)):
            with self.subTest(shared=shared):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                self.write("out.txt", "from before\n")
                arguments = [program("lines"), "r+", "9", "8"]
                self.assertNotEqual(run(2, [*arguments, "7", shared], self.directory, calls=5)[0], 0)
                with open(self.path("out.txt"), "a", encoding="utf-8") as file:
                    file.write("after the checkpoint\n")
                self.good(run(2, [*arguments, "-1", shared], self.directory))
                self.assertEqual("after the checkpoint" in self.contents(), not cut, self.contents())

    def test_another_file_is_not_cut(self):
        arguments = [program("lines"), "w", "9", "0"]
        self.assertNotEqual(run(1, [*arguments, "7"], self.directory, calls=5)[0], 0)
        self.write("other.txt", "a longer text\n" * 9)
        code, output = run(1, [*arguments, "-1", "", "other.txt"], self.directory)
        self.assertNotEqual(code, 0)
        self.assertIn("file `out` was out.txt when checkpoint 5 was taken, and is other.txt now", output)
        with open(self.path("other.txt"), encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 9)

    def test_a_file_that_is_too_short(self):
        arguments = [program("lines"), "w", "9", "0"]
        self.assertNotEqual(run(1, [*arguments, "7"], self.directory, calls=5)[0], 0)
        self.write("out.txt", "lines      4\n")
        code, output = run(1, [*arguments, "-1"], self.directory)
        self.assertNotEqual(code, 0)
        self.assertIn("file `out` (out.txt) is shorter than when checkpoint 5 was taken: 41 bytes are needed", output)
        self.assertEqual(self.contents(), "lines      4\n")


class Hashes(InDirectory):
    def test_they_are_the_same_by_whatever_the_processor_has(self):
        source, program_path = os.path.join(ROOT, "app", "lib"), self.path("hashes")
        files = [os.path.join(source, *parts) for parts in (("tests", "hashes.c"), ("src", "hash.c"), ("src", "hash_avx2.c"))]
        subprocess.run(["gcc", "-std=c17", "-O2", f"-I{source}/src", f"-I{source}/include", "-isystem", f"{OUT}/hdf5/headers", *files, "-o", program_path], check=True)
        self.assertEqual(subprocess.run([program_path], capture_output=True, text=True, check=False).stdout, "equal\n")


# What changes something outside of the process.
CALLS = "openat,write,pwrite64,pwritev,fsync,fdatasync,rename,mkdir,ftruncate,unlink,rmdir,close,flock"


class Kills(InDirectory):
    def calls(self, trace):
        """Thread, call and path of each call on a file of the test's directory, in order."""
        with open(trace, encoding="utf-8") as file:
            found = [re.match(r'(\d+) +(\w+)\((?:\d+<([^>]*)>|(?:AT_FDCWD<[^>]*>, )?"([^"]*)")', line) for line in file]
        named = [(line[1], line[2], os.path.join(self.directory, line[3] or line[4])) for line in found if line]
        return [call for call in named if call[2].startswith(self.directory)]

    def test_sigkill_before_any_system_call(self):
        if not shutil.which("strace"):
            skip("SIGKILL before system calls", "strace isn't there")
        self.directory = os.path.realpath(self.directory)
        command = [program("templates"), "30"]
        expected = self.line(self.good(run(0, command, self.directory)), "templates ")
        random.seed(SEED)
        for settings in ({}, {"incremental": "yes", "behind": "yes"}):
            shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
            strace = ["strace", "-f", "-y", "-o", self.path("trace"), "-e", f"trace={CALLS}"]
            counted = self.good(run(0, [*strace, *command], self.directory, calls=8, **settings))
            self.assertIn("checkpoint 24 is complete", counted)
            calls = self.calls(self.path("trace"))
            first = next(number for number, (_, _, path) in enumerate(calls) if "checkpoint-000016" in path)
            writer = next(thread for thread, call, _ in calls if call == "pwrite64")
            self.assertEqual(writer != calls[0][0], "behind" in settings)
            killed, of_writer = 0, 0
            # Half of them in the thread that writes, whichever share of all calls is its own.
            own, others = ([at for at in range(first, len(calls)) if (calls[at][0] == writer) is is_own] for is_own in (True, False))
            drawn = random.sample(own, 7)
            drawn += random.sample(others, min(7, len(others)))
            for at in sorted(drawn):
                # strace counts each call of each thread by itself, and only those on the path.
                _, call, path = calls[at]
                when = calls[: at + 1].count(calls[at])
                shutil.rmtree(self.path("checkpoints"))
                os.remove(self.path("templates.log"))
                code, output = run(0, [*strace, "-P", path, "-e", f"inject={call}:signal=KILL:when={when}", *command], self.directory, calls=8, **settings)
                if code == 0:
                    # The thread that removes old checkpoints made fewer of these calls this time.
                    continue
                killed += 1
                of_writer += calls[at][0] == writer
                complete = [int(number) for number in re.findall(r"checkpoint (\d+) is complete", output)]
                again = self.good(run(0, command, self.directory, calls=8, **settings))
                self.assertEqual(self.line(again, "templates "), expected)
                restored = re.findall(r"checkpoint (\d+) of 1 ranks is restored", again)
                # Killed after it had ended, it begins anew.
                ended = os.path.exists(self.path("checkpoints", "ended")) and not restored
                if complete and not (ended and complete[-1] == 24):
                    self.assertTrue(restored, f"{call} {when}: {output}{again}")
                    self.assertGreaterEqual(int(restored[0]), complete[-1])
                self.assertNotIn("can't be used", again)
            self.assertGreaterEqual(killed, 8 if len(others) >= 7 else 4)
            self.assertGreaterEqual(of_writer, 4)

    def test_sigkill_of_ranks_at_any_time(self):
        command = [program("heat"), "20000", "60", "-p", "0", "2000"]
        expected = self.line(self.good(run(3, command, self.directory)), "heat digest")
        random.seed(SEED)
        for behind in ("no", "yes"):
            shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
            complete = 0
            for least in (15, 38):
                code, output = run(3, [*command, "-K", str(random.randint(least, least + 17))], self.directory, calls=5, behind=behind, incremental="yes")
                complete = max([complete, *(int(number) for number in re.findall(r"checkpoint (\d+) is complete", output))])
            output = self.good(run(3, command, self.directory, calls=5, behind=behind, incremental="yes"))
            self.assertEqual(self.line(output, "heat digest"), expected)
            self.assertNotIn("can't be used", output)
            self.assertGreaterEqual(max(int(number) for number in re.findall(r"checkpoint (\d+) of 3 ranks is restored", output)), complete)


if __name__ == "__main__":
    unittest.main()
