#!/usr/bin/env python3
"""Replays generated traces of jobs through the rule by which second copies follow the queue: how much room they take, beside copies of all staged files.

    copies.py [--runs N] [--record]

What a trace is stands in crates/model/data/examples/queue_trace.rs; each run has a seed of its own, from 1. Nothing is copied: the same code decides that does for
`mend data replicate --queue`.
"""

import argparse
import json
import os
import subprocess

import results

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def replay(seed):
    """What the trace of a seed costs, by load."""
    command = ["cargo", "run", "--release", "--quiet", "--package", "mend-data", "--example", "queue_trace", str(seed)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return {row["load"]: row for row in json.loads(done.stdout)["rows"]}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--record", action="store_true", help="put the figures into docs/results")
    options = options.parse_args()
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


if __name__ == "__main__":
    main()
