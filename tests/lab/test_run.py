"""`mend run` on this machine: mpiexec's habits, exit codes, output, input, signals, and bad input."""

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from cases import InDirectory
from cluster import MEND, PATIENCE, Machine, compile_mpi


class Run(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.machine = cls.enterClassContext(Machine())

    def mend(self, *arguments, **options):
        return self.machine.mend(*arguments, cwd=self.work, **options)

    def test_output_of_all_ranks_and_the_highest_good_exit_code(self):
        done = self.mend("run", "-n", "3", "sh", "-c", "echo rank $MEND_RANK of $MEND_SIZE; echo note >&2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.split("\n")), ["", "rank 0 of 3", "rank 1 of 3", "rank 2 of 3"])
        self.assertEqual(done.stderr.count("note"), 3)

    def test_exit_code_of_the_program(self):
        self.assertEqual(self.mend("run", "-n", "2", "sh", "-c", "exit $((MEND_RANK * 7))").returncode, 7)

    def test_death_by_signal(self):
        done = self.mend("run", "-n", "2", "sh", "-c", "[ $MEND_RANK = 0 ] || kill -SEGV $$; sleep 60")
        self.assertEqual(done.returncode, 128 + signal.SIGSEGV)
        self.assertIn("rank 1", done.stderr)

    def test_large_output_is_complete(self):
        done = self.mend("run", "-n", "2", "sh", "-c", "seq 200000")
        self.assertEqual(len(done.stdout), 2 * len("".join(f"{i}\n" for i in range(1, 200001))))

    def test_standard_input_goes_to_rank_0(self):
        text = "".join(f"line {i}\n" for i in range(20000))
        with open(os.path.join(self.work, "input"), "w+", encoding="utf-8") as file:
            file.write(text)
            file.seek(0)
            done = self.mend("run", "-n", "2", "sh", "-c", "wc -c", stdin=file)
        self.assertEqual(sorted(done.stdout.split()), sorted(["0", str(len(text))]), done.stderr)

    def test_environment_and_working_directory(self):
        os.makedirs(os.path.join(self.work, "elsewhere"), exist_ok=True)
        done = self.mend("run", "-env", "COLOUR", "deep red", "-wdir", "elsewhere", "sh", "-c", 'echo "$COLOUR"; pwd')
        self.assertEqual(done.stdout, f"deep red\n{os.path.realpath(self.work)}/elsewhere\n", done.stderr)

    def test_names_that_are_not_utf_8(self):
        """A variable is left out, a directory refused before any node is bothered."""
        odd = dict(self.machine.environment, GOOD="1")
        odd[b"ODD"] = b"a\xe4b"
        done = self.mend("run", "sh", "-c", 'echo "$GOOD$ODD"', env=odd)
        self.assertEqual((done.returncode, done.stdout), (0, "1\n"), done.stderr)
        place = os.path.join(os.fsencode(self.work), b"caf\xe9")
        os.makedirs(place, exist_ok=True)
        for done in (self.mend("run", "-wdir", place, "true"), self.machine.mend("run", "true", cwd=place)):
            self.assertEqual(done.returncode, 64, done.stderr)
            self.assertIn("is not UTF-8", done.stderr)

    def test_no_such_program(self):
        done = self.mend("run", "-n", "2", "no-such-program")
        self.assertEqual(done.returncode, 127)
        self.assertIn("no-such-program", done.stderr)
        self.assertIn("hint", done.stderr)

    def test_not_executable(self):
        path = os.path.join(self.work, "plain.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("text")
        self.assertEqual(self.mend("run", path).returncode, 126)
        self.assertEqual(self.mend("run", self.work).returncode, 126)

    def test_missing_working_directory(self):
        done = self.mend("run", "-wdir", "/no/such/place", "true")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/no/such/place", done.stderr)

    def test_unknown_host_and_host_without_daemon(self):
        done = self.mend("run", "--hosts", "no-such-host.invalid", "true")
        self.assertEqual(done.returncode, 69)
        self.assertIn("no-such-host.invalid", done.stderr)
        done = self.mend("run", "--hosts", "127.0.0.1", "true", env=dict(self.machine.environment, MEND_PORT="9"))
        self.assertEqual(done.returncode, 69)
        self.assertIn("mendd", done.stderr)

    def test_bad_host_lists_and_settings(self):
        for arguments in (["--hosts", "a,,b"], ["--hosts", "a:0"], ["--hosts", "a,a"], ["-f", "/no/such/file"], ["--spares", "c"]):
            done = self.mend("run", *arguments, "true")
            self.assertEqual(done.returncode, 64, f"{arguments}: {done.stderr}")
        done = self.mend("run", "true", env=dict(self.machine.environment, MEND_NODE_TIMEOUT_MS="soon"))
        self.assertIn("MEND_NODE_TIMEOUT_MS", done.stderr)
        done = self.mend("run", "true", env=dict(self.machine.environment, MEND_CHANNELS="shm,infiniband"))
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("MEND_CHANNELS=shm,infiniband", done.stderr)

    def test_messages_that_nobody_can_read_end_no_job(self):
        """All that mend says of a job with checkpoints and a rank that fails, its log too: on a full disk, and where the reader has gone."""
        command = self.machine.command("run", "--interval", "600", "-n", "1", "sh", "-c", "echo >> ended; exit 3")
        environment = dict(self.machine.environment, MEND_LOG="debug")
        directory = tempfile.mkdtemp(dir=self.work)
        read, gone = os.pipe()
        os.close(read)
        with open("/dev/full", "wb", buffering=0) as full, open(gone, "wb", buffering=0) as unread:
            for out, err in ((subprocess.DEVNULL, full), (full, full), (subprocess.DEVNULL, unread), (unread, unread)):
                done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, check=False)
                self.assertEqual(done.returncode, 3)
        self.assertEqual(os.path.getsize(os.path.join(directory, "ended")), 4)

    def test_who_goes_on_by_the_exit_code_hears_of_lost_output(self):
        command = self.machine.command("run", "-n", "1", "sh", "-c", "echo result")
        read, gone = os.pipe()
        os.close(read)
        with open("/dev/full", "wb", buffering=0) as full, open(gone, "wb", buffering=0) as unread:
            for out, code in ((full, 1), (unread, 0)):
                done = subprocess.run(command, cwd=self.work, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True, env=self.machine.environment, check=False)
                self.assertEqual((done.returncode, "the end of standard output is lost" in done.stderr), (code, code == 1), done.stderr)

    def test_standard_input_that_cannot_be_read_is_told(self):
        directory = os.open("/", os.O_RDONLY)
        self.addCleanup(os.close, directory)
        done = subprocess.run(self.machine.command("run", "cat"), cwd=self.work, stdin=directory, capture_output=True, text=True, env=self.machine.environment, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("standard input cannot be read, and ends there for the job: Is a directory", done.stderr)

    def shell_at_a_terminal(self, directory):
        """An interactive shell with job control there: its terminal, and what waits until this was said on it."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(directory)
            os.environ.update(self.machine.environment, PS1="", PS2="")
            os.execvp("bash", ["bash", "--norc", "--noediting", "-i"])
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.close, terminal)
        said = b""

        def hears(text):
            nonlocal said
            while text not in said:
                readable, _, _ = select.select([terminal], [], [], PATIENCE)
                self.assertTrue(readable, said)
                said += os.read(terminal, 4096)

        return terminal, hears

    def test_a_job_in_the_background_of_a_terminal_leaves_its_input_alone(self):
        """`mend run … &` of a shell with job control: it is not stopped, and reads what comes when it is brought to the foreground."""
        terminal, hears = self.shell_at_a_terminal(tempfile.mkdtemp(dir=self.work))
        program = "echo awaits; read line; echo it was $((6 * 7)) and $line; exit 5"
        # The first rank of the first job asks for its input at once; that one ends without any.
        os.write(terminal, f"stty -echo; {MEND} run -n 1 sh -c 'sleep 1; echo ran $((3 * 7))' & wait $!; echo code $((40 + $?))\n".encode())
        hears(b"ran 21")
        hears(b"code 40")
        os.write(terminal, f"{MEND} run -n 1 sh -c '{program}' & fg; echo code $((40 + $?))\n".encode())
        hears(b"awaits")
        os.write(terminal, b"something\n")
        hears(b"it was 42 and something")
        hears(b"code 45")
        os.write(terminal, b"exit\n")

    def test_a_restart_in_the_background_of_a_terminal_waits_for_its_input(self):
        """`mend restart --input same … &`: it is not stopped by what it reads first, and reads that when it is brought to the foreground."""
        directory = tempfile.mkdtemp(dir=self.work)
        read, write = os.pipe()
        program = 'read -r first; echo "got $first"; while [ ! -e go ]; do :; done; read -r second; echo "then $second"; exit 5'
        job = self.machine.start(directory, "run", "-n", "1", "bash", "-c", program, stdin=read)
        os.close(read)
        name = self.machine.running(job)
        os.write(write, b"one\n")
        job.wait_for(lambda: "got one" in job.stdout(), "it read")
        self.machine.verb("checkpoint", name)
        self.machine.mend("kill", name)
        job.finish(137)
        os.close(write)
        with open(os.path.join(directory, "go"), "w", encoding="utf-8"):
            pass
        terminal, hears = self.shell_at_a_terminal(directory)
        os.write(terminal, f"stty -echo; {MEND} restart --input same {name} & last=$!\n".encode())
        # It has come to its input when it sleeps in a look at who has the terminal, and was stopped there.
        os.write(terminal, b"sleep 2; case $(ps -o stat= -p $last) in T*) echo stopped $((1 + 1));; *) echo waits $((1 + 1));; esac; fg; echo code $((40 + $?))\n")
        hears(b"waits 2")
        os.write(terminal, b"one\ntwo\n")
        hears(b"then two")
        hears(b"code 45")
        os.write(terminal, b"exit\n")

    def test_interrupt_ends_all_ranks(self):
        mark = "86399.25"
        job = self.machine.start(self.work, "run", "-n", "3", "sleep", mark)
        self.machine.running(job)
        job.interrupt()
        job.finish(130)
        time.sleep(0.2)
        self.assertEqual(subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True, check=False).stdout, b"")

    def test_killed_controller_leaves_no_rank(self):
        mark = "86399.75"
        job = self.machine.start(self.work, "run", "-n", "2", "sleep", mark)
        self.machine.running(job)
        job.interrupt(signal.SIGKILL)
        job.finish(None)
        for _ in range(600):
            left = subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True, check=False).stdout
            if not left:
                return
            time.sleep(0.1)
        self.fail(f"left: {left}")

    def test_ps_and_kill(self):
        job = self.machine.start(self.work, "run", "-n", "2", "sleep", "600")
        name = self.machine.running(job)
        self.assertIn(name, self.mend("ps").stdout)
        self.assertEqual(self.mend("kill", name[:-1]).returncode, 0)
        job.finish(137)
        self.assertNotIn(name, self.mend("ps").stdout)
        self.assertIn(name, self.mend("ps", "--all").stdout)
        done = self.mend("checkpoint", name)
        self.assertEqual(done.returncode, 69)
        self.assertIn("has ended (exit code 137)", done.stderr)

    def test_help_and_version(self):
        for verb in ("run", "ps", "checkpoint", "checkpoints", "restart", "migrate", "explain", "log", "kill", "lab", "version"):
            self.assertEqual(self.mend(verb, "--help").returncode, 0, verb)
        self.assertIn("protocol", self.mend("version").stdout)


class Mpi(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.machine = cls.enterClassContext(Machine())
        cls.checksums = compile_mpi("mpi_checksums.c", os.path.join(cls.work, "checksums"))
        cls.ring = compile_mpi("mpi_ring.c", os.path.join(cls.work, "ring"))

    def test_1_2_4_and_8_ranks(self):
        for ranks in ("1", "2", "4", "8"):
            done = self.machine.mend("run", "-n", ranks, self.ring, cwd=self.work)
            self.assertEqual(done.returncode, 0, f"{ranks} ranks: {done.stderr}")

    def test_every_byte_of_random_traffic(self):
        results = {self.machine.mend("run", "-n", "4", self.checksums, "-r", "40", cwd=self.work).stdout for _ in range(2)}
        self.assertEqual(len(results), 1)
        self.assertIn("checksums digest=", results.pop())

    def test_a_wrapper_script_runs(self):
        """The MPI process is a child of what was started."""
        path = os.path.join(self.work, "wrapper.sh")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{self.ring}\necho wrapped $?\n")
        os.chmod(path, 0o755)
        done = self.machine.mend("run", "-n", "2", path, cwd=self.work)
        self.assertEqual(done.stdout.count("wrapped 0"), 2, done.stderr)

    def test_a_library_without_libfabric_is_refused_by_name(self):
        fake = os.path.join(self.work, "lib")
        os.makedirs(fake, exist_ok=True)
        source = os.path.join(self.work, "fake.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write("int MPI_Init(int *a, char ***b) { return 0; }\n")
        library = os.path.join(fake, "libmpich.so.12")
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libmpich.so.12", "-o", library, source], check=True)
        main = os.path.join(self.work, "main.c")
        with open(main, "w", encoding="utf-8") as file:
            file.write("int MPI_Init(int *, char ***); int main(void) { return MPI_Init(0, 0); }\n")
        program = os.path.join(self.work, "ucx-only")
        subprocess.run(["cc", "-o", program, main, library], check=True)
        environment = dict(self.machine.environment, LD_LIBRARY_PATH=fake)
        done = self.machine.mend("run", "-n", "2", program, cwd=self.work, env=environment)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libfabric", done.stderr)
        self.assertIn("libmpich.so.12", done.stderr)


class Ending(unittest.TestCase):
    def test_a_test_that_is_ended_leaves_no_lab(self):
        """By the runner of the tests, say, at a Ctrl-C: also in the middle of a class that has a lab."""
        script = (
            "import sys, time, unittest; sys.path.insert(0, sys.argv.pop()); from cluster import Lab\n"
            "class Endless(unittest.TestCase):\n"
            "    @classmethod\n"
            "    def setUpClass(cls):\n"
            "        cls.lab = cls.enterClassContext(Lab(1))\n"
            "    def test(self):\n"
            "        print(self.lab.name, self.lab.home, flush=True)\n"
            "        time.sleep(1000)\n"
            "unittest.main()\n"
        )
        command = [sys.executable, "-c", script, os.path.dirname(os.path.abspath(__file__))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as test:
            name, home = test.stdout.readline().split()
            labs = [MEND, "lab", "ls"]
            self.assertIn(name, subprocess.run(labs, capture_output=True, text=True, check=True).stdout)
            test.terminate()
            self.assertNotEqual(test.wait(), 0)
        self.assertNotIn(name, subprocess.run(labs, capture_output=True, text=True, check=True).stdout)
        self.assertFalse(os.path.exists(home))


if __name__ == "__main__":
    unittest.main()
