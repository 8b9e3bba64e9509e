"""File systems that a job's data may be read through, mounted in lab nodes: Mend's data space and what it is compared with.

Each is a context whose `run(ranks, argv, node)` runs a program as that many processes on a node, SEEN in its words being the mount's directory; the figures
of `tests/apps/file_rates.c` come back as `{what: (begin, end)}` over all of them. A context is a fresh mount: nothing is in a cache of the node.

All keep their bytes in their nodes' memory (/dev/shm, which each node of a lab has to itself), so that no disk is measured.
"""

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from side_by_side import VENV, Failed
from cluster import MEND, PATIENCE, ROOT, NotHere, compile_plain

MEMORY = "/dev/shm/mend-bench"
SIZES = re.compile(r"^(\w+) (\d+\.\d+) (\d+\.\d+)$", re.MULTILINE)
# Where the relay's and the peers' servers listen.
PORT = 18700


def file_rates(work):
    return compile_plain("file_rates.c", os.path.join(work, "file_rates"), "-O2")


def null_relay():
    """The relay's program, built."""
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--package", "mend-space", "--example", "null_relay"]
    subprocess.run(command, cwd=ROOT, check=True)
    return os.path.join(ROOT, "target", "release", "examples", "null_relay")


def spans(text):
    """From the first begin to the last end, by what was done."""
    found = {}
    for what, begin, end in SIZES.findall(text):
        first, last = found.get(what, (float("inf"), 0.0))
        found[what] = min(first, float(begin)), max(last, float(end))
    return found


def must(done):
    if done.returncode:
        raise Failed(f"{done.args[-3:]}: {done.stderr or done.stdout}")
    return done.stdout


def forget(lab):
    """Gives back what nodes have in memory."""
    for node in range(1, lab.nodes + 1):
        lab.on(f"node{node}", "rm", "-rf", MEMORY)


class Mounted:
    """A file system in lab nodes that is not Mend's. Those that inherit say how it is served and mounted."""

    def __init__(self, lab, node="node4"):
        self.lab, self.node = lab, node

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.stack.callback(forget, self.lab)
        self.store = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="mend-bench-"))
        self.seen = os.path.join(self.store, "seen")
        os.mkdir(self.seen)
        try:
            self.serve()
            self.mount()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.unmount()
        self.stack.close()

    def start(self, node, command, ready=None):
        """Starts something on a node that ends with the context. Waits for a line of it, or until the callable says that it is there."""
        full = [MEND, "lab", "exec", "--name", self.lab.name, node, "--", *command]
        log = self.stack.enter_context(open(os.path.join(self.store, "log"), "ab"))
        process = subprocess.Popen(full, stdout=subprocess.PIPE if ready is None else log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.stack.callback(self.end, process)
        if ready is None:
            if process.stdout.readline().strip() != b"ready":
                raise Failed(f"{command}: {self.log()}")
            return
        until = time.monotonic() + PATIENCE
        while not ready():
            if process.poll() is not None or time.monotonic() > until:
                raise Failed(f"{command}: {self.log()}")
            time.sleep(0.1)

    @staticmethod
    def end(process):
        """Asks it to end. SeaweedFS's filer stands still for ever now and then when it is asked."""
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self):
        with open(os.path.join(self.store, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-1500:]

    def is_mounted(self):
        return self.lab.on(self.node, "mountpoint", "-q", self.seen).returncode == 0

    def unmount(self):
        # Lazily: what serves it may stand still.
        self.lab.on(self.node, "umount", "-l", self.seen)

    def mount_anew(self):
        """Nothing is in a cache of the node then."""
        self.unmount()
        self.mount()

    def run(self, ranks, argv):
        """The spans of a program's figures, as so many processes that begin together."""
        meet = tempfile.mkdtemp(dir=self.store)
        argv = [word.replace("SEEN", self.seen) for word in argv]
        command = [MEND, "lab", "exec", "--name", self.lab.name, self.node, "--", "env", f"RATES_MEET={meet}", f"RATES_RANKS={ranks}"]
        ranks = [subprocess.Popen([*command, f"PMI_RANK={rank}", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
        said = [rank.communicate(timeout=PATIENCE) for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise Failed(f"{argv}: {said}; {self.log()}")
        return spans("".join(out for out, _ in said))

    def stage(self, mib):
        """Puts a file `data` there that is as long."""
        must(self.lab.on(self.node, "sh", "-c", f"dd if=/dev/urandom of={self.seen}/data bs=1M count={mib} iflag=fullblock status=none && sync {self.seen}/data"))

    def make(self):
        """Puts an empty file `out` there: what ranks write to together."""
        must(self.lab.on(self.node, "touch", f"{self.seen}/out"))


class Relay(Mounted):
    """FUSE, TCP, memory, and nothing between."""

    name = "null relay"

    def __init__(self, lab, mib, direct, **options):
        super().__init__(lab, **options)
        self.mib, self.direct = mib, ["direct"] if direct else []

    def serve(self):
        self.start("node1", [null_relay(), "serve", str(PORT), str(self.mib)])

    def mount(self):
        self.start(self.node, [null_relay(), "mount", self.seen, f"{address(self.lab, 'node1')}:{PORT}", str(self.mib), *self.direct])


class Passthrough(Mounted):
    """FUSE over a file in memory of the same node."""

    name = "pass-through"

    def __init__(self, lab, mib, direct, **options):
        super().__init__(lab, **options)
        self.mib, self.direct = mib, ["direct"] if direct else []

    def serve(self):
        must(self.lab.on(self.node, "sh", "-c", f"mkdir -p {MEMORY} && head -c {self.mib}M /dev/urandom > {MEMORY}/data"))

    def mount(self):
        self.start(self.node, [null_relay(), "over", self.seen, f"{MEMORY}/data", *self.direct])


def address(lab, node):
    """A node's address on the lab's network."""
    return must(lab.on(node, "sh", "-c", "hostname -I")).split()[0]


class Seaweed(Mounted):
    """SeaweedFS: a master and a filer, three volume servers, each byte on two of them and synced there."""

    name = "SeaweedFS"

    def serve(self):
        weed = os.path.join(VENV, "bin", "weed")
        if not os.path.exists(weed):
            raise NotHere("`make setup` could not install SeaweedFS")
        self.stack.callback(lambda: [os.unlink(path) for path in glob.glob("/tmp/seaweedfs-*.sock")])
        master = f"{address(self.lab, 'node1')}:{PORT}"
        here = lambda node: address(self.lab, node)
        for node in ("node1", "node2", "node3"):
            must(self.lab.on(node, "mkdir", "-p", f"{MEMORY}/master", f"{MEMORY}/volume", f"{MEMORY}/filer"))
        answers = lambda node, port: lambda: self.lab.on(node, sys.executable, "-c", f"import socket; socket.create_connection(('{here(node)}', {port}))").returncode == 0
        self.start("node1", [weed, "master", f"-ip={here('node1')}", f"-port={PORT}", f"-mdir={MEMORY}/master", "-volumeSizeLimitMB=512", "-defaultReplication=001"], answers("node1", PORT))
        for at, node in enumerate(("node1", "node2", "node3"), 1):
            options = [f"-ip={here(node)}", f"-port={PORT + at}", f"-dir={MEMORY}/volume", "-max=20", f"-master={master}", "-dataCenter=one", "-rack=one"]
            self.start(node, [weed, "volume", *options], answers(node, PORT + at))
        filer = [f"-ip={here('node1')}", f"-port={PORT + 9}", f"-master={master}", "-defaultReplicaPlacement=001", f"-defaultStoreDir={MEMORY}/filer", "-dataCenter=one", "-rack=one"]
        self.start("node1", [weed, "filer", *filer], answers("node1", PORT + 9))
        # Each write is synced where it is kept, as Mend's are.
        shell = [MEND, "lab", "exec", "--name", self.lab.name, "node1", "--", weed, "shell", f"-master={master}", f"-filer={here('node1')}:{PORT + 9}"]
        done = subprocess.run(shell, input="fs.configure -locationPrefix=/ -replication=001 -fsync -apply\n", capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode or "fsync" not in done.stdout:
            raise Failed(f"weed shell: {done.stdout} {done.stderr}")

    def mount(self):
        weed = os.path.join(VENV, "bin", "weed")
        filer = f"{address(self.lab, 'node1')}:{PORT + 9}"
        self.start(self.node, [weed, "mount", f"-filer={filer}", f"-dir={self.seen}", f"-cacheDir={tempfile.mkdtemp(dir=self.store)}", "-allowOthers=false"], self.is_mounted)


class Sshfs(Mounted):
    """sshfs: one server, one copy."""

    name = "sshfs"

    def serve(self):
        server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        if not (server and shutil.which("sshfs")):
            raise NotHere("sshd or sshfs is not installed")
        key = os.path.join(self.store, "key")
        for name in (key, os.path.join(self.store, "host")):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name], check=True)
        shutil.copy(f"{key}.pub", os.path.join(self.store, "authorized"))
        must(self.lab.on("node1", "mkdir", "-p", f"{MEMORY}/there"))
        os.makedirs("/run/sshd", exist_ok=True)
        options = [f"HostKey={self.store}/host", f"AuthorizedKeysFile={self.store}/authorized", f"Port={PORT + 20}", "StrictModes=no", "UsePAM=no", f"PidFile={self.store}/pid",
                   "Subsystem=sftp internal-sftp"]
        answers = lambda: self.lab.on("node1", sys.executable, "-c", f"import socket; socket.create_connection(('{address(self.lab, 'node1')}', {PORT + 20}))").returncode == 0
        self.start("node1", [server, "-D", "-f", "/dev/null", *[word for option in options for word in ("-o", option)]], answers)

    def mount(self):
        options = [f"IdentityFile={self.store}/key", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "Ciphers=aes128-gcm@openssh.com"]
        there = f"{address(self.lab, 'node1')}:{MEMORY}/there"
        must(self.lab.on(self.node, "sshfs", "-p", str(PORT + 20), *[word for option in options for word in ("-o", option)], there, self.seen))


class Space:
    """A data space of Mend's, with targets in memory of nodes; ranks of a job of their own for each run."""

    name = "Mend"

    def __init__(self, lab, nodes=("node1", "node2", "node3"), node="node4", copies=2):
        self.lab, self.nodes, self.node, self.copies = lab, nodes, node, copies

    def data(self, *words):
        return must(self.lab.mend("data", *words))

    def __enter__(self):
        self.store = tempfile.mkdtemp(prefix="mend-bench-")
        self.seen = os.path.join(self.store, "seen")
        # Where ranks of the next run leave marks.
        self.meet = tempfile.mkdtemp(dir=self.store)
        self.data("create", "bench", "--copies", str(self.copies), *[word for node in self.nodes for word in ("--target", f"{node}:{MEMORY}")])
        return self

    def __exit__(self, *_):
        self.lab.mend("data", "destroy", "--force", "bench")
        shutil.rmtree(self.store, ignore_errors=True)
        forget(self.lab)

    def stage(self, mib):
        source = os.path.join(self.store, "source")
        with open(source, "wb") as file:
            for _ in range(mib):
                file.write(os.urandom(1 << 20))
        self.data("stage", f"file://{source}", "bench:data")
        os.unlink(source)

    def make(self):
        self.run(1, ["touch", "SEEN/out"])

    def half_read(self, place):
        """Waits until a rank that leaves marks there says that it has read half of its file."""
        until = time.monotonic() + PATIENCE
        while not any(os.listdir(place)):
            if time.monotonic() > until:
                raise Failed("no rank has read half of its file")
            time.sleep(0.01)

    def run(self, ranks, argv, hosts=None, mode="rw"):
        meet, self.meet = self.meet, tempfile.mkdtemp(dir=self.store)
        argv = [word.replace("SEEN", self.seen) for word in argv]
        hosts = hosts or f"{self.node}:{ranks}"
        self.lab.set("RATES_MEET", meet)
        self.lab.set("RATES_RANKS", str(ranks))
        done = self.lab.mend("run", "-n", str(ranks), "--hosts", hosts, "--data", f"bench:{self.seen}" + (":rw" if mode == "rw" else ""), *argv)
        return spans(must(done))
