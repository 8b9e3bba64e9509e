"""Requests by whoever started the job: the files of launcher.c, under an mpiexec that knows nothing of them, and under `mend run`."""

import os
import signal
import subprocess
import sys
import time
import unittest

from programs import ROOT, InDirectory, program, run, skip, start

sys.path.append(os.path.join(ROOT, "tests", "lab"))

PATIENCE = float(os.environ.get("MEND_TEST_PATIENCE", "180"))
# Steps of two milliseconds, so that there is time to ask.
SLOW = ["300", "3000", "-p", "0", "2000"]
# For those that are killed: a minute and more.
ENDLESS = [*SLOW[:-1], "20000"]


def until(found, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        result = found()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"not in {PATIENCE} s: {what}")


def content(path):
    try:
        with open(path, encoding="utf-8") as file:
            return dict(line.split(" = ", 1) for line in file.read().splitlines())
    except FileNotFoundError:
        return None


class Files(InDirectory):
    def begin(self, ranks=2, command=("heat", *SLOW), **settings):
        os.mkdir(self.path("asked"))
        process = start(ranks, [program(command[0]), *command[1:]], self.directory, requests=self.path("asked"), watch_seconds=0.05, **settings)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def asked(self, text, name="0.request"):
        partial = self.write("partial", text)
        os.rename(partial, self.path("asked", name))

    def test_a_request_is_answered_when_its_checkpoint_counts(self):
        process = self.begin()
        library = until(lambda: content(self.path("asked", "0.library")), "the library is there")
        self.assertEqual(library, {"directory": os.path.realpath(self.path("checkpoints")), "ranks": "2", "program": "heat 1"})
        for number in ("a1", "b2"):
            self.asked(f"id = {number}\n")
            answer = until(lambda: content(self.path("asked", f"0.answer-{number}")), "an answer")
            self.assertTrue(os.path.exists(self.path("checkpoints", f"checkpoint-{int(answer['checkpoint']):06}", "manifest")))
            self.assertGreater(int(answer["bytes"]), 2 * 8 * 100)
            until(lambda: not os.path.exists(self.path("asked", "0.request")), "the request is gone")
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, output)
        # One each: what one request asks for is not taken twice.
        self.assertEqual(output.count("is complete"), 2, output)
        self.assertEqual(sorted(os.listdir(self.path("asked"))), ["0.answer-a1", "0.answer-b2", "0.directory"])

    def test_what_is_no_request_is_left_alone(self):
        self.begin(command=("heat", *ENDLESS))
        until(lambda: content(self.path("asked", "0.library")), "the library is there")
        for nonsense in ("id = a1", "id = ../../a\n", "id = \n", "", "ID = a1\n", "id = " + "a" * 64 + "\n", "id = A1\n"):
            self.asked(nonsense)
            time.sleep(0.15)
            self.assertEqual(sorted(os.listdir(self.path("asked"))), ["0.directory", "0.library", "0.request"], nonsense)
        self.asked("id = 5e\n")
        until(lambda: content(self.path("asked", "0.answer-5e")), "an answer")

    def test_a_request_that_nobody_saw_is_answered_at_the_end(self):
        os.mkdir(self.path("asked"))
        self.asked("id = a1\n")
        self.good(run(2, [program("heat"), "50", "3"], self.directory, requests=self.path("asked"), watch_seconds=100))
        self.assertEqual(content(self.path("asked", "0.answer-a1")), {"why": "the program has ended"})
        self.assertEqual(sorted(os.listdir(self.path("asked"))), ["0.answer-a1", "0.directory"])

    def test_a_request_that_ranks_cannot_settle_on_says_why(self):
        # Rank 1 makes two calls where the others make one.
        self.begin(ranks=3, command=("loops", "100000", "2000", "uneven"), hold_seconds=0.3, join_seconds=3)
        until(lambda: content(self.path("asked", "0.library")), "the library is there")
        self.asked("id = a1\n")
        answer = until(lambda: content(self.path("asked", "0.answer-a1")), "an answer")
        self.assertIn("weren't at the same call in time", answer["why"])

    def test_rank_0_moves_while_a_request_waits(self):
        """Its new process is another rank to its launcher, as under `mend run`. Where the move fails nobody is told of that one, and the old process answers."""
        for other, told, left in (((), "why", ["0.directory", "7.answer-a1", "7.directory"]), (("-a", "missing"), "checkpoint", ["7.answer-a1", "7.directory"])):
            with self.subTest(other):
                room = self.path("-".join(("room", *other)))
                os.makedirs(os.path.join(room, "asked"))
                own = ["sh", "-c", 'MEND_RANK=$((PMI_RANK + 7)) exec "$0" "$@"', program("moves"), "1000", "60", "-p", "20000", "-u", "2", *other]
                process = start(2, own, room, requests=os.path.join(room, "asked"), watch_seconds=0.05, restart="none")
                self.addCleanup(process.communicate)
                self.addCleanup(process.kill)
                until(lambda: os.path.exists(os.path.join(room, "log-1")), "ranks compute")
                os.rename(self.write("part", "ranks = 0\n"), os.path.join(room, "checkpoints", "move"))
                os.rename(self.write("part", "id = a1\n"), os.path.join(room, "asked", "7.request"))
                until(lambda: os.path.exists(os.path.join(room, "checkpoints", "request")), "the request is seen, and so is the move")
                os.rename(self.write("part", ""), os.path.join(room, "go"))
                answer = until(lambda: content(os.path.join(room, "asked", "7.answer-a1")), "an answer")
                self.assertIn(told, answer)
                self.assertEqual(answer.get("why", "rank 0 has moved: ask again"), "rank 0 has moved: ask again")
                output, _ = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 0, output)
                self.assertEqual(sorted(os.listdir(os.path.join(room, "asked"))), left, output)

    def test_a_directory_that_is_not_there_harms_nobody(self):
        output = self.good(run(2, [program("heat"), "50", "3"], self.directory, requests=self.path("not", "there")))
        self.assertEqual(output, self.good(run(2, [program("heat"), "50", "3"], self.directory, restart="none")))


class UnderMend(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import cluster

        if not os.path.exists(os.path.join(cluster.BIN, "mend")):
            skip("portable checkpoints under mend run", "Mend isn't built (make build)")
        cls.lab = cls.enterClassContext(cluster.Lab(2))
        cls.heat = program("heat")

    def begin(self, *arguments, ranks=4):
        job = self.lab.start(self.directory, "run", "-n", str(ranks), "--hosts", "node1,node2", "--", self.heat, *(arguments or ENDLESS))
        return job, self.lab.running(job)

    def library(self, name):
        home = self.lab.on("head", "sh", "-c", "echo $MEND_HOME").stdout.strip()
        place = os.path.join(home, "jobs", name, "portable")
        until(lambda: self.lab.on("head", "sh", "-c", f"ls {place}/*.library 2>/dev/null || true").stdout, "the library is there")
        return place

    def portable(self, name, *options):
        [taken] = self.lab.verb("checkpoint", name, "--portable", *options)
        return taken

    def test_asked_by_mend_continued_without_it_on_other_ranks(self):
        job, name = self.begin()
        self.library(name)
        first = self.portable(name)
        self.assertEqual((first["directory"], first["program"], first["ranks"]), (os.path.realpath(self.path("checkpoints")), "heat 1", 4))
        # A rank that speaks for the library moves; a checkpoint of all memory is another matter.
        self.lab.verb("migrate", name, "0", "--to", "node2")
        self.lab.verb("checkpoint", name)
        second = self.portable(name, "--timeout", "60")
        self.assertGreater(second["checkpoint"], first["checkpoint"])
        noted = [entry["data"] for entry in self.lab.verb("log", name) if entry["event"] == "portable_checkpoint"]
        self.assertEqual([(note["checkpoint"], note["bytes"]) for note in noted], [(one["checkpoint"], one["bytes"]) for one in (first, second)])
        self.assertIn(f"portable checkpoint {first['checkpoint']} of 4 rank(s)", self.lab.mend("log", name).stdout)
        # All memory goes back to before the second one, and the program on from there.
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        again = self.lab.start(self.directory, "restart", name)
        until(lambda: self.lab.mend("explain", name).returncode == 0, "it runs again")
        third = self.portable(name)
        self.lab.mend("kill", name)
        again.finish(137)
        # The one that was further on is still there, and the newest by its number.
        output = self.good(run(2, [self.heat, *SLOW[:2]], self.directory, restart=third["checkpoint"]))
        self.assertIn(f"checkpoint {third['checkpoint']} of 4 ranks is restored", output)
        os.mkdir(self.path("undisturbed"))
        undisturbed = self.good(run(1, [self.heat, *SLOW[:2]], self.path("undisturbed")))
        self.assertEqual(output.splitlines()[-1], undisturbed.splitlines()[-1])

    def test_programs_without_the_library_are_told_at_once(self):
        job = self.lab.start(self.directory, "run", "-n", "1", "--hosts", "node1", "--", "sleep", "100")
        name = self.lab.running(job)
        done = self.lab.mend("checkpoint", name, "--portable")
        self.assertEqual(done.returncode, 1)
        self.assertIn("none has started libmend-app", done.stderr)
        for wrong in (["--portable", "--mode", "stop"], ["--timeout", "3"], ["--portable", "--timeout", "-1"]):
            self.assertIn(self.lab.mend("checkpoint", name, *wrong).returncode, (2, 64), wrong)
        self.lab.mend("kill", name)
        job.finish(137)
        done = self.lab.mend("checkpoint", name, "--portable")
        self.assertEqual((done.returncode, f"job {name} does not run" in done.stderr), (1, True), done.stderr)

    def test_who_waits_hears_that_time_is_up_or_the_job_has_ended(self):
        job, name = self.begin("300", "4000", "-p", "0", "60000000")
        place = self.library(name)
        done = self.lab.mend("checkpoint", name, "--portable", "--timeout", "0.5")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no answer came within 0.5 s", done.stderr)
        self.assertEqual(self.lab.on("head", "sh", "-c", f"ls {place}").stdout.split(), ["0.directory", "0.library"])
        [failed] = [entry["data"] for entry in self.lab.verb("log", name) if entry["event"] == "portable_failed"]
        self.assertIn("no answer came", failed["error"])
        asking = subprocess.Popen(
            self.lab.command("checkpoint", name, "--portable"),
            env=self.lab.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: "0.request" in self.lab.on("head", "sh", "-c", f"ls {place}").stdout, "the request is there")
        self.assertTrue(self.lab.kill_rank("node1", 1, signal.SIGKILL))
        _, told = asking.communicate(timeout=PATIENCE)
        self.assertEqual(asking.returncode, 1)
        self.assertIn("the job ended first", told)
        job.finish(None)


if __name__ == "__main__":
    unittest.main()
