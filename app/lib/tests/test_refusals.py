"""What can't be saved or restored is refused with its cause and the way out, and loses nothing."""

import glob
import os
import re
import shutil
import subprocess
import unittest
import unittest.mock

import h5py

from programs import OUT, PYTHON, ROOT, SOURCES, InDirectory, program, run, skip

SAVE = """
import mend_app, numpy
with mend_app.Session(program="p 1") as session:
    with session.context("main"):
        state = session.scalars(step=5)
        x = numpy.arange(6, dtype=numpy.int64).reshape(2, 3)
        session.array("x", x)
        for _ in range(2):
            session.checkpoint(now=True)
            state.step += 1
"""
RESTORE = """
import mend_app, numpy
with mend_app.Session(program={program!r}) as session:
    with session.context({context!r}):
        state = session.scalars({scalars})
        x = numpy.zeros({shape}, dtype={dtype!r})
        {register}
        session.checkpoint()
    print("restored", state.step, x.ravel().tolist())
"""


def restore(program="p 1", context="main", scalars="step=0", shape=(2, 3), dtype="int64", register='session.array("x", x)'):
    return RESTORE.format(program=program, context=context, scalars=scalars, shape=shape, dtype=dtype, register=register)


class Changed(InDirectory):
    def setUp(self):
        super().setUp()
        self.good(self.python(SAVE))
        self.assertEqual(self.checkpoints(), [1, 2])

    def refused(self, script, *words, **settings):
        code, output = self.python(script, restart="newest", **settings)
        self.assertEqual(code, 1, output)
        for word in words:
            self.assertIn(word, output)
        self.assertNotIn("restored", output.replace("be restored", ""))
        self.assertEqual(self.checkpoints(), [1, 2])

    def test_an_unchanged_program_is_restored(self):
        output = self.good(self.python(restore(), restart="newest"))
        self.assertIn("restored 6 [0, 1, 2, 3, 4, 5]", output)
        output = self.good(self.python(restore(), restart="1"))
        self.assertIn("restored 5 ", output)

    def test_a_changed_program(self):
        self.refused(restore(program="p 2"), 'is of program "p 1", and this is "p 2"', "restart = none")
        self.refused(restore(scalars="step=0, more=1"), "has no variable `more` in context main", "restart = none")
        self.refused(restore(scalars="step=0.5"), "`step` in context main was int64 when", "is double now")
        self.refused(restore(shape=(3, 2)), "`x` in context main had the shape [2, 3]", "has [3, 2] now")
        self.refused(restore(register="pass"), "also holds `x`", "hasn't registered")
        self.refused(restore(context="other"), "has no variable `step` in context other")

    def test_an_error_is_raised_where_that_is_set(self):
        code, output = self.python(restore(shape=(3, 2)), restart="newest", on_error="return")
        self.assertEqual(code, 1)
        self.assertIn("mend_app._library.Error: `x` in context main had the shape", output)

    def test_numbers_that_do_not_fit(self):
        output = self.good(self.python(restore(dtype="int8"), restart="newest"))
        self.assertIn("restored 6 [0, 1, 2, 3, 4, 5]", output)
        self.good(self.python(SAVE.replace("numpy.arange(6, dtype=numpy.int64)", "(numpy.arange(6, dtype=numpy.int64) + 126)"), restart="none"))
        code, output = self.python(restore(dtype="int8"), restart="newest")
        self.assertEqual(code, 1)
        self.assertIn("element 2, as written with 8 bytes, can't be held exactly by int8 of 1 bytes here", output)

    def test_settings(self):
        for setting, word in (({"interval": "soon"}, "a number of seconds is needed"), ({"keep": "0"}, "at least 1"), ({"compress": "best"}, "none, deflate"),
                              ({"restart": "9"}, "has 2, 1: set restart to one of these, or restart = none to start anew"), ({"restart": "-1"}, "the number of a checkpoint, from 1 up"), ({"restart": "99999999999999999999"}, "the number of a checkpoint, from 1 up"),
                              ({"restart": str(2**64 - 1)}, "the number of a checkpoint, from 1 up"), ({"restart": "0"}, "the number of a checkpoint, from 1 up"), ({"join_seconds": "0"}, "join_seconds: at least 0.01"), ({"hold_seconds": "0"}, "hold_seconds: at least 0.01"), ({"signal": "HUP"}, "none, USR1 or USR2"), ({"behind": "maybe"}, "yes or no"),
                              ({"directory": "/proc/nowhere"}, "can't be"), ({"config": "absent.conf"}, "can't be read")):
            with self.subTest(**setting):
                code, output = self.python(restore(), **{"restart": "newest", **setting})
                self.assertEqual(code, 1, output)
                self.assertIn(word, output)
        with open(self.path("mend-app.conf"), "w", encoding="utf-8") as file:
            file.write("# mine\nkeep = 3\nkep = 4\n")
        code, output = self.python(restore())
        self.assertEqual(code, 1)
        self.assertIn("mend-app.conf, line 3: no setting is named kep; there are: directory, interval", output)
        output = self.good(self.python(restore(), config="/dev/null", intervall=600, library=os.path.join(OUT, "lib", "libmend-app.so"), home="/usr/local"))
        self.assertIn("MEND_APP_INTERVALL in the environment is no setting, and is ignored", output)
        self.assertEqual(output.count("is no setting"), 1, output)

    def test_numbers_where_the_program_has_a_decimal_comma(self):
        if not shutil.which("localedef") or not os.path.exists("/usr/share/i18n/locales/de_DE"):
            skip("a locale with a decimal comma", "localedef or its sources aren't there (apt-get install locales)")
        subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", self.path("de_DE.UTF-8")], check=True, capture_output=True)
        script = "import locale; locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8'); assert locale.format_string('%.1f', 0.5) == '0,5'; " + SAVE.replace("\nimport mend_app", "import mend_app")
        with unittest.mock.patch.dict(os.environ, {"LOCPATH": self.directory}):
            self.good(self.python(script, interval="0.5", restart="none"))
            code, output = self.python(script, interval="0,5", restart="none")
        self.assertEqual(code, 1, output)
        self.assertIn("interval = 0,5: a number of seconds is needed", output)

    def test_a_relative_path_where_the_program_is_nowhere(self):
        script = "import os, mend_app\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\nmend_app.Session()\n"
        code, output = run(0, [PYTHON, "-c", script], self.directory, directory=self.path("checkpoints"), watch="request")
        self.assertNotEqual(code, 0)
        self.assertIn("so request could be anywhere", output)

    def test_a_file_of_settings(self):
        self.write("mend-app.conf", "#quiet = yes\ndirectory = run#3 # mine\n  # and\nkeep = 1\t#one\n")
        self.good(self.python(SAVE, restart="none"))
        self.assertEqual([name for name in os.listdir(self.path("run#3")) if name.startswith("checkpoint-")], ["checkpoint-000002"])
        os.remove(self.path("mend-app.conf"))
        os.symlink("mend-app.conf", self.path("mend-app.conf"))
        code, output = self.python(restore())
        self.assertEqual(code, 1, output)
        self.assertIn("the configuration mend-app.conf can't be read: Too many levels of symbolic links", output)
        code, output = self.python(restore(), config=self.path("run#3"))
        self.assertEqual(code, 1, output)
        self.assertIn("run#3 can't be read: Is a directory", output)

    def test_a_set_aside_checkpoint_is_never_passed_over_in_silence(self):
        """The only one is damaged, which is seen when a value is restored."""
        large = SAVE.replace("numpy.arange(6, dtype=numpy.int64).reshape(2, 3)", "numpy.arange(40000, dtype=numpy.int64).reshape(2, 20000)")
        self.good(self.python(large, restart="none", keep=1))
        (number,) = self.checkpoints()
        path = self.path("checkpoints", f"checkpoint-{number:06}", "rank-00000.h5")
        with h5py.File(path) as file:
            offset = file["Context/main()/x"].id.get_offset()
        with open(path, "r+b") as file:
            file.seek(offset + 100)
            file.write(b"wrong")
        again = {"restart": "newest", "verify": "values", "keep": 1}
        code, output = self.python(restore(shape=(2, 20000)), **again)
        self.assertEqual((code, self.checkpoints()), (1, []), output)
        self.assertIn("is set aside", output)
        code, output = self.python(restore(shape=(2, 20000)), **again)
        self.assertEqual(code, 1, output)
        self.assertIn(f"checkpoint {number} was found damaged, and is set aside: set restart = none to start anew", output)
        self.assertNotIn("restored 0", output)
        self.assertTrue(os.path.exists(path))
        self.good(self.python(SAVE, restart="none"))

    def test_two_runs_in_one_directory(self):
        script = SAVE.replace("with session.context", "import subprocess, sys\n    if len(sys.argv) < 2: print(subprocess.run([sys.executable, '-c', open('s.py').read(), 'again'], capture_output=True, text=True).stderr)\n    with session.context")
        with open(self.path("s.py"), "w", encoding="utf-8") as file:
            file.write(script)
        output = self.good(self.python(script, restart="none"))
        self.assertIn("another run uses the directory checkpoints now", output)


class Unreadable(InDirectory):
    """What can't be read now may be whole: nothing is set aside or removed, and no run begins anew."""

    LARGE = SAVE.replace("numpy.arange(6, dtype=numpy.int64).reshape(2, 3)", "numpy.arange(4096, dtype=numpy.int64).reshape(2, 2048)")

    def files(self, where="."):
        return sorted(os.path.join(path, name) for path, _, names in os.walk(self.path(where)) for name in names if name.startswith(("rank-", "manifest")))

    def refused(self, *words, script=restore(shape=(2, 2048)), **settings):
        before = self.files()
        code, output = self.python(script, **{"restart": "newest", **settings})
        self.assertEqual(code, 1, output)
        for word in words:
            self.assertIn(word, output)
        self.assertNotIn("set aside", output)
        self.assertEqual(self.files(), before)

    def test_a_plug_in_that_is_missing(self):
        try:
            import hdf5plugin
        except ImportError:
            skip("a missing plug-in", "hdf5plugin isn't installed")
        # A node's own files, too, of which a bad copy would be removed.
        os.makedirs(self.path("requests", "fast"))
        self.write("requests/tiers", "job = 1\ntiers = memory,shared\n")
        self.write("requests/fast/node", "node = here\n")
        for tiers in ({}, {"requests": self.path("requests")}):
            with unittest.mock.patch.dict(os.environ, {"HDF5_PLUGIN_PATH": hdf5plugin.PLUGIN_PATH}):
                # An older one that needs no plug-in isn't used in the others' place.
                self.good(self.python(self.LARGE, restart="none"))
                self.good(self.python(self.LARGE, restart="none", compress="zstd", keep=4, **tiers))
            with unittest.mock.patch.dict(os.environ, {"HDF5_PLUGIN_PATH": "/nowhere"}):
                for verify in ("start", "values", "no"):
                    with self.subTest(verify=verify, tiers=tiers):
                        self.refused("`x` is compressed by filter 32015 (zstd), for which HDF5 finds no plug-in here: name its directory in HDF5_PLUGIN_PATH", verify=verify, **tiers)
            with unittest.mock.patch.dict(os.environ, {"HDF5_PLUGIN_PATH": hdf5plugin.PLUGIN_PATH}):
                self.assertIn("restored 6 ", self.good(self.python(restore(shape=(2, 2048)), restart="newest", **tiers)))
        self.assertTrue(any("requests/fast/own" in name for name in self.files()))

    def test_a_file_that_can_not_be_read(self):
        self.good(self.python(self.LARGE))
        for name, word in (("rank-00000.seal", "rank-00000.seal can't be read: Is a directory"), ("rank-00000.h5", "rank-00000.h5"), ("manifest", "it can't be read: Is a directory")):
            path = self.path("checkpoints", "checkpoint-000002", name)
            for verify in ("start", "values"):
                with self.subTest(name=name, verify=verify):
                    os.rename(path, self.path("kept"))
                    os.mkdir(path)
                    if name == "rank-00000.h5":
                        # As long as the file was: only reading it fails.
                        os.rmdir(path)
                        os.symlink(path, path)
                        word = "Too many levels of symbolic links"
                    self.refused(word, verify=verify)
                    os.remove(path) if os.path.islink(path) else os.rmdir(path)
                    os.rename(self.path("kept"), path)
        self.assertIn("restored 6 ", self.good(self.python(restore(shape=(2, 2048)), restart="newest")))

    def test_a_disk_that_fails(self):
        if not shutil.which("strace"):
            skip("a disk that fails", "strace isn't there")
        self.good(self.python(self.LARGE.replace("4096", "400000").replace("2048", "200000")))
        script = self.write("again.py", restore(shape=(2, 200000)))
        watched = ["strace", "-f", "-P", self.path("checkpoints", "checkpoint-000002", "rank-00000.h5"), "-e", "trace=pread64"]
        for verify, last in (("start", False), ("start", True), ("values", True), ("no", True)):
            with self.subTest(verify=verify, last=last):
                # The first read is the seal's, the last one is of the values.
                self.good(run(0, [*watched, "-o", self.path("reads"), PYTHON, script], self.directory, restart="newest", verify=verify))
                with open(self.path("reads"), encoding="utf-8") as file:
                    reads = sum("pread64(" in line for line in file)
                os.remove(self.path("reads"))
                before = self.files()
                command = [*watched, "-o", "/dev/null", "-e", f"inject=pread64:error=EIO:when={reads if last else 1}+", PYTHON, script]
                code, output = run(0, command, self.directory, restart="newest", verify=verify)
                self.assertEqual(code, 1, output)
                self.assertIn("Input/output error", output)
                self.assertEqual(self.files(), before)
        self.assertIn("restored 6 ", self.good(run(0, [PYTHON, script], self.directory, restart="newest")))


class Damaged(InDirectory):
    def setUp(self):
        super().setUp()
        code, _ = run(2, [program("heat"), "3000", "60", "-k", "45"], self.directory, calls=20)
        self.assertNotEqual(code, 0)
        self.assertEqual(self.checkpoints(), [20, 40])
        self.whole = self.path("whole")
        shutil.copytree(self.path("checkpoints"), self.whole)
        self.expected = self.line(self.good(run(1, [program("heat"), "3000", "60"], self.directory, restart="none", directory="elsewhere")), "heat digest")

    def repair(self):
        shutil.rmtree(self.path("checkpoints"))
        shutil.copytree(self.whole, self.path("checkpoints"))

    def damage(self, name, change):
        path = self.path("checkpoints", name)
        with open(path, "r+b") as file:
            data = bytearray(file.read())
            data = change(data)
            file.seek(0)
            file.truncate()
            file.write(data)

    def test_an_older_whole_checkpoint_is_used_saying_so(self):
        def flip(data, at=None):
            data[len(data) // 2 if at is None else at] ^= 1
            return data

        newest = "checkpoint-000040"
        cases = {f"{newest}/manifest": [flip, lambda data: data[:-7], lambda data: data[:0], lambda data: data + b"x"],
                 f"{newest}/rank-00001.h5": [flip, lambda data: data[: len(data) // 2], lambda data: data[:0], lambda data: flip(data, 9), lambda data: flip(data, 60), lambda data: flip(data, 700)]}
        for name, changes in cases.items():
            for number, change in enumerate(changes):
                with self.subTest(name=name, number=number):
                    self.repair()
                    self.damage(name, change)
                    output = self.good(run(2, [program("heat"), "3000", "60"], self.directory))
                    self.assertIn("checkpoint 40 can't be used: ", output)
                    self.assertIn("checkpoint 20 is used instead: it is older, and whole", output)
                    self.assertIn("goes on at step 19", output)
                    self.assertEqual(self.line(output, "heat digest"), self.expected)
        self.repair()
        os.remove(self.path("checkpoints", newest, "rank-00000.h5"))
        output = self.good(run(3, [program("heat"), "3000", "60"], self.directory))
        self.assertIn("isn't there", output)
        self.assertEqual(self.line(output, "heat digest"), self.expected)

    def test_a_damaged_checkpoint_does_not_take_the_place_of_a_whole_one(self):
        self.damage("checkpoint-000040/rank-00001.h5", lambda data: data[:-1])
        code, _ = run(2, [program("heat"), "3000", "60", "-K", "41"], self.directory, calls=20)
        self.assertNotEqual(code, 0)
        self.assertEqual(len(self.checkpoints()), 2)
        self.damage(f"checkpoint-{self.checkpoints()[-1]:06}/rank-00000.h5", lambda data: data[:-1])
        output = self.good(run(2, [program("heat"), "3000", "60"], self.directory))
        self.assertIn("goes on at step 19", output)
        self.assertEqual(self.line(output, "heat digest"), self.expected)

    def test_values_compared_when_they_are_restored(self):
        large = [program("heat"), "40000", "60"]
        shutil.rmtree(self.path("checkpoints"))
        self.assertNotEqual(run(2, [*large, "-k", "45"], self.directory, calls=20)[0], 0)
        with h5py.File(self.path("checkpoints", "checkpoint-000040", "rank-00001.h5")) as file:
            offset = file["Context/main()/u"].id.get_offset()
        self.damage("checkpoint-000040/rank-00001.h5", lambda data: data[: offset + 100] + bytes([data[offset + 100] ^ 1]) + data[offset + 101:])
        code, output = run(2, large, self.directory, verify="values")
        self.assertNotEqual(code, 0)
        self.assertIn("`u` in context main: ", output)
        self.assertIn("Checkpoint 40 is set aside: start the program again, and an older one is used", output)
        output = self.good(run(2, large, self.directory, verify="values"))
        self.assertIn("goes on at step 19", output)
        expected = self.good(run(1, large, self.directory, restart="none", directory="elsewhere"))
        self.assertEqual(self.line(output, "heat digest"), self.line(expected, "heat digest"))

    def test_every_part_of_a_file_is_watched(self):
        """Bits all over a file, others with each commit: each is noticed, or says nothing (what HDF5 doesn't use)."""
        name = "checkpoint-000040/rank-00001.h5"
        size = os.path.getsize(self.path("checkpoints", name))
        step, wrong = size // 12, []
        for at in range(int(os.environ.get("MEND_TEST_SEED", "1")) % step, size, step):
            self.repair()
            self.damage(name, lambda data: data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:])
            code, output = run(2, [program("heat"), "3000", "60"], self.directory)
            if code != 0 or self.line(output, "heat digest") != self.expected:
                wrong.append((at, output))
        self.assertEqual(wrong, [])

    def test_none_is_whole(self):
        for name in ("checkpoint-000020", "checkpoint-000040"):
            self.damage(f"{name}/manifest", lambda data: data[:-1])
        code, output = run(2, [program("heat"), "3000", "60"], self.directory)
        self.assertNotEqual(code, 0)
        self.assertRegex(output, "no checkpoint in .*/checkpoints is whole: set restart = none to start anew")
        self.assertNotIn("heat digest", output)

    def test_private_variables_want_the_same_number_of_ranks(self):
        self.good(run(2, [program("loops"), "30", "0"], self.directory, calls=10, directory="private"))
        code, output = run(3, [program("loops"), "30", "0"], self.directory, directory="private", restart="newest")
        self.assertNotEqual(code, 0)
        self.assertIn("is of 2 ranks, and these are 3: `call` in context loop is private to each rank", output)

    def test_files_want_the_same_number_of_ranks(self):
        """Also that of a rank in whose place nobody comes: it isn't emptied."""
        # After its seventh call a rank that outlives the end of the job writes nothing.
        self.assertNotEqual(run(4, [program("lines"), "w", "9", "0", "7"], self.directory, calls=7, directory="files")[0], 0)
        with open(self.path("out.txt"), encoding="utf-8") as file:
            before = file.read()
        for ranks in (2, 6):
            code, output = run(ranks, [program("lines"), "w", "9", "0", "-1"], self.directory, directory="files")
            self.assertNotEqual(code, 0, output)
            self.assertIn(f"it is of 4 ranks, and these are {ranks}: file `out` (out.txt) was open on rank 3. Close such files before checkpoints, or restart on 4 ranks", output)
            with open(self.path("out.txt"), encoding="utf-8") as file:
                self.assertEqual(file.read(), before)
        self.assertIn("lines end 9", self.good(run(4, [program("lines"), "w", "9", "0", "-1"], self.directory, directory="files")))


class Starts(InDirectory):
    """One rank's trouble at the start: the others say so, and the program may start again."""

    SCRIPT = """
import os, mend_app
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
if {before}:
    os.makedirs("b", exist_ok=True)
    os.chdir("b")
if {setting} and rank == 1:
    os.environ["MEND_APP_KEEP"] = "0"
try:
    mend_app.Session(MPI.COMM_WORLD, program="p").close()
except mend_app.Error as error:
    print(f"rank {{rank}} has: {{error}}", flush=True)
os.environ["MEND_APP_KEEP"] = "1"
os.environ["MEND_APP_DIRECTORY"] = {directory!r}
MPI.COMM_WORLD.Barrier()
mend_app.Session(MPI.COMM_WORLD, program="p").close()
print(f"rank {{rank}} ends", flush=True)
"""

    def test_a_directory_that_one_rank_does_not_see(self):
        output = self.good(run(2, [PYTHON, "-c", self.SCRIPT.format(before="rank == 1", setting=False, directory=self.path("seen"))], self.directory))
        self.assertIn("rank 1 has: rank 1: the directory checkpoints isn't seen by this rank", output)
        self.assertIn("rank 0 has: rank 0: another rank couldn't start and says why", output)
        self.assertEqual(output.count(" ends"), 2, output)

    def test_a_setting_that_one_rank_has(self):
        output = self.good(run(2, [PYTHON, "-c", self.SCRIPT.format(before=False, setting=True, directory="checkpoints")], self.directory))
        self.assertIn("rank 1 has: rank 1: keep = 0: at least 1", output)
        self.assertIn("rank 0 has: rank 0: another rank couldn't start and says why", output)
        self.assertNotIn("another run uses", output)
        self.assertEqual(output.count(" ends"), 2, output)

    def test_a_program_that_has_another_name_on_one_rank(self):
        script = """
import os, mend_app
from mpi4py import MPI
world = MPI.COMM_WORLD
with mend_app.Session(world, program=f"p{world.rank}") as session:
    session.checkpoint(now=True)
try:
    mend_app.Session(world, program=f"p{world.rank}{world.rank}"[:2 + world.rank])
    print("started", flush=True)
    world.Abort(1)
except mend_app.Error as error:
    print(f"rank {world.rank} has: {error}", flush=True)
"""
        output = self.good(run(2, [PYTHON, "-c", script], self.directory, restart="newest", on_error="return"))
        self.assertIn('rank 1 has: rank 1: checkpoint 1: it is of program "p1", and this is "p11": set restart = none to start anew', output)
        self.assertIn("rank 0 has: rank 0: another rank couldn't start, or can't restore checkpoint 1 here, and says why", output)


class Named(InDirectory):
    def test_communicators_that_can_not_be_made(self):
        lines = self.good(run(1, [program("named")], self.directory)).splitlines()
        said = {line.split(":")[0]: line for line in lines if not line.startswith("mend-app: ")}
        for what, code, word in (("early", -1, "communicator `early`: mend_app_init_mpi comes first"), ("null", -3, "mend_app_init_mpi: the communicator can't be duplicated: MPI says: "),
                                 ("many", -3, "can't make communicator `row`: MPI says: "), ("foreign", -1, "communicator `other`: it can be made of mend_app_world()"),
                                 ("dimensions", -1, "communicator `cart`: 1 to 8 dimensions"), ("twice", -1, "communicator `row`: there is one of that name already")):
            self.assertRegex(said[what], f"^{what}: {code} .*{re.escape(word)}")
            self.assertTrue(any(line.startswith("mend-app: ") and word in line for line in lines), lines)
        self.assertEqual(said["row"], "row: 0")

    def test_those_of_python(self):
        script = """
import mend_app
from mpi4py import MPI
with mend_app.Session(MPI.COMM_WORLD, program="named 1") as session:
    session.world.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        session.cart("row", session.world, [99])
    except MPI.Exception:
        print("refused")
    print("row", session.split("row", session.world).size)
"""
        self.assertIn("refused\nrow 1\n", self.good(run(1, [PYTHON, "-c", script], self.directory)))


class Mutated(InDirectory):
    def test_nothing_that_was_changed_is_parsed_or_taken(self):
        """Under sanitizers: HDF5 crashes on damaged metadata, so that it must not see any."""
        library = os.path.join(ROOT, "app", "lib")
        flags = ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-std=c17", "-D_GNU_SOURCE", f"-I{library}/include", f"-I{library}/src", "-isystem", f"{OUT}/hdf5/headers", "-pthread"]
        command = ["gcc", *flags, os.path.join(SOURCES, "mutate.c"), *glob.glob(f"{library}/src/*.c"), f"{OUT}/hdf5/bin/libhdf5.a", "-lz", "-lm", "-ldl", "-o", self.path("mutate")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "asan" in done.stderr:
            skip("damaged files under sanitizers", "this compiler has none")
        self.assertEqual(done.returncode, 0, done.stderr)
        script = SAVE.replace("session.array(\"x\", x)", "session.array('x', x); session.array('big', numpy.random.default_rng(1).random(30000)); session.array('sparse', numpy.arange(400000) // 399999)")
        self.good(self.python(script, incremental="yes"))
        seed = os.environ.get("MEND_TEST_SEED", "1")
        for number in ("1", "2"):
            output = self.good(run(0, [self.path("mutate"), "checkpoints", number, seed, "150"], self.directory))
            self.assertIn(" refused, ", output)


class Memory(InDirectory):
    def test_pointers_and_overlaps(self):
        script = """
import ctypes, mend_app, numpy
from mend_app import _library as library
with mend_app.Session() as session:
    x = numpy.arange(8.0)
    pointer = (ctypes.c_void_p * 1)(x.ctypes.data + {at})
    if {register}:
        session.array("x", x)
    library.check("mend_app_variable", b"pointer", ctypes.addressof(pointer), 15, 0, None, 0)
    if {overlap}:
        session.array("part", x[2:{overlap}])
        library.check("mend_app_variable", b"whole", x.ctypes.data + 8, 10, 1, (ctypes.c_uint64 * 1)(5), 0)
    print("taken", session.checkpoint(now=True), session.newest)
"""
        for values, word in (({"at": 16, "register": 1, "overlap": 0}, "taken taken 1"), ({"at": 64, "register": 1, "overlap": 0}, "taken taken 1"),
                             ({"at": 16, "register": 0, "overlap": 0}, "points outside of all that is registered"), ({"at": 65, "register": 1, "overlap": 0}, "points outside"),
                             ({"at": 12, "register": 1, "overlap": 0}, "points into the middle of an element"), ({"at": 16, "register": 1, "overlap": 4}, "taken taken 1"),
                             ({"at": 16, "register": 0, "overlap": 7}, "overlap in memory, but neither lies within the other")):
            with self.subTest(**values):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                output = self.good(self.python(script.format(**values), restart="none"))
                self.assertIn(word, output)
                if "taken taken" not in word:
                    self.assertIn("taken None 0", output)
                    self.assertEqual(self.checkpoints(), [])

    def test_what_points_into_or_lies_in_an_array_that_is_spread_anew(self):
        script = """
import ctypes, mend_app, numpy
from mend_app import _library as library
with mend_app.Session() as session:
    indices = numpy.arange({first}, {last}, {step}, dtype=numpy.uint64)
    x = numpy.where(session.restarting, -1.0, indices.astype(float))
    pointer = (ctypes.c_void_p * 1)(x.ctypes.data + {at})
    register = dict(x=lambda: session.array("x", x, mend_app.listed(8, indices)), part=lambda: session.array("part", x[2:4]),
                    pointer=lambda: library.check("mend_app_variable", b"pointer", ctypes.addressof(pointer), 15, 0, None, 0))
    for name in {names}:
        register[name]()
    print(session.checkpoint(now=not session.restarting), x.tolist(), (pointer[0] - x.ctypes.data), flush=True)
    import os; os._exit(0)
"""
        straight, turned = {"first": 0, "last": 8, "step": 1}, {"first": 7, "last": -1, "step": -1}
        for at, names, word in ((24, ("x", "pointer"), "pointer `pointer` points into `x`, which is spread over the ranks otherwise now"), (0, ("x", "pointer"), ""), (0, ("pointer", "x"), ""),
                                (24, ("pointer", "x"), "pointer `pointer` points into `x`"), (0, ("x", "part"), "`part` lay in the memory of `x`"), (0, ("part", "x"), "`part` lay in the memory of `x`")):
            with self.subTest(at=at, names=names):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                self.good(self.python(script.format(**straight, at=at, names=names)))
                if names[0] == "x":
                    output = self.good(self.python(script.format(**straight, at=at, names=names)))
                    self.assertIn(f"restored [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0] {at}", output)
                code, output = self.python(script.format(**turned, at=at, names=names))
                if word:
                    self.assertEqual(code, 1, output)
                    self.assertIn(word, output)
                else:
                    self.assertIn("restored [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0] 0", output)

    def test_a_full_disk_keeps_what_was_there(self):
        if os.geteuid() != 0 and subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True, check=False).returncode:
            skip("a full disk", "no user namespaces here")
        script = """
import mend_app, numpy, os, time
x = numpy.random.default_rng(1).random(300000)
def descriptors():
    # The library's thread has a directory open now and then: what all of these have seen stays.
    seen = []
    for _ in range(20):
        seen.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.01)
    return min(seen)
with mend_app.Session(configuration="c.conf") as session:
    session.array("x", x)
    print(session.checkpoint(now=True), flush=True)
    before = descriptors()
    with open("small/ballast", "wb") as ballast:
        ballast.write(bytes(5 << 20))
        for _ in range(5):
            print(session.checkpoint(now=True), session.newest, flush=True)
    os.remove("small/ballast")
    x += 1
    print(session.checkpoint(now=True), session.newest, descriptors() - before, flush=True)
"""
        with open(self.path("s.py"), "w", encoding="utf-8") as file:
            file.write(script)
        with open(self.path("c.conf"), "w", encoding="utf-8") as file:
            file.write("directory = small/checkpoints\n")
        os.mkdir(self.path("small"))
        inside = f"mount -t tmpfs -o size=8m tmpfs small && {PYTHON} s.py"
        command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c", inside]
        output = self.good(run(0, command, self.directory))
        self.assertEqual(re.findall(r"^(?:taken|None).*$", output, re.M), ["taken", *["None 1"] * 5, "taken 7 0"], output)
        self.assertIn("No space left on device", output)


if __name__ == "__main__":
    unittest.main()
