"""A move's target is asked first, for what the program may be using of its processor and for its files; a restart's nodes for the former."""

import os
import subprocess
import sys
import unittest

from cases import InDirectory
from cluster import Failed, Lab, compile_mpi


def has(feature):
    with open("/proc/cpuinfo", encoding="ascii") as file:
        return feature in next(line for line in file if line.startswith("flags")).split()


# What some nodes here act as if they lacked.
FEATURE = next(feature for feature in ("avx2", "sse4_2", "popcnt") if has(feature))


class Target(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))
        cls.argv = [cls.program, "-i", "60", "-w", "200", "-m", "4", "-u", "go"]

    def lab_of(self, nodes, *, lacking=()):
        """A lab in which the daemons of some nodes hide the feature."""
        self.lab = self.enterContext(Lab(nodes))
        self.hide(*lacking)
        return self.lab

    def hide(self, *nodes, features=FEATURE):
        """Replaces the daemons of these nodes by others that hide these features."""
        for node in nodes:
            self.lab.kill_daemon(node)
            self.lab.set("MEND_HIDE_CPU_FEATURES", features)
            self.lab.start_daemon(node, self.directory)
            self.lab.set("MEND_HIDE_CPU_FEATURES", None)

    def start(self, *place, ranks=4):
        job = self.lab.start(self.directory, "run", "-n", str(ranks), *place, "--", *self.argv)
        return job, self.lab.running(job)

    def events(self, name):
        return self.lab.verb("log", name)

    def refused(self, name, rank, *more):
        """A move that is refused before anything is sent: what is said, and what the journal says of it."""
        before, places = len(self.events(name)), self.lab.places(name)
        done = self.lab.mend("migrate", name, str(rank), *more)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.lab.places(name), places)
        happened = self.events(name)[before:]
        phases = {event["data"]["phase"] for event in happened if event["event"] == "phase_done"}
        self.assertLessEqual(phases, {"inspect", "compare"})
        self.assertEqual([event["event"] for event in happened if event["event"].startswith(("rank_", "round_", "restore_"))], [])
        undone = [event["data"] for event in happened if event["event"] == "migration_undone"]
        self.assertEqual(len(undone), 1, happened)
        return done.stderr, undone[0]

    def ends_well(self, job, ranks=4):
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), self.lab.undisturbed("-n", str(ranks), "--hosts", "node1", "--", *self.argv))

    def test_a_node_that_lacks_a_feature_is_refused_by_name(self):
        self.lab_of(3, lacking=["node3"])
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3")
        said, undone = self.refused(name, 3, "--to", "node3")
        self.assertIn(f"the processor of node node3 lacks {FEATURE}, which rank 3 may be using", said)
        self.assertIn(f"MEND_IGNORE_CPU_FEATURES={FEATURE}", said)
        self.assertEqual((undone["code"], undone["lacks"]), ("processor", {"cpu_features": {"names": [FEATURE]}}))
        # Live or frozen, it is refused before.
        self.refused(name, 3, "--to", "node3", "--mode", "live")
        self.refused(name, 3, "--to", "node3", "--mode", "frozen")
        self.lab.verb("checkpoint", name)
        self.ends_well(job)

    def test_who_chooses_passes_over_such_nodes(self):
        self.lab_of(4, lacking=["node3"])
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3,node4")
        # The first of the two spares comes first, where nothing is in the way.
        self.assertEqual(self.lab.verb("migrate", name, "1")["to"], "node4")
        self.assertEqual(self.lab.verb("drain", "node2")["still_there"], [])
        self.assertNotIn("node2", self.lab.places(name))
        self.assertNotIn("node3", self.lab.places(name))
        self.assertEqual(self.lab.verb("drain", "node4")["still_there"], [])
        self.assertEqual(self.lab.places(name), ["node1"] * 4)
        # Only a node is left that will not do.
        done = self.lab.mend("drain", "node1")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"lacks {FEATURE}", done.stderr)
        self.lab.verb("undrain", "node1")
        self.ends_well(job)

    def test_a_program_that_does_not_use_it_may_move(self):
        self.lab_of(2, lacking=["node2"])
        self.lab.set("MEND_IGNORE_CPU_FEATURES", FEATURE)
        job, name = self.start("--hosts", "node1", "--spares", "node2", ranks=2)
        for node in ("node2", "node1", "node2"):
            self.assertEqual(self.lab.verb("migrate", name, "1", "--to", node)["to"], node)
        self.ends_well(job, ranks=2)

    def test_what_began_where_it_is_hidden_counts_as_not_using_it(self):
        self.lab_of(3, lacking=["node1", "node2"])
        job, name = self.start("--hosts", "node1", "--spares", "node2,node3", ranks=2)
        self.assertEqual(self.lab.verb("migrate", name, "1", "--to", "node2")["to"], "node2")
        self.assertEqual(self.lab.verb("migrate", name, "1", "--to", "node3")["to"], "node3")
        # There it may have found the feature.
        said, _ = self.refused(name, 1, "--to", "node2")
        self.assertIn(f"lacks {FEATURE}, which rank 1 may be using", said)
        self.ends_well(job, ranks=2)

    def test_a_restart_goes_where_its_ranks_can_run(self):
        self.lab_of(3)
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3")
        self.lab.verb("checkpoint", name)
        self.lab.mend("kill", name)
        job.finish(137)
        self.hide("node2", "node3")
        # Nowhere, if no node has it.
        refused = self.lab.mend("restart", name, "--hosts", "node2,node3", cwd=self.directory)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(f"no node has a processor with {FEATURE}", refused.stderr)
        self.assertIn(f"MEND_IGNORE_CPU_FEATURES={FEATURE}", refused.stderr)
        again = self.lab.start(self.directory, "restart", name, "--hosts", "node1,node2")
        self.lab.running(again)
        self.assertEqual(self.lab.places(name), ["node1"] * 4)
        self.assertIn(f"the processor of node node2 lacks {FEATURE}, which rank 2 may be using; it goes to node1", again.stderr())
        self.lab.mend("kill", name)
        again.finish(137)
        # Nobody uses it, says who restarts the job.
        self.lab.set("MEND_IGNORE_CPU_FEATURES", "all")
        last = self.lab.start(self.directory, "restart", name, "--hosts", "node2,node3")
        self.lab.running(last)
        self.assertEqual(set(self.lab.places(name)), {"node2", "node3"})
        last.let_go()
        last.finish()

    def test_a_healed_job_passes_over_such_nodes(self):
        self.lab_of(4, lacking=["node3"])
        self.lab.set("MEND_ON_FAILURE", None)
        job, name = self.start("--hosts", "node1,node2", "--spares", "node3,node4")
        self.lab.verb("checkpoint", name)
        self.lab.kill("node2")
        job.wait_for(lambda: "are restored and run" in job.stderr(), "the job goes on")
        self.assertNotIn("node3", self.lab.places(name))
        self.ends_well(job)

    def library(self, name, *flags):
        """A library of the program's, of some version."""
        path = os.path.join(self.directory, name)
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", path, *flags, "-"]
        subprocess.run(command, input="int version(void) { return VERSION; } char table[] = {1, [SIZE] = 2};", text=True, check=True)
        return path

    def start_with_library(self, *place):
        self.lab.set("LD_PRELOAD", self.library("libversion.so", "-DVERSION=1", "-DSIZE=1000"))
        try:
            return self.start(*place)
        finally:
            self.lab.set("LD_PRELOAD", None)

    def on(self, node, *command):
        done = self.lab.on(node, *command)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_version_of_a_library_is_refused_by_name(self):
        self.lab_of(4)
        job, name = self.start_with_library("--hosts", "node1,node2", "--spares", "node3,node4")
        library = os.path.join(self.directory, "libversion.so")
        larger = self.library("larger.so", "-DVERSION=2", "-DSIZE=300000")
        self.on("node3", "mount", "--bind", larger, library)
        said, undone = self.refused(name, 3, "--to", "node3")
        self.assertIn(f"{library} on node node3 differs from the one that rank 3 uses: ", said)
        self.assertIn("install the same version on node3, or choose another node", said)
        self.assertEqual((undone["code"], undone["lacks"]), ("files", {"file": {"path": library, "what": "size", "more": 0}}))
        # Of the same length it is another one all the same.
        self.on("node3", "umount", library)
        self.on("node3", "mount", "--bind", self.library("other.so", "-DVERSION=2", "-DSIZE=1000"), library)
        said, undone = self.refused(name, 3, "--to", "node3", "--mode", "frozen")
        self.assertIn(f"{library} on node node3 differs from the one that rank 3 uses: it has other content", said)
        self.assertEqual(undone["lacks"]["file"]["what"], "content")
        # Who chooses passes over the node: the first of the two spares, where nothing is in the way.
        self.assertEqual(self.lab.verb("migrate", name, "1")["to"], "node4")
        self.assertEqual(self.lab.verb("drain", "node2")["still_there"], [])
        self.assertNotIn("node3", self.lab.places(name))
        self.lab.verb("undrain", "node2")
        # When it is the same again, nothing is in the way.
        self.on("node3", "umount", library)
        self.assertEqual(self.lab.verb("migrate", name, "3", "--to", "node3")["to"], "node3")
        self.ends_well(job)

    def test_files_that_are_missing_are_named(self):
        self.lab_of(2)
        data = os.path.join(self.directory, "data")
        os.mkdir(data)
        with open(os.path.join(data, "table"), "w", encoding="ascii") as file:
            file.write("42\n" * 1000)
        script = (
            "import os, time\n"
            "with open('data/table') as table, open('data/out', 'w') as out:\n"
            "    open('ready', 'w').close()\n"
            "    while not os.path.exists('go'): time.sleep(0.05)\n"
            "    print(sum(map(int, table)), file=out)\n"
        )
        job = self.lab.start(self.directory, "run", "-n", "1", "--hosts", "node1", "--spares", "node2", "--", sys.executable, "-c", script)
        name = self.lab.running(job)
        job.wait_for(lambda: os.path.exists(os.path.join(self.directory, "ready")), "the files are open")
        self.on("node2", "mount", "-t", "tmpfs", "tmpfs", data)
        said, undone = self.refused(name, 0, "--to", "node2")
        self.assertRegex(said, rf"{data}/(table|out), which rank 0 uses, is not on node node2 \(and 1 more\)")
        self.assertEqual((undone["code"], undone["lacks"]["file"]["what"]), ("files", "absent"))
        # A table that is too short, and a file to be written whose length is nobody's concern.
        self.on("node2", "sh", "-c", f"echo 42 >{data}/table; : >{data}/out")
        said, undone = self.refused(name, 0, "--to", "node2")
        self.assertIn(f"{data}/table on node node2 differs from the one that rank 0 uses: 3 B instead of", said)
        self.assertEqual(undone["lacks"]["file"], {"path": f"{data}/table", "what": "size", "more": 0})
        self.on("node2", "umount", data)
        self.assertEqual(self.lab.verb("migrate", name, "0")["to"], "node2")
        job.let_go()
        job.finish()
        with open(os.path.join(data, "out"), encoding="ascii") as file:
            self.assertEqual(file.read(), "42000\n")

    def test_names_that_are_none_are_refused(self):
        self.lab_of(1)
        self.lab.set("MEND_IGNORE_CPU_FEATURES", "avx2,avx3")
        done = self.lab.mend("run", "-n", "1", "--hosts", "node1", "--", "true", cwd=self.directory)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MEND_IGNORE_CPU_FEATURES names avx3, which is no feature of a processor", done.stderr)
        self.lab.set("MEND_IGNORE_CPU_FEATURES", None)
        with self.assertRaises(Failed):
            self.hide("node1", features="AVX2")


if __name__ == "__main__":
    unittest.main()
