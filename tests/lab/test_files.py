"""Files that a program has open at a checkpoint and changes afterwards: a restart goes on with them as they were."""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from cases import OnMachine
from cluster import ROOT, compile_mpi, compile_plain

PROGRAM = os.path.join(ROOT, "tests", "apps", "files_change.py")


def touch(*path):
    with open(os.path.join(*path), "w", encoding="utf-8"):
        pass


class Files(OnMachine):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shared = compile_mpi("mpi_files.c", os.path.join(cls.work, "files"))

    def undisturbed(self, *argv):
        """The last line that the program prints when nothing happens to it."""
        directory = tempfile.mkdtemp(dir=self.work)
        for name in ("change", "go"):
            touch(directory, name)
        done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1]

    def until(self, job, line):
        job.wait_for(lambda: line in self.output().splitlines(), f"it printed {line}")

    def changed(self, *argv, ranks="1", options=()):
        """A job that was checkpointed, changed its files after that, and was killed; its name and what the checkpoint said."""
        job = self.machine.start(self.directory, "run", *options, "-n", ranks, *argv)
        name = self.machine.running(job)
        self.until(job, "open")
        done = self.machine.verb("checkpoint", name)
        touch(self.directory, "change")
        self.until(job, "changed")
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)
        return name, done

    def goes_on(self, expected, name, *options):
        """Twice: what was put back once can be put back again."""
        touch(self.directory, "go")
        for _ in range(2):
            os.unlink(os.path.join(self.directory, "stdout"))
            self.machine.start(self.directory, "restart", *options, "--repeat-output", name).finish(0)
            self.assertEqual(self.output().splitlines()[-1], expected)

    def is_kept(self, how):
        argv = [sys.executable, PROGRAM, how]
        expected = self.undisturbed(*argv)
        name, done = self.changed(*argv)
        self.assertEqual(done["notes"], [])
        self.goes_on(expected, name)

    def test_a_file_that_is_cut_and_written_anew(self):
        self.is_kept("truncate")

    def test_a_temporary_file_that_is_renamed(self):
        self.is_kept("rename")

    def test_a_file_that_is_replaced(self):
        self.is_kept("replace")

    def test_a_file_that_is_deleted(self):
        self.is_kept("delete")

    def test_a_file_that_is_made_again_and_is_larger(self):
        self.is_kept("recreate")

    def test_a_file_that_is_appended_to(self):
        self.is_kept("append")

    def test_a_database_in_the_middle_of_a_transaction(self):
        self.is_kept("sqlite")

    def test_a_file_of_several_ranks_is_kept_once(self):
        name, done = self.changed(self.shared, ranks="3")
        kept = os.listdir(os.path.join(done["directory"], "files"))
        self.assertEqual(len(kept), 1, kept)
        touch(self.directory, "go")
        directory = tempfile.mkdtemp(dir=self.work)
        for file in ("change", "go"):
            touch(directory, file)
        self.machine.start(directory, "run", "-n", "3", self.shared).finish(0)
        with open(os.path.join(directory, "stdout"), encoding="utf-8") as file:
            expected = file.read().splitlines()[-1]
        self.goes_on(expected, name)

    def test_a_file_that_ranks_have_mapped_is_as_all_of_them_left_it(self):
        program = compile_mpi("mpi_mapped.c", os.path.join(self.work, "mapped"))
        name, done = self.changed(program, ranks="4")
        self.assertEqual(done["notes"], [])
        self.goes_on("digest=good", name)

    def test_a_shared_file_pointer_that_was_made_since_is_none(self):
        program = compile_mpi("shared_pointer.c", os.path.join(self.work, "pointer"))
        name, done = self.changed(program, ranks="2")
        self.assertEqual(done["notes"], [])
        self.goes_on("8 bytes, 0 to 1, good", name)

    def test_what_is_kept_is_encrypted_where_images_are(self):
        key = self.key_file("key", "5" * 64)
        expected = self.undisturbed(sys.executable, PROGRAM, "truncate")
        name, done = self.changed(sys.executable, PROGRAM, "truncate", options=("--encryption-key", key))
        for path in glob.glob(os.path.join(done["directory"], "files", "*")):
            with open(path, "rb") as file:
                self.assertEqual(file.read(8), b"MENDSEAL")
        self.goes_on(expected, name, "--encryption-key", key)

    def test_what_is_too_large_is_named_when_the_checkpoint_is_taken(self):
        self.machine.environment["MEND_KEEP_FILES_MB"] = "0"
        argv = [sys.executable, PROGRAM, "truncate"]
        job = self.machine.start(self.directory, "run", "-n", "1", *argv)
        name = self.machine.running(job)
        self.until(job, "open")
        # The job's setting counts, not that of who asks.
        del self.machine.environment["MEND_KEEP_FILES_MB"]
        self.assertRegex(self.machine.mend("explain", name).stdout, "remark: .*data .*is open for writing")
        done = self.machine.verb("checkpoint", name)
        if not done["notes"]:
            self.skipTest("the file system here clones files")
        self.assertRegex(done["notes"][0], "data .*is not kept: it has more than 0 MiB")
        listed = self.machine.verb("checkpoints", name)
        self.assertRegex(listed[0]["not_kept"][0], "data .*is not kept")
        touch(self.directory, "change")
        self.until(job, "changed")
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)
        done = self.machine.mend("restart", name)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertRegex(done.stderr, "data has 992 bytes, fewer than the 100000 .*not kept")

    def test_what_was_kept_is_checked_before_anything_is_touched(self):
        name, done = self.changed(sys.executable, PROGRAM, "truncate")
        data = os.path.join(self.directory, "data")
        with open(data, "rb") as file:
            before = file.read()
        (kept,) = glob.glob(os.path.join(done["directory"], "files", "*"))
        with open(kept, "r+b") as file:
            file.seek(5000)
            file.write(b"other")
        ended = self.machine.mend("restart", name)
        self.assertEqual(ended.returncode, 65, ended.stderr)
        self.assertIn("what was kept of " + data, ended.stderr)
        with open(data, "rb") as file:
            self.assertEqual(file.read(), before)

    def test_what_was_kept_and_is_damaged_leads_to_the_next_older_checkpoint(self):
        argv = (sys.executable, PROGRAM, "truncate")
        expected = self.undisturbed(*argv)
        job = self.machine.start(self.directory, "run", "-n", "1", *argv)
        name = self.machine.running(job)
        self.until(job, "open")
        older, newer = (self.machine.verb("checkpoint", name) for _ in range(2))
        touch(self.directory, "change")
        self.until(job, "changed")
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)
        (kept,) = glob.glob(os.path.join(newer["directory"], "files", "*"))
        with open(kept, "r+b") as file:
            file.seek(5000)
            file.write(b"other")
        touch(self.directory, "go")
        os.unlink(os.path.join(self.directory, "stdout"))
        restart = self.machine.start(self.directory, "restart", "--repeat-output", name)
        restart.finish(0)
        self.assertEqual(self.output().splitlines()[-1], expected)
        told = restart.stderr()
        self.assertIn(f"checkpoint {newer['number']}", told)
        self.assertIn("what was kept of", told)
        self.assertLess(older["number"], newer["number"])

    def test_removing_a_checkpoint_removes_what_it_kept(self):
        name, done = self.changed(sys.executable, PROGRAM, "truncate")
        self.assertGreater(self.machine.verb("checkpoints", name)[0]["bytes"], 0)
        self.machine.verb("checkpoints", name, "--remove", "1")
        self.assertFalse(os.path.exists(done["directory"]))

    def test_what_has_no_name_any_more_is_refused_by_name(self):
        program = os.path.join(ROOT, "tests", "apps", "unreachable.py")
        obstacles = {
            "directory": "deleted directory .*below",
            "cwd": "the working directory .*below was deleted",
            "namespace": r"namespace net:\[",
            "process": "/proc/[0-9]+/status of another process",
            "name": "file whose name is not UTF-8: .*/caf\ufffd",
            "place": "working directory whose name is not UTF-8: .*/caf\ufffd",
        }
        for kind, name in obstacles.items():
            with self.subTest(kind):
                self.directory = tempfile.mkdtemp(dir=self.work)
                job = self.machine.start(self.directory, "run", "-n", "1", sys.executable, program, kind)
                job_name = self.machine.running(job)
                self.until(job, "open")
                for verb in ("explain", "checkpoint"):
                    done = self.machine.mend(verb, job_name)
                    self.assertEqual(done.returncode, 1)
                    self.assertRegex(done.stdout + done.stderr, name)
                touch(self.directory, "change")
                self.until(job, "changed")
                self.machine.verb("checkpoint", job_name)
                touch(self.directory, "go")
                job.finish(0)

    def test_a_program_whose_file_is_gone_is_refused_by_name(self):
        program = shutil.copy(compile_plain("count.c", os.path.join(self.work, "count")), self.directory)
        job = self.machine.start(self.directory, "run", "-n", "1", program, "400", "500", "go")
        name = self.machine.running(job)
        os.rename(program, program + ".old")
        self.machine.verb("checkpoint", name)
        os.rename(program + ".old", program)
        os.unlink(program)
        done = self.machine.mend("checkpoint", name)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"the program's own file {program} was deleted or replaced", done.stderr)
        touch(self.directory, "go")
        job.finish(0)

    def test_a_checkpoint_s_directory_is_not_trusted(self):
        name, done = self.changed(sys.executable, PROGRAM, "truncate")
        manifest = os.path.join(done["directory"], "manifest.json")
        for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
            os.unlink(manifest)
            make(manifest)
            refused = self.machine.mend("restart", done["directory"])
            self.assertEqual(refused.returncode, 65, refused.stderr)
        self.assertIn(name, done["directory"])

    def test_root_is_told_whose_checkpoint_it_is(self):
        if os.geteuid() != 0:
            self.skipTest("only root restarts what others wrote")
        expected = self.undisturbed(sys.executable, PROGRAM, "truncate")
        name, done = self.changed(sys.executable, PROGRAM, "truncate")
        os.chown(os.path.join(done["directory"], "rank-0.image"), 65534, 65534)
        refused = self.machine.mend("restart", name)
        self.assertEqual(refused.returncode, 65)
        self.assertRegex(refused.stderr, "rank-0.image belongs to the user with the id 65534, and you are 0")
        self.assertIn("--any-owner", refused.stderr)
        self.goes_on(expected, name, "--any-owner")

    def test_files_are_cloned_where_the_file_system_can(self):
        place = mounted(self)
        if place is None:
            return
        shutil.rmtree(self.directory)
        self.directory = tempfile.mkdtemp(dir=place)
        self.machine.environment["MEND_KEEP_FILES_MB"] = "0"
        expected = self.undisturbed(sys.executable, PROGRAM, "truncate")
        name, done = self.changed(sys.executable, PROGRAM, "truncate", options=("--checkpoint-dir", place))
        self.assertEqual(done["notes"], [])
        with open(os.path.join(done["directory"], "manifest.json"), encoding="utf-8") as file:
            files = json.load(file)["manifest"]["files"]
        self.assertEqual([file["keeping"]["Content"]["checksum"] for file in files], [None])
        self.goes_on(expected, name)


def mounted(case):
    """A file system that can clone files, mounted for a test; None, said aloud, where that cannot be."""
    def skipped(why):
        print(f"skipped: files that are cloned: {why}", file=sys.__stdout__, flush=True)

    if os.geteuid() != 0:
        return skipped("only root mounts a file system")
    tools = [("mkfs.btrfs", "-q"), ("mkfs.xfs", "-q", "-m", "reflink=1")]
    for tool in tools:
        if not shutil.which(tool[0]):
            continue
        image, place = os.path.join(case.work, tool[0]), os.path.join(case.work, tool[0] + ".mount")
        with open(image, "wb") as file:
            file.truncate(512 << 20)
        os.makedirs(place)
        made = subprocess.run([*tool, image], capture_output=True, text=True, check=False)
        done = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True, check=False)
        if made.returncode == 0 and done.returncode == 0:
            case.addCleanup(subprocess.run, ["umount", "-l", place], check=False)
            return place
    return skipped("no XFS or btrfs: btrfs-progs or xfsprogs, loop devices and a kernel that has it are needed")


if __name__ == "__main__":
    unittest.main()
