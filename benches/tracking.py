#!/usr/bin/env python3
"""Measures incremental images and what noticing changes costs, by the agent alone, in one run.

    tracking.py [--runs N] [NAME ...]

    incremental  1 GiB of noise, to tmpfs and to disk: a full image, one with nothing changed, one with a tenth of the pages changed;
                 while the program stands still, and behind it; a plain write and fsync of as many bytes
    steady       a tracked process that changes all of its memory beside an untracked one; its first change of each page
                 beside the same under write protection of the program's own

MEND_BENCH_MIB sizes the noise (default 1024). Times are wall-clock; the machine should have nothing else to do.
"""

import os
import subprocess
import sys

from side_by_side import HERE, main


def agent(test):
    def bench(runs, work):
        environment = {**os.environ, "MEND_BENCH_RUNS": str(runs)}
        command = ["cargo", "test", "--release", "--quiet", "--locked", "--package", "mend-agent", "--test", "pace", "--",
                   "--ignored", "--nocapture", "--exact", test]
        done = subprocess.run(command, cwd=os.path.dirname(HERE), env=environment, capture_output=True, text=True, check=False)
        print("\n".join(line for line in done.stdout.splitlines() if "pages" in line or line.endswith(":")), flush=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
    return bench


BENCHES = {"incremental": agent("incremental_images"), "steady": agent("tracking")}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
