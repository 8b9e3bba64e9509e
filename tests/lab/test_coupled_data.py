"""Programs that exchange through files which their ranks write: partners are seen, come together, and then read from their node's cache; the result is the same wherever they are."""

import json
import os
import re
import unittest

from cases import InDirectory
from cluster import Lab, compile_mpi
from test_detach import until
from test_space import fuse_is_open

COMPUTE, STORAGE = "node1:2,node2:2", ("node3", "node4")
# Ranks that exchange with each other: the first node has the ranks 0 and 1.
PARTNERS = (0, 2), (1, 3)
RUNS = {
    "rounds": (["-n", "4", "io_rounds", "FILE", "-b", "2048", "-i", "0,2", "-r", "2", "-u", "go"], r"rounds ok digest=(\w+)"),
    "strided": (["-n", "4", "io_rounds", "FILE", "-b", "2048", "-i", "0,2", "-r", "2", "-s", "-u", "go"], r"rounds ok digest=(\w+)"),
    "members": (["-n", "2", "member_model", "SEEN", "4", "go", ":", "-n", "2", "member_filter", "SEEN"], r"(model|filter) digest=(\w+)"),
    "images": (["-n", "2", "image_sensor", "SEEN", "4", "go", ":", "-n", "2", "image_analysis", "SEEN"], r"(?:hid|found)=(\d+)|digest=(\w+)"),
}
PROGRAMS = "io_rounds", "member_model", "member_filter", "image_sensor", "image_analysis"


@unittest.skipUnless(fuse_is_open(), "this user may not open /dev/fuse, so no data space can be mounted")
class Coupled(InDirectory):
    """Two nodes that compute and two that store, with links that are slower than the machine."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for program in PROGRAMS:
            compile_mpi(f"{program}.c", os.path.join(cls.work, program))
        cls.lab = cls.enterClassContext(Lab(4, "--bandwidth", "300mbit"))

    def setUp(self):
        super().setUp()
        self.seen = os.path.join(self.directory, "seen")
        targets = [word for node in STORAGE for word in ("--target", f"{node}:{self.directory}/targets/{node}")]
        created = self.lab.mend("data", "create", "scratch", *targets)
        self.assertEqual(created.returncode, 0, created.stderr)
        self.addCleanup(self.lab.mend, "data", "destroy", "--force", "scratch")
        self.lab.set("MEND_FOLLOW_DATA_PAUSE_MS", "1000")
        self.addCleanup(self.lab.set, "MEND_FOLLOW_DATA_PAUSE_MS", None)

    def start(self, program, follow):
        words = {"FILE": f"{self.seen}/rounds.dat", "SEEN": self.seen, **{name: os.path.join(self.work, name) for name in PROGRAMS}}
        argv = [words.get(word, word) for word in RUNS[program][0]]
        job = self.lab.start(self.directory, "run", "--hosts", COMPUTE, "--data", f"scratch:{self.seen}:rw", "--follow-data", follow, *argv)
        return job, self.lab.running(job)

    def result(self, job, program):
        job.let_go()
        job.finish()
        os.remove(os.path.join(self.directory, "go"))
        said = job.stdout()
        os.truncate(os.path.join(self.directory, "stdout"), 0)
        os.truncate(os.path.join(self.directory, "stderr"), 0)
        found = re.findall(RUNS[program][1], said)
        self.assertTrue(found, said)
        return sorted(found)

    def patterns(self, name):
        done = self.lab.mend("data", "patterns", "scratch", "--job", name, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"ranks": [], "pairs": [], "moves": []}

    def passes_on(self, name):
        """What is seen, if partners write most of what the other one reads, and three windows of all ranks are full."""
        found = self.patterns(name)
        pairs = {tuple(pair["ranks"]): pair for pair in found["pairs"]}
        full = len(found["ranks"]) == 4 and all(rank["blocks"] >= 3 * 256 for rank in found["ranks"])
        return full and all(pair in pairs and pairs[pair]["passed_on"] > pairs[pair]["bytes"] / 2 for pair in PARTNERS) and found

    def together(self, name):
        places = self.lab.places(name)
        return all(places[one] == places[other] for one, other in PARTNERS)

    def check(self, program):
        # Where they are.
        job, name = self.start(program, "off")
        found = until(lambda: self.passes_on(name), "partners are seen")
        self.assertGreater(found["fetched"], 0)
        [step] = until(lambda: self.patterns(name)["moves"], "it is seen what would be saved")
        self.assertGreater(step["saves"], found["fetched"] * 0.2)
        apart = self.result(job, program)
        # Where they come by themselves, and stay.
        job, name = self.start(program, "auto")
        until(lambda: self.together(name), "partners are together")
        # The job says where they are before its journal does.
        moves = lambda: [entry for entry in self.lab.verb("log", name) if entry["event"] == "migration_committed"]
        until(lambda: len(moves()) >= 2, "the moves are in the journal")
        self.assertEqual(len(moves()), 2)
        # What one writes the other need not have sent: the newest windows have nothing else any more.
        until(lambda: (seen := self.passes_on(name)) and not seen["moves"] and seen["fetched"] < found["fetched"] / 3, "what is read comes from the node's cache")
        self.assertTrue(self.together(name))
        self.assertEqual(self.result(job, program), apart)
        # Where they are put.
        job, name = self.start(program, "off")
        self.lab.verb("migrate", name, "1", "--to", "node2")
        self.lab.verb("migrate", name, "2", "--to", "node1")
        self.assertEqual(self.result(job, program), apart)

    def test_rounds_of_mpi_io(self):
        self.check("rounds")

    def test_rounds_of_mpi_io_in_strides(self):
        self.check("strided")

    def test_a_model_and_its_filter(self):
        self.check("members")

    def test_sensors_and_analysis(self):
        self.check("images")


if __name__ == "__main__":
    unittest.main()
