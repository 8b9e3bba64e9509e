#!/usr/bin/env python3
"""Measures restarts beside what they are to be compared with, in one run.

    restart.py [--runs N] [NAME ...]

    one256, one1024    one rank with 256 MiB or 1 GiB of noise from its full image: the restart, against a single-threaded
                       read(2) of the same file into memory that was populated for it, with and without the populating
    chain              one rank with 1 GiB of noise from a full image and three that build on it, for each of which another tenth of
                       the pages was changed: the restart, against populating memory for the pages that are live and reading
                       all four files into it; and how many bytes the restart read

The files are in the page cache on both sides. MEND_BENCH_MIB sizes the chain's noise. Times are wall-clock; the machine should
have nothing else to do. All of it takes a minute and a half.
"""

import mmap
import os
import sys
import time

from side_by_side import MADV_POPULATE_WRITE, main, report
from cluster import Machine, compile_mpi, compile_plain
from processes import SIZES, Process, images


def read_into_populated_memory(size, *paths):
    """Milliseconds of populating so many bytes and of reading the files into them, each from the start on."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        start = time.monotonic()
        memory.madvise(MADV_POPULATE_WRITE)
        populated = time.monotonic()
        with memoryview(memory) as view:
            for path in paths:
                with open(path, "rb", buffering=0) as file:
                    done = 0
                    while count := file.readinto(view[done : done + (1 << 20)]):
                        done += count
        end = time.monotonic()
    return (populated - start) * 1e3, (end - populated) * 1e3


def bytes_read(job, program):
    """Bytes that the processes of a job which run this program have read since their start."""
    family, total = {job.process.pid}, 0
    for process in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            if parent in family:
                family.add(process)
                if os.readlink(f"/proc/{process}/exe") == program:
                    with open(f"/proc/{process}/io", encoding="ascii") as file:
                        total += int(file.readline().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def restarted(machine, work, name, program):
    """Milliseconds from the restorer's start until memory, threads and files stand, and bytes read for it."""
    job = machine.start(work, "restart", name)
    machine.running(job)
    while True:
        status = next(one for one in machine.verb("ps") if one["id"] == name)["status"]
        if status and status["restart"]:
            break
        time.sleep(0.01)
    read = bytes_read(job, program)
    machine.mend("kill", name)
    job.finish(137)
    return status["restart"]["restart_us"] / 1e3, read


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
            populate, read = read_into_populated_memory(os.path.getsize(image), image)
            reading.append(read)
            both.append(populate + read)
            ours.append(restarted(machine, work, name, program)[0])
        size = os.path.getsize(image) / 2**20
    report(f"restart of {size:.0f} MiB, against populate + read", both, ours, "ms", "populate + read")
    report(f"restart of {size:.0f} MiB, against the read alone", reading, ours, "ms", "the read alone")


def chain(runs, work):
    program = compile_plain("noise.c", os.path.join(work, "noise"))
    with Machine() as machine:
        process = Process(machine, work, work, "--incremental", "7", program, str(SIZES[-1]))
        files = images(process.checkpoint("stop")["directory"])
        for tenth in range(3):
            process.tell(f"dirty 10 {3 * tenth}")
            files += images(process.checkpoint("stop")["directory"])
        process.kill()
        shown = machine.verb("image", "verify", *reversed(files))
        reading, both, ours = [], [], []
        for _ in range(runs):
            populate, read = read_into_populated_memory(max(shown["live"], *map(os.path.getsize, files)), *files)
            reading.append(read)
            both.append(populate + read)
            took, taken = restarted(machine, work, process.name, program)
            ours.append(took)
    report(f"restart of 1 + 3 images, {shown['live'] / 2**20:.0f} MiB live", both, ours, "ms", "populate + read")
    report("the same, against the read alone", reading, ours, "ms", "the read alone")
    print(f"  images of {', '.join(f'{os.path.getsize(file) / 2**20:.1f}' for file in files)} MiB; {taken / 2**20:.1f} MiB read", flush=True)


BENCHES = {"one256": lambda runs, work: one(256, runs, work), "one1024": lambda runs, work: one(1024, runs, work), "chain": chain}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
