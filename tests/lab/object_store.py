"""A real S3 server for tests: SeaweedFS, on this machine or on a node of a lab."""

import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unittest

from cluster import BIN, MEND, PATIENCE, VENV, Failed

SECRET = "lab-secret-that-must-not-leak"
# Prints what is below a directory of the server; the highest bit of Go's modes is that of a directory.
LISTING = """
import json, sys, urllib.error, urllib.parse, urllib.request
asked = [sys.argv[2]]
while asked:
    request = urllib.request.Request(sys.argv[1] + urllib.parse.quote(asked.pop()) + "/?limit=100000", headers={"Accept": "application/json"})
    try:
        found = json.load(urllib.request.urlopen(request)).get("Entries") or []
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        found = []
    for entry in found:
        if entry["Mode"] >> 31 & 1:
            asked.append(entry["FullPath"])
        else:
            print(entry["FullPath"])
"""


class ObjectStore:
    """It is started by `start`, and has the bucket `lab` then. `variables` are what its clients need in their environment."""

    def __init__(self, directory, host="head"):
        """Its files lie in a directory of its own there. `host`: by which name it is reached."""
        self.weed = os.path.join(VENV, "bin", "weed")
        if not os.path.exists(self.weed):
            raise unittest.SkipTest("no server: `make setup` could not install SeaweedFS")
        self.directory = tempfile.mkdtemp(prefix="s3-", dir=directory)
        self.host = host
        # The server's sockets in /tmp, which all nodes and users share, have its ports in their names. Its second protocol's ports are 10000 higher.
        self.port = random.randrange(11000, 20000)
        self.lab = self.process = None
        self.variables = {
            "AWS_ACCESS_KEY_ID": "lab", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": f"http://{host}:{self.port}", "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def start(self, lab=None):
        """Starts the server, on the lab's head node if there is a lab, and waits until it takes objects; also once more, after it was killed."""
        self.lab = lab
        config = {"identities": [{"name": "lab", "actions": ["Admin"], "credentials": [{"accessKey": "lab", "secretKey": SECRET}]}]}
        with open(os.path.join(self.directory, "s3.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        data = os.path.join(self.directory, "objects")
        os.makedirs(data, exist_ok=True)
        options = [f"-dir={data}", "-s3", f"-s3.config={file.name}", f"-ip={self.host}", "-volume.max=20", "-master.volumeSizeLimitMB=64"]
        options += ["-ip.bind=0.0.0.0"] if lab else []
        options += [f"-{part}.port={self.port + at}" for at, part in enumerate(("s3", "master", "volume", "filer"))]
        options.append(f"-filer.localSocket={self.directory}/filer.sock")
        with open(os.path.join(self.directory, "weed.log"), "ab") as log:
            self.process = subprocess.Popen([*self.where(), self.weed, "server", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        listening = f"grep -q ':{self.port:04X} [0:]* 0A ' /proc/net/tcp /proc/net/tcp6"
        # Of some bytes: the first ones have the server make a volume, which takes its time.
        put = [os.path.join(BIN, "mend-object"), "put", "s3://lab/there", "5"]
        until = time.monotonic() + PATIENCE
        # An attempt lasts some seconds while nobody listens.
        while self.run("sh", "-c", f'{listening} && printf there | "$@"', "sh", *put).returncode:
            if self.process.poll() is not None:
                raise Failed("the server of objects ended")
            if time.monotonic() > until:
                raise Failed("the server of objects does not answer")
            time.sleep(0.1)

    def where(self):
        return [MEND, "lab", "exec", "--name", self.lab.name, self.host, "--"] if self.lab else []

    def run(self, *command, text=True, **options):
        """Runs a command where the server is, as one of its clients."""
        environment = {**os.environ, **self.variables}
        options.setdefault("stdin", None if "input" in options else subprocess.DEVNULL)
        if options["stdin"] is None:
            del options["stdin"]
        return subprocess.run([*self.where(), *command], capture_output=True, text=text, timeout=PATIENCE, check=False, env=environment, **options)

    def objects(self, verb, *addresses, **options):
        """Runs mend-object; the finished process."""
        return self.run(os.path.join(BIN, "mend-object"), verb, *addresses, **options)

    def put(self, address, content):
        done = self.objects("put", address, str(len(content)), input=content, text=False)
        if done.returncode:
            raise Failed(f"{address}: {done.stderr.decode()}")

    def get(self, address):
        done = self.objects("get", address, text=False)
        if done.returncode:
            raise Failed(f"{address}: {done.stderr.decode()}")
        return done.stdout

    def names(self, below):
        """Names of all objects below a prefix of the bucket `lab`, in order, as the server's own interface lists them."""
        done = self.run(sys.executable, "-c", LISTING, f"http://{self.host}:{self.port + 3}", f"/buckets/lab/{below.rstrip('/')}")
        if done.returncode:
            raise Failed(f"{below}: {done.stderr}")
        return sorted(name.removeprefix("/buckets/lab/") for name in done.stdout.splitlines())

    def signal(self, name):
        """Sends a signal to the server: KILL, STOP or CONT."""
        self.run("pkill", f"-{name}", "-f", f"^{self.weed} server .*{self.directory}/")

    def kill(self):
        """All of it at once; what it has on its disk stays."""
        self.signal("KILL")
        self.process.wait()

    def end(self):
        """For clean-up."""
        if self.process and self.process.poll() is None:
            self.signal("KILL")
            self.process.kill()
            self.process.wait()
        for port in range(self.port, self.port + 4):
            for path in glob.glob(f"/tmp/seaweedfs-*{port}.sock") + glob.glob(f"/tmp/seaweedfs-*{port + 10000}.sock"):
                os.unlink(path)
