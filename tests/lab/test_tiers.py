"""Tiers of checkpoints: copies in memory, at a partner, in local directories and in the shared one; nodes die, copies are
torn, and a restart takes what is good."""

import glob
import json
import os
import shutil
import tempfile
import time
import unittest
import unittest.mock

from cases import InDirectory
from cluster import BIN, Lab, Machine, compile_mpi, compile_plain
from object_store import SECRET, ObjectStore
from partial import Writers

ARGUMENTS = ("-i", "100", "-w", "200", "-m", "8", "-u", "go")
# Runs in a node's shell: every image in the node's memory, as CHECKPOINT/rank-R.image.
LIST_MEMORY = "cd /dev/shm && find . -path './mend.*' -name '*.image' -printf '%P\\n' | sed 's|.*/\\([0-9]*/rank\\)|\\1|' | sort"
LIST_ALL = "find /dev/shm -path '*/mend.*'"


class OfFourRanks(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.chmod(cls.work, 0o755)
        cls.iters = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))
        with Machine() as machine:
            cls.expected = machine.undisturbed("-n", "4", cls.iters, *ARGUMENTS)

    def started(self, lab, tiers, *options):
        """A job of four ranks on node1 and node2, in the middle of its work; its name."""
        command = ("run", "-n", "4", "--hosts", "node1,node2", "--spares", "node3", "--tiers", tiers, *options)
        self.job = lab.start(self.directory, *command, self.iters, *ARGUMENTS)
        return lab.running(self.job)

    def complete(self, lab, name, number, tiers):
        """Waits until these tiers hold the whole checkpoint."""
        def held():
            return next((one["tiers"] for one in lab.verb("checkpoints", name) if one["number"] == number), None) == tiers
        self.job.wait_for(held, f"checkpoint {number} is complete in {tiers}")

    def memory(self, lab, node):
        return lab.on(node, "sh", "-c", LIST_MEMORY).stdout.split()

    def spoil(self, lab, node, number, rank, how):
        """Does something to an image in a node's memory."""
        path = lab.on(node, "sh", "-c", f"ls /dev/shm/mend.*/*/*/{number}/rank-{rank}.image").stdout.strip()
        self.assertTrue(path)
        script = {
            "torn": 'truncate -s 5000 "$1"',
            "flipped": 'byte=$(od -An -tu1 -j9000 -N1 "$1"); printf "\\\\$(printf %o $((byte ^ 255)))" | dd of="$1" bs=1 seek=9000 conv=notrunc status=none',
            "gone": 'rm "$1"',
        }[how]
        self.assertEqual(lab.on(node, "sh", "-c", script, "sh", path).returncode, 0)

    def restarted(self, lab, name, *options):
        """Restarts the job to its end and compares what it printed; what the restart itself said."""
        before = len(self.job.stderr())
        self.job = lab.start(self.directory, "restart", name, *options)
        self.job.let_go()
        self.job.finish(0)
        self.assertEqual(self.job.stdout(), self.expected)
        return self.job.stderr()[before:]


class Tiers(OfFourRanks):
    def test_a_lost_node_s_ranks_come_from_their_partner_s_memory(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory,partner", "--incremental", "off")
            for number in (1, 2):
                lab.verb("checkpoint", name)
                self.complete(lab, name, number, ["memory", "partner"])
            # One checkpoint is kept in memory, the others' images go: the ranks' own nodes and the next ones.
            for node, ranks in (("node1", (0, 1)), ("node2", range(4)), ("node3", (2, 3))):
                wanted = [f"2/rank-{rank}.image" for rank in ranks]
                self.job.wait_for(lambda node=node, wanted=wanted: self.memory(lab, node) == wanted, f"{node} holds {wanted}")
            modes = lab.on("node2", "sh", "-c", "find /dev/shm/mend.* -printf '%y%m\\n' | sort -u").stdout.split()
            self.assertEqual(modes, ["d700", "f600"])
            lab.kill("node2")
            self.job.finish(75)
            # Ranks 2 and 3 go to node3, where their partner's copies are; no file of theirs is anywhere else.
            said = self.restarted(lab, name)
            self.assertNotIn("its image", said)
            # A job that ended well leaves nothing in any memory.
            for node in ("node1", "node3"):
                self.assertEqual(lab.on(node, "sh", "-c", LIST_ALL).stdout, "")

    def test_a_chain_is_kept_and_restored_as_a_whole(self):
        with Lab(3) as lab:
            # Most of these ranks' memory changes from one to the next.
            lab.environment["MEND_SPACE_PERCENT"] = "off"
            name = self.started(lab, "memory,partner", "--incremental", "2")
            for number in (1, 2, 3):
                lab.verb("checkpoint", name)
                self.complete(lab, name, number, ["memory", "partner"])
            self.assertEqual([one["kind"] for one in lab.verb("checkpoints", name)], ["full", "incremental", "incremental"])
            chain = [f"{number}/rank-{rank}.image" for number in (1, 2, 3) for rank in (2, 3)]
            self.assertEqual(self.memory(lab, "node3"), chain)
            lab.kill("node2")
            self.job.finish(75)
            said = self.restarted(lab, name)
            self.assertNotIn("its image", said)

    def test_a_chain_that_would_take_too_much_space_is_not_continued(self):
        with Lab(2) as lab:
            lab.environment["MEND_SPACE_PERCENT"] = "110"
            options = ("-n", "4", "--hosts", "node1,node2", "--tiers", "memory,shared", "--incremental", "10")
            self.job = lab.start(self.directory, "run", *options, self.iters, *ARGUMENTS)
            name = lab.running(self.job)
            for number in range(1, 5):
                lab.verb("checkpoint", name)
                self.complete(lab, name, number, ["memory", "shared"])
            self.assertEqual([one["kind"] for one in lab.verb("checkpoints", name)], ["full", "incremental", "full", "incremental"])
            lab.mend("kill", name)
            self.job.finish(137)
            self.restarted(lab, name)

    def test_periodic_checkpoints_go_from_every_tier_and_what_was_asked_for_stays(self):
        with Lab(3) as lab:
            options = ("--interval", "1", "--keep", "1", "--incremental", "2")
            name = self.started(lab, "memory,partner,shared", *options)
            asked = lab.verb("checkpoint", name)["number"]
            numbers = lambda: [one["number"] for one in lab.verb("checkpoints", name)]
            wanted = lambda: (found := numbers())[-1] >= asked + 7 and not set(range(asked + 1, asked + 4)) & set(found)
            self.job.wait_for(wanted, "the first chain is gone but for what was asked for")
            lab.mend("kill", name)
            self.job.finish(137)
            [kept] = [one for one in lab.verb("checkpoints", name) if one["number"] == asked]
            self.assertEqual((kept["tiers"], kept["periodic"], kept["usable"]), (["shared"], False, True))
            for node in ("node1", "node2", "node3"):
                self.assertEqual([one for one in self.memory(lab, node) if one.startswith(f"{asked}/")], [])
            lab.kill("node2")
            said = self.restarted(lab, name, "--interval", "off")
            self.assertNotIn("its image", said)

    def test_a_copy_that_is_not_good_is_named_and_the_next_one_taken(self):
        with Lab(3) as lab:
            scratch = lab.on("node1", "sh", "-c", 'echo "$MEND_SCRATCH"').stdout.strip()
            tiers = ["memory", "partner", f"local:{scratch}", "shared"]
            name = self.started(lab, ",".join(tiers))
            directory = lab.verb("checkpoint", name)["directory"]
            self.complete(lab, name, 1, tiers)
            lab.mend("kill", name)
            self.job.finish(137)
            self.spoil(lab, "node1", 1, 0, "torn")
            self.spoil(lab, "node1", 1, 1, "flipped")
            self.spoil(lab, "node2", 1, 1, "flipped")
            self.spoil(lab, "node2", 1, 2, "gone")
            self.assertEqual(lab.on("head", "truncate", "-s", "100", f"{directory}/rank-3.image").returncode, 0)
            said = self.restarted(lab, name)
            # Who restores it finds out; only then all copies are read before.
            self.assertRegex(said, r"rank 1 on node1 cannot be restored: .*; nothing ran from it, all copies are checked and good ones taken")
            self.assertIn("rank 0: its image of checkpoint 1 in the memory of node1 is torn: 5000 bytes instead of", said)
            self.assertIn("rank 1: its image of checkpoint 1 in the memory of node1 is damaged", said)
            self.assertIn("rank 1: its image of checkpoint 1 in the memory of node2 is damaged", said)
            self.assertIn("rank 3: its image of checkpoint 1 in the checkpoint directory is torn: 100 bytes instead of", said)
            self.assertNotIn("rank 2:", said)

    def test_an_only_copy_that_is_not_good_leads_to_an_older_checkpoint_or_to_none(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory@2", "--incremental", "off")
            for number in (1, 2):
                lab.verb("checkpoint", name)
                self.complete(lab, name, number, ["memory"])
            lab.mend("kill", name)
            self.job.finish(137)
            self.spoil(lab, "node2", 2, 3, "flipped")
            refused = lab.mend("restart", name, "--checkpoint", "2")
            self.assertEqual(refused.returncode, 65, refused.stderr)
            for told in ("all copies are checked", "rank 3: its image of checkpoint 2 in the memory of node2 is damaged",
                    "rank 3: image ", "has no good copy in any tier that can be reached"):
                self.assertIn(told, refused.stderr)
            said = self.restarted(lab, name)
            self.assertIn("checkpoint 2 cannot be used: rank 3: image", said)
            self.assertIn("from checkpoint 1 (the newest is 2)", said)

    def test_what_no_tier_has_is_refused_by_name(self):
        with Lab(2) as lab:
            self.job = lab.start(self.directory, "run", "-n", "4", "--hosts", "node1,node2", "--tiers", "memory", self.iters, *ARGUMENTS)
            name = lab.running(self.job)
            lab.verb("checkpoint", name)
            self.complete(lab, name, 1, ["memory"])
            lab.kill("node2")
            self.job.finish(75)
            self.assertIn("the nodes that are left do not have all of any checkpoint", self.job.stderr())
            done = lab.mend("restart", name)
            self.assertEqual(done.returncode, 65, done.stderr)
            self.assertIn("rank 2", done.stderr)
            self.assertIn("has no good copy in any tier that can be reached", done.stderr)
            # The copies that are left stay where they are.
            self.assertEqual(self.memory(lab, "node1"), ["1/rank-0.image", "1/rank-1.image"])

    def fill(self, lab, node):
        """Leaves 64 KiB of the node's memory."""
        fill = "df --output=avail -B1 /dev/shm | tail -1 | { read free; fallocate -l $((free - 65536)) /dev/shm/full; }"
        self.assertEqual(lab.on(node, "mount", "-o", "remount,size=64M", "/dev/shm").returncode, 0)
        self.assertEqual(lab.on(node, "sh", "-c", fill).returncode, 0)

    def test_what_a_lost_node_alone_had_is_not_promised(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory@2,partner", "--incremental", "off")
            lab.verb("checkpoint", name)
            self.complete(lab, name, 1, ["memory", "partner"])
            self.fill(lab, "node3")
            lab.verb("checkpoint", name)
            self.job.wait_for(lambda: "partner does not hold the whole checkpoint 2" in self.job.stderr(), "node3 is full")
            lab.kill("node2")
            self.job.finish(75)
            self.assertIn(f"`mend restart {name}` continues it from checkpoint 1 on the hosts that are left", self.job.stderr())
            self.assertEqual(lab.on("node3", "rm", "/dev/shm/full").returncode, 0)
            self.restarted(lab, name)

    def test_a_number_is_given_once(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory,partner", "--incremental", "off")
            lab.verb("checkpoint", name)
            self.complete(lab, name, 1, ["memory", "partner"])
            lab.verb("checkpoints", name, "--remove", "1")
            # What there is of the first one still goes, wherever it is, and none of this.
            self.assertEqual(lab.verb("checkpoint", name)["number"], 2)
            self.complete(lab, name, 2, ["memory", "partner"])
            lab.kill("node2")
            self.job.finish(75)
            said = self.restarted(lab, name)
            self.assertNotIn("its image", said)

    def test_what_no_tier_has_any_more_falls_back_to_an_older_checkpoint(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory,shared", "--incremental", "off")
            for number in (1, 2):
                directory = lab.verb("checkpoint", name)["directory"]
                self.complete(lab, name, number, ["memory", "shared"])
            self.assertEqual(lab.on("head", "rm", f"{directory}/rank-3.image").returncode, 0)
            lab.kill("node2")
            self.job.finish(75)
            said = self.restarted(lab, name)
            self.assertIn("checkpoint 2 cannot be used: rank 3: image", said)
            self.assertIn("restarting", said)
            self.assertIn("from checkpoint 1", said)

    def test_a_full_memory_sends_images_to_the_next_tier(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory,partner,shared")
            lab.verb("checkpoint", name)
            self.complete(lab, name, 1, ["memory", "partner", "shared"])
            self.fill(lab, "node2")
            lab.verb("checkpoint", name)
            # Whole where everything is; the partner of node1's ranks had no room.
            self.complete(lab, name, 2, ["shared"])
            # Each tier is filled by itself: this may be told later.
            self.job.wait_for(lambda: "partner does not hold the whole checkpoint 2" in self.job.stderr(), "node2 is full")
            # The older one is still whole in memory.
            self.assertIn("1/rank-2.image", self.memory(lab, "node2"))
            lab.kill("node2")
            self.job.finish(75)
            self.restarted(lab, name)

    def test_nodes_write_to_the_shared_directory_in_turn(self):
        with Lab(3) as lab:
            # Slow enough to be seen: some seconds a node.
            lab.environment.update(MEND_TIER_WRITERS="1", MEND_TIER_RATE_MIB="4")
            options = ("-n", "4", "--hosts", "node1,node2,node3", "--tiers", "memory,shared", "--incremental", "off")
            self.job = lab.start(self.directory, "run", *options, self.iters, *ARGUMENTS)
            name = lab.running(self.job)
            status = next(one["status"] for one in lab.verb("ps") if one["id"] == name)
            host = {rank["rank"]: rank["host"] for rank in status["ranks"]}
            self.assertEqual(set(host.values()), {"node1", "node2", "node3"})
            place = os.path.dirname(lab.verb("checkpoint", name)["directory"])
            with Writers(lab, place) as writers:
                for _ in range(2):
                    number = lab.verb("checkpoint", name)["number"]
                    self.complete(lab, name, number, ["memory", "shared"])
                writers.in_turn(self, host)
            self.job.let_go()
            self.job.finish(0)
            self.assertEqual(self.job.stdout(), self.expected)

    def test_killed_controllers_leave_a_checkpoint_and_no_drafts(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory,partner,shared")
            lab.verb("checkpoint", name)
            self.complete(lab, name, 1, ["memory", "partner", "shared"])
            for _ in range(2):
                # In the middle of a checkpoint and of its copies, wherever that is.
                asked = lab.start(tempfile.mkdtemp(dir=self.work), "checkpoint", name)
                self.job.end()
                asked.finish(None)
                before = len(self.job.stderr())
                self.job = lab.start(self.directory, "restart", name)
                self.job.wait_for(lambda: "run\n" in self.job.stderr()[before:], "the ranks are back")
                lab.running(self.job)
                number = lab.verb("checkpoint", name)["number"]
                self.complete(lab, name, number, ["memory", "partner", "shared"])
            self.assertEqual(lab.on("node2", "sh", "-c", "find /dev/shm/mend.* -name '*.partial'").stdout, "")
            self.job.let_go()
            self.job.finish(0)
            self.assertEqual(self.job.stdout(), self.expected)
            for node in ("node1", "node2", "node3"):
                self.assertEqual(lab.on(node, "sh", "-c", LIST_ALL).stdout, "")

    def test_a_job_goes_on_through_moves_and_restarts_in_all_tiers(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory,partner,shared@1")
            lab.verb("checkpoint", name)
            lab.verb("migrate", name, "3", "--to", "node3")
            number = lab.verb("checkpoint", name)["number"]
            self.complete(lab, name, number, ["memory", "partner", "shared"])
            lab.kill("node1")
            self.job.finish(75)
            self.job = lab.start(self.directory, "restart", name)
            lab.running(self.job)
            number = lab.verb("checkpoint", name)["number"]
            self.complete(lab, name, number, ["memory", "partner", "shared"])
            # One is kept in each tier, and no directory of one that nobody holds: what goes goes after the new one is on record.
            kept = lambda: [one["number"] for one in lab.verb("checkpoints", name)]
            self.job.wait_for(lambda: kept() == [number], f"checkpoint {number} alone is kept")
            lab.mend("kill", name)
            self.job.finish(137)
            self.restarted(lab, name)


class Encrypted(OfFourRanks):
    def test_images_are_encrypted_in_every_tier_and_copies_checked(self):
        key, other = self.key_file("key", "c" * 64), self.key_file("other", "d" * 64)
        with Lab(3) as lab:
            scratch = lab.on("node1", "sh", "-c", 'echo "$MEND_SCRATCH"').stdout.strip()
            tiers = ["memory", "partner", f"local:{scratch}", "shared"]
            name = self.started(lab, ",".join(tiers), "--encryption-key", key, "--incremental", "2")
            for number in (1, 2):
                directory = lab.verb("checkpoint", name)["directory"]
                self.complete(lab, name, number, tiers)
            begin = f"find /dev/shm/mend.* {scratch} {os.path.dirname(directory)} -name 'rank-*.image' -exec head -c 8 {{}} \\; | sed 's/MENDSEAL/+/g'"
            # Own and partner's in memory, own in the local directory, all in the shared one, of two checkpoints each.
            for node, images in (("node1", 2 + 2 + 4), ("node2", 4 + 2 + 4), ("node3", 2 + 4)):
                self.assertEqual(lab.on(node, "sh", "-c", begin).stdout, "+" * images * 2, node)
            self.spoil(lab, "node1", 2, 1, "flipped")
            lab.kill("node2")
            self.job.finish(75)
            for options, text in (([], "it is encrypted"), (["--encryption-key", other], "encrypted with another key")):
                done = lab.mend("restart", name, *options)
                self.assertEqual(done.returncode, 65, done.stderr)
                self.assertIn(text, done.stderr)
            said = self.restarted(lab, name, "--encryption-key", key)
            self.assertIn("rank 1: its image of checkpoint 2 in the memory of node1 cannot be used: it is damaged or was changed", said)
            # Ranks 2 and 3 come from their partner's memory.
            for rank in (0, 2, 3):
                self.assertNotIn(f"rank {rank}:", said)


class ObjectStorage(OfFourRanks):
    """A real S3 server, SeaweedFS, on the lab's head node."""

    def setUp(self):
        super().setUp()
        self.store = ObjectStore(self.directory)
        self.addCleanup(self.store.end)
        self.enterContext(unittest.mock.patch.dict(os.environ, self.store.variables))

    def test_a_lost_node_s_ranks_come_from_object_storage(self):
        with Lab(3) as lab:
            self.store.start(lab)
            name = self.started(lab, "memory,s3://lab/jobs@1", "--incremental", "off")
            for number in (1, 2):
                lab.verb("checkpoint", name)
                self.complete(lab, name, number, ["memory", "s3://lab/jobs"])
            manifest = self.store.objects("get", f"s3://lab/jobs/{name}/2/manifest.json")
            self.assertEqual(manifest.returncode, 0, manifest.stderr)
            self.assertEqual(json.loads(manifest.stdout)["manifest"]["number"], 2)
            self.assertNotIn(SECRET, manifest.stdout)
            # One is kept there: the first is gone.
            self.wait_gone(lab, f"s3://lab/jobs/{name}/1/manifest.json")
            lab.kill("node2")
            self.job.finish(75)
            # The store alone is enough: a manifest from there, in whatever directory.
            directory = lab.verb("checkpoints", name)[-1]["directory"]
            script = 'rm -r "$1" && mkdir -p "$2" && "$3" get "$4" > "$2/manifest.json"'
            place = os.path.join(os.path.dirname(directory), "fetched", "2")
            words = (directory, place, os.path.join(BIN, "mend-object"), f"s3://lab/jobs/{name}/2/manifest.json")
            fetched = lab.on("head", "sh", "-c", script, "sh", *words)
            self.assertEqual(fetched.returncode, 0, fetched.stderr)
            said = self.restarted(lab, place)
            self.assertNotIn("its image", said)
            self.assertNotIn(SECRET, self.job.stderr())

    def test_what_the_store_has_is_known_after_a_restart(self):
        with Lab(4) as lab:
            self.store.start(lab)
            name = self.started(lab, "memory,s3://lab/jobs", "--incremental", "off")
            lab.verb("checkpoint", name)
            self.complete(lab, name, 1, ["memory", "s3://lab/jobs"])
            lab.kill("node2")
            self.job.finish(75)
            self.job = lab.start(self.directory, "restart", name)
            lab.running(self.job)
            lab.verb("checkpoint", name)
            self.complete(lab, name, 2, ["memory", "s3://lab/jobs"])
            self.complete(lab, name, 1, ["s3://lab/jobs"])
            # Nothing of it is in memory any more.
            self.job.wait_for(lambda: not [one for one in self.memory(lab, "node1") if one.startswith("1/")], "memory keeps one")
            lab.verb("checkpoints", name, "--remove", "1")
            self.wait_gone(lab, f"s3://lab/jobs/{name}/1/rank-0.image")
            self.wait_gone(lab, f"s3://lab/jobs/{name}/1/manifest.json")
            lab.kill("node1")
            self.job.finish(75)
            said = self.restarted(lab, name)
            self.assertNotIn("its image", said)

    def test_what_is_stored_is_encrypted(self):
        key = self.key_file("key", "c" * 64)
        with Lab(3) as lab:
            self.store.start(lab)
            name = self.started(lab, "memory,s3://lab/jobs", "--encryption-key", key)
            lab.verb("checkpoint", name)
            self.complete(lab, name, 1, ["memory", "s3://lab/jobs"])
            begin = '"$1" get "$2" | head -c 8'
            for rank in range(4):
                words = (os.path.join(BIN, "mend-object"), f"s3://lab/jobs/{name}/1/rank-{rank}.image")
                self.assertEqual(lab.on("head", "sh", "-c", begin, "sh", *words).stdout, "MENDSEAL")
            lab.kill("node2")
            self.job.finish(75)
            said = self.restarted(lab, name, "--encryption-key", key)
            self.assertNotIn("its image", said)

    def wait_gone(self, lab, address):
        for _ in range(600):
            if self.store.objects("get", address, text=False).returncode:
                return
            time.sleep(0.1)
        self.fail(f"{address} is still there")

    def test_a_store_that_refuses_or_loses_objects_is_named(self):
        with Lab(3) as lab:
            name = self.started(lab, "memory,s3://lab/jobs")
            lab.verb("checkpoint", name)
            self.job.wait_for(lambda: "s3://lab/jobs does not hold the whole checkpoint 1" in self.job.stderr(), "it is told")
            # The job runs on, and the next checkpoint gets there once the store does.
            self.store.start(lab)
            lab.verb("checkpoint", name)
            self.complete(lab, name, 2, ["memory", "s3://lab/jobs"])
            # A copy that is not what was saved, and one that is not there at all.
            self.assertEqual(self.store.objects("delete", f"s3://lab/jobs/{name}/2/rank-2.image").returncode, 0)
            lab.kill("node2")
            self.job.finish(75)
            done = lab.mend("restart", name, "--checkpoint", "2")
            self.assertEqual(done.returncode, 65, done.stderr)
            self.assertIn("rank 2: its image of checkpoint 2 in s3://lab/jobs", done.stderr)


class Alone(InDirectory):
    def test_a_directory_that_is_not_there_is_told_once_and_passed_over(self):
        count = compile_plain("count.c", os.path.join(self.directory, "count"))
        with Machine() as machine:
            job = machine.start(self.directory, "run", "--tiers", "local:/nonexistent,shared", count, "200", "500", "go")
            name = machine.running(job)
            for _ in range(2):
                self.assertEqual(len(glob.glob(os.path.join(machine.verb("checkpoint", name)["directory"], "*.image"))), 1)
            job.let_go()
            job.finish(0)
            told = "what local:/nonexistent would hold goes to the next tier: there is no such directory on this node"
            self.assertEqual(job.stderr().count(told), 1, job.stderr())
            self.assertNotIn("WARN", job.stderr())

    def test_a_directory_that_is_not_its_owner_s_alone_is_told_once_by_a_run_and_by_a_restart(self):
        count = compile_plain("count.c", os.path.join(self.directory, "count"))
        place = os.path.join(self.directory, "tier")
        own = os.path.join(place, f"mend.{os.geteuid()}")
        os.mkdir(place)
        told = f"what local:{place} would hold goes to the next tier: {own} is not a directory of this user's alone; remove it, or"
        with Machine() as machine:
            job = machine.start(self.directory, "run", "--tiers", f"local:{place},shared", count, "200", "500", "go")
            name = machine.running(job)
            saved = machine.verb("checkpoint", name)["directory"]
            os.chmod(own, 0o755)
            self.assertEqual(machine.mend("kill", name).returncode, 0)
            job.finish(137)
            # On a busy machine its copy may have come to the next tier before the end.
            for image in glob.glob(os.path.join(saved, "*.image")):
                os.unlink(image)
            # What is there is not taken, and the user can tell why.
            done = machine.mend("restart", name)
            self.assertEqual((done.returncode, done.stderr.count(told)), (65, 1), done.stderr)
            os.chmod(own, 0o700)
            job = machine.start(self.directory, "restart", name)
            machine.running(job)
            machine.mend("kill", name)
            job.finish(137)
            shutil.rmtree(own)
            os.mkdir(own)
            os.chmod(own, 0o755)
            job = machine.start(self.directory, "run", "--tiers", f"local:{place},shared", count, "200", "500", "go")
            name = machine.running(job)
            for _ in range(2):
                machine.verb("checkpoint", name)
            job.let_go()
            job.finish(0)
            self.assertEqual(job.stderr().count(told), 1, job.stderr())

    def test_lists_that_mean_nothing_are_refused(self):
        with Machine() as machine:
            for tiers, text in [("memory,tape", "`tape` is not a tier"), ("partner,shared", "cannot be the first tier"), ("local:x", "absolute")]:
                done = machine.mend("run", "--tiers", tiers, "true")
                self.assertEqual(done.returncode, 64, done.stderr)
                self.assertIn(text, done.stderr)
                self.assertIn("memory,partner,local:/scratch,shared", done.stderr)

    def test_memory_of_this_machine_alone(self):
        iters = compile_mpi("mpi_iters.c", os.path.join(self.directory, "iters"))
        with Machine() as machine:
            job = machine.start(self.directory, "run", "-n", "2", "--tiers", "memory", iters, *ARGUMENTS)
            name = machine.running(job)
            directory = machine.verb("checkpoint", name)["directory"]
            self.assertEqual(glob.glob(os.path.join(directory, "*.image")), [])
            machine.mend("kill", name)
            job.finish(137)
            job.let_go()
            job = machine.start(self.directory, "restart", name)
            job.finish(0)
            self.assertIn("ranks=2", job.stdout())


if __name__ == "__main__":
    unittest.main()
