#!/usr/bin/env python3
"""SIGKILL at random moments of a checkpoint or migration: what was good before stays good.

    crashes.py [--times N] [--seed S]

A job with one complete checkpoint is told to take another (or to move a rank); at a random moment one of its parts is
killed: a rank (with its agent), a daemon with its node, the target node, the controller, a process that writes an
image behind its rank, or those that move a rank in chunks. Then the job is restarted from its newest complete checkpoint and must end with the result of an
undisturbed run; where the part that died was not needed (a writer, a carrier of chunks, the target of a migration), the job itself must. No unfinished checkpoint may be listed.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
from cluster import Failed, Lab, Tally, compile_mpi  # noqa: E402

VICTIMS = ["rank", "daemon", "controller", "target", "writer", "carrier"]


def inside(lab, node, script):
    return lab.on(node, "sh", "-c", script)


def kill_victim(lab, draw, victim, app):
    """SIGKILLs one part of the job."""
    name = os.path.basename(app)
    if victim == "rank":
        inside(lab, "node1", f"pkill -KILL -x {name}")
    elif victim == "daemon":
        inside(lab, "node2", "pkill -KILL -x mendd")
    elif victim == "writer":
        inside(lab, "node1", "pkill -KILL -x mend-writer")
    elif victim == "target":
        inside(lab, "node3", "pkill -KILL -x mendd")
    elif victim == "carrier":
        # Of the node that the rank leaves, or of the one that it comes to. It may not have begun, or be done.
        node = draw.choice(("node2", "node3"))
        for process in lab.named(node, "mend-chunks"):
            inside(lab, node, f"kill -KILL {process}")
    else:
        # `lab exec` stands before the controller; the controller is the `mend` on the head node.
        inside(lab, "head", "pkill -KILL -f 'mend (run|restart) '")


def result(directory):
    with open(os.path.join(directory, "stdout"), encoding="utf-8") as file:
        return [line for line in file.read().splitlines() if line.startswith("iters digest")]


def one_crash(number, seed, app, argv, expected, work):
    draw = random.Random(f"{seed}/{number}")
    victim = VICTIMS[number % len(VICTIMS)]
    verb = {"target": "migrate", "writer": "checkpoint", "carrier": "migrate"}.get(victim) or draw.choice(["checkpoint", "checkpoint", "migrate"])
    directory = os.path.join(work, f"crash-{number}")
    os.makedirs(directory)
    what = f"seed {seed} crash {number}: {victim} killed during {verb}"
    with Lab(3) as lab:
        # Some images are written as fast as can be, some so slowly that what is killed is killed behind the running job.
        slow = draw.choice([True, False]) or victim == "writer"
        lab.environment["MEND_WRITE_RATE"] = "300" if slow else "0"
        # And ranks go by one way or the other.
        transport, mode = draw.choice([("tcp", "read")][victim == "carrier":] + [("ofi", "read"), ("ofi", "write")])
        lab.environment.update(MEND_MIGRATE_TRANSPORT=transport, MEND_MIGRATE_OFI_MODE=mode)
        if verb == "migrate":
            what += f" over {transport} ({mode})" if transport == "ofi" else " over tcp"
        job = lab.start(directory, "run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
        name = lab.running(job)
        # With the tables in place an image takes long enough to be killed in the middle.
        job.wait_for(lambda: "iteration" in job.stderr(), "the tables are filled")
        lab.verb("checkpoint", name)
        more = ["--to", "node3"] if verb == "migrate" else []
        rank = ["3"] if verb == "migrate" else []
        asked = subprocess.Popen(lab.command(verb, name, *rank, *more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=lab.environment)
        moment = draw.uniform(0, 0.6 if slow else 0.3)
        time.sleep(moment)
        kill_victim(lab, draw, victim, app)
        what += f" after {moment * 1000:.0f} ms"
        said = asked.communicate(timeout=60)[0].decode().strip().splitlines()
        job.let_go()
        survived = False
        if victim == "target":
            # The rank may have arrived on node3 before that died; then the job is lost like with any node.
            code = job.finish(None)
            survived = code == 0
            if code not in (0, 75):
                raise Failed(f"{what}: exit code {code}: {job.stderr()}")
        elif victim in ("writer", "carrier"):
            survived = job.finish(0) == 0
        else:
            code = job.finish(None)
            if code == 0:
                raise Failed(f"{what}: the job ended as if nothing had happened ({said})")
        listed = lab.verb("checkpoints", name)
        if not listed or not all(one["usable"] for one in listed):
            raise Failed(f"{what}: checkpoints are {listed}")
        if not survived:
            again = lab.start(directory, "restart", name, "--hosts", "node1")
            again.finish(0)
        found = result(directory)
        if found != expected:
            raise Failed(f"{what}: result {found} instead of {expected}")
    shutil.rmtree(directory, ignore_errors=True)
    return f"{what}: {'the job went on' if survived else 'restarted'}, result equal ({said[0] if said else 'no answer'})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only the crash of this number")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-crashes-")
    app = compile_mpi("mpi_iters.c", os.path.join(work, "iters"))
    argv = [app, "-i", "60", "-w", "200", "-m", "64", "-u", "go"]
    plain = os.path.join(work, "plain")
    os.makedirs(plain)
    with Lab(1) as lab:
        lab.undisturbed("-n", "4", "--hosts", "node1", "--", *argv, directory=plain)
    expected = result(plain)
    numbers = range(arguments.times) if arguments.only is None else [arguments.only]
    tally = Tally()
    tally.run(lambda number=number: one_crash(number, arguments.seed, app, argv, expected, work) for number in numbers)
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
