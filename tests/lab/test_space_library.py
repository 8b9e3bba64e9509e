"""Data spaces without a mount: libmend-data in C, and its Python module."""

import hashlib
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_space
from cluster import BIN, ROOT, VENV, compile_plain

PROGRAM = os.path.join(ROOT, "tests", "lab", "library.py")
# It has fsspec.
PYTHON = os.path.join(VENV, "data", "bin", "python3")
RIGHT = "all as it should be\n"


class Library(test_space.Space):
    """The space `input` with the staged file `in.dat`, used on node4, which has no target."""

    DAEMONS = {"MEND_SPACE_TIMEOUT_MS": "1000"}

    def setUp(self):
        super().setUp()
        self.data("stage", f"file://{self.source}", "input:in.dat")
        self.lab.set("PYTHONPATH", os.path.join(BIN, "python"))

    def used(self, *command):
        done = self.lab.on("node4", *command, cwd=self.directory)
        self.assertEqual((done.returncode, done.stdout), (0, RIGHT), done.stderr)

    def python(self, *words):
        self.used(sys.executable, PROGRAM, *words)

    def digest(self):
        return hashlib.sha256(self.content).hexdigest()


class Files(Library):
    def test_a_c_program_uses_a_space_as_files(self):
        flags = ["-I", os.path.join(BIN, "include"), "-Wall", "-Werror", "-L", BIN, "-l:libmend-data.so", f"-Wl,-rpath,{BIN}"]
        self.used(compile_plain("data_library.c", os.path.join(self.directory, "library"), *flags), "input")

    def test_the_header_is_c_plus_plus_too(self):
        header = os.path.join(BIN, "include", "mend_data.h")
        done = subprocess.run(["c++", "-x", "c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", header], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_python_uses_a_space_as_files(self):
        self.python("files", "input")

    def test_what_python_reads_are_the_bytes_that_were_staged(self):
        self.python("read", "input", "in.dat", self.digest())

    def test_what_knows_fsspec_knows_spaces(self):
        if not os.path.exists(PYTHON):
            self.skipTest("no fsspec: `make setup` could not install it")
        self.used(PYTHON, PROGRAM, "fsspec", "input", self.directory)


class Losses(Library):
    def test_what_a_lost_target_had_comes_from_the_source(self):
        self.lab.kill_daemon("node1")
        self.addCleanup(self.lab.start_daemon, "node1", self.directory)
        self.python("read", "input", "in.dat", self.digest())

    def test_a_directory_is_listed_of_which_a_file_is_lost(self):
        self.python("write", "input", "40")
        for node in ("node1", "node2"):
            self.lab.kill_daemon(node)
            self.addCleanup(self.lab.start_daemon, node, self.directory)
        self.python("lost", "input", "40")
        # So it is by `mend data ls`.
        done = self.data("ls", "--json", "input:many", code=test_space.UNREACHABLE)
        listed = json.loads(done.stdout)
        lost = [one for one in listed if one["lost"]]
        self.assertTrue(lost and all((one["size"] is None) == one["lost"] for one in listed), done.stdout)
        self.assertEqual(len(listed), 40)
        self.assertIn(f"input:many/{lost[0]['name']} cannot be read", done.stderr)
        self.assertRegex(self.data("ls", "input:many", code=test_space.UNREACHABLE).stdout, f"lost +[0-9]+ +{lost[0]['name']}")

    def test_of_two_files_of_one_name_the_one_that_is_not_seen_gets_another_one(self):
        self.data("create", "parted", *(word for node in ("node1", "node2") for number in range(2) for word in ("--target", f"{node}:{self.directory}/{node}-{number}")))
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "parted")
        for lost, content in (("node1", "one"), ("node2", "other")):
            self.lab.kill_daemon(lost)
            made = self.lab.on("node4", sys.executable, "-c", f"import mend_data\nwith mend_data.open('mend://parted/out/result', 'x') as file:\n file.write('{content}')", cwd=self.directory)
            self.assertEqual(made.returncode, 0, made.stderr)
            self.lab.start_daemon(lost, self.directory)
        checked = self.data("check", "parted:", code=65)
        self.assertIn("parted:out/result: there is another file of that name, which is not seen; `mend data repair` lets it be parted:out/result.conflict-", checked.stdout)
        self.assertIn("is parted:out/result.conflict-", self.data("repair", "parted:out").stdout)
        [kept] = json.loads(self.data("check", "--json", "parted:").stdout)[0]["conflicts"]
        self.assertEqual(sorted(self.data("get", name, "-").stdout for name in ("parted:out/result", kept)), ["one", "other"])

    def test_ranks_that_use_it_are_saved_moved_and_restarted(self):
        go = os.path.join(self.directory, "go")
        command = [sys.executable, PROGRAM, "rank", "input", go]
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node4", "--spares", "node2", "--", *command)
        job.wait_for(lambda: all(os.path.exists(f"{go}.begun.{rank}") for rank in range(2)), "ranks read and write")
        name = self.lab.running(job)
        self.assertEqual(self.lab.verb("migrate", name, "1", "--to", "node2")["to"], "node2")
        self.lab.verb("checkpoint", name)
        self.lab.mend("kill", name)
        job.finish(expected=137)
        with open(go, "w", encoding="ascii"):
            pass
        done = self.lab.mend("restart", name, cwd=self.directory)
        self.assertEqual((done.returncode, sorted(done.stdout.splitlines())), (0, sorted([self.digest(), RIGHT.strip()] * 2)), done.stderr)


# Its tests are run where they stand.
del Library

if __name__ == "__main__":
    unittest.main()
