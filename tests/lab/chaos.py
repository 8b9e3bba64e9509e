#!/usr/bin/env python3
"""Jobs on four nodes and two spares while everything fails at once, at random moments: their results must be those of undisturbed runs.

    chaos.py [--minutes M] [--seed S] [--scenario K] [--faults LIST]

A scenario is a program (LAMMPS, a stencil, a model and its filter, compute-and-reduce, one-sided operations), where its checkpoints are kept, and a time
of chaos: daemons and ranks are killed, nodes lose power, are cut off, stand still, have a slow link or a full disk; the job's controller is killed or
stands still, wherever it is by then. Nobody waits until the job has recovered from one fault before the next one comes; at most two nodes are
disturbed at a time, and all come back. The job takes a checkpoint every two seconds; it is detached, so that it depends on nothing but its nodes.
Then it is left to itself, and has to end with code 0 and the right output. How much of the time all of its ranks ran is told: that is its efficiency, but for what
was computed twice. The seed and the number of the scenario are printed with every failure.
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "demo")]
import compare  # noqa: E402
from cluster import DAEMON_KILLED, OTHERS, STOPPED, VENV, Failed, Lab, Tally, compile_mpi, find_lammps, replays  # noqa: E402
from test_conformance import compiled, right  # noqa: E402

NODES, SPARES, RANKS = 4, 2, 4
# Seconds of chaos in a scenario, and that a job may take to come to its end when it is over.
CHAOS, ENDING = 45, 300
# Seconds between two faults, and that a node is disturbed, at most.
BETWEEN, LASTS = 3.0, 6.0
# Nodes that are disturbed at a time, at most.
MOST = 2
# How often a job is started until it has a checkpoint, and the exit code of one that was lost without.
STARTS, LOST = 5, 75
# So much of what is local to a node can be filled.
DISK = "48m"
MELT = os.path.join(os.path.dirname(HERE), "demo", "in.melt")
ONE_SIDED = "rma_windows"
APPLICATIONS = ["melt", "pair", "iters", ONE_SIDED, "stencil"]
STENCIL = os.path.join(os.path.dirname(HERE), "apps", "stencil.py")
PYTHON = os.path.join(VENV, "bin", "python3")
# What so many steps give on a grid of one piece.
STEPPED = """
import sys, numpy
size, steps = int(sys.argv[1]), int(sys.argv[2])
grid = numpy.zeros((size + 2, size))
grid[0] = 1.0
for _ in range(steps):
    grid[1:-1, 1:-1] = (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]) / 4
print(float(grid[1:-1].sum()))
"""
# Rows and columns, and the difference that another order of adding them may make, of the sum.
STENCIL_SIZE, ROUNDED = 192, 1e-12
TIERS = [None, "memory,partner,shared", "local:{disk},shared"]

POWER_LOST = "ip link set dev eth0 down; " + OTHERS + "kill -KILL $all 2>/dev/null; true"
CUT_OFF = 'ip link set dev eth0 down; sleep "$1"; ip link set dev eth0 up'
SLOW = 'tc qdisc add dev eth0 root tbf rate 20mbit burst 32kb latency 200ms; sleep "$1"; tc qdisc del dev eth0 root'
FULL = 'dd if=/dev/zero of="$2/filler" bs=1M 2>/dev/null; sleep "$1"; rm -f "$2/filler"'


class Chaos:
    """One job, and what is done to it."""

    FAULTS = ("daemon", "power", "cut", "still", "slow", "full", "rank", "controller", "controller still", "checkpoint", "migrate")

    def __init__(self, lab, draw, name, directory, faults):
        self.lab, self.random, self.name, self.directory = lab, draw, name, directory
        self.faults = faults or self.FAULTS
        self.disk = os.path.join(directory, "disk")
        self.nodes = [f"node{k + 1}" for k in range(NODES + SPARES)]
        self.disturbed = {}
        self.done = dict.fromkeys(self.FAULTS, 0)
        self.samples = [0, 0]

    def record(self):
        found = self.lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{self.name}/job.json").stdout
        return json.loads(found) if found else {}

    def over(self):
        return self.record().get("ended") is not None

    def look(self):
        """Whether all ranks run."""
        try:
            status = next(one for one in self.lab.verb("ps", "--all") if one["id"] == self.name).get("status") or {}
        except (Failed, StopIteration):
            status = {}
        ranks = status.get("ranks", [])
        self.samples[0] += bool(ranks) and all(rank["state"] == "running" for rank in ranks)
        self.samples[1] += 1
        return {rank["rank"]: rank["host"] for rank in ranks}

    def keep_what_tells_why(self):
        """The job's journal, and what each process of its nodes does, beside its output."""
        with open(os.path.join(self.directory, "journal"), "w", encoding="utf-8") as file:
            file.write(self.lab.mend("log", self.name).stdout)
        script = "for p in /proc/[0-9]*/task/*; do echo $p $(cat $p/comm $p/wchan $p/syscall $p/stat 2>/dev/null); done"
        for node in self.nodes:
            with open(os.path.join(self.directory, f"processes-{node}"), "w", encoding="utf-8") as file:
                file.write(self.lab.on(node, "sh", "-c", script).stdout)

    def beside(self, node, script, seconds, back=None):
        """Does something to a node for so long, and what brings it back, while other things happen."""

        def during():
            try:
                done = self.lab.on(node, "bash", "-c", script, "bash", str(seconds), self.disk)
                if back:
                    back()
                if done.returncode:
                    print(f"  {node}: {done.stderr.strip()}", flush=True)
            except (Failed, subprocess.TimeoutExpired) as error:
                print(f"  {node}: {error}", flush=True)
            self.disturbed.pop(node, None)

        self.disturbed[node] = thread = threading.Thread(target=during)
        thread.start()

    def comes_back(self, node, seconds):
        time.sleep(seconds)
        self.lab.on(node, "sh", "-c", "ip link set dev eth0 up")
        self.lab.start_daemon(node, self.directory)

    def controller(self, number, seconds):
        record = self.record()
        host, pid = record["controller_host"], str(record["controller_pid"])
        if host in self.disturbed:
            return False
        if number == 9:
            return self.lab.on(host, "kill", "-9", pid).returncode == 0
        script = f'kill -STOP {pid} && sleep "$1" && kill -CONT {pid}; true'
        self.beside(host, script, seconds)
        return True

    def fault(self):
        kind = self.random.choice(self.faults)
        free = [node for node in self.nodes if node not in self.disturbed]
        node, seconds = self.random.choice(free), self.random.uniform(0.3, LASTS)
        alone = kind in ("rank", "controller", "controller still", "checkpoint", "migrate")
        if not alone and len(self.disturbed) >= MOST:
            return
        happened = True
        if kind == "daemon":
            self.beside(node, DAEMON_KILLED, seconds, lambda: self.comes_back(node, seconds))
        elif kind == "power":
            self.beside(node, POWER_LOST, seconds, lambda: self.comes_back(node, seconds))
        elif kind in ("cut", "still", "slow", "full"):
            self.beside(node, {"cut": CUT_OFF, "still": STOPPED, "slow": SLOW, "full": FULL}[kind], seconds)
        elif kind == "rank":
            rank = self.random.randrange(RANKS)
            where = self.look().get(rank)
            happened = bool(where) and where not in self.disturbed and self.lab.kill_rank(where, rank, self.random.choice((9, 11, 7)))
        elif kind.startswith("controller"):
            happened = self.controller(9 if kind == "controller" else 19, seconds)
        else:
            # Whether it can be done now is not what is asked here.
            more = [str(self.random.randrange(RANKS))] if kind == "migrate" else []
            command = self.lab.command(kind, self.name, *more)
            try:
                happened = subprocess.run(command, env=self.lab.environment, capture_output=True, check=False, timeout=ENDING).returncode == 0
            except subprocess.TimeoutExpired:
                raise Failed(f"`mend {kind}` has no answer after {ENDING} s") from None
        self.done[kind] += bool(happened)

    def run(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.over():
            self.fault()
            pause = time.monotonic() + self.random.uniform(0, BETWEEN)
            while time.monotonic() < pause:
                self.look()
                time.sleep(0.2)
        for thread in list(self.disturbed.values()):
            thread.join()


def arguments_of(name, programs):
    if name == "melt":
        return [find_lammps(), "-in", MELT, "-var", "x", "10", "-var", "y", "10", "-var", "z", "10", "-var", "steps", "6000"]
    if name == "pair":
        return [programs["model"], "-u", "go", ":", "-n", "2", programs["filter"]]
    if name == "iters":
        return [programs["iters"], "-i", "60", "-w", "200", "-m", "24", "-u", "go"]
    if name == "stencil":
        return [PYTHON, STENCIL, str(STENCIL_SIZE), "go"]
    return [programs[name], "-u", "go"]


def stencil_differs(lines):
    """By computing as many steps here."""
    found = re.fullmatch(r"stencil steps=(\d+) sum=(\S+)", "\n".join(lines))
    if not found:
        return True
    computed = subprocess.run([PYTHON, "-c", STEPPED, str(STENCIL_SIZE), found[1]], capture_output=True, text=True, check=True)
    expected = float(computed.stdout)
    return abs(float(found[2]) - expected) > ROUNDED * expected


def differences(name, plain, shaken, again):
    def lines(directory):
        with open(os.path.join(directory, "stdout"), encoding="utf-8") as file:
            return sorted(file.read().splitlines())

    if name == "melt":
        return compare.differences(plain, shaken, again)
    if name == "stencil":
        return [f"the stencil's result is wrong: {lines(shaken)[-3:]}"] if stencil_differs(lines(shaken)) else []
    expected = sorted(right(name, RANKS).splitlines()) if name == ONE_SIDED else lines(plain)
    return [] if lines(shaken) == expected else [f"results differ: {expected[-1:]} / {lines(shaken)[-3:]}"]


def begins(lab, chaos, command):
    """Starts the job and takes its first checkpoint. False if the job was lost before: without a checkpoint the loss of a node, which may have stood still
    by itself, is the end."""
    started = lab.mend(*command, cwd=chaos.directory)
    if started.returncode == LOST:
        return False
    if started.returncode:
        raise Failed(f"the job does not start: {started.stderr}")
    chaos.name = started.stdout.strip()
    taken, until = lab.mend("checkpoint", chaos.name), time.monotonic() + 10
    # It answers nobody any more some moments before its end is on record.
    while taken.returncode and not chaos.over() and time.monotonic() < until:
        time.sleep(0.2)
    if taken.returncode and chaos.record().get("exit_code") != LOST:
        raise Failed(f"mend checkpoint {chaos.name}: exit code {taken.returncode}: {taken.stderr}")
    return taken.returncode == 0


def run_scenario(number, arguments, programs, work):
    draw = random.Random(f"{arguments.seed}/{number}")
    name = APPLICATIONS[(number + arguments.seed) % len(APPLICATIONS)]
    directory, plain = os.path.join(work, f"scenario-{number}"), os.path.join(work, f"plain-{number}")
    os.makedirs(os.path.join(directory, "disk"))
    os.makedirs(plain)
    with Lab(NODES + SPARES) as lab:
        # So short that one that stands still by itself is lost as well: what is compared with is made without.
        short = (("MEND_LEASE_MS", "2000"), ("MEND_NODE_TIMEOUT_MS", "1000"))
        lab.set("MEND_LEASE_MS", "20000")
        for setting, value in (("MEND_SUCCESSOR", None), ("MEND_ON_FAILURE", "pause"), ("MEND_RETRIES", "100"), ("MEND_INTERVAL", "2"), ("MEND_KEEP", "2")):
            lab.set(setting, value)
        argv = arguments_of(name, programs)
        first = "2" if name == "pair" else str(RANKS)
        if name not in (ONE_SIDED, "stencil"):
            open(os.path.join(plain, "go"), "w", encoding="utf-8").close()
            lab.undisturbed("-n", first, "--hosts", "node1", "--", *argv, directory=plain)
        for setting, value in short:
            lab.set(setting, value)
        chaos = Chaos(lab, draw, None, directory, arguments.faults and arguments.faults.split(","))
        for node in chaos.nodes:
            # A disk of its own, which can be full.
            mounted = lab.on(node, "mount", "-t", "tmpfs", "-o", f"size={DISK},mode=1777", "none", chaos.disk)
            if mounted.returncode:
                raise Failed(f"no disk of its own for {node}: {mounted.stderr}")
        tiers = draw.choice(TIERS)
        place = ["--hosts", ",".join(chaos.nodes[:NODES]), "--spares", ",".join(chaos.nodes[NODES:]), "--wait-for-nodes", "90"]
        if tiers:
            place += ["--tiers", tiers.format(disk=chaos.disk)]
        for _ in range(STARTS):
            if begins(lab, chaos, ["run", "--detach", "-n", first, *place, "--", *argv]):
                break
        else:
            raise Failed(f"scenario {number}: the job was lost {STARTS} times before its first checkpoint")
        about = f"seed {arguments.seed} scenario {number} ({name}, tiers {tiers or 'by default'})"
        try:
            chaos.run(CHAOS)
            open(os.path.join(directory, "go"), "w", encoding="utf-8").close()
            code, until = None, time.monotonic() + ENDING
            while code is None and time.monotonic() < until:
                chaos.look()
                time.sleep(0.3)
                code = chaos.record().get("exit_code")
            logs = lab.mend("logs", chaos.name)
            for stream in ("stdout", "stderr"):
                with open(os.path.join(directory, stream), "w", encoding="utf-8") as file:
                    file.write(getattr(logs, stream))
            if code != 0:
                chaos.keep_what_tells_why()
                raise Failed(f"it ended with {code}:\n{logs.stderr[-3000:]}")
            found = differences(name, plain, directory, replays(logs.stderr))
            if found:
                raise Failed("; ".join(found))
        except Failed as error:
            raise Failed(f"{about}, after {chaos.done}: {error}\n  files in {directory}") from None
        finally:
            for thread in list(chaos.disturbed.values()):
                thread.join()
            lab.mend("kill", chaos.name)
        if arguments.verbose:
            print(lab.mend("log", chaos.name).stdout)
        events = [one["event"] for one in lab.verb("log", chaos.name)]
        healed, controllers = events.count("goes_on"), events.count("took_over")
        efficiency = 100 * chaos.samples[0] / max(chaos.samples[1], 1)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(plain, ignore_errors=True)
    happened = ", ".join(f"{count} {kind}" for kind, count in chaos.done.items() if count)
    return f"{about}: {happened}; went on {healed} times, {controllers} controllers replaced; all ranks ran {efficiency:.0f} % of the time; equal"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", type=int, help="only this one")
    parser.add_argument("--verbose", action="store_true", help="print each job's journal")
    parser.add_argument("--faults", help="only these, with commas: " + ", ".join(Chaos.FAULTS))
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-chaos-")
    os.chmod(work, 0o755)
    programs = {
        "model": compile_mpi("coupled_model.c", os.path.join(work, "model")),
        "filter": compile_mpi("coupled_filter.c", os.path.join(work, "filter")),
        "iters": compile_mpi("mpi_iters.c", os.path.join(work, "iters")),
        **compiled(work, [ONE_SIDED]),
    }
    tally, began = Tally(), time.monotonic()
    numbers = itertools.takewhile(lambda _: time.monotonic() - began < 60 * arguments.minutes, itertools.count())
    if arguments.scenario is not None:
        numbers = [arguments.scenario]
    tally.run(lambda number=number: run_scenario(number, arguments, programs, work) for number in numbers)
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
