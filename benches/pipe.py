#!/usr/bin/env python3
"""Measures how fast bytes pass through mounts of the pipe, beside one plain TCP connection between the same two lab nodes, in one run.

    pipe.py [--runs N] [--record]

What is sent is 1 GiB of zeros in writes of 1 MiB. The pipe's time goes from the first write to the reader's end; the connection's to the receiver's answer. Runs alternate (A B A B …). The pipe encrypts,
sums up, and copies to and from the kernel on both nodes; the connection does none of that.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "lab"))
from cluster import MEND, Failed, Lab
from raw_tcp import RawTcp
import results

SIZE = 1 << 30
WRITE = "import sys\nwith open(sys.argv[1], 'wb', buffering=0) as file:\n    for _ in range(int(sys.argv[2]) >> 20):\n        assert file.write(bytes(1 << 20)) == 1 << 20"
READ = """
import sys
size = 0
with open(sys.argv[1], 'rb', buffering=0) as file:
    while part := file.read(1 << 17):
        size += len(part)
assert size == int(sys.argv[2]), size
"""


def mount(lab, node, *arguments):
    command = [MEND, "lab", "exec", "--name", lab.name, node, "--", MEND, "pipe", "mount", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=lab.environment)
    if not process.stdout.readline().startswith("ready"):
        raise Failed(f"no mount on {node}")
    return process


def piped(lab, out, into):
    """Milliseconds from the first write to the reader's end."""
    begun = time.monotonic()
    command = [MEND, "lab", "exec", "--name", lab.name, "node1", "--", sys.executable, "-c", WRITE, f"{out}/stream", str(SIZE)]
    writer = subprocess.Popen(command)
    while not lab.on("node2", "test", "-e", f"{into}/stream").returncode == 0:
        time.sleep(0.005)
    read = lab.on("node2", sys.executable, "-c", READ, f"{into}/stream", str(SIZE))
    taken = (time.monotonic() - begun) * 1e3
    if writer.wait() or read.returncode:
        raise Failed(f"the stream did not come: {read.stderr}")
    return taken


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--record", action="store_true", help="put the figures into docs/results")
    options = options.parse_args()
    pipe, plain = [], []
    with tempfile.TemporaryDirectory(prefix="mend-bench-pipe-") as work, Lab(2) as lab:
        into, out = os.path.join(work, "in"), os.path.join(work, "out")
        os.makedirs(into)
        os.makedirs(out)
        mounts = [mount(lab, "node2", "--listen", into), mount(lab, "node1", "--to", "node2", out)]
        try:
            with RawTcp(lab, "node1", "node2", SIZE, options.runs) as tcp:
                for _ in range(options.runs):
                    pipe.append(piped(lab, out, into))
                    plain.append(tcp.milliseconds())
        finally:
            for process in reversed(mounts):
                process.terminate()
                process.wait()
    print(f"1 GiB through the pipe: {results.median(pipe):.0f} ms; over one TCP connection: {results.median(plain):.0f} ms; "
          f"ratio {results.median([ours / theirs for ours, theirs in zip(pipe, plain)]):.2f}")
    if options.record:
        results.note("1 GiB through the pipe", "ms", pipe, plain, "one TCP connection", remark="encrypted, summed up, from a file to a file")
        results.save("pipe-tcp", results.record("pipe"))


if __name__ == "__main__":
    main()
