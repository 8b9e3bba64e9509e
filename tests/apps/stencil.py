"""A five-point stencil on a square of numbers that is cut into stripes, one for each rank: stencil.py SIZE STOP.

Each step averages neighbours and exchanges the edges of stripes. It goes on until there is a file STOP. On standard error rank 0 says "step N" after every tenth one.
Standard output: one last line "stencil steps=N sum=S", S being what N steps give: equal for an equal number of ranks and steps.
"""

import os
import sys

import numpy
from mpi4py import MPI


def main():
    size, stop, world = int(sys.argv[1]), sys.argv[2], MPI.COMM_WORLD
    rows = size // world.size
    here = numpy.zeros((rows + 2, size))
    if world.rank == 0:
        here[0] = 1.0
    up = world.rank - 1 if world.rank > 0 else MPI.PROC_NULL
    down = world.rank + 1 if world.rank < world.size - 1 else MPI.PROC_NULL
    steps, over = 0, False
    while not over:
        for _ in range(10):
            world.Sendrecv(here[1], dest=up, recvbuf=here[-1], source=down)
            world.Sendrecv(here[-2], dest=down, recvbuf=here[0], source=up)
            here[1:-1, 1:-1] = (here[:-2, 1:-1] + here[2:, 1:-1] + here[1:-1, :-2] + here[1:-1, 2:]) / 4
            steps += 1
        if world.rank == 0:
            print(f"step {steps}", file=sys.stderr, flush=True)
        over = world.bcast(os.path.exists(stop))
    total = world.allreduce(float(here[1:-1].sum()))
    if world.rank == 0:
        print(f"stencil steps={steps} sum={total!r}")


main()
