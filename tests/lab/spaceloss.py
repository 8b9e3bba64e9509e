#!/usr/bin/env python3
"""Power failures under the targets of a data space: what was acknowledged is there, and nothing half is seen.

    spaceloss.py [--times N] [--seed S] [--only K]

The three targets of a space are on a disk each (tests/powerloss) that keeps only what was made durable, and of the rest what
a seed says. A worker stages files, gives them second copies and removes them, and writes, changes, cuts, renames and removes
files as ranks do, while the power fails at a random operation of a random disk: of all disks, and everything is killed (even
numbers), or of that disk alone, and the worker goes on (odd ones). What survived is mounted again. Then each file must have
what was acknowledged, whatever was under way must have happened, or not, or in part where POSIX lets it; `mend data repair`
must find nothing that it cannot put right, `mend data check` nothing at all after it, and no byte may be another one then.
"""

import argparse
import json
import os
import pickle
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
from cluster import BIN, MEND, PATIENCE, Failed, Machine, NotHere, Tally  # noqa: E402
from disk import Disk  # noqa: E402

SPACE = "input"
TARGETS = 3
BOOT_ID = "/proc/sys/kernel/random/boot_id"
DAMAGED = 65
# Operations of the worker after a disk came back that was lost alone.
GOES_ON = 6


def content(seed, length):
    return random.Random(seed).randbytes(length)


# The worker, a process of its own.


class Worker:
    """Does what a seed says to files whose state is known, and tells before and after each step."""

    def __init__(self, seed, known):
        import mend_data
        self.draw = random.Random(seed)
        self.space = mend_data.Space(SPACE)
        # By path: whether it was staged, and its length.
        self.known = known
        self.made = 0

    def tell(self, **what):
        print(json.dumps(what), flush=True)

    def some(self, staged):
        return sorted(path for path, (is_staged, _) in self.known.items() if is_staged == staged)

    def new_path(self, what):
        self.made += 1
        return f"{self.draw.choice(['', 'below/', 'below/further/'])}{what}-{os.getpid()}-{self.made}"

    def command(self, verb, *words):
        done = subprocess.run([MEND, "data", verb, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(0, f"exit code {done.returncode}: {done.stderr}")

    def step(self):
        written, staged, draw = self.some(False), self.some(True), self.draw
        steps = ["put", "put", "stage"] + ["change", "change", "cut", "rename", "replace", "unlink"] * (len(written) > 3) + ["replicate", "rm"] * (len(staged) > 1)
        kind = draw.choice(steps)
        words = {"step": kind, "seed": draw.randrange(1 << 40)}
        if kind in ("put", "stage"):
            words |= {"path": self.new_path(kind), "length": draw.choice([1, 700, 65536, 200_001, draw.randrange(1, 300_000)])}
        elif kind in ("replicate", "rm"):
            words["path"] = draw.choice(staged)
        else:
            words["path"] = draw.choice(written)
            length = self.known[words["path"]][1]
            if kind == "change":
                words |= {"at": draw.randrange(length + 70_000), "length": draw.choice([1, 5000, 70_000])}
            elif kind == "cut":
                words["length"] = draw.randrange(length + 70_000)
            elif kind == "rename":
                words["to"] = self.new_path("renamed")
            elif kind == "replace":
                words["to"] = draw.choice([path for path in written if path != words["path"]])
        paths = [words[name] for name in ("path", "to") if name in words]
        before = {path: self.known.pop(path) for path in paths if path in self.known}
        self.tell(**words)
        try:
            after = getattr(self, kind)(words, before)
        except OSError as error:
            self.tell(failed=str(error))
            return
        self.known.update(after)
        self.tell(done=True)

    def put(self, words, _):
        bytes_ = content(words["seed"], words["length"])
        with self.space.open(words["path"], os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            for at in range(0, len(bytes_), 90_000):
                file.write(bytes_[at:at + 90_000])
            file.sync()
        return {words["path"]: (False, words["length"])}

    def change(self, words, before):
        with self.space.open(words["path"], os.O_WRONLY) as file:
            file.seek(words["at"])
            file.write(content(words["seed"], words["length"]))
        return {words["path"]: (False, max(before[words["path"]][1], words["at"] + words["length"]))}

    def cut(self, words, _):
        with self.space.open(words["path"], os.O_WRONLY) as file:
            file.truncate(words["length"])
            file.sync()
        return {words["path"]: (False, words["length"])}

    def rename(self, words, before):
        self.space.rename(words["path"], words["to"])
        return {words["to"]: before[words["path"]]}

    replace = rename

    def unlink(self, words, _):
        self.space.unlink(words["path"])
        return {}

    def stage(self, words, _):
        source = os.path.join(os.environ["SOURCES"], words["path"].replace("/", "-"))
        with open(source, "wb") as file:
            file.write(content(words["seed"], words["length"]))
        self.command("stage", f"file://{source}", f"{SPACE}:{words['path']}")
        return {words["path"]: (True, words["length"])}

    def replicate(self, words, before):
        self.command("replicate", f"{SPACE}:{words['path']}")
        return before

    def rm(self, words, _):
        self.command("rm", f"{SPACE}:{words['path']}")
        return {}


def work(seed):
    worker = Worker(seed, {path: tuple(about) for path, about in json.loads(sys.stdin.readline()).items()})
    # The other side says when it is enough by closing it.
    while not select.select([sys.stdin], [], [], 0)[0]:
        worker.step()


def read_all():
    """All files of the space, to standard output: their bytes by their paths, or why they cannot be read."""
    import mend_data
    space, found, ahead = mend_data.Space(SPACE), {}, [""]
    while ahead:
        directory = ahead.pop()
        for name, about in space.list(directory).items():
            path = f"{directory}/{name}".lstrip("/")
            if about["type"] == "directory":
                ahead.append(path)
                continue
            try:
                with space.open(path) as file:
                    found[path] = file.readall()
            except OSError as error:
                found[path] = str(error)
    pickle.dump(found, sys.stdout.buffer)


# The test.


@dataclass
class State:
    """What a path may have: each byte as it was before or as it is to be after what was done last, and a length between both."""

    old: bytes
    new: bytes
    staged: bool = False
    may_be_absent: bool = False

    @classmethod
    def settled(cls, bytes_, staged=False):
        return cls(bytes_, bytes_, staged)

    def is_unfinished(self, found):
        """It was being made, and some of its targets have never heard of it. Nobody was told that it is there."""
        return isinstance(found, str) and self.may_be_absent and not self.old and "it does not know this file" in found

    def wrong(self, found):
        if found is None:
            return None if self.may_be_absent else "it is not there"
        if isinstance(found, str):
            return f"it cannot be read: {found}"
        if self.staged:
            return None if found == self.new else "it has other bytes"
        lengths = sorted([len(self.old), len(self.new)])
        if not lengths[0] <= len(found) <= lengths[1]:
            return f"it has {len(found)} bytes instead of {' to '.join(map(str, lengths))}"
        old, new = (side[:len(found)].ljust(len(found), b"\0") for side in (self.old, self.new))
        if found in (old, new):
            return None
        either = (at for at, byte in enumerate(found) if byte not in (old[at], new[at], 0 if at >= len(self.old) else old[at]))
        at = next(either, None)
        return None if at is None else f"byte {at} of {len(found)} is neither as it was nor as it was written"


class Model:
    """What the space may have, by the steps that were told."""

    def __init__(self):
        self.states = {}
        self.under_way = None
        # Of these either the first or the second happened: paths with their states.
        self.either = []
        self.failed = []

    def hear(self, told):
        if "step" in told:
            self.under_way = told
        elif "done" in told:
            self.do(self.under_way)
            self.under_way = None
        else:
            self.failed.append(f"{self.under_way['step']}: {told['failed']}")
            self.give_up()

    def effect(self, words):
        """What a step makes of the states: by path, the new one (None: gone)."""
        kind, path = words["step"], words["path"]
        if kind in ("put", "stage"):
            return {path: State.settled(content(words["seed"], words["length"]), kind == "stage")}
        if kind == "replicate":
            return {}
        if kind in ("unlink", "rm"):
            return {path: None}
        old = self.states[path].new
        if kind in ("rename", "replace"):
            return {path: None, words["to"]: State.settled(old)}
        if kind == "cut":
            return {path: State.settled(old[:words["length"]].ljust(words["length"], b"\0"))}
        at, more = words["at"], content(words["seed"], words["length"])
        return {path: State.settled(old[:at].ljust(at, b"\0") + more + old[at + len(more):])}

    def do(self, words):
        for path, state in self.effect(words).items():
            if state is None:
                self.states.pop(path, None)
            else:
                self.states[path] = state

    def give_up(self):
        """What is under way is not acknowledged any more."""
        words, self.under_way = self.under_way, None
        if words is None:
            return
        effect = self.effect(words)
        if words["step"] in ("rename", "replace"):
            before = {path: self.states.pop(path, None) for path in effect}
            self.either.append((before, effect))
            return
        for path, state in effect.items():
            before = self.states.get(path)
            if before is None:
                # Staged files are whole when they are seen. Others may have any part of it.
                self.states[path] = State(b"", state.new, state.staged, may_be_absent=True)
            elif state is None:
                before.may_be_absent = True
            else:
                self.states[path] = State(before.new, state.new)

    def compare(self, found, what, repaired):
        """What was read is as it may be. From here on it is what counts."""
        found = {path: bytes_ for path, bytes_ in found.items() if repaired or path not in self.states or not self.states[path].is_unfinished(bytes_)}
        left = {path: state for path, state in self.states.items() if path not in found and state.may_be_absent and not repaired}
        for before, after in self.either:
            wrong = [[f"{path}: {why}" for path, state in side.items()
                      if (why := state.wrong(found.get(path)) if state else path in found and "it is there")] for side in (before, after)]
            if all(wrong):
                raise Failed(f"{what}: neither as before a rename ({wrong[0]}) nor as after it ({wrong[1]})")
            self.states.update({path: state for path, state in (after if wrong[0] else before).items() if state})
        self.either = []
        for path, state in self.states.items():
            why = state.wrong(found.get(path))
            if why:
                raise Failed(f"{what}: {path}: {why}")
        unknown = found.keys() - self.states.keys()
        if unknown:
            raise Failed(f"{what}: {sorted(unknown)} should not be there")
        self.states = {path: State.settled(found[path], state.staged) for path, state in self.states.items() if path in found} | left

    def known(self):
        return {path: (state.staged, len(state.new)) for path, state in self.states.items()}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def processes(word):
    """Processes of `mend-space target` that have this word."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[1:2] == ["target"] and word in words:
            found.append(int(pid))
    return found


class Space:
    """The space, with its disks, its daemon and what works in it."""

    def __init__(self, machine, disks, work_directory, boot):
        self.machine, self.disks, self.boot = machine, disks, boot
        self.places = [os.path.join(disk.directory, "target") for disk in disks]
        self.directory = work_directory
        sources = os.path.join(work_directory, "sources")
        os.makedirs(sources)
        # The machine is busy with other tests: nothing is to be taken for lost that is only slow.
        self.settings = {"MEND_PORT": str(free_port()), "MEND_SPACE_TIMEOUT_MS": "3000", "MEND_HEALTH": "off"}
        self.machine.environment |= {**self.settings, "SOURCES": sources, "PYTHONPATH": os.path.join(BIN, "python")}
        self.daemon = None
        self.worker = None
        self.boots = 0
        self.start_node()

    def start_node(self):
        """A node that is started has another boot."""
        self.boots += 1
        with open(self.boot, "w", encoding="ascii") as file:
            file.write(f"boot {self.boots}\n")

    def start_daemon(self):
        ready, tell = os.pipe()
        command = [os.path.join(BIN, "mendd"), "--listen", f"127.0.0.1:{self.settings['MEND_PORT']}", "--name", "node", "--ready-fd", str(tell)]
        with open(os.path.join(self.directory, "mendd.log"), "ab") as log:
            self.daemon = subprocess.Popen(command, env=self.machine.environment, pass_fds=[tell], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        os.close(tell)
        came = select.select([ready], [], [], PATIENCE)[0] and os.read(ready, 64)
        os.close(ready)
        if not came:
            raise Failed("mendd does not start")

    def data(self, *words, codes=(0,)):
        done = self.machine.mend("data", *words)
        if done.returncode not in codes:
            raise Failed(f"mend data {' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def begin(self):
        self.start_daemon()
        self.data("create", SPACE, "--stripe", "128K", *(word for place in self.places for word in ("--target", f"localhost:{place}")))

    def start_worker(self, seed, known):
        command = [sys.executable, os.path.abspath(__file__), "--work", str(seed)]
        log = open(os.path.join(self.directory, "worker.log"), "ab")
        self.worker = subprocess.Popen(command, env=self.machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        log.close()
        self.worker.stdin.write(json.dumps(known).encode() + b"\n")
        self.worker.stdin.flush()
        self.heard = b""

    def hear(self, model, seconds):
        """What the worker has told meanwhile; how many steps it ended."""
        ended = 0
        while select.select([self.worker.stdout], [], [], seconds)[0]:
            more = os.read(self.worker.stdout.fileno(), 1 << 16)
            if not more:
                break
            *lines, self.heard = (self.heard + more).split(b"\n")
            for line in lines:
                told = json.loads(line)
                model.hear(told)
                ended += "step" not in told
            seconds = 0
        return ended

    def end_worker(self, model, kill):
        if kill:
            os.killpg(self.worker.pid, signal.SIGKILL)
        self.worker.stdin.close()
        try:
            self.worker.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.worker.pid, signal.SIGKILL)
            raise Failed(f"a step does not end: {model.under_way}") from None
        self.hear(model, 0)
        self.worker.stdout.close()
        code, self.worker = self.worker.returncode, None
        if not kill and code:
            with open(os.path.join(self.directory, "worker.log"), encoding="utf-8") as log:
                raise Failed(f"the worker ended with {code}: {log.read()[-2000:]}")

    def kill(self, place):
        """The target's process; it is gone when this returns."""
        while found := processes(place):
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.005)

    def kill_daemon(self):
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None

    def end(self):
        if self.worker:
            os.killpg(self.worker.pid, signal.SIGKILL)
            self.worker.wait()
        self.kill_daemon()
        for place in self.places:
            self.kill(place)

    def read(self):
        done = subprocess.run([sys.executable, os.path.abspath(__file__), "--read"], env=self.machine.environment, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=PATIENCE, check=False)
        if done.returncode:
            raise Failed(f"the space cannot be listed: {done.stderr.decode()}")
        return pickle.loads(done.stdout)

    def verify(self, model, what):
        """All is there, and sound once it is repaired."""
        model.give_up()
        model.compare(self.read(), what, repaired=False)
        checked = self.data("check", f"{SPACE}:", codes=(0, DAMAGED))
        if checked.returncode:
            self.data("repair", f"{SPACE}:")
            self.data("check", f"{SPACE}:")
        model.compare(self.read(), f"{what}, repaired", repaired=True)
        return checked.returncode


def one_loss(number, seed, boot, work_directory, lie=False):
    """Several losses of one space."""
    directory = os.path.join(work_directory, f"{'lie' if lie else 'loss'}-{number}")
    os.makedirs(directory)
    with Disk(os.path.join(directory, "a")) as a, Disk(os.path.join(directory, "b")) as b, Disk(os.path.join(directory, "c")) as c, Machine() as machine:
        space = Space(machine, [a, b, c], directory, boot)
        try:
            told = losses(space, number, seed, lie)
        finally:
            space.end()
    shutil.rmtree(directory, ignore_errors=True)
    return told


def losses(space, number, seed, lie):
    draw = random.Random(f"{seed}/{number}")
    what = f"seed {seed} loss {number}"
    model, told = Model(), []
    space.begin()
    if lie:
        for disk in space.disks:
            disk.order("lie")
    for cycle in range(draw.choice([2, 3])):
        alone = number % 2 == 1 and not (lie and cycle == 0)
        victim = draw.randrange(TARGETS)
        space.start_worker(draw.randrange(1 << 40), model.known())
        steps = 0
        # So many steps go well first.
        wanted = draw.randrange(2, 12)
        until = time.monotonic() + PATIENCE
        while steps < wanted and time.monotonic() < until:
            steps += space.hear(model, 0.1)
        space.disks[victim].order("cut", draw.randrange(60))
        while not space.disks[victim].dead():
            if time.monotonic() > until:
                raise Failed(f"{what}: the power does not fail")
            steps += space.hear(model, 0.002)
        lost = [victim] if alone else range(TARGETS)
        for at in lost:
            space.disks[at].order("cut", 0)
        if not alone:
            space.end_worker(model, kill=True)
            space.kill_daemon()
        space.start_node()
        for at in lost:
            space.kill(space.places[at])
            space.disks[at].order("restore", draw.randrange(1 << 32))
            if lie:
                space.disks[at].order("lie")
        if alone:
            goes_on = 0
            while goes_on < GOES_ON and time.monotonic() < until:
                goes_on += space.hear(model, 0.1)
            steps += goes_on
            space.end_worker(model, kill=False)
        else:
            space.start_daemon()
        found = space.verify(model, f"{what}, cycle {cycle}")
        told.append(f"{steps} steps, {'one disk' if alone else 'all disks'}{', repaired' if found else ''}")
    failed = f"; {len(model.failed)} steps failed, the first one: {model.failed[0]}" if model.failed else ""
    return f"{what}: {'; '.join(told)}{failed}: all is there"


def lies_are_noticed(seed, boot, work_directory):
    """On disks whose fsync does nothing, this very test must fail: so it would notice one that is missing."""
    for number in range(0, 20, 2):
        try:
            one_loss(number, seed, boot, work_directory, lie=True)
        except Failed:
            return f"disks that lie about fsync are noticed at loss {number}"
    raise Failed("10 losses on disks that lie about fsync, and nothing was noticed")


def own_boot_id(path):
    """From here on the file's content is the node's boot."""
    with open(path, "w", encoding="ascii") as file:
        file.write("boot 0\n")
    done = subprocess.run(["mount", "--bind", path, BOOT_ID], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotHere(f"no boot of its own can be had: {done.stderr.strip()}")
    return "the node can be started anew, as far as targets can tell"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only the loss of this number")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        return read_all()
    if arguments.work is not None:
        return work(arguments.work)
    if not arguments.inside:
        # In mounts of its own, or all of this machine would have another boot.
        os.execvp("unshare", ["unshare", "--mount", sys.executable, os.path.abspath(__file__), "--inside", *sys.argv[1:]])
    work_directory = tempfile.mkdtemp(prefix="mend-spaceloss-")
    boot = os.path.join(work_directory, "boot_id")
    numbers = range(arguments.times) if arguments.only is None else [arguments.only]
    cases = [lambda number=number: one_loss(number, arguments.seed, boot, work_directory) for number in numbers]
    if arguments.only is None:
        cases.append(lambda: lies_are_noticed(arguments.seed, boot, work_directory))
    tally = Tally()
    tally.run([lambda: own_boot_id(boot), *cases])
    subprocess.run(["umount", BOOT_ID], capture_output=True, check=False)
    return tally.end(work_directory)


if __name__ == "__main__":
    sys.exit(main())
