"""Which ranks read the same parts of a data space is seen at its targets, and told with the moves that would be worth it; ranks follow their data."""

import json
import os
import shutil
import unittest
import xml.dom.minidom

from cases import MIB
from cluster import compile_mpi
from test_detach import until
from test_space import Space, fuse_is_open


# Ranks that read the same part of the file.
PARTNERS = (0, 2), (1, 3)


@unittest.skipUnless(fuse_is_open(), "/dev/fuse is not open to this user")
class Patterns(Space):
    # What a node's ranks read does not fit into its cache.
    SIZE, DAEMONS = 48 * MIB + 4321, {"MEND_SPACE_CACHE_MB": "8"}
    # Ranks wait for their data, however fast this machine is: else a move is worth it only after minutes.
    OPTIONS = ("--bandwidth", "800mbit")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = compile_mpi("shared_reads.c", os.path.join(cls.work, "shared_reads"))

    def setUp(self):
        super().setUp()
        self.stage()

    def start(self, *options, run=()):
        argv = [self.program, "/mnt/in/in.dat", *options, "-u", "go"]
        job = self.lab.start(self.directory, "run", "-n", "4", "--hosts", "node1:2,node2:2", "--spares", "node4", "--data", "input:/mnt/in", *run, "--", *argv)
        return job, self.lab.running(job)

    def seen(self, name, *options):
        return json.loads(self.data("patterns", "input", "--job", name, "--json", *options).stdout)

    def has_read(self, name, *pairs):
        """Waits until these pairs of ranks, and no others, are seen to read the same. The kernel reads ahead: neighbours share a few blocks."""
        def look():
            done = self.lab.mend("data", "patterns", "input", "--job", name, "--json")
            found = json.loads(done.stdout) if done.returncode == 0 else {"ranks": []}
            enough = len(found["ranks"]) == 4 and all(rank["blocks"] > 500 for rank in found["ranks"])
            return found if enough and {tuple(pair["ranks"]) for pair in found["pairs"] if pair["likeness"] > 0.5} == set(pairs) else None

        return until(look, "targets have seen what ranks read")

    def ends_well(self, job):
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), "reads ok\n")

    def test_partners_on_two_nodes_are_found_and_moving_them_together_saves_what_it_says(self):
        job, name = self.start()
        found = self.has_read(name, *PARTNERS)
        self.assertTrue(all(pair["passed_on"] == 0 for pair in found["pairs"]))
        self.assertEqual([rank["node"] for rank in found["ranks"]], ["node1", "node1", "node2", "node2"])
        # Nodes are full, so two ranks change places; then each part is fetched by one node.
        [step] = found["moves"]
        self.assertGreater(step["saves"], found["fetched"] * 0.4)
        for rank, to in ((step["rank"], step["to"]), (step["back"], step["from"])):
            self.lab.verb("migrate", name, str(rank), "--to", to)
        moved = lambda: (found := self.has_read(name, *PARTNERS)) and not found["moves"] and found
        until(moved, "nothing is left to be gained")
        self.ends_well(job)

    def test_people_see_a_map_and_the_moves(self):
        job, name = self.start()
        self.has_read(name, *PARTNERS)
        said = self.data("patterns", "input", "--svg", os.path.join(self.directory, "heat.svg")).stdout
        self.assertIn(f"job {name}: 4 ranks on 2 nodes", said)
        self.assertIn(f"`mend migrate {name} RANK --to NODE` makes them", said)
        self.assertRegex(said, r"0 \(node1\) +2 \(node2\)")
        picture = xml.dom.minidom.parse(os.path.join(self.directory, "heat.svg"))
        self.assertGreater(len(picture.getElementsByTagName("rect")), 16)
        def alike():
            # Eight passes of each rank, so that each of eight intervals is one, wherever the rank was when its node told of it.
            pairs = self.seen(name, "--paper", "--window", "3080")["pairs"]
            return len(pairs) == 6 and all(pair["alike"] for pair in pairs if tuple(pair["ranks"]) in PARTNERS)

        until(alike, "the paper's rule finds partners")
        self.ends_well(job)

    def test_where_nobody_shares_anything_nobody_is_to_move(self):
        job, name = self.start("-o")
        self.assertEqual(self.has_read(name)["moves"], [])
        self.assertIn("no move would save anything", self.data("patterns", "input", "--job", name).stdout)
        self.ends_well(job)

    def looks_every(self, milliseconds):
        """Has targets asked that often during this test."""
        self.lab.set("MEND_FOLLOW_DATA_PAUSE_MS", milliseconds)
        self.addCleanup(self.lab.set, "MEND_FOLLOW_DATA_PAUSE_MS", None)

    def followed(self, name, *kinds):
        return [entry for entry in self.lab.verb("log", name) if entry["event"] in kinds]

    def test_ranks_move_to_their_data_and_then_stay(self):
        self.looks_every("1000")
        job, name = self.start(run=("--follow-data", "auto"))

        def together():
            places = self.lab.places(name)
            return all(places[one] == places[other] for one, other in PARTNERS) and self.followed(name, "migration_committed")

        until(together, "partners are together")
        # Two ranks have changed places; no node has more ranks than before.
        self.assertEqual(sorted(self.lab.places(name)), ["node1", "node1", "node2", "node2"])
        [went] = self.followed(name, "follows_data")
        self.assertTrue(went["data"]["goes"] and went["data"]["gain_s"] > went["data"]["price_s"])
        self.assertIsNotNone(went["data"]["with"])
        self.assertRegex(job.stderr(), r"mend: rank \d moves from node\d to node\d, in exchange for rank \d, where its data is")
        self.assertIn("its data is there", self.lab.mend("explain", name, "--why").stdout)
        # Each part is fetched by one node, and nobody goes back.
        until(lambda: (found := self.has_read(name, *PARTNERS)) and not found["moves"], "nothing is left to be gained")
        self.assertEqual(len(self.followed(name, "migration_committed")), 2)
        self.ends_well(job)

    def reasons(self, name):
        return [entry["data"]["why"] for entry in self.followed(name, "stays_from_data") if "would begin to cross nodes" in entry["data"]["why"]]

    def test_who_exchanges_more_by_mpi_with_a_neighbour_stays(self):
        self.looks_every("1000")
        quiet = os.path.join(self.directory, "quiet")
        # Neighbours exchange more than partners on one node would save.
        job, name = self.start("-x", "40", "-q", quiet, run=("--follow-data", "auto"))
        [why, *_] = until(lambda: self.reasons(name), "messages keep ranks where they are")
        self.assertRegex(why, r"MPI messages of [\d.]+ [KMG]iB/s would begin to cross nodes .* and [\d.]+ [KMG]iB/s need not be fetched")
        self.assertIn("would begin to cross nodes", self.lab.mend("explain", name, "--why").stdout)
        self.assertEqual(self.followed(name, "follows_data", "migration_asked"), [])
        self.assertEqual(self.lab.places(name), ["node1", "node1", "node2", "node2"])
        # Without the messages the same ranks move.
        open(quiet, "w").close()
        until(lambda: all(len({self.lab.places(name)[rank] for rank in pair}) == 1 for pair in PARTNERS), "partners are together")
        self.ends_well(job)

    def test_what_ranks_exchange_is_known_after_a_restart_too(self):
        self.looks_every("1000")
        job, name = self.start("-x", "40", run=("--follow-data", "auto"))
        until(lambda: self.reasons(name), "messages keep ranks where they are")
        # The counters of the fabric are in the image.
        self.lab.verb("checkpoint", name)
        before = len(self.reasons(name))
        self.lab.verb("kill", name)
        job.process.wait()
        again = self.lab.start(self.directory, "restart", name)
        until(lambda: len(self.reasons(name)) > before, "messages keep ranks where they are in the second life")
        self.assertEqual(self.followed(name, "follows_data", "migration_asked"), [])
        again.let_go()
        again.finish()

    def test_advice_is_in_the_journal_and_nobody_moves(self):
        self.looks_every("1000")
        job, name = self.start()
        [told] = until(lambda: self.followed(name, "follows_data"), "a move would pay")
        self.assertFalse(told["data"]["goes"])
        self.assertIn("would gain by moving to its data", self.lab.mend("log", name).stdout)
        self.assertEqual(self.lab.places(name), ["node1", "node1", "node2", "node2"])
        self.assertEqual(self.followed(name, "migration_asked"), [])
        self.ends_well(job)

    def test_who_is_alike_by_diagrams_moves_if_that_is_the_rule(self):
        # A look sees what was read since the last one: several windows, each of about eight passes of a rank. Each of a window's eight intervals is a pass then, wherever the
        # ranks were when it began.
        self.looks_every("15000")
        self.lab.set("MEND_FOLLOW_DATA_RULE", "diagrams")
        self.addCleanup(self.lab.set, "MEND_FOLLOW_DATA_RULE", None)
        job, name = self.start(run=("--follow-data", "auto"))
        until(lambda: all(len({self.lab.places(name)[rank] for rank in pair}) == 1 for pair in PARTNERS), "partners are together")
        self.assertEqual(sorted(self.lab.places(name)), ["node1", "node1", "node2", "node2"])
        self.ends_well(job)

    def test_ranks_of_another_job_are_seen_and_nobody_moves_for_them(self):
        self.looks_every("1000")
        # Of each job's two ranks both read a half of their own: what they share is with the other job.
        alone = ["-n", "2", "--data", "input:/mnt/in", "--follow-data", "auto"]
        argv = ["--", self.program, "/mnt/in/in.dat", "-o", "-u", "go"]
        jobs, names = [], []
        for number, hosts in enumerate(["node1:1,node2:1", "node3:1,node4:1"]):
            directory = os.path.join(self.directory, str(number))
            os.mkdir(directory)
            jobs.append(self.lab.start(directory, "run", *alone, "--hosts", hosts, *argv))
            names.append(self.lab.running(jobs[-1]))
        for name, other in (names, reversed(names)):
            told = until(lambda: len(found := self.followed(name, "shares_with_job")) >= 2 and found, "what both jobs read is told")
            self.assertEqual({(entry["rank"], entry["data"]["job"], entry["data"]["other"]) for entry in told}, {(0, other, 0), (1, other, 1)})
            self.assertIn(f"of job {other} does, too, on node", self.lab.mend("explain", name, "--why").stdout)
            self.assertEqual(self.followed(name, "follows_data", "migration_asked"), [])
            seen = self.seen(name)["other_jobs"]
            self.assertEqual({(one["rank"], one["job"], one["other"]) for one in seen if one["likeness"] > 0.5}, {(0, other, 0), (1, other, 1)})
            said = self.data("patterns", "input", "--job", name).stdout.split("nobody moves for them:\n")[1]
            self.assertRegex(said, rf"\n0 \(node\d\) +{other} +0 \(node\d\)")
        for job in jobs:
            self.ends_well(job)

    def test_a_successor_of_the_controller_looks_as_well(self):
        self.looks_every("1000")
        self.lab.set("MEND_SUCCESSOR", None)
        self.addCleanup(self.lab.set, "MEND_SUCCESSOR", "off")
        job, name = self.start()
        record = json.loads(self.lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout)
        self.lab.on(record["controller_host"], "kill", "-9", str(record["controller_pid"]))
        until(lambda: self.followed(name, "follows_data"), "a move would pay")
        self.assertEqual(self.followed(name, "took_over", "follows_data")[0]["event"], "took_over")
        job.let_go()
        self.assertEqual(self.lab.mend("wait", name).returncode, 0)
        self.assertEqual(job.stdout() + self.lab.mend("logs", name).stdout, "reads ok\n")

    def test_nobody_follows_what_is_not_shared(self):
        self.looks_every("500")
        job, name = self.start("-o", run=("--follow-data", "auto"))
        self.has_read(name)
        self.assertEqual(self.followed(name, "follows_data", "stays_from_data", "migration_asked"), [])
        self.ends_well(job)

    def test_nobody_looks_where_nobody_is_to(self):
        self.looks_every("500")
        job, name = self.start(run=("--follow-data", "off"))
        self.has_read(name, *PARTNERS)
        self.assertEqual(self.followed(name, "follows_data", "stays_from_data"), [])
        self.ends_well(job)
        refused = self.lab.mend("run", "--follow-data", "auto", "--", "true")
        self.assertEqual(refused.returncode, 64)
        self.assertIn("--follow-data without a data space", refused.stderr)

    @unittest.skipUnless(os.geteuid() == 0 or shutil.which("fusermount3"), "mounting outside of a job takes root or fusermount3")
    def test_a_mount_that_is_no_rank_s_is_told_apart(self):
        job, name = self.start()
        self.has_read(name, *PARTNERS)
        place = os.path.join(self.directory, "mnt")
        os.mkdir(place)
        mend = os.path.join(os.path.dirname(self.lab.command()[0]), "mend")
        script = 'set -e; "$1" data mount input "$2"; trap \'"$1" data unmount "$2"\' EXIT; cmp "$2/in.dat" "$3"; sleep 2.5'
        done = self.lab.on("node3", "bash", "-c", script, "bash", mend, place, self.source)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        [mount] = self.seen(name)["mounts"]
        self.assertEqual((mount["node"], mount["read"], mount["written"]), ("node3", self.SIZE // (MIB // 16) + 1, 0))
        self.assertIn(f"mounts on node3 that are no rank's read {mount['read']} blocks", self.data("patterns", "input", "--job", name).stdout)
        self.has_read(name, *PARTNERS)
        self.ends_well(job)

    def test_what_is_not_there_is_told(self):
        self.assertIn("no rank has read or written anything in input", self.data("patterns", "input", code=1).stderr)
        job, name = self.start()
        self.has_read(name, *PARTNERS)
        self.assertIn(f"these have: {name}", self.data("patterns", "input", "--job", "nobody", code=1).stderr)
        self.assertIn("there is no data space", self.data("patterns", "other", code=1).stderr)
        self.ends_well(job)


del Space

if __name__ == "__main__":
    unittest.main()
