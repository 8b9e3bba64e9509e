#!/usr/bin/env python3
"""Measures moves of ranks by libmend-app, between two nodes with a capped link (as root; needs `make app`).

    app_moves.py [--runs N] [--record] [NAME ...]

    stages   conjugate gradients on 4 ranks of a node, of which one, half and all move: seconds of negotiation, start of processes, writing, sending, waiting and reading, restart;
             pipelined, against one stage after the other in memory, and against files
    programs one rank of 4 moves, by program after NPB (CG, FT, MG, LU, BT, SP): the same stages, pipelined
    chunks   a rank of 256 MiB moves in parts of 16, 64 and 256 MiB: what its new process waits and reads, against the slowest stage alone
    memory   what old and new process have beside their data, at most

The nodes are network namespaces on this machine, with MEND_BENCH_RATE (800mbit) between them; MPICH's UCX has TCP alone. MEND_BENCH_ROWS (1000000) is the matrix's size.
"""

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

import results
from side_by_side import MPIEXEC, main, report
from cluster import Failed

sys.path.insert(0, os.path.join(results.ROOT, "app", "lib", "tests"))
from programs import environment, program  # noqa: E402

RATE = os.environ.get("MEND_BENCH_RATE", "800mbit")
ROWS = os.environ.get("MEND_BENCH_ROWS", "1000000")
ADDRESSES = ("10.77.13.1", "10.77.13.2")
STAGES = ("negotiation", "spawn", "write", "send", "wait", "read", "restart", "all")
MIB = 1 << 20
# mpiexec's launcher: [options] HOST COMMAND.
LAUNCHER = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
case $host in {a}) node={name}-a;; *) node={name}-b;; esac
exec ip netns exec $node sh -c "$*"
"""


def do(*command):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


class Nodes:
    """Two namespaces with a link, whose both ends tbf caps."""

    def __init__(self, name):
        self.name = name
        self.a, self.b = ADDRESSES

    def up(self):
        for side in "ab":
            do("ip", "netns", "add", f"{self.name}-{side}")
        do("ip", "link", "add", "cable", "netns", f"{self.name}-a", "type", "veth", "peer", "name", "cable", "netns", f"{self.name}-b")
        for side, address in (("a", self.a), ("b", self.b)):
            inside = ("ip", "-n", f"{self.name}-{side}")
            do(*inside, "link", "set", "lo", "up")
            do(*inside, "addr", "add", f"{address}/24", "dev", "cable")
            do(*inside, "link", "set", "cable", "up")
            do("tc", "-n", f"{self.name}-{side}", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", RATE, "burst", "512kb", "latency", "50ms")

    def down(self):
        for side in "ab":
            subprocess.run(["ip", "netns", "del", f"{self.name}-{side}"], check=False, capture_output=True)

    def command(self, work, ranks, *command):
        launcher = os.path.join(work, "launcher")
        with open(launcher, "w", encoding="ascii") as file:
            file.write(LAUNCHER.format(a=self.a, name=self.name))
        os.chmod(launcher, 0o755)
        return ["ip", "netns", "exec", f"{self.name}-a", MPIEXEC, "-localhost", self.a, "-launcher", "ssh", "-launcher-exec", launcher, "-hosts", self.a, "-n", str(ranks), *command]


@contextlib.contextmanager
def two_nodes():
    if os.geteuid() != 0:
        raise Failed("as root only: nodes are network namespaces")
    nodes = Nodes(f"mend{os.getpid()}")
    try:
        nodes.up()
        yield nodes
    finally:
        nodes.down()


def watched(process, name, peaks):
    """Waits for the end; `peaks` gets each process's VmHWM, and the VmRSS that it had last, in MiB."""
    while process.poll() is None:
        for entry in os.listdir("/proc") if peaks is not None else ():
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/exe") == name:
                    with open(f"/proc/{entry}/status", encoding="ascii") as file:
                        found = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+)", file.read()))
                    if found:
                        peaks.setdefault(entry, []).append((int(found["VmHWM"]) / 1024, int(found["VmRSS"]) / 1024))
            except OSError:
                continue
        time.sleep(0.05)


def move(nodes, work, ranks, command, peaks=None, **settings):
    """Milliseconds of each stage of the one move in a run: those of the slowest rank."""
    shutil.rmtree(os.path.join(work, "checkpoints"), ignore_errors=True)
    variables = environment(watch_seconds=0.02, restart="none", **settings)
    variables.update(UCX_TLS="tcp,self", UCX_WARN_UNUSED_ENV_VARS="n")
    with open(os.path.join(work, "output"), "w+", encoding="utf-8") as output:
        process = subprocess.Popen(nodes.command(work, ranks, *command), cwd=work, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        watched(process, command[0], peaks)
        output.seek(0)
        text = output.read()
    told = re.search(r"moved: .* seconds: (.*)", text)
    if process.returncode or not told:
        raise Failed(f"{' '.join(command)}: exit code {process.returncode}:\n{text[-2000:]}")
    return {name: 1e3 * float(value) for name, value in (part.split() for part in told.group(1).split(", "))}


def note_stages(what, samples):
    for stage in STAGES:
        results.note(f"{what}: {stage}", "ms", [sample[stage] for sample in samples])
    print(f"{what:30} " + "  ".join(f"{stage} {statistics.median(sample[stage] for sample in samples):.0f}" for stage in STAGES) + " ms", flush=True)


def stages(nodes, runs, work):
    for name, who in (("one rank of 4", "1"), ("half of 4 ranks", "0-1"), ("all of 4 ranks", "all")):
        samples = {through: [] for through in ("pipeline", "memory", "disk")}
        for _ in range(runs):
            for through, taken in samples.items():
                taken.append(move(nodes, work, 4, [program("cg"), ROWS, "12", "-m", "2", who, nodes.b], move_through=through, move_chunk=16 * MIB))
        for through, taken in samples.items():
            note_stages(f"{name}, {through}", taken)
        whole = {through: [sample["all"] for sample in taken] for through, taken in samples.items()}
        for through in ("memory", "disk"):
            report(f"{name}, from the agreed call on", whole[through], whole["pipeline"], "ms", through)


# Name, arguments: 5 to 39 MB of data a rank.
PROGRAMS = (("cg", ROWS, "12"), ("ft", "128", "12"), ("mg", "127", "40"), ("lu", "64", "40"), ("bt", "64", "40"), ("sp", "64", "40"))


def programs(nodes, runs, work):
    for name, size, steps in PROGRAMS:
        taken = [move(nodes, work, 4, [program(name), size, steps, "-m", "2", "1", nodes.b], move_chunk=16 * MIB) for _ in range(runs)]
        note_stages(f"{name.upper()}, {size}", taken)


def chunks(nodes, runs, work):
    command = [program("moves"), str(2 * 256 * MIB // 8), "8", "-m", "1", "1", nodes.b]
    for mebibytes in (16, 64, 256):
        ours, alone = [], []
        for _ in range(runs):
            pipelined, after = (move(nodes, work, 2, command, move_through=through, move_chunk=mebibytes * MIB) for through in ("pipeline", "memory"))
            ours.append(pipelined["wait"] + pipelined["read"])
            alone.append(max(after["write"], after["wait"], after["read"]))
        report(f"256 MiB in parts of {mebibytes} MiB", alone, ours, "ms", "slowest stage alone")


def memory(nodes, runs, work):
    for mebibytes in (16, 64):
        old, new, left = [], [], []
        for _ in range(runs):
            peaks = {}
            move(nodes, work, 2, [program("moves"), str(2 * 256 * MIB // 8), "16", "-p", "200000", "-m", "5", "1", nodes.b], peaks, move_chunk=mebibytes * MIB)
            first, second, comer = list(peaks.values())
            leaver, stayer = (first, second) if first[-1][1] < second[-1][1] else (second, first)
            # The rank that stays has as much data, and MPI.
            old.append(leaver[-1][0] - stayer[-1][1])
            new.append(comer[-1][0] - comer[-1][1])
            left.append(leaver[-1][1])
        for what, samples in (("old", old), ("new", new)):
            results.note(f"{what} process beside its data, parts of {mebibytes} MiB", "MiB", samples)
            print(f"{what} process beside its data, parts of {mebibytes} MiB: {statistics.median(samples):.1f} MiB", flush=True)
        results.note(f"old process afterwards, with MPI, parts of {mebibytes} MiB", "MiB", left)
        print(f"old process afterwards, with MPI: {statistics.median(left):.1f} MiB", flush=True)


BENCHES = {"stages": stages, "programs": programs, "chunks": chunks, "memory": memory}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES, two_nodes))
