"""Nodes of a lab that are slow: their daemon, and all that it starts from then on, get a share of one processor."""

import contextlib
import os
import signal
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
    # Whoever is still there was put there by a test that has failed.
    for _ in range(200):
        with open(os.path.join(group, "cgroup.procs"), encoding="ascii") as file:
            for pid in file.read().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            return os.rmdir(group)
        except OSError:
            time.sleep(0.05)
    raise Failed(f"processes stay in {group}")


def _processes(is_it):
    """Processes for which this is true of their command line and environment, each a list."""

    def read(pid, name):
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read().split("\0")

    def belongs(pid):
        try:
            return is_it(read(pid, "cmdline"), read(pid, "environ"))
        except OSError:
            return False

    return [pid for pid in os.listdir("/proc") if pid.isdigit() and belongs(pid)]


def _join(group, pids):
    for pid in pids:
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(pid)


def slow_rank(lab, rank, group):
    """The rank's process is in this group from now on, until it ends."""
    home = f"MEND_LAB={lab.name}"
    found = _processes(lambda line, environment: f"MEND_RANK={rank}" in environment and home in environment and not line[0].startswith("mendd"))
    if not found:
        raise Failed(f"no process of rank {rank}")
    _join(group, found)


@contextlib.contextmanager
def throttled(lab, node, group):
    """The node's daemon is in this group, until the node is killed at the end."""
    _join(group, _processes(lambda line, environment: node in line and "mendd" in os.path.basename(line[0]) and f"MEND_LAB={lab.name}" in environment))
    try:
        yield
    finally:
        lab.kill(node)
