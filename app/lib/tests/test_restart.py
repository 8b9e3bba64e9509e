"""Restarts: the last line is that of an undisturbed run, on the same number of ranks and on others, from C, C++, Fortran and Python."""

import os
import random
import shutil
import subprocess
import sys
import unittest

import h5py

from programs import OUT, PYTHON, ROOT, SOURCES, InDirectory, environment, program, run

SEED = int(os.environ.get("MEND_TEST_SEED", "1"))


class Heat(InDirectory):
    def digest(self, ranks, *arguments, **settings):
        return self.line(self.good(run(ranks, [program("heat"), *arguments], self.directory, **settings)), "heat digest")

    def test_any_number_of_ranks_goes_on_exactly(self):
        expected = self.digest(1, "997", "60")
        random.seed(SEED)
        for before, after in ((3, 1), (1, 4), (random.randint(1, 5), random.randint(1, 6))):
            with self.subTest(before=before, after=after):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                code, _ = run(before, [program("heat"), "997", "60", "-k", "47"], self.directory, calls=20)
                self.assertNotEqual(code, 0)
                self.assertEqual(self.checkpoints(), [20, 40])
                output = self.good(run(after, [program("heat"), "997", "60"], self.directory, calls=20))
                self.assertIn("heat: goes on at step 39", output)
                self.assertEqual(self.line(output, "heat digest"), expected)

    def test_written_behind_incremental_compressed_restarted_twice(self):
        expected = self.digest(1, "50000", "80")
        for settings in ({"behind": "yes", "compress": "deflate:1"}, {"incremental": "yes", "behind": "yes"}, {"incremental": "yes", "full_every": "2", "keep": "1"}):
            with self.subTest(**settings):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                self.assertNotEqual(run(2, [program("heat"), "50000", "80", "-k", "33"], self.directory, calls=10, **settings)[0], 0)
                # Again from there, with a kill, on another number of ranks.
                self.assertNotEqual(run(3, [program("heat"), "50000", "80", "-K", "57"], self.directory, calls=10, **settings)[0], 0)
                output = self.good(run(3, [program("heat"), "50000", "80"], self.directory, calls=10, **settings))
                self.assertEqual(self.line(output, "heat digest"), expected)

    def test_a_run_that_ended_well_is_not_continued(self):
        self.good(run(2, [program("heat"), "100", "40"], self.directory, calls=10))
        output = self.good(run(2, [program("heat"), "100", "40"], self.directory))
        self.assertNotIn("goes on", output)
        output = self.good(run(2, [program("heat"), "100", "60"], self.directory, restart="newest"))
        self.assertIn("heat: goes on at step 39", output)
        self.assertEqual(self.line(output, "heat digest"), self.digest(1, "100", "60", restart="none"))

    def test_checkpoints_of_a_run_that_ended_are_removed(self):
        expected = self.digest(2, "100", "60", restart="none")
        self.good(run(2, [program("heat"), "100", "60"], self.directory, calls=10))
        for number in self.checkpoints():
            shutil.rmtree(self.path("checkpoints", f"checkpoint-{number:06}"))
        # Its numbers aren't those of the run that ended.
        self.assertNotEqual(run(2, [program("heat"), "100", "60", "-k", "35"], self.directory, calls=10)[0], 0)
        output = self.good(run(2, [program("heat"), "100", "60"], self.directory))
        self.assertIn("heat: goes on at step 29", output)
        self.assertEqual(self.line(output, "heat digest"), expected)


class Ghosts(InDirectory):
    def test_elements_that_several_ranks_list_must_be_equal(self):
        ghosts = [program("ghosts")]
        self.good(run(2, ghosts, self.directory))
        for ranks, unequal in ((1, -2), (3, -2), (2, 1)):
            output = self.good(run(ranks, ghosts, self.directory, restart="newest", on_error="return"))
            self.assertEqual(output.count(f"equal 1, unequal {unequal}\n"), ranks, output)
            self.assertEqual("array `unequal`: element [4] was saved by several ranks, with different values: register" in output, unequal < 0, output)


class Files(InDirectory):
    def test_a_header_is_read_again_on_the_way_and_lines_go_on(self):
        self.write("in.txt", "lines 9\n" + "".join(f"line {step}\n" for step in range(9)))
        reader = [program("lines"), "r", "9", "0"]
        self.assertNotEqual(run(1, [*reader, "7", "", "in.txt"], self.directory, calls=5)[0], 0)
        output = self.good(run(1, [*reader, "-1", "", "in.txt"], self.directory))
        self.assertIn("checkpoint 5 of 1 ranks is restored", output)
        self.assertIn("lines end 9", output)


class Grid(InDirectory):
    def test_two_dimensions_that_are_spread(self):
        self.assertIn("grid write: 0 wrong", self.good(run(4, [program("grid"), "2", "2", "write"], self.directory)))
        for down, across in ((3, 1), (1, 3)):
            with self.subTest(down=down, across=across):
                output = self.good(run(down * across, [program("grid"), str(down), str(across), "check"], self.directory, restart=1))
                self.assertIn("grid check: 0 wrong", output)


class Languages(InDirectory):
    def killed_and_restarted(self, before, after, command, kill, **settings):
        expected = self.good(run(before, command, self.directory))
        code, output = run(before, [*command, kill], self.directory, calls=10, **settings)
        self.assertNotEqual(code, 0, output)
        self.assertTrue(self.checkpoints(), output)
        output = self.good(run(after, command, self.directory, calls=10, **settings))
        self.assertIn("goes on at step", output)
        start = command[-2] if command[-1].isdigit() else command[-1]
        word = os.path.basename(start).split(".")[0]
        self.assertEqual(self.line(output, f"{word} "), self.line(expected, f"{word} "))

    def test_cpp(self):
        self.killed_and_restarted(0, 0, [program("templates"), "30"], "27")
        with open(self.path("templates.log"), encoding="utf-8") as log:
            self.assertEqual(log.read(), "".join(f"step {step}\n" for step in range(30)))

    def test_python(self):
        walk = os.path.join(SOURCES, "walk.py")
        self.killed_and_restarted(2, 3, [PYTHON, walk, "40"], "35")

    def test_fortran(self):
        plate, mpiexec = program("plate"), shutil.which("mpiexec.mpich")
        expected = self.line(self.good(run(2, [plate], self.directory, mpiexec)), "plate digest")
        for after in (2, 3):
            shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
            self.assertNotEqual(run(2, [plate, "45"], self.directory, mpiexec, calls=20)[0], 0)
            output = self.good(run(after, [plate], self.directory, mpiexec, calls=20))
            self.assertIn("plate: goes on at step 39", output)
            self.assertEqual(self.line(output, "plate digest"), expected)


class Elsewhere(InDirectory):
    def goes_on_with(self, library):
        heat = program(f"heat.{library}")
        self.assertNotEqual(run(3, [program("heat"), "997", "60", "-k", "47"], self.directory, calls=20)[0], 0)
        output = self.good(run(2, [heat, "997", "60"], self.directory, shutil.which(f"mpiexec.{library}"), calls=20))
        self.assertIn("heat: goes on at step 39", output)
        expected = self.good(run(1, [program("heat"), "997", "60"], self.directory, restart="none"))
        self.assertEqual(self.line(output, "heat digest"), self.line(expected, "heat digest"))

    def test_another_release_of_mpich(self):
        self.goes_on_with("mpich")

    def test_open_mpi(self):
        self.goes_on_with("openmpi")

    def test_a_program_that_changes_its_directory(self):
        script = """
import os, mend_app
with mend_app.Session() as session:
    state = session.scalars(step=3)
    os.chdir("/")
    session.request()
    for _ in range(3):
        session.checkpoint()
    print("step", state.step, session.newest > 0)
"""
        self.assertIn("step 3 True", self.good(self.python(script)))
        self.assertIn("step 3 True", self.good(self.python(script.replace("step=3", "step=0"), restart="newest")))


    def test_a_session_after_one_that_an_error_ended(self):
        script = """
import mend_app
for attempt in (1, 2):
    try:
        with mend_app.Session() as session, session.context("main"):
            state = session.scalars(step=0)
            while state.step < 6:
                session.checkpoint(now=not session.restarting)
                state.step += 1
                if attempt == 1 and state.step == 4:
                    raise ValueError("as it happens")
            print("attempt", attempt, "ends at", state.step, "newest", session.newest)
    except ValueError as error:
        print("raised", error)
"""
        output = self.good(self.python(script, behind="yes"))
        self.assertIn("raised as it happens", output)
        self.assertRegex(output, "checkpoint [34] of 1 ranks is restored")
        self.assertIn("attempt 2 ends at 6", output)


class Python(InDirectory):
    def test_numbers_of_numpy_and_negative_ones(self):
        output = self.good(self.python("""
import numpy, mend_app
n = numpy.int64
print(mend_app.block(n(10), n(2), numpy.uint32(3), n(1), after=n(1)).extent, mend_app.whole(n(4)).extent, mend_app.cyclic(n(10), n(2), n(0), n(2)).extent, mend_app.listed(n(9), [1, 2]).extent)
for call in (lambda: mend_app.whole(-1), lambda: mend_app.listed(n(-3), [1]), lambda: mend_app.block(10, 2.5, 3)):
    try:
        print(call())
    except (ValueError, TypeError) as error:
        print(type(error).__name__, error)
"""))
        self.assertEqual(output.splitlines()[0], "5 4 6 2")
        self.assertEqual([line.split(":")[0] for line in output.splitlines()[1:3]], ["ValueError -1", "ValueError -3"])
        self.assertIn("TypeError", output.splitlines()[3])

    def test_names_of_two_contexts_and_an_exception(self):
        """Memory stays as long as the library has it, and a context is left however that happens."""
        output = self.good(self.python("""
import gc, weakref, numpy, mend_app
class Array(numpy.ndarray): pass
def array(): return numpy.zeros(100).view(Array)
with mend_app.Session(program="names") as session:
    with session.context("main"):
        outer = array()
        session.array("x", outer)
        outer_is = weakref.ref(outer)
        del outer
        with session.context("inner"):
            inner = array()
            session.array("x", inner)
            inner_is = weakref.ref(inner)
            del inner
            gc.collect()
            print("both", outer_is() is not None, inner_is() is not None)
        gc.collect()
        print("left", outer_is() is not None, inner_is() is not None)
        for _ in range(2):
            try:
                with session.context("inner"):
                    session.array("y", array())
                    raise KeyError("no")
            except KeyError:
                pass
        session.checkpoint(now=True)
        print("taken", session.newest)
"""))
        self.assertIn("both True True\nleft True False\n", output)
        self.assertIn("taken 1", output)
        with h5py.File(self.path("checkpoints", "checkpoint-000001", "rank-00000.h5")) as file:
            self.assertEqual(file["Header"].attrs["Contexts"], b"main")
            self.assertEqual(list(file["Context/main()"]), ["inner()", "x"])

    def test_the_library_is_found(self):
        variables = {key: value for key, value in environment().items() if key not in ("MEND_APP_LIBRARY", "MEND_APP_HOME")}
        # Not where it is looked for in any case.
        os.makedirs(self.path("home", "lib"))
        os.symlink(os.path.join(OUT, "lib", "libmend-app.so"), self.path("home", "lib", "libmend-app.so"))
        for home, library in ((self.path("home"), None), (None, os.path.join(ROOT, "target", "app", "lib", "libmend-app.so"))):
            if library and not os.path.exists(library):
                continue
            done = subprocess.run([PYTHON, "-c", "import mend_app; print(mend_app._library._find())"], env={**variables, **({"MEND_APP_HOME": home} if home else {})}, capture_output=True, text=True, check=False)
            self.assertEqual(done.stdout.strip(), os.path.abspath(library or os.path.join(home, "lib", "libmend-app.so")), done.stderr)

    def test_what_is_installed_finds_itself(self):
        variables = {key: value for key, value in environment().items() if not key.startswith("MEND_APP_")}
        make = ["make", "--silent", "-C", os.path.join(ROOT, "app", "lib"), "install", f"OUT={OUT}", f"DESTDIR={self.directory}", "PREFIX=/opt"]
        subprocess.run(make, check=True, capture_output=True)
        for package, home in ((os.path.join(OUT, "python"), OUT), (self.path("opt", "lib", "mend-app", "python"), self.path("opt"))):
            done = subprocess.run([PYTHON, "-c", "import mend_app; print(mend_app.__file__, mend_app._library._find())"], env={**variables, "PYTHONPATH": package}, capture_output=True, text=True, check=False)
            self.assertEqual(done.stdout.split(), [os.path.join(package, "mend_app", "__init__.py"), os.path.join(home, "lib", "libmend-app.so")], done.stderr)
            script = self.write("python3", '#!/bin/sh\necho "$MEND_APP_HOME" "$@"\n')
            os.chmod(script, 0o755)
            done = subprocess.run([os.path.join(home, "bin", "mend-cc"), "mpicc"], env={**variables, "PATH": f"{self.directory}:{variables['PATH']}"}, capture_output=True, text=True, check=False)
            self.assertEqual(done.stdout.split(), [home, os.path.join(home, "share", "mend-cc", "mend-cc"), "mpicc"], done.stderr)
            self.assertTrue(os.path.exists(os.path.join(home, "share", "mend-cc", "mend_cc", "runtime", "mend_cc.c")))

    def test_what_an_older_release_has_built_is_not_installed(self):
        os.makedirs(self.path("target/app/lib"))
        os.mkdir(self.path("target/mend"))
        self.write("target/app/lib/libmend-app.so", "")
        self.write("target/mend/mend", "")
        os.chmod(self.path("target/mend/mend"), 0o755)
        # Without cargo nothing is built.
        os.mkdir(self.path("commands"))
        os.symlink(shutil.which("true"), self.path("commands", "true"))
        done = subprocess.run([shutil.which("make"), "--silent", "-f", os.path.join(ROOT, "Makefile"), "install", "INSTALL=true"], cwd=self.directory, env={"PATH": self.path("commands")}, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, "install: libmend-app and mend-cc are not installed: target/app is of an older release. Run `make app` again\n"))
        done = subprocess.run(["make", "--silent", "-C", os.path.join(ROOT, "app", "lib"), "install", f"OUT={self.path('target', 'app')}", f"DESTDIR={self.directory}"], capture_output=True, text=True, check=False)
        self.assertIn(f"install: {self.path('target', 'app')} is of an older release: run `make app` again\n", done.stderr)
        self.assertNotEqual(done.returncode, 0)


THROWS = """
#include <cstdio>
#include <stdexcept>
#include <mend_app.hpp>
int main(int count, char **) {
    try {
        mend::app::Session session("throws 1");
        int step = 0;
        mend::app::variable("step", step);
        step += mend::app::checkpoint();
        std::printf("restarted %d\\n", step);
        step = 7;
        mend::app::check(mend_app_checkpoint_now());
        if (count > 1)
            throw std::runtime_error("no");
    } catch (const std::runtime_error &error) {
        std::printf("caught %s\\n", error.what());
    }
}
"""


class Exceptions(InDirectory):
    def test_an_exception_is_no_good_end(self):
        path = self.path("throws")
        subprocess.run(["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", self.write("throws.cpp", THROWS), f"-I{OUT}/include", f"-L{OUT}/lib", f"-Wl,-rpath,{OUT}/lib", "-lmend-app", "-o", path], check=True)
        self.assertIn("restarted 0\ncaught no", self.good(run(0, [path, "throw"], self.directory, quiet="yes")))
        self.assertFalse(os.path.exists(self.path("checkpoints", "ended")))
        self.assertIn("restarted 8", self.good(run(0, [path], self.directory, quiet="yes")))
        self.assertIn("restarted 0", self.good(run(0, [path], self.directory, quiet="yes")))


class Symbols(InDirectory):
    def test_only_the_library_s_own_are_seen(self):
        from programs import OUT

        listed = subprocess.run(["nm", "-D", "--defined-only", os.path.join(OUT, "lib", "libmend-app.so")], capture_output=True, text=True, check=True).stdout
        names = [line.split()[-1].split("@")[0] for line in listed.splitlines()]
        self.assertEqual([name for name in names if not name.startswith(("mend_app_", "MEND_APP_"))], [])

    def test_a_program_with_another_hdf5_is_not_disturbed(self):
        script = """
import h5py, mend_app, numpy
version = h5py.version.hdf5_version
x = numpy.arange(10.0)
with h5py.File("own.h5", "w") as own, mend_app.Session() as session:
    session.array("x", x)
    own["a"] = x
    session.checkpoint(now=True)
    own["b"] = x + 1
with h5py.File("own.h5") as own, h5py.File("checkpoints/checkpoint-000001/rank-00000.h5") as saved:
    assert (own["b"][:] == saved["Context/x"][:] + 1).all()
    print("own", version, "saved by", saved["Header"].attrs["HDF5"].decode())
"""
        words = self.line(self.good(self.python(script)), "own ").split()
        self.assertNotEqual(words[1], words[-1], "the test needs another HDF5 than the library's")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
