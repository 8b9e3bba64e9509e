#!/usr/bin/env python3
"""Whether the corpus's labels are true: each program runs with a note at each label of what every rank has sent and received.

Where all ranks pass a label equally often, and have received as much as was sent at each pass, with no request open, the label should be `safe`. A label `unsafe` must be shown
on at least one number of ranks. Part of `make conformance`; it takes a minute."""

import glob
import os
import subprocess
import sys
import tempfile

from building import HERE, MPICC, OUT, ROOT, VENV, environment
from test_corpus import CORPUS, LABEL

RUNTIME = os.path.join(ROOT, "app", "compiler", "mend_cc", "runtime")
RANKS = {"high_rank.c": (22,)}


def observed(path, room):
    """For each label whether some pass of it wasn't safe."""
    with open(path, "rb") as file:
        text = file.read()
    number, found, fortran = 0, [], path.endswith(".f90")

    def note(match):
        nonlocal number
        number += 1
        found.append((match.group(1) or match.group(2)).decode())
        return (b"call observe(%d)\n" if fortran else b"observe(%d, mend_rank());\n") % (number - 1)

    changed = LABEL.sub(note, text)
    if not fortran:
        changed = b"int mend_rank(void);\nvoid observe(int, int);\n" + changed + b"\nint mend_rank(void) { int r; PMPI_Comm_rank(MPI_COMM_WORLD, &r); return r; }\n"
    source = os.path.join(room, "program" + os.path.splitext(path)[1])
    with open(source, "wb") as file:
        file.write(changed)
    program = os.path.join(room, "program")
    mpicc, compiler, mpiexec = ("mpicc.mpich", "mpif90.mpich", "mpiexec.mpich") if fortran else (MPICC, MPICC, os.path.join(VENV, "bin", "mpiexec"))
    for name in ("observe", "mend_cc_check"):
        subprocess.run([mpicc, "-w", f"-I{OUT}/include", f"-I{RUNTIME}", "-c", os.path.join(HERE if name == "observe" else RUNTIME, f"{name}.c"), "-o", os.path.join(room, f"{name}.o")], check=True)
    subprocess.run([compiler, "-w", source, os.path.join(room, "observe.o"), os.path.join(room, "mend_cc_check.o"), "-o", program], cwd=room, check=True)
    bad = [False] * len(found)
    for ranks in RANKS.get(os.path.basename(path), (2, 3, 4)):
        run = tempfile.mkdtemp(dir=room)
        subprocess.run([mpiexec, "-n", str(ranks), program, "5"], cwd=run, check=True, timeout=60, stdout=subprocess.DEVNULL, env=environment())
        passes = {}
        for rank in range(ranks):
            try:
                with open(os.path.join(run, f"notes-{rank}"), encoding="utf-8") as file:
                    for line in file:
                        label, turn, sent, received, still_open = map(int, line.split())
                        passes.setdefault((label, turn), []).append((sent, received, still_open))
            except FileNotFoundError:
                pass
        for (label, _), counts in passes.items():
            bad[label] |= len(counts) < ranks or sum(c[0] for c in counts) != sum(c[1] for c in counts) or any(c[2] for c in counts)
    return list(zip(found, bad))


def main():
    wrong, checked = [], 0
    for path in sorted(glob.glob(os.path.join(CORPUS, "*"))):
        with tempfile.TemporaryDirectory() as room:
            for number, (label, bad) in enumerate(observed(path, room)):
                checked += 1
                if bad != (label == "unsafe"):
                    wrong.append(f"{os.path.basename(path)}, label {number + 1}: labelled {label}, {'not safe' if bad else 'safe'} when it runs")
    for line in wrong:
        print(line)
    print(f"{checked - len(wrong)} passed, {len(wrong)} failed")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
