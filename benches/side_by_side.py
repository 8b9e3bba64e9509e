"""What the benchmarks share: alternating runs under stock MPICH and under Mend, and how figures are told.

Runs alternate (A B A B …) so that a machine whose speed drifts wrongs neither side; a figure is the median of the runs,
a ratio the median of the pairs' ratios.
"""

import argparse
import contextlib
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import results

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "tests", "lab")]
from cluster import VENV, Failed  # noqa: E402

# Linux 5.14.
MADV_POPULATE_WRITE = 23
MPIEXEC = os.path.join(VENV, "bin", "mpiexec")


def output(command, environment, directory, patience=None):
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory, stdin=subprocess.DEVNULL, check=False,
                          timeout=patience)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def warm(mebibytes):
    """Uses so much memory and gives it back. A host may take what was free for a second, and give it anew many times as slowly."""
    with mmap.mmap(-1, mebibytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(MADV_POPULATE_WRITE)


def report(what, theirs, ours, unit, of):
    """Prints and notes both sides' medians and the median of the pairs' ratios."""
    results.note(what, unit, ours, theirs, of)
    a, b = statistics.median(theirs), statistics.median(ours)
    ratios = sorted(y / x for x, y in zip(theirs, ours))
    print(f"{what:44} {of:5} {a:10.3f} {unit:5} mend {b:10.3f} {unit:5} ratio {statistics.median(ratios):6.3f} "
          f"({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs)", flush=True)


def note(what, unit, numbers):
    """Prints and notes figures that are compared with nothing."""
    results.note(what, unit, numbers)
    print(f"{what:84} {statistics.median(numbers):10.3f} {unit} ({min(numbers):.3f} to {max(numbers):.3f})", flush=True)


def main(about, benches, within=contextlib.nullcontext, together=None):
    """The command line of a script of benchmarks: those named, or all, each called as `bench(runs, work)`, or as
    `bench(context, runs, work)` with what `within` gives; one whose promise was broken returns 1, and so does this. With --record each one's figures go to a file of their own, or all to `together`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="also write the figures to docs/results/*.json (then run render.py)")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(benches))
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(benches)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    names = arguments.names or list(benches)
    code = 0
    with within() as context:
        for name in names:
            work = tempfile.mkdtemp(prefix="mend-bench-")
            try:
                code = benches[name](*([] if context is None else [context]), arguments.runs, work) or code
            finally:
                shutil.rmtree(work, ignore_errors=True)
            if arguments.record and not together:
                script = os.path.splitext(os.path.basename(sys.argv[0]))[0].replace("_", "-")
                results.save(f"{script}-{name}", results.record(name))
    if arguments.record and together:
        results.save(together, results.record(" ".join(arguments.names)))
    return code
