#!/usr/bin/env python3
"""Measures checkpoints beside what they are to be compared with, in one run.

    checkpoints.py [--runs N] [NAME ...]

    full      stop-and-write, to tmpfs and to disk: time / dd bs=1M of as many bytes into a new file for each rank
              (conv=fsync on disk); 2 minutes
    snapshot  copy-on-write: time stopped / bare fork of the same process, and how long until it is durable; a minute
    slowdown  noise that changes all of its memory over and over: its pace while an image is written behind it / before; a minute
    sparse    64 GiB mapped, a page in each used, and 256 MiB of zeros: what a checkpoint takes beyond that of the same program
              without them / asking the kernel which pages there are and looking for zeros, in the program itself; 10 s
    lammps    2 ranks, an incremental checkpoint every 10 s to tmpfs: time of the run's loop / without checkpoints (N / 2 pairs), and
              steps around checkpoints beside the other steps of the same run; 4 minutes

full and snapshot take a process full of noise, in small pages and in huge ones, one that computes with NumPy, and LAMMPS on 2
ranks (a snapshot: in the middle of its steps; the bare fork: of both ranks at once, the slower one). The noise is of 256 MiB and
of 1 GiB, or of MEND_BENCH_MIB. MEND_BENCH_ONLY=NumPy,LAMMPS takes those alone. Times are wall-clock, those of the ranks the slowest one's; the machine should have nothing else
to do. The minutes are those of --runs 5 on two processors.
"""

import os
import re
import shutil
import statistics
import sys
import tempfile
import time

import results
from side_by_side import HERE, main, report, warm
from cluster import Failed, Machine, compile_plain, find_lammps
from processes import Kind, beyond, copies_with_dd, images, in_a_mount_namespace, kinds, noises, tmpfs


def full(runs, work):
    for kind in kinds(work):
        for where, target in {"tmpfs": tmpfs(), "disk": os.path.join(work, "disk")}.items():
            ours, theirs, over = [], [], ""
            with kind.started(work, target) as process:
                # Moved away, so that no image builds on it.
                source = os.path.join(target, "source")
                os.rename(process.checkpoint("stop")["directory"], source)
                for run in range(runs):
                    for turn in (run, run + 1):
                        warm((kind.mebibytes or 256) + 256)
                        if turn % 2:
                            theirs.append(copies_with_dd(images(source), target, where == "disk"))
                        else:
                            done = process.checkpoint("stop")
                            ours.append(done["phases"]["write_us"] / 1e3)
                            if done["bytes"] < sum(map(os.path.getsize, images(source))) * 0.9:
                                raise Failed("the image is not full")
                            shutil.rmtree(done["directory"])
            report(f"full, {kind.name}, to {where}", theirs, ours, "ms", "dd")
            if kind.mebibytes:
                results.note(f"bytes beyond the pages that are not zero, {kind.name}", "%", [(done["bytes"] / (kind.mebibytes << 20) - 1) * 100])
                over = f": noise and {(done['bytes'] / (kind.mebibytes << 20) - 1) * 100:.2f} %"
            print(f"  {done['bytes'] / 2**20:.1f} MiB{over}", flush=True)


def snapshot(runs, work):
    for kind in kinds(work):
        stopped, durable, forks, last = [], [], [], {}
        with kind.started(work, tmpfs()) as process:
            for _ in range(runs):
                forks.append(process.fork())
                idle = process.order(kind.busy) if kind.busy else lambda: None
                if kind.busy:
                    time.sleep(0.5)
                done = process.checkpoint("copy-on-write")
                if done["notes"]:
                    raise Failed(str(done["notes"]))
                stopped.append(done["stopped_us"] / 1e3)
                durable.append(done["durable_us"] / 1e3)
                last = {name[:-3]: f"{us / 1e3:.1f} ms" for name, us in done["phases"].items() if us}
                shutil.rmtree(done["directory"])
                idle()
        report(f"stopped, {kind.name}", forks, stopped, "ms", "a bare fork")
        results.note(f"beyond 1.3 forks: {kind.name}", "ms", [ours - 1.3 * fork for ours, fork in zip(stopped, forks)])
        phases = ", ".join(f"{name} {time}" for name, time in last.items())
        print(f"  beyond 1.3 forks {beyond(stopped, forks):.2f} ms; the last: {phases}; durable after {statistics.median(durable):.0f} ms", flush=True)


def slowdown(runs, work):
    for kind in noises(work):
        if kind.argv[2:]:
            continue
        before, during = [], []
        with kind.started(work, tmpfs()) as process:
            for _ in range(runs):
                worked = process.order("work 4")
                time.sleep(1.5)
                start = time.monotonic()
                done = process.checkpoint("copy-on-write")
                end = time.monotonic()
                pace = [tuple(map(float, line.split()[1:])) for line in worked() if line.startswith("work ")]
                shutil.rmtree(done["directory"])
                before.append(1e6 / statistics.mean(rate for at, rate in pace if at < start - 0.1))
                during.append(1e6 / statistics.mean(rate for at, rate in pace if start <= at < end))
        report(f"changing a page, {kind.name}", before, during, "us", "before the checkpoint")


def sparse(runs, work):
    program = compile_plain("sparse.c", os.path.join(work, "sparse"))
    taken = {}
    for kind in (Kind("mapped", [program, "64", "256"]), Kind("nothing", [program, "0", "0"])):
        with kind.started(work, tmpfs()) as process:
            for _ in range(runs):
                asking, looking, pages, held = map(int, process.tell("scan")[0].split()[1:])
                done = process.checkpoint("stop")
                taken.setdefault(kind.name, []).append((done["phases"]["write_us"] / 1e3, (asking + looking) / 1e3))
                shutil.rmtree(done["directory"])
        print(f"{kind.name}: image of {done['bytes'] / 2**20:.2f} MiB; {pages} pages present, {held} that hold something; bare scan "
              f"{asking / 1e3:.1f} ms of questions and {looking / 1e3:.1f} ms of looking for zeros; "
              f"checkpoint {statistics.median(ours for ours, _ in taken[kind.name]):.1f} ms", flush=True)
    scans = [scan for _, scan in taken["mapped"]]
    ours = [mapped - nothing for (mapped, _), (nothing, _) in zip(taken["mapped"], taken["nothing"])]
    report("64 GiB mapped, 256 MiB of zeros, beyond none", scans, ours, "ms", "a bare scan")


def paces(job, published):
    """When each line of thermodynamic output came, and each checkpoint, until the job's end."""
    lines, taken = [], {}
    while job.poll() is None:
        count = len(re.findall(r"^ +[0-9]+ +-?[0-9.]+ ", job.stdout(), re.MULTILINE))
        now = time.monotonic()
        lines += [now] * (count - len(lines))
        for number in published():
            taken.setdefault(number, now)
        time.sleep(0.01)
    return lines, sorted(taken.values())


def around(lines, taken):
    """Seconds that the steps around a checkpoint took longer than the usual step of the same run; the same of as many others."""
    steps = [(a, b) for a, b in zip(lines, lines[1:]) if b > a]
    near = [any(a < at + 1.5 and b > at - 1.0 for at in taken) for a, b in steps]
    usual = statistics.median(b - a for (a, b), close in zip(steps, near) if not close)
    longer = {close: sum(b - a - usual for (a, b), where in zip(steps, near) if where is close) for close in (True, False)}
    return longer[True] / len(taken), longer[False] / near.count(False) * near.count(True) / len(taken)


def lammps(runs, work):
    """Told in two ways: a run with checkpoints beside one without, and steps around checkpoints beside the others of the same run:
    the machine's own pace may change by more than what is to be found, from run to run."""
    melt = os.path.join(os.path.dirname(HERE), "tests", "demo", "in.melt")
    argv = [find_lammps(), "-in", melt, "-var", "x", "24", "-var", "y", "24", "-var", "z", "24", "-var", "steps", "3000", "-log", "none"]
    target, interval = tmpfs(), 10
    loops, costs = {"without": [], "with": []}, []
    os.makedirs(target)
    try:
        with Machine() as machine:
            for _ in range(max(1, runs // 2)):
                for way, more in (("without", []), ("with", ["--interval", str(interval), "--incremental", "5"])):
                    job = machine.start(tempfile.mkdtemp(dir=work), "run", "-n", "2", *more, "--checkpoint-dir", target, *argv)
                    directory = os.path.join(target, machine.running(job))
                    published = lambda: [name for name in os.listdir(directory) if name.isdigit()] if os.path.isdir(directory) else []
                    lines, taken = paces(job, published)
                    if job.finish(None) or bool(taken) != (way == "with"):
                        raise Failed(job.stderr())
                    loops[way].append(float(re.search(r"^Loop time of ([0-9.]+)", job.stdout(), re.MULTILINE)[1]))
                    if taken:
                        costs.append((len(taken), *around(lines, taken)))
                    shutil.rmtree(directory, ignore_errors=True)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    report(f"LAMMPS melt, 2 ranks, every {interval} s to tmpfs", loops["without"], loops["with"], "s", "no checkpoints")
    results.note("cost of a checkpoint within the run", "ms", [lost * 1e3 for _, lost, _ in costs],
                 remark=f"as many other steps: {statistics.median(rest for *_, rest in costs) * 1e3:.0f} ms")
    for count, lost, rest in costs:
        print(f"  within the run: {count} checkpoints, each cost {lost * 1e3:.0f} ms, {lost / interval * 100:.2f} % "
              f"(as many other steps: {rest * 1e3:.0f} ms)", flush=True)


BENCHES = {"full": full, "snapshot": snapshot, "slowdown": slowdown, "sparse": sparse, "lammps": lammps}

if __name__ == "__main__":
    if "-h" not in sys.argv and "--help" not in sys.argv:
        in_a_mount_namespace()
    sys.exit(main(__doc__, BENCHES))
