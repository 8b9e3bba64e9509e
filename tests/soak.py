#!/usr/bin/env python3
"""Everything that is drawn by a seed, at length and within a time, and the channels' protocol: storms of messages, changes to
memory against their images, random events, chaos on nodes, power failures, also of data spaces' targets, kill points, damages; and many small
files in a data space.

    soak.py [--minutes N] [--seed N]

Each part has its share of the minutes and does all of its rounds if they are over sooner; what it does not use is its
successors'. There is one round of each at least, and so many of changes to memory that each way of noticing them is shown a
thousand sequences; a round that has begun is ended, and a failed one ends its part; 0 minutes: as long
as it takes. The rounds print how what failed is repeated. The table at the end says how many rounds there were; the last line sums up what they counted.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass

from run import LOGS, Count, count_lines, judge, stream
from tiers import LONG_LEASE, ROOT, Step

# Longest time that a round may take, in minutes, besides what it was given.
PATIENCE = 30
# Sequences of changes to memory in a round, for each way of noticing them, and in all rounds at least.
SEQUENCES, LEAST_SEQUENCES = 100, 1000


@dataclass
class Part:
    """`round(k, seed, minutes)` is the command of round k; `minutes` are what is left of the part's share. `least` rounds are done
    whatever time there is."""

    name: str
    share: float
    rounds: int
    round: object
    least: int = 1


def script(name, *options):
    return Step([sys.executable, os.path.join("tests", "lab", name), *map(str, options)], environment=LONG_LEASE)


def cargo(*options, **environment):
    return Step(["cargo", "test", "--release", "--locked", *options], environment=environment)


def parts(bounded):
    """`bounded`: there is an end to the time."""
    def events(_, seed, minutes):
        return script("events.py", "--seed", seed, "--minutes", f"{max(minutes, 0.1) if bounded else 30:.1f}")

    def chaos(_, seed, minutes):
        return script("chaos.py", "--seed", seed, "--minutes", f"{max(minutes, 1) if bounded else 60:.1f}")

    def busy(_, __, minutes):
        # With the lease by default.
        return Step([sys.executable, os.path.join("tests", "lab", "busy.py"), "--minutes", f"{max(minutes, 1) if bounded else 60:.1f}"])

    def storm(_, seed, __):
        return cargo("--package", "mend-fabric", "--test", "storm", MEND_STORM_MESSAGES="125000", MEND_STORM_SEED=str(seed))

    def protocol(*_):
        # With so many steps most of its jobs come to their end; 0.4 GiB of memory.
        return cargo("--package", "mend-fabric", "--test", "protocol", "--", "--nocapture", "--test-threads", "1", MEND_MODEL_STEPS="5000000")

    def changes(*_):
        return cargo("--package", "mend-agent", "--lib", "dirty", MEND_DIFFERENTIAL_SEQUENCES=str(SEQUENCES))

    return [
        Part("protocol", 0.05, 1, protocol),
        Part("storm", 0.1, 8, storm),
        Part("changes", 0.15, 30, changes, least=-(-LEAST_SEQUENCES // SEQUENCES)),
        Part("spaceloss", 0.05, 15, lambda _, seed, __: script("spaceloss.py", "--times", 40, "--seed", seed)),
        Part("small-files", 0.02, 1, lambda *_: script("small_files.py", "--files", 20_000 if bounded else 100_000)),
        Part("powerloss", 0.08, 15, lambda k, seed, _: script("powerloss.py", "--times", 20, "--faults", 24 if k == 0 else 3, "--seed", seed)),
        # Whoever has little time sees another share of the points with another seed.
        Part("killpoints", 0.2, 32, lambda _, seed, __: script("killpoints.py", "--all", "--share", f"{seed % 32 + 1}/32")),
        Part("damage", 0.1, 15, lambda _, seed, __: script("damage.py", "--times", 40, "--seed", seed)),
        Part("events", 0.1, 1, events),
        Part("chaos", 0.12, 1, chaos),
        Part("busy", 0.03, 1, busy),
    ]


def run_part(part, seed, minutes):
    """As many rounds as `minutes` allow (None: all). Their number and their count."""
    begun, done, total = time.monotonic(), 0, Count()
    with open(os.path.join(LOGS, f"soak-{part.name}.log"), "w", encoding="utf-8") as log:
        for k in range(part.rounds):
            left = None if minutes is None else minutes - (time.monotonic() - begun) / 60
            if done >= part.least and left is not None and left <= 0:
                break
            step = part.round(k, seed + k, left)
            print(f"--- {part.name}, round {k + 1} of {part.rounds}: {' '.join(step.command)}", flush=True)
            lines, code = stream(step, log, time.monotonic() + 60 * (PATIENCE + max(left or 0, 0)))
            counted = judge(count_lines(lines), code, False)
            total.add(counted)
            done += 1
            if counted.failed or code != 0:
                break
    return done, total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="about so long in all; 0: until all rounds are done")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.makedirs(LOGS, exist_ok=True)
    print(f"soak: seed {arguments.seed}", flush=True)
    rows, total, begun, shares = [], Count(), time.monotonic(), 1.0
    for part in parts(arguments.minutes > 0):
        minutes = None
        if arguments.minutes > 0:
            left = arguments.minutes - (time.monotonic() - begun) / 60
            minutes = max(left, 0) * part.share / shares
        shares -= part.share
        start = time.monotonic()
        done, count = run_part(part, arguments.seed, minutes)
        rows.append(f"{part.name:10} {done:3} of {part.rounds:2} rounds   {count.passed} passed, {count.failed} failed"
                    f"   {time.monotonic() - start:6.0f} s")
        total.add(count)
    print("\n=== summary")
    print("\n".join(rows))
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
