#!/usr/bin/env python3
"""MPI's whole surface over the provider, at length; run by hand (`make conformance`, ten minutes), the short selection of it
being test_conformance.py.

    conformance.py [PART...]    programs, imb, mpi4py, pingpong; all if none is named

programs  every program of tests/apps/conformance, with 1, 2, 4 and 8 ranks on 1 to 4 nodes of a lab
imb       every IMB program of the Intel MPI wheel, short, on MPICH and on Intel MPI, with 1 to 8 ranks on 1 to 4 nodes
mpi4py    mpi4py's own test suite, built against this MPICH, with 1, 2 and 4 ranks on this machine and 4 on two nodes of a lab
pingpong  libfabric's fi_pingpong, its two ends as two ranks on one node and on two, on Debian's and on the wheel's libfabric

The last line sums up, "N passed, N failed". Nothing is tried twice.
"""

import glob
import os
import re
import sys
import tempfile
import time

from cluster import Failed, Lab, Machine, PATIENCE, VENV, imb_programs, intel_environment
from test_conformance import compiled

LONG = 4 * PATIENCE
LAYOUTS = {1: (1,), 2: (1, 2), 4: (1, 2, 4), 8: (1, 2, 4)}
# The parts of IMB: ranks and nodes. One rank is enough for what measures a rank alone; eight are more than most machines have
# processors for.
IMB_LAYOUTS = ((1, 1), (2, 1), (2, 2), (4, 2), (8, 4))
# mpi4py's tests: ranks, and the nodes of the lab, or none: on this machine as it is.
MPI4PY_LAYOUTS = ((1, 0), (2, 0), (4, 0), (4, 2))
# Time enough for all samples: cut short, IMB prints a time that it never took (test_intel.py).
IMB_SHORT = ["-time", "60", "-iter", "20", "-msglog", "3:17", "-mem", "0.2"]


class Count:
    def __init__(self):
        self.passed = self.failed = 0

    def record(self, name, work):
        """One test: `work` raises `Failed`, or returns what is to be told besides."""
        start = time.monotonic()
        try:
            told = work() or ""
            self.passed += 1
            verdict = "ok"
        except Failed as failure:
            told, verdict = f"\n{failure}", "FAILED"
            self.failed += 1
        print(f"{name} ... {verdict} ({time.monotonic() - start:.1f} s) {told}", flush=True)


def hosts(nodes):
    return ["--hosts", ",".join(f"node{number + 1}" for number in range(nodes))] if nodes else []


def in_lab(lab, nodes, ranks, argv, directory):
    job = lab.start(directory, "run", "-q", "-n", str(ranks), *hosts(nodes), "--", *argv)
    job.finish(0, LONG)
    return job.stdout()


def programs(count, lab, work):
    for name, path in compiled(work).items():
        for ranks, layouts in LAYOUTS.items():
            for nodes in layouts:
                directory = tempfile.mkdtemp(dir=work)

                def run(ranks=ranks, nodes=nodes, directory=directory, path=path, name=name):
                    said = in_lab(lab, nodes, ranks, [path], directory)
                    if said != f"{name}: right with {ranks} ranks\n":
                        raise Failed(f"it said {said!r}")

                count.record(f"{name}, {ranks} ranks on {nodes} nodes", run)


def imb(count, lab, work):
    """IMB as the wheel has it does not look at the data: this shows that all of it runs to its end."""
    plain = lab.environment
    openmp = glob.glob(os.path.join(VENV, "conformance", "**", "libiomp5.so"), recursive=True)
    if not openmp:
        raise Failed(f"no libiomp5.so below {VENV}/conformance; run `make conformance`")
    for library, environment in (("MPICH", plain), ("Intel MPI", dict(plain, **intel_environment()))):
        paths = [environment["LD_LIBRARY_PATH"], os.path.dirname(openmp[0])]
        lab.environment = dict(environment, LD_LIBRARY_PATH=os.pathsep.join(paths))
        for name, path in imb_programs().items():
            for ranks, nodes in IMB_LAYOUTS:
                directory = tempfile.mkdtemp(dir=work)

                def run(ranks=ranks, nodes=nodes, directory=directory, path=path):
                    said = in_lab(lab, nodes, ranks, [path, *imb_options(path)], directory)
                    if "All processes entering MPI_Finalize" not in said and "Benchmarking" not in said:
                        raise Failed(f"it measured nothing:\n{said[-2000:]}")
                    found = re.findall(r"^#\s*Benchmarking (\S+)", said, re.MULTILINE)
                    if not found and ranks > 1:
                        raise Failed(f"no benchmark ran:\n{said[-2000:]}")
                    return f"{len(set(found))} benchmarks"

                count.record(f"{name} on {library}, {ranks} ranks on {nodes} nodes", run)
    lab.environment = plain


def imb_options(path):
    """IMB-MT has options of its own."""
    return ["-repeat", "5", "-count", "1,1000,20000"] if path.endswith("IMB-MT") else IMB_SHORT


def mpi4py(count, lab, work):
    """The suite as its authors run it, without (test_doc) a look at the documentation, which needs other packages."""
    python = os.path.join(VENV, "conformance", "bin", "python3")
    suite = os.path.join(VENV, "conformance", "mpi4py", "test", "main.py")
    left_out = ["-e", "test_doc"]
    with Machine() as machine:
        for ranks, nodes in MPI4PY_LAYOUTS:
            directory = tempfile.mkdtemp(dir=work)

            def run(ranks=ranks, nodes=nodes, directory=directory):
                # Each rank's errors in a file of its own: lines of several, each of thousands, would run into each other.
                apart = ["sh", "-c", 'exec "$@" 2>"errors-$MEND_RANK"', "sh"]
                where = lab if nodes else machine
                job = where.start(directory, "run", "-q", "-n", str(ranks), *hosts(nodes), "--", *apart, python, suite, "-v", *left_out)
                job.finish(None, LONG)
                texts = []
                for rank in range(ranks):
                    with open(os.path.join(directory, f"errors-{rank}"), encoding="utf-8", errors="replace") as file:
                        texts.append(file.read())
                for rank, text in enumerate(texts):
                    failed = re.findall(r"^(?:ERROR|FAIL): \S+ \((\S+)\)", text, re.MULTILINE)
                    if failed or job.poll():
                        raise Failed(f"rank {rank}: exit code {job.poll()}, failed: {failed}\n{text[-4000:]}")
                    if not (ran := re.findall(r"^Ran (\d+) tests", text, re.MULTILINE)):
                        raise Failed(f"rank {rank} did not tell how many tests it ran\n{text[-4000:]}")
                    skipped = re.findall(r"^OK \(.*?skipped=(\d+)", text, re.MULTILINE)
                return f"ran {ran[0]}, skipped {skipped[0] if skipped else 0}"

            count.record(f"mpi4py's tests, {ranks} ranks{f' on {nodes} nodes' if nodes else ''}", run)


def pingpong(count, lab, work):
    """fi_pingpong's two ends as two ranks: its server is rank 0, which tells the other by a file when it can be reached."""
    plain = lab.environment
    with_wheel = dict(plain, LD_LIBRARY_PATH=os.pathsep.join([os.path.join(VENV, "lib", "mpich"), plain["LD_LIBRARY_PATH"]]))
    address = lab.on("node1", "getent", "ahostsv4", "node1").stdout.split()[0]
    # 47592 is fi_pingpong's port; a connection made to try it would be taken for the other end.
    script = ('if [ "$MEND_RANK" = 0 ]; then '
              '(until grep -qs ":$(printf %X 47592) .* 0A " /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done; : > listening) & '
              'exec fi_pingpong "$@"; fi; '
              f'until [ -e listening ]; do sleep 0.1; done; exec fi_pingpong "$@" {address}')
    for library, environment in (("Debian's libfabric", plain), ("the wheel's libfabric", with_wheel)):
        for nodes in (1, 2):
            for mode in ("tagged", "msg"):
                directory = tempfile.mkdtemp(dir=work)

                def run(environment=environment, nodes=nodes, mode=mode, directory=directory):
                    lab.environment = environment
                    options = ["-p", "mend", "-e", "rdm", "-I", "50", "-S", "all", "-c", "-m", mode]
                    said = in_lab(lab, nodes, 2, ["sh", "-c", script, "sh", *options], directory)
                    sizes = re.findall(r"^\d+[kmg]?\s+\d+", said, re.MULTILINE)
                    if not sizes:
                        raise Failed(f"it measured nothing:\n{said}")
                    return f"{len(sizes)} lines"

                count.record(f"fi_pingpong -m {mode} on {library}, {nodes} nodes", run)
    lab.environment = plain


PARTS = ("programs", "imb", "mpi4py", "pingpong")


def main():
    wanted = sys.argv[1:] or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    count = Count()
    with tempfile.TemporaryDirectory(prefix="mend-conformance-") as work:
        with Lab(4) as lab:
            for part, run in (("programs", programs), ("imb", imb), ("mpi4py", mpi4py), ("pingpong", pingpong)):
                if part in wanted:
                    run(count, lab, work)
    print(f"{count.passed} passed, {count.failed} failed")
    return 1 if count.failed or not count.passed else 0


if __name__ == "__main__":
    sys.exit(main())
