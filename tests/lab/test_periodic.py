"""Checkpoints that nobody asks for: when they are taken, what builds on what, which are kept, what is merged; and jobs that are
killed at any moment of all this."""

import json
import os
import random
import shutil
import signal
import time
import unittest

from cases import OnMachine
from cluster import compile_mpi, compile_plain


class Periodic(OnMachine):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.count = compile_plain("count.c", os.path.join(cls.work, "count"))
        cls.iters = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))

    def start(self, *arguments):
        job = self.machine.start(self.directory, *arguments)
        return job, self.machine.running(job)

    def checkpoints(self, name):
        return self.machine.verb("checkpoints", name)

    def numbers(self, name):
        return [one["number"] for one in self.checkpoints(name)]

    def wait_for(self, job, name, number):
        """Until that many were taken; the list then."""
        job.wait_for(lambda: (self.numbers(name) or [0])[-1] >= number, f"checkpoint {number} is taken")
        return self.checkpoints(name)

    def end(self, job, name):
        self.assertEqual(self.machine.mend("kill", name).returncode, 0)
        job.finish(137)

    def files(self, name):
        place = os.path.join(self.machine.home, "jobs", name, "checkpoints")
        return sorted(os.path.relpath(os.path.join(top, file), place) for top, _, files in os.walk(place) for file in files)

    def test_off_unless_asked_for(self):
        job, name = self.start("run", self.count, "400", "500", "go")
        self.assertNotIn("mend: a checkpoint", job.stderr())
        [status] = [one["status"] for one in self.machine.verb("ps")]
        self.assertIsNone(status["interval_s"])
        job.let_go()
        job.finish(0)
        self.assertEqual(self.numbers(name), [])

    def test_a_program_that_cannot_be_saved_is_told_of_once(self):
        static = compile_plain("count.c", os.path.join(self.directory, "count-static"), "-static")
        job, name = self.start("run", "--interval", "1", static, "400", "500", "go")
        job.wait_for(lambda: "is a static program" in job.stderr(), "the user is told")
        self.assertIn("a periodic checkpoint failed: rank 0: it has no agent", job.stderr())
        job.let_go()
        job.finish(0)
        self.assertEqual(job.stderr().count("is a static program"), 1)
        self.assertEqual(self.numbers(name), [])

    def test_every_second_and_the_newest_are_kept(self):
        job, name = self.start("run", "--interval", "1", "--incremental", "off", "--keep", "2", self.count, "400", "500", "go")
        self.assertIn("mend: a checkpoint every 1 s", job.stderr())
        self.wait_for(job, name, 4)
        by_hand = self.machine.verb("checkpoint", name)["number"]
        self.wait_for(job, name, by_hand + 3)
        found = []

        def settled():
            found[:] = self.checkpoints(name)
            return [one["periodic"] for one in found] == [False, True, True]

        job.wait_for(settled, "the older ones are gone")
        self.assertEqual(found[0]["number"], by_hand, "what was asked for stays")
        self.assertTrue(all(one["usable"] and one["kind"] == "full" and not one["needs"] for one in found))
        job.let_go()
        job.finish(0)

    def test_a_restart_goes_on_as_before_unless_told_otherwise(self):
        job, name = self.start("run", "--interval", "1", "--keep", "1", self.count, "400", "500", "go")
        self.wait_for(job, name, 1)
        self.end(job, name)
        last = self.numbers(name)[-1]
        job, _ = self.start("restart", name)
        self.wait_for(job, name, last + 1)
        self.end(job, name)
        job, _ = self.start("restart", name, "--interval", "off")
        [status] = [one["status"] for one in self.machine.verb("ps")]
        self.assertIsNone(status["interval_s"])
        job.let_go()
        job.finish(0)
        self.assertEqual(job.stdout(), self.machine.undisturbed(self.count, "400", "0"))

    def test_a_copy_that_was_put_aside_is_left_alone_and_so_is_what_lies_beside_it(self):
        job, name = self.start("run", "--incremental", "off", self.count, "400", "500", "go")
        for _ in range(2):
            self.machine.verb("checkpoint", name)
        self.end(job, name)
        other, another = self.start("run", "--incremental", "off", self.count, "400", "500", "go")
        self.machine.verb("checkpoint", another)
        self.end(other, another)
        aside = os.path.join(self.directory, "saved")
        homes = {each: os.path.join(self.machine.home, "jobs", each, "checkpoints") for each in (name, another)}
        shutil.copytree(os.path.join(homes[name], "2"), os.path.join(aside, "2"))
        shutil.copytree(os.path.join(homes[another], "1"), os.path.join(aside, "1"))
        for unfinished in ("3.part", "4.part", "1.old"):
            os.makedirs(os.path.join(aside, unfinished))
        before = sorted(os.listdir(aside))
        # It is the only one of the job.
        self.machine.mend("checkpoints", name, "--remove", "1,2")
        job, _ = self.start("restart", os.path.join(aside, "2"), "--interval", "1", "--incremental", "off", "--keep", "1")
        self.wait_for(job, name, 4)
        self.assertEqual(sorted(os.listdir(aside)), before)
        self.assertGreater(self.numbers(name)[0], 2)
        job.let_go()
        job.finish(0)

    def test_auto_takes_one_early_to_learn_what_they_cost(self):
        job, name = self.start("run", "--interval", "auto", self.count, "400", "500", "go")
        self.assertIn("then as often as its cost makes it best", job.stderr())
        [status] = [one["status"] for one in self.machine.verb("ps")]
        self.assertEqual(status["interval_s"], 300)
        # One by hand counts, too: its cost is known from then on.
        self.machine.verb("checkpoint", name)
        [status] = [one["status"] for one in self.machine.verb("ps")]
        self.assertNotEqual(status["interval_s"], 300)
        chosen = [entry for entry in self.decided(name) if entry["event"] == "interval_chosen"]
        self.assertEqual([entry["data"]["cost_s"] is None for entry in chosen], [True, False], chosen)
        self.assertIn("comes every 43800 h", chosen[0]["text"])
        job.let_go()
        job.finish(0)
        # Of a job that has ended, too; what only happened is left out.
        told = [entry["event"] for entry in self.decided(name)]
        self.assertEqual((told[0], told[-1]), ("job_started", "ended"))
        self.assertNotIn("rank_started", told)

    def test_auto_gives_a_far_tier_every_so_manieth_by_what_a_copy_costs(self):
        # Copies of a few MiB at 1 MiB/s, and failures that need them once in a while.
        for name, value in (("MEND_TIER_RATE_MIB", "1"), ("MEND_MTBF", "1"), ("MEND_WIDE_FAILURES_PERCENT", "1")):
            self.machine.set(name, value)
            self.addCleanup(self.machine.set, name, None)
        job, name = self.start("run", "--interval", "auto", "--incremental", "off", "--tiers", "memory,shared", self.count, "400", "500", "go")

        def tiers(number):
            return next((one["tiers"] for one in self.checkpoints(name) if one["number"] == number), [])

        # The first ones are asked for: each goes to both, and from then on it is known what that costs.
        for number in (1, 2):
            self.assertEqual(self.machine.verb("checkpoint", name)["number"], number)
            job.wait_for(lambda: tiers(number) == ["memory", "shared"], f"checkpoint {number} is in both")
        job.wait_for(lambda: "tiers_staggered" in [entry["event"] for entry in self.decided(name)], "it is decided")
        chosen = [entry for entry in self.decided(name) if entry["event"] == "tiers_staggered"][-1]
        memory, shared = chosen["data"]["tiers"]
        self.assertEqual((memory["tier"], memory["every"], shared["tier"]), ("memory", 1, "shared"))
        self.assertGreater(shared["every"], 1, chosen)
        self.assertIn(f"shared gets one of {shared['every']} (a copy takes", chosen["text"])
        # The next one, which nobody asks for, stays where it is.
        job.wait_for(lambda: any(one["periodic"] for one in self.checkpoints(name)), "one is taken")
        periodic = next(one["number"] for one in self.checkpoints(name) if one["periodic"])
        job.wait_for(lambda: tiers(periodic) == ["memory"], "it is in memory")
        # And one that somebody asks for goes everywhere.
        asked = self.machine.verb("checkpoint", name)["number"]
        job.wait_for(lambda: tiers(asked) == ["memory", "shared"], f"checkpoint {asked} is in both")
        job.let_go()
        job.finish(0)

    def decided(self, name):
        return json.loads(self.machine.mend("explain", name, "--why", "--json").stdout)

    def test_a_restarted_job_s_policy_goes_by_what_the_restart_took(self):
        def full_and_incremental():
            """What a full and an incremental one take, and what the policy makes of it."""
            taken = [self.machine.verb("checkpoint", name)["number"] for _ in range(2)]
            found = [one for one in self.checkpoints(name) if one["number"] in taken]
            self.assertEqual([one["kind"] for one in found], ["full", "incremental"])
            [status] = [one["status"] for one in self.machine.verb("ps")]
            return [one["bytes"] for one in found], status

        def restarts():
            with open(os.path.join(self.machine.home, "jobs", name, "job.json"), encoding="utf-8") as file:
                return json.load(file).get("restarts", [])

        def expected(bytes_of_one):
            total = sum(one["full"] + one["incremental"] for one in restarts())
            return sum(one["read_us"] for one in restarts()) / 1e6 / total * bytes_of_one

        job, name = self.start("run", "-n", "2", "--interval", "3600", "--incremental", "auto", self.iters, "-i", "100", "-w", "100",
            "-m", "4", "-u", "go")
        taken, status = full_and_incremental()
        self.assertEqual((status["restarts_measured"], restarts()), (0, []))
        self.assertGreater(status["extra_recovery_s"], 0)
        self.assertIn("(estimated)", self.machine.mend("explain", name).stdout)
        self.end(job, name)
        for times in (1, 2):
            job, _ = self.start("restart", name)
            job.wait_for(lambda: "ranks are restored and run" in job.stderr(), "it runs")
            job.wait_for(lambda: len(restarts()) == times, "what it took is on record")
            last = restarts()[-1]
            self.assertEqual([last["full"], last["incremental"]], taken)
            self.assertGreater(last["read_us"], 0)
            taken, status = full_and_incremental()
            self.assertEqual(status["restarts_measured"], times)
            self.assertAlmostEqual(status["extra_recovery_s"], expected(taken[1]), delta=1e-9)
            told = self.machine.mend("explain", name).stdout
            self.assertIn("a checkpoint every 3600.00 s, ", told)
            self.assertIn(f"(as {times} restart{'s' * (times > 1)} of the job took)", told)
            self.end(job, name)

    def test_failures_are_told_once_and_the_job_runs_on(self):
        job, name = self.start("run", "--interval", "1", self.count, "400", "500", "go", "socket")
        job.wait_for(lambda: "a periodic checkpoint failed: rank 0 cannot be saved: " in job.stderr(), "it fails")
        # The second try comes two seconds later.
        time.sleep(4)
        self.assertEqual(job.stderr().count("a periodic checkpoint failed"), 1)
        self.assertEqual(self.numbers(name), [])
        job.let_go()
        job.finish(0)

    def test_wrong_values_are_refused(self):
        for option, value in (("--interval", "soon"), ("--interval", "0"), ("--incremental", "-1"), ("--keep", "0")):
            done = self.machine.mend("run", f"{option}={value}", "true")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(option, done.stderr)
        self.machine.environment["MEND_MTBF"] = "never"
        done = self.machine.mend("run", "true")
        self.assertEqual(done.returncode, 64, done.stderr)

    def test_removal_by_hand(self):
        job, name = self.start("run", "-n", "2", "--incremental", "3", self.iters, "-i", "100", "-w", "100", "-m", "4", "-u", "go")
        for _ in range(3):
            self.machine.verb("checkpoint", name)
        found = self.checkpoints(name)
        self.assertEqual([one["kind"] for one in found], ["full", "incremental", "incremental"])
        self.assertEqual([one["needs"] for one in found], [[], [1], [1, 2]])
        refused = self.machine.mend("checkpoints", name, "--remove", "2")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("checkpoint 3 builds on it", refused.stderr)
        self.assertEqual(self.machine.verb("checkpoints", name, "--remove", "2,3"), {"removed": [2, 3]})
        # What the ranks track their changes from is gone: the next one is full, and can be restarted.
        self.machine.verb("checkpoint", name)
        [_, last] = self.checkpoints(name)
        self.assertEqual((last["number"], last["kind"]), (4, "full"))
        self.end(job, name)
        refused = self.machine.mend("checkpoints", name, "--remove", "7")
        self.assertIn("there are 1, 4", refused.stderr)
        self.machine.verb("checkpoints", name, "--remove", "1")
        job.let_go()
        self.machine.start(self.directory, "restart", name).finish(0)
        self.assertEqual(job.stdout(), self.machine.undisturbed("-n", "2", self.iters, "-i", "100", "-w", "100", "-m", "4", "-u", "go"))

    def test_after_a_restart_all_ranks_begin_anew(self):
        job, name = self.start("run", "--incremental", "5", self.count, "400", "500", "go")
        self.machine.verb("checkpoint", name)
        self.machine.verb("checkpoint", name)
        self.end(job, name)
        job, _ = self.start("restart", name)
        self.machine.verb("checkpoint", name)
        self.machine.verb("checkpoint", name)
        self.assertEqual([one["kind"] for one in self.checkpoints(name)], ["full", "incremental", "full", "incremental"])
        self.assertEqual([one["bases"] for one in self.checkpoints(name)], [[], [1], [], [3]])
        job.let_go()
        job.finish(0)

    def test_a_long_chain_is_merged_while_the_job_runs(self):
        self.machine.environment["MEND_SPACE_PERCENT"] = "110"
        arguments = ["-n", "2", self.iters, "-i", "100", "-w", "100", "-m", "4", "-u", "go"]
        job, name = self.start("run", "--interval", "1", "--incremental", "31", "--keep", "2", *arguments)
        job.wait_for(lambda: any("merged" in file for file in self.files(name)), "a chain is merged")
        number = self.numbers(name)[-1]
        self.wait_for(job, name, number + 2)
        job.wait_for(lambda: self.numbers(name)[0] >= number - 1, "what was merged is gone")
        self.assertTrue(all(one["usable"] for one in self.checkpoints(name)[-2:]))
        self.end(job, name)
        newest = self.checkpoints(name)[-1]
        self.assertTrue(newest["usable"] and newest["needs"], newest)
        job.let_go()
        self.machine.start(self.directory, "restart", name).finish(0)
        self.assertEqual(job.stdout(), self.machine.undisturbed(*arguments))

    def test_killed_at_any_moment_and_restarted(self):
        """SIGKILL of everything, again and again, while checkpoints are taken, merged and removed."""
        seed = int(os.environ.get("MEND_SEED", random.randrange(1 << 32)))
        dice = random.Random(seed)
        self.machine.environment["MEND_SPACE_PERCENT"] = "110"
        arguments = ["-n", "2", self.iters, "-i", "200", "-w", "100", "-m", "8", "-u", "go"]
        command = ["run", "--interval", "1", "--incremental", "3", "--keep", "1", *arguments]
        with self.subTest(seed=seed):
            life = 0
            while life < 6:
                job, name = self.start(*command)
                command = ["restart", name]
                first = (self.numbers(name) or [0])[-1]
                self.wait_for(job, name, first + 1)
                time.sleep(dice.random() * 3)
                job.process.send_signal(signal.SIGKILL)
                job.finish(-signal.SIGKILL)
                self.assertTrue(self.checkpoints(name)[-1]["usable"])
                life += 1
            job.let_go()
            job = self.machine.start(self.directory, "restart", name)
            job.finish(0)
            self.assertEqual(job.stdout(), self.machine.undisturbed(*arguments))
            self.assertFalse([file for file in self.files(name) if file.endswith(".new") or ".old/" in file])


if __name__ == "__main__":
    unittest.main()
