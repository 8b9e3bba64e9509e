#!/usr/bin/env python3
"""A job on nodes with twice as many busy processes as processors, with the lease by default: no node is taken for dead.

    busy.py [--minutes M]

LAMMPS with 4 ranks on two of three nodes, a checkpoint every half minute, and a rank that moves to the other node and back in between. All nodes share this machine's
processors: each has its part of the busy processes, besides the ranks. That nothing was lost is read from the job's journal. A machine that itself stands still for seconds, as a virtual one
may, is told, and the node that was lost then is not counted: a process that only sleeps notices.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import melt  # noqa: E402
from cluster import Failed, Lab, Tally  # noqa: E402

NODES = ("node1", "node2", "node3")
# Between two checkpoints, seconds.
BETWEEN_S = 30
# By default (MEND_LEASE_MS), and what a machine's standing still takes at least to be the cause of a lost node: the lease is renewed five times a second.
LEASE_S = 3.0
STANDSTILL_S = LEASE_S - 0.5
BUSY = 'for k in $(seq "$1"); do sh -c "while :; do :; done" & done; wait'


class Standstills(threading.Thread):
    """When the machine let nobody run for long: (since, until)."""

    def __init__(self):
        super().__init__(daemon=True)
        self.found, self.over = [], threading.Event()
        # With the best of chances, where this is allowed.
        try:
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        except OSError:
            pass
        self.start()

    def run(self):
        while not self.over.is_set():
            before = time.time()
            time.sleep(0.1)
            if time.time() - before > STANDSTILL_S:
                self.found.append((before, time.time()))


def hour(minutes, work):
    """What is told of so many minutes."""
    with Lab(3) as lab:
        lab.set("MEND_LEASE_MS", None)
        argv = melt.argv(work, size=16)
        job = lab.start(work, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
        name = lab.running(job)
        watch, count = Standstills(), str(-(-2 * os.cpu_count() // len(NODES)))
        # In sessions of their own, as other people's: the kernel shares processors among sessions first (autogroups, sched(7)).
        busy = [subprocess.Popen(lab.inside(node, "sh", "-c", BUSY, "sh", count), stdin=subprocess.DEVNULL, start_new_session=True) for node in NODES]
        try:
            until, moves, checkpoints = time.time() + 60 * minutes, 0, 0
            while time.time() < until:
                time.sleep(min(BETWEEN_S, max(until - time.time(), 0)))
                checkpoints += lab.mend("checkpoint", name).returncode == 0
                moves += lab.mend("migrate", name, "3", "--to", "node1" if moves % 2 == 0 else "node2").returncode == 0
            log = lab.verb("log", name)
        finally:
            watch.over.set()
            for process in busy:
                process.kill()
            for node in NODES:
                lab.on(node, "pkill", "-f", "while :; do :; done")
        lab.mend("kill", name)
        job.finish(None)
    lost = [one for one in log if one["event"] == "node_lost"]
    by_machine = [one for one in lost if any(since <= one["at"] / 1e6 <= until + 2 * LEASE_S for since, until in watch.found)]
    stood = "; ".join(f"the machine stood still for {until - since:.1f} s" for since, until in watch.found)
    if len(lost) > len(by_machine):
        raise Failed(f"{len(lost)} nodes were taken for dead, {len(by_machine)} of them when the machine stood still ({stood}): {[one['text'] for one in lost]}")
    if not checkpoints or not moves:
        raise Failed(f"{checkpoints} checkpoints and {moves} moves")
    return f"{minutes:.1f} minutes beside {count} busy processes on each node: {checkpoints} checkpoints, {moves} moves, no node taken for dead {stood}".strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-busy-")
    os.chmod(work, 0o755)
    tally = Tally()
    tally.run([lambda: hour(arguments.minutes, work)])
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
