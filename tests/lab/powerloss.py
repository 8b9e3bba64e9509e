#!/usr/bin/env python3
"""Power failures and failing disks under real jobs: nothing that was promised is lost, nothing wrong ever runs.

    powerloss.py [--times N] [--seed S] [--only K] [--faults N]

The home of `mend`, with the job's record and its checkpoints, is on a disk (tests/powerloss) that keeps only what was
made durable, and of the rest what a seed says: some of it, in any order, writes torn. While a checkpoint is taken the
power fails at a random operation; all processes die; what survived is mounted again. Then `mend restart` must go on from the last
checkpoint that was acknowledged, or a newer one, and end with the right result; only where none was acknowledged may it
refuse. This happens several times to one job. Then, without a failure of power: writes, fsyncs and renames that fail
(no space, I/O error) one by one, and writes that come back short. The job must run on, and what is listed must be usable.
"""

import argparse
import errno
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
from cluster import Failed, Tally, compile_plain  # noqa: E402
from disk import Disk, MachineOnDisk  # noqa: E402

STEPS, PAUSE = "600", "1000"


def count_of(job):
    """What a program said, without what `mend` did."""
    return job.stdout().splitlines()


def check_end(job, expected, what):
    """The last life's output is the end of an undisturbed run's."""
    found = count_of(job)
    if not found or found != expected[-len(found):]:
        raise Failed(f"{what}: it printed {found[-3:]} instead of {expected[-3:]}")


def restarted_from(job):
    found = re.findall(r"^mend: restarting \S+ from checkpoint (\d+)", job.stderr(), re.MULTILINE)
    return int(found[-1]) if found else None


def new_directory(work, name):
    directory = os.path.join(work, name)
    os.makedirs(directory)
    return directory


def fail_power(machine, disk, job, name, draw):
    """Takes checkpoints until the power has failed; how many were acknowledged."""
    acknowledged = 0
    for _ in range(draw.choice([0, 1, 1, 2])):
        machine.verb("checkpoint", name)
        acknowledged += 1
    disk.order("cut", draw.randrange(45))
    while not disk.dead():
        done = machine.mend("checkpoint", name)
        acknowledged += done.returncode == 0
    job.end()
    return acknowledged


def one_loss(number, seed, app, expected, work, lie=False):
    base = new_directory(work, f"{'lie' if lie else 'loss'}-{number}")
    done = losses_of_one_job(number, seed, app, expected, base, lie)
    # Only now, when nothing is mounted in it any more.
    shutil.rmtree(base, ignore_errors=True)
    return done


def losses_of_one_job(number, seed, app, expected, base, lie):
    draw = random.Random(f"{seed}/{number}")
    what = f"seed {seed} loss {number}"
    told = []
    with Disk(os.path.join(base, "disk")) as disk, MachineOnDisk(disk) as machine:
        directory = new_directory(base, "run")
        job = machine.start(directory, "run", app, STEPS, PAUSE, os.path.join(base, "go"))
        name = machine.running(job)
        if lie:
            disk.order("lie")
        newest = 0
        for cycle in range(draw.choice([1, 2, 3])):
            acknowledged = fail_power(machine, disk, job, name, draw)
            numbers = newest + acknowledged
            disk.order("restore", draw.randrange(1 << 32))
            directory = new_directory(base, f"restart-{cycle}")
            job = machine.start(directory, "restart", name)
            if numbers == 0:
                # Never promised: a restart may still find something whole, or say that there is nothing.
                try:
                    machine.running(job)
                except Failed:
                    if job.finish(None) not in (1, 65) or "Traceback" in job.stderr() or "panicked" in job.stderr():
                        raise
                    told.append("nothing promised, refused")
                    return f"{what}: {', '.join(told)}"
            machine.running(job)
            used = restarted_from(job)
            if used < numbers:
                raise Failed(f"{what}: checkpoint {numbers} was acknowledged, restarted from {used}: {job.stderr()}")
            told.append(f"promised {numbers}, restarted from {used}")
            newest = used
        with open(os.path.join(base, "go"), "w", encoding="utf-8"):
            pass
        job.finish(0)
        check_end(job, expected, what)
    return f"{what}: {', '.join(told)}, result equal"


def lies_are_noticed(seed, app, expected, work):
    """On a disk whose fsync does nothing, this very test must fail: so it would notice one that is missing."""
    for number in range(20):
        try:
            one_loss(number, seed, app, expected, work, lie=True)
        except Failed:
            return f"a disk that lies about fsync is noticed at loss {number}"
    raise Failed("20 losses on a disk that lies about fsync, and nothing was noticed")


def one_faulty_disk(kind, number, app, expected, work, times, draw):
    """Operations of one kind fail, one after the other, in checkpoints of one job."""
    what = f"{kind} fails with {errno.errorcode[number]}"
    base = new_directory(work, f"{kind}-{number}")
    refused = 0
    with Disk(os.path.join(base, "disk")) as disk, MachineOnDisk(disk) as machine:
        job = machine.start(base, "run", app, STEPS, PAUSE, "go")
        name = machine.running(job)
        machine.verb("checkpoint", name)
        # About as many as a checkpoint has of them.
        operations = {"write": 24, "sync": 6, "name": 4}[kind]
        order = draw.sample(range(operations), operations)
        for at, after in enumerate(order):
            # As many as were asked for, and more as long as all lay behind what the checkpoint does.
            if at >= times and refused:
                break
            before = machine.verb("checkpoints", name)
            disk.order("fail", kind, after, number)
            done = machine.mend("checkpoint", name)
            disk.order("heal")
            listed = machine.verb("checkpoints", name)
            if done.returncode:
                refused += 1
                if os.strerror(number) not in done.stderr:
                    raise Failed(f"{what} after {after}: it says {done.stderr!r}")
            if len(listed) != len(before) + (done.returncode == 0) or not all(one["usable"] for one in listed):
                raise Failed(f"{what} after {after}: exit code {done.returncode}, but listed are {listed}")
        again(machine, name, job, expected, what, base)
    shutil.rmtree(base, ignore_errors=True)
    if not refused:
        raise Failed(f"{what}: no checkpoint met it")
    return f"{what}: {refused} checkpoint(s) refused, the job went on"


def again(machine, name, job, expected, what, base):
    """The job goes on to its end; and again from what it left."""
    machine.verb("checkpoint", name)
    job.let_go()
    job.finish(0)
    check_end(job, expected, what)
    restarted = machine.start(new_directory(base, "again"), "restart", name, "--repeat-output")
    restarted.let_go()
    restarted.finish(0)
    check_end(restarted, expected, what)


def short_writes(app, expected, work):
    base = new_directory(work, "short")
    with Disk(os.path.join(base, "disk")) as disk, MachineOnDisk(disk) as machine:
        job = machine.start(base, "run", app, STEPS, PAUSE, "go")
        name = machine.running(job)
        disk.order("short", 60_001)
        again(machine, name, job, expected, "short writes", base)
    shutil.rmtree(base, ignore_errors=True)
    return "writes come back short: nothing is missing"


def full_disk(app, expected, work):
    base = new_directory(work, "full")
    with Disk(os.path.join(base, "disk")) as disk, MachineOnDisk(disk) as machine:
        job = machine.start(base, "run", app, STEPS, PAUSE, "go")
        name = machine.running(job)
        machine.verb("checkpoint", name)
        disk.order("space", 7 << 20)
        done = machine.mend("checkpoint", name)
        if done.returncode != 1 or "No space left" not in done.stderr:
            raise Failed(f"full disk: exit code {done.returncode}: {done.stderr}")
        disk.order("space", 1 << 30)
        again(machine, name, job, expected, "full disk", base)
    shutil.rmtree(base, ignore_errors=True)
    return "a disk that is full refuses one checkpoint, and only that"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only the loss of this number")
    parser.add_argument("--faults", type=int, default=6, help="failing operations of each kind, at most 24 (writes), 6 (fsyncs), 4 (names)")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-powerloss-")
    app = compile_plain("count.c", os.path.join(work, "count"))
    expected = subprocess.run([app, STEPS, "0"], capture_output=True, text=True, check=True).stdout.splitlines()
    draw = random.Random(arguments.seed)
    cases = [lambda number=number: one_loss(number, arguments.seed, app, expected, work) for number in range(arguments.times)]
    if arguments.only is not None:
        cases = [lambda: one_loss(arguments.only, arguments.seed, app, expected, work)]
    else:
        kinds = [("write", errno.ENOSPC), ("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.ENOSPC), ("name", errno.ENOSPC)]
        for kind, number in kinds:
            cases.append(lambda kind=kind, number=number: one_faulty_disk(kind, number, app, expected, work, arguments.faults, draw))
        cases += [lambda: lies_are_noticed(arguments.seed, app, expected, work)]
        cases += [lambda: short_writes(app, expected, work), lambda: full_disk(app, expected, work)]
    tally = Tally()
    tally.run(cases)
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
