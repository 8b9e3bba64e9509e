#!/usr/bin/env python3
"""Second copies of job input: how much room those take that follow the queue, and how long a read takes whose target is silent or gone.

    copies.py [--runs N] [--record] [queue | failover]

For `queue` generated traces of jobs are replayed, beside copies of all staged files. What a trace is stands in crates/model/data/examples/queue_trace.rs; each run has a seed
of its own, from 1. Nothing is copied: the same code decides that does for `mend data replicate --queue`.

For `failover` 4 KiB are read at a time through a mount, by a process that reads no byte twice and nothing in order, before and after a target is stopped, killed, or lost with its
daemon. It takes a mount: root, or fusermount3.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "lab"))
from cluster import MEND, Failed, Lab
import results

NODES = ("node1", "node2", "node3")
STRIPES = 48
READ = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
for stripe in sys.argv[2:]:
    begun = time.monotonic()
    assert len(os.pread(file, 4096, int(stripe) << 20)) == 4096
    print((time.monotonic() - begun) * 1e3)
"""


def replay(seed):
    """What the trace of a seed costs, by load."""
    command = ["cargo", "run", "--release", "--quiet", "--package", "mend-data", "--example", "queue_trace", str(seed)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return {row["load"]: row for row in json.loads(done.stdout)["rows"]}


def failover():
    """Milliseconds of reads from a target that is well, of the first one after it was stopped and of a later one, and of the first one after it was killed, and after its daemon was."""
    with tempfile.TemporaryDirectory(prefix="mend-bench-copies-") as work, Lab(4) as lab:
        target = lambda node: os.path.join(work, "targets", node)
        source, seen = os.path.join(work, "source"), os.path.join(work, "seen")

        def data(*words):
            done = lab.mend("data", *words)
            if done.returncode:
                raise Failed(done.stderr)
            return done.stdout

        def on(node, *command):
            done = lab.on(node, *command)
            if done.returncode:
                raise Failed(f"{' '.join(command)}: {done.stderr}")
            return done.stdout

        signal = lambda node, sign: on(node, "pkill", f"-{sign}", "-x", "-f", f".*mend-space target .*{target(node)} .*")
        with open(source, "wb") as file:
            file.write(os.urandom(STRIPES << 20))
        os.makedirs(seen)
        data("create", "input", *[word for node in NODES for word in ("--target", f"{node}:{target(node)}")])
        try:
            data("stage", f"file://{source}", "input:in.dat")
            data("replicate", "input:")
            objects = json.loads(data("getstripe", "--json", "input:in.dat"))["objects"]
            first = {one["target"].split(":")[0]: place for place, one in enumerate(objects)}
            unread = {node: list(range(first[node], STRIPES, len(NODES))) for node in NODES}
            # What serves the mount must not hold the pipe that this waits for.
            on("node4", "sh", "-c", f"{MEND} data mount input {seen} >/dev/null 2>&1")

            def read(node, count):
                """Of stripes whose first copies are on the node."""
                stripes = [str(unread[node].pop()) for _ in range(count)]
                return [float(line) for line in on("node4", sys.executable, "-c", READ, f"{seen}/in.dat", *stripes).split()]

            try:
                [_, well] = read("node1", 2)
                signal("node1", "STOP")
                [stopped, later] = read("node1", 2)
                signal("node1", "CONT")
                read("node2", 1)
                signal("node2", "KILL")
                [killed] = read("node2", 1)
                read("node3", 1)
                lab.kill_daemon("node3")
                [gone] = read("node3", 1)
            finally:
                on("node4", MEND, "data", "unmount", seen)
        finally:
            lab.mend("data", "destroy", "--force", "input")
    return well, stopped, later, killed, gone


def measure_failover(options):
    runs = list(zip(*(failover() for _ in range(options.runs))))
    whats = ("read of 4 KiB: target well", "the first one after it was stopped", "the next one", "the first one after it was killed", "the first one after its daemon was killed")
    for what, taken in zip(whats, runs):
        print(f"{what}: {results.median(taken):.1f} ms")
        if options.record:
            results.note(what, "ms", taken)
    if options.record:
        results.save("copies-failover", results.record("failover"))


def measure_queue(options):
    traces = [replay(seed) for seed in range(1, options.runs + 1)]
    for load in traces[0]:
        rows = [trace[load] for trace in traces]
        of = lambda name: [row[name] for row in rows]
        line = f"{results.median(of('waiting')):.0f} jobs wait, {results.median(of('waiting_with_copies')):.0f} of them with copies"
        print(f"load {load}: {line}; {results.median(of('copies_tib')):.3g} TiB of copies instead of {results.median(of('all_tib')):.3g}, "
              f"or of {results.median(of('all_for_a_week_tib')):.3g} with files that stay for a week; "
              f"{results.median(of('ready_percent')):.0f} % ready at the start of jobs that waited")
        if options.record:
            ours = of("copies_tib")
            results.note(f"room of second copies, load {load}", "TiB", ours, of("all_tib"), "copies until each job ends", remark=line)
            results.note(f"room of second copies, load {load}", "TiB", ours, of("all_for_a_week_tib"), "copies of files that stay for a week after")
            results.note(f"copies that are ready, load {load}", "%", of("ready_percent"), remark="of jobs that waited for longer than copying takes")
    if options.record:
        results.save("copies-queue", results.record("queue"))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--record", action="store_true", help="put the figures into docs/results")
    options.add_argument("what", nargs="?", choices=("queue", "failover"), help="this alone")
    options = options.parse_args()
    if options.what != "failover":
        measure_queue(options)
    if options.what != "queue":
        measure_failover(options)


if __name__ == "__main__":
    main()
