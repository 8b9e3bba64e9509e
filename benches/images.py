#!/usr/bin/env python3
"""Measures encrypted checkpoints, drains and migrations beside what they are to be compared with, in one run.

    images.py [--runs N] [--record] [NAME ...]

    encrypted   one rank with 256 MiB, stopped, to the temporary directory: time to write with --encryption-key / without. Beside dd: checkpoints.py full
    drain       8 ranks on two lab nodes: from the order to suspend until nothing is in flight, in heavy traffic and in a computation;
                the checkpoint's other phases, each the slowest rank's
    migration   one rank with 256 MiB to another lab node: time it was stopped / raw TCP of as many bytes between these nodes

Times are wall-clock; the machine should have nothing else to do.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time

import results
from side_by_side import main, report
from cluster import Lab, Machine, compile_mpi
from raw_tcp import RawTcp


def encrypted(runs, work):
    program = compile_mpi("mpi_iters.c", os.path.join(work, "iters"))
    key = os.path.join(work, "key")
    with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
        file.write(os.urandom(32).hex())
    times = {"plain": [], "encrypted": []}
    with Machine() as machine:
        names = {}
        for kind, options in (("plain", []), ("encrypted", ["--encryption-key", key])):
            directory = os.path.join(work, kind)
            os.mkdir(directory)
            job = machine.start(directory, "run", "--checkpoint-dir", directory, *options, program, "-i", "1000000", "-w", "10", "-m", "256")
            names[kind] = machine.running(job)
        time.sleep(2)
        for _ in range(runs):
            for kind, name in names.items():
                done = machine.verb("checkpoint", name, "--mode", "stop")
                times[kind].append(done["phases"]["write_us"] / 1e3)
                shutil.rmtree(done["directory"])
        for name in names.values():
            machine.mend("kill", name)
    report(f"checkpoint of {done['bytes'] / 2**20:.0f} MiB, encrypted", times["plain"], times["encrypted"], "ms", "a plain checkpoint")


def drain(runs, work):
    traffic = compile_mpi("mpi_checksums.c", os.path.join(work, "checksums"))
    computing = compile_mpi("mpi_iters.c", os.path.join(work, "iters"))
    with Lab(2) as lab:
        for what, argv in (
            ("random traffic", [traffic, "-r", "1000000"]),
            # An iteration computes for some ten seconds before it communicates again.
            ("a computation", [computing, "-i", "1000", "-w", "500000", "-m", "4"]),
        ):
            directory = tempfile.mkdtemp(dir=work)
            job = lab.start(directory, "run", "-n", "8", "--hosts", "node1,node2", "--", *argv)
            name = lab.running(job)
            time.sleep(2)
            taken = [lab.verb("checkpoint", name) for _ in range(3 * runs)]
            lab.mend("kill", name)
            job.finish(None)
            print(f"drain of 8 ranks in {what}, {len(taken)} checkpoints")
            phases = {phase[:-3]: [one["phases"][phase] for one in taken] for phase in taken[0]["phases"]}
            for phase, times in {**phases, "stopped": [one["stopped_us"] for one in taken]}.items():
                if any(times):
                    results.note(f"{phase}, {what}", "ms", [time / 1e3 for time in times])
                    print(f"  {phase:10} median {statistics.median(times) / 1e3:8.3f} ms ({min(times) / 1e3:.3f} to {max(times) / 1e3:.3f})", flush=True)


def migration(runs, work):
    program = compile_mpi("mpi_iters.c", os.path.join(work, "iters"))
    ours, theirs = [], []
    with Lab(2) as lab:
        job = lab.start(work, "run", "--hosts", "node1", "--spares", "node2", "--", program, "-i", "1000000", "-w", "10", "-m", "256")
        name = lab.running(job)
        time.sleep(2)
        size = lab.verb("migrate", name, "0", "--to", "node2", "--mode", "frozen")["bytes"]
        lab.verb("migrate", name, "0", "--to", "node1", "--mode", "frozen")
        with RawTcp(lab, "node1", "node2", size, runs) as tcp:
            for _ in range(runs):
                theirs.append(tcp.milliseconds())
                ours.append(lab.verb("migrate", name, "0", "--to", "node2", "--mode", "frozen")["stopped_us"] / 1e3)
                lab.verb("migrate", name, "0", "--to", "node1", "--mode", "frozen")
        lab.mend("kill", name)
    report(f"migration of {size / 2**20:.0f} MiB, time stopped", theirs, ours, "ms", "raw TCP")


BENCHES = {"encrypted": encrypted, "drain": drain, "migration": migration}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
