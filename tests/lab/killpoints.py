#!/usr/bin/env python3
"""SIGKILL before every system call of a checkpoint: the previous checkpoint stays, or the new one is whole.

    killpoints.py [--points N | --all [--share I/N]] [--seed S] [--only PART:CALL:K]

A checkpoint is taken once under strace, which tells all system calls of the rank that writes its image, of the
controller that publishes it, and of the daemon where that writes: it encrypts the image, into a directory of the node, and copies it
from there to the shared one. Then, for each of them (or for as many as asked, drawn by the seed), a job with one good
checkpoint is told to take another, and the process is killed as it enters that call; a process of several threads
counts each thread's calls apart, and a copy that writes in the background its own. Then `mend restart` must go on, from the first checkpoint or the second, and end with the result
of an undisturbed run; all that is listed must be usable.
"""

import argparse
import collections
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
from cluster import BIN, PATIENCE, Failed, Machine, Tally, compile_plain  # noqa: E402

STEPS, PAUSE = "600", "1000"
MENDD = os.path.realpath(os.path.join(BIN, "mendd"))
PARTS = ["rank", "controller", "daemon"]
# Calls of controller and daemon that can matter to what is on disk: the others are their messages.
FILES = {"mkdir", "openat", "write", "fsync", "rename", "renameat2", "unlink", "unlinkat", "rmdir", "fchmod", "chmod", "close", "statx"}
LINE = re.compile(r"^(\d+) +(\w+)\(")


def processes(program):
    """Processes that run this executable."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/exe") == program:
                found.append(int(name))
        except OSError:
            continue
    return found


def parent(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return None


class Traced:
    """A process under strace, with all its threads."""

    def __init__(self, pid, log, *options):
        self.log = log
        self.process = subprocess.Popen(["strace", "-f", "-q", "-o", log, *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        until = time.monotonic() + 20
        while not all(self.traced(pid, thread) for thread in threads):
            if self.killed():
                # The call came before anything was asked for.
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failed(f"strace cannot attach: {self.process.stderr.read()}")
            time.sleep(0.005)

    @staticmethod
    def traced(pid, thread):
        try:
            with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as file:
                return "\nTracerPid:\t0\n" not in file.read()
        except OSError:
            return True

    def killed(self):
        with contextlib.suppress(FileNotFoundError), open(self.log, encoding="utf-8", errors="replace") as file:
            return "+++ killed by SIGKILL +++" in file.read()
        return False

    def end(self):
        self.process.terminate()
        self.process.communicate()

    def calls(self):
        """Each system call with how often one thread made it, at most."""
        threads = collections.defaultdict(collections.Counter)
        with open(self.log, encoding="utf-8", errors="replace") as file:
            for line in file:
                if match := LINE.match(line):
                    threads[match[1]][match[2]] += 1
        calls = collections.Counter()
        for counted in threads.values():
            calls |= counted
        return calls


class Story:
    """A job with one checkpoint that is about to take another."""

    def __init__(self, machine, part, app, directory):
        self.machine, self.part, self.app = machine, part, app
        options = self.encrypted_in_tiers(directory) if part == "daemon" else []
        self.job = machine.start(directory, "run", *options, app, STEPS, PAUSE, "go")
        self.name = machine.running(self.job)
        machine.verb("checkpoint", self.name)
        self.settle(1)

    def encrypted_in_tiers(self, directory):
        """What makes the daemon the writer."""
        key, store = os.path.join(directory, "key"), os.path.join(directory, "store")
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write("5eed" * 16)
        os.mkdir(store)
        self.machine.environment["MEND_ENCRYPTION_KEY"] = key
        return ["--tiers", f"local:{store},shared"]

    def settle(self, number):
        """Waits until the daemon has made all copies of a checkpoint, or can make none any more."""
        if self.part != "daemon":
            return
        until = time.monotonic() + PATIENCE
        while self.job.poll() is None:
            listed = [len(one["tiers"]) for one in self.machine.verb("checkpoints", self.name) if one["number"] == number]
            if listed == [2]:
                return
            if time.monotonic() > until:
                raise Failed(f"checkpoint {number} is in {listed} of 2 tiers after {PATIENCE} s: {self.job.stderr()}")
            time.sleep(0.05)

    def pid(self):
        if self.part == "controller":
            return self.job.process.pid
        if self.part == "daemon":
            # Of the job's own.
            ours = [pid for pid in processes(MENDD) if parent(pid) == self.job.process.pid]
        else:
            ours = processes(self.app)
        (pid,) = ours
        return pid


def points_of(part, app, work):
    """All kill points of a part: system call and its number."""
    directory = tempfile.mkdtemp(dir=work)
    with Machine() as machine:
        story = Story(machine, part, app, directory)
        traced = Traced(story.pid(), os.path.join(directory, "log"))
        machine.verb("checkpoint", story.name)
        story.settle(2)
        traced.end()
        calls = traced.calls()
    if part != "rank":
        calls = {call: count for call, count in calls.items() if call in FILES}
    # What it waits in is no step of it.
    waits = {"poll", "ppoll", "epoll_wait", "futex", "clock_nanosleep", "restart_syscall", "access", "faccessat"}
    return [(part, call, k) for call, count in sorted(calls.items()) if call not in waits for k in range(1, count + 1)]


def some(points, wanted, draw):
    """So many of the points, of different system calls as far as possible."""
    calls = collections.defaultdict(list)
    for point in draw.sample(points, len(points)):
        calls[point[1]].append(point)
    # The first of each call, then the second of each, ….
    ranked = sorted((at, point) for of_call in calls.values() for at, point in enumerate(of_call))
    firsts = [point for _, point in ranked]
    return firsts[:wanted] if wanted > len(calls) else draw.sample(firsts[:len(calls)], wanted)


def one_kill(point, app, expected, work):
    part, call, k = point
    what = f"{part} killed before {call} no. {k}"
    directory = tempfile.mkdtemp(dir=work)
    with Machine() as machine:
        story = Story(machine, part, app, directory)
        options = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={k}"]
        traced = Traced(story.pid(), os.path.join(directory, "log"), *options)
        done = machine.mend("checkpoint", story.name)
        if done.returncode == 0:
            story.settle(2)
        story.job.let_go()
        code = story.job.finish(None)
        traced.end()
        listed = machine.verb("checkpoints", story.name)
        if [one["number"] for one in listed] not in ([1], [1, 2]) or not all(one["usable"] for one in listed):
            raise Failed(f"{what}: checkpoints are {listed}")
        if done.returncode == 0 and len(listed) != 2:
            raise Failed(f"{what}: a checkpoint was acknowledged that is not there")
        first = story.job.stdout().splitlines()
        if code == 0:
            # The copy that writes in the background was killed, which hurts nothing else; or the point was not reached this time.
            if done.returncode and "wrote in the background was killed" not in done.stderr:
                raise Failed(f"{what}: it lives, but the checkpoint failed: {done.stderr}")
            if first != expected:
                raise Failed(f"{what}: it lives, with output {first[-3:]}")
            shutil.rmtree(directory, ignore_errors=True)
            return f"{what}: the job went on{'' if done.returncode else ', the point was not reached'}"
        life = tempfile.mkdtemp(dir=directory)
        again = machine.start(life, "restart", story.name)
        again.finish(0)
        found = again.stdout().splitlines()
        # Killed as it exited, it had printed all.
        if found != expected[len(expected) - len(found):] or not found and first != expected:
            raise Failed(f"{what}: output {found[-3:]} instead of {expected[-3:]}")
    shutil.rmtree(directory, ignore_errors=True)
    return f"{what}: restarted from {listed[-1]['number']}, result equal"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--all", action="store_true", help="every point")
    parser.add_argument("--share", metavar="I/N", default="1/1", help="the I-th of N shares of them: all of it in several runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="PART:CALL:K")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-killpoints-")
    app = compile_plain("count.c", os.path.join(work, "count"))
    expected = subprocess.run([app, STEPS, "0"], capture_output=True, text=True, check=True).stdout.splitlines()
    if arguments.only:
        part, call, k = arguments.only.split(":")
        points = [(part, call, int(k))]
    else:
        of_parts = [points_of(part, app, work) for part in PARTS]
        print(f"{sum(map(len, of_parts))} points", flush=True)
        draw = random.Random(arguments.seed)
        wanted = max(map(len, of_parts)) if arguments.all else arguments.points // len(PARTS)
        points = [point for of_part in of_parts for point in some(of_part, wanted, draw)]
        share, shares = map(int, arguments.share.split("/"))
        # By the point itself, not by its place: how many there are differs a little from run to run.
        points = [point for point in points if zlib.crc32(repr(point).encode()) % shares == share - 1]
    tally = Tally()
    tally.run(lambda point=point: one_kill(point, app, expected, work) for point in points)
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
