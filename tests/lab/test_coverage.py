"""What a process can consist of: each program in tests/apps/coverage brings itself into a state, is saved in it, and finds
out by itself whether anything was lost.

Each is saved twice while it runs, by a copy of it that writes and then standing still, before it is killed; restarted, saved
again, killed, restarted again, and then let go. So a save disturbs nothing, and what was restored once can be saved again.
"""

import fcntl
import glob
import json
import os
import pty
import shutil
import subprocess
import tempfile
import unittest

from cases import InDirectory, OnMachine
from cluster import Failed, Lab, ROOT, VENV

PROGRAMS = os.path.join(ROOT, "tests", "apps", "coverage")
NOT_HERE = 77
FLAGS = {"openmp.c": ["-fopenmp"]}


def compile_program(name, directory):
    """Compiles one of the programs; its path."""
    target = os.path.join(directory, name.replace(".", "-"))
    compiler = ["c++", "-std=c++17"] if name.endswith(".cpp") else ["cc"]
    command = [*compiler, "-O1", "-Wall", "-pthread", *FLAGS.get(name, []), "-o", target, os.path.join(PROGRAMS, name), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise Failed(f"{' '.join(command)}: {done.stderr}")
    return target


def find_python():
    """The Python that has NumPy and mpi4py."""
    if not glob.glob(os.path.join(VENV, "lib", "python3*", "site-packages", "mpi4py")):
        raise Failed(f"no NumPy and mpi4py below {VENV}; run `make setup`")
    return os.path.join(VENV, "bin", "python3")


# What refused.c holds, and the name under which it must be refused.
OBSTACLES = {
    "child": "child process",
    "zombie": "child process",
    "sysv": "System V shared memory",
    "semaphores": "System V semaphores",
    "queue": "System V message queue",
    "thread-clock": "POSIX timer 0 on the processor time of a thread",
    "under-way": "descriptors are under way in it (SCM_RIGHTS)",
    "packets": "pipe with unread packets",
    "events": "inotify descriptor with unread events",
    "far-watch": "inotify watch of a file that cannot be found",
    "lease": "lease on a file",
    "memory-lock": "POSIX lock on memory",
    "uring": "io_uring",
    "aio": "/[aio] is mapped at",
    "named-socket": "unix socket with a name",
    "device": "device /dev/",
    "shadow-stack": "a shadow stack cannot be saved yet",
    "protection-key": "protection key",
    "fifo": "named pipe",
    "large-unlinked": "deleted file",
    "large-node-file": "in the node's memory, with more than 256 MiB",
}


# Writes to a descriptor of its own choice. No command of its is another program: a child is in the way of a checkpoint.
SCRIPT = """
exec 6>log6
echo one >&6
echo ready
until [ -e go ]; do read -r -t 0.01 _; done
echo two >&6
echo OK
"""


class Alone:
    """For test cases that have a directory `work`."""

    def runs_alone(self, *arguments):
        """Without Mend the program must find nothing wrong either; whether this machine has what it needs."""
        directory = tempfile.mkdtemp(dir=self.work)
        for file in ("go", "end"):
            with open(os.path.join(directory, file), "w", encoding="utf-8"):
                pass
        done = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == NOT_HERE:
            return False
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, "OK"), done.stdout + done.stderr)
        return True


class Coverage(Alone, OnMachine):
    def start(self, *arguments):
        """Starts the program and waits until it is in its state; the job and its name."""
        job = self.machine.start(self.directory, "run", *arguments)
        name = self.machine.running(job)
        job.wait_for(lambda: "ready" in job.stdout(), "the program is ready")
        return job, name

    def stop(self, job, name):
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)

    def restart(self, name):
        job = self.machine.start(self.directory, "restart", name)
        self.machine.running(job)
        return job

    def survives(self, *arguments, between=lambda: None):
        """Saves and restarts as the head of this file says; what was printed."""
        job, name = self.start(*arguments)
        for mode in ("copy-on-write", "stop"):
            self.machine.verb("checkpoint", name, "--mode", mode)
        return self.comes_back(job, name, between)

    def comes_back(self, job, name, between=lambda: None):
        """Restarts what was saved, twice, with a checkpoint in the middle; the one that went on to its end, well."""
        self.stop(job, name)
        between()
        job = self.restart(name)
        self.machine.verb("checkpoint", name)
        self.stop(job, name)
        job = self.restart(name)
        job.let_go()
        code = job.finish(None)
        self.assertEqual((code, job.stdout().splitlines()[-1]), (0, "OK"), job.stdout() + job.stderr())
        return job

    def covered(self, name):
        program = compile_program(name, self.work)
        if not self.runs_alone(program):
            self.skipTest("this machine offers none")
        self.survives(program)

    def test_threads_blocked_in_every_way(self):
        self.covered("blocked.c")

    def test_timeouts_go_on_where_they_were(self):
        self.covered("timeouts.c")

    def test_signals_pending_masked_and_handled(self):
        self.covered("signals.c")

    def test_queued_signals_keep_order_and_values(self):
        self.covered("order.c")

    def test_timers(self):
        self.covered("timers.c")

    def test_mappings(self):
        self.covered("mappings.c")

    def test_huge_page_pool(self):
        self.covered("hugetlb.c")

    def test_memory_that_is_swapped_out(self):
        program = compile_program("swapped.c", self.work)
        if not self.runs_alone(program):
            self.skipTest("this machine swaps nothing out")
        # The chain stays as it grows, whatever its images cost.
        self.machine.environment.update(MEND_SPACE_PERCENT="off", MEND_INCREMENTAL="31")
        job, name = self.start(program)
        modes = ("copy-on-write", "stop", "copy-on-write", "stop")
        told = [self.machine.verb("checkpoint", name, "--mode", mode) for mode in modes]
        last = told[-1]["directory"]
        shown = json.loads(self.machine.mend("image", "show", os.path.join(last, "rank-0.image"), "--json").stdout)
        self.assertEqual(shown["chain"][0]["sequence"], len(modes) - 1, told)
        self.comes_back(job, name)

    def test_more_memory_than_there_may_be(self):
        group = os.environ.get("MEND_TEST_LIMITED_GROUP")
        if not group:
            self.skipTest("no control group with a limit of memory, swap space beyond it and room for anybody")
        self.survives(compile_program("limited.c", self.work), group)

    def test_numbers_of_descriptors_are_the_programs(self):
        program = compile_program("numbers.c", self.work)
        for arguments in ((), ("fill",)):
            with self.subTest(arguments):
                self.assertTrue(self.runs_alone(program, *arguments))
                self.directory = tempfile.mkdtemp(dir=self.work)
                self.survives(program, *arguments)

    def test_a_file_that_a_script_opened_by_number(self):
        self.survives("bash", "-c", SCRIPT)
        with open(os.path.join(self.directory, "log6"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "one\ntwo\n")

    def test_files_and_locks(self):
        self.covered("files.c")

    def test_files_in_the_nodes_memory(self):
        self.covered("node_files.c")

    def test_pipes_sockets_and_events(self):
        self.covered("channels.c")

    def test_pipes_opened_twice_and_what_epoll_has_told(self):
        self.covered("watched.c")

    def test_counters_of_a_jvm_whose_file_is_gone(self):
        program = compile_program("counters.c", self.work)
        self.assertTrue(self.runs_alone(program))
        place = f"/tmp/hsperfdata_mend-test-{os.getuid()}"
        self.survives(program, between=lambda: shutil.rmtree(place))

    def test_scheduling(self):
        self.covered("scheduling.c")

    def test_registers(self):
        self.covered("registers.c")

    def test_tile_registers(self):
        self.covered("amx.c")

    def test_malloc_under_load(self):
        self.covered("allocation.c")

    def test_openmp(self):
        self.covered("openmp.c")

    def test_cpp_exceptions(self):
        self.covered("exceptions.cpp")

    def test_numpy(self):
        self.survives(find_python(), os.path.join(PROGRAMS, "numpy_arrays.py"))

    def test_mpi4py(self):
        self.survives("-n", "2", find_python(), os.path.join(PROGRAMS, "mpi4py_ranks.py"))

    def test_a_terminal_that_is_gone_is_the_jobs_output(self):
        master, slave = pty.openpty()
        program = compile_program("terminal.c", self.work)
        job = self.survives(program, os.ttyname(slave), between=lambda: (os.close(slave), os.close(master)))
        self.assertIn("on the terminal\n", job.stdout())
        self.assertIn("on standard error\n", job.stderr())

    def test_what_cannot_be_saved_is_named_and_the_program_runs_on(self):
        program = compile_program("refused.c", self.work)
        for kind, name in OBSTACLES.items():
            with self.subTest(kind):
                if not self.runs_alone(program, kind):
                    self.skipTest(f"{kind}: this machine offers none")
                self.directory = tempfile.mkdtemp(dir=self.work)
                job, job_name = self.start(program, kind)
                told = self.machine.mend("explain", job_name)
                self.assertEqual((told.returncode, name in told.stdout), (1, True), told.stdout)
                done = self.machine.mend("checkpoint", job_name)
                self.assertEqual((done.returncode, name in done.stderr), (1, True), done.stderr)
                self.assertEqual(self.machine.verb("checkpoints", job_name), [])
                job.let_go()
                job.wait_for(lambda: "given up" in job.stdout(), "the program gives it up")
                self.assertEqual(self.machine.mend("explain", job_name).returncode, 0)
                self.machine.verb("checkpoint", job_name)
                with open(os.path.join(self.directory, "end"), "w", encoding="utf-8"):
                    pass
                job.finish(0)

    def test_a_lock_that_somebody_else_took_refuses_the_restart(self):
        program = compile_program("files.c", self.work)
        job, name = self.start(program)
        self.machine.verb("checkpoint", name)
        self.stop(job, name)
        path = os.path.join(self.directory, "below", "flock")
        held = self.enterContext(open(path, encoding="utf-8"))
        fcntl.flock(held, fcntl.LOCK_EX)
        done = self.machine.mend("restart", name)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn(f"lock on {path}", done.stderr)


class Moved(Alone, InDirectory):
    """The same programs, moved from node to node and back instead of saved."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(2))

    def test_programs_move_whole(self):
        names = ("blocked.c", "signals.c", "timers.c", "mappings.c", "files.c", "node_files.c", "channels.c", "watched.c", "numbers.c", "registers.c", "amx.c")
        for name in names:
            with self.subTest(name):
                program, directory = compile_program(name, self.work), tempfile.mkdtemp(dir=self.work)
                if not self.runs_alone(program):
                    continue
                job = self.lab.start(directory, "run", "--hosts", "node1,node2", "--", program)
                job_name = self.lab.running(job)
                job.wait_for(lambda: "ready" in job.stdout(), "the program is ready")
                for node in ("node2", "node1"):
                    self.lab.verb("migrate", job_name, "0", "--to", node)
                job.let_go()
                code = job.finish(None)
                self.assertEqual((code, job.stdout().splitlines()[-1]), (0, "OK"), job.stdout() + job.stderr())

    def test_a_program_with_all_the_descriptors_it_may_have_moves(self):
        program, directory = compile_program("numbers.c", self.work), tempfile.mkdtemp(dir=self.work)
        self.assertTrue(self.runs_alone(program, "fill"))
        job = self.lab.start(directory, "run", "--hosts", "node1,node2", "--", program, "fill")
        job_name = self.lab.running(job)
        job.wait_for(lambda: "ready" in job.stdout(), "the program is ready")
        for node in ("node2", "node1"):
            self.lab.verb("migrate", job_name, "0", "--to", node)
        job.let_go()
        code = job.finish(None)
        self.assertEqual((code, job.stdout().splitlines()[-1]), (0, "OK"), job.stdout() + job.stderr())


if __name__ == "__main__":
    unittest.main()
