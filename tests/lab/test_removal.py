"""Jobs that ended are removed when somebody wants that, and nothing else is."""

import json
import os
import time
import unittest

from cases import OnMachine
from cluster import compile_plain


class Removal(OnMachine):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.count = compile_plain("count.c", os.path.join(cls.work, "count"))

    def ended(self, *options):
        """A job that ended and left a checkpoint; its name."""
        job = self.machine.start(self.directory, "run", *options, self.count, "400", "500", "go")
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        self.machine.mend("kill", name)
        job.finish(137)
        return name

    def directories(self):
        return sorted(os.listdir(os.path.join(self.machine.home, "jobs")))

    def age(self, name, days):
        path = os.path.join(self.machine.home, "jobs", name, "job.json")
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        record["ended"][0] -= days * 86_400
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file)

    def test_by_name_with_the_checkpoints_that_are_elsewhere(self):
        base = os.path.join(self.directory, "elsewhere")
        os.mkdir(base)
        name, other = self.ended("--checkpoint-dir", base), self.ended()
        [size] = [one["bytes"] for one in self.machine.verb("ps", "--all") if one["id"] == name]
        self.assertGreater(size, 4 << 20, "a table of 4 MiB is in the image")
        self.assertIn("SIZE", self.machine.mend("ps", "-a").stdout)
        done = self.machine.verb("rm", name)
        self.assertEqual((done["freed"], [one["id"] for one in done["removed"]]), (size, [name]))
        self.assertEqual((os.listdir(base), self.directories()), ([], [other]))
        done = self.machine.mend("rm", name)
        self.assertEqual(done.returncode, 69, done.stderr)

    def test_a_running_job_stays_and_so_do_those_named_with_it(self):
        name = self.ended()
        job = self.machine.start(self.directory, "run", self.count, "400", "500", "go")
        running = self.machine.running(job)
        done = self.machine.mend("rm", name, running)
        self.assertEqual(done.returncode, 69)
        self.assertIn(f"job {running} is running", done.stderr)
        self.assertEqual(self.directories(), sorted([name, running]))
        self.assertIn(f"{name} is removed", self.machine.mend("rm", "--ended").stdout)
        self.assertEqual(self.directories(), [running])
        job.let_go()
        job.finish(0)

    def test_the_old_ones(self):
        old, new = self.ended(), self.ended()
        self.age(old, 8)
        self.assertEqual([one["id"] for one in self.machine.verb("rm", "--ended", "--older", "7d")["removed"]], [old])
        self.assertEqual(self.directories(), [new])
        for wrong in (["--older", "7d"], ["--ended", new], ["--ended", "--older", "soon"], []):
            self.assertEqual(self.machine.mend("rm", *wrong).returncode, 2, wrong)
        self.assertEqual(self.directories(), [new])

    def test_one_that_has_run_for_long_and_has_just_crashed_is_not_old(self):
        base = os.path.join(self.directory, "elsewhere")
        os.mkdir(base)
        job = self.machine.start(self.directory, "run", "--checkpoint-dir", base, self.count, "400", "500", "go")
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        job.process.kill()
        job.finish(-9)
        of_job = os.path.join(self.machine.home, "jobs", name)
        # What changed last when it began.
        begun = time.time() - 10 * 86_400
        for one in os.listdir(of_job):
            if one != "journal":
                os.utime(os.path.join(of_job, one), (begun, begun))
        self.assertEqual(self.machine.verb("rm", "--ended", "--older", "7d")["removed"], [])
        self.assertEqual((self.directories(), os.listdir(os.path.join(base, name))), ([name], ["1"]))
        for one in (os.path.join(of_job, "journal"), os.path.join(base, name)):
            os.utime(one, (begun, begun))
        self.assertEqual([one["id"] for one in self.machine.verb("rm", "--ended", "--older", "7d")["removed"]], [name])

    def test_a_job_that_begins_removes_those_that_are_expired(self):
        old, new = self.ended(), self.ended()
        self.age(old, 3)
        self.machine.set("MEND_EXPIRE", "2")
        job = self.machine.start(self.directory, "run", self.count, "400", "500", "stay")
        name = self.machine.running(job)
        job.wait_for(lambda: "ended more than 2 days ago are removed" in job.stderr(), "the old one is removed")
        self.assertEqual(self.directories(), sorted([new, name]))
        self.machine.mend("kill", name)
        job.finish(137)
        done = self.machine.mend("run", "true", env=dict(self.machine.environment, MEND_EXPIRE="soon"))
        self.assertEqual(done.returncode, 64, done.stderr)

    def test_the_end_of_a_job_is_no_failure_of_its_checkpoint(self):
        for tenths in range(8, 16):
            done = self.machine.mend("run", "-n", "2", "--interval", "1", "bash", "-c", f"sleep {tenths / 10}")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("failed", done.stderr)

    def test_what_ended_badly_is_named(self):
        done = self.machine.mend("run", "-n", "2", "sh", "-c", "exit $((MEND_RANK * 75))")
        self.assertEqual(done.returncode, 75)
        self.assertRegex(done.stderr, r"rank 1 on \S+ exited with code 75; the code is the program's own")
        job = self.machine.start(self.directory, "run", "sleep", "600")
        self.machine.running(job)
        job.interrupt()
        job.finish(130)
        self.assertIn("signal 2 is passed on to the ranks", job.stderr())


if __name__ == "__main__":
    unittest.main()
