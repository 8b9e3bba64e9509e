#!/usr/bin/env python3
"""Measures Mend beside what it is to be compared with, in one run, and prints medians and ratios.

    bench.py [--runs N] [NAME ...]

    lammps      LAMMPS melt, 2 ranks, time of the run's loop: mend run / stock mpiexec
    pingpong    IMB PingPong on one node, latency at 8 B, bandwidth at 1 MiB: mend run / stock mpiexec
    crowded     IMB Allreduce of 8 B, 4 ranks on however many cores there are: mend run / stock mpiexec
    checkpoint  one rank with 256 MiB, to the temporary directory: time to write / dd bs=1M conv=fsync of as many bytes
    drain       8 ranks on two lab nodes: from the order to suspend until nothing is in flight, in heavy traffic and in a computation
    migration   one rank with 256 MiB to another lab node: time it was stopped / raw TCP of as many bytes between these nodes

Runs alternate (A B A B …) so that a machine whose speed drifts wrongs neither. Times are wall-clock; the machine should
have nothing else to do.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "tests", "lab")]
from cluster import MEND, ROOT, VENV, Failed, Lab, Machine, compile_mpi, find_imb, find_lammps, mpi_environment  # noqa: E402

MPIEXEC = os.path.join(VENV, "bin", "mpiexec")


def output(command, environment, directory):
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def stock_and_mend(ranks, argv, runs, work, read):
    """Alternating runs under mpiexec and mend; (stock figures, mend figures)."""
    figures = ([], [])
    with Machine() as machine:
        commands = ([MPIEXEC, "-n", str(ranks), *argv], [MEND, "run", "-q", "-n", str(ranks), *argv])
        environments = (mpi_environment(), machine.environment)
        for _ in range(runs):
            for kind in (0, 1):
                figures[kind].append(read(output(commands[kind], environments[kind], work)))
    return figures


def report(what, theirs, ours, unit, of="stock"):
    a, b = statistics.median(theirs), statistics.median(ours)
    ratios = sorted(y / x for x, y in zip(theirs, ours))
    print(f"{what:44} {of} {a:10.3f} {unit:5} mend {b:10.3f} {unit:5} ratio {statistics.median(ratios):6.3f} "
          f"({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs)", flush=True)


def lammps(runs, work):
    melt = os.path.join(ROOT, "tests", "demo", "in.melt")
    argv = [find_lammps(), "-in", melt, "-var", "x", "16", "-var", "y", "16", "-var", "z", "16", "-var", "steps", "600", "-log", "none"]
    def read(text):
        return float(re.search(r"^Loop time of ([0-9.]+)", text, re.MULTILINE)[1])
    report("LAMMPS melt, 2 ranks, loop time", *stock_and_mend(2, argv, runs, work, read), "s")


def imb_rows(text):
    return {int(row[0]): row for row in (line.split() for line in text.splitlines()) if row and row[0].isdigit()}


def pingpong(runs, work):
    argv = [find_imb(), "-iter_policy", "off", "-iter", "2000", "-msglog", "3:20", "PingPong"]
    stock, mend = stock_and_mend(2, argv, runs, work, imb_rows)
    report("PingPong 8 B, latency", [float(r[8][2]) for r in stock], [float(r[8][2]) for r in mend], "us")
    for size in (4096, 65536, 1 << 20):
        report(f"PingPong {size} B, time", [float(r[size][2]) for r in stock], [float(r[size][2]) for r in mend], "us")


def crowded(runs, work):
    argv = [find_imb(), "-iter_policy", "off", "-iter", "200", "-npmin", "4", "-msglog", "3:3", "Allreduce"]
    stock, mend = stock_and_mend(4, argv, runs, work, imb_rows)
    report("Allreduce 8 B, 4 ranks, mean time", [float(r[8][4]) for r in stock], [float(r[8][4]) for r in mend], "us")


def checkpoint(runs, work):
    program = compile_mpi("mpi_iters.c", os.path.join(work, "iters"))
    ours, theirs = [], []
    with Machine() as machine:
        job = machine.start(work, "run", "--checkpoint-dir", work, program, "-i", "1000000", "-w", "10", "-m", "256")
        name = machine.running(job)
        time.sleep(2)
        for _ in range(runs):
            done = machine.verb("checkpoint", name)
            ours.append(done["phases"]["write_us"] / 1e3)
            image, copy = os.path.join(done["directory"], "rank-0.image"), os.path.join(work, "copy")
            start = time.monotonic()
            subprocess.run(["dd", f"if={image}", f"of={copy}", "bs=1M", "conv=fsync"], check=True, capture_output=True)
            theirs.append((time.monotonic() - start) * 1e3)
            os.remove(copy)
            shutil.rmtree(done["directory"])
        machine.mend("kill", name)
    report(f"checkpoint of {done['bytes'] / 2**20:.0f} MiB, write + fsync", theirs, ours, "ms", "dd   ")


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
            times = sorted(lab.verb("checkpoint", name)["phases"]["suspend_us"] / 1e3 for _ in range(3 * runs))
            lab.mend("kill", name)
            job.finish(None)
            print(f"drain of 8 ranks in {what:15} median {statistics.median(times):8.3f} ms ({times[0]:.3f} to {times[-1]:.3f}, {len(times)} checkpoints)", flush=True)


RECEIVER = """
import socket, sys
s = socket.create_server(("0.0.0.0", 9000)); print("ready", flush=True)
buffer = bytearray(1 << 20)
for _ in range(int(sys.argv[2])):
    c, _ = s.accept(); left = int(sys.argv[1])
    while left > 0: left -= c.recv_into(buffer)
    c.sendall(b"x"); c.close()
"""
SENDER = """
import socket, sys, time
buffer = bytes(1 << 20); total = int(sys.argv[1])
s = socket.socket(); s.setsockopt(socket.IPPROTO_TCP, 13, b"cubic"); s.connect(("node2", 9000))
start = time.monotonic()
sent = 0
while sent < total:
    part = min(len(buffer), total - sent); s.sendall(buffer[:part]); sent += part
s.recv(1)
print(time.monotonic() - start)
"""


def migration(runs, work):
    program = compile_mpi("mpi_iters.c", os.path.join(work, "iters"))
    ours, theirs = [], []
    with Lab(2) as lab:
        job = lab.start(work, "run", "--hosts", "node1", "--spares", "node2", "--", program, "-i", "1000000", "-w", "10", "-m", "256")
        name = lab.running(job)
        time.sleep(2)
        size = lab.verb("migrate", name, "0", "--to", "node2")["bytes"]
        lab.verb("migrate", name, "0", "--to", "node1")
        prefix = [MEND, "lab", "exec", "--name", lab.name]
        receiver = subprocess.Popen([*prefix, "node2", "--", "python3", "-c", RECEIVER, str(size), str(runs)], stdout=subprocess.PIPE)
        receiver.stdout.readline()
        for _ in range(runs):
            theirs.append(float(lab.on("node1", "python3", "-c", SENDER, str(size)).stdout) * 1e3)
            ours.append(lab.verb("migrate", name, "0", "--to", "node2")["stopped_us"] / 1e3)
            lab.verb("migrate", name, "0", "--to", "node1")
        receiver.wait()
        lab.mend("kill", name)
    report(f"migration of {size / 2**20:.0f} MiB, time stopped", theirs, ours, "ms", "TCP  ")


BENCHES = {"lammps": lammps, "pingpong": pingpong, "crowded": crowded, "checkpoint": checkpoint, "drain": drain, "migration": migration}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    for name in arguments.names or BENCHES:
        work = tempfile.mkdtemp(prefix="mend-bench-")
        try:
            BENCHES[name](arguments.runs, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
