"""Nodes of a lab that are slow: their daemon, and all that it starts from then on, get a share of one processor."""

import contextlib
import os
import subprocess
import time

from cluster import Failed, NotHere


def _places():
    """Where control groups with a share of a processor can be made: directory, file, and the file's text for a share in per cent."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        lines = [line.strip().split(":", 2) for line in file]
    for _, controllers, path in lines:
        if controllers == "":
            yield os.path.join("/sys/fs/cgroup", path.lstrip("/")), "cpu.max", lambda percent: f"{percent * 1000} 100000"
        elif "cpu" in controllers.split(","):
            yield os.path.join("/sys/fs/cgroup", controllers, path.lstrip("/")), "cpu.cfs_quota_us", lambda percent: str(percent * 1000)


@contextlib.contextmanager
def processor_group(percent):
    """A control group whose processes get this share of one processor: its directory. `NotHere` says why there can be none."""
    reasons = []
    for place, name, text in _places():
        group = os.path.join(place, f"mend-test-slow-{os.getpid()}-{time.monotonic_ns()}")
        try:
            os.mkdir(group)
        except OSError as error:
            reasons.append(str(error))
            continue
        try:
            with open(os.path.join(group, name), "r+", encoding="ascii") as file:
                file.write(text(percent))
        except OSError as error:
            reasons.append(str(error))
            os.rmdir(group)
            continue
        try:
            yield group
        finally:
            _remove(group)
        return
    raise NotHere(f"no control group with a share of a processor: {'; '.join(reasons)}")


def _remove(group):
    for _ in range(200):
        try:
            return os.rmdir(group)
        except OSError:
            time.sleep(0.05)
    raise Failed(f"processes stay in {group}")


def _daemons(lab, node):
    pids = subprocess.run(["pgrep", "-x", "mendd"], capture_output=True, text=True, check=True).stdout.split()

    def belongs(pid):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as line, open(f"/proc/{pid}/environ", encoding="utf-8") as environment:
                return node in line.read().split("\0") and lab.name in environment.read()
        except OSError:
            return False

    return [pid for pid in pids if belongs(pid)]


@contextlib.contextmanager
def throttled(lab, node, group):
    """The node's daemon is in this group, until the node is killed at the end."""
    for pid in _daemons(lab, node):
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(pid)
    try:
        yield
    finally:
        lab.kill(node)
