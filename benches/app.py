#!/usr/bin/env python3
"""Measures libmend-app beside plain system calls and h5py, in one run (needs `make app`, and h5py: tests/setup.sh app).

    app.py [--runs N] [--record] [NAME ...]

    call     a call of mend_app_checkpoint() without a request, and a loop with such calls against the loop without them
    write    a checkpoint of 4 and of 8 ranks, durable, against write(2) + fsync(2) of the same bytes, and against h5py with fsync
    read     the restart from it, against read(2) into fresh memory and against h5py, verified at the start, with the values, and not; how large the files are

MEND_BENCH_MIB (64) is what each rank has, in MiB. Times are those of the slowest rank.
"""

import glob
import os
import statistics
import subprocess
import sys

import results
from side_by_side import MPIEXEC, main, output, report
from cluster import VENV

sys.path.insert(0, os.path.join(results.ROOT, "app", "lib", "tests"))
from programs import environment, program  # noqa: E402

MEBIBYTES = int(os.environ.get("MEND_BENCH_MIB", "64"))
RANKS = (4, 8)
H5PY = """
import os, sys, h5py, numpy
from mpi4py import MPI
comm, count, what = MPI.COMM_WORLD, int(sys.argv[1]) << 17, sys.argv[2]
name = f"h5py-{comm.rank}.h5"
data = numpy.random.default_rng(comm.rank).random(count) if what == "write" else None
comm.Barrier()
since = MPI.Wtime()
if what == "write":
    with h5py.File(name, "w") as file:
        file["data"] = data
    fd = os.open(name, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
else:
    with h5py.File(name) as file:
        data = file["data"][:]
took = comm.allreduce(MPI.Wtime() - since, op=MPI.MAX)
if comm.rank == 0:
    print("h5py", took * 1e3)
"""


def samples(ranks, work, *command, **settings):
    """Rows of numbers that the program `costs`, or another command, printed."""
    text = output([MPIEXEC, "-n", str(ranks), *command], environment(quiet="yes", **settings), work)
    return [[float(word) for word in line.split()[1:]] for line in text.splitlines() if line]


def h5py(ranks, work, what):
    return samples(ranks, work, os.path.join(VENV, "bin", "python3"), "-c", H5PY, str(MEBIBYTES), what)[0][0]


def call(runs, work):
    costs = program("costs")
    nanoseconds = [samples(1, work, costs, "call", "20000000")[0][0] for _ in range(runs)]
    print(f"a call without a request: {statistics.median(nanoseconds):.3g} ns (limit 50)", flush=True)
    results.note("call without a request", "ns", nanoseconds)
    without, with_calls, calls = [], [], 100000
    for _ in range(2 * runs):
        without.append(samples(1, work, costs, "loop", str(calls), "2000", "off")[0][0])
        with_calls.append(samples(1, work, costs, "loop", str(calls), "2000", "on")[0][0])
    report(f"loop of {calls} steps, with a safe point each", without, with_calls, "ms", "without")
    share = 100 * calls * statistics.median(nanoseconds) * 1e-6 / statistics.median(without)
    print(f"  calls x their cost: {share:.3f} % of the loop (limit 0.5)", flush=True)
    results.note("calls x measured cost, of the loop's time", "%", [share])


def write(runs, work):
    for ranks in RANKS:
        ours, plain, theirs = [], [], []
        for _ in range(runs):
            # The second one of a process: the first makes what all later ones use again.
            _, (mine, written) = samples(ranks, work, program("costs"), "write", str(MEBIBYTES), "2", restart="none", keep=1)
            ours.append(mine)
            plain.append(written)
            theirs.append(h5py(ranks, work, "write"))
        report(f"checkpoint of {ranks} ranks x {MEBIBYTES} MiB", plain, ours, "ms", "write + fsync")
        report(f"checkpoint of {ranks} ranks x {MEBIBYTES} MiB", theirs, ours, "ms", "h5py + fsync")


def read(runs, work):
    for ranks in RANKS:
        samples(ranks, work, program("costs"), "write", str(MEBIBYTES), "1", restart="none", keep=1)
        files = glob.glob(os.path.join(work, "checkpoints", "checkpoint-*", "*"))
        size = 100 * (sum(map(os.path.getsize, files)) / (ranks * MEBIBYTES * 2**20) - 1)
        print(f"files of {ranks} ranks: {size:.4f} % more than the live variables (limit 1)", flush=True)
        results.note(f"bytes beyond the live variables, {ranks} ranks", "%", [size])
        h5py(ranks, work, "write")
        for verify in ("no", "values", "start"):
            ours, plain, theirs = [], [], []
            for _ in range(runs):
                start, values, reading = samples(ranks, work, program("costs"), "read", str(MEBIBYTES), "1", restart="newest", verify=verify)[0]
                ours.append(start + values)
                plain.append(reading)
                theirs.append(h5py(ranks, work, "read"))
            how = {"no": "not verified", "values": "verified with the values", "start": "verified at the start"}[verify]
            report(f"restart of {ranks} ranks x {MEBIBYTES} MiB, {how}", plain, ours, "ms", "read")
            report(f"restart of {ranks} ranks x {MEBIBYTES} MiB, {how}", theirs, ours, "ms", "h5py")
        subprocess.run(["rm", "-r", os.path.join(work, "checkpoints")], check=True)


BENCHES = {"call": call, "write": write, "read": read}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
