"""The agreement: every order of events by explore.c, and real ranks with real requests."""

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from programs import OUT, ROOT, InDirectory, program, run, start

PATIENCE = float(os.environ.get("MEND_TEST_PATIENCE", "180"))


class Explored(unittest.TestCase):
    def test_every_order_of_events(self):
        explore = os.path.join(OUT, "tests", "explore")
        for arguments in ("1 5 s", "2 6 s", "2 6 sb", "2 6 sp", "2 6 spb", "2 5 tbf", "2 6 tpb", "2 5 su", "2 5 tu", "2 4 std", "3 4 s", "3 4 sb", "3 4 sp", "3 2 t", "2 6 smpb", "2 6 tmpb", "3 4 sm"):
            with self.subTest(arguments):
                done = subprocess.run([explore, *arguments.split()], capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stdout, r"explored \d\d+ states")


# What keeps the agreement safe, and what shows that it is missing: text of src/agree.c, its replacement, arguments of explore.
SAFEGUARDS = (
    ("if (!a->all_joined) {", "if (0) {", "2 5 s"),
    ("if (a->frontier >= call)", "if (0)", "2 5 s"),
    ("put(out, AGREE_ROOT, of_rank(a, AGREE_LEFT, call));", "", "3 3 s"),
    ("if (a->state == AGREE_HOLDING && a->frontier >= a->call) {", "if (0) {", "3 4 s"),
    ("if (under_way && !r->members[rank].reported)", "if (0)", "2 5 su"),
    ("if (!r->members[i].reported) {", "if (0) {", "2 5 s"),
    ("a->purpose = m->purpose;", "", "2 5 sm"),
    ("if (m->purpose == AGREE_MOVE && r->taking == 0)", "if (m->purpose == AGREE_MOVE)", "2 6 tmpb"),
    ("        r->purpose = AGREE_CHECKPOINT;\n", "", "2 6 tmpb"),
)


class Safeguards(unittest.TestCase):
    def test_each_one_missing_is_noticed(self):
        with open(os.path.join(ROOT, "app", "lib", "src", "agree.c"), encoding="utf-8") as file:
            source = file.read()
        with tempfile.TemporaryDirectory() as directory:
            os.mkdir(os.path.join(directory, "src"))
            os.mkdir(os.path.join(directory, "tests"))
            shutil.copy(os.path.join(ROOT, "app", "lib", "src", "agree.h"), os.path.join(directory, "src"))
            shutil.copy(os.path.join(ROOT, "app", "lib", "tests", "explore.c"), os.path.join(directory, "tests"))
            for safeguard, without, arguments in SAFEGUARDS:
                with self.subTest(safeguard):
                    self.assertEqual(source.count(safeguard), 1)
                    with open(os.path.join(directory, "src", "agree.c"), "w", encoding="utf-8") as file:
                        file.write(source.replace(safeguard, without))
                    subprocess.run(["gcc", "-std=c17", "-w", "-O2", "tests/explore.c", "src/agree.c", "-o", "explore"], cwd=directory, check=True)
                    done = subprocess.run([os.path.join(directory, "explore"), *arguments.split()], capture_output=True, text=True, check=False)
                    self.assertEqual(done.returncode, 1, done.stdout)
                    self.assertIn("explore: ", done.stderr)


class Ranks(InDirectory):
    def taken(self, output):
        return re.findall(r"rank (\d+) took at (\d+)", output)

    def read(self, process, word, times=1):
        """The output until it has had a word so often."""
        seen = ""
        until = time.monotonic() + PATIENCE
        while seen.count(word) < times and time.monotonic() < until:
            line = process.stdout.readline()
            self.assertTrue(line, f"the ranks ended:\n{seen}")
            seen += line
        return seen

    def ask(self, process, ask):
        """Has `ask` called when all ranks run; the whole output."""
        seen = self.read(process, "starts", 3)
        ask()
        output, _ = process.communicate(timeout=PATIENCE)
        return seen + output

    def one_call_for_all(self, output):
        taken = self.taken(output)
        self.assertEqual(sorted(rank for rank, _ in taken), ["0", "1", "2"], output)
        self.assertEqual(len({call for _, call in taken}), 1, output)
        self.assertEqual(len(self.checkpoints()), 1)

    def test_a_watched_file(self):
        loops = [program("loops"), "1200", "5000", "step", "-s", "100"]
        asked = self.ask(start(3, loops, self.directory, watch_seconds=0.05), lambda: open(self.path("checkpoints", "request"), "w").close())
        self.one_call_for_all(asked)

    def test_a_signal_that_reaches_one_rank_alone(self):
        process = start(3, [program("loops"), "1200", "5000", "step", "-s", "100"], self.directory, watch_seconds=0.05, signal="USR2")

        def one_rank():
            for entry in os.listdir("/proc"):
                if not entry.isdigit():
                    continue
                try:
                    with open(f"/proc/{entry}/environ", "rb") as file:
                        environ = file.read().split(b"\0")
                    own = os.readlink(f"/proc/{entry}/cwd") == self.directory and os.readlink(f"/proc/{entry}/exe") == program("loops")
                except OSError:
                    continue
                if own and b"PMI_RANK=1" in environ:
                    os.kill(int(entry), signal.SIGUSR2)
                    return
            self.fail("rank 1 isn't found")

        self.one_call_for_all(self.ask(process, one_rank))

    def test_requests_that_come_at_different_calls(self):
        for mode in ("step", "rush"):
            self.one_call_for_all(self.good(run(3, [program("loops"), "300", "300", mode, "-r", "20"], self.directory, watch_seconds=100)))
            for number in self.checkpoints():
                os.remove(self.path("checkpoints", f"checkpoint-{number:06}", "manifest"))

    def test_an_interval(self):
        output = self.good(run(3, [program("loops"), "300", "3000"], self.directory, interval=0.3))
        self.assertGreaterEqual(len(self.taken(output)), 3, output)
        calls = {}
        for rank, call in self.taken(output):
            calls.setdefault(rank, []).append(call)
        self.assertEqual(calls["0"], calls["1"])
        self.assertEqual(calls["0"], calls["2"])

    def with_own_settings(self, name, *arguments, **settings):
        """The command of a program on ranks of which each has its own settings: tuples, one value for each rank."""
        command, count = [], len(next(iter(settings.values())))
        for rank in range(count):
            command += [":", "-n", "1"] if rank else []
            for key, values in settings.items():
                command += ["-env", f"MEND_APP_{key.upper()}", str(values[rank])]
            command += [program(name), *arguments]
        return run(1, command, self.directory, join_seconds=1)

    def test_an_interval_shorter_than_looks_at_the_file(self):
        output = self.good(run(2, [program("loops"), "300", "10000"], self.directory, interval=0.5, watch_seconds=60))
        self.assertGreaterEqual(len(self.taken(output)), 6, output)

    def test_what_a_checkpoint_has_answered_is_not_passed_on_later(self):
        output = self.good(self.with_own_settings("loops", "900", "5000", "step", "-r", "20", watch_seconds=(0.1, 0.1, 2.5)))
        self.one_call_for_all(output)
        self.assertNotIn("no checkpoint", output)

    def test_what_a_checkpoint_has_answered_is_not_seen_later(self):
        output = self.good(self.with_own_settings("moves", "1000", "250", "-p", "20000", "-c", "30", "-n", "40", watch_seconds=(0.05, 2.5)))
        self.assertEqual(self.checkpoints(), [41], output)
        self.assertNotIn("no checkpoint", output)

    def test_a_request_that_the_others_have_not_heard_is_passed_on_again(self):
        command = [program("loops"), "1000", "5000", "step", "-s", "100"]
        output = self.good(run(1, ["-env", "MEND_APP_INTERVAL", "1", *command, ":", "-n", "2", *command], self.directory, watch_seconds=0.1))
        first = self.taken(output)[:3]
        self.assertEqual(sorted(rank for rank, _ in first), ["0", "1", "2"], output)
        self.assertEqual(len({call for _, call in first}), 1, output)

    def test_a_request_after_one_whose_end_a_rank_has_not_heard(self):
        process = start(2, [program("loops"), "2000", "5000", "late", "-s", "10"], self.directory, watch_seconds=0.05, join_seconds=2)
        request = self.path("checkpoints", "request")
        self.read(process, "rank 1 waits")
        open(request, "w", encoding="utf-8").close()
        self.read(process, "no checkpoint")
        os.utime(request)
        time.sleep(0.3)
        open(self.path("go"), "w", encoding="utf-8").close()
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(sorted(rank for rank, _ in self.taken(output)), ["0", "1"], output)

    def test_many_requests_at_random_moments(self):
        random.seed(int(os.environ.get("MEND_TEST_SEED", "1")))
        for settings in ({"behind": "yes", "incremental": "yes"}, {"calls": 37}):
            process = start(3, [program("loops"), "1400", "1000"], self.directory, watch_seconds=0.01, **settings)

            def ask():
                for _ in range(4):
                    time.sleep(0.1 + random.random() / 10)
                    with open(self.path("checkpoints", "request"), "w", encoding="utf-8"):
                        os.utime(self.path("checkpoints", "request"), (time.time(), time.time() + 2 * _))

            output = self.ask(process, ask)
            calls = {}
            for rank, call in self.taken(output):
                calls.setdefault(rank, []).append(call)
            self.assertGreaterEqual(len(calls["0"]), 2, output)
            self.assertEqual(calls["0"], calls["1"], output)
            self.assertEqual(calls["0"], calls["2"], output)
            self.assertNotIn("no checkpoint", output)
            shutil.rmtree(self.path("checkpoints"))

    def test_unequal_loops_cancel_everywhere_and_say_so(self):
        output = self.good(run(3, [program("loops"), "300", "2000", "uneven", "-r", "20"], self.directory, hold_seconds=0.3, join_seconds=3))
        self.assertEqual(self.checkpoints(), [], output)
        self.assertIn("weren't at the same call in time", output)
        self.assertEqual(output.count("ends"), 3, output)

    def test_a_rank_that_is_late_to_hear_of_it_cancels_and_all_say_why(self):
        output = self.good(run(3, [program("loops"), "100", "10000", "still", "-r", "20"], self.directory, watch_seconds=100, join_seconds=0.5))
        self.assertEqual(self.checkpoints(), [], output)
        said = re.findall(r"mend-app: rank (\d): no checkpoint: rank [02]: the other ranks weren't at the same call in time \(join_seconds, hold_seconds\); this rank is at call (\d+), in contexts \"loop\"", output)
        self.assertEqual(sorted(rank for rank, _ in said), ["0", "1", "2"], output)
        calls = {rank: int(call) for rank, call in said}
        self.assertLess(calls["1"], min(calls["0"], calls["2"]), output)

    def test_an_early_end_cancels_and_says_so(self):
        output = self.good(run(3, [program("loops"), "400", "2000", "early", "-r", "250"], self.directory))
        self.assertEqual(self.checkpoints(), [], output)
        self.assertIn("rank 1: it has ended", output)

    def test_different_places_and_replicas_that_differ_are_refused(self):
        output = self.good(run(3, [program("loops"), "200", "500", "places", "-r", "20"], self.directory))
        self.assertIn("rank 1: it is in other contexts", output)
        for mode in ("replicas", "inside"):
            output = self.good(run(3, [program("loops"), "200", "500", mode, "-r", "20"], self.directory))
            self.assertIn("a replicated variable of it differs", output)
        self.assertEqual(self.checkpoints(), [])

    def test_a_request_at_the_very_end_hurts_nobody(self):
        for at in ("49", "50"):
            output = self.good(run(3, [program("loops"), "50", "1000", "step", "-r", at], self.directory, behind="yes"))
            self.assertEqual(output.count("ends"), 3, output)


class Watched(InDirectory):
    SCRIPT = """
import os, time, mend_app
with mend_app.Session(program="watched 1") as session:
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    state = session.scalars(step=0)
    session.request()
    until = time.monotonic() + 20
    # No checkpoint answers it before it is passed on.
    time.sleep(0.3)
    while os.path.isdir(os.path.dirname(WATCHED)) and not os.path.exists(WATCHED) and time.monotonic() < until:
        time.sleep(0.01)
    while state.step < 20 or (time.monotonic() < until and not session.newest):
        session.checkpoint()
        time.sleep(0.05)
        state.step += 1
"""

    def test_each_time_it_is_touched_or_put_there_again(self):
        script = """
import os, time, mend_app
def taken(session):
    before, until = session.newest, time.monotonic() + 5
    while session.newest == before and time.monotonic() < until:
        session.checkpoint()
        time.sleep(0.005)
    print("taken", session.newest > before)
with mend_app.Session(program="watched 1") as session:
    open("asked", "w").close()
    taken(session)
    os.utime("asked")
    taken(session)
    time.sleep(0.1)
    times = os.stat("asked").st_atime_ns, os.stat("asked").st_mtime_ns
    os.remove("asked")
    time.sleep(0.1)
    open("new", "w").close()
    os.utime("new", ns=times)
    os.rename("new", "asked")
    taken(session)
"""
        output = self.good(self.python(script, watch="asked", watch_seconds=0.02))
        self.assertEqual(output.count("taken True"), 3, output)

    def test_a_relative_name_is_taken_from_where_the_program_starts(self):
        self.good(self.python(self.SCRIPT.replace("WATCHED", repr(self.path("asked"))), watch="asked", watch_seconds=0.05))
        self.assertTrue(os.path.exists(self.path("asked")))
        self.assertFalse(os.path.exists(self.path("elsewhere", "asked")))

    def test_a_file_that_can_not_be_touched(self):
        output = self.good(self.python(self.SCRIPT.replace("WATCHED", repr(self.path("absent", "asked"))), watch="absent/asked", watch_seconds=0.05, quiet="yes"))
        self.assertIn(f"{self.path('absent', 'asked')} can't be touched: No such file or directory: the other ranks learn of a request for a checkpoint by that", output)


if __name__ == "__main__":
    unittest.main()
