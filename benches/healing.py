#!/usr/bin/env python3
"""Measures how long a job that has lost a node takes to compute again, beside a restart by hand, in one run.

    healing.py [--runs N] [--record] [NAME ...]

    lammps  LAMMPS, 4 ranks on two of three lab nodes, checkpoints in a directory in memory: the daemon of one node is killed. From that
            until all ranks run again: the job goes on by itself, against a job that ends (--on-failure stop) and is restarted at once
    node    the same, with tiers `memory,partner`, where the whole node is killed: with a lease of 500 ms, and with the default
    idle    LAMMPS, 4 ranks on two of three lab nodes, 60 s without a checkpoint or a verb: processor time of the daemons and the controller against the ranks';
            where LAMMPS prints nothing, and where it prints a hundred times a second
    large   a program of 1 GiB per rank (MEND_BENCH_MIB) that rewrites a tenth of it, 3 ranks on three of four nodes, images in memory: the
            daemon of one node is killed. Ranks that live go back in place (--on-failure pause), against all being restarted by the job itself, and
            against a job that ends (--on-failure stop) and is restarted at once
    silent  the same as the first where the whole node stands still, with a lease of 1 s: the job waits until the lease is over
    controller  LAMMPS, 4 ranks on two of three lab nodes: the controller is killed. From that until `mend ps` shows all ranks again, asked all the time,
            beside what `mend ps` takes without that

    warned  LAMMPS, 4 ranks on two of three lab nodes: a health plug-in of one node says that the low mark is passed (MEND_BENCH_GRADE=2: the high
            one), and 5 s later the whole node is killed. How often no rank was lost and the result is the same, of 50 times (MEND_BENCH_TIMES), and
            how long the ranks took to leave. Exit code 1 if one was lost. Takes ten minutes
    back    a program that tells its time steps, 2 ranks on two of three lab nodes: one node is sick for a while, and its rank leaves for a spare that
            gets 50, 30 or 10 % of a processor. From the moment at which the old node is well again until the end: with back migration, against
            the best that could be (all that is left at the speed before, and one move), and against staying. Takes five minutes

Times are wall-clock; the machine should have nothing else to do. All of it but the last two takes four minutes.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time

import results
from side_by_side import main, report
import melt
from cluster import DAEMON_KILLED, MEND, OTHERS, Failed, Lab, compile_mpi
from throttle import processor_group, throttled

# All of a node stands still.
ALL_STOPPED = OTHERS + "kill -STOP $all 2>/dev/null; true"


def resumed(lab, name, times):
    """When all ranks ran again for the so manieth time, microseconds since 1970; None: not yet."""
    found = [one["at"] for one in lab.verb("log", name) if one["event"] == "resumed"]
    return found[times - 1] if len(found) >= times else None


def heal(lab, work, harm, by_hand, tiers=()):
    """Milliseconds from the harm until all ranks run again. Without a harm the node is killed."""
    directory = os.path.join(work, f"run-{time.monotonic_ns()}")
    os.mkdir(directory)
    argv = melt.argv(directory, size=16)
    options = ["-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--on-failure", "stop" if by_hand else "pause"]
    options += ["--tiers", ",".join(tiers)] if tiers else []
    job = lab.start(directory, "run", *options, "--", *argv)
    name = lab.running(job)
    time.sleep(1)
    lab.verb("checkpoint", name)
    job.wait_for(lambda: not tiers or lab.verb("checkpoints", name)[-1]["tiers"] == list(tiers), "partners have their copies")
    time.sleep(1)
    begun = time.time()
    if harm:
        lab.on("node2", "sh", "-c", harm)
    else:
        lab.kill("node2")
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
    if mode == "stop":
        job.finish(75)
        job = lab.start(directory, "restart", name)
    while not (at := resumed(lab, name, 1)):
        time.sleep(0.05)
    rewritten = [one["data"]["bytes"] for one in lab.verb("log", name) if one["event"] == "went_back"]
    lab.mend("kill", name)
    job.finish(None)
    return at / 1e3 - begun * 1e3, rewritten


def large(runs, work):
    program = compile_mpi("mpi_rewrites.c", os.path.join(work, "rewrites"))
    paused, restarted, stopped, rewritten = [], [], [], []
    for _ in range(runs):
        for mode, times in (("restart", restarted), ("stop", stopped), ("pause", paused)):
            with Lab(4) as lab:
                took, went_back = heal_large(lab, work, program, mode)
                times.append(took)
                rewritten += went_back
    report("a killed daemon, large ranks, until all run again", restarted, paused, "ms", "all ranks restarted")
    report("a killed daemon, large ranks, until all run again", stopped, paused, "ms", "mend restart at once")
    if not rewritten:
        raise Failed("no rank went back in place")
    results.note("a killed daemon, large ranks: rewritten of each rank that went back", "MiB", [size / 2**20 for size in rewritten])
    print(f"rewritten of each rank that went back: {', '.join(f'{bytes / 2**20:.1f} MiB' for bytes in rewritten)}")


def compare(what, runs, work, harm, settings, tiers=()):
    ours, theirs = [], []
    for _ in range(runs):
        for by_hand, times in ((True, theirs), (False, ours)):
            with Lab(3) as lab:
                for setting, value in settings.items():
                    lab.set(setting, value)
                times.append(heal(lab, work, harm, by_hand, tiers))
    report(what, theirs, ours, "ms", "mend restart at once")


def lammps(runs, work):
    compare("a killed daemon, until all ranks run again", runs, work, DAEMON_KILLED, {})


def silent(runs, work):
    compare("a node that stands still, until all ranks run again", runs, work, ALL_STOPPED, {"MEND_LEASE_MS": "1000", "MEND_NODE_TIMEOUT_MS": "1000"})


def node(runs, work):
    for lease in (500, 3000):
        settings = {"MEND_LEASE_MS": str(lease), "MEND_NODE_TIMEOUT_MS": str(lease)}
        compare(f"a killed node, lease of {lease} ms, until all ranks run again", runs, work, None, settings, ("memory", "partner"))


IDLE_S = 60


# Nanoseconds of each thread of the processes of these names (the first word of `schedstat`).
SCHEDULED = OTHERS + 'for pid in $all; do case " $* " in *" $(cat /proc/$pid/comm) "*) cat /proc/$pid/task/*/schedstat ;; esac; done 2>/dev/null; true'


def seconds_of(lab, *names):
    """Processor time of all processes of these names in the lab."""
    lines = [line for node in ("head", "node1", "node2", "node3") for line in lab.on(node, "sh", "-c", SCHEDULED, "sh", *names).stdout.splitlines()]
    return sum(int(line.split()[0]) for line in lines) / 1e9


def idle_share(work, prints):
    """Percent of the ranks' processor time that daemons and controller take."""
    directory = os.path.join(work, f"run-{time.monotonic_ns()}")
    os.mkdir(directory)
    with Lab(3) as lab:
        argv = melt.argv(directory, size=16) if prints else melt.quiet_argv(directory, size=16)
        job = lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
        name = lab.running(job)
        time.sleep(2)
        program = os.path.basename(argv[0])
        before = [seconds_of(lab, "mendd", "mend"), seconds_of(lab, program)]
        time.sleep(IDLE_S)
        ours, theirs = (after - first for after, first in zip((seconds_of(lab, "mendd", "mend"), seconds_of(lab, program)), before))
        lab.mend("kill", name)
        job.finish(None)
    return 100 * ours / theirs


def idle(runs, work):
    for prints, what in ((False, ""), (True, ", while LAMMPS prints")):
        shares = [idle_share(work, prints) for _ in range(runs)]
        print(f"daemons and controller while nothing happens{what}: {statistics.median(shares):.2f} % of the ranks' processor time", flush=True)
        results.note(f"daemons and controller, of the ranks' processor time{what}", "%", shares)


TIMES = int(os.environ.get("MEND_BENCH_TIMES", "50"))
GRADE = int(os.environ.get("MEND_BENCH_GRADE", "1"))
# As on a node with a BMC that is asked every 2 s, the default: it is noticed 2 s late at worst.
WARNED = {"MEND_HEALTH": "on", "MEND_HEALTH_PLUGIN_INTERVAL_MS": "2000", "MEND_HEALTH_MARKS": "memory=off,disk=off", "MEND_BMC": "off"}
SURVIVES_US = 5_000_000


def values(text):
    return {tuple(line) for line in melt.table(text)}


def controller(runs, work):
    asked, took = [], []
    directory = os.path.join(work, "controller")
    os.mkdir(directory)
    with Lab(3) as lab:
        lab.set("MEND_SUCCESSOR", None)
        job = lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *melt.argv(directory, size=16))
        name = lab.running(job)
        for _ in range(runs):
            begun = time.time()
            lab.places(name)
            asked.append(1000 * (time.time() - begun))
            record = json.loads(lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout)
            kill = subprocess.Popen([MEND, "lab", "exec", "--name", lab.name, record["controller_host"], "--", "kill", "-KILL", str(record["controller_pid"])])
            kill.wait()
            begun = time.time()
            lab.places(name)
            took.append(1000 * (time.time() - begun))
        lab.mend("kill", name)
    report("a killed controller, until mend ps shows all ranks", asked, took, "ms", "mend ps without that")


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
    results.note(f"warned, and dead 5 s later: no rank lost, of {TIMES} times", "times", [len(left)])
    if left:
        results.note("from the warning until all ranks have left", "s", left)
        print(f"from the warning until all ranks have left: median {left[len(left) // 2]:.2f} s, longest {left[-1]:.2f} s", flush=True)
    return int(len(left) < TIMES)


# Long enough for the rank to be measured on both nodes.
SICK_S, BEFORE_S = 14, 12
STEPS = int(os.environ.get("MEND_BENCH_STEPS", "2500"))


def return_once(work, program, percent, back):
    """Seconds from when the node is well again until the end; the same at best; and what the move back cost by the job's own account, or None."""
    directory = os.path.join(work, f"run-{time.monotonic_ns()}")
    plugins = os.path.join(directory, "plugins")
    os.makedirs(plugins, 0o755)
    state, steps = os.path.join(directory, "sick"), os.path.join(directory, "steps")
    with open(os.path.join(plugins, "warns"), "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\n[ "$(hostname)" = node2 ] && [ -e {state} ] && echo warned && exit 1\nexit 0\n')
    os.chmod(os.path.join(plugins, "warns"), 0o755)
    settings = {**WARNED, "MEND_HEALTH_PLUGIN_INTERVAL_MS": "200", "MEND_HEALTH_CALM_S": "1", "MEND_HEALTH_PLUGINS": plugins}
    with Lab(3, daemons=settings) as lab, processor_group(percent) as group, throttled(lab, "node3", group):
        lab.set("MEND_BACK_MIGRATION", "on" if back else "off")
        job = lab.start(directory, "run", "-n", "2", "--hosts", "node1,node2", "--spares", "node3", "--", program, "-n", str(STEPS), "-w", "8000", "-l", steps)
        name = lab.running(job)
        job.wait_for(lambda: "begins" in job.stderr(), "the first step is done")
        time.sleep(BEFORE_S)
        with open(state, "w", encoding="utf-8"):
            pass
        sick = time.time()
        time.sleep(SICK_S)
        os.remove(state)
        job.finish(patience=1800)
        log = lab.verb("log", name)
    well = next(one["at"] / 1e6 for one in log if one["event"] == "node_fit")
    with open(steps, encoding="ascii") as file:
        done = [float(line) for line in file]
    # As fast as before, without the beginning.
    before = [at for at in done if at < sick][20:]
    step_s = (before[-1] - before[0]) / (len(before) - 1)
    went = [one["data"]["cost_s"] for one in log if one["event"] == "goes_back"]
    moves = [one["data"]["stopped_us"] / 1e6 for one in log if one["event"] == "migration_committed"]
    best = sum(at > well for at in done) * step_s + min(moves)
    return done[-1] - well, best, went[0] if went else None


def back(runs, work):
    program = compile_mpi("mpi_steps.c", os.path.join(work, "steps"))
    for percent in (50, 30, 10):
        ours, bests, stays = [], [], []
        for _ in range(runs):
            took, best, cost = return_once(work, program, percent, True)
            ours.append(took)
            bests.append(best)
            print(f"  spare with {percent} % of a processor: {took:.1f} s, at best {best:.1f} s; went back: {'no' if cost is None else f'yes, a move cost {cost:.2f} s'}")
            stays.append(return_once(work, program, percent, False)[0])
        results.note(f"a spare throttled by {100 - percent} %, until the end", "s", ours, bests, "the best possible")
        ratio = statistics.median(took / best for took, best in zip(ours, bests))
        print(f"a spare throttled by {100 - percent} %: {statistics.median(ours):.1f} s, {ratio:.3f} of the best; staying {statistics.median(stays):.1f} s", flush=True)


BENCHES = {"lammps": lammps, "node": node, "idle": idle, "large": large, "silent": silent, "controller": controller, "warned": warned, "back": back}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
