"""What ranks wrote is sent away: by hand and while they run, to a directory and to servers that others wrote, while senders and nodes are killed."""

import json
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import MIB
from cluster import MEND, PATIENCE
from object_store import SECRET as STORE_SECRET
from object_store import ObjectStore
from offloading import content
from test_data_sources import SERVERS, installed
from test_space import fuse_is_open
from test_space_writing import Writes

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "offloading.py")
BAD_VALUE, UNREACHABLE = 64, 69


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class Offloads(Writes):
    """Files in `input`, and the directory `away` that they are sent to."""

    def setUp(self):
        super().setUp()
        self.away = os.path.join(self.directory, "away")
        self.uri = f"file://{self.away}"
        self.go = os.path.join(self.directory, "go")
        self.lab.set("MEND_OFFLOAD_SETTLE_S", "1")
        self.files = {}

    def script(self, script, *arguments, node="node1"):
        """Has a rank run a shell script in the mount."""
        done = self.lab.mend("run", "--hosts", node, "--data", f"input:{self.seen}:rw", "--", "bash", "-c", f"cd {self.seen} && {script}", "sh", *arguments,
                             cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stderr)

    def fill(self, **sizes):
        """Has a rank copy files of these sizes, drawn at random, into the space; `__` in a name is a slash, `_` a blank."""
        for name, size in sizes.items():
            name = name.replace("__", "/").replace("_", " ")
            self.files[name] = self.random.randbytes(size)
            path = self.write(f"made/{name}", self.files[name])
            self.script('mkdir -p "$(dirname "$1")" && cp "$2" "$1"', name, path)

    def offload(self, *options, place="input:", uri=None, code=0):
        return self.data("offload", place, uri or self.uri, *options, code=code)

    def signal_senders(self, number):
        """Sends a signal to those that have the address of the place in their environment, as those of a job do; how many there were."""
        found = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file, open(f"/proc/{pid}/comm", encoding="ascii") as name:
                    if name.read() == "mend-data\n" and self.uri.encode() in file.read():
                        os.kill(int(pid), number)
                        found += 1
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                pass
        return found

    def there(self, away=None):
        """All that is there, by name."""
        away, found = away or self.away, {}
        for directory, _, names in os.walk(away):
            for name in names:
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, away)] = file.read()
        return found

    def arrived(self, expected=None, away=None):
        found, expected = self.there(away), self.files if expected is None else expected
        self.assertEqual(sorted(found), sorted(expected))
        for name, content_there in found.items():
            self.assertTrue(content_there == expected[name], f"{name} is there with other bytes")


class ByHand(Offloads):
    def test_what_ranks_wrote_is_sent_and_later_what_is_new_changed_or_gone_there(self):
        self.stage("input:staged.dat")
        self.fill(a_b__c_d=3 * MIB + 5, empty=0, deep__er__x=70_000)
        said = self.offload("--dry-run").stdout
        self.assertIn("input:a b/c d: 3.00 MiB would be sent", said)
        self.assertFalse(os.path.exists(self.away))
        said = self.offload().stdout
        self.assertIn("input:deep/er/x: 68.36 KiB sent", said)
        self.assertIn("3 files (3.07 MiB) sent, 0 there already", said)
        self.arrived()
        self.assertIn("0 files (0 B) sent, 3 there already", self.offload().stdout)
        # One is new, one has changed and is as long, one is gone there, one was removed here and stays there.
        self.fill(new=5)
        self.script("printf X | dd of='a b/c d' bs=1 seek=1000000 conv=notrunc status=none && rm deep/er/x && chmod 640 empty")
        self.files["a b/c d"] = self.files["a b/c d"][:1_000_000] + b"X" + self.files["a b/c d"][1_000_001:]
        os.remove(os.path.join(self.away, "empty"))
        done = json.loads(self.offload("--json").stdout)
        self.assertEqual((sorted(one["name"] for one in done["sent"]), done["already"], done["left"]), (["a b/c d", "empty", "new"], 0, []))
        self.arrived()
        self.assertEqual(os.stat(os.path.join(self.away, "empty")).st_mode & 0o777, 0o640)
        # A part of it, elsewhere.
        other = os.path.join(self.directory, "other")
        self.offload(place="input:a b", uri=f"file://{other}/")
        self.arrived({"a b/c d": self.files["a b/c d"]}, other)
        self.assertEqual({name: one.get("away") for name, one in self.listed().items() if not one["directory"]}, {"empty": True, "new": True, "staged.dat": None})
        self.fill(new=9)
        self.assertFalse(self.listed()["new"]["away"])

    def test_what_came_from_elsewhere_stays(self):
        self.fill(x=1000, same=2000)
        self.write("away/x", b"precious")
        self.write("away/same", self.files["same"])
        said = self.offload(code=1)
        self.assertIn("another file of that name is there", said.stderr)
        self.assertIn("--force", said.stderr)
        self.arrived({"x": b"precious", "same": self.files["same"]})
        self.offload("--force")
        self.arrived()

    def test_what_comes_there_while_a_file_is_sent_stays(self):
        self.fill(x=96 * MIB)
        # So that the sender is known by it.
        self.lab.set("OFFLOADED_TO", self.uri)
        self.addCleanup(self.lab.set, "OFFLOADED_TO", None)
        sender = self.lab.start(self.directory, "data", "offload", "input:", self.uri)
        sender.wait_for(lambda: os.path.isdir(self.away) and os.listdir(self.away) and self.signal_senders(signal.SIGSTOP), "something is sent")
        self.assertFalse(os.path.exists(os.path.join(self.away, "x")), "it has arrived already")
        self.write("away/x", b"another space's")
        # What waits for it may stop with it.
        while sender.poll() is None:
            self.signal_senders(signal.SIGCONT)
            os.kill(sender.process.pid, signal.SIGCONT)
            time.sleep(0.05)
        sender.finish(1)
        self.assertIn("another file of that name is there", sender.stderr())
        self.arrived({"x": b"another space's"})

    def test_a_transfer_that_failed_makes_nobody_else_s_file_ours(self):
        made = self.lab.on("head", "sh", "-c", f"mkdir {self.away} && mount -t tmpfs -o size=3m,mode=700 away {self.away}")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.addCleanup(self.lab.on, "head", "umount", "-l", self.away)
        self.fill(large=5 * MIB)
        self.offload(code=UNREACHABLE)
        placed = self.lab.on("head", "sh", "-c", f"echo precious > {self.away}/large && mount -o remount,size=16m {self.away}")
        self.assertEqual(placed.returncode, 0, placed.stderr)
        self.assertIn("another file of that name is there", self.offload(code=1).stderr)
        self.assertEqual(self.lab.on("head", "sh", "-c", f"cd {self.away}; ls -A; cat large").stdout, "large\nprecious\n")
        self.offload("--force")
        same = self.lab.on("head", "cmp", os.path.join(self.away, "large"), os.path.join(self.directory, "made", "large"))
        self.assertEqual(same.returncode, 0, same.stdout)

    def test_places_that_take_nothing_are_refused(self):
        self.fill(x=10)
        for uri, said in (("https://archive/x", "webdav://"), ("tar:///x", "cannot be sent to tar://"), ("/archive", "no SCHEME://")):
            self.assertIn(said, self.offload(uri=uri, code=BAD_VALUE).stderr)
        nowhere = self.offload(uri=f"file://{self.directory}/not/mounted", code=UNREACHABLE)
        self.assertIn("is not there", nowhere.stderr)
        self.assertIn("nothing is there", self.offload("--credentials", "env:NONE", uri="s3://bucket/x", code=UNREACHABLE).stderr)
        self.assertIn("is not there", self.offload(place="input:none", code=1).stderr)

    def test_what_is_open_or_changes_is_not_sent(self):
        job = self.lab.start(self.directory, *self.command(1, ["node1"], "x")[:-4], sys.executable, PROGRAM, "hold", self.seen, self.go)
        job.wait_for(lambda: os.path.exists(self.go + ".begun"), "the file is open")
        # Targets are told what is open once a second.
        looked = lambda: self.lab.mend("data", "offload", "input:", self.uri, "--dry-run", cwd=self.directory)
        job.wait_for(lambda: "ranks have it open for writing" in looked().stdout, "targets know")
        said = self.offload(code=1)
        self.assertIn("input:held is not sent: ranks have it open for writing", said.stderr)
        self.arrived({"closed": b"closed"})
        open(self.go, "w", encoding="ascii").close()
        job.finish()
        self.offload()
        self.arrived({"closed": b"closed", "held": b"beginend"})

    def test_a_file_that_changes_while_it_is_sent_is_never_there_in_part(self):
        job = self.lab.start(self.directory, *self.command(1, ["node1"], "x")[:-4], sys.executable, PROGRAM, "change", self.seen, self.go)
        job.wait_for(lambda: os.path.exists(self.go + ".begun"), "the file changes")
        for _ in range(4):
            self.lab.mend("data", "offload", "input:", self.uri, "--settle", "0", cwd=self.directory)
            for name, found in self.there().items():
                self.assertEqual(name, "changing")
                self.assertTrue(len(found) in (0, 8 * MIB) and found == found[:1] * len(found), "two states of it in one")
        open(self.go, "w", encoding="ascii").close()
        job.finish()
        self.offload()
        self.arrived({"changing": bytes([int(job.stdout())]) * (8 * MIB)})

    def test_senders_that_are_killed_at_any_moment_leave_nothing_in_part(self):
        self.fill(large=200 * MIB, a=MIB, b=MIB, c=0)
        script = '"$@" & pid=$!; sleep "$0"; kill -KILL $pid; wait $pid'
        for _ in range(12):
            delay = f"{self.random.uniform(0.05, 2.5):.3f}"
            self.lab.on("head", "sh", "-c", script, delay, MEND, "data", "offload", "input:", self.uri, "--quiet", "--settle", "0", cwd=self.directory)
            for name, found in self.there().items():
                if not name.endswith(".mend-part"):
                    self.assertTrue(found == self.files[name], f"{name} is there in part")
        self.offload()
        self.arrived()

    def test_a_full_place_takes_what_it_can_and_the_rest_later(self):
        made = self.lab.on("head", "sh", "-c", f"mkdir {self.away} && mount -t tmpfs -o size=3m,mode=700 away {self.away}")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.addCleanup(self.lab.on, "head", "umount", "-l", self.away)
        self.fill(large=5 * MIB, small=1000)
        said = self.offload(code=UNREACHABLE)
        self.assertIn("input:large cannot be sent", said.stderr)
        self.assertIn("make room there", said.stderr)
        listed = lambda: sorted(self.lab.on("head", "ls", "-A", self.away).stdout.split())
        self.assertEqual(listed(), ["small"])
        self.lab.on("head", "mount", "-o", "remount,size=9m", self.away)
        self.offload()
        self.assertEqual(listed(), ["large", "small"])
        same = self.lab.on("head", "cmp", os.path.join(self.away, "large"), os.path.join(self.directory, "made", "large"))
        self.assertEqual(same.returncode, 0, same.stdout)

    def test_after_a_target_is_lost_files_are_sent_from_the_others(self):
        self.fill(x=4 * MIB, y=100)
        self.offload()
        self.script("echo more >> y")
        self.files["y"] += b"more\n"
        self.lab.kill_daemon("node1")
        self.offload()
        self.arrived()
        self.daemon_back("node1")

    def test_a_destroyed_space_s_ledger_goes_along(self):
        self.fill(x=10)
        self.offload()
        sent = os.path.join(self.lab.on("head", "sh", "-c", 'echo "$MEND_HOME"').stdout.strip(), "spaces", "input.sent")
        self.assertEqual(self.lab.on("head", "ls", sent).returncode, 0)
        self.data("destroy", "input")
        self.assertNotEqual(self.lab.on("head", "ls", sent).returncode, 0)


class WithAJob(Offloads):
    def start(self, ranks, hosts, *arguments, options=()):
        command = ["run", "-n", str(ranks), "--hosts", ",".join(hosts), "--data", f"input:{self.seen}:rw", "--offload", f"input={self.uri}", *options, "--",
                   sys.executable, PROGRAM, *arguments]
        return self.lab.start(self.directory, *command)

    def whole(self):
        """What has a name there is whole."""
        for name, found in self.there().items():
            if not name.endswith(".mend-part"):
                number, rank = name.removeprefix("round ").split("/rank.")
                self.assertTrue(found == content(int(rank), int(number)), f"{name} is there in part")

    def rounds(self, ranks, count):
        return {f"round {number}/rank.{rank}": content(rank, number) for number in range(count) for rank in range(ranks)}

    def test_closed_files_arrive_while_the_job_runs_and_the_others_at_its_end(self):
        job = self.start(1, ["node1"], "hold", self.seen, self.go)
        job.wait_for(lambda: os.path.exists(os.path.join(self.away, "closed")), "the closed file has arrived")
        self.arrived({"closed": b"closed"})
        open(self.go, "w", encoding="ascii").close()
        job.finish()
        self.arrived({"closed": b"closed", "held": b"beginend"})
        self.assertIn("has arrived at", job.stderr())
        name = self.lab.verb("ps", "--all")[-1]["id"]
        self.assertIn("arrived at file://", self.lab.mend("log", name).stdout)

    def test_a_job_that_has_ended_and_still_sends_is_shown_so(self):
        job = self.start(1, ["node1"], "hold", self.seen, self.go)
        job.wait_for(lambda: self.signal_senders(signal.SIGSTOP), "something is sent")
        open(self.go, "w", encoding="ascii").close()

        def state():
            # One that begins to send what is left is stopped as well.
            self.signal_senders(signal.SIGSTOP)
            return [listed["state"] for listed in self.lab.verb("ps")]

        job.wait_for(lambda: state() == ["ended: exit code 0; its output is being sent away"], "it is shown")
        self.assertIsNone(job.poll())
        # Its ranks are gone from the node, and others leave it.
        other = self.lab.start(self.directory, "run", "--hosts", "node1", "--spares", "node2", "--", "sleep", "1000")
        name = self.lab.running(other)
        self.assertEqual([(left["job"], left["moved"]["to"]) for left in self.lab.verb("drain", "node1")["ranks"]], [(name, "node2")])
        self.lab.verb("undrain", "node1")
        self.lab.mend("kill", name)
        while job.poll() is None:
            self.signal_senders(signal.SIGCONT)
            time.sleep(0.05)
        job.finish()
        self.arrived({"closed": b"closed", "held": b"beginend"})

    def test_what_a_killed_controller_had_not_sent_when_the_job_ended_is_told(self):
        job = self.start(1, ["node1"], "hold", self.seen, self.go)
        name = self.lab.running(job)
        job.wait_for(lambda: self.signal_senders(signal.SIGSTOP), "something is sent")
        open(self.go, "w", encoding="ascii").close()

        def state():
            self.signal_senders(signal.SIGSTOP)
            return [listed["state"] for listed in self.lab.verb("ps", "--all") if listed["id"] == name]

        job.wait_for(lambda: state() == ["ended: exit code 0; its output is being sent away"], "it has ended")

        def record():
            self.signal_senders(signal.SIGSTOP)
            return json.loads(self.lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout)

        job.wait_for(lambda: record().get("unsent"), "it is on record before it is sent")
        self.lab.on("head", "kill", "-KILL", str(record()["controller_pid"]))
        job.finish(None)
        self.signal_senders(signal.SIGKILL)
        self.assertEqual(state(), ["ended: exit code 0; not all of its output was sent away"])
        done = self.lab.mend("wait", name)
        self.assertEqual(done.returncode, 0)
        self.assertIn(f"`mend data offload input: {self.uri}` goes on", done.stderr)
        self.offload()
        self.arrived({"closed": b"closed", "held": b"beginend"})

    def test_ranks_write_in_rounds_while_senders_are_killed(self):
        job = self.start(4, ["node1", "node2"], "rounds", self.seen, "12")
        killed = 0
        while job.poll() is None:
            killed += self.signal_senders(signal.SIGKILL)
            self.whole()
            time.sleep(self.random.uniform(0.2, 1))
        job.finish()
        self.assertGreater(killed, 0)
        if "goes on" in job.stderr():
            # The last one was killed as well.
            self.offload()
        self.arrived(self.rounds(4, 12))

    def test_a_job_whose_node_is_lost_has_its_files_sent(self):
        job = self.start(2, ["node1", "node2"], "rounds", self.seen, "1000")
        job.wait_for(lambda: any(name.startswith("round 0") for name in self.there()), "something has arrived")
        self.lab.kill_daemon("node2")
        self.assertNotEqual(job.finish(None), 0)
        self.assertTrue(self.there())
        # A rank that was killed may have left a file in part: it has arrived as it is in the space.
        for name, found in self.there().items():
            self.got(f"input:{name}", found)
        listed = [f"{place}/{name}" for place in self.listed() for name in self.listed(f"input:{place}")]
        self.assertEqual(sorted(listed), sorted(self.there()), job.stderr())
        self.daemon_back("node2")

    def test_a_place_that_takes_nothing_does_not_stop_the_job(self):
        self.uri = f"file://{self.directory}/not/mounted"
        job = self.start(1, ["node1"], "rounds", self.seen, "12")
        job.finish(0)
        self.assertIn("written", job.stdout())
        said = job.stderr()
        self.assertIn("files of input not sent to", said)
        self.assertIn(f"`mend data offload input: {self.uri}` goes on", said)
        os.makedirs(os.path.join(self.directory, "not"))
        self.offload()
        self.arrived(self.rounds(1, 12), os.path.join(self.directory, "not", "mounted"))

    def test_a_restart_has_the_same(self):
        job = self.start(1, ["node1"], "hold", self.seen, self.go)
        name = self.lab.running(job)
        job.wait_for(lambda: os.path.exists(self.go + ".begun"), "the file is open")
        self.lab.verb("checkpoint", name)
        self.lab.mend("kill", name)
        job.finish(None)
        open(self.go, "w", encoding="ascii").close()
        self.lab.start(self.directory, "restart", name).finish(0)
        self.arrived({"closed": b"closed", "held": b"beginend"})

    def test_the_exit_code_stays_the_job_s(self):
        job = self.lab.start(self.directory, "run", "--hosts", "node1", "--data", f"input:{self.seen}:rw", "--offload", f"input={self.uri}", "--", "bash", "-c",
                             f"echo last words > {self.seen}/log; exit 7")
        job.finish(7)
        self.arrived({"log": b"last words\n"})

    def test_what_makes_no_sense_is_refused_before_ranks_start(self):
        for offload, data, said in (
                ("input=https://x/", f"input:{self.seen}:rw", "an HTTP server takes no files"),
                (f"input={self.uri}", f"input:{self.seen}", "ranks do not write into the data space input"),
                (f"other={self.uri}", f"input:{self.seen}:rw", "ranks do not write into the data space other")):
            done = self.lab.mend("run", "--hosts", "node1", "--data", data, "--offload", offload, "--", "true", cwd=self.directory)
            self.assertEqual(done.returncode, BAD_VALUE)
            self.assertIn(said, done.stderr)


class Servers(Offloads):
    """Servers on the lab's head node, with files in `away`."""

    SECRET = "offload-secret-that-must-not-leak"

    def setUp(self):
        super().setUp()
        os.mkdir(self.away)
        self.port = random.randrange(11000, 20000)

    def serve(self, command):
        log = self.enterContext(open(os.path.join(self.directory, "server.log"), "ab"))
        server = subprocess.Popen([MEND, "lab", "exec", "--name", self.lab.name, "head", "--", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.lab.environment)
        self.addCleanup(lambda: (server.kill(), server.wait()))
        until = time.monotonic() + PATIENCE
        listening = f"grep -q ':{self.port:04X} [0:]* 0A ' /proc/net/tcp /proc/net/tcp6"
        while self.lab.on("head", "sh", "-c", listening).returncode:
            self.assertIsNone(server.poll(), "the server ended")
            self.assertLess(time.monotonic(), until, "the server does not listen")
            time.sleep(0.1)

    def credentials(self, text):
        path = self.write("secret", text.encode())
        os.chmod(path, 0o600)
        return ("--credentials", f"file:{path}")

    def all_of_it(self, uri, *options, there=lambda: None):
        """Files of all kinds, changed ones, and what is left of senders that are killed."""
        self.fill(a_b__c_d=20 * MIB + 7, empty=0, percent__x=70_000)
        self.offload(*options, uri=uri)
        there()
        self.fill(percent__x=70_000, new=5)
        done = json.loads(self.offload("--json", *options, uri=uri).stdout)
        self.assertEqual((sorted(one["name"] for one in done["sent"]), done["already"], done["left"]), (["new", "percent/x"], 2, []))
        there()
        self.fill(large=60 * MIB)
        script = '"$@" & pid=$!; sleep "$0"; kill -KILL $pid; wait $pid'
        for _ in range(4):
            delay = f"{self.random.uniform(0.3, 2):.3f}"
            self.lab.on("head", "sh", "-c", script, delay, MEND, "data", "offload", "input:", uri, "--quiet", "--settle", "0", *options, cwd=self.directory)
        self.offload(*options, uri=uri)
        there()

    def test_webdav(self):
        config = self.write("dav.json", json.dumps({
            "host": "127.0.0.1", "port": self.port, "provider_mapping": {"/": self.away}, "simple_dc": {"user_mapping": {"*": {"me": {"password": self.SECRET}}}},
            "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
        }).encode())
        self.serve([installed(self, "wsgidav"), "--config", config])
        options = self.credentials(f"user = me\npassword = {self.SECRET}\n")
        uri = f"webdav://127.0.0.1:{self.port}/run 7"
        self.all_of_it(uri, *options, there=lambda: self.arrived(away=os.path.join(self.away, "run 7")))
        wrong = self.credentials("user = me\npassword = wrong\n")
        self.fill(refused=5)
        self.assertIn("401", self.offload(*wrong, uri=uri, code=UNREACHABLE).stderr)

    def test_ftp(self):
        installed(self, "wsgidav")
        self.serve([os.path.join(SERVERS, "python3"), "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(self.port), "-d", self.away, "-u", "me", "-P", self.SECRET, "-w"])
        options = self.credentials(f"password = {self.SECRET}\n")
        # What OpenDAL had begun under a name of its own stays when it is killed.
        there = lambda: self.assertEqual({name: found == self.files.get(name) for name, found in self.there(os.path.join(self.away, "run7")).items() if name in self.files},
                                         dict.fromkeys(self.files, True))
        self.all_of_it(f"ftp://me@127.0.0.1:{self.port}/run7/", *options, there=there)

    def test_sftp(self):
        if not (os.path.exists("/usr/sbin/sshd") and shutil.which("ssh")):
            self.skipTest("no server: `make setup` as root installs openssh-server")
        place = os.path.join(self.directory, "ssh")
        os.mkdir(place)
        for name in ("host", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{place}/{name}"], check=True)
        os.rename(f"{place}/key.pub", f"{place}/authorized")
        config = self.write("ssh/sshd_config", f"""ListenAddress 127.0.0.1:{self.port}
HostKey {place}/host
AuthorizedKeysFile {place}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
""".encode())
        self.serve(["sh", "-c", f'[ "$(id -u)" = 0 ] && mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e -f {config}'])
        with open(f"{place}/host.pub", encoding="ascii") as file:
            key = " ".join(file.read().split()[:2])
        self.write("ssh/known", f"[127.0.0.1]:{self.port} {key}\n".encode())
        self.write("ssh/config", f"UserKnownHostsFile {place}/known\nIdentitiesOnly yes\n".encode())
        wrapped = self.write("bin/ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {place}/config "$@"\n'.encode())
        os.chmod(wrapped, 0o755)
        path = self.lab.environment["PATH"]
        self.addCleanup(self.lab.set, "PATH", path)
        self.lab.set("PATH", os.path.dirname(wrapped) + os.pathsep + path)
        options = self.credentials(f"key = {place}/key\nuser = {pwd.getpwuid(os.geteuid()).pw_name}\n")
        self.all_of_it(f"sftp://127.0.0.1:{self.port}{self.away}/run7", *options, there=lambda: self.arrived(away=os.path.join(self.away, "run7")))

    def test_s3(self):
        store = ObjectStore(self.directory)
        self.addCleanup(store.end)
        for name, value in store.variables.items():
            self.lab.set(name, value)
            self.addCleanup(self.lab.set, name, None)
        store.start(self.lab)

        def there():
            """As another client reads it."""
            copied = os.path.join(self.directory, "copied")
            shutil.rmtree(copied, ignore_errors=True)
            self.data("stage", "s3://lab/run 7/", copied + "/")
            self.arrived(away=copied)

        self.all_of_it("s3://lab/run 7", there=there)
        # Nobody else's object is replaced.
        other = self.write("other", b"precious")
        self.fill(taken=100)
        put = self.lab.on("head", "curl", "-sf", "--aws-sigv4", "aws:amz:us-east-1:s3", "-u", f"{store.variables['AWS_ACCESS_KEY_ID']}:{STORE_SECRET}", "-T", other,
                          f"{store.variables['AWS_ENDPOINT_URL']}/lab/run%207/taken")
        self.assertEqual(put.returncode, 0, put.stderr)
        self.assertIn("another file of that name is there", self.offload(uri="s3://lab/run 7", code=1).stderr)
        self.uri = "s3://lab/job"
        command = ["run", "-n", "2", "--hosts", "node1,node2", "--data", f"input:{self.seen}:rw", "--offload", f"input={self.uri}", "--", sys.executable, PROGRAM, "rounds",
                   self.seen, "4"]
        self.lab.start(self.directory, *command).finish(0)
        self.data("stage", "s3://lab/job/round 3/rank.1", "back")
        with open(os.path.join(self.directory, "back"), "rb") as file:
            self.assertTrue(file.read() == content(1, 3))
        leaks = subprocess.run(["grep", "-rlF", STORE_SECRET, self.lab.on("head", "sh", "-c", 'echo "$MEND_HOME/spaces"').stdout.strip()], capture_output=True, text=True, check=False)
        self.assertEqual(leaks.stdout, "")
