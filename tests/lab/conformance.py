#!/usr/bin/env python3
"""MPI's whole surface over the provider, at length; run by hand (`make conformance`, half an hour), the short selection of it
being test_conformance.py.

    conformance.py [PART...]    programs, imb, mpi4py, pingpong; all if none is named

programs  every program of tests/apps/conformance, with 1, 2, 4 and 8 ranks on 1 to 4 nodes of a lab
imb       every IMB program of the Intel MPI wheel, short, on MPICH and on Intel MPI, checked by IMB itself where it can
mpi4py    mpi4py's own test suite, built against this MPICH, with 1, 2 and 4 ranks
pingpong  libfabric's fi_pingpong, two of its processes as two ranks

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
IMB_SHORT = ["-time", "0.02", "-iter", "20", "-msglog", "3:17", "-mem", "0.2"]


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


def in_lab(lab, nodes, ranks, argv, directory):
    hosts = ",".join(f"node{number + 1}" for number in range(nodes))
    job = lab.start(directory, "run", "-q", "-n", str(ranks), "--hosts", hosts, "--", *argv)
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
    """IMB has no exit code for wrong data: its table of defects is read."""
    plain = lab.environment
    openmp = glob.glob(os.path.join(VENV, "conformance", "**", "libiomp5.so"), recursive=True)
    if not openmp:
        raise Failed(f"no libiomp5.so below {VENV}/conformance; run `make conformance`")
    for library, environment in (("MPICH", plain), ("Intel MPI", dict(plain, **intel_environment()))):
        paths = [environment["LD_LIBRARY_PATH"], os.path.dirname(openmp[0])]
        lab.environment = dict(environment, LD_LIBRARY_PATH=os.pathsep.join(paths))
        for name, path in imb_programs().items():
            for ranks, nodes in ((2, 1), (4, 2)):
                directory = tempfile.mkdtemp(dir=work)

                def run(ranks=ranks, nodes=nodes, directory=directory, path=path):
                    said = in_lab(lab, nodes, ranks, [path, *imb_options(path)], directory)
                    if "All processes entering MPI_Finalize" not in said and "Benchmarking" not in said:
                        raise Failed(f"it measured nothing:\n{said[-2000:]}")
                    found = re.findall(r"^#\s*Benchmarking (\S+)", said, re.MULTILINE)
                    return f"{len(set(found))} benchmarks"

                count.record(f"{name} on {library}, {ranks} ranks on {nodes} nodes", run)
    lab.environment = plain


def imb_options(path):
    """IMB-MT has options of its own."""
    return ["-repeat", "5", "-count", "1,1000,20000"] if path.endswith("IMB-MT") else IMB_SHORT


def mpi4py(count, work):
    """The suite as its authors run it, without what needs MPI_Comm_spawn."""
    python = os.path.join(VENV, "conformance", "bin", "python3")
    suite = os.path.join(VENV, "conformance", "mpi4py", "test", "main.py")
    spawning = [word for part in ("test_spawn", "test_util_pool", "test_doc") for word in ("-e", part)]
    with Machine() as machine:
        for ranks in (1, 2, 4):
            directory = tempfile.mkdtemp(dir=work)

            def run(ranks=ranks, directory=directory):
                job = machine.start(directory, "run", "-q", "-n", str(ranks), "--", python, suite, "-v", *spawning)
                try:
                    job.finish(0, LONG)
                except Failed as failure:
                    raise Failed(str(failure)[-4000:]) from None
                text = job.stderr()
                ran = re.findall(r"^Ran (\d+) tests", text, re.MULTILINE)
                skipped = re.findall(r"^OK \(.*?skipped=(\d+)", text, re.MULTILINE)
                if len(ran) != 1 and len(ran) != ranks:
                    raise Failed(f"{len(ran)} of {ranks} ranks told how many tests they ran")
                return f"ran {ran[0]}, skipped {skipped[0] if skipped else 0}"

            count.record(f"mpi4py's tests, {ranks} ranks", run)


def pingpong(count, work):
    """fi_pingpong's two ends as two ranks: its server is rank 0."""
    with Machine() as machine:
        for options in (["-m", "tagged"], ["-m", "msg"]):
            directory = tempfile.mkdtemp(dir=work)

            def run(options=options, directory=directory):
                script = 'if [ "$MEND_RANK" = 0 ]; then exec fi_pingpong "$@"; fi; sleep 1; exec fi_pingpong "$@" 127.0.0.1'
                program = ["sh", "-c", script, "sh", "-p", "mend", "-e", "rdm", "-I", "200", "-S", "all", "-v", *options]
                job = machine.start(directory, "run", "-q", "-n", "2", "--", *program)
                job.finish(0)
                sizes = re.findall(r"^\d+[kmg]?\s+\d+", job.stdout(), re.MULTILINE)
                if not sizes:
                    raise Failed(f"it measured nothing:\n{job.stdout()}{job.stderr()}")
                return f"{len(sizes)} lines"

            count.record(f"fi_pingpong {' '.join(options)}", run)


PARTS = ("programs", "imb", "mpi4py", "pingpong")


def main():
    wanted = sys.argv[1:] or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    count = Count()
    with tempfile.TemporaryDirectory(prefix="mend-conformance-") as work:
        if "programs" in wanted or "imb" in wanted:
            with Lab(4) as lab:
                if "programs" in wanted:
                    programs(count, lab, work)
                if "imb" in wanted:
                    imb(count, lab, work)
        if "mpi4py" in wanted:
            mpi4py(count, work)
        if "pingpong" in wanted:
            pingpong(count, work)
    print(f"{count.passed} passed, {count.failed} failed")
    return 1 if count.failed or not count.passed else 0


if __name__ == "__main__":
    sys.exit(main())
