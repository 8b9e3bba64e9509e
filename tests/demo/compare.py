#!/usr/bin/env python3
"""Compares the results of two LAMMPS runs: standard output, log, trajectory and final dump.

    compare.py UNDISTURBED DISTURBED

Both are directories that hold `stdout` (what the run printed) and the files of in.melt. Everything must be equal to the
byte, but for the numbers by which LAMMPS reports its own timing, which differ between any two runs. They are masked,
the text around them is still compared:

    create_atoms CPU = 0.036 seconds                    (and any other "... CPU = T seconds")
    Loop time of 16.9 on 4 procs for 500 steps ...
    Performance: 12749.2 tau/day, 29.5 timesteps/s, 3.187 Matom-step/s
    42.1% CPU use with 4 MPI tasks x 1 OpenMP threads
    Pair | 10.354 | 10.442 | 10.494 | 1.7 | 61.63       (the rows of "MPI task timing breakdown")
    Total wall time: 0:00:18

Exit code 0 if equal, 1 with the first differences if not, 2 on wrong usage.
"""

import os
import re
import sys

TEXTS = ["stdout", "log.lammps"]
DATA = ["trajectory.dump", "final.dump"]

MASKS = [
    (re.compile(r"(CPU = )[0-9.e+-]+( seconds)"), r"\1TIME\2"),
    (re.compile(r"^(Loop time of )[0-9.e+-]+( on )"), r"\1TIME\2"),
    (re.compile(r"^Performance: [0-9.e+-]+ tau/day, [0-9.e+-]+ timesteps/s, [0-9.e+-]+ [kMG]?atom-step/s$"), "Performance: RATES"),
    (re.compile(r"^[0-9.]+(% CPU use with )"), r"SHARE\1"),
    (re.compile(r"^((?:Pair|Bond|Kspace|Neigh|Comm|Output|Modify|Other) *\|)[-0-9.e+ |]*$"), r"\1 TIMES"),
    (re.compile(r"^(Total wall time: )[0-9:]+$"), r"\1TIME"),
]


def masked(line):
    for pattern, replacement in MASKS:
        line = pattern.sub(replacement, line)
    return line


def equal_but_for_replays(expected, found, allowed):
    """Whether rows are the expected ones, of which at most so many times some were printed again, up to where the output had got.

    The row before a replay may be cut off: the job was killed while it printed it.
    """
    # Where the next row may come from, how many replays that takes, and whether a replay must follow: a row may be there more than once.
    places = {(0, 0, False)}
    for row in found:
        following = set()
        for at, used, cut in places:
            if not cut and at < len(expected):
                if expected[at] == row:
                    following.add((at + 1, used, False))
                elif used < allowed and expected[at].startswith(row):
                    following.add((at, used + 1, True))
            if cut or used < allowed:
                following |= {(back + 1, used + (not cut), False) for back in range(at + cut) if expected[back] == row}
        places = following
    return any(at == len(expected) and not cut for at, _, cut in places)


def text_differences(name, left, right, replays=0):
    """Up to five differing lines of two texts, timings masked; says so if a text has no line of thermo output.

    The right one may have lines again, as often as a restarted job said that it prints again (`replays`).
    """
    with open(left, encoding="utf-8", errors="replace") as file:
        a = [masked(line) for line in file.read().split("\n")]
    with open(right, encoding="utf-8", errors="replace") as file:
        b = [masked(line) for line in file.read().split("\n")]
    if not any(line.startswith("Loop time of") for line in a):
        return [f"{name}: the undisturbed run did not end (no \"Loop time\" line)"]
    if equal_but_for_replays(a, b, replays):
        return []
    found = []
    for number, (x, y) in enumerate(zip(a, b), 1):
        if x != y:
            found.append(f"{name}:{number}:\n  - {x}\n  + {y}")
        if len(found) == 5:
            return found
    if len(a) != len(b):
        found.append(f"{name}: {len(a)} lines against {len(b)}")
    return found


def data_differences(name, left, right):
    with open(left, "rb") as a, open(right, "rb") as b:
        offset = 0
        while True:
            x, y = a.read(1 << 20), b.read(1 << 20)
            if x != y:
                short = min(len(x), len(y))
                at = next((i for i in range(short) if x[i] != y[i]), short)
                return [f"{name}: differs from byte {offset + at}"]
            if not x:
                return [] if offset else [f"{name}: empty in both"]
            offset += len(x)


def differences(undisturbed, disturbed, replays=0):
    """Every difference between two run directories, as lines for a person; empty if there is none.

    A restarted job prints again what differs from what it had printed, as a line with a timing does, and says so:
    `replays` is how often it did. Files go on from where they were.
    """
    found = []
    for name in TEXTS + DATA:
        left, right = os.path.join(undisturbed, name), os.path.join(disturbed, name)
        missing = [path for path in (left, right) if not os.path.exists(path)]
        if missing:
            found += [f"{path}: missing" for path in missing]
        elif name in DATA:
            found += data_differences(name, left, right)
        else:
            found += text_differences(name, left, right, replays if name == "stdout" else 0)
    return found


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    found = differences(sys.argv[1], sys.argv[2])
    for line in found:
        print(line)
    if not found:
        print(f"equal to the byte, timings aside: {', '.join(TEXTS + DATA)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
