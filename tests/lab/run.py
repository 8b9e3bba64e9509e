#!/usr/bin/env python3
"""Runs the lab tests: every test_*.py here, or those whose name contains one of the words. Ends with one summary line.

    run.py [--jobs N] [WORD...]

Lab tests wait more than they compute. With --jobs, N parts run at a time, each in a process of its own: a part is a few tests of
one class. A part's output comes in one piece.

With MEND_TEST_WHOLE in the environment, what is skipped has failed: this machine was made to have what it takes.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

LONGEST = 12
LONGEST_TITLE = "The longest, in seconds:"
DURATION = re.compile(r"^ *(\d+\.\d)  (test_\S+)$")
# Few enough that the parts end at about the same time, enough that a class sets its lab up seldom.
PART_TESTS = 4
# A part that takes longer hangs: what it printed tells where.
PART_SECONDS = 1200
# Keeps the processors busy on purpose: labs beside it would wait for seconds. It comes last, alone.
ALONE = "test_load."
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


class Timed(unittest.TextTestResult):
    """Knows how long each test took."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seconds = []

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        self.seconds.append((time.monotonic() - self.began, test.id()))
        super().stopTest(test)


def each(suite):
    """The tests of a suite, one by one."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def parts(tests):
    """Lists of names: the tests that one process runs. What a class sets up is set up once for each of its parts."""
    classes = {}
    for test in tests:
        classes.setdefault(type(test), []).append(test.id())
    return [names[at:at + PART_TESTS] for names in classes.values() for at in range(0, len(names), PART_TESTS)]


def run_parts(jobs, wanted):
    """Runs the parts, some at a time. Sums up what their last lines say; a part without one has failed."""
    telling = threading.Lock()
    passed = failed = skipped = 0
    durations = []

    def one(names):
        command = [sys.executable, os.path.abspath(__file__), "--exactly", *names]
        # A file, not a pipe: a process that a failed test left behind may hold it open for ever.
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            try:
                code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=PART_SECONDS, check=False).returncode
            except subprocess.TimeoutExpired:
                code = f"none within {PART_SECONDS} s,"
            output.seek(0)
            lines = output.read().splitlines()
        summary = SUMMARY.match(lines.pop()) if lines and SUMMARY.match(lines[-1]) else None
        with telling:
            durations.extend((float(match[1]), match[2]) for match in map(DURATION.match, lines) if match)
            # The durations and the sums are told once, of all parts.
            print("\n".join(line for line in lines if line != LONGEST_TITLE and not DURATION.match(line)), flush=True)
            if not summary:
                print(f"FAIL: {', '.join(names)}: ended with code {code} before all was summed up", flush=True)
        return [int(number or 0) for number in summary.groups()] if summary else [0, len(names), 0]

    for workers, which in ((jobs, False), (1, True)):
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for counts in pool.map(one, [names for names in wanted if names[0].startswith(ALONE) == which]):
                passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
    tell_longest(durations)
    print(f"{passed} passed, {failed} failed{f', {skipped} skipped' if skipped else ''}")
    return 1 if failed or not passed else 0


def tell_longest(durations):
    print(f"\n{LONGEST_TITLE}")
    for seconds, name in sorted(durations, reverse=True)[:LONGEST]:
        print(f"{seconds:7.1f}  {name}")


def main():
    parser = argparse.ArgumentParser(description="Runs the lab tests.")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--exactly", action="store_true", help="the words are whole names of tests")
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    loader = unittest.TestLoader()
    if arguments.exactly:
        return run_here(loader.loadTestsFromNames(arguments.words))
    if arguments.words:
        loader.testNamePatterns = [f"*{name}*" for name in arguments.words]
    found = loader.discover(HERE, "test_*.py")
    if arguments.jobs > 1 and not loader.errors:
        return run_parts(arguments.jobs, parts(each(found)))
    return run_here(found)


def run_here(tests):
    """Runs tests in this process, one after the other, and sums them up."""
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Timed).run(tests)
    tell_longest(result.seconds)
    for test, reason in result.skipped:
        print(f"skipped: {test.id()}: {reason}")
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    skipped = f", {len(result.skipped)} skipped" if result.skipped else ""
    # A part of a test that is skipped leaves the test itself.
    whole = sum(not hasattr(test, "test_case") for test, _ in result.skipped)
    if os.environ.get("MEND_TEST_WHOLE"):
        failed, whole = failed + whole, 0
    print(f"{max(0, result.testsRun - failed - whole)} passed, {failed} failed{skipped}")
    return 1 if failed or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
