#!/usr/bin/env python3
"""What the tier `vm` runs in its guest, as root there: what differs by kernel, in an amount that emulation takes minutes for.

    inside.py [TEST...]     all of it, or only the lab tests named

Programs of tests are those that `cargo test --release` built last. Each counts its own tests.
"""

import glob
import os
import subprocess
import sys
import time

import rdma

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "deps")
AS_USER = os.path.join(ROOT, "tests", "as_user.py")
LAB = [
    "test_a_program_without_mpi_goes_on_where_it_was",
    "test_a_rank_that_moved_begins_its_chain_anew",
    "test_huge_page_pool",
    "test_memory_that_is_swapped_out",
    "test_messages_of_all_sizes_stay_whole_over_rdma",
    "test_more_memory_than_there_may_be",
    "test_ranks_that_may_lock_too_little",
]
# Pages of 2 MiB, and where memory goes that is swapped out: into memory again, compressed.
HUGE_PAGES = 16
SWAP = "/dev/zram0"
SWAP_BYTES = 256 << 20
# A control group whose processes have less memory than they take.
GROUP = "/sys/fs/cgroup/limited"
GROUP_BYTES = 32 << 20
BUSYBOX = "/run/vm/busybox"
# Whatever is emulated arrives in the end, and none of these tests loses a node.
PATIENCE = {"MEND_TEST_PATIENCE": "900", "MEND_LEASE_MS": "60000", "MEND_NODE_TIMEOUT_MS": "60000"}


def program(name):
    """The newest build of a program of tests."""
    found = [path for path in glob.glob(os.path.join(BUILT, f"{name}-*")) if os.access(path, os.X_OK) and not path.endswith((".d", ".so"))]
    if not found:
        sys.exit(f"no {name} in {BUILT}: cargo test --release --no-run")
    return max(found, key=os.path.getmtime)


def provide():
    """What this guest has to have, and other machines may lack."""

    def write(path, value):
        with open(path, "w", encoding="ascii") as file:
            file.write(str(value))

    write("/proc/sys/vm/nr_hugepages", HUGE_PAGES)
    # Only ancestors read a process's memory (Yama), unless it says otherwise.
    write("/proc/sys/kernel/yama/ptrace_scope", 1)
    subprocess.run([BUSYBOX, "modprobe", "zram"], check=True)
    write("/sys/block/zram0/disksize", SWAP_BYTES)
    subprocess.run([BUSYBOX, "mkswap", SWAP], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([BUSYBOX, "swapon", SWAP], check=True)
    write("/sys/fs/cgroup/cgroup.subtree_control", "+memory")
    os.mkdir(GROUP)
    write(os.path.join(GROUP, "memory.max"), GROUP_BYTES)
    # Who changes groups must be allowed to leave the old one, too.
    for group in (GROUP, os.path.dirname(GROUP)):
        os.chmod(os.path.join(group, "cgroup.procs"), 0o666)


def main():
    provide()
    addresses = rdma.provide()
    agent = os.path.join(ROOT, "crates", "rank", "agent")
    whole = {**PATIENCE, "MEND_TEST_WHOLE": "1", "MEND_TEST_LIMITED_GROUP": GROUP, "MEND_TEST_RDMA": ",".join(addresses)}
    steps = [
        ([program("mend_kernel")], ROOT, {}),
        ([program("mend_agent")], agent, {"MEND_DIFFERENTIAL_SEQUENCES": "10"}),
        ([AS_USER, program("mend_fabric"), "channel::memory"], ROOT, {}),
        ([AS_USER, sys.executable, "tests/lab/run.py", *(sys.argv[1:] or LAB)], ROOT, whole),
    ]
    if sys.argv[1:]:
        steps = steps[-1:]
    elif os.environ.get("MEND_VM_EMULATED"):
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
    if code:
        tell_of_crashes()
    return 1 if code else 0


def tell_of_crashes():
    """Which processes the kernel has ended for what they did, and where: a rank that crashes says no more than the signal."""
    said = subprocess.run([BUSYBOX, "dmesg"], capture_output=True, text=True, errors="replace", check=False).stdout
    for line in said.splitlines():
        if any(text in line for text in ("segfault", "traps:", "general protection")):
            print(line)


if __name__ == "__main__":
    sys.exit(main())
