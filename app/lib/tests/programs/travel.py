"""A random walk of particles on ranks that move, with NumPy and mpi4py. The last line is the same with moves and without.

travel.py STEPS [STEP RANKS]... [WHAT]    WHAT: window or request, open on all ranks from the start on
"""

import hashlib
import os
import sys
import time

import mend_app
import numpy
from mpi4py import MPI

PARTICLES = 1000
steps = int(sys.argv[1])
what = sys.argv[-1] if sys.argv[-1] in ("window", "request") else ""
rest = sys.argv[2 : len(sys.argv) - bool(what)]
asks = {int(step): ranks for step, ranks in zip(rest[::2], rest[1::2])}
noise = numpy.random.default_rng(7)
with mend_app.Session(MPI.COMM_WORLD, program="travel 1") as session:
    world = session.world
    pairs = session.split("pairs", world, world.rank // 2, world.rank)
    ring = session.cart("ring", world, [world.size], [True])
    for last in (False, False, True):
        # One name several times, as in a function of the program.
        once, kept = session.dup("once", pairs), session.dup("kept", world)
        session.free(once)
        if not last:
            session.free(kept)
    start, end = (PARTICLES * (world.rank + part) // world.size for part in (0, 1))
    x = numpy.zeros((end - start, 2))
    window = MPI.Win.Create(numpy.zeros(4), comm=world) if what == "window" else None
    if window is not None:
        window.Set_name("halo")
    request = world.Irecv(numpy.zeros(1), source=world.rank, tag=9) if what == "request" else None
    session.departing(lambda: None)
    with session.context("main"):
        state = session.scalars(step=0, sum=0)
        session.array("x", x, mend_app.block(PARTICLES, start, end - start), mend_app.whole(2))
        session.generator("noise", noise, replicated=True)
        while state.step < steps:
            if world.rank == 0 and state.step in asks and not session.restarting:
                session.migrate(asks[state.step])
            done = session.checkpoint()
            if done and world.rank == 0:
                print(f"travel: {done} at step {state.step}", flush=True)
            x += noise.normal(size=(PARTICLES, 2))[start:end]
            before, after = ring.Shift(0, 1)
            state.sum += pairs.allreduce(world.rank + state.step) + ring.sendrecv(world.rank, dest=after, source=before) * 0 + world.allreduce(1)
            state.sum = kept.bcast(state.sum)
            state.step += 1
            time.sleep(float(os.environ.get("PAUSE", "0.01")))
        if window is not None:
            window.Free()
        if request is not None:
            world.Send(numpy.zeros(1), dest=world.rank, tag=9)
            request.Wait()
        parts = world.gather(x, root=0)
        if world.rank == 0:
            digest = hashlib.sha256(numpy.concatenate(parts).tobytes()).hexdigest()[:16]
            print(f"travel digest={digest} steps={state.step} sum={state.sum}", flush=True)
