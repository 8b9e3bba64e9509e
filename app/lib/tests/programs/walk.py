"""A random walk of particles over the ranks, with NumPy and mpi4py. The last line is the same for every number of ranks: each rank draws all numbers.

walk.py STEPS [KILL_AT]
"""

import hashlib
import os
import random
import signal
import sys

import mend_app
import numpy
from mpi4py import MPI

PARTICLES = 1000
comm = MPI.COMM_WORLD
steps = int(sys.argv[1])
kill_at = int(sys.argv[2]) if len(sys.argv) > 2 else -1
start, end = (PARTICLES * (comm.rank + part) // comm.size for part in (0, 1))
x = numpy.zeros((end - start, 2))
noise, coin = numpy.random.default_rng(7), random.Random(8)
with mend_app.Session(comm, program="walk 1") as session:
    if session.restarting:
        kill_at = -1
    with session.context("main"):
        state = session.scalars(step=0, heads=0, sum=0.5)
        session.array("x", x, mend_app.block(PARTICLES, start, end - start), mend_app.whole(2))
        session.generator("noise", noise, replicated=True)
        session.generator("coin", coin, replicated=True)
        while state.step < steps:
            if session.checkpoint() == "restored" and comm.rank == 0:
                print(f"walk: goes on at step {state.step}", file=sys.stderr)
            if state.step == kill_at and comm.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.Barrier()
            x += noise.normal(size=(PARTICLES, 2))[start:end]
            state.heads += coin.random() < 0.5
            state.sum += float(noise.random())
            state.step += 1
        parts = comm.gather(x, root=0)
        if comm.rank == 0:
            digest = hashlib.sha256(numpy.concatenate(parts).tobytes()).hexdigest()[:16]
            print(f"walk digest={digest} steps={state.step} heads={state.heads} sum={state.sum!r}")
