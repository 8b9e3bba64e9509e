"""A real Slurm (slurmctld, munged, a slurmd per node) on a lab's nodes, for the tests of jobs that run in its allocations. As root only:
slurmd changes users.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from cluster import PATIENCE, Failed, Lab, NotHere

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "sinfo")
# Every node's own: sockets, process ids, what slurmd spools.
SCRATCH = "/mnt/scratch/slurm"
PROCESSORS = 4

CONFIGURATION = """
ClusterName=lab
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={scratch}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={shared}/state
SlurmdSpoolDir={scratch}/spool
SlurmctldPidFile={scratch}/slurmctld.pid
SlurmdPidFile={scratch}/slurmd.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait={kill_wait}
SlurmdTimeout=10
OverTimeLimit=0
MinJobAge=300
BatchStartTimeout=60
JobRequeue=1
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName=node[1-{nodes}] CPUs={processors} State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} MaxTime=60 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=60 State=UP
"""


def needed():
    """Raises `NotHere` where Slurm cannot run."""
    if os.geteuid() != 0:
        raise NotHere("Slurm: slurmd changes users, which an ordinary user may not: run the tests as root")
    missing = [name for name in PROGRAMS if not shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")]
    if missing:
        raise NotHere(f"Slurm: no {', '.join(missing)} here; install the packages slurm-wlm and munge")


def needed_by_tests():
    """Skips them where Slurm cannot run."""
    try:
        needed()
    except NotHere as reason:
        raise unittest.SkipTest(str(reason)) from None


class SlurmLab(Lab):
    """A lab without daemons of ours, whose nodes are Slurm's."""

    def __init__(self, nodes=3, kill_wait=30, grace=20):
        super().__init__(nodes, "--no-daemons")
        self.kill_wait, self.grace = kill_wait, grace
        self.processes = []

    def __enter__(self):
        needed()
        super().__enter__()
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
        super().__exit__()
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def begin(self):
        self.directory = tempfile.mkdtemp(prefix="mend-slurm-")
        os.chmod(self.directory, 0o755)
        path = {"scratch": SCRATCH, "shared": self.directory, "logs": self.directory, "nodes": self.nodes, "processors": PROCESSORS}
        with open(os.path.join(self.directory, "slurm.conf"), "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(kill_wait=self.kill_wait, grace=self.grace, **path))
        os.mkdir(os.path.join(self.directory, "state"))
        with open(os.path.join(self.directory, "munge.key"), "wb") as file:
            file.write(os.urandom(128))
        os.chmod(os.path.join(self.directory, "munge.key"), 0o400)
        self.environment["SLURM_CONF"] = os.path.join(self.directory, "slurm.conf")
        self.environment["PATH"] += ":/usr/sbin:/sbin"
        for node in ("head", *self.node_names()):
            self.begin_munge(node)
        self.background("head", "slurmctld", "-D", "-c")
        for node in self.node_names():
            self.begin_slurmd(node)
        self.wait_for(lambda: self.states() == {name: "idle" for name in self.node_names()}, "all of Slurm's nodes are idle")

    def node_names(self):
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    def begin_munge(self, node):
        # It wants its key and its directories for its user alone; its own state is of no interest to anyone.
        script = f"""mkdir -p {SCRATCH}/spool && cp {self.directory}/munge.key {SCRATCH}/key && chmod 400 {SCRATCH}/key && chmod 755 {SCRATCH} &&
exec munged --foreground --force --key-file={SCRATCH}/key --socket={SCRATCH}/munge.socket --pid-file={SCRATCH}/munge.pid \
--log-file={SCRATCH}/munge.log --seed-file={SCRATCH}/munge.seed --num-threads=2"""
        self.background(node, "sh", "-c", script)
        self.wait_for(lambda: self.on(node, "munge", "-n", f"--socket={SCRATCH}/munge.socket").returncode == 0, f"munged on {node} answers")

    def begin_slurmd(self, node):
        self.background(node, "slurmd", "-D", "-N", node)

    def background(self, node, *command):
        log = os.path.join(self.directory, f"{command[0]}-{node}.out")
        with open(log, "ab") as out:
            full = self.command()[:-1]
            full[full.index("head")] = node
            process = subprocess.Popen([*full, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment)
        self.processes.append(process)
        return process

    def wait_for(self, condition, what, patience=PATIENCE):
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > patience:
                raise Failed(f"still waiting after {patience} s for: {what}\n{self.logs()}")
            time.sleep(0.2)

    def logs(self):
        """The last lines of what Slurm's daemons said."""
        said = []
        for name in sorted(os.listdir(self.directory)):
            if name.endswith((".log", ".out")):
                with open(os.path.join(self.directory, name), encoding="utf-8", errors="replace") as file:
                    said.append(f"--- {name}\n" + "".join(file.readlines()[-15:]))
        return "\n".join(said)

    def slurm(self, *command):
        """Runs one of Slurm's commands on `head`; what it prints."""
        done = self.on("head", *command)
        if done.returncode:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}\n{self.logs()}")
        return done.stdout

    def states(self):
        """The state of each node, as sinfo says."""
        done = self.on("head", "sinfo", "-h", "-N", "-p", "low", "-o", "%N %T")
        return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)

    def submit(self, directory, script, *options):
        """Has a batch script queued; the job's number. Its output goes to `out` there."""
        path = os.path.join(directory, "job.sh")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + script)
        out = os.path.join(directory, "out")
        said = self.slurm("sbatch", "--parsable", "--open-mode=append", "-o", out, "-D", directory, *options, path)
        return int(said.strip().split(";")[0])

    def state_of(self, number):
        """The state of a job of Slurm's."""
        found = re.search(r"JobState=(\S+)", self.slurm("scontrol", "show", "job", str(number)))
        return found[1] if found else "UNKNOWN"

    def wait_state(self, number, *wanted, patience=PATIENCE):
        self.wait_for(lambda: self.state_of(number) in wanted, f"job {number} is {' or '.join(wanted)}", patience)
