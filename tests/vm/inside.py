#!/usr/bin/env python3
"""What the tier `vm` runs in its guest, as root there: what differs by kernel, in an amount that emulation takes minutes for.

Programs of tests are those that `cargo test --release` built last. Each counts its own tests.
"""

import glob
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "deps")
AS_USER = os.path.join(ROOT, "tests", "as_user.py")
LAB = ["test_a_program_without_mpi_goes_on_where_it_was", "test_a_rank_that_moved_begins_its_chain_anew"]
# Whatever is emulated arrives in the end.
PATIENCE = {"MEND_TEST_PATIENCE": "900"}


def program(name):
    """The newest build of a program of tests."""
    found = [path for path in glob.glob(os.path.join(BUILT, f"{name}-*")) if os.access(path, os.X_OK) and not path.endswith((".d", ".so"))]
    if not found:
        sys.exit(f"no {name} in {BUILT}: cargo test --release --no-run")
    return max(found, key=os.path.getmtime)


def main():
    agent = os.path.join(ROOT, "crates", "rank", "agent")
    steps = [
        ([program("mend_kernel")], ROOT, {}),
        ([program("mend_agent")], agent, {"MEND_DIFFERENTIAL_SEQUENCES": "10"}),
        ([AS_USER, sys.executable, "tests/lab/run.py", *LAB], ROOT, PATIENCE),
    ]
    if os.environ.get("MEND_VM_EMULATED"):
        print("skipped: incremental images of whole processes: all is emulated")
    else:
        steps.append(([program("incremental")], agent, {}))
    print(f"Linux {os.uname().release}, {os.cpu_count()} processors", flush=True)
    code = 0
    for command, directory, environment in steps:
        print(f"--- {os.path.basename(command[0])}", flush=True)
        start = time.monotonic()
        done = subprocess.run(command, cwd=directory, env={**os.environ, **environment}, check=False)
        print(f"--- {time.monotonic() - start:.0f} s", flush=True)
        code = code or done.returncode
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
