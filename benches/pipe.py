#!/usr/bin/env python3
"""Measures how fast bytes pass through mounts of the pipe, beside one plain TCP connection between the same two lab nodes, in one run.

    pipe.py [--runs N] [--record]

What is sent is 1 GiB of zeros in writes of 1 MiB. The pipe's time goes from before the first write, as the
writer takes it, to the end of the stream, as the reader does: the clock is that of the machine, on both lab nodes. The connection's goes from the sender's first write to the receiver's answer. Runs alternate (A B A B …). The pipe encrypts,
sums up, and copies to and from the kernel on both nodes; the connection does none of that.
"""

import argparse
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "lab"))
from cluster import MEND, Failed, Lab
from raw_tcp import RawTcp
import results

SIZE = 1 << 30
# The reader stands ready, as the receiver of the connection does.
READ = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.0005)
size = 0
with open(sys.argv[1], "rb", buffering=0) as file:
    while part := file.read(1 << 17):
        size += len(part)
end = time.monotonic()
assert size == int(sys.argv[2]), size
print(end)
"""
WRITE = """
import sys, time
zeros = bytes(1 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    start = time.monotonic()
    for _ in range(int(sys.argv[2]) >> 20):
        assert file.write(zeros) == len(zeros)
print(start)
"""


def mount(lab, node, *arguments):
    command = [MEND, "lab", "exec", "--name", lab.name, node, "--", MEND, "pipe", "mount", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=lab.environment)
    if not process.stdout.readline().startswith("ready"):
        raise Failed(f"no mount on {node}")
    return process


def piped(lab, out, into):
    """Milliseconds from the first write to the reader's end."""
    command = [MEND, "lab", "exec", "--name", lab.name, "node2", "--", sys.executable, "-c", READ, f"{into}/stream", str(SIZE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        reader.stdout.readline()
        written = lab.on("node1", sys.executable, "-c", WRITE, f"{out}/stream", str(SIZE))
        if written.returncode:
            reader.terminate()
            raise Failed(f"the stream was not written: {written.stderr}")
        end = reader.stdout.read()
    if reader.returncode:
        raise Failed("the stream did not come")
    return (float(end) - float(written.stdout)) * 1e3


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
