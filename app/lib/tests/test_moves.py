"""Moves of ranks: the last line is that of a run without moves; what can't move says why, and the job goes on."""

import glob
import os
import re
import shutil
import signal
import subprocess
import time
import unittest
import unittest.mock

from programs import OUT, PYTHON, ROOT, SOURCES, VENV, InDirectory, program, run, skip, start

TRAVEL = os.path.join(SOURCES, "travel.py")
PATIENCE = float(os.environ.get("MEND_TEST_PATIENCE", "180"))
_undisturbed = {}


def processes(name):
    """Ids of the processes that run a program."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/exe") == name:
                found.append(int(entry))
        except OSError:
            continue
    return found


def kibibytes(pid):
    """What /proc tells of a process's memory."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in file) if key in ("VmHWM", "VmRSS", "RssAnon")}


def processor_seconds(pid):
    """What /proc tells of a process's use of processors."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return sum(int(ticks) for ticks in file.read().rpartition(")")[2].split()[11:13]) / os.sysconf("SC_CLK_TCK")


def signals(pid, which):
    """A set of signals that /proc tells of a process, as bits."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith(which))


class Moving(InDirectory):
    def moves(self, ranks, *arguments, mpi="", cells=1000, steps=60, pause=20000, **settings):
        mpiexec = shutil.which(f"mpiexec.{mpi}") if mpi else None
        return run(ranks, [program(f"moves.{mpi}" if mpi else "moves"), str(cells), str(steps), "-p", str(pause), *arguments], self.directory, mpiexec,
                   **{"watch_seconds": 0.05, "restart": "none", **settings})

    def expected(self, ranks, cells=1000, steps=60):
        key = ranks, cells, steps
        if key not in _undisturbed:
            _undisturbed[key] = self.line(self.good(self.moves(ranks, cells=cells, steps=steps, pause=0)), "moves digest")
        return _undisturbed[key]

    def same(self, outcome, ranks, **size):
        output = self.good(outcome)
        self.assertEqual(self.line(output, "moves digest"), self.expected(ranks, **size), output)
        self.assertEqual(glob.glob(self.path("checkpoints", "move*")), [], output)
        return output


# Of an old process whose number in the job is MEND_TEST_RANK the first communicator of old and new processes fails when it has been made.
FAILING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdlib.h>
static int arrives;
static __attribute__((constructor)) void look(void) { arrives = getenv("MEND_APP_ARRIVES") != NULL; }
#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)
int SPLIT(MPI_Comm comm, int color, int key, MPI_Comm *made) {
    static int failed;
    int (*split)(MPI_Comm, int, int, MPI_Comm *) = (int (*)(MPI_Comm, int, int, MPI_Comm *))dlsym(RTLD_NEXT, TEXT_OF(SPLIT));
    int rank, all, old, done = split(comm, color, key, made);
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &old);
    PMPI_Comm_size(comm, &all);
    if (arrives || all <= old || rank != atoi(getenv("MEND_TEST_RANK")) || failed++)
        return done;
    *made = MPI_COMM_NULL;
    return MPI_ERR_OTHER;
}
"""


# A new process has no memory for as many bytes, where the library asks for them.
POOR = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
static int arrives;
static __attribute__((constructor)) void look(void) { arrives = getenv("MEND_APP_ARRIVES") != NULL; }
void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    Dl_info from;
    if (!real)
        real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap64");
    if (arrives && length >= strtoull(getenv("MEND_TEST_BYTES"), NULL, 10) && dladdr(__builtin_return_address(0), &from) && strstr(from.dli_fname, "libmend-app")) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return real(at, length, protection, flags, fd, offset);
}
"""


class Moved(Moving):
    def test_one_half_and_all_ranks(self):
        for ranks, who, told in ((1, "0", "rank 0"), (2, "1", "rank 1"), (4, "0,2-3", "ranks 0, 2, 3"), (3, "all", "ranks 0, 1, 2")):
            with self.subTest(ranks=ranks):
                output = self.same(self.moves(ranks, "-m", "5", who, ""), ranks)
                self.assertIn(f"moved: {told};", output)
                # Handlers run in old processes, too, and can tell.
                self.assertEqual([output.count(f"exit, departed: {departed}") for departed in (0, 1)], [ranks, len(re.findall(r"\d", told))], output)

    def test_a_program_that_abandons_the_library_wakes_the_old_process_and_begins_again(self):
        output = self.good(self.moves(1, "-m", "2", "0", "", "-b", "50"))
        self.assertIn("moved: rank 0;", output)
        self.assertIn("moves: begins again: 0, and ends: 0", output)

    def test_twice_in_a_row_to_a_host(self):
        output = self.same(self.moves(4, "-n", "2", "-m", "5", "1-2", "localhost", "-m", "25", "all", "localhost", steps=70, calls=20, keep=5), 4, steps=70)
        self.assertEqual(len(re.findall(r"moved: ranks .*\(localhost\)", output)), 2, output)
        # A call of mend_app_checkpoint_now() isn't one of the 20.
        self.assertEqual(self.checkpoints(), [3, 21, 41, 61], output)
        logs = [open(self.path(f"log-{rank}"), encoding="utf-8") for rank in range(4)]
        for log in logs:
            with log:
                self.assertEqual(log.read(), "".join(f"step {step}\n" for step in range(70)))

    def test_each_way_in_small_parts_and_another_order(self):
        for through in ("pipeline", "memory", "disk"):
            for split in ("element", "dataset", "memblock") if through == "pipeline" else ("element",):
                with self.subTest(through=through, split=split):
                    output = self.moves(2, "-m", "5", "0", "", "-a", "order", cells=200000, move_through=through, move_split=split, move_chunk=50000)
                    self.assertIn("moved: rank 0;", self.same(output, 2, cells=200000))

    def test_asked_for_by_a_file_beside_a_checkpoint(self):
        process = start(2, [program("moves"), "1000", "60", "-p", "50000", "-u", "2"], self.directory, watch_seconds=0.05, restart="none", signal="USR2")
        until = time.monotonic() + PATIENCE
        while not os.path.exists(self.path("log-1")) and time.monotonic() < until:
            time.sleep(0.02)
        for name, text in (("request", ""), ("move", "ranks = 1\nhosts = localhost\n")):
            with open(self.path(f"{name}.part"), "w", encoding="utf-8") as file:
                file.write(text)
            os.rename(self.path(f"{name}.part"), self.path("checkpoints", name))
        self.write("go", "")
        output = ""
        for line in process.stdout:
            output += line
            if "moved:" in line:
                self.ask_the_old_process(until)
        process.stdout.close()
        process.wait(timeout=PATIENCE)
        self.assertIn("moved: rank 1 (localhost);", self.same((process.returncode, output), 2))
        self.assertEqual(len(self.checkpoints()), 1, output)

    def test_a_request_that_rank_0_cancels_after_it_moved_is_over_for_all(self):
        process = start(2, [program("moves"), "1000", "60", "-p", "10000", "-u", "2", "-l"], self.directory, watch_seconds=0.02, restart="none", join_seconds=1)
        until = time.monotonic() + PATIENCE
        while not os.path.exists(self.path("log-1")) and time.monotonic() < until:
            time.sleep(0.02)
        for name, text in (("request", ""), ("move", "ranks = 0\n")):
            os.rename(self.write(f"{name}.part", text), self.path("checkpoints", name))
        # Both are seen by then.
        time.sleep(0.3)
        self.write("go", "")
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertIn("moved: rank 0;", self.same((process.returncode, output), 2))
        self.assertEqual(sorted(re.findall(r"rank (\d): no checkpoint", output)), ["0", "1"], output)
        self.assertEqual(self.checkpoints(), [])

    def ask_the_old_process(self, until):
        """The signal that asks for a checkpoint is sent to the process that isn't a rank any more, as mpirun does when it is sent to the job."""
        while time.monotonic() < until and (all_of_them := processes(program("moves"))):
            for pid in all_of_them:
                try:
                    if not signals(pid, "SigCgt") & 1 << signal.SIGUSR2 - 1:
                        os.kill(pid, signal.SIGUSR2)
                        return
                except OSError:
                    continue
            time.sleep(0.005)

    def test_a_checkpoint_after_a_move_and_a_restart_from_it(self):
        self.write("mend-app.conf", "directory = checkpoints\n")
        process = start(3, [program("moves"), "1000", "60", "-p", "20000", "-u", "2", "-m", "5", "0,2", "", "-c", "30", "-k", "58"], self.directory, watch_seconds=0.05)
        until = time.monotonic() + PATIENCE
        while not os.path.exists(self.path("log-0")) and time.monotonic() < until:
            time.sleep(0.02)
        # It is for the next run: ranks that move keep the settings that the others have.
        self.write("mend-app.conf", "directory = other\n")
        os.mkdir(self.path("other"))
        self.write("go", "")
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("moved: ranks 0, 2;", output)
        self.assertEqual(len(self.checkpoints()), 1, output)
        output = self.same(self.moves(3, restart="auto", directory="checkpoints"), 3)
        self.assertIn("moves: goes on at step", output)

    def test_a_kill_in_the_middle_leaves_the_last_checkpoint(self):
        size = {"cells": 8000000, "steps": 12}
        process = start(2, [program("moves"), "8000000", "12", "-p", "200000", "-c", "1", "-m", "6", "1", ""], self.directory, watch_seconds=0.05, move_chunk=65536)
        until = time.monotonic() + PATIENCE
        before = set()
        while len(before) < 2 and time.monotonic() < until:
            before = set(processes(program("moves")))
        while not (arrived := set(processes(program("moves"))) - before) and time.monotonic() < until:
            time.sleep(0.002)
        os.kill(arrived.pop(), signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertNotEqual(process.returncode, 0, output)
        self.assertNotIn("moves digest", output)
        self.assertEqual(len(self.checkpoints()), 1, output)
        output = self.good(self.moves(2, restart="auto", pause=0, **size))
        self.assertIn("moves: goes on at step", output)
        self.assertEqual(self.line(output, "moves digest"), self.expected(2, **size))

    def test_conjugate_gradients(self):
        expected = self.line(self.good(run(4, [program("cg"), "100000", "12"], self.directory)), "cg ")
        output = self.good(run(4, [program("cg"), "100000", "12", "-m", "2", "1,3", ""], self.directory, watch_seconds=0.02, move_chunk=1 << 18))
        self.assertIn("moved: ranks 1, 3;", output)
        self.assertEqual(self.line(output, "cg "), expected)

    def test_open_mpi(self):
        self.assertIn("moved: ranks 0, 2;", self.same(self.moves(3, "-m", "5", "0,2", "", mpi="openmpi"), 3))

    def test_intel_mpi(self):
        library = os.path.join(VENV, "intel", "lib")
        if not os.path.exists(os.path.join(library, "libmpi.so.12")):
            skip("moves with Intel MPI", f"it isn't in {library} (tests/setup.sh)")
        # A library of MPICH's ABI takes the place of the one that the program was linked with.
        own = ["env", f"LD_LIBRARY_PATH={library}:{VENV}/lib/mpich", f"I_MPI_ROOT={VENV}/intel", "I_MPI_FABRICS=ofi", "FI_PROVIDER=tcp", program("moves")]
        output = self.good(run(3, [*own, "1000", "60", "-p", "20000", "-m", "5", "0,2", ""], self.directory, watch_seconds=0.05, restart="none"))
        self.assertIn("moved: ranks 0, 2;", output)
        self.assertEqual(self.line(output, "moves digest"), self.expected(3))

    def test_an_mpi_library_that_starts_no_processes(self):
        output = self.same(self.moves(2, "-m", "5", "1", "", mpi="mpich"), 2)
        if "moved:" not in output:
            self.assertIn("no move: MPI can't start new processes here: ", output)


class Memory(Moving):
    def test_two_parts_beside_the_data_and_little_in_the_old_process_which_sleeps(self):
        chunk, slack, size = 16 << 20, 8 << 10, {"cells": 16000000, "steps": 40}
        process = start(2, [program("moves"), "16000000", "40", "-p", "100000", "-m", "8", "1", ""], self.directory, watch_seconds=0.05, restart="none", move_chunk=chunk)
        first, seen, last, used, until = [], {}, {}, {}, time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < until:
            for pid in processes(program("moves")):
                try:
                    memory, seconds = kibibytes(pid), processor_seconds(pid)
                except OSError:
                    continue
                if "VmHWM" in memory:
                    first.extend([] if pid in first else [pid])
                    seen.setdefault(pid, memory)
                    seen[pid] = memory if len(first) < 3 else seen[pid]
                    last[pid] = memory
                    used.setdefault(pid, []).append((time.monotonic(), seconds, memory["RssAnon"]))
            time.sleep(0.02)
        output, _ = process.communicate()
        self.assertIn("moved: rank 1;", self.same((process.returncode, output), 2, **size))
        data = 8 * size["cells"] // 2 >> 10
        old = [pid for pid in first[:2] if last[pid]["VmRSS"] < data]
        self.assertEqual(len(old), 1, last)
        (old,), new = old, first[2]
        # A third part would be more than what MPI and HDF5 take meanwhile.
        most = seen[old]["VmHWM"] + (2 * chunk >> 10) + slack
        self.assertLess(last[old]["VmHWM"], most, (seen, last))
        self.assertLess(last[new]["VmHWM"], most, (seen, last))
        # MPI's own is in it.
        self.assertLess(last[old]["RssAnon"], 16 << 10, last)
        # From when its memory is given back it sleeps. One that spins would use what a processor gives it.
        asleep = [(at, seconds) for at, seconds, anonymous in used[old] if anonymous < 16 << 10 and at > used[new][0][0]]
        self.assertGreater(asleep[-1][0] - asleep[0][0], 1)
        self.assertLess(asleep[-1][1] - asleep[0][1], 0.1)


class Refused(Moving):
    def refused(self, word, *arguments, ranks=2, steps=25, **settings):
        output = self.same(self.moves(ranks, *arguments, steps=steps, **settings), ranks, steps=steps)
        self.assertIn(word, output)
        self.assertNotIn("moved:", output)
        return output

    def test_what_is_open_is_named(self):
        for what, word in (("window", "window `halo` of MPI_Win_create is open"), ("request", "a request of MPI_Irecv is open"), ("communicator", "communicator `mine` is of MPI_Comm_dup"),
                           ("inter", "communicator `mine` is of MPI_Intercomm_create"), ("file", "a file of MPI_File_open is open")):
            with self.subTest(what):
                self.refused(f"no move: {word}", "-o", what, "3", "-m", "5", "1", "")

    def test_calls_that_open_something_are_seen(self):
        """Each of MPI's functions that makes a request, a window, a file or a communicator, in what the MPI library's own header declares."""
        shared = os.path.join(OUT, "share", "mend-app")
        for mpicc, mpiexec in ((os.path.join(VENV, "bin", "mpicc"), None), (shutil.which("mpicc.openmpi"), shutil.which("mpiexec.openmpi"))):
            if not mpicc:
                continue
            flags = ["-std=c17", "-D_GNU_SOURCE", f"-I{OUT}/include", f"-I{shared}"]
            with self.subTest(mpicc):
                subprocess.run([mpicc, *flags, os.path.join(SOURCES, "open.c"), f"-L{OUT}/lib", f"-Wl,-rpath,{OUT}/lib", "-lmend-app", "-o", self.path("open")], check=True)
                self.assertEqual(self.good(run(1, [self.path("open")], self.directory, mpiexec)), "open: 0 wrong, calls are seen\n")
                declared = subprocess.run([mpicc, *flags, "-E", "-P", os.path.join(OUT, "include", "mend_app_mpi.h")], capture_output=True, text=True, check=True).stdout
                makes = {name for name, parameters in re.findall(r"\bint (MPI_\w+) ?\(([^;]*)\)[^;]*;", declared) if re.search(r"\bMPI_(Request|Win|File|Comm) ?\* ?\w+ ?(,|$)", parameters)}
                # These open nothing, or something of what is open already.
                makes = {name for name in makes if not re.match(r"MPI_(Start|Cancel|Comm_get_parent|File_i\w+|R(put|get|accumulate)\w*)$", name)}
                seen = set(re.findall(r" T (MPI_\w+)", subprocess.run(["nm", self.path("open")], capture_output=True, text=True, check=True).stdout))
                self.assertGreater(len(makes), 60)
                self.assertEqual(makes - seen, set())

    def test_hosts_and_ranks_that_are_not_there(self):
        self.refused("host `no-such-host.invalid` isn't known to this machine", "-m", "5", "1", "no-such-host.invalid")
        self.refused("there is no rank 2: ranks are 0 to 1", "-m", "5", "1-2", "")
        self.refused("ranks = 1-0: the first is above the last", "-m", "5", "1-0", "")
        self.refused("ranks = one: numbers are needed", "-m", "5", "one", "")
        self.refused("\"-o\" isn't the name of a host", "-m", "5", "1", "-o")

    def test_programs_that_do_otherwise_in_the_new_process(self):
        self.expected(2, steps=25)
        for what, word in (("missing", "`total`: the program hasn't registered that"), ("more", "has no variable `more`"), ("spread", "`u` in context main is spread otherwise than in the old process"), ("early", "ended before it came to the safe point where rank 1 moved"),
                           ("silent", "hasn't made communicator `ring`")):
            with self.subTest(what):
                self.assertIn("can't go on from its state", self.refused(word, "-m", "5", "1", "", "-a", what))
                # What the new process wrote on the way isn't in the old one's file.
                with open(self.path("log-1"), encoding="utf-8") as log:
                    self.assertEqual(log.read(), "".join(f"step {step}\n" for step in range(25)))

    def test_communicators_that_fail_in_one_old_process(self):
        """The new process is there and waits for a word from it: it hears that it isn't wanted, and the program goes on where it was."""
        for failing, split in (("0", "PMPI_Comm_split"), ("1", "PMPI_Comm_split"), ("0", "MPI_Comm_split")):
            with self.subTest(failing=failing, split=split):
                shim = self.path(f"{split}.so")
                subprocess.run([os.path.join(VENV, "bin", "mpicc"), "-shared", "-fPIC", f"-DSPLIT={split}", self.write("failing.c", FAILING), "-o", shim], check=True)
                before = {"LD_PRELOAD": shim, "MEND_TEST_RANK": failing}
                with unittest.mock.patch.dict(os.environ, before):
                    # mpi4py calls MPI's own names.
                    if split.startswith("P"):
                        output = self.same(self.moves(3, "-m", "5", "1", ""), 3)
                    else:
                        output = self.good(run(3, [PYTHON, TRAVEL, "30", "5", "1"], self.directory, watch_seconds=0.05, restart="none"))
                self.assertIn("no move: the communicators can't be made again", output)
                self.assertNotIn("moved:", output)

    def test_new_processes_without_memory(self):
        """They receive neither the table nor the first part of the data, which the old process has sent."""
        shim = self.path("poor.so")
        subprocess.run(["gcc", "-shared", "-fPIC", self.write("poor.c", POOR), "-o", shim], check=True)
        for size, word in (("4096", "the old process's table can't be read"), ("1000000", "a message from the old process can't be received")):
            with self.subTest(size=size):
                with unittest.mock.patch.dict(os.environ, {"LD_PRELOAD": shim, "MEND_TEST_BYTES": size}):
                    output = self.same(self.moves(2, "-m", "5", "0", "", cells=400000, steps=20), 2, cells=400000, steps=20)
                self.assertIn(word, output)
                self.assertIn("the new process of rank 0 can't go on from its state", output)

    def test_programs_that_use_another_world(self):
        script = """
import sys, time, numpy, mend_app
from mpi4py import MPI
with mend_app.Session(MPI.COMM_WORLD, program="tied 1") as session:
    state = session.scalars(step=0)
    while state.step < 100:
        if state.step == 5 and MPI.COMM_WORLD.rank == 0:
            session.migrate("1")
        session.checkpoint()
        MPI.COMM_WORLD.Barrier()
        time.sleep(0.02)
        state.step += 1
    print("tied ends", state.step)
"""
        output = self.good(run(2, [PYTHON, "-c", script], self.directory, watch_seconds=0.05))
        self.assertIn("no move: the program doesn't use session.world: with MPI.COMM_WORLD ranks can't move", output)
        self.assertEqual(output.count("tied ends 100"), 2, output)
        process = start(2, [program("heat"), "1000", "100", "-p", "0", "50000"], self.directory, watch_seconds=0.05, restart="none", directory="other")
        until = time.monotonic() + PATIENCE
        while not os.path.exists(self.path("other", "lock")) and time.monotonic() < until:
            time.sleep(0.02)
        asked = self.path("other", "move")
        while process.poll() is None and time.monotonic() < until:
            # What is there when the program looks for the first time asks for nothing.
            with open(self.path("move.part"), "w", encoding="utf-8") as file:
                file.write("ranks = 1\n")
            os.rename(self.path("move.part"), asked)
            time.sleep(0.4)
            if not os.path.exists(asked):
                break
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("no move: the program doesn't ask for mend_app_world(): with MPI_COMM_WORLD ranks can't move", output)
        self.assertIn("heat digest", output)

    def test_without_mpi(self):
        output = self.good(self.python("import mend_app\nwith mend_app.Session() as session:\n    try:\n        session.migrate('all')\n    except mend_app.Error as error:\n        print('refused:', error)\n"))
        self.assertIn("refused: no move: this program has no MPI", output)


class Languages(InDirectory):
    def same(self, first, ranks, command, *arguments, mpiexec=None, **settings):
        expected = self.line(self.good(run(ranks, command, self.directory, mpiexec)), first)
        output = self.good(run(ranks, [*command, *arguments], self.directory, mpiexec, watch_seconds=0.05, restart="none", **settings))
        self.assertEqual(self.line(output, first), expected)
        return output

    def test_python(self):
        output = self.same("travel digest", 3, [PYTHON, TRAVEL, "50"], "5", "all", "30", "0,2")
        self.assertEqual(output.count("moved: ranks"), 2, output)
        for what, word in (("window", "window `halo` is open"), ("request", "a request (Request) is open")):
            output = self.same("travel digest", 2, [PYTHON, TRAVEL, "25"], "5", "1", what)
            self.assertIn(f"no move: {word}", output)

    def test_what_python_has_printed_is_written_before_an_old_process_sleeps(self):
        script = """
import io, os, sys
from mend_app import _transport
class Asleep(BaseException):
    pass
class Merged:
    def Iprobe(self, **_):
        os.write(2, sys.stdout.buffer.raw.getvalue())
        raise Asleep
transport = _transport.Transport.__new__(_transport.Transport)
transport.merged, transport.peer = Merged(), 0
sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.BytesIO()))
print("printed before")
try:
    transport._depart(None, 1)
except Asleep:
    os._exit(0)
"""
        self.assertIn("printed before", self.good(self.python(script)))

    def test_python_sees_what_is_open_past_proxies_of_what_is_gone(self):
        script = """
import ctypes, weakref
from types import SimpleNamespace
from mend_app import _transport
class Gone:
    pass
gone = Gone()
proxies = [weakref.proxy(gone)]
del gone
transport = _transport.Transport.__new__(_transport.Transport)
transport.sending, transport.receiving, transport.slots = [], [], []
transport.communicators = SimpleNamespace(left_over=lambda: None, world_is_used=True, arriving=False)
print(transport._hindrance(None))
request = _transport.MPI.COMM_SELF.Irecv(bytearray(1))
print(ctypes.string_at(transport._hindrance(None)).decode())
request.Cancel()
request.Wait()
transport.communicators = None
print(ctypes.string_at(transport._hindrance(None)).decode())
"""
        output = self.good(self.python(script)).splitlines()
        self.assertEqual(output[0], "None")
        self.assertIn("a request (Request) is open", output[1])
        self.assertIn("what is open can't be seen (AttributeError: ", output[2])

    def test_open_mpi_is_asked_for_slots_by_python_too(self):
        script = """
import os
from types import SimpleNamespace
from mend_app import _transport
transport = _transport.Transport.__new__(_transport.Transport)
transport.processes = 3
_transport.OPEN_MPI, _transport.MPI = True, SimpleNamespace(UNIVERSE_SIZE=0, COMM_WORLD=SimpleNamespace(Get_attr=lambda _: 4))
print("oversubscribed", transport._has_slots(2))
del os.environ["OMPI_MCA_rmaps_base_oversubscribe"]
print("one", transport._has_slots(1), "two", transport._has_slots(2))
"""
        self.assertEqual(self.good(self.python(script)), "oversubscribed True\none True two False\n")

    def test_fortran(self):
        output = self.same("carry sum", 3, [program("carry"), "50"], "5", "0,1", mpiexec=shutil.which("mpiexec.openmpi"), nothing_open="yes")
        self.assertIn("moved: ranks 0, 1;", output)
        # Open MPI's Fortran calls nothing of C's that could be seen.
        output = self.good(run(2, [program("carry"), "12", "2", "1"], self.directory, shutil.which("mpiexec.openmpi"), watch_seconds=0.02, restart="none"))
        self.assertIn("no move: what is open can't be seen", output)
        self.assertIn("set nothing_open = yes", output)
        self.assertNotIn("moved:", output)


class Fragments(InDirectory):
    def test_what_they_hold(self):
        try:
            import h5py
        except ImportError:
            skip("fragments", "no h5py here (tests/setup.sh app)")
        flags = ["-std=c17", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wall", "-pthread", f"-I{ROOT}/app/lib/src", f"-I{ROOT}/app/lib/include", f"-I{OUT}/hdf5/headers"]
        subprocess.run(["gcc", *flags, os.path.join(SOURCES, "fragments.c"), *glob.glob(f"{OUT}/build/*.o"), f"{OUT}/hdf5/bin/libhdf5.a", "-lz", "-lm", "-ldl", "-o", self.path("fragments")], check=True)
        self.good(run(0, [self.path("fragments"), "10000"], self.directory))
        parts = {}
        for path in sorted(glob.glob(self.path("*-*.h5"))):
            with h5py.File(path) as file:
                parts.setdefault(os.path.basename(path).split("-")[0], []).append({name: (set_.shape, dict(set_.attrs)) for name, set_ in file["MemBlocks"].items()})
        # steps: 24 bytes, u: 40000 bytes, part: in u, where: 16 bytes.
        self.assertEqual([list(part) for part in parts["memblock"]], [["0"], ["1"], ["3"]])
        self.assertEqual([list(part) for part in parts["dataset"]], [["0"], ["1"], ["3"]])
        self.assertEqual([list(part) for part in parts["element"]], [["0", "1"], ["1"], ["1"], ["1"], ["1", "3"]])
        cut = [part["1"] for part in parts["element"]]
        self.assertEqual([attributes["PositionOfFragment"] for _, attributes in cut], [0, 1247, 2497, 3747, 4997])
        self.assertEqual([attributes["isNotFirstChunk"] for _, attributes in cut], [0, 1, 1, 1, 1])
        self.assertEqual([attributes["FragmentTotalElements"] for _, attributes in cut], [shape[0] for shape, _ in cut])
        self.assertEqual(sum(shape[0] for shape, _ in cut), 5000)
        self.assertEqual(parts["dataset"][1]["1"], ((5000,), {}))


if __name__ == "__main__":
    unittest.main()
