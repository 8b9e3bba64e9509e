#!/usr/bin/env python3
"""What it brings when ranks move to their data: eight ranks on four nodes that compute, two nodes that store, links of 300 Mbit/s.

Each program runs three times in turn: its ranks stay where they were started, follow their data, or are put where partners are together (the optimum: no rank has
its partner on another node then). Every byte is on one target in all three.

    rounds    ranks write one file and read what rank N + 4 wrote, after each has read its own: the rate of reading, once ranks that move have moved;
              of writing; and how long that took
    members   a model and its filter: the time of a step, likewise
    nothing   all ranks read what all others wrote, in turn: nobody is to move, and it is to take no longer
    cost      recording and comparing alone: processor time and memory of what a target records (160 ranks), of comparing 10,000 to 40,000 simulated ranks
              and of what a mount notes (crates/node/space/examples/patterns_cost.rs), and of the process that looks at what the ranks of a running job read
"""

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time

import results
from processor_time import of_process
from side_by_side import main, note, report

from cluster import Lab, compile_mpi

LINK, RANKS, KIB = "300mbit", 8, 2048
COMPUTE, STORAGE = "node1:2,node2:2,node3:2,node4:2", ("node5", "node6")
# Where a rank goes for its partner: rank N and rank N + 4 are on the same node then.
OPTIMUM = {1: "node3", 4: "node1", 3: "node4", 6: "node2"}
# Rounds that count, and those before them which don't.
COUNTED, BEFORE = 8, 2
PLACEMENTS = "none", "patterns", "optimum"


class Run:
    """One run of a program in the lab."""

    def __init__(self, lab, work, follow, argv):
        self.lab = lab
        self.seen = os.path.join(work, "seen")
        argv = [word.replace("SEEN", self.seen) for word in argv]
        for name in ("stdout", "stderr", "go"):
            if os.path.exists(path := os.path.join(work, name)):
                os.remove(path)
        self.job = lab.start(work, "run", "--hosts", COMPUTE, "--data", f"scratch:{self.seen}:rw", "--follow-data", follow, *argv)

    def lines(self, pattern):
        return [tuple(map(float, found.groups())) for found in re.finditer(pattern + r"$", self.job.stderr(), re.MULTILINE)]

    def together(self, name):
        places = self.lab.places(name)
        return all(places[rank] == places[rank + RANKS // 2] for rank in range(RANKS // 2))

    def come_together(self, placement):
        """How long it took until partners were together, seconds."""
        name = self.lab.running(self.job)
        begun = time.monotonic()
        if placement == "optimum":
            for rank, node in OPTIMUM.items():
                self.lab.verb("migrate", name, str(rank), "--to", node)
        if placement == "patterns":
            self.job.wait_for(lambda: self.together(name), "partners are together")
        return time.monotonic() - begun

    def steady(self, pattern):
        """Lines of the rounds from now on."""
        there = len(self.lines(pattern))
        self.job.wait_for(lambda: len(self.lines(pattern)) >= there + BEFORE + COUNTED, "rounds")
        lines = self.lines(pattern)[there + BEFORE:][:COUNTED]
        self.end()
        return lines

    def end(self):
        self.job.let_go()
        self.job.finish()


@contextlib.contextmanager
def lab_with_space(work):
    with Lab(6, "--bandwidth", LINK) as lab:
        targets = [word for node in STORAGE for word in ("--target", f"{node}:{work}/targets/{node}")]
        done = lab.mend("data", "create", "scratch", "--copies", "1", *targets)
        if done.returncode:
            sys.exit(done.stderr)
        lab.set("MEND_FOLLOW_DATA_PAUSE_MS", "2000")
        try:
            yield lab
        finally:
            lab.mend("data", "destroy", "--force", "scratch")


def by_placement(runs, work, argv, pattern):
    """By placement, for each run the medians of what each round's line has; and how long ranks took to come together."""
    figures, took, said = {placement: [] for placement in PLACEMENTS}, [], set()
    with lab_with_space(work) as lab:
        for _ in range(runs):
            for placement in PLACEMENTS:
                run = Run(lab, work, "auto" if placement == "patterns" else "off", argv)
                came = run.come_together(placement)
                took += [came] if placement == "patterns" else []
                figures[placement].append([statistics.median(column) for column in zip(*run.steady(pattern))])
                said.add(re.sub(r"\s+", " ", " ".join(sorted(run.job.stdout().split("\n")))))
    if len(said) != 1:
        sys.exit(f"results differ: {said}")
    return figures, took


def came_together(took):
    results.note("until partners are together, from the start of the job", "s", took)
    print(f"partners are together after {statistics.median(took):.1f} s ({min(took):.1f} to {max(took):.1f})")


def rounds(runs, work):
    program = compile_mpi("io_rounds.c", os.path.join(work, "io_rounds"))
    argv = ["-n", str(RANKS), program, "SEEN/rounds.dat", "-b", str(KIB), "-i", "0,4", "-r", "3", "-u", "go"]
    figures, took = by_placement(runs, work, argv, r"^round \d+ distance 4 write ([\d.]+) read ([\d.]+)")
    rate = lambda placement, column: [RANKS * KIB / 1024 / one[column] for one in figures[placement]]
    for placement in PLACEMENTS[1:]:
        report(f"read, {placement}", rate("none", 1), rate(placement, 1), "MiB/s", "none")
        report(f"written, {placement}", rate("none", 0), rate(placement, 0), "MiB/s", "none")
    report("read, patterns", rate("optimum", 1), rate("patterns", 1), "MiB/s", "optimum")
    came_together(took)


def members(runs, work):
    model, ensemble_filter = (compile_mpi(f"member_{name}.c", os.path.join(work, name)) for name in ("model", "filter"))
    argv = ["-n", str(RANKS // 2), model, "SEEN", "4", "go", ":", "-n", str(RANKS // 2), ensemble_filter, "SEEN"]
    figures, took = by_placement(runs, work, argv, r"^step \d+ took ([\d.]+)")
    times = {placement: [one[0] * 1e3 for one in figures[placement]] for placement in PLACEMENTS}
    for placement in PLACEMENTS[1:]:
        report(f"a step, {placement}", times["none"], times[placement], "ms", "none")
    gain = {placement: [before - after for before, after in zip(times["none"], times[placement])] for placement in PLACEMENTS[1:]}
    report("gain of a step, patterns", gain["optimum"], gain["patterns"], "ms", "optimum")
    came_together(took)


def nothing(runs, work):
    program = compile_mpi("io_rounds.c", os.path.join(work, "io_rounds"))
    argv = ["-n", str(RANKS), program, "SEEN/rounds.dat", "-b", str(KIB), "-i", ",".join(map(str, list(range(1, RANKS)) * 2)), "-r", "1"]
    times, moves = {"off": [], "auto": []}, 0
    with lab_with_space(work) as lab:
        for _ in range(runs):
            for follow in times:
                run = Run(lab, work, follow, argv)
                name = lab.running(run.job)
                run.job.wait_for(lambda: run.job.process.poll() is not None, "its end")
                lines = run.lines(r"^round \d+ distance \d+ write ([\d.]+) read ([\d.]+)")
                times[follow].append(sum(sum(line) for line in lines))
                moves += sum(entry["event"] == "migration_committed" for entry in lab.verb("log", name)) if follow == "auto" else 0
    report("all rounds, ranks may follow", times["off"], times["auto"], "s", "off")
    results.note("moves where nothing is to be gained", "moves", [moves])
    print(f"moves where nothing is to be gained: {moves}")


# Blocks of 64 KiB that a target gives or takes in a second at 1 GiB/s: an event each, at most.
EVENTS_OF_GIB = 16384
# For how long the process that looks is watched, seconds.
WATCHED = 20


def looking():
    """Processes that look at what ranks of jobs read."""
    found = set()
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if len(words) > 1 and os.path.basename(words[0]) == b"mend-data" and words[1] == b"follow":
                found.add(number)
    return found


def cost(runs, work):
    command = ["cargo", "run", "--release", "--quiet", "--package", "mend-space", "--example", "patterns_cost"]
    told = [json.loads(subprocess.run(command, cwd=results.ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout) for _ in range(runs)]
    note("recording an event at a target, processor time", "ns", [one["event_ns"] for one in told])
    note("recording at a target that gives 1 GiB/s, of a processor", "%", [one["event_ns"] * EVENTS_OF_GIB / 1e7 for one in told])
    for how in ("sequential", "strided"):
        numbers = [one[how + "_ns"] for one in told]
        note(f"noting a block in a mount, {how}, processor time", "ns", numbers)
        note(f"noting in a mount that reads 1 GiB/s, {how}, of a processor", "%", [one * EVENTS_OF_GIB / 1e7 for one in numbers])
    note("memory of a target's full ring, 160 ranks", "MiB", [one["memory"] / (1 << 20) for one in told])
    for kind in ("clustered", "random"):
        for at, ranks in enumerate(row["ranks"] for row in told[0][kind]):
            note(f"comparing {ranks} ranks, {kind}, processor time", "ms", [one[kind][at]["ms"] for one in told])
        note(f"pairs found of those that looking at all pairs of 2000 ranks finds, {kind}", "%", [one["recall"][kind] * 100 for one in told])
    program = compile_mpi("io_rounds.c", os.path.join(work, "io_rounds"))
    argv = ["-n", str(RANKS), program, "SEEN/rounds.dat", "-b", str(KIB), "-i", "0,4", "-r", "3", "-u", "go"]
    shares = []
    with lab_with_space(work) as lab:
        for _ in range(runs):
            others = looking()
            run = Run(lab, work, "advise", argv)
            lab.running(run.job)
            run.job.wait_for(lambda: looking() - others and len(run.lines(r"^round \d+ distance \d+ write [\d.]+ read [\d.]+")) > BEFORE, "rounds")
            [number] = looking() - others
            before, begun = of_process(number), time.monotonic()
            time.sleep(WATCHED)
            shares.append((of_process(number) - before) / (time.monotonic() - begun) * 100)
            run.end()
    note("looking at what 8 ranks read, every 2 s, of a processor", "%", shares)


if __name__ == "__main__":
    sys.exit(main(__doc__, {"rounds": rounds, "members": members, "nothing": nothing, "cost": cost}))
