#!/usr/bin/env python3
"""Measures checkpoints and restarts of one process beside those of CRIU and DMTCP, in one run, all in memory (tmpfs).

    rivals.py [--runs N] [NAME ...]

    mend, mend-behind    mend checkpoint, stop-and-write and copy-on-write; mend restart
    criu                 criu dump --leave-running, criu restore (as root)
    dmtcp                dmtcp_command --bcheckpoint, dmtcp_restart, uncompressed

Each with a process full of noise (1 GiB, or MEND_BENCH_MIB) that computes. Times are those of the user, wall-clock: until the command
for a checkpoint is back (with copy-on-write: until the image is complete); the longest that the process stood still meanwhile, by its
own clock; from the command for a restart until the process computes again. CRIU and DMTCP are no part of Mend: they are found on
PATH, or where MEND_BENCH_CRIU (the program) and MEND_BENCH_DMTCP (the directory of its programs) say; those that are not there are
left out. The machine should have nothing else to do. A minute.
"""

import contextlib
import mmap
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import results
from side_by_side import main
from cluster import Failed, Machine, NotHere, PATIENCE, compile_plain
from processes import SIZES, in_a_mount_namespace, tmpfs


class Watch:
    """What the process tells in memory that it shares: how often it looked at the clock, and the longest time between two looks."""

    def __init__(self, path):
        with open(path, "w+b") as file:
            file.truncate(mmap.PAGESIZE)
            self.shared = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def looks(self):
        return struct.unpack_from("Q", self.shared)[0]

    def forget(self):
        """From here on longest times are counted anew."""
        struct.pack_into("Q", self.shared, 8, 0)

    def longest(self):
        """Milliseconds."""
        return struct.unpack_from("Q", self.shared, 8)[0] / 1e6

    def wait(self):
        """Returns when the process computes: a number that changes twice was not put there by whoever restores it."""
        start, last = time.monotonic(), self.looks()
        for _ in range(2):
            while (now := self.looks()) == last:
                if time.monotonic() - start > PATIENCE:
                    raise Failed("the process does not compute")
                time.sleep(0.0005)
            last = now


class Subject:
    """A process of noise and its files; how each rival starts, saves, ends and restarts it is the classes' below."""

    def __init__(self, work):
        self.work, self.images = tempfile.mkdtemp(dir=work), tempfile.mkdtemp(dir=tmpfs())
        self.watch = Watch(os.path.join(self.work, "watch"))
        self.program = [compile_plain("noise.c", os.path.join(self.work, "noise")), str(SIZES[-1])]
        with open(os.path.join(self.work, "orders"), "w", encoding="utf-8") as orders:
            orders.write(f"watch {self.work}/watch\n")

    def run(self, *command):
        """A command that must succeed."""
        with open(os.path.join(self.work, "said"), "a+b") as said:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=self.images, check=False, timeout=PATIENCE)
            if done.returncode:
                said.seek(0)
                raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {said.read().decode(errors='replace')[-2000:]}")

    def begin(self, *command):
        """A process of its own session that reads the orders."""
        with open(os.path.join(self.work, "orders"), "rb") as orders, open(os.path.join(self.work, "output"), "ab") as output:
            return subprocess.Popen(command, stdin=orders, stdout=output, stderr=output, cwd=self.images, start_new_session=True)


class Mend(Subject):
    mode = "stop"

    def start(self):
        self.machine = Machine()
        with open(os.path.join(self.work, "orders"), "rb") as orders:
            self.job = self.machine.start(self.work, "run", "--checkpoint-dir", self.images, *self.program, stdin=orders)
        self.name = self.machine.running(self.job)

    def save(self):
        done = self.machine.verb("checkpoint", self.name, "--mode", self.mode)
        if done["notes"]:
            raise Failed(str(done["notes"]))

    def kill(self):
        self.machine.mend("kill", self.name)
        self.job.finish(None)

    def restart(self):
        self.job = self.machine.start(self.work, "restart", self.name)

    def end(self):
        self.machine.__exit__()


class MendBehind(Mend):
    mode = "copy-on-write"


class Criu(Subject):
    def start(self):
        self.criu = os.environ.get("MEND_BENCH_CRIU") or shutil.which("criu")
        if not self.criu or os.geteuid():
            raise NotHere("it is not installed" if not self.criu else "it needs root")
        self.process = self.begin(*self.program)

    def save(self):
        self.run(self.criu, "dump", "--tree", str(self.process.pid), "--images-dir", self.images, "--leave-running", "--log-file", "dump.log")

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def restart(self):
        self.run(self.criu, "restore", "--images-dir", self.images, "--restore-detached", "--log-file", "restore.log")

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)


class Dmtcp(Subject):
    def start(self):
        found = os.environ.get("MEND_BENCH_DMTCP") or os.path.dirname(shutil.which("dmtcp_launch") or "")
        if not found:
            raise NotHere("it is not installed")
        self.tools = {name: os.path.join(found, f"dmtcp_{name}") for name in ("launch", "command", "restart")}
        self.process = self.begin(self.tools["launch"], *self.coordinator(), "--no-gzip", "--ckptdir", self.images, *self.program)

    def coordinator(self):
        """A new one, at any port, which a file tells."""
        self.port = os.path.join(tempfile.mkdtemp(dir=self.work), "port")
        return ["--new-coordinator", "--coord-port", "0", "--port-file", self.port]

    def command(self, order):
        with open(self.port, encoding="ascii") as file:
            self.run(self.tools["command"], "--coord-port", file.read().strip(), order)

    def save(self):
        self.command("--bcheckpoint")

    def kill(self):
        self.command("--quit")
        self.process.wait(PATIENCE)

    def restart(self):
        (image,) = [name for name in os.listdir(self.images) if re.fullmatch(r"ckpt_.*\.dmtcp", name)]
        self.process = self.begin(self.tools["restart"], *self.coordinator(), "--ckptdir", self.images, os.path.join(self.images, image))

    def end(self):
        with contextlib.suppress(Failed):
            self.command("--quit")
        self.process.wait(PATIENCE)


def measured(rival, work):
    """Milliseconds of a checkpoint, of standing still for it, and of a restart."""
    subject = rival(work)
    subject.start()
    try:
        subject.watch.wait()
        time.sleep(0.5)
        subject.watch.forget()
        start = time.monotonic()
        subject.save()
        saved = time.monotonic() - start
        time.sleep(0.2)
        stopped = subject.watch.longest()
        subject.kill()
        start = time.monotonic()
        subject.restart()
        subject.watch.wait()
        restarted = time.monotonic() - start
    finally:
        subject.end()
        shutil.rmtree(subject.images)
    return saved * 1e3, stopped, restarted * 1e3


def bench(name, rival):
    def measure(runs, work):
        os.makedirs(tmpfs(), exist_ok=True)
        try:
            rows = [measured(rival, work) for _ in range(runs)]
        except NotHere as why:
            print(f"{name:12} {why}", flush=True)
            return
        for what, column in zip(("command for a checkpoint", "standing still", "restart until it computes"), zip(*rows)):
            results.note(f"{name}: {what}", "ms", column)
        saved, stopped, restarted = (statistics.median(column) for column in zip(*rows))
        print(f"{name:12} {SIZES[-1]} MiB: checkpoint {saved:8.1f} ms, stopped {stopped:8.1f} ms, restart {restarted:8.1f} ms", flush=True)
    return measure


BENCHES = {name: bench(name, rival) for name, rival in (("mend", Mend), ("mend-behind", MendBehind), ("criu", Criu), ("dmtcp", Dmtcp))}

if __name__ == "__main__":
    if "-h" not in sys.argv and "--help" not in sys.argv:
        in_a_mount_namespace()
    sys.exit(main(__doc__, BENCHES, together="rivals"))
