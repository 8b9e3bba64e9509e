#!/usr/bin/env python3
"""Runs the lab tests: every test_*.py here, or those whose name contains one of the arguments. Ends with one summary line.

With MEND_TEST_WHOLE in the environment, what is skipped has failed: this machine was made to have what it takes.
"""

import os
import sys
import time
import unittest

LONGEST = 12
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


def main():
    loader = unittest.TestLoader()
    if len(sys.argv) > 1:
        loader.testNamePatterns = [f"*{name}*" for name in sys.argv[1:]]
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Timed).run(loader.discover(HERE, "test_*.py"))
    print("\nThe longest, in seconds:")
    for seconds, name in sorted(result.seconds, reverse=True)[:LONGEST]:
        print(f"{seconds:7.1f}  {name}")
    for test, reason in result.skipped:
        print(f"skipped: {test.id()}: {reason}")
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    skipped = f", {len(result.skipped)} skipped" if result.skipped else ""
    # A part of a test that is skipped leaves the test itself.
    whole = sum(not hasattr(test, "test_case") for test, _ in result.skipped)
    if os.environ.get("MEND_TEST_WHOLE"):
        failed, whole = failed + whole, 0
    print(f"{result.testsRun - failed - whole} passed, {failed} failed{skipped}")
    return 1 if failed or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
