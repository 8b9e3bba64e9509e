#!/usr/bin/env python3
"""Builds the fuzz targets with coverage instrumentation and runs each for some seconds.

    run.py [--seconds N] [TARGET...]
    run.py --write-seeds
    run.py --clippy

The engine is libFuzzer, with a stable compiler: the instrumentation it needs (SanitizerCoverage) is an LLVM pass that
stable rustc can run. AddressSanitizer would need a nightly one; of the crates fuzzed here the fabric alone holds unsafe, and
its targets watch the bounds themselves (fenced memory, a mapping's ends). Overflow checks and debug assertions are on, and
memory is limited. `cargo +nightly fuzz run TARGET` works on the same targets.

What a run learns stays in fuzz/corpus/TARGET (not tracked); fuzz/seeds/TARGET is tracked: inputs that once failed, and
good first ones. Where a format has an encoder those are written by it (fuzz/src/seeds): before the targets, tests show that
they still are what it writes, and that what they stand for is accepted or refused; `--write-seeds` writes them anew, after a format
has changed. An input that fails is put in fuzz/artifacts/TARGET-…; the run prints how to repeat it. The last line is
"N passed, N failed", a target being one test; the seeds' tests count by themselves.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PLATFORM = "x86_64-unknown-linux-gnu"
INSTRUMENTATION = [
    "--cfg", "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
]


def cargo(verb, *options, **more):
    """What a command of cargo came to, with the targets' instrumentation."""
    environment = {**os.environ, "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(INSTRUMENTATION), **more.pop("environment", {})}
    environment.pop("CARGO_TARGET_DIR", None)
    command = ["cargo", verb, "--release", "--locked", "--target", PLATFORM, *options]
    return subprocess.run(command, cwd=HERE, env=environment, stdin=subprocess.DEVNULL, text=True, check=False, **more)


def seeds(write):
    """Whether the tests of what encoders write have passed."""
    environment = {"MEND_WRITE_SEEDS": "1"} if write else {}
    return cargo("test", "--lib", "--quiet", environment=environment).returncode == 0


def build():
    """The built targets, path by name."""
    done = cargo("build", "--message-format=json-render-diagnostics", stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"fuzz: the targets don't build ({done.returncode})")
    artifacts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {artifact["target"]["name"]: artifact["executable"] for artifact in artifacts if artifact.get("executable")}


def run(name, program, seconds):
    corpus, seeds = os.path.join(HERE, "corpus", name), os.path.join(HERE, "seeds", name)
    artifacts = os.path.join(HERE, "artifacts", name + "-")
    os.makedirs(corpus, exist_ok=True)
    os.makedirs(os.path.dirname(artifacts), exist_ok=True)
    inputs = [corpus] + ([seeds] if os.path.isdir(seeds) else [])
    limits = [f"-max_total_time={seconds}", "-rss_limit_mb=1024", "-malloc_limit_mb=256", "-timeout=10", "-max_len=65536"]
    command = [program, *limits, f"-artifact_prefix={artifacts}", "-print_final_stats=1", "-verbosity=0", *inputs]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    stats = dict(line.rsplit(":", 1) for line in done.stdout.splitlines() if line.startswith("stat::"))
    tried = int(stats.get("stat::number_of_executed_units", "0"))
    if done.returncode == 0 and tried > 0:
        print(f"{name}: {tried} inputs tried in {seconds} s, none failed", flush=True)
        return True
    print(f"{done.stdout}\n{name}: failed ({done.returncode}) after {tried} inputs; repeat with: {program} INPUT", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(description="Runs the fuzz targets.")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--write-seeds", action="store_true", help="write the seeds that encoders make, and end")
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--clippy", action="store_true", help="look at the targets with clippy, warnings denied, and end")
    arguments = parser.parse_args()
    if arguments.clippy:
        return cargo("clippy", "--all-targets", "--", "-D", "warnings").returncode
    if arguments.write_seeds:
        return 0 if seeds(write=True) else 1
    programs = build()
    unknown = set(arguments.targets) - set(programs)
    if unknown:
        sys.exit(f"fuzz: no such target: {', '.join(sorted(unknown))}; there are {', '.join(sorted(programs))}")
    good = seeds(write=False)
    # A target keeps one processor busy.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda name: run(name, programs[name], arguments.seconds), sorted(arguments.targets or programs)))
    print(f"{sum(outcomes)} passed, {len(outcomes) - sum(outcomes)} failed")
    return 0 if good and all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
