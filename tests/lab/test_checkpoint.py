"""Checkpoint and restart on this machine, and everything that can be wrong with an image, a disk or a rank."""

import fcntl
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

from cases import OnMachine
from cluster import MEND, compile_mpi, compile_plain


class Checkpoint(OnMachine):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.count = compile_plain("count.c", os.path.join(cls.work, "count"))
        cls.iters = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))

    def checkpointed(self, *argv, ranks="1", after=None):
        """A job that was killed after one checkpoint (not before it made the file `after`); its name and the checkpoint's directory."""
        job = self.machine.start(self.directory, "run", "-n", ranks, *argv)
        name = self.machine.running(job)
        if after:
            job.wait_for(lambda: os.path.exists(os.path.join(self.directory, after)), f"it made {after}")
        done = self.machine.verb("checkpoint", name)
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)
        return name, done["directory"]

    def restart(self, *arguments):
        return self.machine.start(self.directory, "restart", *arguments)

    def let_go(self):
        """Programs that were started with "go" run to their end."""
        with open(os.path.join(self.directory, "go"), "w", encoding="utf-8"):
            pass

    def plain_output(self, *argv):
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def test_a_program_without_mpi_goes_on_where_it_was(self):
        self.checkpointed(self.count, "400", "500", "go")
        self.let_go()
        self.restart().finish(0)
        self.assertEqual(self.output(), self.plain_output(self.count, "400", "0"))

    def stay(self, file):
        """Shell: waits for a file in the test's directory, without a child."""
        return f"while [ ! -e {self.directory}/{file} ]; do :; done"

    def touch(self, file):
        with open(os.path.join(self.directory, file), "w", encoding="utf-8"):
            pass

    def test_what_a_killed_controller_has_printed_is_not_printed_again(self):
        script = f"echo one; {self.stay('first')}; echo two; {self.stay('go')}; echo three"
        job = self.machine.start(self.directory, "run", "bash", "-c", script)
        name = self.machine.running(job)
        job.wait_for(lambda: self.output() == "one\n", "it printed")
        self.machine.verb("checkpoint", name)
        self.touch("first")
        job.wait_for(lambda: self.output() == "one\ntwo\n", "it printed again")
        job.interrupt(signal.SIGKILL)
        job.finish(None)
        self.let_go()
        self.restart().finish(0)
        self.assertEqual(self.output(), "one\ntwo\nthree\n")

    def test_a_controller_that_is_killed_while_it_prints_loses_and_repeats_nothing(self):
        """To a regular file: its length says how much of what was being written is there."""
        script = f"{self.stay('first')}; for ((i = 0; i < 150000; i++)); do echo line $i of many; done"
        job = self.machine.start(self.directory, "run", "bash", "-c", script)
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        self.touch("first")
        out = os.path.join(self.directory, "stdout")
        for size in (100_000, 700_000, 1_500_000):
            job.wait_for(lambda: os.path.getsize(out) > size, f"it printed {size} bytes")
            job.interrupt(signal.SIGKILL)
            job.finish(None)
            job = self.restart(name)
        job.finish(0)
        self.assertEqual(self.output(), "".join(f"line {i} of many\n" for i in range(150000)))
        self.assertNotIn("twice", job.stderr())

    def test_a_controller_that_is_killed_while_a_pipe_is_full_says_what_may_come_twice(self):
        script = f"{self.stay('first')}; for ((i = 0; i < 50000; i++)); do echo line $i of many; done; {self.stay('go')}"
        command = self.machine.command("run", "bash", "-c", script)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
        with subprocess.Popen(command, cwd=self.directory, env=self.machine.environment, **pipes) as job:
            name = job.stderr.readline().split()[2].rstrip(b":").decode()
            while not self.machine.verb("ps")[0].get("status", {}).get("state") == "running":
                pass
            self.machine.verb("checkpoint", name)
            self.touch("first")
            before = b""
            while len(before) < 100_000:
                before += job.stdout.read(10_000)
            # Its writer waits for somebody who reads: its pipe stays as full as it is.
            held = -1
            while held != (held := self.unread(job.stdout)) or not self.is_full(job.stdout):
                time.sleep(0.3)
            job.kill()
            before += job.stdout.read()
        self.let_go()
        done = self.machine.mend("restart", name)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = re.search(r"the last (\d+) bytes of rank 0's standard output may be printed twice", done.stderr)
        self.assertTrue(said, done.stderr)
        whole = "".join(f"line {i} of many\n" for i in range(50000))
        twice = len(before) + len(done.stdout) - len(whole)
        self.assertTrue(0 <= twice <= int(said[1]) <= 4096, (twice, said[1]))
        self.assertEqual(before.decode()[: len(before) - twice] + done.stdout, whole)

    @staticmethod
    def is_full(pipe):
        """Whether who writes to a pipe has to wait. Its pages need not be full."""
        writer = os.open(f"/proc/self/fd/{pipe.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            return not select.select([], [writer], [], 0)[1]
        finally:
            os.close(writer)

    @staticmethod
    def unread(pipe):
        """How many bytes are in a pipe."""
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)

    def test_output_that_differs_is_told_of_and_begins_with_a_line(self):
        script = (
            f"echo begin; {self.stay('first')}; echo same; read -r took < {self.directory}/first; echo took $took s;"
            f" printf half; {self.stay('go')}; echo end"
        )
        job = self.machine.start(self.directory, "run", "bash", "-c", script)
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        with open(os.path.join(self.directory, "first"), "w", encoding="utf-8") as file:
            file.write("5\n")
        # The file is there before it is written to.
        job.wait_for(lambda: self.output().endswith("half"), "it printed half a line")
        first = self.output()
        self.machine.mend("kill", name)
        job.finish(137)
        with open(os.path.join(self.directory, "first"), "w", encoding="utf-8") as file:
            file.write("1234\n")
        self.let_go()
        job = self.restart()
        job.finish(0)
        self.assertEqual(self.output(), first + "\ntook 1234 s\nhalfend\n")
        self.assertRegex(job.stderr(), r"rank 0: its standard output is not what it was before the restart, from byte 11 on \(line 2 since")

    def test_a_quiet_restart_says_nothing(self):
        name, _ = self.checkpointed(self.count, "400", "500", "go")
        self.let_go()
        done = self.machine.mend("restart", "-q", name)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_who_ends_as_soon_as_it_goes_on_is_no_failure(self):
        """Its agent may be gone before it has said that it goes on: often enough in so many restarts."""
        stays = f"while [ ! -e {self.directory}/go ]; do :; done"
        name, _ = self.checkpointed("bash", "-c", stays)
        self.let_go()
        for _ in range(40):
            done = self.machine.mend("restart", "-q", name)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_killed_job_is_gone(self):
        job = self.machine.start(self.directory, "run", self.count, "400", "500", "go")
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        self.let_go()
        for command in (["kill"], ["restart"]):
            done = self.machine.mend(*command)
            self.assertEqual(done.returncode, 0, done.stderr)
        job.finish(137)

    def test_a_name_s_beginning_means_the_job_that_runs(self):
        for _ in range(2):
            self.machine.start(self.directory, "run", self.count, "1", "0").finish(0)
        job = self.machine.start(self.directory, "run", self.count, "400", "500", "go")
        name = self.machine.running(job)
        self.assertEqual(self.machine.verb("kill", "count"), {"killed": name})
        job.finish(137)
        done = self.machine.mend("restart", "count")
        self.assertRegex(done.stderr, "count could be any of " + name)
        self.assertEqual(done.returncode, 64)

    def test_many_cycles(self):
        """Checkpoint, restart, checkpoint, restart …: each life is made from the last one's image."""
        name, _ = self.checkpointed(self.iters, "-i", "100", "-w", "100", "-m", "8", "-u", "go", ranks="2")
        for _ in range(3):
            job = self.restart(name)
            self.machine.running(job)
            self.machine.verb("checkpoint", name)
            self.machine.verb("checkpoint", name)
            self.assertEqual(self.machine.mend("kill", name).returncode, 0)
            job.finish(137)
        self.let_go()
        self.restart(name).finish(0)
        numbers = [one["number"] for one in self.machine.verb("checkpoints", name)]
        self.assertEqual(numbers, list(range(1, 8)))
        self.assertEqual(self.output(), self.machine.undisturbed("-n", "2", self.iters, "-i", "100", "-w", "100", "-m", "8", "-u", "go"))

    def test_a_directory_in_shared_memory_which_ranks_do_not_see(self):
        place = tempfile.mkdtemp(prefix="mend-checkpoint-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, place, ignore_errors=True)
        argv = [self.iters, "-i", "100", "-w", "1000", "-m", "8", "-u", "go"]
        job = self.machine.start(self.directory, "run", "-n", "2", "--checkpoint-dir", place, "--incremental", "2", *argv)
        name = self.machine.running(job)
        for mode in ("stop", "copy-on-write", "stop", "copy-on-write"):
            self.machine.verb("checkpoint", name, "--mode", mode)
        found = self.machine.verb("checkpoints", name)
        self.assertEqual([one["kind"] for one in found], ["full", "incremental", "incremental", "full"])
        self.assertTrue(all(one["usable"] for one in found), found)
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)
        self.let_go()
        self.restart(name, "--checkpoint", "3").finish(0)
        images = {f"rank-{rank}.image" for rank in range(2)}
        for number in range(1, 5):
            self.assertEqual(set(os.listdir(os.path.join(place, name, str(number)))), images | {"manifest.json"})
        self.assertEqual(self.output(), self.machine.undisturbed("-n", "2", *argv))

    def test_an_older_checkpoint_and_a_path(self):
        job = self.machine.start(self.directory, "run", self.count, "600", "500", "go")
        name = self.machine.running(job)
        first = self.machine.verb("checkpoint")["directory"]
        self.machine.verb("checkpoint")
        self.machine.mend("kill")
        job.finish(137)
        self.let_go()
        self.restart(name, "--checkpoint", "1").finish(0)
        self.assertEqual(self.output(), self.plain_output(self.count, "600", "0"))
        self.restart(first, "--repeat-output").finish(0)
        self.assertIn("counted 600", self.output())

    def test_torn_flipped_missing_and_swapped_images_are_refused_by_name(self):
        name, directory = self.checkpointed(self.iters, "-i", "100", "-w", "100", "-m", "4", "-u", "go", ranks="2")
        image = os.path.join(directory, "rank-1.image")
        with open(image, "rb") as file:
            good = file.read()

        def refused(*texts):
            done = self.machine.mend("restart", name)
            self.assertEqual(done.returncode, 65, done.stderr)
            for text in ("rank 1", *texts):
                self.assertIn(text, done.stderr)

        def write(content):
            with open(image, "wb") as file:
                file.write(content)

        write(good[: len(good) // 2])
        self.assertIn("torn", self.machine.mend("checkpoints", name).stdout)
        done = self.machine.mend("restart", name)
        self.assertEqual(done.returncode, 65)
        self.assertIn("torn", done.stderr)
        for place in (100, 5000, len(good) // 3, len(good) // 2, len(good) - 20):
            write(good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :])
            refused()
        write(bytes(len(good)))
        refused()
        with open(os.path.join(directory, "rank-0.image"), "rb") as file:
            other = file.read()
        write(other[: len(good)].ljust(len(good), b"\0"))
        refused()
        os.remove(image)
        done = self.machine.mend("restart", name)
        self.assertIn("missing", done.stderr)
        write(good)
        job = self.restart(name)
        self.machine.running(job)
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)

    def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(self):
        job = self.machine.start(self.directory, "run", self.count, "600", "500", "go")
        name = self.machine.running(job)
        self.machine.verb("checkpoint")
        newest = self.machine.verb("checkpoint")["directory"]
        self.machine.mend("kill")
        job.finish(137)
        os.remove(os.path.join(newest, "rank-0.image"))
        self.let_go()
        job = self.restart(name)
        job.finish(0)
        self.assertIn("checkpoint 2 cannot be used", job.stderr())
        self.assertEqual(self.output(), self.plain_output(self.count, "600", "0"))

    def test_a_full_disk_fails_the_checkpoint_and_not_the_job(self):
        small = os.path.join(self.directory, "small")
        os.makedirs(small)
        inside = f"mount -t tmpfs -o size=3m tmpfs {small} && exec {MEND} run --checkpoint-dir {small} {self.count} 400 500 go"
        unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
        self.machine.command = lambda *arguments: [*unshare, "sh", "-c", inside] if arguments[0] == "run" else [MEND, *arguments]
        job = self.machine.start(self.directory, "run")
        name = self.machine.running(job)
        done = self.machine.mend("checkpoint", name)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("No space left", done.stderr)
        self.assertEqual(self.machine.mend("checkpoint", name).returncode, 1)
        job.let_go()
        job.finish(0)
        self.assertEqual(self.output(), self.plain_output(self.count, "400", "0"))

    def obstacle(self, kind, *texts):
        job = self.machine.start(self.directory, "run", self.count, "300", "500", "go", kind)
        name = self.machine.running(job)
        told = self.machine.mend("explain", name)
        self.assertEqual(told.returncode, 1)
        done = self.machine.mend("checkpoint", name)
        self.assertEqual(done.returncode, 1)
        for text in ("rank 0", *texts):
            self.assertIn(text, told.stdout)
            self.assertIn(text, done.stderr)
        self.assertEqual(self.machine.verb("checkpoints", name), [])
        job.let_go()
        job.finish(0)
        self.assertEqual(self.output(), self.plain_output(self.count, "300", "0"))

    def test_a_socket_is_named_and_the_job_runs_on(self):
        self.obstacle("socket", "socket")

    def test_a_child_process_is_named_and_the_job_runs_on(self):
        self.obstacle("child", "child")

    def test_explain_says_how_changes_are_noticed_and_why_not_in_a_better_way(self):
        sentences = {"write-protect": "write protection", "soft-dirty": "soft-dirty bits", "hash": "page hashes"}
        none = "changes not noticed: every image is full, "
        missing = []
        for setting in ("off", "write-protect", "soft-dirty", "hash", "auto"):
            with self.subTest(setting):
                self.machine.environment["MEND_TRACKING"] = setting
                job = self.machine.start(self.directory, "run", self.count, "300", "500", "go")
                name = self.machine.running(job)
                [found] = self.machine.verb("explain", name)
                tracking = found["inspection"]["Ok"]["tracking"]
                method, why = tracking["method"], tracking["why"]
                told = self.machine.mend("explain", name).stdout
                self.assertIn("rank 0 on ", told)
                self.assertIn(f", changes noticed by {sentences[method]}, " if method in sentences else none, told)
                self.assertEqual([line.strip() for line in told.splitlines()[1:]], [f"changed pages are not noticed by {one}" for one in why])
                if setting == "auto":
                    # The first that works, after those that do not.
                    self.assertEqual(method, next(one for one in sentences if one not in missing))
                    self.assertEqual([one.split(": ")[0] for one in why], list(sentences)[:list(sentences).index(method)])
                elif setting == "off":
                    self.assertEqual((method, why), ("off", []))
                elif method == setting:
                    self.assertEqual(why, [])
                else:
                    self.assertEqual(method, "off")
                    self.assertRegex(why[0], f"^{setting}: .+")
                    missing.append(setting)
                self.machine.mend("kill", name)
                job.finish(137)

    @unittest.skipUnless(platform.machine() == "x86_64", "the program writes instructions of x86-64")
    def test_while_a_library_changes_the_c_library(self):
        """What is saved meanwhile calls none of the functions that are being changed."""
        program = compile_plain("patching.c", os.path.join(self.directory, "patching"))
        job = self.machine.start(self.directory, "run", "-n", "1", program)
        name = self.machine.running(job)
        job.wait_for(lambda: "begun" in job.stdout(), "it has begun")
        for _ in range(4):
            self.machine.verb("checkpoint", name)
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)
        job = self.restart(name)
        self.let_go()
        job.finish()
        self.assertEqual(job.stdout(), "begun\nend\n")

    def test_a_static_program_is_named_and_the_job_runs_on(self):
        static = compile_plain("count.c", os.path.join(self.directory, "count-static"), "-static")
        job = self.machine.start(self.directory, "run", static, "200", "500", "go")
        name = self.machine.running(job)
        done = self.machine.mend("checkpoint", name)
        self.assertEqual(done.returncode, 1, done.stdout)
        told = f"it has no agent: {static} is a static program"
        self.assertIn(f"rank 0: {told}", done.stderr)
        self.assertIn("link the program dynamically", done.stderr)
        self.assertIn(told, self.machine.mend("explain", name).stdout)
        job.let_go()
        job.finish(0)

    def test_a_static_wrapper_does_not_keep_its_program_from_being_saved(self):
        source = os.path.join(self.directory, "wrapper.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write("#include <unistd.h>\nint main(int count, char **words) { execv(words[1], words + 1); return count; }\n")
        wrapper = compile_plain(source, os.path.join(self.directory, "wrapper"), "-static")
        job = self.machine.start(self.directory, "run", wrapper, self.count, "200", "500", "go")
        name = self.machine.running(job)
        job.wait_for(lambda: "1" in self.output(), "the program counts")
        self.assertEqual(self.machine.verb("checkpoint", name)["number"], 1)
        job.let_go()
        job.finish(0)

    def test_a_directory_that_takes_no_checkpoint_is_refused_before_the_job_starts(self):
        place = os.path.join(self.directory, "closed")
        os.mkdir(place)
        file = os.path.join(self.directory, "file")
        with open(file, "w", encoding="utf-8"):
            pass
        closed = [(file, "not a directory"), (os.path.join(file, "below"), "not a directory"),
                  ("/proc", "nothing can be made in this file system")]
        if os.geteuid():
            os.chmod(place, 0o500)
            closed += [(place, "Permission denied"), (os.path.join(place, "a", "b"), "Permission denied")]
        for where, why in closed:
            done = self.machine.mend("run", "--checkpoint-dir", where, self.count, "10", "0")
            self.assertEqual((done.returncode, done.stdout), (64, ""), done.stderr)
            self.assertIn(f"checkpoints cannot be written below {where}: {why}", done.stderr)
            self.assertIn("--checkpoint-dir", done.stderr)
        os.chmod(place, 0o700)
        done = self.machine.mend("run", "--checkpoint-dir", os.path.join(place, "a", "b"), self.count, "10", "0")
        self.assertEqual((done.returncode, os.listdir(place)), (0, []), done.stderr)

    def test_the_last_job_has_no_checkpoint(self):
        name, _ = self.checkpointed(self.count, "400", "500", "go")
        job = self.machine.start(self.directory, "run", "true")
        job.finish(0)
        done = self.machine.mend("restart")
        self.assertEqual(done.returncode, 65, done.stdout)
        self.assertRegex(done.stderr, r"job true-\w+, the last one, has no checkpoint\n  hint: these have: " + name)

    def test_nothing_to_restart(self):
        done = self.machine.mend("restart")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no job", done.stderr)
        done = self.machine.mend("restart", "/no/such/place")
        self.assertEqual(done.returncode, 65, done.stderr)

    def test_a_running_job_is_not_restarted(self):
        job = self.machine.start(self.directory, "run", "sleep", "600")
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        done = self.machine.mend("restart", name)
        self.assertIn("is running", done.stderr)
        done = self.machine.mend("restart")
        self.assertIn(f"no job has ended yet; {name} is running", done.stderr)
        self.machine.mend("kill", name)
        job.finish(137)

    def test_a_killed_rank_says_where_its_job_can_go_on(self):
        script = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nos.kill(os.getpid(), 9)"
        job = self.machine.start(self.directory, "run", sys.executable, "-c", script)
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        job.let_go()
        job.finish(137)
        self.assertRegex(job.stderr(), rf"was ended by signal 9\n  hint: `mend restart {name}` continues the job from checkpoint 1\n")

    def shared_and_refused(self, script, why):
        """Two ranks come to the end of a script, and their job's checkpoint is refused: restarted, each would have what they share for itself."""
        job = self.machine.start(self.directory, "run", "-n", "2", sys.executable, "-c", f"import mmap, time\n{script}\nprint('up', flush=True)\ntime.sleep(600)")
        name = self.machine.running(job)
        job.wait_for(lambda: job.stdout().count("up") == 2, "both have it")
        refused = self.machine.mend("checkpoint", name)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(why, refused.stderr)
        self.machine.mend("kill", name)
        job.finish(137)

    def test_memory_that_two_ranks_share_is_refused_by_name(self):
        script = "f = open('/dev/shm/common', 'a+b')\nf.truncate(4096)\nm = mmap.mmap(f.fileno(), 4096)"
        self.shared_and_refused(script, "shared memory /dev/shm/common of this and another process")

    def test_memory_that_two_ranks_have_open_is_refused_by_name(self):
        self.addCleanup(lambda: os.path.exists("/dev/shm/counted") and os.unlink("/dev/shm/counted"))
        self.shared_and_refused("f = open('/dev/shm/counted', 'a+b')", "file counted without a lasting name, which this and another process")

    def test_a_pipe_that_threads_read_and_write_all_the_time_is_no_obstacle(self):
        script = os.path.join(self.directory, "queue.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(
                "import os, threading, time\n"
                "reads, writes = os.pipe()\n"
                "def fill():\n"
                "    while True: os.write(writes, b'x' * 64)\n"
                "threading.Thread(target=fill, daemon=True).start()\n"
                "while not os.path.exists('go'): os.read(reads, 4096)\n"
                "print('through')\n"
            )
        job = self.machine.start(self.directory, "run", sys.executable, "-S", script)
        name = self.machine.running(job)
        for _ in range(20):
            explained = self.machine.mend("explain", name)
            self.assertEqual((explained.returncode, "could not be copied" in explained.stdout), (0, False), explained.stdout + explained.stderr)
        self.machine.verb("checkpoint", name)
        job.let_go()
        job.finish(0)

    def test_files_are_cut_back_to_their_length_at_the_checkpoint(self):
        script = os.path.join(self.directory, "writer.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(
                "import os, time\n"
                "a = open('appended', 'a'); w = open('written', 'w')\n"
                "for i in range(300):\n"
                "    print(i, file=a, flush=True); print(i, file=w, flush=True); time.sleep(0.005)\n"
                "    while i == 150 and not os.path.exists('go'): time.sleep(0.005)\n"
            )
        self.checkpointed("python3", "-S", script, after="written")
        self.let_go()
        self.restart().finish(0)
        expected = "".join(f"{i}\n" for i in range(300))
        for name in ("appended", "written"):
            with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                self.assertEqual(file.read(), expected, name)

    def test_a_missing_file_refuses_the_restart_by_name(self):
        script = os.path.join(self.directory, "reader.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(
                "import os, time\nf = open('needed')\nopen('opened', 'w').close()\n"
                "while not os.path.exists('go'): time.sleep(0.005)\nprint(f.read(), end='')\n"
            )
        needed = os.path.join(self.directory, "needed")
        with open(needed, "w", encoding="utf-8") as file:
            file.write("content\n")
        self.checkpointed("python3", "-S", script, after="opened")
        os.rename(needed, needed + ".away")
        done = self.machine.mend("restart")
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn(needed, done.stderr)
        os.rename(needed + ".away", needed)
        self.let_go()
        self.restart().finish(0)
        self.assertEqual(self.output(), "content\n")


if __name__ == "__main__":
    unittest.main()
