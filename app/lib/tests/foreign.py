#!/usr/bin/env python3
"""Checkpoints of one machine on others: aarch64, s390x (big-endian) and i386 beside this one, under qemu's user mode; each reads what each wrote.

HDF5 and libmend-app are built for each with Debian's cross compilers, statically, so that no foreign library is needed. As root the compilers and qemu are
installed. What can't be had is skipped, and said. `make conformance` runs this.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.dirname(HERE)
ROOT = os.path.dirname(os.path.dirname(LIBRARY))
# Name, compiler, emulator (None: runs as it is), Debian's packages, bits of a long double's mantissa, bytes of a long.
MACHINES = (
    ("x86_64", "gcc", None, (), 64, 8),
    ("aarch64", "aarch64-linux-gnu-gcc", "qemu-aarch64", ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"), 113, 8),
    ("s390x", "s390x-linux-gnu-gcc", "qemu-s390x", ("gcc-s390x-linux-gnu", "libc6-dev-s390x-cross"), 113, 8),
    ("i386", "i686-linux-gnu-gcc", "qemu-i386", ("gcc-i686-linux-gnu", "libc6-dev-i386-cross"), 64, 4),
)
# What a run that goes on elsewhere may differ by, relative to the value (README.md, Limits).
TOLERANCE = 1e-12
counts = {"passed": 0, "failed": 0}


def check(what, good, output=""):
    counts["passed" if good else "failed"] += 1
    if not good:
        print(f"failed: {what}\n{output}", flush=True)


def install():
    wanted = sorted({package for _, compiler, emulator, packages, _, _ in MACHINES for package in packages if not shutil.which(compiler)}
                    | {"qemu-user" for _, _, emulator, *_ in MACHINES if emulator and not shutil.which(emulator)})
    if wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=environment, stdin=subprocess.DEVNULL, check=False)
        subprocess.run(["apt-get", "install", "--yes", "--no-install-recommends", "-qq", *wanted], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


def build(name, compiler):
    """The program `values`, or why there is none."""
    out = os.path.join(ROOT, "target", "app" if name == "x86_64" else os.path.join("app-foreign", name))
    command = ["make", "--no-print-directory", "-C", LIBRARY, f"OUT={out}", "values"]
    if name != "x86_64":
        # Without zlib, which isn't there for these machines, and quickly.
        command += [f"CC={compiler}", "ZLIB=", f"HDF5_CMAKE=-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={name} -DCMAKE_C_FLAGS_RELEASE=-O0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return os.path.join(out, "tests", "values"), done.returncode, done.stdout[-2000:] + done.stderr[-4000:]


def computed(output):
    """What a run has computed, and its steps; empty: it hasn't come to its end."""
    line = re.search(r"^values computed (\S+) (\S+) after (\d+) steps$", output, re.M)
    return [float(value) for value in line.groups()] if line else []


def main():
    install()
    programs = {}
    for name, compiler, emulator, packages, digits, long_bytes in MACHINES:
        absent = [what for what in (compiler, emulator) if what and not shutil.which(what)]
        if absent:
            print(f"skipped: checkpoints on {name}: there is no {', '.join(absent)} (apt-get install qemu-user {' '.join(packages)})", flush=True)
            continue
        program, code, output = build(name, compiler)
        check(f"builds for {name}", code == 0, output)
        if code == 0:
            programs[name] = ([emulator] if emulator else []) + [program], digits, long_bytes

    def run(name, *arguments, **settings):
        environment = {**{key: value for key, value in os.environ.items() if not key.startswith("MEND_APP_")}, **settings}
        done = subprocess.run([*programs[name][0], *arguments], cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300)
        return done.returncode, done.stdout + done.stderr

    with tempfile.TemporaryDirectory() as directory:
        for writer in programs:
            for command, what in (("write", "all"), ("write", "long"), ("write", "third"), ("run", "120")):
                code, output = run(writer, command, what, MEND_APP_DIRECTORY=f"{writer}-{what}")
                check(f"{writer} writes {what}", code == 0 and os.path.isdir(os.path.join(directory, f"{writer}-{what}")), output)
        expected = computed(run(next(iter(programs)), "run", "-1", MEND_APP_DIRECTORY="undisturbed")[1])
        for writer, reader in itertools.product(programs, repeat=2):
            restored = {}
            for what in ("all", "long", "third"):
                copy = f"{writer}-{what}-{reader}"
                shutil.copytree(os.path.join(directory, f"{writer}-{what}"), os.path.join(directory, copy))
                restored[what] = run(reader, "check", what, MEND_APP_DIRECTORY=copy, MEND_APP_RESTART="newest")
            shutil.copytree(os.path.join(directory, f"{writer}-120"), os.path.join(directory, f"{writer}-120-{reader}"))
            code, output = run(reader, "run", "-1", MEND_APP_DIRECTORY=f"{writer}-120-{reader}")
            found = computed(output)
            same = len(expected) == len(found) == 3 and all(abs(one - other) <= TOLERANCE * abs(one) for one, other in zip(expected, found))
            check(f"{reader} computes on what {writer} began", code == 0 and "checkpoint 121 of 1 ranks is restored" in output and same, f"{output}\nexpected: {expected}")
            code, output = restored["all"]
            check(f"{reader} reads what {writer} wrote", code == 0 and "values all right" in output, output)
            # What the reader's types can't hold is an error, never another value.
            code, output = restored["long"]
            if programs[writer][2] > programs[reader][2]:
                check(f"{reader} refuses a long of {writer}", code != 0 and "can't be held exactly by int32 of 4 bytes here" in output, output)
            else:
                check(f"{reader} reads a long of {writer}", code == 0 and f"values long {1 << 40 if programs[writer][2] == 8 else 7}" in output, output)
            code, output = restored["third"]
            if programs[writer][1] > programs[reader][1]:
                check(f"{reader} refuses a long double of {writer}", code != 0 and "can't be held exactly by long double" in output, output)
            else:
                check(f"{reader} reads a long double of {writer}", code == 0 and "values third 0.333333" in output, output)
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
