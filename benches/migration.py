#!/usr/bin/env python3
"""Measures how long a rank stands still when it moves live, beside the same rank moving frozen, in one run.

    migration.py [--runs N] [--footprint MIB] [--dirty MIB] [--json]

One rank with a footprint (1024 MiB), of which it rewrites a part (8 MiB) all the time, goes to and fro between two lab nodes, live and
frozen in turns. Told: how long it stood still, how long the whole move took, what was sent in all and while it stood still. With --json
one document on standard output, times in milliseconds, one entry a move.

Times are wall-clock; the machine should have nothing else to do.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "tests", "lab")]
from cluster import Lab, compile_mpi  # noqa: E402

MIB = 1 << 20


def moves(lab, arguments, work):
    """What each move took, in turns."""
    program = compile_mpi("mpi_rewrites.c", os.path.join(work, "rewrites"))
    argv = [program, "-f", str(arguments.footprint), "-d", str(arguments.dirty), "-u", "go"]
    job = lab.start(work, "run", "-n", "1", "--hosts", "node1", "--spares", "node2", "--", *argv)
    name = lab.running(job)
    job.wait_for(lambda: "begins" in job.stderr(), "the table is filled")
    found, here = [], 1
    for _ in range(arguments.runs):
        for mode in ("live", "frozen"):
            here = 3 - here
            began = time.monotonic()
            done = lab.verb("migrate", name, "0", "--to", f"node{here}", "--mode", mode)
            live = done["precopied"] or {"rounds": 0, "stopped_bytes": done["bytes"], "why": ""}
            found.append({
                "mode": mode,
                "stopped_ms": done["stopped_us"] / 1e3,
                "total_ms": (time.monotonic() - began) * 1e3,
                "bytes": done["bytes"],
                "stopped_bytes": live["stopped_bytes"],
                "rounds": live["rounds"],
                "why": live["why"],
                "phases_ms": {phase.removesuffix("_us"): us / 1e3 for phase, us in done["phases"].items()},
            })
    job.let_go()
    job.finish()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--footprint", type=int, default=1024, metavar="MIB")
    parser.add_argument("--dirty", type=int, default=8, metavar="MIB")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-bench-")
    try:
        with Lab(2) as lab:
            found = moves(lab, arguments, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if arguments.json:
        print(json.dumps({"footprint_mib": arguments.footprint, "dirty_mib": arguments.dirty, "moves": found}, indent=2))
        return
    for mode in ("frozen", "live"):
        of_mode = [one for one in found if one["mode"] == mode]
        median = lambda what: statistics.median(one[what] for one in of_mode)
        stopped = sorted(one["stopped_ms"] for one in of_mode)
        print(f"{mode:7} stopped {median('stopped_ms'):8.1f} ms ({stopped[0]:.1f} to {stopped[-1]:.1f}, {len(of_mode)} moves), "
              f"in all {median('total_ms'):8.1f} ms, {median('bytes') / MIB:8.1f} MiB, "
              f"{median('stopped_bytes') / MIB:7.1f} MiB of it while it stood still")


if __name__ == "__main__":
    main()
