"""Detached jobs: they outlive who started them; their output is kept, shown as it was printed, and their exit code is told."""

import json
import os
import pty
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
import unittest

from cases import InDirectory, OnMachine
from cluster import BIN, MEND, PATIENCE, Failed, Lab, compile_mpi, processes_of

# Prints lines until there is a file `end`, some to standard error; stays at the 1000th until there is a file `go`; without a child.
COUNTER = """i=0
while [ ! -e end ]; do
  i=$((i + 1)); echo "line $i"
  [ $((i % 100)) != 0 ] || echo "at $i" >&2
  if [ $i = 1000 ]; then while [ ! -e go ]; do :; done; fi
done"""
# Prints what it reads, and stays where it is told to, without a child.
READER = 'while read -r line; do echo "got $line"; case $line in stay*) while [ ! -e go ]; do :; done;; esac; done; echo end'
# The same, for another file each time.
STOPPER = 'n=0; while read -r line; do echo "got $line"; case $line in stay*) n=$((n + 1)); while [ ! -e go-$n ]; do :; done;; esac; done; echo end'
# Stays until there is a file `go`, and ends with 3.
STAYS = 'echo begun; echo remark >&2; while [ ! -e go ]; do sleep 0.05; done; echo "over"; exit 3'


def until(condition, what):
    start = time.monotonic()
    while not (found := condition()):
        if time.monotonic() - start > PATIENCE:
            raise Failed(f"still waiting after {PATIENCE} s for {what}")
        time.sleep(0.03)
    return found


def without_ours(text):
    """Standard error without the messages of mend itself."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("mend: ", "  hint: ")))


class Counts(InDirectory):
    """Jobs of `COUNTER`. Whoever inherits has `logs`, which returns what `mend logs` does."""

    def touch(self, name):
        with open(os.path.join(self.directory, name), "w", encoding="utf-8"):
            pass

    def has_printed(self, name, lines):
        until(lambda: f"line {lines}\n" in self.logs(name).stdout, f"it has printed {lines} lines")

    def printed(self, name):
        """How many lines it has printed, of which none is missing and none doubled."""
        out = self.logs(name).stdout
        lines = out.count("\n")
        # The last one may be there in part.
        whole = "".join(f"line {i}\n" for i in range(1, lines + 2))
        self.assertTrue(whole.startswith(out), "a line is missing or doubled")
        return lines

    def has_printed_all(self, name):
        lines, err = self.printed(name), without_ours(self.logs(name).stderr)
        self.assertTrue(self.logs(name).stdout.endswith(f"line {lines}\n"))
        self.assertEqual(err, "".join(f"at {i}\n" for i in range(100, lines + 1, 100)))


class Detached(Counts, OnMachine):
    def setUp(self):
        super().setUp()
        self.environment = self.machine.environment
        self.addCleanup(self.end_all)

    def end_all(self):
        for one in self.machine.verb("ps"):
            self.machine.mend("kill", one["id"])

    def mend(self, *arguments, **options):
        return self.machine.mend(*arguments, cwd=self.directory, **options)

    def detach(self, *arguments, verb="run", **options):
        """Starts a job; its id, which is all that is printed."""
        done = self.mend(verb, "--detach", *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\A[\w-]+\n\Z")
        return done.stdout.strip()

    def popen(self, *arguments, **options):
        """A verb beside the test, whose output is bytes."""
        pipe = subprocess.PIPE
        options = {"env": self.environment, "stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe} | options
        process = subprocess.Popen([MEND, *arguments], cwd=self.directory, **options)

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()

        self.addCleanup(end)
        return process

    def let_go(self):
        self.touch("go")

    def logs(self, name):
        return self.mend("logs", name)

    def job_file(self, name, *path):
        return os.path.join(self.machine.home, "jobs", name, *path)

    def record(self, name):
        with open(self.job_file(name, "job.json"), encoding="utf-8") as file:
            return json.load(file)

    def ids(self):
        return [one["id"] for one in self.machine.verb("ps")]

    def running(self, name):
        def look():
            status = next((one.get("status") for one in self.machine.verb("ps") if one["id"] == name), None)
            return status and all(rank["state"] == "running" for rank in status["ranks"])

        until(look, f"{name} runs")

    def end_of(self, name):
        return self.mend("wait", name).returncode


class Lives(Detached):
    def test_it_returns_when_the_ranks_run_and_the_job_ends_as_any_other(self):
        name = self.detach("-n", "2", "sh", "-c", STAYS)
        one = next(one for one in self.machine.verb("ps") if one["id"] == name)
        self.assertEqual([rank["state"] for rank in one["status"]["ranks"]], ["running"] * 2)
        # Its session is its own, and has no terminal.
        with open(f"/proc/{self.record(name)['controller_pid']}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        self.assertEqual((fields[3], fields[4]), (str(self.record(name)["controller_pid"]), "0"))
        self.let_go()
        waited = self.mend("wait", name)
        self.assertEqual((waited.returncode, waited.stdout), (3, f"{name} has ended: exit code 3\n"))
        # So it does for a job that ended before, and without a name for the one that ended last.
        self.assertEqual(json.loads(self.mend("wait", "--json").stdout), [{"job": name, "exit_code": 3, "how": "exit code 3"}])
        logs = self.mend("logs", name)
        self.assertEqual((logs.returncode, sorted(logs.stdout.split())), (0, ["begun", "begun", "over", "over"]))
        self.assertEqual(without_ours(logs.stderr), "remark\nremark\n")
        # As `mend run` would have told it: how a rank ended behind what it printed, whatever the other one still prints.
        self.assertRegex(logs.stderr, rf"(?s)\Amend: job {name}: 2 rank.*remark\n.*mend: rank [01] on \S+ exited with code 3\n(remark\n)?\Z")

    def test_errors_of_the_start_are_the_callers(self):
        for code, what, arguments in (
            (127, "no-such-program", ["no-such-program"]),
            (126, "hint", [self.directory]),
            (69, "no-such-host.invalid", ["--hosts", "no-such-host.invalid", "true"]),
            (64, "--spares", ["--spares", "a", "true"]),
            (64, "MEND_SPOOL_MB", ["true"]),
        ):
            environment = dict(self.environment, **({"MEND_SPOOL_MB": "0"} if what == "MEND_SPOOL_MB" else {}))
            done = self.mend("run", "--detach", *arguments, env=environment)
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
            self.assertIn(what, done.stderr)
            self.assertNotIn("is detached", done.stderr)
        self.assertEqual(self.mend("restart", "--detach", "no-such-job").returncode, 69)
        self.assertEqual(self.ids(), [])

    def test_a_program_that_ends_at_once_was_started(self):
        for code in (0, 7):
            name = self.detach("-q", "-n", "3", "sh", "-c", f"exit {code}")
            self.assertEqual(self.end_of(name), code)

    def test_its_caller_can_be_read_to_the_end(self):
        """Nothing of the job keeps what the caller printed to."""
        done = self.mend("run", "--detach", "sh", "-c", STAYS)
        self.assertEqual(self.ids(), [done.stdout.strip()])

    def test_what_its_caller_has_open_it_has_not(self):
        """A lock, say, ends with the caller."""
        ours, theirs = os.pipe()
        starter = self.popen("run", "--detach", "sh", "-c", STAYS, pass_fds=[theirs])
        os.close(theirs)
        name = starter.communicate(timeout=PATIENCE)[0].decode().strip()
        with open(ours, "rb") as file:
            self.assertEqual(file.read(), b"")
        self.assertEqual(self.ids(), [name])

    def test_the_terminal_goes_away(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.directory)
            os.environ.update(self.environment)
            os.execvp("bash", ["bash", "--norc", "-i"])
        self.addCleanup(os.waitpid, pid, 0)
        os.write(terminal, f"{MEND} run --detach sh -c '{STAYS}' > id; exec sleep 600\n".encode())
        path = os.path.join(self.directory, "id")
        until(lambda: os.path.exists(path) and os.path.getsize(path), "the job is accepted")
        os.kill(pid, signal.SIGHUP)
        os.close(terminal)
        with open(path, encoding="utf-8") as file:
            name = file.read().strip()
        # What the terminal's end does to its processes, it does to this one, too.
        os.kill(self.record(name)["controller_pid"], signal.SIGHUP)
        self.assertEqual(self.ids(), [name])
        self.let_go()
        self.assertEqual(self.end_of(name), 3)
        self.assertEqual(self.mend("logs", name).stdout, "begun\nover\n")

    def parts_that_wait(self):
        """Mend's parts, of which the daemon waits for a file `daemon` before it starts; their directory."""
        parts = os.path.join(self.directory, "parts")
        os.mkdir(parts)
        for one in os.listdir(BIN):
            if one != "mendd":
                os.symlink(os.path.join(BIN, one), os.path.join(parts, one))
        path = os.path.join(parts, "mendd")
        with open(path, "w", encoding="utf-8") as file:
            wait = f"until [ -e {self.directory}/daemon ]; do sleep 0.05; done"
            file.write(f'#!/bin/sh\n{wait}\nexec {BIN}/mendd "$@"\n')
        os.chmod(path, 0o755)
        return parts

    def test_who_started_it_is_killed_before_it_runs(self):
        environment = dict(self.environment, MEND_LIBDIR=self.parts_that_wait())
        starter = self.popen("run", "--detach", "sh", "-c", STAYS, env=environment)
        [controller] = until(lambda: children_of(starter.pid), "the controller is there")
        starter.kill()
        starter.wait(PATIENCE)
        self.touch("daemon")
        [name] = until(self.ids, "the job is on record")
        self.assertEqual(self.record(name)["controller_pid"], int(controller))
        self.running(name)
        self.let_go()
        self.assertEqual(self.end_of(name), 3)
        self.assertEqual(self.mend("logs", name).stdout, "begun\nover\n")

    def test_ctrl_c_before_it_runs_gives_it_up(self):
        # Somebody listens and says nothing.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.machine.set("MEND_PORT", str(listener.getsockname()[1]))
            starter = self.popen("run", "--detach", "--hosts", "127.0.0.1", "sleep", "600")
            connection, _ = listener.accept()
            self.addCleanup(connection.close)
            [controller] = until(lambda: children_of(starter.pid), "the controller is there")
            starter.send_signal(signal.SIGINT)
            out, _ = starter.communicate(timeout=PATIENCE)
        self.machine.set("MEND_PORT", None)
        self.assertEqual((starter.returncode, out), (130, b""))
        self.assertFalse(os.path.exists(f"/proc/{controller}"))
        self.assertEqual(self.ids(), [])

    def test_standard_input_is_a_file_or_nothing(self):
        path = os.path.join(self.directory, "input")
        with open(path, "w+", encoding="utf-8") as file:
            file.write("skipped\n" + "".join(f"line {i}\n" for i in range(20000)))
            file.seek(len("skipped\n"))
            name = self.detach("-n", "2", "sh", "-c", "wc -l", stdin=file)
            self.end_of(name)
            # The job reads it for itself.
            self.assertEqual(os.lseek(file.fileno(), 0, os.SEEK_CUR), len("skipped\n"))
        self.assertEqual(sorted(self.mend("logs", name).stdout.split()), ["0", "20000"])
        done = subprocess.run(
            [MEND, "run", "--detach", "wc", "-l"], input="a\nb\n", capture_output=True, text=True, env=self.environment, check=True
        )
        self.assertIn("standard input is a pipe", done.stderr)
        self.end_of(done.stdout.strip())
        self.assertEqual(self.mend("logs", done.stdout.strip()).stdout, "0\n")

    def test_verbs_on_it(self):
        name = self.detach("bash", "-c", COUNTER)
        self.has_printed(name, 1000)
        self.machine.verb("checkpoint", name)
        self.assertEqual(len(self.machine.verb("checkpoints", name)), 1)
        self.assertIn("checkpoint 1", self.mend("log", name).stdout)
        self.assertEqual(self.mend("rm", name).returncode, 69)
        self.assertEqual(self.mend("kill", name).returncode, 0)
        self.assertEqual(self.end_of(name), 137)
        # It goes on where it was, and what it prints comes behind what it printed.
        self.let_go()
        self.assertEqual(self.detach(name, verb="restart"), name)
        self.has_printed(name, 3000)
        self.touch("end")
        self.assertEqual(self.end_of(name), 0)
        self.has_printed_all(name)
        self.assertEqual(self.mend("rm", name).returncode, 0)
        self.assertFalse(os.path.exists(self.job_file(name)))

    def test_the_controller_is_killed_while_it_prints(self):
        name = self.detach("bash", "-c", COUNTER)
        self.has_printed(name, 1000)
        self.machine.verb("checkpoint", name)
        self.let_go()
        self.has_printed(name, 3000)
        waiting = self.popen("wait", name)
        attached = self.popen("attach", name, stdout=subprocess.DEVNULL)
        os.kill(self.record(name)["controller_pid"], signal.SIGKILL)
        for process in (waiting, attached):
            _, said = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 70, said)
            self.assertIn(f"the controller of job {name} was killed".encode(), said)
            self.assertIn(f"mend restart {name}".encode(), said)
            self.assertIn(f"mend logs {name}".encode(), said)
        waited = self.mend("wait", name, "--json")
        self.assertEqual((waited.returncode, json.loads(waited.stdout)[0]["exit_code"]), (70, None))
        before = self.printed(name)
        self.detach(name, verb="restart")
        self.has_printed(name, before + 1000)
        self.touch("end")
        self.assertEqual(self.end_of(name), 0)
        self.has_printed_all(name)
        self.assertNotIn("may be printed twice", self.logs(name).stderr)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return file.read().split()


class Output(Detached):
    SIZE = 3_000_000

    def files(self):
        """Two files of any bytes, which a job prints."""
        contents = []
        for name in ("out", "err"):
            contents.append(os.urandom(self.SIZE))
            with open(os.path.join(self.directory, name), "wb") as file:
                file.write(contents[-1])
        return contents

    def test_it_is_shown_to_the_byte_while_it_comes_and_after(self):
        out, err = self.files()
        wait = "until [ -e go ]; do sleep 0.05; done"
        name = self.detach("-q", "sh", "-c", f"head -c 1000 out; {wait}; tail -c +1001 out; cat err >&2")
        followers = [self.popen("logs", name, "--follow"), self.popen("attach", name, "--from-start")]
        only = [self.popen("logs", name, "--follow", "--stdout"), self.popen("logs", name, "-f", "--stderr")]
        until(lambda: len(self.popen("logs", name).communicate()[0]) == 1000, "it begins")
        late = self.popen("attach", name)
        self.let_go()
        for process in followers:
            self.assertTrue(process.communicate(timeout=PATIENCE) == (out, err), "what is followed differs")
            self.assertEqual(process.returncode, 0)
        self.assertTrue([process.communicate(timeout=PATIENCE) for process in only] == [(out, b""), (b"", err)], "a stream differs")
        out_late, err_late = late.communicate(timeout=PATIENCE)
        self.assertTrue(out.endswith(out_late) and err.endswith(err_late) and len(out_late) <= self.SIZE - 1000, "what came late differs")
        self.assertTrue(self.popen("logs", name).communicate() == (out, err), "what was kept differs")
        with open(os.path.join(self.directory, "both"), "wb") as file:
            self.popen("logs", name, stdout=file).communicate()
        with open(os.path.join(self.directory, "both"), "rb") as file:
            self.assertTrue(file.read() == out)

    def test_both_streams_come_in_the_order_in_which_they_were_printed(self):
        kept = 'until [ -e "$1 $i" ]; do sleep 0.02; done'
        script = f'kept() {{ {kept}; }}; for i in 1 2 3; do echo "out $i"; kept out; echo "err $i" >&2; kept err; done'
        name = self.detach("-q", "sh", "-c", script)
        # Each stream has a way of its own: what is printed on the other one before this is kept may overtake it.
        for line in (f"{stream} {i}" for i in (1, 2, 3) for stream in ("out", "err")):
            until(lambda line=line: line in (logs := self.logs(name)).stdout + logs.stderr, f"`{line}` is kept")
            self.touch(line)
        self.end_of(name)
        both = subprocess.run(
            [MEND, "logs", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment, check=True
        )
        self.assertEqual(both.stdout, "".join(f"out {i}\nerr {i}\n" for i in (1, 2, 3)))

    def test_the_oldest_part_goes_at_the_bound(self):
        out, _ = self.files()
        self.machine.set("MEND_SPOOL_MB", "1")
        name = self.detach("-q", "sh", "-c", "echo begun >&2; cat out; echo over >&2")
        self.end_of(name)
        spool = self.job_file(name, "spool")
        self.assertLessEqual(sum(os.path.getsize(os.path.join(spool, one)) for one in os.listdir(spool)), 1 << 20)
        kept, said = self.popen("logs", name).communicate()
        self.assertTrue(out.endswith(kept) and len(kept) > 800_000, len(kept))
        gone = [int(bytes_) for bytes_ in re.findall(rb"(\d+) bytes of standard output are gone", said)]
        self.assertEqual(sum(gone) + len(kept), self.SIZE)
        self.assertIn(b"6 bytes of standard error are gone", said)
        self.assertTrue(said.endswith(b"over\n"))

    def test_it_is_for_its_owner_alone(self):
        mask = os.umask(0)
        self.addCleanup(os.umask, mask)
        name = self.detach("-q", "echo", "text")
        self.end_of(name)
        self.assertEqual(stat.S_IMODE(os.stat(self.job_file(name, "spool")).st_mode), 0o700)
        for one in os.listdir(self.job_file(name, "spool")):
            self.assertEqual(stat.S_IMODE(os.stat(self.job_file(name, "spool", one)).st_mode), 0o600, one)

    def test_ctrl_c_detaches_and_the_job_runs_on(self):
        name = self.detach("sh", "-c", STAYS)
        for number in (signal.SIGINT, signal.SIGTERM):
            attached = self.popen("attach", name, "--from-start")
            self.assertEqual(attached.stdout.readline(), b"begun\n")
            attached.send_signal(number)
            _, said = attached.communicate(timeout=PATIENCE)
            self.assertEqual(attached.returncode, 128 + number)
            self.assertIn(f"detached from job {name}, which runs on".encode(), said)
        self.assertEqual(self.ids(), [name])
        attached = self.popen("attach", name, "--from-start")
        self.let_go()
        out, _ = attached.communicate(timeout=PATIENCE)
        self.assertEqual((attached.returncode, out), (3, b"begun\nover\n"))

    def test_a_job_that_is_not_detached_can_be_waited_for_and_has_no_logs(self):
        job = self.machine.start(self.directory, "run", "sh", "-c", STAYS)
        name = self.machine.running(job)
        waiting = self.popen("wait", name)
        for verb in ("logs", "attach"):
            done = self.mend(verb, name)
            self.assertEqual(done.returncode, 1)
            self.assertIn("was not started with --detach", done.stderr)
        self.let_go()
        job.finish(3)
        self.assertEqual(waiting.communicate(timeout=PATIENCE)[0].decode(), f"{name} has ended: exit code 3\n")
        self.assertEqual(waiting.returncode, 3)

    def test_an_end_is_not_on_record_before_the_last_output_is_printed(self):
        """Nodes have forgotten it: a controller that is killed while it prints it must not have said that all went well."""
        much, writes = 200_000, "dd if=/dev/zero bs=200000 count=1 2>/dev/null; : > over"
        command = self.machine.command("run", "sh", "-c", writes)
        pipe = subprocess.PIPE
        job = subprocess.Popen(command, env=self.machine.environment, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        until(lambda: os.path.exists(os.path.join(self.directory, "over")), "all is written")
        [name] = [one["id"] for one in self.machine.verb("ps")]
        # Without a reader it goes no further.
        time.sleep(1)
        job.kill()
        out, _ = job.communicate()
        self.assertLess(len(out), much)
        self.assertEqual(self.mend("wait", name).returncode, 70)

    def test_of_several_jobs_the_first_exit_code_that_is_not_0(self):
        names = [self.detach("-q", "sh", "-c", f"exit {code}") for code in (0, 5, 6)]
        waited = self.mend("wait", *names)
        self.assertEqual(waited.returncode, 5, waited.stderr)
        self.assertEqual(waited.stdout, "".join(f"{name} has ended: exit code {code}\n" for name, code in zip(names, (0, 5, 6))))
        self.assertEqual(self.mend("wait", names[0], "no-such-job").returncode, 69)


class Heals(Counts):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))

    def logs(self, name):
        return self.lab.mend("logs", name)

    def test_a_daemon_is_killed_and_the_output_is_kept_once(self):
        lab = self.lab = self.enterContext(Lab(4))
        lab.set("MEND_ON_FAILURE", None)
        argv = [self.program, "-i", "60", "-w", "200", "-m", "8", "-u", "go"]
        done = lab.mend("run", "--detach", "-n", "3", "--hosts", "node1,node2", "--spares", "node3", "--", *argv, cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        name = done.stdout.strip()
        lab.verb("checkpoint", name)
        waiting = subprocess.Popen(lab.command("wait", name), env=lab.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.addCleanup(waiting.wait)
        self.addCleanup(waiting.kill)
        for times in (1, 2):
            lab.kill_daemon(lab.places(name)[0])
            goes_on = lambda: lab.mend("logs", name, "--stderr").stderr.count("restored and run") == times
            try:
                until(goes_on, f"it has gone on {times} times")
            except Failed as error:
                raise Failed(f"{error}\n{lab.mend('logs', name, '--stderr').stderr}\n{lab.mend('log', name).stdout}") from None
            self.assertIsNone(waiting.poll())
            lab.verb("checkpoint", name)
        self.touch("go")
        self.assertEqual(waiting.wait(PATIENCE), 0)
        self.assertEqual(lab.mend("logs", name).stdout, lab.undisturbed("-n", "3", "--hosts", "node4", "--", *argv))

    def test_a_daemon_is_killed_while_the_job_prints(self):
        lab = self.lab = self.enterContext(Lab(2))
        lab.set("MEND_ON_FAILURE", None)
        hosts = ("--hosts", "node1", "--spares", "node2")
        name = lab.mend("run", "--detach", "-q", *hosts, "bash", "-c", COUNTER, cwd=self.directory).stdout.strip()
        self.has_printed(name, 1000)
        lab.verb("checkpoint", name)
        self.touch("go")
        self.has_printed(name, 3000)
        lab.kill_daemon("node1")
        until(lambda: "goes on by itself, from checkpoint 1" in self.logs(name).stderr, "it goes on")
        self.has_printed(name, self.printed(name) + 1000)
        self.touch("end")
        self.assertEqual(lab.mend("wait", name).returncode, 0)
        self.has_printed_all(name)

    def test_a_rank_is_killed_and_its_input_is_read_on(self):
        lab = self.lab = self.enterContext(Lab(1))
        lab.set("MEND_ON_FAILURE", None)
        text = "a\nstay\n" + "".join(f"line {i}\n" for i in range(30000))
        with open(os.path.join(self.directory, "input"), "w+", encoding="utf-8") as file:
            file.write("not read\n" + text)
            file.seek(len("not read\n"))
            done = lab.mend("run", "--detach", "--hosts", "node1", "bash", "-c", READER, cwd=self.directory, stdin=file)
        name = done.stdout.strip()
        until(lambda: "got stay" in lab.mend("logs", name).stdout, "it is in its middle")
        lab.verb("checkpoint", name)
        self.assertTrue(lab.kill_rank("node1", 0, signal.SIGKILL))
        until(lambda: "restored and run" in lab.mend("logs", name).stderr, "it has gone on")
        self.touch("go")
        self.assertEqual(lab.mend("wait", name).returncode, 0)
        self.assertEqual(lab.mend("logs", name).stdout, "".join(f"got {line}\n" for line in text.splitlines()) + "end\n")

    def is_killed_while_nobody_reads(self, machine, *options, messages=subprocess.PIPE):
        """Ranks print more than anybody takes, and the job hears of its end all the same."""
        program = shutil.copy(shutil.which("yes"), os.path.join(self.directory, "chatter"))
        command, pipe = machine.command("run", "-n", "2", *options, program), subprocess.PIPE
        job = subprocess.Popen(command, env=machine.environment, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=pipe, stderr=messages)
        for pipe in filter(None, (job.stdout, job.stderr)):
            self.addCleanup(pipe.close)
        until(lambda: len(processes_of(program)) == 2, "both print")
        # All that waits is full.
        time.sleep(3)
        [name] = [one["id"] for one in machine.verb("ps")]
        killing = subprocess.Popen(machine.command("kill", name), env=machine.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until(lambda: not processes_of(program), "they are ended")
        _, err = job.communicate(timeout=PATIENCE)
        self.assertEqual((job.returncode, killing.wait(PATIENCE)), (137, 0), err)

    def test_nobody_reads_messages_either_and_it_is_killed(self):
        self.lab = self.enterContext(Lab(2))
        self.is_killed_while_nobody_reads(self.lab, "--hosts", "node1,node2", messages=subprocess.STDOUT)

    def test_nobody_reads_and_it_is_killed(self):
        self.lab = self.enterContext(Lab(2))
        self.is_killed_while_nobody_reads(self.lab, "--hosts", "node1,node2")

    def test_nobody_reads_and_it_is_killed_where_there_may_be_a_successor(self):
        self.lab = self.enterContext(Lab(2))
        self.lab.set("MEND_SUCCESSOR", None)
        self.is_killed_while_nobody_reads(self.lab, "--hosts", "node1,node2")

    def test_a_job_with_hosts_is_one_of_the_batch_job_around(self):
        lab = self.lab = self.enterContext(Lab(1))
        lab.set("SLURM_JOB_ID", "17")
        lab.set("SLURM_JOB_NODELIST", "node1")
        started = lab.mend("run", "--detach", "--hosts", "node1", "sleep", "600")
        self.assertEqual(started.returncode, 0, started.stderr)
        killed = lab.mend("kill")
        self.assertEqual((killed.returncode, lab.mend("wait").returncode), (0, 137), killed.stderr)
        lab.set("SLURM_JOB_ID", "18")
        self.assertEqual(lab.mend("wait").returncode, 69)

    def goes_on_in_another_file(self, lose):
        """A job is restarted with a file that is new input, and loses something in the middle of that: no line is missing, and none comes twice."""
        lab = self.lab = self.enterContext(Lab(1))
        for setting in ("MEND_ON_FAILURE", "MEND_SUCCESSOR"):
            lab.set(setting, None)
        # Pieces of standard input end where lines do.
        lines = lambda what, stays: [f"{'stay' if i in stays else what} {i:010}" for i in range(30000)]
        inputs = {"one": lines("line", [0]), "two": lines("more", [1, 20000])}
        for name, text in inputs.items():
            with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in text))
        with open(os.path.join(self.directory, "one"), encoding="utf-8") as file:
            name = lab.mend("run", "--detach", "--hosts", "node1", "bash", "-c", STOPPER, cwd=self.directory, stdin=file).stdout.strip()
        has_read = lambda line: until(lambda: f"got {line}\n" in lab.mend("logs", name).stdout, line)
        has_read(inputs["one"][0])
        lab.verb("checkpoint", name)
        lab.mend("kill", name)
        with open(os.path.join(self.directory, "two"), encoding="utf-8") as file:
            done = lab.mend("restart", "--detach", name, cwd=self.directory, stdin=file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.touch("go-1")
        has_read(inputs["two"][1])
        lab.verb("checkpoint", name)
        self.touch("go-2")
        has_read(inputs["two"][20000])
        lose(lab, name)
        self.touch("go-3")
        self.assertEqual(lab.mend("wait", name).returncode, 0, lab.mend("logs", name).stderr)
        said = lab.mend("logs", name).stdout.splitlines()
        read = said.index(f"got {inputs['two'][0]}")
        self.assertEqual(said, [f"got {line}" for line in inputs["one"][:read] + inputs["two"]] + ["end"])

    def test_a_rank_is_killed_and_its_new_input_is_read_on(self):
        def lose(lab, name):
            self.assertTrue(lab.kill_rank("node1", 0, signal.SIGKILL))
            until(lambda: lab.mend("logs", name).stderr.count("restored and run") == 2, "it has gone on")

        self.goes_on_in_another_file(lose)

    def test_a_controller_is_killed_and_the_new_input_is_read_on(self):
        def lose(lab, name):
            record = json.loads(lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout)
            lab.on(record["controller_host"], "kill", "-KILL", str(record["controller_pid"]))
            until(lambda: any(one["event"] == "took_over" for one in lab.verb("log", name)), "another one goes on")

        self.goes_on_in_another_file(lose)


if __name__ == "__main__":
    unittest.main()
