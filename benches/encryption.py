#!/usr/bin/env python3
"""Measures what `MEND_ENCRYPT_DATA=on` costs, between two lab nodes, beside the same without it, in one run; medians and ratios.

    encryption.py [--runs N] [NAME ...]

    pingpong    IMB PingPong, 0 B to 4 MiB: half a round trip, us
    uniband     IMB Uniband, a stream one way: MB/s
    rate        messages per second of 8 B, windows of 64 nonblocking sends
    move        a rank of 256 MiB moves to the other node: time standing still, ms

Both sides are the same binary under the same `mend run` on the same nodes. Runs alternate (A B A B …). Ratios are the figure with encryption by
the one without: above 1 is what it costs in times, below 1 in rates.
"""

import os
import re
import statistics
import sys

from side_by_side import main, output, report
from cluster import Lab, compile_mpi, find_imb
from network import imb_rows

SETTING = "MEND_ENCRYPT_DATA"
OFF = "in the clear"


def pairs(lab, argv, runs, read):
    """Alternating runs; (figures in the clear, figures encrypted)."""
    figures = ([], [])
    for _ in range(runs):
        for kind, value in enumerate(("off", "on")):
            command = lab.command("run", "-q", "-n", "2", "--hosts", "node1:1,node2:1", "--", *argv)
            figures[kind].append(read(output(command, {**lab.environment, SETTING: value}, lab.home, patience=300)))
    return figures


def imb(lab, name, runs, column, unit, what, counts):
    """`counts`: repetitions of small and of large messages."""
    for logs, count in zip(("3:12", "13:22"), counts):
        argv = [find_imb(), "-iter_policy", "off", "-iter", str(count), "-time", "60", "-msglog", logs, name]
        plain, encrypted = pairs(lab, argv, runs, imb_rows)
        for size in (8, 1024, 16384, 65536, 1048576, 4194304):
            if size in plain[0]:
                report(f"{what} of {size} B", *([float(rows[size][column]) for rows in side] for side in (plain, encrypted)), unit, OFF)


def pingpong(lab, runs, _work):
    imb(lab, "PingPong", runs, 2, "us", "PingPong, half a round trip", (4000, 200))


def uniband(lab, runs, _work):
    # IMB sends some 580 messages in a repetition: with 200, those of 8 KiB to 4 MiB are a terabyte, which takes longer than a run may.
    imb(lab, "Uniband", runs, 2, "MB/s", "Uniband, messages", (200, 10))


def rate(lab, runs, work):
    program = compile_mpi("message_rate.c", os.path.join(work, "message_rate"))
    read = lambda text: float(re.search(r": (\d+) messages/s", text)[1]) / 1e3  # noqa: E731
    report("messages of 8 B, windows of 64", *pairs(lab, [program], runs, read), "k/s", OFF)


def move(lab, runs, work):
    program = compile_mpi("mpi_iters.c", os.path.join(work, "iters"))
    stopped, sizes = ([], []), []
    for run in range(runs):
        for kind, value in enumerate(("off", "on")):
            lab.set(SETTING, value)
            directory = os.path.join(work, f"{value}-{run}")
            os.mkdir(directory)
            job = lab.start(directory, "run", "-n", "2", "--hosts", "node1,node2", "--", program, "-i", "2", "-w", "1", "-m", "256", "-u", "go")
            name = lab.running(job)
            # The table has to be there before it can move.
            has_table = lambda name=name: lab.verb("explain", name)[0]["inspection"]["Ok"]["image_bytes"] > 250 << 20  # noqa: E731
            job.wait_for(has_table, "rank 0 has its table")
            there = lab.verb("migrate", name, "0", "--to", "node2")
            stopped[kind].append(there["stopped_us"] / 1e3)
            sizes.append(there["bytes"])
            job.let_go()
            job.finish()
    lab.set(SETTING, None)
    report(f"a rank of {statistics.median(sizes) / 2**20:.0f} MiB moves, standing still", *stopped, "ms", OFF)


BENCHES = {"pingpong": pingpong, "uniband": uniband, "rate": rate, "move": move}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES, within=lambda: Lab(2)))
