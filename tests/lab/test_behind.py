"""Checkpoints that are written behind the running job: what they hold, what can be asked meanwhile, and what happens if a
writer, a rank or the target goes."""

import os
import subprocess
import tempfile
import time
import unittest

import melt
from cases import InDirectory
from cluster import PATIENCE, Lab, Machine, compile_mpi

class Behind(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.iters = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))

    def held_checkpoint(self, machine, job, name):
        """Asks for a checkpoint and stops its two writers in the middle; the process that waits for it. A writer is given up
        after a minute without progress, no earlier."""
        command = machine.command("checkpoint", name)
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=machine.environment)
        self.addCleanup(asked.stdout.close)

        def held():
            if asked.poll() is not None:
                self.fail(f"it was over before its writers could be stopped: {asked.stdout.read()}")
            return len(machine.on("node1", "sh", "-c", "pkill -STOP -x mend-writer; pgrep -x -r T mend-writer").stdout.split()) == 2

        job.wait_for(held, "both writers are stopped")
        return asked

    def release(self, machine):
        self.assertEqual(machine.on("node1", "pkill", "-CONT", "-x", "mend-writer").returncode, 0)

    def writers(self, machine):
        return machine.on("node1", "pgrep", "-x", "mend-writer").stdout.split()

    def await_no_writer(self, machine):
        until = time.monotonic() + PATIENCE
        while self.writers(machine) and time.monotonic() < until:
            time.sleep(0.1)
        self.assertEqual(self.writers(machine), [])

    def start_slow(self, machine):
        """A job whose checkpoints take so many seconds to write that their writers can be stopped on a busy machine, too."""
        machine.environment["MEND_WRITE_RATE"] = "1"
        argv = ["-n", "2", "--hosts", "node1", "--", self.iters, "-i", "100", "-w", "100", "-m", "8", "-u", "go"]
        job = machine.start(self.directory, "run", *argv)
        name = machine.running(job)
        job.wait_for(lambda: "iteration" in job.stderr(), "the tables are filled")
        return job, name, argv

    def test_generations_of_lammps(self):
        """Checkpoint, restart, checkpoint, restart: each image is one of an instant, taken in the middle of a computation."""
        argv = ["-n", "2", "--", *melt.argv(self.directory, size=16)]
        with Machine() as machine:
            machine.environment["MEND_WRITE_RATE"] = "64"
            expected = machine.undisturbed(*argv)
            job = machine.start(self.directory, "run", *argv)
            name = machine.running(job)
            for step in (100, 250, 400):
                job.wait_for(lambda: melt.steps(self.output()) >= step, f"step {step}")
                done = machine.verb("checkpoint", name)
                self.assertEqual(done["notes"], [])
                self.assertLess(done["stopped_us"], done["durable_us"])
                self.assertEqual(machine.mend("kill", name).returncode, 0)
                job.finish(137)
                job = machine.start(self.directory, "restart", name)
                machine.running(job)
            job.let_go()
            job.finish(0)
        melt.compare(self, expected, self.output(), job.stderr())

    def test_meanwhile_the_job_can_be_asked(self):
        with Lab(1) as lab:
            job, name, argv = self.start_slow(lab)
            asked = self.held_checkpoint(lab, job, name)
            for explanation in lab.verb("explain", name):
                self.assertEqual(explanation["inspection"]["Ok"]["obstacles"], [])
            status = next(one["status"] for one in lab.verb("ps") if one["id"] == name)
            self.assertEqual((status["state"], status["last_checkpoint"]), ("running", None))
            self.assertEqual(lab.verb("checkpoints", name), [])
            self.release(lab)
            said = asked.communicate(timeout=PATIENCE)[0]
            self.assertIn("durable after", said)
            self.assertEqual(asked.returncode, 0, said)
            self.assertEqual(lab.mend("kill", name).returncode, 0)
            job.finish(137)
            job.let_go()
            lab.start(self.directory, "restart", name).finish(0)
            self.assertEqual(self.output(), lab.undisturbed(*argv))

    def test_meanwhile_the_job_runs_to_its_end(self):
        """What is not complete by then is given up with the job."""
        with Lab(1) as lab:
            job, name, argv = self.start_slow(lab)
            asked = self.held_checkpoint(lab, job, name)
            job.let_go()
            job.finish(0)
            asked.communicate(timeout=PATIENCE)
            self.assertNotEqual(asked.returncode, 0)
            self.await_no_writer(lab)
            self.assertEqual(lab.verb("checkpoints", name), [])
            self.assertEqual(self.output(), lab.undisturbed(*argv))

    def test_a_job_that_was_told_to_stop_and_write_does(self):
        with Machine() as machine:
            machine.environment["MEND_CHECKPOINT_MODE"] = "stop"
            job = machine.start(self.directory, "run", self.iters, "-i", "100", "-w", "100", "-m", "32", "-u", "go")
            name = machine.running(job)
            done = machine.verb("checkpoint", name)
            self.assertLessEqual(done["phases"]["write_us"], done["stopped_us"])
            self.assertLessEqual(done["stopped_us"], done["durable_us"])
            done = machine.verb("checkpoint", name, "--mode", "copy-on-write")
            self.assertLess(done["stopped_us"], done["durable_us"])
            job.let_go()
            job.finish(0)

    def test_a_writer_that_is_killed_fails_the_checkpoint_and_not_the_job(self):
        with Lab(1) as lab:
            job, name, argv = self.start_slow(lab)
            asked = self.held_checkpoint(lab, job, name)
            writer = self.writers(lab)[0]
            self.assertEqual(lab.on("node1", "kill", "-KILL", writer).returncode, 0)
            self.release(lab)
            said = asked.communicate(timeout=PATIENCE)[0]
            self.assertNotEqual(asked.returncode, 0)
            self.assertIn("killed by signal 9", said)
            self.assertEqual(lab.verb("checkpoints", name), [])
            lab.verb("checkpoint", name)
            self.assertEqual([one["usable"] for one in lab.verb("checkpoints", name)], [True])
            job.let_go()
            job.finish(0)
            self.assertEqual(self.output(), lab.undisturbed(*argv))

    def test_no_writer_outlives_its_rank_daemon_or_controller(self):
        for victim in ("iters", "mendd", "mend"):
            with self.subTest(victim), Lab(1) as lab:
                self.directory = tempfile.mkdtemp(dir=self.work)
                job, name, _ = self.start_slow(lab)
                asked = self.held_checkpoint(lab, job, name)
                if victim == "mend":
                    lab.on("head", "pkill", "-KILL", "-f", "mend run ")
                else:
                    lab.on("node1", "pkill", "-KILL", "-x", victim)
                asked.communicate(timeout=PATIENCE)
                self.assertNotEqual(asked.returncode, 0)
                job.finish(None)
                self.await_no_writer(lab)
                self.assertEqual(lab.verb("checkpoints", name), [])


if __name__ == "__main__":
    unittest.main()
