#!/usr/bin/env python3
"""Runs the tiers of tests in order, each to its end whatever the others said, and sums up what they counted.

    run.py [TIER...]        all tiers, or those named
    run.py --list

A tier is a list of commands. What passed and failed is read from their output: cargo's "test result:" lines and how many
test programs failed without one, unittest's "Ran N tests", and our own scripts' "N passed, N failed"; a command of a tier
that only checks counts as one test. A command that fails without saying how many of its tests did counts as one failure,
and so do a tier that ran no test and one that outlives its time. Nothing is tried twice: a test that fails now and then
is a bug to be found.

What was skipped on this machine is named with its reason at the end: lines of the output that begin with "skipped: ". After
it comes what failed, in the failed commands' own words, so that whoever sees the end of the output alone knows it.
Each tier's output also goes to target/test-logs/TIER.log. The last line is "N passed, N failed"; exit code 0 only if
nothing failed.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "vm"))
from rdma import PACKAGES as RDMA_PACKAGES
LOGS = os.path.join(ROOT, "target", "test-logs")
AS_USER = os.path.join(ROOT, "tests", "as_user.py")
RESTORER = "crates/rank/restorer/Cargo.toml"
FUZZ = "fuzz/Cargo.toml"
FUZZ_SECONDS = "5"
# How long a process may outlive the command that started it.
LEAVING_SECONDS = 10


@dataclass
class Count:
    passed: int = 0
    failed: int = 0

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed


CARGO = re.compile(r"^test result: (\w+)\. (\d+) passed; (\d+) failed;")
CARGO_TARGETS = re.compile(r"^error: (\d+) targets? failed:$")
OURS = re.compile(r"^(\d+) passed, (\d+) failed(?:, \d+ skipped)?$")
# What a passing test did not show on this machine, and why.
SKIPPED = re.compile(r"^skipped: (.+)$")
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ")
UNITTEST_FAILED = re.compile(r"^FAILED \((?:failures=(\d+))?(?:, )?(?:errors=(\d+))?")
# Which test failed, and why: cargo's names, panics (the reason is on the next line), how a test program ended; unittest's names and exceptions.
TELLING = re.compile(r"test .* \.\.\. FAILED$|thread '.*' .*panicked at|\s+process didn't exit successfully: |(FAIL|ERROR): |[\w.]*(Error|Exception|Failed)\b.*: |fatal ")
# Lines of a failed command that are repeated at the end.
REPEATED = 40


def count_lines(lines):
    """What the lines of one command's output say about tests. unittest's own count yields to a summary line of ours."""
    count, ran, failed, told = Count(), 0, 0, 0
    for line in lines:
        if match := CARGO.match(line):
            told += match[1] == "FAILED"
            count.add(Count(int(match[2]), int(match[3])))
        elif match := OURS.match(line):
            count.add(Count(int(match[1]), int(match[2])))
        elif match := CARGO_TARGETS.match(line):
            # Test programs that died say nothing.
            count.add(Count(0, max(0, int(match[1]) - told)))
        elif match := UNITTEST_RAN.match(line):
            ran += int(match[1])
        elif match := UNITTEST_FAILED.match(line):
            failed += int(match[1] or 0) + int(match[2] or 0)
    return Count(ran - failed, failed) if ran and count == Count() else count


def judge(count, code, check):
    """The count of one command from its output's count, its exit code, and whether it is a mere check."""
    if check and count == Count():
        return Count(1, 0) if code == 0 else Count(0, 1)
    if code != 0 and count.failed == 0:
        return Count(count.passed, 1)
    return count


def telling(lines):
    """What a failed command's output says about its failures; its last lines if it says nothing that is known."""
    at = [number for number, line in enumerate(lines) if TELLING.match(line)]
    reasons = {number + 1 for number in at if "panicked at" in lines[number]}
    chosen = [lines[number] for number in sorted({*at, *reasons}) if number < len(lines)]
    return chosen[:REPEATED] or [line for line in lines if line.strip()][-REPEATED // 2:]


@dataclass
class Step:
    """One command. `check`: it counts as one test if it counts none itself."""

    command: list
    check: bool = False
    directory: str = ROOT
    environment: dict = field(default_factory=dict)


class Ending:
    """Ctrl-C and SIGTERM: the step that runs ends first, at the second one at once."""

    asked = 0
    process = None

    @classmethod
    def listen(cls):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, cls.ask)

    @classmethod
    def ask(cls, *_):
        cls.asked += 1
        cls.pass_on()

    @classmethod
    def pass_on(cls):
        if cls.asked and cls.process and cls.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(cls.process.pid, signal.SIGTERM if cls.asked == 1 else signal.SIGKILL)


def ended(process):
    """The exit code of a process, when it has ended. Python sees a signal that comes just before a wait only after it, so none is without end."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(1)


def stream(step, log, deadline):
    """Runs a step, copies its output to ours and to the log, and returns its lines and its exit code (None: too long)."""
    environment = {**os.environ, **step.environment}
    process = subprocess.Popen(
        step.command, cwd=step.directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    Ending.process = process
    Ending.pass_on()
    late = threading.Event()

    def stop():
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(max(1, deadline - time.monotonic()), stop)
    timer.daemon = True
    timer.start()
    lines = []

    def copy():
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            for sink in (sys.stdout, log):
                sink.write(line)
                sink.flush()

    copying = threading.Thread(target=copy, daemon=True)
    copying.start()
    try:
        code = ended(process)
        copying.join(LEAVING_SECONDS)
        if copying.is_alive():
            print(f"left behind: a process that still holds the output of {step.command[0]}", flush=True)
            code = code or 1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            copying.join(LEAVING_SECONDS)
    finally:
        timer.cancel()
    if Ending.asked:
        # What the step started may have taken no notice.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        sys.exit("ended before all tests had run")
    return lines, None if late.is_set() else code


def is_root():
    return os.geteuid() == 0


def format_steps():
    return [Step(["cargo", "fmt", "--check", *where], check=True)
            for where in (["--all"], ["--manifest-path", RESTORER], ["--manifest-path", FUZZ])]


def clippy_steps():
    deny = ["--", "-D", "warnings"]
    return [
        Step(["cargo", "clippy", "--locked", "--workspace", "--all-targets", *deny], check=True),
        Step(["cargo", "clippy", "--locked", *deny], check=True, directory=os.path.join(ROOT, os.path.dirname(RESTORER))),
        # As its targets are built, without which some of what they reach is not public.
        Step(["cargo", "clippy", "--locked", "--all-targets", *deny], check=True, directory=os.path.join(ROOT, os.path.dirname(FUZZ)),
             environment={"RUSTFLAGS": "--cfg fuzzing"}),
    ]


def house_steps():
    tests = [sys.executable, "-m", "unittest", "discover", "--start-directory", "tests/house", "--pattern", "*.py"]
    python = os.path.join(ROOT, os.environ.get("MEND_VENV", ".venv"), "bin", "python3")
    names = Step([python, "-m", "pyflakes", "tests", "benches", "fuzz/run.py"], check=True)
    return [Step(["cargo", "xtask", "check"], check=True), names, Step(tests)]


def unit_steps():
    return [Step(["cargo", "test", "--locked", "--workspace", "--no-fail-fast"])]


# Test programs that explore models: whoever runs them.
MODELS = {"protocol"}


def user_steps():
    """The test programs of the crates that touch the system, once more as an ordinary user."""
    if not is_root():
        return None
    build = ["cargo", "test", "--locked", "--workspace", "--no-run", "--message-format=json"]
    done = subprocess.run(build, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    steps = []
    for line in done.stdout.splitlines():
        artifact = json.loads(line) if line.startswith("{") else {}
        manifest = artifact.get("manifest_path", "")
        if not artifact.get("executable") or not artifact["profile"]["test"]:
            continue
        target, program, directory = artifact["target"], artifact["executable"], os.path.dirname(manifest)
        if "/crates/model/" in manifest or "/xtask/" in manifest or target["name"] in MODELS:
            continue
        if "/crates/rank/agent/" in manifest and target["kind"] == ["test"]:
            # They build what they need and change to the user for the processes they watch.
            steps.append(Step([program], directory=directory, environment={"MEND_TEST_AS_USER": "1"}))
        else:
            steps.append(Step([AS_USER, program], directory=directory))
    return steps


def as_user(command):
    """A command as an ordinary user, whoever runs this."""
    return Step([AS_USER, *command])


def lab_steps():
    return [Step([sys.executable, "tests/lab/run.py"])]


def lab_user_steps():
    return [as_user([sys.executable, "tests/lab/run.py"])] if is_root() else None


def crash_steps():
    return [Step([sys.executable, "tests/lab/crashes.py"])]


def integrity_steps():
    """Mounting a disk takes /dev/fuse, which may be root's; the rest runs as an ordinary user."""
    # With what the unit tests were built of.
    build = ["cargo", "build", "--locked", "--workspace", "--bin", "mend-powerloss"]
    return [
        Step(build, check=True),
        Step([sys.executable, "tests/lab/powerloss.py"]),
        as_user([sys.executable, "tests/lab/killpoints.py"]),
        as_user([sys.executable, "tests/lab/damage.py"]),
    ]


def event_steps():
    return [as_user([sys.executable, "tests/lab/events.py"])]


def vm_steps():
    """One guest for all of it, since each takes its time to start; its output is counted as one command's."""
    vm = os.path.join(ROOT, "tests", "vm", "vm.py")
    possible = subprocess.run([sys.executable, vm, "--possible"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if possible.returncode:
        raise NotHere(possible.stderr.strip())
    build = ["cargo", "test", "--release", "--locked", "--no-run", "-p", "mend-kernel", "-p", "mend-agent", "-p", "mend-fabric"]
    packages = [word for name in RDMA_PACKAGES for word in ("--package", name)]
    return [Step(build, check=True), Step([sys.executable, vm, "--minutes", "28", *packages, sys.executable, "tests/vm/inside.py"])]


def loom_steps():
    """The rings' own code, built on the model checker's atomics, which needs a build of its own."""
    command = ["cargo", "test", "--locked", "--release", "-p", "mend-fabric", "--lib", "--target-dir", os.path.join(ROOT, "target", "loom"),
               "ring::modelled"]
    return [Step(command, environment={"RUSTFLAGS": "--cfg loom"})]


def fuzz_steps():
    return [Step([sys.executable, "fuzz/run.py", "--seconds", FUZZ_SECONDS])]


def readme_steps():
    return [as_user([sys.executable, "tests/readme/readme.py"])]


def demo_steps():
    return [Step([sys.executable, "tests/demo/demo.py", "--steps", "1500"], check=True)]


class NotHere(Exception):
    """Why a tier cannot run on this machine."""


@dataclass
class Tier:
    """`steps` returns the commands, or None where the tier makes no sense (for the reason given); or raises `NotHere`."""

    name: str
    about: str
    steps: object
    minutes: int
    not_here: str = ""


TIERS = [
    Tier("format", "rustfmt", format_steps, 2),
    Tier("clippy", "clippy, warnings denied", clippy_steps, 20),
    Tier("house", "house rules (cargo xtask check), pyflakes, tests of the tests", house_steps, 10),
    Tier("unit", "unit, property and process tests beside the code", unit_steps, 40),
    Tier("user", "the same as an ordinary user", user_steps, 20, "this is an ordinary user already"),
    Tier("lab", "real jobs on this machine and on the nodes of a lab", lab_steps, 40),
    Tier("lab-user", "the same as an ordinary user", lab_user_steps, 40, "this is an ordinary user already"),
    Tier("crashes", "SIGKILL at random moments of checkpoints and migrations", crash_steps, 40),
    Tier("integrity", "power failures, failing disks, SIGKILL before any system call, damaged checkpoints", integrity_steps, 20),
    Tier("events", "200 random checkpoints, migrations and restarts, as an ordinary user", event_steps, 90),
    Tier("loom", "the shared-memory rings, in every order two threads can run", loom_steps, 10),
    Tier("vm", "dirty tracking and jobs on an older kernel, in a virtual machine", vm_steps, 40),
    Tier("fuzz", "every fuzz target, briefly", fuzz_steps, 15),
    Tier("readme", "the README's commands, executed", readme_steps, 10),
    Tier("demo", "make demo's script, half as long", demo_steps, 15),
]


@dataclass
class Remarks:
    """What is said at the end."""

    skipped: list = field(default_factory=list)
    failed: list = field(default_factory=list)

    def print(self):
        for title, lines in ((f"skipped: {len(self.skipped)}", self.skipped), ("failed", self.failed)):
            if lines:
                print("\n".join([f"\n=== {title}", *lines]))


def run_tier(tier, remarks):
    """The tier's count, or None if it is skipped."""
    print(f"\n=== {tier.name}: {tier.about}", flush=True)
    try:
        steps, reason = tier.steps(), tier.not_here
    except NotHere as missing:
        steps, reason = None, missing
    if steps is None:
        print(f"skipped: {reason}")
        remarks.skipped.append(f"{tier.name}: all of it: {reason}")
        return None
    total, deadline = Count(), time.monotonic() + 60 * tier.minutes
    with open(os.path.join(LOGS, f"{tier.name}.log"), "w", encoding="utf-8") as log:
        for step in steps:
            shown = " ".join(os.path.relpath(word, ROOT) if word.startswith(ROOT + "/") else word for word in step.command)
            print(f"--- {shown}", flush=True)
            try:
                lines, code = stream(step, log, deadline)
            except OSError as error:
                print(f"{shown}: {error}")
                lines, code = [str(error)], 127
            remarks.skipped += [f"{tier.name}: {match[1]}" for match in map(SKIPPED.match, lines) if match]
            if code is None:
                late = f"stopped: the tier's {tier.minutes} minutes are over"
                print(late)
                count = Count(count_lines(lines).passed, count_lines(lines).failed + 1)
                lines.append(late)
            else:
                count = judge(count_lines(lines), code, step.check)
            total.add(count)
            if count.failed:
                remarks.failed += [f"{tier.name}: {shown}: exit code {code}", *(f"    {line}" for line in telling(lines))]
            if code is None:
                break
    if total == Count():
        print("no test ran: that is a failure")
        remarks.failed.append(f"{tier.name}: no test ran")
        total.failed = 1
    return total


def main():
    names = [tier.name for tier in TIERS]
    wanted = sys.argv[1:]
    if wanted == ["--list"]:
        print("\n".join(f"{tier.name:10} {tier.about}" for tier in TIERS))
        return 0
    unknown = [name for name in wanted if name not in names]
    if unknown:
        print(f"no such tier: {', '.join(unknown)}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    Ending.listen()
    os.umask(0o022)
    os.makedirs(LOGS, exist_ok=True)
    rows, total, remarks = [], Count(), Remarks()
    for tier in TIERS:
        if wanted and tier.name not in wanted:
            continue
        start = time.monotonic()
        count = run_tier(tier, remarks)
        rows.append((tier.name, count, time.monotonic() - start))
        total.add(count or Count())
    print("\n=== summary")
    for name, count, seconds in rows:
        said = f"{count.passed} passed, {count.failed} failed" if count else "skipped"
        print(f"{name:10} {said:28} {seconds:6.0f} s")
    remarks.print()
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
