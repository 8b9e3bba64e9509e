#!/usr/bin/env python3
"""Runs the lab tests: every test_*.py here, or those whose name contains one of the arguments. Ends with one summary line."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def main():
    loader = unittest.TestLoader()
    if len(sys.argv) > 1:
        loader.testNamePatterns = [f"*{name}*" for name in sys.argv[1:]]
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(loader.discover(HERE, "test_*.py"))
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    skipped = f", {len(result.skipped)} skipped" if result.skipped else ""
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed{skipped}")
    return 1 if failed or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
