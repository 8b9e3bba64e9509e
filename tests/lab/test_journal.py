"""The journal alone tells what happened: jobs fail in every way there is, and `mend log --json` is all that is looked at."""

import json
import os
import subprocess
import unittest

from cases import InDirectory
from cluster import Lab, compile_mpi


class InLab(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        cls.iters = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))
        cls.abort = compile_mpi("mpi_abort.c", os.path.join(cls.work, "abort"))

    def start(self, *arguments, running=True):
        job = self.lab.start(self.directory, "run", *arguments)
        if running:
            return job, self.lab.running(job)
        job.wait_for(lambda: "mend: job " in job.stderr(), "the job has a name")
        return job, job.stderr().split("mend: job ", 1)[1].split(":")[0]

    def iterating(self, *arguments):
        return self.start("-n", "2", "--hosts", "node1,node2", *arguments, "--", self.iters, "-i", "60", "-w", "200", "-m", "8", "-u", "go")

    def log(self, name):
        found = self.lab.verb("log", name)
        numbers = [event["seq"] for event in found]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertTrue(all(event["text"] for event in found))
        return found

    def named(self, log, event):
        return [one for one in log if one["event"] == event]

    def ended(self, name):
        """The log, and the end that stands last in it."""
        log = self.log(name)
        self.assertEqual(log[-1]["event"], "ended", log[-1]["text"])
        return log, log[-1]["data"]


class OfRanks(InLab):
    def ends(self, script, code):
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "--", "sh", "-c", script)
        job.finish(code)
        name = job.stderr().split("mend: job ", 1)[1].split(":")[0]
        return self.ended(name)

    def test_a_rank_is_killed(self):
        log, end = self.ends("[ $MEND_RANK = 0 ] || kill -KILL $$; sleep 600", 137)
        self.assertEqual(end, {"status": 137, "cause": {"code": "rank_signal", "rank": 1, "signal": 9, "node": "node2"}})
        [died] = self.named(log, "rank_signal")
        self.assertEqual((died["node"], died["rank"], died["data"]), ("node2", 1, {"signal": 9}))

    def test_a_rank_has_a_segmentation_fault(self):
        _, end = self.ends("[ $MEND_RANK = 0 ] || kill -SEGV $$; sleep 600", 139)
        self.assertEqual(end["cause"], {"code": "rank_signal", "rank": 1, "signal": 11, "node": "node2"})

    def test_a_rank_exits_with_another_code(self):
        log, end = self.ends("exit $((MEND_RANK * 7))", 7)
        self.assertEqual(end, {"status": 7, "cause": {"code": "rank_exited", "rank": 1, "status": 7, "node": "node2"}})
        self.assertEqual({one["rank"]: one["data"]["status"] for one in self.named(log, "rank_exited")}, {0: 0, 1: 7})

    def test_a_program_is_not_there(self):
        job, name = self.start("-n", "2", "--hosts", "node1,node2", "no-such-program", running=False)
        job.finish(127)
        _, end = self.ended(name)
        self.assertEqual((end["status"], end["cause"]["code"]), (127, "start_failed"))
        self.assertIn("no-such-program", end["cause"]["error"])

    def test_a_rank_calls_abort(self):
        job, name = self.start("-n", "2", "--hosts", "node1,node2", "--", self.abort, "5", running=False)
        job.finish(5)
        log, end = self.ended(name)
        self.assertEqual(end, {"status": 5, "cause": {"code": "abort", "rank": 1, "status": 5}})
        self.assertEqual([one["node"] for one in self.named(log, "abort")], ["node2"])

    def test_all_is_well(self):
        job, name = self.iterating("--interval", "600")
        self.lab.verb("checkpoint", name)
        job.let_go()
        job.finish()
        log, end = self.ended(name)
        self.assertEqual(end, {"status": 0, "cause": {"code": "done"}})
        [begun] = self.named(log, "job_started")
        self.assertEqual((begun["data"]["ranks"], begun["data"]["hosts"]), (2, ["node1", "node2"]))
        self.assertEqual(begun["data"]["interval"], "a checkpoint every 600 s")
        [placed] = self.named(log, "placed")
        self.assertEqual(placed["data"]["places"], {"node1": [[0, 0]], "node2": [[1, 1]]})
        self.assertEqual({one["node"] for one in self.named(log, "node_reached")}, {"node1", "node2"})
        self.assertEqual({one["rank"] for one in self.named(log, "agent_up")}, {0, 1})
        order = [one["event"] for one in log if one["event"].startswith("checkpoint")]
        self.assertEqual(order, ["checkpoint_asked", "checkpoint_decided", "checkpoint_committed"])
        phases = [one["data"]["phase"] for one in self.named(log, "phase_done")]
        self.assertEqual(phases[:5], ["inspect", "suspend", "save", "keep", "resume"])
        images = {one["rank"]: one["data"]["image"]["bytes"] for one in self.named(log, "image_written")}
        [done] = self.named(log, "checkpoint_committed")
        self.assertEqual((sum(images.values()), done["data"]["by"]), (done["data"]["bytes"], "user"))


class OfUsers(InLab):
    def test_a_kill_and_an_interrupt(self):
        job, name = self.iterating()
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        log, end = self.ended(name)
        self.assertEqual(end["cause"], {"code": "killed"})
        self.assertEqual(len(self.named(log, "kill_asked")), 1)
        self.assertIn("killed", next(one for one in self.lab.verb("ps", "--all") if one["id"] == name)["cause"]["code"])

    def test_the_controller_is_killed(self):
        job, name = self.iterating()
        self.lab.verb("checkpoint", name)
        # The whole of it: what stands between the test and `mend run` passes no SIGKILL on.
        pid = self.lab.on("head", "sh", "-c", f"cat $MEND_HOME/jobs/{name}/job.json").stdout
        self.lab.on("head", "kill", "-KILL", str(json.loads(pid)["controller_pid"]))
        job.finish(None)
        log = self.log(name)
        self.assertEqual(log[-1]["event"], "controller_died")
        self.assertEqual(self.named(log, "ended"), [])
        job.let_go()
        self.lab.start(job.directory, "restart", name).finish()
        log, end = self.ended(name)
        self.assertEqual(end["cause"], {"code": "done"})
        order = [one["event"] for one in log if one["event"] in ("job_started", "controller_died", "job_restarted", "resumed")]
        self.assertEqual(order, ["job_started", "controller_died", "job_restarted", "resumed"])
        self.assertEqual({one["rank"] for one in self.named(log, "rank_restored")}, {0, 1})

    def test_it_is_followed_to_the_end(self):
        job, name = self.iterating()
        command = self.lab.command("log", name, "--follow", "--json")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.lab.environment) as follower:
            self.lab.verb("checkpoint", name)
            job.let_go()
            job.finish()
            lines = [json.loads(line) for line in follower.stdout]
            self.assertEqual(follower.wait(), 0)
        self.assertEqual(lines, self.log(name))
        plain = self.lab.mend("log", name).stdout.splitlines()
        self.assertEqual(len(plain), len(lines))
        self.assertRegex(plain[-1], r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  the job ended with exit code 0: all ranks ended well$")


class OfCheckpoints(InLab):
    def test_the_directory_cannot_be_used(self):
        place = os.path.join(self.directory, "checkpoints")
        job, name = self.iterating("--checkpoint-dir", place)
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, name), "w", encoding="utf-8"):
            pass
        self.assertNotEqual(self.lab.mend("checkpoint", name).returncode, 0)
        [failed] = self.named(self.log(name), "checkpoint_failed")
        self.assertEqual((failed["data"]["code"], failed["data"]["by"]), ("directory", "user"))
        self.assertIn(place, failed["data"]["error"])
        self.assertIn("the last try", self.lab.mend("checkpoints", name).stdout)
        job.let_go()
        job.finish()
        self.assertEqual(self.ended(name)[1]["status"], 0)

    def test_something_stands_in_the_way(self):
        job, name = self.start("-n", "1", "--hosts", "node2", "--", "sh", "-c", "sleep 600; true")
        done = self.lab.mend("checkpoint", name)
        self.assertNotEqual(done.returncode, 0)
        log = self.log(name)
        [failed] = self.named(log, "checkpoint_failed")
        self.assertEqual(failed["data"]["code"], "obstacle")
        found = self.named(log, "obstacle_found")
        self.assertEqual({(one["rank"], one["node"]) for one in found}, {(0, "node2")})
        self.assertIn(found[0]["data"]["what"], failed["data"]["error"])
        self.lab.mend("kill", name)
        job.finish(137)

    def test_a_corrupt_one_is_passed_over(self):
        place = os.path.join(self.directory, "checkpoints")
        job, name = self.iterating("--checkpoint-dir", place)
        self.lab.verb("checkpoint", name)
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        with open(os.path.join(place, name, "2", "rank-1.image"), "r+b") as image:
            image.seek(os.path.getsize(image.name) // 2)
            image.write(bytes(4096))
            image.write(b"\xff" * 4096)
        job.let_go()
        self.lab.start(job.directory, "restart", name).finish()
        log, end = self.ended(name)
        self.assertEqual(end["cause"], {"code": "done"})
        [passed] = self.named(log, "passed_over")
        self.assertEqual(passed["data"]["checkpoint"], 2)
        self.assertEqual(self.named(log, "job_restarted")[-1]["data"]["checkpoint"], 1)

    def test_settings_that_the_checkpoint_decides_are_told_at_a_restart_and_not_taken_for_its_own(self):
        job, name = self.iterating()
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        for setting, value in (("MEND_TRACKING", "hash"), ("MEND_DRAIN_TIMEOUT_MS", "30000")):
            self.lab.set(setting, value)
            self.addCleanup(self.lab.set, setting, None)
        job.let_go()
        job = self.lab.start(job.directory, "restart", name)
        job.finish()
        self.assertEqual(job.stderr().count("MEND_TRACKING=hash has no effect on a restart: the job goes on with what its checkpoint has, auto"), 1)
        self.assertNotIn("MEND_DRAIN_TIMEOUT_MS", job.stderr())
        [restarted] = self.named(self.log(name), "job_restarted")
        settings = restarted["data"]["settings"]
        self.assertEqual((settings.get("MEND_TRACKING"), settings.get("MEND_DRAIN_TIMEOUT_MS")), (None, "30000"))


class OfNodes(InLab):
    """Each has a lab of its own: what was killed stays so."""

    def setUp(self):
        super().setUp()
        self.lab = self.enterContext(Lab(3))

    def test_a_node_dies(self):
        job, name = self.iterating()
        self.lab.kill("node2")
        job.finish(75)
        log, end = self.ended(name)
        self.assertEqual((end["status"], end["cause"]["code"], end["cause"]["node"]), (75, "node_lost", "node2"))
        self.assertEqual(end["cause"]["ranks"], "1")
        [lost] = self.named(log, "node_lost")
        self.assertEqual((lost["node"], lost["data"]["ranks"]), ("node2", [[1, 1]]))

    def test_a_daemon_is_killed(self):
        job, name = self.iterating()
        self.lab.on("node2", "pkill", "-KILL", "-x", "mendd")
        job.finish(75)
        _, end = self.ended(name)
        self.assertEqual((end["cause"]["code"], end["cause"]["node"], end["cause"]["ranks"]), ("node_lost", "node2", "1"))
        self.assertNotIn("not a word", end["cause"]["why"])

    def test_the_target_of_a_migration_dies(self):
        job, name = self.iterating("--spares", "node3")
        self.lab.on("node3", "pkill", "-STOP", "-x", "mendd")
        with subprocess.Popen(self.lab.command("migrate", name, "1", "--to", "node3"), env=self.lab.environment, stderr=subprocess.PIPE) as verb:
            job.wait_for(lambda: self.named(self.log(name), "migration_asked"), "the migration has begun")
            self.lab.on("node3", "pkill", "-KILL", "-x", "mendd")
            self.assertNotEqual(verb.wait(), 0)
            verb.stderr.read()
        # The agent whose connection to the target breaks may be first to notice; the controller finds the node lost soon after.
        job.wait_for(lambda: self.named(self.log(name), "node_lost"), "the node is found lost")
        log = self.log(name)
        [lost] = self.named(log, "node_lost")
        self.assertEqual((lost["node"], lost["data"]["ranks"]), ("node3", []))
        [undone] = self.named(log, "migration_undone")
        self.assertEqual((undone["rank"], undone["node"]), (1, "node2"))
        # The agent whose connection to the target breaks may be told of before the node's loss is known; that has an entry of its own.
        self.assertIn(undone["data"]["code"], ("node_lost", "agent"))
        job.let_go()
        job.finish()
        self.assertEqual(self.ended(name)[1]["cause"], {"code": "done"})

    def test_the_connection_between_ranks_breaks(self):
        argv = [self.iters, "-i", "60", "-w", "100", "-m", "8", "-p", "2000", "-u", "go"]
        job, name = self.start("-n", "2", "--hosts", "node1,node2", "--", *argv)
        # Soon after this line it stays where it is, and exchanges messages all the time.
        job.wait_for(lambda: "iteration 20 " in job.stderr(), "messages are under way")
        if not self.lab.break_channels("node1"):
            self.skipTest("this kernel closes no connections for others (CONFIG_INET_DIAG_DESTROY)")
        job.finish(75)
        log, end = self.ended(name)
        self.assertEqual((end["cause"]["code"], sorted(end["cause"]["ranks"])), ("messages_lost", [0, 1]))
        self.assertEqual(sorted(end["cause"]["nodes"]), ["node1", "node2"])
        told = self.named(log, "messages_lost")
        self.assertTrue(told and all({one["rank"], one["data"]["peer"]} == {0, 1} for one in told))


if __name__ == "__main__":
    unittest.main()
