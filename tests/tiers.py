"""The tiers of tests: what each runs, as whom, and for how long at the most.

Tests run as an ordinary user, whoever runs them; the tier `root` does as root what only root can. Why each test is where it
is stands in docs/decisions/0035-where-each-test-runs.md.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "vm"))
from rdma import PACKAGES as RDMA_PACKAGES  # noqa: E402

AS_USER = os.path.join(ROOT, "tests", "as_user.py")
RESTORER = "crates/rank/restorer/Cargo.toml"
FUZZ = "fuzz/Cargo.toml"
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
FUZZ_SECONDS = "3"
# Lab tests and those of portable checkpoints wait more than they compute: so many (files, for the latter) run at a time.
LAB_JOBS = 3
# So do some of the tests beside the code, while others compute: so many of their programs run at a time.
PROGRAMS_AT_ONCE = 2


class NotHere(Exception):
    """Why a tier cannot run on this machine."""


@dataclass
class Step:
    """One command. `check`: it counts as one test if it counts none itself. `first`: the others of its tier begin when it is over."""

    command: list
    check: bool = False
    first: bool = False
    directory: str = ROOT
    environment: dict = field(default_factory=dict)


@dataclass
class Tier:
    """`steps` returns the commands, or None where the tier makes no sense (for the reason given); or raises `NotHere`.
    `beside`: it may run beside other such tiers. `at_once`: so many of its steps run at a time."""

    name: str
    about: str
    steps: object
    minutes: int
    not_here: str = ""
    beside: bool = False
    at_once: int = 1


@cache
def drawn_by():
    """The seed of what is drawn, and where it comes from: it is drawn anew with each commit, and again alike for the same one."""
    named = os.environ.get("MEND_TEST_SEED")
    if named:
        return int(named), "MEND_TEST_SEED"
    # The checkout may be another user's.
    head = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    done = subprocess.run(head, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        return 1, f"not the commit's: {(done.stderr.splitlines() or ['git says nothing'])[0]}"
    return int(done.stdout[:7], 16), "the commit's"


def commit_seed():
    return drawn_by()[0]


def is_root():
    return os.geteuid() == 0


def format_steps():
    return [Step(["cargo", "fmt", "--check", *where], check=True)
            for where in (["--all"], ["--manifest-path", RESTORER], ["--manifest-path", FUZZ])]


def clippy_steps():
    """With the profile of all other builds: what the compiler itself runs (macros, build scripts) is built once."""
    deny = ["--", "-D", "warnings"]
    return [
        Step(["cargo", "clippy", "--release", "--locked", "--workspace", "--all-targets", *deny], check=True),
        # Where `make build` has put it.
        Step(["cargo", "clippy", "--release", "--locked", "--target-dir", os.path.join(TARGET, "restorer"), *deny], check=True,
             directory=os.path.join(ROOT, os.path.dirname(RESTORER))),
        # As its targets are built, without which some of what they reach is not public; and what is not Rust is built once for both.
        Step([sys.executable, "fuzz/run.py", "--clippy"], check=True),
    ]


def house_steps():
    tests = [sys.executable, "-m", "unittest", "discover", "--start-directory", "tests/house", "--pattern", "*.py"]
    python = os.path.join(ROOT, os.environ.get("MEND_VENV", ".venv"), "bin", "python3")
    names = Step([python, "-m", "pyflakes", "tests", "benches", "app", "fuzz/run.py"], check=True)
    dependencies = Step([sys.executable, "tests/dependencies.py"])
    # With the features that the whole workspace asks for: what it is built on is built for the tests as well.
    build = Step(["cargo", "build", "--release", "--locked", "--workspace", "--bin", "xtask"], check=True)
    return [build, Step([os.path.join(TARGET, "release", "xtask"), "check"], check=True), names, dependencies, Step(tests)]


def test_programs():
    """The workspace's test programs, built as the product is: target, crate's directory, program."""
    build = ["cargo", "test", "--release", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    done = subprocess.run(build, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return None
    found = []
    for line in done.stdout.splitlines():
        artifact = json.loads(line) if line.startswith("{") else {}
        if artifact.get("executable") and artifact["profile"]["test"]:
            found.append((artifact["target"], os.path.dirname(artifact["manifest_path"]), artifact["executable"]))
    return found


# What commands print is compared with what is on record, and neither is changed; nor is cargo asked where the records are.
SNAPSHOTS = {"INSTA_UPDATE": "no", "INSTA_WORKSPACE_ROOT": ROOT}


def program_steps(as_root):
    """A step for each test program whose crate touches the system (as root), or for each (as an ordinary user)."""
    programs = test_programs()
    if programs is None:
        # Cargo has said why.
        return [Step(["false"], check=True)]
    steps = []
    for target, directory, program in programs:
        crate = os.path.relpath(directory, ROOT)
        if as_root and crate not in ROOT_CRATES and (crate, target["name"]) not in ROOT_PROGRAMS:
            continue
        if as_root or not is_root():
            steps.append(Step([program], directory=directory, environment=SNAPSHOTS))
        elif crate == "crates/rank/agent" and target["kind"] == ["test"]:
            # They build what they need and change to the user for the processes they watch.
            steps.append(Step([program], directory=directory, environment={"MEND_TEST_AS_USER": "1"}))
        else:
            steps.append(Step([AS_USER, program], directory=directory, environment=SNAPSHOTS))
    return steps


def unit_steps():
    return program_steps(as_root=False)


# Crates with tests of what root does otherwise: namespaces without a user namespace, capabilities, networks.
ROOT_CRATES = ("crates/job/lab", "crates/node/daemon", "crates/platform/kernel")
# Programs of other crates in which root sets, mounts or owns what nobody else may.
ROOT_PROGRAMS = tuple(("crates/rank/agent", name) for name in ("attributes", "refusals"))
# Lab tests of the same: starting and moving ranks, refusing other users, private memory, mounts and devices, media that fail,
# control groups.
ROOT_LAB = ("test_run.", "test_migration.", "test_private.", "test_pending_handshakes.", "test_rdma.", "test_many.Room.", "test_slurm.", "test_data_medium.",
            "test_back.Back.", "test_space_queue.", "test_space_of_job.InSlurm.", "test_failover.Power.", "test_failover.Directory.",
            "test_files.Files.test_root_is_told", "test_files.Files.test_files_are_cloned", "test_patterns.Patterns.test_a_mount_that_is_no_rank_s",
            "test_space.Ranks.test_a_mount_outside_of_a_job")


def root_steps():
    if not is_root():
        return None
    lab = [sys.executable, "tests/lab/run.py", "--jobs", str(LAB_JOBS), *ROOT_LAB]
    return [*program_steps(as_root=True), Step(lab, environment=LONGER_LEASE)]


def as_user(command, **settings):
    """A command as an ordinary user, whoever runs this."""
    return Step([AS_USER, *command], environment=settings)


# For tests whose subject is not how long a silent node is waited for: all their nodes share this machine, with other tiers beside them. One that stood
# still for the default of 3 s lost a job in the middle.
LONG_LEASE = {"MEND_LEASE_MS": "20000"}


# Many lab tests lose a node and wait for its lease: longer than the default, but not much. Those whose subject is the lease have one of their own.
LONGER_LEASE = {"MEND_LEASE_MS": "6000"}


def lab_steps():
    return [as_user([sys.executable, "tests/lab/run.py", "--jobs", str(LAB_JOBS)], **LONGER_LEASE)]


def crash_steps():
    return [as_user([sys.executable, "tests/lab/crashes.py", "--seed", str(commit_seed())], **LONG_LEASE)]


def integrity_steps():
    """Mounting a disk takes /dev/fuse, which may be root's; the rest runs as an ordinary user. `make soak` draws more of each."""
    build = ["cargo", "build", "--release", "--locked", "--workspace", "--bin", "mend-powerloss"]
    seed = ["--seed", str(commit_seed())]
    return [
        Step(build, check=True),
        Step([sys.executable, "tests/lab/powerloss.py", "--times", "6", "--faults", "3", *seed], environment=LONG_LEASE),
        Step([sys.executable, "tests/lab/spaceloss.py", "--times", "4", *seed]),
        as_user([sys.executable, "tests/lab/small_files.py", "--files", "500"]),
        as_user([sys.executable, "tests/lab/killpoints.py", "--points", "12", *seed], **LONG_LEASE),
        as_user([sys.executable, "tests/lab/damage.py", "--times", "20", *seed], **LONG_LEASE),
    ]


# `make soak` draws thousands.
EVENTS = "60"
CHAOS_MINUTES = "2"


def event_steps():
    return [as_user([sys.executable, "tests/lab/events.py", "--events", EVENTS, "--seed", str(commit_seed())], **LONG_LEASE)]


def chaos_steps():
    return [as_user([sys.executable, "tests/lab/chaos.py", "--minutes", CHAOS_MINUTES, "--seed", str(commit_seed())])]


def vm_steps():
    """One guest for all of it, since each takes its time to start; its output is counted as one command's."""
    vm = os.path.join(ROOT, "tests", "vm", "vm.py")
    possible = subprocess.run([sys.executable, vm, "--possible"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if possible.returncode:
        raise NotHere(possible.stderr.strip())
    # All of them, as the tier `unit` built them: some alone would be built on other features of their libraries, anew.
    build = ["cargo", "test", "--release", "--locked", "--workspace", "--no-run"]
    packages = [word for name in RDMA_PACKAGES for word in ("--package", name)]
    return [Step(build, check=True), Step([sys.executable, vm, "--minutes", "28", *packages, sys.executable, "tests/vm/inside.py"])]


def fuzz_steps():
    return [Step([sys.executable, "fuzz/run.py", "--seconds", FUZZ_SECONDS])]


# What libmend-app is built with.
APP_NEEDS = (("cmake", "cmake"), ("/usr/include/zlib.h", "zlib1g-dev"), ("/usr/include/xxhash.h", "libxxhash-dev"))


APP_FIRST = ("test_moves.py", "test_tiers.py", "test_moves_under_mend.py", "test_stored.py", "test_chains.py", "test_agreement.py", "test_fortran.py", "test_refusals.py")
# Many of them wait, and not all of them at once.
APP_JOBS = 5


def app_steps():
    """libmend-app, which needs nothing else of Mend. The first time HDF5 is built, which takes two minutes."""
    subprocess.run([os.path.join(ROOT, "tests", "setup.sh"), "app"], stdin=subprocess.DEVNULL, check=False)
    absent = [package for what, package in APP_NEEDS if not os.path.exists(what) and not shutil.which(what)]
    if absent:
        raise NotHere(f"not installed: {', '.join(absent)}")
    python = os.path.join(ROOT, os.environ.get("MEND_VENV", ".venv"), "bin", "python3")
    build = Step(["make", "--no-print-directory", "-C", "app/lib", "tests", f"PYTHON={python}"], check=True, first=True)
    drawn = {"MEND_TEST_SEED": str(commit_seed()), **LONGER_LEASE}
    files = [(where, name) for where in ("app/lib/tests", "app/compiler/tests") for name in os.listdir(os.path.join(ROOT, where)) if fnmatch(name, "test_*.py")]
    # Those that take long, by waiting for nodes and moves, begin first, then the larger ones.
    files.sort(key=lambda file: (APP_FIRST.index(file[1]) if file[1] in APP_FIRST else len(APP_FIRST), -os.path.getsize(os.path.join(ROOT, *file))))
    discover = lambda where, name: [AS_USER, python, "-m", "unittest", "discover", "--start-directory", where, "--pattern", name]
    return [build, *(Step(discover(*file), environment=drawn) for file in files)]


def readme_steps():
    return [as_user([sys.executable, "tests/readme/readme.py"])]


def demo_steps():
    return [Step([sys.executable, "tests/demo/demo.py", "--steps", "1500"], check=True)]


TIERS = [
    Tier("format", "rustfmt", format_steps, 2),
    Tier("clippy", "clippy, warnings denied", clippy_steps, 20),
    Tier("house", "house rules (cargo xtask check), pyflakes, dependencies (cargo-deny), tests of the tests", house_steps, 10),
    Tier("unit", "unit, property and process tests beside the code, as an ordinary user", unit_steps, 40, at_once=PROGRAMS_AT_ONCE),
    Tier("fuzz", "every fuzz target, briefly", fuzz_steps, 15),
    Tier("lab", "real jobs on this machine and on the nodes of a lab, as an ordinary user", lab_steps, 40),
    Tier("root", "what root does otherwise: test programs and real jobs, as root", root_steps, 40, "this is an ordinary user"),
    # Of those that run beside each other the longest begin first.
    Tier("vm", "dirty tracking and jobs on an older kernel, in a virtual machine", vm_steps, 60, beside=True),
    Tier("integrity", "power failures, failing disks, SIGKILL before any system call, damaged checkpoints", integrity_steps, 40, beside=True),
    Tier("chaos", "jobs on nodes that fail in all ways at once, their controllers too", chaos_steps, 30, beside=True),
    Tier("crashes", "SIGKILL at random moments of checkpoints and migrations", crash_steps, 40, beside=True),
    Tier("events", "random checkpoints, migrations and restarts", event_steps, 60, beside=True),
    Tier("app", "libmend-app and mend-cc: portable checkpoints, in C, C++, Fortran and Python", app_steps, 30, at_once=APP_JOBS),
    Tier("readme", "the README's commands, executed", readme_steps, 15),
    Tier("demo", "make demo's script, half as long", demo_steps, 20),
]
