"""Processor time, as the kernel counts it for each thread (`/proc/PID/task/TID/schedstat`)."""

import contextlib
import os
import threading

# Pause between two looks, seconds.
PAUSE = 0.02


def of_thread(process, thread):
    """Nanoseconds."""
    with open(f"/proc/{process}/task/{thread}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0])


def of_process(number):
    """Of all threads of a process, seconds."""
    return sum(of_thread(number, thread) for thread in os.listdir(f"/proc/{number}/task")) / 1e9


def of_mend():
    """Nanoseconds of each thread that is Mend's: of its programs, and of agents in ranks."""
    found = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            ours = os.path.basename(os.readlink(f"/proc/{process}/exe")).startswith("mend")
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError):
                    with open(f"/proc/{process}/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
                        agent = file.read().startswith("mend")
                    if ours or agent:
                        found[process, thread] = of_thread(process, thread)
    return found


class Watch(threading.Thread):
    """Processor time of Mend's from now on: as last seen of each of its threads, looked at all the time, since some end meanwhile."""

    def __init__(self):
        super().__init__(daemon=True)
        self.first, self.last, self.over = of_mend(), {}, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(PAUSE):
            self.last.update(of_mend())

    def seconds(self):
        """Until now; it ends."""
        self.over.set()
        self.join()
        return sum(last - self.first.get(key, 0) for key, last in self.last.items()) / 1e9
