"""Time steps of an MPI program in Python, each told to Mend: steps.py DIRECTORY STEPS. DIRECTORY is that of mend_step.py.

Prints a last line, the same for equal arguments and number of ranks; on standard error rank 0 says "begins" after the first step.
"""

import sys

from mpi4py import MPI

sys.path.insert(0, sys.argv[1])
from mend_step import mend_step  # noqa: E402


def main():
    steps, world = int(sys.argv[2]), MPI.COMM_WORLD
    value = world.rank + 1
    for step in range(steps):
        for _ in range(60000):
            value = (value * 1103515245 + 12345) % 2147483648
        value = world.allreduce(value) % 2147483648
        mend_step(step + 1, steps)
        if step == 0 and world.rank == 0:
            print("begins", file=sys.stderr, flush=True)
    if world.rank == 0:
        print(f"steps value={value}")


main()
