#!/usr/bin/env python3
"""Measures checkpoints of one process beside what they are to be compared with, in one run.

    checkpoints.py [--runs N] [NAME ...]

    full      a process full of noise, stop-and-write, to tmpfs and to disk: time / dd bs=1M of as many bytes into a new file
              (conv=fsync on disk)
    snapshot  the same, copy-on-write: time stopped / bare fork of the same process, and how long until it is durable
    slowdown  a process that changes all of its memory over and over: its pace while an image is written behind it / before
    sparse    64 GiB mapped, a page in each GiB used: time and size
    numpy     256 MiB of NumPy arrays, both modes
    lammps    2 ranks, an incremental checkpoint every 10 s to tmpfs: steps around checkpoints / other steps of the same run

MEND_BENCH_MIB sizes the noise (default 256). Times are wall-clock; the machine should have nothing else to do.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from side_by_side import HERE, main, report
from cluster import Failed, Machine, VENV, compile_plain, find_lammps

MIB = int(os.environ.get("MEND_BENCH_MIB", "256"))


class Process:
    """A program under `mend run` that obeys lines on its standard input."""

    def __init__(self, machine, work, target, *argv):
        self.machine = machine
        reader, self.input = os.pipe()
        self.job = machine.start(work, "run", "--checkpoint-dir", target, *argv, stdin=reader)
        os.close(reader)
        self.name = machine.running(self.job)
        self.job.wait_for(lambda: "ready" in self.job.stdout(), "it is ready")

    def tell(self, line):
        """Gives an order; the lines that it answers with."""
        before = len(self.job.stdout())
        os.write(self.input, f"{line}\n".encode())
        last = {"work": "worked"}.get(line.split()[0], line.split()[0])
        self.job.wait_for(lambda: re.search(rf"^{last}\b.*\n", self.job.stdout()[before:], re.MULTILINE), f"it did {line}")
        return self.job.stdout()[before:].splitlines()

    def checkpoint(self, mode):
        return self.machine.verb("checkpoint", self.name, "--mode", mode)

    def end(self):
        self.machine.mend("kill", self.name)
        os.close(self.input)
        self.job.finish(None)


TMPFS = "MEND_BENCH_TMPFS"


def in_a_mount_namespace():
    """Starts this script again where it may mount: ranks have a /dev/shm of their own, so a tmpfs elsewhere is needed."""
    if TMPFS not in os.environ:
        os.environ[TMPFS] = tempfile.mkdtemp(prefix="mend-bench-tmpfs-")
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        code = subprocess.run(["unshare", "--mount", *user, sys.executable, *sys.argv], check=False).returncode
        os.rmdir(os.environ[TMPFS])
        sys.exit(code)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", os.environ[TMPFS]], check=True)


def targets(work):
    return {"tmpfs": os.path.join(os.environ[TMPFS], "checkpoints"), "disk": os.path.join(work, "disk")}


def copy_with_dd(image, target, durable):
    """Seconds that dd takes for a new file of the same bytes, which are in memory."""
    copy = os.path.join(target, "copy")
    more = ["conv=fsync"] if durable else []
    start = time.monotonic()
    subprocess.run(["dd", f"if={image}", f"of={copy}", "bs=1M", *more], check=True, capture_output=True)
    took = time.monotonic() - start
    os.remove(copy)
    return took


def full(runs, work):
    noise = compile_plain("noise.c", os.path.join(work, "noise"))
    for pages in ([], ["huge"]):
        for where, target in targets(work).items():
            os.makedirs(target, exist_ok=True)
            ours, theirs = [], []
            try:
                with Machine() as machine:
                    place = tempfile.mkdtemp(dir=work)
                    process = Process(machine, place, target, noise, str(MIB), *pages)
                    for _ in range(runs):
                        done = process.checkpoint("stop")
                        ours.append(done["phases"]["write_us"] / 1e3)
                        image = os.path.join(done["directory"], "rank-0.image")
                        theirs.append(copy_with_dd(image, target, where == "disk") * 1e3)
                        shutil.rmtree(done["directory"])
                    process.end()
            finally:
                shutil.rmtree(target, ignore_errors=True)
            report(f"full, {MIB} MiB, {pages[0] if pages else '4k'} pages, to {where}", theirs, ours, "ms", "dd")
            over = (done["bytes"] / (MIB << 20) - 1) * 100
            print(f"  image {done['bytes']} bytes: noise and {over:.2f} %", flush=True)


def snapshot(runs, work):
    noise = compile_plain("noise.c", os.path.join(work, "noise"))
    for pages in ([], ["huge"]):
        target = targets(work)["tmpfs"]
        os.makedirs(target)
        stopped, durable, forks = [], [], []
        try:
            with Machine() as machine:
                place = tempfile.mkdtemp(dir=work)
                process = Process(machine, place, target, noise, str(MIB), *pages)
                for _ in range(runs):
                    forks.append(float(process.tell("fork")[0].split()[1]) / 1e3)
                    done = process.checkpoint("copy-on-write")
                    if done["notes"]:
                        raise Failed(str(done["notes"]))
                    stopped.append(done["stopped_us"] / 1e3)
                    durable.append(done["durable_us"] / 1e3)
                    shutil.rmtree(done["directory"])
                process.end()
        finally:
            shutil.rmtree(target, ignore_errors=True)
        report(f"stopped, {MIB} MiB, {pages[0] if pages else '4k'} pages", forks, stopped, "ms", "fork")
        beyond = statistics.median(a - 1.3 * b for a, b in zip(stopped, forks))
        print(f"  beyond 1.3 forks {beyond:.2f} ms; phases of the last {done['phases']}; durable after {statistics.median(durable):.0f} ms", flush=True)


def slowdown(runs, work):
    noise = compile_plain("noise.c", os.path.join(work, "noise"))
    target = targets(work)["tmpfs"]
    os.makedirs(target)
    try:
        with Machine() as machine:
            process = Process(machine, work, target, noise, str(MIB))
            before, during = [], []
            for _ in range(runs):
                answers = []
                worker = threading.Thread(target=lambda: answers.extend(process.tell("work 4")))
                worker.start()
                time.sleep(1.5)
                start = time.monotonic()
                done = process.checkpoint("copy-on-write")
                end = time.monotonic()
                worker.join()
                shutil.rmtree(done["directory"])
                pace = [tuple(map(float, line.split()[1:])) for line in answers if line.startswith("work ")]
                before.append(1e6 / statistics.mean(rate for at, rate in pace if at < start - 0.1))
                during.append(1e6 / statistics.mean(rate for at, rate in pace if start <= at < end))
            process.end()
    finally:
        shutil.rmtree(target, ignore_errors=True)
    report(f"a changed page while {MIB} MiB are written", before, during, "us", "alone")


SPARSE = """
import mmap, sys
spaces = [mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000) for _ in range(64)]
for space in spaces: space[12345] = 1
zeros = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
zeros.write(bytes(256 << 20))
print("ready", flush=True)
sys.stdin.readline()
"""
NUMPY = """
import numpy, sys
arrays = [numpy.random.default_rng(i).random((1024, 2048)) for i in range(16)]
print("ready", flush=True)
sys.stdin.readline()
"""


def of_python(runs, work, what, script):
    python = os.path.join(VENV, "bin", "python3")
    target = targets(work)["tmpfs"]
    os.makedirs(target)
    try:
        with Machine() as machine:
            process = Process(machine, work, target, python, "-c", script)
            for mode in ("stop", "copy-on-write"):
                taken = []
                for _ in range(runs):
                    taken.append(process.checkpoint(mode))
                    shutil.rmtree(taken[-1]["directory"])
                stopped, durable = (statistics.median(one[key] / 1e3 for one in taken) for key in ("stopped_us", "durable_us"))
                print(f"{what:30} {mode:14} stopped {stopped:8.2f} ms, durable after {durable:8.2f} ms, {taken[0]['bytes'] / 2**20:.1f} MiB", flush=True)
            process.end()
    finally:
        shutil.rmtree(target, ignore_errors=True)


def sparse(runs, work):
    of_python(runs, work, "64 GiB mapped, 256 MiB zeros", SPARSE)


def numpy(runs, work):
    of_python(runs, work, "NumPy, 256 MiB", NUMPY)


def paces(job, published):
    """When each line of thermodynamic output came, and each checkpoint, until the job's end."""
    lines, taken = [], {}
    while job.poll() is None:
        count = len(re.findall(r"^ +[0-9]+ +-?[0-9.]+ ", job.stdout(), re.MULTILINE))
        now = time.monotonic()
        lines += [now] * (count - len(lines))
        for number in published():
            taken.setdefault(number, now)
        time.sleep(0.01)
    return lines, sorted(taken.values())


def lammps(runs, work):
    """The machine's own pace changes by more than what is to be found: steps around checkpoints are held against the others of
    the same run."""
    melt = os.path.join(os.path.dirname(HERE), "tests", "demo", "in.melt")
    argv = [find_lammps(), "-in", melt, "-var", "x", "24", "-var", "y", "24", "-var", "z", "24", "-var", "steps", "5000", "-log", "none"]
    target = targets(work)["tmpfs"]
    os.makedirs(target)
    interval, around = 10, (1.0, 1.5)
    try:
        with Machine() as machine:
            for _ in range(max(1, runs // 5)):
                place = tempfile.mkdtemp(dir=work)
                more = ["--interval", str(interval), "--incremental", "5", "--checkpoint-dir", target]
                job = machine.start(place, "run", "-n", "2", *more, *argv)
                directory = os.path.join(target, machine.running(job))
                published = lambda: [name for name in os.listdir(directory) if name.isdigit()] if os.path.isdir(directory) else []
                lines, taken = paces(job, published)
                if job.finish(None) or not taken:
                    raise Failed(job.stderr())
                steps = [(a, b) for a, b in zip(lines, lines[1:]) if b > a]
                near = [any(a < at + around[1] and b > at - around[0] for at in taken) for a, b in steps]
                usual = statistics.median(b - a for (a, b), close in zip(steps, near) if not close)
                lost = sum(b - a - usual for (a, b), close in zip(steps, near) if close) / len(taken)
                rest = sum(b - a - usual for (a, b), close in zip(steps, near) if not close) / near.count(False) * near.count(True) / len(taken)
                print(f"LAMMPS melt, 2 ranks, incremental checkpoints every {interval} s to tmpfs: {len(taken)} taken, each cost "
                      f"{lost * 1e3:.0f} ms, {lost / interval * 100:.2f} % (as many other steps: {rest * 1e3:.0f} ms)", flush=True)
                shutil.rmtree(directory, ignore_errors=True)
    finally:
        shutil.rmtree(target, ignore_errors=True)


BENCHES = {"full": full, "snapshot": snapshot, "slowdown": slowdown, "sparse": sparse, "numpy": numpy, "lammps": lammps}

if __name__ == "__main__":
    if "-h" not in sys.argv and "--help" not in sys.argv:
        in_a_mount_namespace()
    sys.exit(main(__doc__, BENCHES))
