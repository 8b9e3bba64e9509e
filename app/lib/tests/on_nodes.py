"""Portable checkpoints on nodes of a lab: what their tests share."""

import os
import sys

from programs import ROOT, InDirectory, program, run, skip

sys.path += [os.path.join(ROOT, "tests"), os.path.join(ROOT, "tests", "lab")]

# So many cells and steps; each step takes 30 ms, so that there is time to copy, and for a test on a busy machine.
STEPS = ["500", "5000", "-p", "0", "30000"]
# Short steps for the first twelve seconds, then long ones: minutes in all, though a run that goes on without pauses has no more steps to do.
QUICK = ["-p", "0", "8000", "-p", "1500", "60000"]
FILES = "find /dev/shm/mend.* -path '*/portable/*' -name 'rank-*' | sed 's|.*/portable/||; s|/[0-9a-f]*/|/|' | sort"


class InLab(InDirectory):
    """Three nodes, and a program that takes steps."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import cluster

        if not os.path.exists(os.path.join(cluster.BIN, "mend")):
            skip("portable checkpoints in Mend's tiers", "Mend isn't built (make build)")
        cls.cluster = cluster
        cls.heat = program("heat")

    def setUp(self):
        super().setUp()
        self.prepare()
        self.lab = self.enterContext(self.cluster.Lab(3))

    def prepare(self):
        """Sets what nodes have to find in their environment."""

    def begin(self, tiers, hosts="node1,node2", steps=STEPS, options=()):
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", hosts, *(() if "node3" in hosts else ("--spares", "node3")), "--tiers", tiers, *options, "--", self.heat, *steps)
        name = self.lab.running(job)
        home = self.lab.on("head", "sh", "-c", "echo $MEND_HOME").stdout.strip()
        job.wait_for(lambda: self.lab.on("head", "sh", "-c", f"ls {home}/jobs/{name}/portable/*.library 2>/dev/null || true").stdout, "the library is there")
        return job, name

    def take(self, name):
        [taken] = self.lab.verb("checkpoint", name, "--portable", "--timeout", "60")
        return taken["checkpoint"]

    def listed(self, name):
        return {one["number"]: one["tiers"] for one in self.lab.verb("checkpoints", name) if one["kind"] == "portable"}

    def memory(self, node):
        return self.lab.on(node, "sh", "-c", FILES).stdout.split()

    def both(self, kind, numbers, ranks):
        return [f"{kind}/checkpoint-{number:06}/rank-{rank:05}.{suffix}" for number in numbers for rank in ranks for suffix in ("h5", "seal")]

    def undisturbed(self, *arguments):
        os.makedirs(self.path("undisturbed"), exist_ok=True)
        return self.line(self.good(run(1, [self.heat, *STEPS[:2], *arguments], self.path("undisturbed"))), "heat digest")

    def again(self, tiers, hosts, wanted, *arguments, ranks=4):
        """Runs the program again to its end; what standard error says."""
        job = self.lab.start(self.directory, "run", "-n", str(ranks), "--hosts", hosts, "--tiers", tiers, "--", self.heat, *STEPS[:2], *arguments)
        job.finish(0)
        said = job.stderr()
        self.assertIn(f"checkpoint {wanted} of 4 ranks is restored", said)
        self.assertEqual(self.line(job.stdout(), "heat digest"), self.undisturbed(*arguments))
        return said
