"""Those who don't belong: wrong secrets, other versions, garbage and silence on every socket, nodes that can't be reached."""

import os
import socket
import struct
import subprocess
import sys
import threading
import unittest

from cases import InDirectory
from cluster import Lab, Machine, compile_mpi

ABUSE = r"""
import os, random, re, socket, sys, time
# Every TCP listener of this node, and every abstract unix listener of it.
random.seed(int(sys.argv[1]))
targets = []
for line in open("/proc/net/tcp").read().splitlines()[1:]:
    words = line.split()
    if words[3] == "0A":
        address, port = words[1].split(":")
        raw = bytes.fromhex(address)[::-1]
        host = socket.inet_ntoa(raw) if any(raw) else "127.0.0.1"
        targets.append((socket.AF_INET, (host, int(port, 16))))
for line in open("/proc/net/unix").read().splitlines()[1:]:
    words = line.split()
    if len(words) > 7 and words[7].startswith("@") and int(words[3], 16) & 0x10000:
        targets.append((socket.AF_UNIX, "\0" + words[7][1:]))
held = []
for family, address in targets:
    for size in (0, 1, 7, 48, 100, 5000, 70000):
        s = socket.socket(family, socket.SOCK_STREAM)
        s.settimeout(1)
        try:
            s.connect(address)
            payload = random.randbytes(size)
            if size == 100:
                payload = b"MENDwire" + payload
            if size == 5000:
                payload = b"\xff\xff\xff\x7f" + payload
            s.sendall(payload)
        except OSError:
            continue
        if random.random() < 0.5:
            held.append(s)
        else:
            s.close()
print(len(targets))
time.sleep(1)
"""

SILENCE = r"""
import resource, socket, sys
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
held = []
for port in sys.argv[1:]:
    for _ in range(330):
        s = socket.create_connection(("127.0.0.1", int(port)))
        held.append(s)
print(len(held), flush=True)
sys.stdin.read()
"""


def children(pid):
    """A process and all that descend from it."""
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            for child in file.read().split():
                found += children(int(child))
    return found


def listening(pids):
    """TCP ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{pid}/fd/{number}"))
            except OSError:
                continue
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.read().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


class PendingHandshakes(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.iters = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))

    def test_garbage_on_every_socket_hurts_nobody(self):
        argv = ["-n", "4", "--hosts", "node1,node2", "--", self.iters, "-i", "60", "-w", "100", "-m", "4", "-u", "go"]
        with Lab(2) as lab:
            expected = lab.undisturbed(*argv)
            job = lab.start(self.directory, "run", *argv)
            name = lab.running(job)
            for seed, node in enumerate(("node1", "node2", "head")):
                done = lab.on(node, "python3", "-c", ABUSE, str(seed))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertGreater(int(done.stdout), 0)
            lab.verb("checkpoint", name)
            job.let_go()
            job.finish()
            self.assertEqual(job.stdout(), expected)
            # What was abused starts jobs as before.
            self.assertEqual(lab.undisturbed(*argv), expected)

    def test_silent_connections_keep_nobody_out(self):
        argv = ["-n", "2", "--", self.iters, "-i", "60", "-w", "100", "-m", "4", "-u", "go"]
        with Machine() as machine:
            job = machine.start(self.directory, "run", *argv)
            name = machine.running(job)
            ports = listening(children(job.process.pid))
            # Those of `mend run` and of mendd, at least.
            self.assertGreaterEqual(len(ports), 2)
            another = ["setpriv", "--reuid", "4242", "--regid", "4242", "--clear-groups"] if os.geteuid() == 0 else []
            holding = subprocess.Popen([*another, sys.executable, "-I", "-c", SILENCE, *map(str, ports)],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                self.assertEqual(int(holding.stdout.readline()), 330 * len(ports))
                machine.verb("checkpoint", name)
                # As from another host.
                os.remove(os.path.join(machine.home, "jobs", name, "control"))
                (status,) = [one["status"] for one in machine.verb("ps") if one["id"] == name]
                self.assertEqual([rank["state"] for rank in status["ranks"]], ["running"] * 2)
                machine.verb("checkpoint", name)
                done = machine.mend("kill", name)
                self.assertEqual(done.returncode, 0, done.stderr)
                job.finish(None)
            finally:
                holding.communicate()
            told = [line for line in job.stderr().splitlines() if "refused" in line]
            # Each tells once, and then counts.
            self.assertLessEqual(len(told), 6, told)

    def test_a_wrong_secret_is_told(self):
        with Lab(1) as lab:
            secret = os.path.join(self.work, "secret")
            with open(secret, "w", encoding="utf-8") as file:
                file.write("ab" * 32)
            os.chmod(secret, 0o600)
            environment = dict(lab.environment, MEND_SECRET_FILE=secret)
            done = lab.mend("run", "--hosts", "node1", "true", env=environment)
            self.assertEqual(done.returncode, 69, done.stderr)
            self.assertIn("secret", done.stderr)
            os.chmod(secret, 0o644)
            done = lab.mend("run", "--hosts", "node1", "true", env=environment)
            self.assertIn("chmod 600", done.stderr)

    def test_an_unreachable_node_is_named(self):
        with Lab(2) as lab:
            lab.kill("node2")
            done = lab.mend("run", "-n", "2", "--hosts", "node1,node2", "true")
            self.assertEqual(done.returncode, 69, done.stderr)
            self.assertIn("node2", done.stderr)

    def serve(self, answer):
        """A listener that answers each connection with these bytes."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def run():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                peer.sendall(answer)
                peer.recv(4096)
                peer.close()

        threading.Thread(target=run, daemon=True).start()
        return str(listener.getsockname()[1])

    def told(self, answer, *texts):
        with Machine() as machine:
            done = machine.mend("run", "--hosts", "127.0.0.1", "true", env=dict(machine.environment, MEND_PORT=self.serve(answer)))
        self.assertEqual(done.returncode, 69, done.stderr)
        for text in ("127.0.0.1", *texts):
            self.assertIn(text, done.stderr)

    def test_a_daemon_of_another_version_is_told(self):
        self.told(b"MENDwire" + struct.pack("<II", 99, 1) + bytes(32), "protocol 99", "same release")

    def test_another_service_on_the_port_is_told(self):
        self.told(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n".ljust(48), "does not speak Mend's protocol")


if __name__ == "__main__":
    unittest.main()
