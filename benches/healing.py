#!/usr/bin/env python3
"""Measures how long a job that has lost a node takes to compute again, beside a restart by hand, in one run.

    healing.py [--runs N] [NAME ...]

    lammps  LAMMPS, 4 ranks on two of three lab nodes, checkpoints in a directory in memory: the daemon of one node is killed. From that
            until all ranks run again: the job goes on by itself, against a job that ends (--on-failure stop) and is restarted at once
    silent  the same where the whole node stands still, with a lease of 1 s: the job waits until the lease is over

Times are wall-clock; the machine should have nothing else to do. All of it takes two minutes.
"""

import os
import sys
import time

from side_by_side import main, report
import melt
from cluster import DAEMON_KILLED, OTHERS, Lab

# All of a node stands still.
ALL_STOPPED = OTHERS + "kill -STOP $all 2>/dev/null; true"


def resumed(lab, name, times):
    """When all ranks ran again for the so manieth time, microseconds since 1970; None: not yet."""
    found = [one["at"] for one in lab.verb("log", name) if one["event"] == "resumed"]
    return found[times - 1] if len(found) >= times else None


def heal(lab, work, harm, by_hand):
    """Milliseconds from the harm until all ranks run again."""
    directory = os.path.join(work, f"run-{time.monotonic_ns()}")
    os.mkdir(directory)
    argv = melt.argv(directory, size=16)
    options = ("-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--on-failure", "stop" if by_hand else "restart")
    job = lab.start(directory, "run", *options, "--", *argv)
    name = lab.running(job)
    time.sleep(1)
    lab.verb("checkpoint", name)
    time.sleep(1)
    begun = time.time()
    lab.on("node2", "sh", "-c", harm)
    if by_hand:
        job.finish(75)
        job = lab.start(directory, "restart", name)
    while not (at := resumed(lab, name, 1)):
        time.sleep(0.05)
    lab.mend("kill", name)
    job.finish(None)
    return at / 1e3 - begun * 1e3


def compare(what, runs, work, harm, settings):
    ours, theirs = [], []
    for _ in range(runs):
        for by_hand, times in ((True, theirs), (False, ours)):
            with Lab(3) as lab:
                for setting, value in settings.items():
                    lab.set(setting, value)
                times.append(heal(lab, work, harm, by_hand))
    report(what, theirs, ours, "ms", "mend restart at once")


def lammps(runs, work):
    compare("a killed daemon, until all ranks run again", runs, work, DAEMON_KILLED, {})


def silent(runs, work):
    compare("a node that stands still, until all ranks run again", runs, work, ALL_STOPPED, {"MEND_LEASE_MS": "1000", "MEND_NODE_TIMEOUT_MS": "1000"})


BENCHES = {"lammps": lammps, "silent": silent}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
