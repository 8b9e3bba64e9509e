"""`mend data` from servers that others wrote: SeaweedFS (S3), WsgiDAV, pyftpdlib, OpenSSH, Python's own HTTP server."""

import json
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import time
import unittest

from cases import MIB
from cluster import PATIENCE, VENV
from object_store import SECRET as STORE_SECRET
from object_store import ObjectStore
from test_data import Data, UNREACHABLE

SERVERS = os.path.join(VENV, "data", "bin")
SSHD = "/usr/sbin/sshd"
SECRET = "data-secret-that-must-not-leak"


def free_port():
    """A port that nobody listens on."""
    for _ in range(100):
        port = random.randrange(21000, 29000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise OSError("no free port")


def installed(case, program):
    """Where a server is; without it the test is skipped."""
    path = os.path.join(SERVERS, program)
    if not os.path.exists(path):
        case.skipTest(f"no server: `make setup` could not install {program}")
    return path


class Sources(Data):
    # A name that has to be encoded.
    odd = "a b%20c"

    def setUp(self):
        super().setUp()
        self.root = os.path.join(self.directory, "served")
        self.write("served/in.dat", self.content)
        self.write(f"served/tree/{self.odd}", b"x" * 5000)
        self.write("served/tree/deep/y", b"")

    def serve(self, command, port, **options):
        """Starts a server and waits until it listens."""
        log = self.enterContext(open(os.path.join(self.directory, "server.log"), "ab"))
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        self.addCleanup(lambda: (server.kill(), server.wait()))
        until = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            self.assertIsNone(server.poll(), "the server ended")
            self.assertLess(time.monotonic(), until, "the server does not listen")
            time.sleep(0.05)

    def all_of_it(self, base, *options):
        """A file, its damage, a directory, and what is not there, from one server."""
        self.data("stage", f"{base}/in.dat", self.path, *options)
        self.assertEqual(self.read(), self.content)
        self.spoil(5 * MIB)
        os.truncate(self.path, 9 * MIB)
        self.assertIn("repaired, fetched 4.00 MiB", self.data("repair", self.path).stdout)
        self.assertEqual(self.read(), self.content)
        self.data("stage", f"{base}/tree/", "tree", *options)
        self.assertEqual(self.read(os.path.join(self.directory, "tree", self.odd)), b"x" * 5000)
        self.assertEqual(self.read(os.path.join(self.directory, "tree", "deep", "y")), b"")
        done = self.data("stage", f"{base}/nope", "nope", *options, code=UNREACHABLE)
        self.assertIn("it is not there", done.stderr)
        # A directory that is not there is not an empty one; the next mirror is asked.
        done = self.data("stage", f"{base}/nowhere/", "nowhere", *options, code=UNREACHABLE)
        self.assertIn("the files of nowhere cannot be listed", done.stderr)
        self.data("stage", f"{base}/nowhere/", f"{base}/tree/", "mirrored", *options)
        self.assertEqual(self.read(os.path.join(self.directory, "mirrored", self.odd)), b"x" * 5000)
        self.assertIn("2 whole", self.data("check", "tree").stdout)

    def no_secret_is_kept(self, secret=SECRET):
        """Neither beside a file nor in its attributes, nor in what is said of it."""
        kept = subprocess.run(["grep", "-rlF", secret, self.directory, "--include=.*"], capture_output=True, text=True, check=False).stdout
        self.assertEqual(kept, "")
        for name in os.listxattr(self.path):
            self.assertNotIn(secret.encode(), os.getxattr(self.path, name))
        self.assertNotIn(secret, self.data("sources", self.path, "--json").stdout)

    def test_python_s_http_server(self):
        port = free_port()
        self.serve([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], port, cwd=self.root)
        self.data("stage", f"http://127.0.0.1:{port}/in.dat", self.path)
        self.spoil(5 * MIB)
        self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)
        done = self.data("stage", f"http://127.0.0.1:{port}/tree/", "tree", code=UNREACHABLE)
        self.assertIn("an HTTP server does not list", done.stderr)

    def test_webdav(self):
        port = free_port()
        config = self.write("dav.json", json.dumps({
            "host": "127.0.0.1", "port": port, "provider_mapping": {"/": self.root}, "simple_dc": {"user_mapping": {"*": {"me": {"password": SECRET}}}},
            "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
        }).encode())
        self.serve([installed(self, "wsgidav"), "--config", config], port)
        self.machine.set("DAV_USER", "me")
        self.machine.set("DAV_PASSWORD", SECRET)
        self.all_of_it(f"webdav://127.0.0.1:{port}", "--credentials", "env:DAV")
        self.no_secret_is_kept()
        # As plain HTTP, too, and with a password that is none.
        self.data("stage", f"http://127.0.0.1:{port}/tree/a%20b%2520c", "by http", "--credentials", "env:DAV")
        self.assertEqual(self.read(os.path.join(self.directory, "by http")), b"x" * 5000)
        self.machine.set("DAV_PASSWORD", "wrong")
        done = self.data("stage", f"http://127.0.0.1:{port}/in.dat", "refused", "--credentials", "env:DAV", code=UNREACHABLE)
        self.assertIn("it answered with status 401", done.stderr)

    def test_ftp(self):
        installed(self, "wsgidav")
        port = free_port()
        self.serve([os.path.join(SERVERS, "python3"), "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(port), "-d", self.root, "-u", "me", "-P", SECRET], port)
        # It answers a wrong password late.
        self.machine.set("MEND_DATA_TIMEOUT_MS", "10000")
        secret = self.write("secret", f"password = {SECRET}\n".encode())
        reference = f"file:{secret}"
        done = self.data("stage", f"ftp://me@127.0.0.1:{port}/in.dat", "x", "--credentials", reference, code=UNREACHABLE)
        self.assertIn("others may read it (chmod 600)", done.stderr)
        os.chmod(secret, 0o600)
        self.all_of_it(f"ftp://me@127.0.0.1:{port}", "--credentials", reference)
        self.no_secret_is_kept()
        with open(secret, "w", encoding="ascii") as file:
            file.write("password = wrong\n")
        done = self.data("stage", f"ftp://me@127.0.0.1:{port}/in.dat", "x", "--credentials", reference, code=UNREACHABLE)
        self.assertIn("530", done.stderr)

    def test_sftp(self):
        if not (os.path.exists(SSHD) and shutil.which("ssh")):
            self.skipTest("no server: `make setup` as root installs openssh-server")
        port, place = free_port(), os.path.join(self.directory, "ssh")
        os.mkdir(place)
        for name in ("host", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{place}/{name}"], check=True)
        os.rename(f"{place}/key.pub", f"{place}/authorized")
        # Where root's sshd changes its root to; others' does not.
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        config = self.write("ssh/sshd_config", f"""ListenAddress 127.0.0.1:{port}
HostKey {place}/host
AuthorizedKeysFile {place}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
""".encode())
        self.serve([SSHD, "-D", "-e", "-f", config], port)
        with open(f"{place}/host.pub", encoding="ascii") as file:
            key = " ".join(file.read().split()[:2])
        self.write("ssh/known", f"[127.0.0.1]:{port} {key}\n".encode())
        # As an ordinary user's configuration does it, without touching that of whoever runs this.
        self.write("ssh/config", f"UserKnownHostsFile {place}/known\nIdentitiesOnly yes\n".encode())
        wrapped = self.write("bin/ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {place}/config "$@"\n'.encode())
        os.chmod(wrapped, 0o755)
        self.machine.set("PATH", os.path.dirname(wrapped) + os.pathsep + os.environ["PATH"])
        self.machine.set("MEND_DATA_TIMEOUT_MS", "10000")
        secret = self.write("credentials/archive", f"key = {place}/key\nuser = {pwd.getpwuid(os.geteuid()).pw_name}\n".encode())
        os.chmod(secret, 0o600)
        self.machine.set("MEND_HOME", self.directory)
        self.all_of_it(f"sftp://127.0.0.1:{port}{self.root}", "--credentials", "profile:archive")
        base = f"sftp://127.0.0.1:{port}{self.root}"
        self.links_and_names(base, "--credentials", "profile:archive")
        done = self.data("stage", f"{base}/in.dat", "refused", code=UNREACHABLE)
        self.assertIn("Permission denied", done.stderr)

    def links_and_names(self, base, *options):
        """What a server lists that is no plain file of a plain name."""
        self.write("served/links/real", b"real")
        for target, name in (("real", "link"), ("nowhere", "dangling"), ("../tree", "directory")):
            os.symlink(target, os.path.join(self.root, "links", name))
        os.mkdir(os.path.join(self.root, "empty"))
        # Two slashes are one.
        self.data("stage", f"{base}//links//", "links", *options)
        self.assertEqual(sorted(os.listdir(os.path.join(self.directory, "links"))), ["link", "real"])
        self.assertEqual(self.read(os.path.join(self.directory, "links", "link")), b"real")
        self.data("stage", f"{base}/empty/", "empty", *options)
        self.assertEqual(os.listdir(os.path.join(self.directory, "empty")), [])
        # The name without the blank is another file's.
        self.write("served/blank/name", b"other")
        self.write("served/blank/name ", b"right")
        done = self.data("stage", f"{base}/blank/", "blank", *options, code=UNREACHABLE)
        self.assertIn("its name begins or ends with a blank", done.stderr)
        self.assertEqual([name for name in os.listdir(os.path.join(self.directory, "blank")) if name.startswith("name")], ["name"])
        os.mkdir(os.path.join(self.root, "bytes"))
        with open(os.path.join(os.fsencode(self.root), b"bytes", b"\xff"), "wb"):
            pass
        done = self.data("stage", f"{base}/bytes/", "bytes", *options, code=UNREACHABLE)
        self.assertIn("the files of bytes cannot be listed", done.stderr)
        self.assertIn(f"a name in {self.root}/bytes/ or below it is not UTF-8", done.stderr)
        self.assertIn("rename it there", done.stderr)
        self.assertNotIn("panicked", done.stderr)

    def test_s3(self):
        store = ObjectStore(self.directory, "127.0.0.1")
        self.addCleanup(store.end)
        # What puts the objects there encodes a % of its own.
        self.odd = "a b"
        os.rename(os.path.join(self.root, "tree", "a b%20c"), os.path.join(self.root, "tree", self.odd))
        store.start()
        for name, value in store.variables.items():
            self.machine.set(name, value)
        for name in ("in.dat", f"tree/{self.odd}", "tree/deep/y"):
            store.put(f"s3://lab/{name}", self.read(os.path.join(self.root, name)))
        self.all_of_it("s3://lab")
        done = self.data("stage", "s3://lab/tree//deep/y", "slashes", code=UNREACHABLE)
        self.assertIn("two slashes in a row", done.stderr)
        # The server is remembered, and the credentials' place, if it is named.
        self.machine.set("AWS_ENDPOINT_URL", None)
        self.machine.set("AWS_SECRET_ACCESS_KEY", None)
        self.machine.set("OTHER_ACCESS_KEY_ID", "lab")
        self.machine.set("OTHER_SECRET_ACCESS_KEY", STORE_SECRET)
        self.data("stage", "s3://lab/in.dat", "named.dat", "--credentials", "env:OTHER", "--endpoint", store.variables["AWS_ENDPOINT_URL"])
        self.path = os.path.join(self.directory, "named.dat")
        self.spoil(5 * MIB)
        self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)
        self.no_secret_is_kept(STORE_SECRET)
        self.machine.set("OTHER_SECRET_ACCESS_KEY", "wrong")
        self.spoil(5 * MIB)
        done = self.data("repair", self.path, code=UNREACHABLE)
        self.assertIn("no permission, or wrong credentials", done.stderr)


# Its tests are run where they stand.
del Data

if __name__ == "__main__":
    unittest.main()
