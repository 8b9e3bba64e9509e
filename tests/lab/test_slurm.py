"""Jobs in allocations of a real Slurm: no host list, spare nodes, drained nodes, a time that is up, scripts that are queued again."""

import json
import os
import re
import unittest

from cases import InDirectory
from cluster import MEND, Failed, compile_mpi, processes_of
from slurm_cluster import SlurmLab, needed_by_tests

# Stays in its middle until there is a file `go`.
PROGRAM = "./iters -i 120 -w 20 -p 2000 -u go"


class InSlurm(InDirectory):
    """Batch jobs of three nodes, one at a time."""

    @classmethod
    def setUpClass(cls):
        needed_by_tests()
        super().setUpClass()
        cls.program = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))
        cls.lab = cls.enterClassContext(SlurmLab(3))
        cls.lab.set("MEND_ON_FAILURE", None)
        cls.lab.set("MEND_BATCH_POLL_S", "1")
        cls.expected = {}

    def setUp(self):
        super().setUp()
        os.symlink(self.program, os.path.join(self.directory, "iters"))
        self.batch = None

    def tearDown(self):
        if self.batch:
            self.lab.on("head", "scancel", "--signal=KILL", "--full", str(self.batch))
            self.lab.on("head", "scancel", str(self.batch))
            self.lab.wait_for(lambda: set(self.lab.states().values()) <= {"idle"}, "all nodes are idle again")
        self.lab.set("MEND_REQUEUE", None)

    def submit(self, script, *options):
        self.batch = self.lab.submit(self.directory, script, "-N3", "--ntasks-per-node=2", "--no-kill", *options)
        return self.batch

    def out(self):
        path = os.path.join(self.directory, "out")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def said(self, what, count=1):
        try:
            self.lab.wait_for(lambda: len(re.findall(what, self.out())) >= count, f"`{what}` in the batch job's output")
        except Failed as failure:
            raise Failed(f"{failure}: {self.out()}") from None

    def let_go(self):
        with open(os.path.join(self.directory, "go"), "w", encoding="utf-8"):
            pass

    def places(self):
        """The host of each rank of the job that runs, once all run."""
        found = []

        def look():
            jobs = self.lab.verb("ps")
            ranks = jobs[0].get("status", {}).get("ranks", []) if jobs else []
            found[:] = [rank["host"] for rank in ranks]
            return ranks and all(rank["state"] == "running" for rank in ranks)

        self.lab.wait_for(look, f"all ranks run: {self.out()}")
        return found

    def saved(self):
        self.places()
        return self.lab.verb("checkpoint")["number"]

    def digest(self, ranks):
        """What the program prints last on so many ranks."""
        if ranks not in self.expected:
            alone = self.lab.mend("run", "--quiet", "-n", str(ranks), self.program, *PROGRAM.split()[1:-2])
            self.assertEqual(alone.returncode, 0, alone.stderr)
            self.expected[ranks] = alone.stdout.strip().splitlines()[-1]
        return self.expected[ranks]

    def completed(self, ranks):
        self.lab.wait_state(self.batch, "COMPLETED")
        self.assertIn(self.digest(ranks), self.out())


class Jobs(InSlurm):
    def test_a_job_takes_the_nodes_of_its_allocation_and_leaves_one_that_is_drained(self):
        self.submit(f"exec {MEND} run -n 4 {PROGRAM}")
        self.assertEqual(self.places(), ["node1", "node1", "node2", "node2"])
        self.lab.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan is loud")
        try:
            self.lab.wait_for(lambda: self.places() == ["node1", "node1", "node3", "node3"], "the ranks leave node2")
            self.said("node2 is drained by the batch system: a fan is loud")
        finally:
            self.lab.slurm("scontrol", "update", "nodename=node2", "state=resume")
        self.said("node2 is not drained any more")
        self.let_go()
        self.completed(4)
        log = self.lab.mend("log").stdout
        self.assertRegex(log, "the batch system drains the node")

    def test_a_node_that_is_drained_before_the_job_begins_gets_no_rank(self):
        self.submit(f"until [ -e begin ]; do sleep 0.1; done\nexec {MEND} run -n 4 {PROGRAM}")
        self.lab.wait_state(self.batch, "RUNNING")
        self.lab.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan is loud")
        try:
            with open(os.path.join(self.directory, "begin"), "w", encoding="utf-8"):
                pass
            self.lab.wait_for(lambda: self.places() == ["node1", "node1", "node3", "node3"], "the ranks run elsewhere")
            self.said("left out: node node2 is drained by the batch system: a fan is loud")
        finally:
            self.lab.slurm("scontrol", "update", "nodename=node2", "state=resume")
        self.let_go()
        self.completed(4)

    def test_a_time_that_is_up_ends_the_job_at_a_checkpoint_and_the_same_script_goes_on(self):
        self.lab.set("MEND_REQUEUE", "always")
        self.submit(f"echo run ${{SLURM_RESTART_COUNT:-0}}\n{MEND} run -n 4 --tiers memory {PROGRAM}\necho code $?")
        self.places()
        # As --signal=TERM@SECONDS has it sent.
        self.lab.slurm("scancel", "--signal=TERM", str(self.batch))
        self.said(r"stopped at checkpoint \d")
        self.said("Slurm queues the batch job")
        self.said("is not finished: it goes on from its last checkpoint")
        self.let_go()
        self.said("^code 0$|\ncode 0\n")
        self.completed(4)
        self.assertEqual(self.out().count("run 1"), 1, self.out())

    def test_a_command_that_ended_with_75_by_itself_begins_anew_in_the_same_script(self):
        command = f"{MEND} run -n 1 sh -c 'until [ -e saved ]; do :; done; exit 75'"
        again = "[ ${SLURM_RESTART_COUNT:-0} = 1 ] || { scontrol requeue $SLURM_JOB_ID; sleep 600; }"
        self.submit(f"{command}\necho code $?\n{again}")
        self.saved()
        with open(os.path.join(self.directory, "saved"), "w", encoding="utf-8"):
            pass
        self.said("code 75", 2)
        self.assertNotIn("is not finished", self.out())

    def test_a_preempted_job_is_queued_again_by_itself(self):
        self.submit(f"{MEND} run -n 2 {PROGRAM}", "-p", "low")
        self.places()
        other = self.lab.submit(self.make("other"), "true", "-N3", "--exclusive", "-p", "high")
        self.said(r"stopped at checkpoint \d")
        self.lab.wait_state(other, "COMPLETED")
        self.said("goes on from its last checkpoint")
        self.let_go()
        self.completed(2)

    def make(self, name):
        path = os.path.join(self.directory, name)
        os.mkdir(path)
        return path

    def test_a_daemon_that_is_killed_costs_no_batch_job(self):
        self.submit(f"exec {MEND} run -n 4 {PROGRAM}")
        self.saved()
        self.lab.kill_daemon("node2")
        self.said("goes on by itself")
        self.assertEqual(sorted(set(self.places())), ["node1", "node3"])
        self.let_go()
        self.completed(4)

    def test_a_batch_script_without_numbers_runs_as_many_ranks_as_were_asked_for(self):
        self.submit(f"{MEND} run --quiet sh -c 'echo rank $PMI_RANK of $PMI_SIZE'\n{MEND} run --quiet --spare-nodes 1 sh -c 'echo spared $PMI_SIZE'")
        self.lab.wait_state(self.batch, "COMPLETED")
        self.assertEqual(sorted(re.findall(r"rank (\d) of 6", self.out())), list("012345"), self.out())
        self.assertEqual(len(re.findall("spared 4", self.out())), 4, self.out())

    def test_what_the_script_set_for_steps_of_its_own_does_not_reach_the_daemons(self):
        options = {"LABELIO": "1", "STDOUTMODE": "none", "STDINMODE": "none", "TIMELIMIT": "1", "CPUS_PER_TASK": "1", "EXPORT_ENV": "NONE"}
        exported = "\n".join(f"export SLURM_{name}={value}" for name, value in options.items())
        told = " ".join(f"{name}='{self.lab.environment[name]}'" for name in ("MEND_HOME", "MEND_BATCH_POLL_S", "PATH", "LD_LIBRARY_PATH", "SLURM_CONF") if name in self.lab.environment)
        self.submit(f"{exported}\nexport {told} SINFO_PARTITION=low SINFO_FORMAT=%P\nexec {MEND} run --quiet -n 6 sh -c 'echo rank $PMI_RANK of $PMI_SIZE'", "--export=NONE")
        self.lab.wait_state(self.batch, "COMPLETED")
        self.assertEqual(sorted(re.findall(r"rank (\d) of 6", self.out())), list("012345"), self.out())

    def test_one_of_many_tasks_is_told_how_it_is_done(self):
        self.submit(f"srun -n 2 {MEND} run -n 2 true; echo code $?\nMEND_BATCH=none {MEND} run --quiet -n 2 hostname")
        self.lab.wait_state(self.batch, "COMPLETED")
        self.assertIn("it is to be started once", self.out())
        self.assertIn("without srun", self.out())
        self.assertIn("code 64", self.out())
        self.assertEqual(self.out().count("node1\n"), 2, self.out())


class Failover(InSlurm):
    """A job in an allocation outlives its `mend run`."""

    def setUp(self):
        super().setUp()
        self.lab.set("MEND_SUCCESSOR", None)
        self.addCleanup(self.lab.set, "MEND_SUCCESSOR", "off")

    def record(self):
        """Of the job that runs: its name and what `job.json` says."""
        name = self.lab.verb("ps")[0]["id"]
        return name, json.loads(self.lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout)

    def daemons(self):
        """Process ids of the daemons that batch jobs of this Slurm have, on all nodes."""
        found, slurm = [], f"SLURM_CONF={self.lab.environment['SLURM_CONF']}".encode()
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/cmdline", "rb") as command, open(f"/proc/{process}/environ", "rb") as environment:
                    words, variables = command.read().split(b"\0"), environment.read().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"mendd") and b"--under-batch" in words and slurm in variables:
                found.append(process)
        return found

    def kill_controller(self):
        """SIGKILL to whoever has the job now; the job's name."""
        name, record = self.record()
        self.lab.on(record["controller_host"], "kill", "-KILL", str(record["controller_pid"]))
        return name

    def taken_over(self, name, times=1):
        events = lambda: [one["event"] for one in self.lab.verb("log", name)]
        self.lab.wait_for(lambda: events().count("took_over") == times, f"controllers were succeeded, so many: {times}; {self.out()}")

    def ends_well(self, name, ranks):
        """The script waits for it, and its output is whole: first the script's, then the spool's."""
        self.let_go()
        self.said("waited 0")
        self.lab.wait_for(lambda: not self.daemons(), "the daemons have ended with their job")
        self.lab.wait_state(self.batch, "COMPLETED")
        self.assertIn(self.digest(ranks), self.lab.mend("logs", name).stdout)
        self.assertEqual(self.record_of(name)["exit_code"], 0)

    def record_of(self, name):
        return json.loads(self.lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout)

    def test_ranks_run_on_when_mend_run_is_killed_and_its_successor_too(self):
        self.submit(f"{MEND} run -n 4 {PROGRAM}\necho killed $?\n{MEND} wait\necho waited $?")
        self.saved()
        before = processes_of(self.program)
        self.assertEqual(len(before), 4)
        for times in range(1, 4):
            name = self.kill_controller()
            self.taken_over(name, times)
            self.assertEqual(processes_of(self.program), before)
        self.said("killed 137")
        # The successor asks Slurm for nodes that drain, and has a daemon on the spare.
        self.lab.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan is loud")
        try:
            self.lab.wait_for(lambda: self.places() == ["node1", "node1", "node3", "node3"], "the ranks leave node2")
        finally:
            self.lab.slurm("scontrol", "update", "nodename=node2", "state=resume")
        self.ends_well(name, 4)

    def test_its_node_is_lost_with_the_step_s_command(self):
        """Ranks of other nodes run on, and the job goes on without that node."""
        # The command that has started it there waits for its node, and the script for nothing.
        self.submit(f"srun --overlap --no-kill -N1 -n1 -w node3 {MEND} run -n 2 {PROGRAM} & exec sleep infinity")
        self.assertEqual(self.places(), ["node1", "node2"])
        before = processes_of(self.program)
        name, record = self.record()
        self.assertEqual(record["controller_host"], "node3")
        self.lab.kill("node3")
        try:
            self.taken_over(name)
            self.assertEqual(processes_of(self.program), before)
            self.let_go()
            waited = self.lab.mend("wait", name)
            self.assertEqual(waited.returncode, 0, waited.stderr + self.lab.mend("log", name).stdout)
            self.assertIn(self.digest(2), self.lab.mend("logs", name).stdout)
            self.lab.wait_for(lambda: not self.daemons(), "the daemons have ended with their job")
        finally:
            type(self).lab.__exit__()
            type(self).lab = self.enterClassContext(SlurmLab(3))

    def test_later_commands_run_on_the_nodes_that_are_left(self):
        self.submit(f"{MEND} run -n 6 hostname\necho first $?\nuntil [ -e again ]; do sleep 0.1; done\n{MEND} run {PROGRAM}\necho second $?")
        self.said("first 0")
        self.lab.kill("node3")
        try:
            nodes = lambda: self.lab.on("head", "squeue", "-h", "-j", str(self.batch), "-o", "%N").stdout.strip()
            self.lab.wait_for(lambda: nodes() == "node[1-2]", "Slurm takes the node out of the job")
            with open(os.path.join(self.directory, "again"), "w", encoding="utf-8"):
                pass
            self.assertEqual(set(self.places()), {"node1", "node2"})
            self.assertIn("left out: node node3", self.out())
            self.let_go()
            self.said("second 0")
        finally:
            type(self).lab.__exit__()
            type(self).lab = self.enterClassContext(SlurmLab(3))

    def test_a_daemon_is_killed_after_it(self):
        """The successor has the job go on, in the allocation."""
        self.submit(f"{MEND} run -n 4 {PROGRAM}\necho killed $?\n{MEND} wait\necho waited $?")
        self.saved()
        name = self.kill_controller()
        self.taken_over(name)
        self.lab.kill_daemon("node2")
        self.lab.wait_for(lambda: sorted(set(self.places())) == ["node1", "node3"], "it has gone on")
        self.ends_well(name, 4)

    def test_a_time_that_is_up_reaches_the_successor(self):
        self.lab.set("MEND_REQUEUE", "always")
        self.submit(f"echo run ${{SLURM_RESTART_COUNT:-0}}\n{MEND} run -n 4 --tiers memory {PROGRAM}\necho code $?\n{MEND} wait\necho waited $?")
        self.places()
        name = self.kill_controller()
        self.taken_over(name)
        self.lab.slurm("scancel", "--signal=TERM", str(self.batch))
        self.said("is not finished: it goes on from its last checkpoint")
        self.let_go()
        self.said("code 0\n")
        self.completed(4)
        self.assertEqual(self.out().count("run 1"), 1, self.out())


if __name__ == "__main__":
    unittest.main()
