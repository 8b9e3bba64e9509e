#!/usr/bin/env python3
"""Measures how long a job that has lost a node takes to compute again, beside a restart by hand, in one run.

    healing.py [--runs N] [NAME ...]

    lammps  LAMMPS, 4 ranks on two of three lab nodes, checkpoints in a directory in memory: the daemon of one node is killed. From that
            until all ranks run again: the job goes on by itself, against a job that ends (--on-failure stop) and is restarted at once
    large   a program of 1 GiB per rank (MEND_BENCH_MIB) that rewrites a tenth of it, 3 ranks on three of four nodes, images in memory: the
            daemon of one node is killed. Ranks that live go back in place (--on-failure pause), against all being restarted
    silent  the same as the first where the whole node stands still, with a lease of 1 s: the job waits until the lease is over

    warned  LAMMPS, 4 ranks on two of three lab nodes: a health plug-in of one node says that the low mark is passed (MEND_BENCH_GRADE=2: the high
            one), and 5 s later the whole node is killed. How often no rank was lost and the result is the same, of 50 times (MEND_BENCH_TIMES), and
            how long the ranks took to leave. Takes ten minutes

Times are wall-clock; the machine should have nothing else to do. All of it but the last takes two minutes.
"""

import os
import random
import sys
import time

from side_by_side import main, report
import melt
from cluster import DAEMON_KILLED, OTHERS, Lab, compile_mpi

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
    options = ("-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--on-failure", "stop" if by_hand else "pause")
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


LARGE_MIB = int(os.environ.get("MEND_BENCH_MIB", "1024"))


def heal_large(lab, work, program, mode):
    """Milliseconds from the harm until all ranks run again, and the bytes that each rank that went back had rewritten."""
    directory = os.path.join(work, f"run-{time.monotonic_ns()}")
    os.mkdir(directory)
    argv = [program, "-f", str(LARGE_MIB), "-d", str(LARGE_MIB // 10), "-u", "go"]
    options = ("-n", "3", "--hosts", "node1,node2,node3", "--spares", "node4", "--tiers", "memory,partner", "--on-failure", mode)
    job = lab.start(directory, "run", *options, "--", *argv)
    name = lab.running(job)
    job.wait_for(lambda: "begins" in job.stderr(), "the tables are filled")
    lab.verb("checkpoint", name)
    job.wait_for(lambda: lab.verb("checkpoints", name)[-1]["tiers"] == ["memory", "partner"], "partners have their copies")
    time.sleep(1)
    begun = time.time()
    lab.on("node2", "sh", "-c", DAEMON_KILLED)
    while not (at := resumed(lab, name, 1)):
        time.sleep(0.05)
    rewritten = [one["data"]["bytes"] for one in lab.verb("log", name) if one["event"] == "went_back"]
    lab.mend("kill", name)
    job.finish(None)
    return at / 1e3 - begun * 1e3, rewritten


def large(runs, work):
    program = compile_mpi("mpi_rewrites.c", os.path.join(work, "rewrites"))
    paused, restarted, rewritten = [], [], []
    for _ in range(runs):
        for mode, times in (("restart", restarted), ("pause", paused)):
            with Lab(4) as lab:
                took, went_back = heal_large(lab, work, program, mode)
                times.append(took)
                rewritten += went_back
    report("a killed daemon, large ranks, until all run again", restarted, paused, "ms", "all ranks restarted")
    print(f"rewritten of each rank that went back: {', '.join(f'{bytes / 2**20:.1f} MiB' for bytes in rewritten)}")


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


TIMES = int(os.environ.get("MEND_BENCH_TIMES", "50"))
GRADE = int(os.environ.get("MEND_BENCH_GRADE", "1"))
# As on a node with a BMC that is asked every 2 s, the default: it is noticed 2 s late at worst.
WARNED = {"MEND_HEALTH": "on", "MEND_HEALTH_PLUGIN_INTERVAL_MS": "2000", "MEND_HEALTH_MARKS": "memory=off,disk=off", "MEND_BMC": "off"}
SURVIVES_US = 5_000_000


def values(text):
    return {tuple(line) for line in melt.table(text)}


def warn(work, expected):
    """Seconds from the warning until the ranks have left; None: a rank was lost."""
    directory = os.path.join(work, f"run-{time.monotonic_ns()}")
    plugins = os.path.join(directory, "plugins")
    os.makedirs(plugins, 0o755)
    state = os.path.join(directory, "sick")
    with open(os.path.join(plugins, "warns"), "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\n[ "$(hostname)" = node2 ] && [ -e {state} ] && echo warned && exit {GRADE}\nexit 0\n')
    os.chmod(os.path.join(plugins, "warns"), 0o755)
    with Lab(3, daemons={**WARNED, "MEND_HEALTH_PLUGINS": plugins}) as lab:
        lab.set("MEND_NODE_TIMEOUT_MS", "2000")
        job = lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *melt.argv(directory, size=16))
        name = lab.running(job)
        time.sleep(1 + random.random())
        begun = time.time()
        with open(state, "w", encoding="utf-8"):
            pass
        time.sleep(SURVIVES_US / 1e6)
        lab.kill("node2")
        job.let_go()
        code = job.finish(None)
        log = lab.verb("log", name)
    left = [one["at"] / 1e6 - begun for one in log if one["event"] == "migration_committed"]
    same = values(job.stdout()) <= expected or values(job.stdout()) >= expected
    well = code == 0 and len(left) == 2 and not any(one["event"] == "goes_on" for one in log) and same
    if not well:
        print(f"a rank was lost, exit code {code}, left after {left}, same result {same}", flush=True)
    return max(left) if well else None


def warned(_, work):
    with Lab(1) as lab:
        directory = os.path.join(work, "undisturbed")
        os.mkdir(directory)
        expected = values(lab.undisturbed("-n", "4", "--hosts", "node1", "--", *melt.argv(directory, size=16), directory=directory))
    took = [warn(work, expected) for _ in range(TIMES)]
    left = sorted(one for one in took if one is not None)
    print(f"warned, and dead 5 s later: no rank lost in {len(left)} of {TIMES}", flush=True)
    if left:
        print(f"from the warning until all ranks have left: median {left[len(left) // 2]:.2f} s, longest {left[-1]:.2f} s", flush=True)


BENCHES = {"lammps": lammps, "large": large, "silent": silent, "warned": warned}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
