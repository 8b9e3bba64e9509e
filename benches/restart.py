#!/usr/bin/env python3
"""Measures restarts beside what they are to be compared with, in one run.

    restart.py [--runs N] [NAME ...]

    one256, one1024    one rank with 256 MiB or 1 GiB of noise from its full image: the restart, against a single-threaded
                       read(2) of the same file into memory that was populated for it, with and without the populating

The files are in the page cache on both sides. Times are wall-clock; the machine should have nothing else to do.
"""

import mmap
import os
import sys
import time

from side_by_side import main, report
from cluster import Machine, compile_mpi

MADV_POPULATE_WRITE = 23


def read_into_populated_memory(path):
    """Milliseconds of populating and of reading."""
    size = os.path.getsize(path)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory, open(path, "rb", buffering=0) as file:
        start = time.monotonic()
        memory.madvise(MADV_POPULATE_WRITE)
        populated = time.monotonic()
        view, done = memoryview(memory), 0
        while done < size:
            done += file.readinto(view[done : done + (1 << 20)])
        end = time.monotonic()
        view.release()
    return (populated - start) * 1e3, (end - populated) * 1e3


def restarted(machine, work, name):
    """Milliseconds from the restorer's start until memory, threads and files stand."""
    job = machine.start(work, "restart", name)
    machine.running(job)
    while True:
        status = next(one for one in machine.verb("ps") if one["id"] == name)["status"]
        if status and status["restart"]:
            break
        time.sleep(0.01)
    machine.mend("kill", name)
    job.finish(137)
    return status["restart"]["restart_us"] / 1e3


def one(mebibytes, runs, work):
    program = compile_mpi("mpi_iters.c", os.path.join(work, "iters"))
    with Machine() as machine:
        job = machine.start(work, "run", "--checkpoint-dir", work, program, "-i", "1000000", "-w", "10", "-m", str(mebibytes))
        name = machine.running(job)
        time.sleep(2 + mebibytes / 256)
        image = os.path.join(machine.verb("checkpoint", name)["directory"], "rank-0.image")
        machine.mend("kill", name)
        job.finish(137)
        reading, both, ours = [], [], []
        for _ in range(runs):
            populate, read = read_into_populated_memory(image)
            reading.append(read)
            both.append(populate + read)
            ours.append(restarted(machine, work, name))
        size = os.path.getsize(image) / 2**20
    report(f"restart of {size:.0f} MiB, against populate + read", both, ours, "ms", "read")
    report(f"restart of {size:.0f} MiB, against the read alone", reading, ours, "ms", "read")


BENCHES = {"one256": lambda runs, work: one(256, runs, work), "one1024": lambda runs, work: one(1024, runs, work)}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
