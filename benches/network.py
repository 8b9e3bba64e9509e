#!/usr/bin/env python3
"""Measures Mend's tcp channel between two lab nodes beside libfabric's own `tcp` provider, in one run; medians and ratios.

    network.py [--runs N] [NAME ...]

    pingpong    IMB PingPong, 0 B to 4 MiB: half a round trip, us; with the floor: one plain TCP connection over this link
    sendrecv    IMB Sendrecv, both directions at once: time, us; with the same floor to 16 KiB
    uniband     IMB Uniband, a stream one way: MB/s (messages/s at 0 B)
    rate        messages per second of 8 B, windows of 64 nonblocking sends
    crowded     IMB Allreduce of 8 B, 4 ranks on each of 2 nodes, more than this machine may have cores: mean time, us
    lammps      LAMMPS melt, 2 ranks on 2 nodes, time of the run's loop

Both sides are the same binary under the same `mend run` on the same nodes; the other one is told to take FI_PROVIDER=tcp and
is not preloaded. Runs alternate (A B A B …). Ratios are Mend's figure by the other's: below 1 is better for times, above 1 for
rates.
"""

import os
import re
import statistics
import subprocess
import sys

import results
from side_by_side import main, output, report
from cluster import MEND, ROOT, Failed, Lab, compile_mpi, compile_plain, find_imb, find_lammps

OTHER = ["env", "-u", "LD_PRELOAD", "FI_PROVIDER=tcp"]
PORT = "9100"


def run(lab, ranks, argv, other):
    hosts = ",".join(f"{node}:{ranks // 2}" for node in ("node1", "node2"))
    command = lab.command("run", "-q", "-n", str(ranks), "--hosts", hosts, "--", *(OTHER if other else []), *argv)
    return output(command, lab.environment, lab.home, patience=300)


def imb_rows(text):
    """The rows of an IMB table by their size in bytes."""
    return {int(row[0]): row for row in (line.split() for line in text.splitlines()) if row and row[0].isdigit()}


def pairs(lab, ranks, argv, runs, read):
    """Alternating runs; (figures of libfabric's provider, Mend's figures)."""
    figures = ([], [])
    for _ in range(runs):
        for kind in (0, 1):
            figures[kind].append(read(run(lab, ranks, argv, other=kind == 0)))
    return figures


def imb(lab, name, runs, column, repetitions):
    """{size: (figures of libfabric's provider, Mend's figures)}; short messages are repeated more often than long ones."""
    table = {}
    for logs, count in (("0:12", repetitions[0]), ("13:22", repetitions[1])):
        argv = [find_imb(), "-iter_policy", "off", "-iter", str(count), "-time", "60", "-msglog", logs, name]
        theirs, ours = pairs(lab, 2, argv, runs, imb_rows)
        for size in theirs[0]:
            if size or logs.startswith("0"):
                table[size] = tuple([float(rows[size][column]) for rows in side] for side in (theirs, ours))
    return table


def print_table(title, unit, table, floor=None):
    print(f"{title} ({unit})\n{'bytes':>9} {'tcp':>12} {'mend':>12} {'ratio':>7} (from .. to){'   floor' if floor else ''}")
    for size, (theirs, ours) in sorted(table.items()):
        ratios = sorted(mine / other for other, mine in zip(theirs, ours) if other)
        if ratios:
            name = title.split(",")[0]
            remark = f"a plain TCP connection {floor[size]:.2f} {unit}" if floor and size in floor else None
            results.note(name, unit, ours, theirs, "libfabric's tcp", size=size, remark=remark)
            low = f"{floor[size]:8.2f}" if floor and size in floor else ""
            print(f"{size:9} {statistics.median(theirs):12.2f} {statistics.median(ours):12.2f} {statistics.median(ratios):7.3f} "
                  f"({ratios[0]:.3f} .. {ratios[-1]:.3f}) {low}", flush=True)


def floors(lab, work, sizes, runs):
    """Of a plain TCP connection, us: {size: median of half a round trip}, {size: median if both ends send}."""
    program = compile_plain("socket_pingpong.c", os.path.join(work, "socket_pingpong"))
    address = lab.on("node1", "getent", "ahostsv4", "node2").stdout.split()[0]
    plan = [str(number) for size in sizes if size for number in (size, 4000 if size <= 4096 else 200)]
    ways, exchanges = {}, {}
    for _ in range(runs):
        server = subprocess.Popen([MEND, "lab", "exec", "--name", lab.name, "node2", "--", program, PORT], stdout=subprocess.PIPE)
        server.stdout.readline()
        for line in lab.on("node1", program, PORT, address, *plan).stdout.splitlines():
            size, way, *exchange = line.split()
            ways.setdefault(int(size), []).append(float(way))
            exchanges.setdefault(int(size), []).extend(map(float, exchange))
        if server.wait(30):
            raise Failed("the plain connection's other end failed")
    return tuple({size: statistics.median(times) for size, times in figures.items() if times} for figures in (ways, exchanges))


def pingpong(lab, runs, work):
    table = imb(lab, "PingPong", runs, 2, (4000, 200))
    print_table("PingPong, half a round trip", "us", table, floors(lab, work, sorted(table), runs)[0])


def sendrecv(lab, runs, work):
    table = imb(lab, "Sendrecv", runs, 4, (4000, 200))
    print_table("Sendrecv, time", "us", table, floors(lab, work, sorted(table), runs)[1])


def uniband(lab, runs, _work):
    table = imb(lab, "Uniband", runs, 2, (200, 10))
    print_table("Uniband, bandwidth", "MB/s", {size: row for size, row in table.items() if size})


def rate(lab, runs, work):
    program = compile_mpi("message_rate.c", os.path.join(work, "message_rate"))
    theirs, ours = pairs(lab, 2, [program], runs, lambda text: float(re.search(r": (\d+) messages/s", text)[1]) / 1e3)
    report("messages of 8 B, windows of 64", theirs, ours, "k/s", "libfabric's tcp")


def crowded(lab, runs, _work):
    argv = [find_imb(), "-iter_policy", "off", "-iter", "200", "-npmin", "8", "-msglog", "3:3", "Allreduce"]
    theirs, ours = pairs(lab, 8, argv, runs, imb_rows)
    report("Allreduce 8 B, 8 ranks on 2 nodes, mean time", [float(rows[8][4]) for rows in theirs], [float(rows[8][4]) for rows in ours],
           "us", "libfabric's tcp")


def lammps(lab, runs, _work):
    melt = os.path.join(ROOT, "tests", "demo", "in.melt")
    argv = [find_lammps(), "-in", melt, "-var", "x", "16", "-var", "y", "16", "-var", "z", "16", "-var", "steps", "600", "-log", "none"]
    read = lambda text: float(re.search(r"^Loop time of ([0-9.]+)", text, re.MULTILINE)[1])  # noqa: E731
    report("LAMMPS melt, 2 ranks on 2 nodes, loop time", *pairs(lab, 2, argv, runs, read), "s", "libfabric's tcp")


BENCHES = {"pingpong": pingpong, "sendrecv": sendrecv, "uniband": uniband, "rate": rate, "crowded": crowded, "lammps": lammps}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES, within=lambda: Lab(2)))
