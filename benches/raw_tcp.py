"""One plain TCP connection between two lab nodes, as what moves are compared with: cubic, buffers of 1 MiB, into fresh memory."""

import subprocess

from cluster import MEND

PORT = 9000

# Each connection fills memory that nobody has touched: its pages are made while the bytes come, as for a rank that is rebuilt.
RECEIVER = """
import mmap, socket, sys
total, runs = int(sys.argv[1]), int(sys.argv[2])
s = socket.create_server(("0.0.0.0", int(sys.argv[3]))); print("ready", flush=True)
for _ in range(runs):
    c, _ = s.accept(); done = 0
    with mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        with memoryview(fresh) as memory:
            while done < total: done += c.recv_into(memory[done:done + (1 << 20)])
        c.sendall(b"x")
    c.close()
"""
SENDER = """
import socket, sys, time
buffer = memoryview(b"n" * (1 << 20)); total = int(sys.argv[1])
s = socket.socket(); s.setsockopt(socket.IPPROTO_TCP, 13, b"cubic"); s.connect((sys.argv[2], int(sys.argv[3])))
start = time.monotonic()
sent = 0
while sent < total:
    part = min(len(buffer), total - sent); s.sendall(buffer[:part]); sent += part
s.recv(1)
print(time.monotonic() - start)
"""


class RawTcp:
    """Sends `size` bytes from one node to another, at most `runs` times."""

    def __init__(self, lab, source, target, size, runs):
        self.lab, self.source, self.target, self.size = lab, source, target, size
        prefix = [MEND, "lab", "exec", "--name", lab.name, target, "--"]
        command = [*prefix, "python3", "-c", RECEIVER, str(size), str(runs), str(PORT)]
        self.receiver = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.receiver.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.receiver.kill()
        self.receiver.wait()

    def milliseconds(self):
        done = self.lab.on(self.source, "python3", "-c", SENDER, str(self.size), self.target, str(PORT))
        return float(done.stdout) * 1e3
