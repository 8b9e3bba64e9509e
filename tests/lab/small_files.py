#!/usr/bin/env python3
"""Many small files in a data space: what each step takes for each file does not grow with their number, and memory is bounded.

    small_files.py [--files N]

A tenth of the files, and then all of them, are staged into a space of three targets on this machine, listed, looked at one by one, written by a
program, checked, and removed. Processor time of the targets and of the commands, for each file, may at most double from the one to the other; a
target and a command may have at most so many KiB more memory for each file. Times are shown, and nothing hangs on them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
from cluster import PATIENCE, Failed, Machine, Tally  # noqa: E402
from spaceloss import SPACE, Space, processes  # noqa: E402

Place = namedtuple("Place", "directory")
# Processor time for each file, at most so many times that of a tenth of the files; and what is too short to be measured, s.
GROWTH, SHORT = 2.0, 0.5
# KiB of memory for each file, of a target and of a command.
TARGET_KIB, COMMAND_KIB = 4.0, 8.0
FEW = 10
BYTES = 100
# Files below one directory.
IN_ONE = 1000
LOOKED_AT = 500

LOOK = """
import sys, mend_data
space, files, each = mend_data.Space(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
seen = [f"{top}/{name}" for top in space.list("staged") for name in space.list(f"staged/{top}")]
assert len(seen) == files, (len(seen), files)
for path in seen[::max(len(seen) // each, 1)]:
    assert space.stat("staged/" + path)["size"] == 100
"""
WRITE = """
import os, sys, mend_data
space, files = mend_data.Space(sys.argv[1]), int(sys.argv[2])
space.mkdir("written")
for number in range(files):
    with space.open(f"written/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
        file.write(b"x" * 100)
"""


def target_cpu(space):
    total = 0
    for place in space.places:
        for pid in processes(place):
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def target_peak(space):
    """KiB of the target that has had most."""
    peaks = []
    for place in space.places:
        for pid in processes(place):
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                peaks += [int(line.split()[1]) for line in file if line.startswith("VmHWM")]
    return max(peaks)


class Steps:
    """What steps take: processor time of targets and commands, elapsed time, and the most memory of a command."""

    def __init__(self, space):
        self.space, self.taken = space, {}

    def step(self, name, command, patience):
        before, begun = target_cpu(self.space), time.monotonic()
        process = subprocess.Popen(command, env=self.space.machine.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise Failed(f"{name}: exit code {process.returncode}: {said[-2000:]}")
        elapsed = time.monotonic() - begun
        if elapsed > patience:
            raise Failed(f"{name}: it took {elapsed:.0f} s")
        cpu = target_cpu(self.space) - before + used.ru_utime + used.ru_stime
        self.taken[name] = (cpu, elapsed, used.ru_maxrss)
        return said


def run(files, work):
    directory = os.path.join(work, str(files))
    sources = os.path.join(directory, "source")
    for number in range(files):
        below = os.path.join(sources, str(number // IN_ONE))
        if number % IN_ONE == 0:
            os.makedirs(below)
        with open(os.path.join(below, str(number)), "wb") as file:
            file.write(b"%099d\n" % number)
    patience = PATIENCE + files / 5
    with Machine() as machine:
        machine.environment["MEND_TEST_PATIENCE"] = str(int(patience))
        space = Space(machine, [Place(os.path.join(directory, f"disk{number}")) for number in range(3)], directory, os.path.join(directory, "boot"))
        try:
            space.begin()
            steps = Steps(space)
            empty = target_peak(space)
            data = lambda *words: [*machine.command("data"), *words]
            steps.step("stage", data("stage", "--quiet", f"file://{sources}/", f"{SPACE}:staged/"), patience)
            steps.step("ls", data("ls", "--json", f"{SPACE}:staged/0"), patience)
            steps.step("look", [sys.executable, "-c", LOOK, SPACE, str(files), str(LOOKED_AT)], patience)
            steps.step("write", [sys.executable, "-c", WRITE, SPACE, str(files // 10)], patience)
            [checked] = json.loads(steps.step("check", data("check", "--json", f"{SPACE}:"), patience))
            if checked["files"] != files + files // 10 or checked["damaged"]:
                raise Failed(f"check says {checked}")
            steps.step("rm", data("rm", "-r", f"{SPACE}:staged", f"{SPACE}:written"), patience)
            if json.loads(steps.step("ls again", data("ls", "--json", f"{SPACE}:"), patience)):
                raise Failed("something is left")
            objects = sum(len(found) for place in space.places for _, _, found in os.walk(os.path.join(place, "objects")))
            if objects:
                raise Failed(f"{objects} objects are left")
            return steps.taken, (target_peak(space) - empty) / files
        finally:
            space.end()
            shutil.rmtree(directory, ignore_errors=True)


def both(files, work):
    few, _ = run(files // FEW, work)
    many, grown = run(files, work)
    lines, wrong = [], []
    for name, (cpu, elapsed, peak) in many.items():
        each = lambda seconds, of: 1e6 * seconds / of
        before = each(max(few[name][0], SHORT / FEW), files // FEW)
        lines.append(f"    {name:9} {elapsed:7.1f} s   {each(cpu, files):6.0f} µs of processors for a file, {each(few[name][0], files // FEW):6.0f} of a tenth   {peak / 1024:6.0f} MiB")
        if cpu > SHORT and each(cpu, files) > GROWTH * before:
            wrong.append(f"{name} takes {each(cpu, files):.0f} µs of processors for each of {files} files, and {before:.0f} for each of {files // FEW}")
        more = (peak - few[name][2]) / (files - files // FEW)
        if more > COMMAND_KIB:
            wrong.append(f"{name} has {more:.1f} KiB of memory for each file")
    lines.append(f"    a target has {grown:.2f} KiB of memory for each file")
    if grown > TARGET_KIB and files >= 10_000:
        wrong.append(lines[-1].strip())
    print("\n".join(lines), flush=True)
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{files} files of {BYTES} bytes"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--files", type=int, default=2000)
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-small-files-")
    tally = Tally()
    tally.run([lambda: both(arguments.files, work)])
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
