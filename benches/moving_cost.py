#!/usr/bin/env python3
"""What moves cost a job, besides the time that the rank stands still.

    dirtying  a rank of 1 GiB that rewrites a tenth of what a link of 2 Gbit/s carries, live: what is sent, against what it holds (`mend bench migrate`)
    lammps    LAMMPS, 4 ranks on two nodes, for a minute, in which three of them move live: the time that ranks stood still, and the processor time of all that is
              Mend's (daemons, supervisors, agents in ranks, whoever asked), together against that minute
    stencil   the same for a five-point stencil in Python (mpi4py, numpy), whose ranks wait for their neighbours at each step
    staying   2 ranks that look at the clock all the time, of which one moves to and fro, live and stopped: the longest gap of the one that stays, less the time for
              which it waited for a processor
"""

import os
import re
import sys
import time

import results
from processor_time import Watch
from side_by_side import main, note

import melt
from cluster import VENV, Lab, compile_mpi

APPS = os.path.join(results.ROOT, "tests", "apps")
MIB = 1 << 20
LINK = 2e9 / 8
MINUTE = 60
MOVES = (1, "node2"), (2, "node1"), (1, "node1")


def dirtying(runs, work):
    del work
    with Lab(2, "--bandwidth", "2gbit") as lab:
        chosen = ("--sizes", "1G", "--ranks", "1", "--runs", str(runs), "--strategies", "live", "--dirty", str(int(LINK / 10)))
        moved = lab.verb("bench", "migrate", "--hosts", "node1,node2", *chosen)
    note("sent live, a tenth of the link being rewritten", "x what it holds", [one["sent_bytes"] / one["size"] for one in moved])
    note("of that, while it stood still", "MiB", [one["stopped_bytes"] / MIB for one in moved])


def minute(what, runs, work, start, has_begun):
    """Three live moves in a minute of a job of 4 ranks on two nodes. `start` gives the command, for a directory."""
    stopped, busy, together = [], [], []
    with Lab(2) as lab:
        for run in range(runs):
            directory = os.path.join(work, f"{what}-{run}")
            os.mkdir(directory)
            job = lab.start(directory, "run", "-n", "4", "--hosts", "node1:2,node2:2", "--", *start(directory))
            name = lab.running(job)
            job.wait_for(lambda: has_begun(job), "its first steps")
            mends, begun, still = Watch(), time.monotonic(), 0.0
            for number, (rank, to) in enumerate(MOVES):
                time.sleep(max(0.0, begun + (number + 0.5) * MINUTE / len(MOVES) - time.monotonic()))
                still += lab.verb("migrate", name, str(rank), "--to", to, "--mode", "live")["stopped_us"] / 1e6
            time.sleep(max(0.0, begun + MINUTE - time.monotonic()))
            took = time.monotonic() - begun
            seconds = mends.seconds() / os.cpu_count()
            stopped.append(still / took * 100)
            busy.append(seconds / took * 100)
            together.append((still + seconds) / took * 100)
            job.let_go()
            job.finish()
    note(f"{what}, 4 ranks, three live moves in a minute: ranks stood still", "%", stopped)
    note("processor time of Mend's, of all processors", "%", busy)
    note("both", "%", together)


def lammps(runs, work):
    minute("LAMMPS", runs, work, lambda directory: melt.argv(directory, size=24), lambda job: melt.steps(job.stdout()) >= melt.INTERVAL)


def stencil(runs, work):
    program = os.path.join(APPS, "stencil.py")
    argv = [os.path.join(VENV, "bin", "python"), program, "2048", "go"]
    minute("a stencil in Python", runs, work, lambda _: argv, lambda job: "step 10\n" in job.stderr())


def staying(runs, work):
    program = compile_mpi("longest_gap.c", os.path.join(work, "longest_gap"))
    gaps = {"live": [], "frozen": [], "nothing": []}
    with Lab(2) as lab:
        # As many as there are processors, so that they come to look.
        job = lab.start(work, "run", "-n", "2", "--hosts", "node1", "--spares", "node2", "--", program, "-u", "go")
        name = lab.running(job)
        here = 1
        for _ in range(runs):
            for mode in gaps:
                begun = len(job.stderr())
                if mode == "nothing":
                    time.sleep(0.5)
                else:
                    here = 3 - here
                    lab.verb("migrate", name, "1", "--to", f"node{here}", "--mode", mode)
                    time.sleep(0.2)
                told = re.findall(r"^rank 0 gap (\d+) ns$", job.stderr()[begun:], re.MULTILINE)
                gaps[mode].append(max(map(int, told)) / 1e6)
        job.let_go()
        job.finish()
    note("longest gap of the rank that stays while the other moves live", "ms", gaps["live"])
    note("the same, stopped", "ms", gaps["frozen"])
    note("the same while nobody moves", "ms", gaps["nothing"])


if __name__ == "__main__":
    sys.exit(main(__doc__, {"dirtying": dirtying, "lammps": lammps, "stencil": stencil, "staying": staying}))
