#!/usr/bin/env python3
"""Runs the tiers of tests in order, each to its end whatever the others said, and sums up what they counted.

    run.py [TIER...]        all tiers, or those named
    run.py --list

A tier is a list of commands. What passed and failed is read from their output: cargo's "test result:" lines and how many
test programs failed without one, unittest's "Ran N tests", and our own scripts' "N passed, N failed"; a command of a tier
that only checks counts as one test. A command that fails without saying how many of its tests did counts as one failure,
and so do a tier that ran no test and one that outlives its time. Nothing is tried twice: a test that fails now and then
is a bug to be found.

What was skipped on this machine is named with its reason at the end: lines of the output that begin with "skipped: ". After
it comes what failed, in the failed commands' own words, so that whoever sees the end of the output alone knows it.
Each tier's output also goes to target/test-logs/TIER.log. The last line is "N passed, N failed"; exit code 0 only if
nothing failed.
"""

import concurrent.futures
import contextlib
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

from tiers import ROOT, TIERS, NotHere, drawn_by

LOGS = os.path.join(ROOT, "target", "test-logs")
# Tiers that may run beside others wait more than they compute: so many run at a time.
TOGETHER = 2
# How long a process may outlive the command that started it.
LEAVING_SECONDS = 10


@dataclass
class Count:
    passed: int = 0
    failed: int = 0

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed


CARGO = re.compile(r"^test result: (\w+)\. (\d+) passed; (\d+) failed;")
CARGO_TARGETS = re.compile(r"^error: (\d+) targets? failed:$")
OURS = re.compile(r"^(\d+) passed, (\d+) failed(?:, \d+ skipped)?$")
# What a passing test did not show on this machine, and why.
SKIPPED = re.compile(r"^skipped: (.+)$")
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ")
UNITTEST_FAILED = re.compile(r"^FAILED \((?:failures=(\d+))?(?:, )?(?:errors=(\d+))?")
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Failed)\b.*: ")
# Which test failed, and why: cargo's names, panics (the reason is on the next line), how a test program ended; unittest's names and exceptions, with
# what follows up to an empty line; our own scripts' cases, with what they say in so many lines.
TELLING = re.compile(rf"FAILED (?!\()|test .* \.\.\. FAILED$|thread '.*' .*panicked at|\s+process didn't exit successfully: |(FAIL|ERROR): |{EXCEPTION.pattern}|fatal ")
SAID, EXPLAINED = 4, 8
# Lines of a failed command that are repeated at the end, and how much of each: whoever keeps only the end of the output has all failures.
REPEATED, LONGEST = 60, 400


def count_lines(lines):
    """What the lines of one command's output say about tests. unittest's own count yields to a summary line of ours."""
    count, ran, failed, told = Count(), 0, 0, 0
    for line in lines:
        if match := CARGO.match(line):
            told += match[1] == "FAILED"
            count.add(Count(int(match[2]), int(match[3])))
        elif match := OURS.match(line):
            count.add(Count(int(match[1]), int(match[2])))
        elif match := CARGO_TARGETS.match(line):
            # Test programs that died say nothing.
            count.add(Count(0, max(0, int(match[1]) - told)))
        elif match := UNITTEST_RAN.match(line):
            ran += int(match[1])
        elif match := UNITTEST_FAILED.match(line):
            failed += int(match[1] or 0) + int(match[2] or 0)
    return Count(ran - failed, failed) if ran and count == Count() else count


def judge(count, code, check):
    """The count of one command from its output's count, its exit code, and whether it is a mere check."""
    if check and count == Count():
        return Count(1, 0) if code == 0 else Count(0, 1)
    if code != 0 and count.failed == 0:
        return Count(count.passed, 1)
    return count


def paragraph(lines):
    """How many lines of an exception's text are repeated: up to an empty one, and not too many."""
    return next((number for number, line in enumerate(lines[:EXPLAINED]) if not line.strip()), EXPLAINED)


def telling(lines):
    """What a failed command's output says about its failures; its last lines if it says nothing that is known."""
    at = [number for number, line in enumerate(lines) if TELLING.match(line)]
    reasons = {number + 1 for number in at if "panicked at" in lines[number]}
    ours = {number + more for number in at if lines[number].startswith("FAILED ") for more in range(SAID)}
    exceptions = {number + more for number in at if EXCEPTION.match(lines[number]) for more in range(paragraph(lines[number:]))}
    chosen = [lines[number] for number in sorted({*at, *reasons, *ours, *exceptions}) if number < len(lines)]
    chosen = chosen[:REPEATED] or [line for line in lines if line.strip()][-REPEATED // 2:]
    return [line if len(line) <= LONGEST else f"{line[:LONGEST]} …" for line in chosen]


class Ending:
    """Ctrl-C and SIGTERM: the steps that run end first, at the second one at once."""

    asked = 0
    processes = set()

    @classmethod
    def listen(cls):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, cls.ask)

    @classmethod
    def ask(cls, *_):
        cls.asked += 1
        cls.pass_on()

    @classmethod
    def pass_on(cls):
        if cls.asked:
            for process in list(cls.processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM if cls.asked == 1 else signal.SIGKILL)


def ended(process):
    """The exit code of a process, when it has ended. Python sees a signal that comes just before a wait only after it, so none is without end."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(1)


def stream(step, log, deadline, out=None):
    """Runs a step, copies its output to `out` (default: ours) and to the log, and returns its lines and its exit code (None: too long)."""
    out = out or sys.stdout
    environment = {**os.environ, **step.environment}
    process = subprocess.Popen(
        step.command, cwd=step.directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    Ending.processes.add(process)
    Ending.pass_on()
    late = threading.Event()

    def stop():
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(max(1, deadline - time.monotonic()), stop)
    timer.daemon = True
    timer.start()
    lines = []

    def copy():
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            for sink in (out, log):
                sink.write(line)
                sink.flush()

    copying = threading.Thread(target=copy, daemon=True)
    copying.start()
    try:
        code = ended(process)
        copying.join(LEAVING_SECONDS)
        if copying.is_alive():
            print(f"left behind: a process that still holds the output of {step.command[0]}", file=out, flush=True)
            code = code or 1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            copying.join(LEAVING_SECONDS)
        if not copying.is_alive():
            process.stdout.close()
    finally:
        timer.cancel()
        Ending.processes.discard(process)
    if Ending.asked:
        # What the step started may have taken no notice.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        sys.exit("ended before all tests had run")
    return lines, None if late.is_set() else code


@dataclass
class Remarks:
    """What is said at the end."""

    skipped: list = field(default_factory=list)
    failed: list = field(default_factory=list)

    def print(self):
        for title, lines in ((f"skipped: {len(self.skipped)}", self.skipped), ("failed", self.failed)):
            if lines:
                print("\n".join([f"\n=== {title}", *lines]))


def run_step(step, tier, log, deadline, out):
    """Its count, what is to be said of it at the end, and whether the tier's time was over."""
    shown = " ".join(os.path.relpath(word, ROOT) if word.startswith(ROOT + "/") else word for word in step.command)
    print(f"--- {shown}", file=out, flush=True)
    try:
        lines, code = stream(step, log, deadline, out)
    except OSError as error:
        print(f"{shown}: {error}", file=out)
        lines, code = [str(error)], 127
    said = Remarks(skipped=[f"{tier.name}: {match[1]}" for match in map(SKIPPED.match, lines) if match])
    if code is None:
        late = f"stopped: the tier's {tier.minutes} minutes are over"
        print(late, file=out)
        count = Count(count_lines(lines).passed, count_lines(lines).failed + 1)
        lines.append(late)
    else:
        count = judge(count_lines(lines), code, step.check)
    if count.failed:
        said.failed = [f"{tier.name}: {shown}: exit code {code}", *(f"    {line}" for line in telling(lines))]
    return count, said, code is None


def run_steps(steps, tier, log, deadline, out):
    """Runs them one after the other, or as many at once as the tier says: then each one's output appears when it is over. Yields as `run_step` returns."""
    first = [step for step in steps if step.first or tier.at_once == 1]
    yield from (run_step(step, tier, log, deadline, out) for step in first)

    def one(step):
        own, logged = io.StringIO(), io.StringIO()
        return run_step(step, tier, logged, deadline, own), own.getvalue(), logged.getvalue()

    with concurrent.futures.ThreadPoolExecutor(tier.at_once) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, step) for step in steps if step not in first]):
            result, own, logged = done.result()
            out.write(own)
            out.flush()
            log.write(logged)
            yield result


def run_tier(tier, remarks, out=None):
    """The tier's count, or None if it is skipped. What it prints goes to `out` (default: our own output)."""
    out = out or sys.stdout
    print(f"\n=== {tier.name}: {tier.about}", file=out, flush=True)
    try:
        steps, reason = tier.steps(), tier.not_here
    except NotHere as missing:
        steps, reason = None, missing
    if steps is None:
        print(f"skipped: {reason}", file=out)
        remarks.skipped.append(f"{tier.name}: all of it: {reason}")
        return None
    total, deadline = Count(), time.monotonic() + 60 * tier.minutes
    with open(os.path.join(LOGS, f"{tier.name}.log"), "w", encoding="utf-8") as log:
        for count, said, is_late in run_steps(steps, tier, log, deadline, out):
            total.add(count)
            remarks.skipped += said.skipped
            remarks.failed += said.failed
            if is_late:
                break
    if total == Count():
        print("no test ran: that is a failure", file=out)
        remarks.failed.append(f"{tier.name}: no test ran")
        total.failed = 1
    return total


def run_together(tiers):
    """Runs tiers a few at a time; each one's output is printed when it is over. Yields as `run_timed` returns."""

    def one(tier):
        out = io.StringIO()
        return tier, *run_timed(tier, out), out.getvalue()

    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, tier) for tier in tiers]):
            tier, count, remarks, seconds, said = done.result()
            print(said, end="", flush=True)
            yield tier, count, remarks, seconds


def run_timed(tier, out=None):
    """The tier's count, its remarks, and how many seconds it took."""
    start, remarks = time.monotonic(), Remarks()
    return run_tier(tier, remarks, out), remarks, time.monotonic() - start


def main():
    names = [tier.name for tier in TIERS]
    wanted = sys.argv[1:]
    if wanted == ["--list"]:
        print("\n".join(f"{tier.name:10} {tier.about}" for tier in TIERS))
        return 0
    unknown = [name for name in wanted if name not in names]
    if unknown:
        print(f"no such tier: {', '.join(unknown)}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    Ending.listen()
    os.umask(0o022)
    os.makedirs(LOGS, exist_ok=True)
    rows, total, remarks = [], Count(), Remarks()
    chosen = [tier for tier in TIERS if not wanted or tier.name in wanted]
    seed, whose = drawn_by()
    print(f"what is drawn is drawn by the seed {seed} ({whose}); MEND_TEST_SEED={seed} repeats it", flush=True)
    alone = ((tier, *run_timed(tier)) for tier in chosen if not tier.beside)
    for tier, count, told, seconds in itertools.chain(alone, run_together([tier for tier in chosen if tier.beside])):
        rows.append((tier.name, count, seconds))
        total.add(count or Count())
        remarks.skipped += told.skipped
        remarks.failed += told.failed
    print("\n=== summary")
    for name, count, seconds in rows:
        said = f"{count.passed} passed, {count.failed} failed" if count else "skipped"
        print(f"{name:10} {said:28} {seconds:6.0f} s")
    remarks.print()
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
