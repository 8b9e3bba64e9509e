#!/usr/bin/env python3
"""Random checkpoints, migrations and restarts over real jobs, whose results must be those of undisturbed runs.

    events.py [--events N] [--minutes M] [--seed S] [--scenario K]

A scenario is an application (LAMMPS, IMB-MPI1, a checksummed storm of messages, compute-and-reduce, or a program of
tests/apps/conformance, each of which has a part of MPI under way), 2 or 4 ranks, 1 to 3 nodes and what the channels are
made of. All is drawn from the seed; the applications come in turn, in an order drawn once. While its job runs, events
come at random moments; a restart kills the job and continues it from its last checkpoint, on hosts drawn anew. A job that has
a checkpoint goes on by itself when a daemon, or a rank, is killed. What comes out must be what an undisturbed run on default channels says. Goes on until N events (or M minutes) are over. The seed and
the number of the scenario are printed with every failure: with --scenario only that one is run again.
"""

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "demo")]
import compare  # noqa: E402
from cluster import Failed, Lab, Tally, compile_mpi, find_imb, find_lammps, imb_rows, replays  # noqa: E402
from test_conformance import DISTURBED, NOT_RESTARTED, OTHER_CHANNELS, compiled, right  # noqa: E402

KILLED = 137
KINDS = ("checkpoint", "migrate", "restart", "lose", "crash")
# What ends a rank, by its number: SIGKILL, SIGSEGV, SIGBUS, SIGABRT.
SIGNALS = (9, 11, 7, 6)
# Events of one scenario, at most: few enough that 200 events see every application.
EVENTS = 10
# Seconds that a job may take to be gone whose first process ends.
ENDING = 60
# Why a move is given up if a peer ends that was to stop for it, as children of `spawn` do all the time in its first rounds.
PEER_ENDED = ("its agent went away", "closed their channels")
APPLICATIONS = ["melt", "imb", "checksums", "iters", *DISTURBED]
CHANNELS = (None, *OTHER_CHANNELS)
MELT = os.path.join(os.path.dirname(HERE), "demo", "in.melt")


def output(directory, stream="stdout"):
    with open(os.path.join(directory, stream), encoding="utf-8") as file:
        return file.read()


def last_line(prefix, text):
    """The result of an application that ends with one digest line."""
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0].startswith(prefix):
        raise Failed(f"expected one line `{prefix}…`, got {lines[-3:]}")
    return lines


class Scenario:
    """What is run, drawn from a seed."""

    def __init__(self, seed, number, programs):
        self.random = random.Random(f"{seed}/{number}")
        self.ranks = self.random.choice([2, 4])
        self.nodes = self.random.choice([1, 2, 3, 3])
        self.channels = self.random.choice(CHANNELS)
        order = random.Random(f"{seed}/applications").sample(APPLICATIONS, len(APPLICATIONS))
        self.name = order[number % len(order)]
        if self.name == "melt":
            self.argv = [find_lammps(), "-in", MELT, "-var", "x", "10", "-var", "y", "10", "-var", "z", "10", "-var", "steps", "4000"]
        elif self.name == "imb":
            self.argv = [find_imb(), "-iter", "400", "-iter_policy", "off", "-time", "60", "-msglog", "16",
                         "PingPong", "Sendrecv", "Allreduce", "Alltoall", "Bcast"]
        elif self.name == "checksums":
            self.argv = [programs["checksums"], "-s", "7", "-r", "300"]
        elif self.name == "iters":
            self.argv = [programs["iters"], "-i", "120", "-w", "200", "-m", "24", "-u", "go"]
        else:
            self.argv = [programs[self.name], "-u", "go"]

    def __str__(self):
        return f"{self.name}, {self.ranks} ranks, {self.nodes} node(s), channels {self.channels or 'by default'}"

    def key(self):
        return self.name, self.ranks

    def events(self):
        """What may happen to it."""
        kinds = ["checkpoint"] * 3 + ["migrate"] * 3
        return kinds if self.name in NOT_RESTARTED else kinds + ["restart"] * 2 + ["lose", "crash"]

    def differences(self, plain, shaken):
        again = replays(output(shaken, "stderr"))
        if self.name == "melt":
            return compare.differences(plain, shaken, again)
        if self.name == "imb":
            a, b = imb_rows(output(plain)), imb_rows(output(shaken))
            if compare.equal_but_for_replays(a, b, again):
                return []
        elif self.name in DISTURBED:
            a, b = [right(self.name, self.ranks)], [output(shaken)]
        else:
            a, b = last_line(self.name, output(plain)), last_line(self.name, output(shaken))
        return [] if a == b else [f"results differ: {a[-1]} / {b[-1]}"]


class Shaker:
    """One job under random events."""

    def __init__(self, lab, scenario, directory):
        self.lab, self.scenario, self.directory = lab, scenario, directory
        self.random = scenario.random
        self.all = [f"node{i + 1}" for i in range(scenario.nodes)]
        self.hosts = self.all
        self.done = dict.fromkeys(KINDS, 0)
        self.checkpoints = 0
        self.healed = 0
        self.name = None
        self.job = None

    def start(self):
        # As many hosts get ranks as the scenario wants; all of them may be targets.
        first = self.random.randint(1, len(self.hosts))
        place = ["-n", str(self.scenario.ranks), "--hosts", ",".join(self.hosts[:first])]
        if first < len(self.hosts):
            place += ["--spares", ",".join(self.hosts[first:])]
        self.job = self.lab.start(self.directory, "run", *place, "--", *self.scenario.argv)
        self.name = self.lab.running(self.job)

    def wait_until_running(self):
        """Restarted close to its end, a job may be through before anybody looks."""
        try:
            self.lab.running(self.job)
        except Failed:
            if self.job.poll() != 0:
                raise

    def verb(self, *arguments):
        """A verb that may come too late; False if the job had ended by then."""
        began = time.monotonic()
        while (done := self.lab.mend(*arguments)).returncode:
            if any(text in done.stderr for text in ("ended", "not running", "no job that runs", "is lost")):
                return False
            comes_and_goes = self.scenario.name == "spawn" and any(text in done.stderr for text in PEER_ENDED)
            if not comes_and_goes or time.monotonic() - began > ENDING:
                break
            time.sleep(0.2)
        else:
            return True
        if "the process is ending" in done.stderr and self.ends():
            return False
        raise Failed(f"mend {' '.join(arguments)}: {done.stderr.strip()}")

    def ends(self):
        """Whether the job is at its end: its processes go one by one."""
        began = time.monotonic()
        while self.job.poll() is None and time.monotonic() - began < ENDING:
            time.sleep(0.05)
        return self.job.poll() is not None

    def event(self):
        safe = self.checkpoints > 0
        possible = {"checkpoint": True, "migrate": len(self.hosts) > 1, "restart": safe, "lose": safe and len(self.hosts) > 1, "crash": safe}
        kind = self.random.choice([kind for kind in self.scenario.events() if possible[kind]])
        if kind == "checkpoint":
            happened = self.verb("checkpoint", self.name)
            self.checkpoints += happened
        elif kind == "migrate":
            happened = self.verb("migrate", self.name, str(self.random.randrange(self.scenario.ranks)))
        elif kind in ("lose", "crash"):
            happened = self.harm(kind)
        else:
            # The job may end by itself just before.
            happened = self.verb("kill", self.name) and self.job.finish(None) == KILLED
            if happened:
                # A restart has only the hosts it is given: later migrations go among them. Now and then they are fewer.
                count = self.random.choice([len(self.all), len(self.all), self.random.randint(1, len(self.all))])
                hosts = self.hosts = self.random.sample(self.all, count)
                self.job = self.lab.start(self.directory, "restart", self.name, "--hosts", ",".join(hosts))
                self.wait_until_running()
        self.done[kind] += happened
        return happened

    def harm(self, kind):
        """Kills a daemon that has ranks, or a rank, and waits until the job has gone on. False if it ended meanwhile."""
        rank = self.random.randrange(self.scenario.ranks)
        try:
            node = self.lab.places(self.name)[rank]
        except (StopIteration, IndexError, TypeError, Failed):
            # It has ended, or is about to.
            self.ends()
            return False
        if kind == "lose":
            self.lab.kill_daemon(node)
        elif not self.lab.kill_rank(node, rank, self.random.choice(SIGNALS)):
            return False
        went_on = lambda: self.job.stderr().count("goes on by itself") > self.healed
        while not went_on() and self.job.poll() is None:
            time.sleep(0.02)
        if kind == "lose":
            self.lab.start_daemon(node, self.directory)
        if not went_on():
            # All had ended before.
            return False
        self.healed += 1
        self.wait_until_running()
        return True

    def run(self, quota):
        self.start()
        while sum(self.done.values()) < quota and self.job.poll() is None:
            time.sleep(self.random.uniform(0, 0.2))
            if not self.event():
                break
        self.job.let_go()
        self.job.finish(0)
        happened = [(one["event"], one["data"]) for one in self.lab.verb("log", self.name) if one["event"] in ("went_back", "not_in_place")]
        self.done["back in place"] = sum(event == "went_back" for event, _ in happened)
        for _, why in (one for one in happened if one[0] == "not_in_place"):
            print(f"  restarted alone: {why['why']}")
        if "no ofi channels here" in self.job.stderr():
            raise Failed("the channels were not those that were drawn")


def run_scenario(lab, number, seed, programs, baselines, work, quota):
    scenario = Scenario(seed, number, programs)
    lab.choose_channels(None)
    plain = baselines.get(scenario.key())
    if plain is None and scenario.name not in DISTURBED:
        plain = os.path.join(work, "plain-{}-{}".format(*scenario.key()))
        os.makedirs(plain)
        lab.undisturbed("-n", str(scenario.ranks), "--hosts", "node1", "--", *scenario.argv, directory=plain)
        baselines[scenario.key()] = plain
    lab.choose_channels(scenario.channels)
    directory = os.path.join(work, f"scenario-{number}")
    os.makedirs(directory)
    shaker = Shaker(lab, scenario, directory)
    try:
        shaker.run(quota)
        found = scenario.differences(plain, directory)
        if found:
            raise Failed("; ".join(found))
    except Failed as error:
        if shaker.job:
            shaker.job.end()
        raise Failed(f"seed {seed} scenario {number} ({scenario}), after {shaker.done}: {error}\n  files in {directory}") from None
    shutil.rmtree(directory, ignore_errors=True)
    return scenario, shaker.done


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=0, help="go on this long instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", type=int, help="only this one")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-events-")
    programs = {
        "checksums": compile_mpi("mpi_checksums.c", os.path.join(work, "checksums")),
        "iters": compile_mpi("mpi_iters.c", os.path.join(work, "iters")),
        **compiled(work, DISTURBED),
    }
    total = dict.fromkeys(KINDS, 0)
    tally, baselines = Tally(), {}
    began = time.monotonic()

    def more():
        if arguments.minutes:
            return time.monotonic() - began < 60 * arguments.minutes
        return sum(total.values()) < arguments.events

    def case(lab, number):
        quota = EVENTS if arguments.minutes else min(EVENTS, arguments.events - sum(total.values()))
        # Ranks whose processes live go back in place, or all are restarted.
        lab.set("MEND_ON_FAILURE", "pause" if number % 4 else "restart")
        # Ranks move over each transport.
        lab.set("MEND_MIGRATE_TRANSPORT", "ofi" if number % 3 else "tcp")
        lab.set("MEND_MIGRATE_OFI_MODE", ("read", "write")[number % 3 % 2])
        scenario, done = run_scenario(lab, number, arguments.seed, programs, baselines, work, quota)
        back = done.pop("back in place", 0)
        for kind, count in done.items():
            total[kind] += count
        counts = ", ".join(f"{count} {kind}" for kind, count in done.items())
        return f"scenario {number}: {scenario}: {counts}, {back} ranks back in place; equal ({sum(total.values())} events so far)"

    with Lab(3) as lab:
        lab.set("MEND_RETRIES", "100")
        if arguments.scenario is None:
            numbers = itertools.takewhile(lambda _: more(), itertools.count())
        else:
            numbers = [arguments.scenario]
        tally.run(lambda number=number: case(lab, number) for number in numbers)
    counts = ", ".join(f"{count} {kind}" for kind, count in total.items())
    print(f"seed {arguments.seed}: {counts} in {time.monotonic() - began:.0f} s")
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
