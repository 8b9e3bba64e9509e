#!/usr/bin/env python3
"""Measures incremental images and what noticing changes costs, by the agent alone, in one run.

    tracking.py [--runs N] [NAME ...]

    incremental  1 GiB of noise, to tmpfs and to disk: a full image, one with nothing changed, one with a tenth of the pages changed;
                 while the program stands still, and behind it; a plain write and fsync of as many bytes
    steady       a tracked process that changes all of its memory beside an untracked one; its first change of each page
                 beside the same under write protection of the program's own

MEND_BENCH_MIB sizes the noise (default 1024). Times are wall-clock; the machine should have nothing else to do.
"""

import os
import re
import subprocess
import sys

import results
from side_by_side import HERE, main


N = r" *(-?[\d.]+)"
KIND = r"(huge|4k) pages +([\w-]+) +"
FULL = re.compile(rf"{KIND}full{N} ms; nothing changed{N} ms .* a tenth changed{N} ms .*,{N} of full")
PLAIN = re.compile(rf"{KIND}as many bytes written .*:{N} ms and{N} ms for a tenth of the pages,{N} of full")
BEHIND = re.compile(rf"{KIND}behind the program: full written after{N} ms; a tenth changed{N} ms,{N} of full, stopped{N} ms")
STEADY = re.compile(rf"(huge|4k) pages +first touch{N} ns a page, raw{N} ns: ratio{N}; after it, tracked / not: in order{N}, at random{N}")
MEDIANS = "the median of all runs; the agent's test keeps no samples"


def noted(lines):
    """Notes what the agent's test printed."""
    place = ""
    for line in lines:
        if line.endswith(":"):
            place = line[:-1]
        if match := FULL.match(line):
            full, none, tenth, ratio = map(float, match.groups()[2:])
            where = f"{match[1]} pages, {match[2]}, to {place}"
            results.note(f"nothing changed, {where}", "ms", [none], remark=MEDIANS)
            results.note(f"a tenth changed, {where}", "ms", [tenth], [full], "a full image", remark=MEDIANS, ratio=ratio)
        elif match := PLAIN.match(line):
            full, tenth, ratio = map(float, match.groups()[2:])
            results.note(f"a plain write of a tenth, {match[1]} pages, to {place}", "ms", [tenth], [full], "a plain write of all", remark=MEDIANS, ratio=ratio)
        elif match := BEHIND.match(line):
            full, tenth, ratio, stopped = map(float, match.groups()[2:])
            where = f"{match[1]} pages, {match[2]}, to {place}"
            results.note(f"standing still for a copy-on-write image, a tenth of the pages, {where}", "ms", [stopped], remark=MEDIANS)
            results.note(f"behind the program until written, {where}", "ms", [tenth], [full], "a full image", remark=MEDIANS, ratio=ratio)
        elif match := STEADY.match(line):
            ours, raw, ratio, order, random = map(float, match.groups()[1:])
            results.note(f"first touch, {match[1]} pages", "ns", [ours], [raw], "a bare fault of write protection", remark=MEDIANS, ratio=ratio)
            for how, pace in (("in order", order), ("at random", random)):
                results.note(f"after it, {how}, {match[1]} pages", "times", [pace], [1.0], "an untracked process", remark=MEDIANS, ratio=pace)


def agent(test):
    def bench(runs, work):
        environment = {**os.environ, "MEND_BENCH_RUNS": str(runs)}
        command = ["cargo", "test", "--release", "--quiet", "--locked", "--package", "mend-agent", "--test", "pace", "--",
                   "--ignored", "--nocapture", "--exact", test]
        done = subprocess.run(command, cwd=os.path.dirname(HERE), env=environment, capture_output=True, text=True, check=False)
        print("\n".join(line for line in done.stdout.splitlines() if "pages" in line or line.endswith(":")), flush=True)
        noted(done.stdout.splitlines())
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
    return bench


BENCHES = {"incremental": agent("incremental_images"), "steady": agent("tracking")}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
