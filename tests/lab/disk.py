"""A disk whose power can fail, full or failing when told (tests/powerloss), with a home for jobs on it."""

import os
import subprocess

from cluster import ROOT, Failed, Machine, NotHere

PROGRAM = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "mend-powerloss")
CANNOT_MOUNT = 77


class Disk:
    """An empty disk, mounted on a directory until it is left."""

    def __init__(self, directory):
        self.directory = directory

    def __enter__(self):
        os.makedirs(self.directory, exist_ok=True)
        self.process = subprocess.Popen([PROGRAM, self.directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "mounted\n":
            if self.process.wait() == CANNOT_MOUNT:
                raise NotHere("no disk can be mounted: that takes /dev/fuse and the right to mount")
            raise Failed("mend-powerloss did not start")
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def order(self, *words):
        """An order and its answer; see tests/powerloss/src/main.rs."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if answer in ("", "what?"):
            raise Failed(f"mend-powerloss: {' '.join(map(str, words))}: {answer or 'it is gone'}")
        return answer

    def dead(self):
        return self.order("dead") == "yes"

    def operations(self):
        return int(self.order("count"))


class MachineOnDisk(Machine):
    """This machine with the home of `mend` on a disk of ours."""

    def __init__(self, disk):
        super().__init__()
        # The secret is no part of what is promised, and its file is made with a hard link.
        self.environment["MEND_SECRET_FILE"] = os.path.join(self.home, "secret")
        self.environment["MEND_HOME"] = os.path.join(disk.directory, "home")

    def checkpoints(self, name):
        return os.path.join(self.environment["MEND_HOME"], "jobs", name, "checkpoints")
