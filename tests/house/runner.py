"""The runner of the tests counts what was said, and never counts silence as success."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from run import LOGS, LONGEST, REPEATED, Count, Remarks, count_lines, judge, run_tier, telling  # noqa: E402
from tiers import ROOT, NotHere, Step, Tier, drawn_by  # noqa: E402


def alive(process):
    """Whether a process runs."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Seed(unittest.TestCase):
    def setUp(self):
        drawn_by.cache_clear()
        self.addCleanup(drawn_by.cache_clear)

    @unittest.skipUnless(os.path.exists(os.path.join(ROOT, ".git")), "this is no checkout")
    def test_another_user_s_checkout_has_its_commit_s_seed(self):
        # By the first of these git takes the checkout for another user's.
        with unittest.mock.patch.dict(os.environ, GIT_TEST_ASSUME_DIFFERENT_OWNER="1", MEND_TEST_SEED=""):
            self.assertEqual(drawn_by()[1], "the commit's")

    def test_a_seed_that_is_not_the_commit_s_is_told(self):
        with unittest.mock.patch.dict(os.environ, MEND_TEST_SEED="", GIT_DIR="/nonexistent"):
            seed, whose = drawn_by()
        self.assertEqual(seed, 1)
        self.assertIn("not the commit's: ", whose)
        drawn_by.cache_clear()
        with unittest.mock.patch.dict(os.environ, MEND_TEST_SEED="7"):
            self.assertEqual(drawn_by(), (7, "MEND_TEST_SEED"))


class Counting(unittest.TestCase):
    def test_every_kind_of_line_counts(self):
        lines = [
            "test result: ok. 14 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "6 passed, 1 failed",
            "4 passed, 0 failed, 2 skipped",
        ]
        self.assertEqual(count_lines(lines), Count(14 + 2 + 6 + 4, 3 + 1))

    def test_unittest_counts_where_nothing_sums_up(self):
        ran = ["Ran 5 tests in 0.001s", "FAILED (failures=1, errors=2)"]
        self.assertEqual(count_lines(ran), Count(2, 3))
        self.assertEqual(count_lines([*ran, "2 passed, 3 failed"]), Count(2, 3))

    def test_programs_that_died_before_they_could_count_are_failures(self):
        result = "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
        self.assertEqual(count_lines([result, "error: 3 targets failed:"]), Count(2, 3 + 2))
        self.assertEqual(count_lines([result, "error: 1 target failed:"]), Count(2, 3))
        self.assertEqual(count_lines(["error: 1 target failed:"]), Count(0, 1))

    def test_other_lines_do_not(self):
        self.assertEqual(count_lines(["say: 6 passed, 1 failed today", "FAILED (errors=1)", "Ran away"]), Count())

    def test_errors_alone_count(self):
        self.assertEqual(count_lines(["Ran 2 tests in 0.001s", "FAILED (errors=1)"]), Count(1, 1))


class Judging(unittest.TestCase):
    def test_a_check_is_one_test(self):
        self.assertEqual(judge(Count(), 0, True), Count(1, 0))
        self.assertEqual(judge(Count(), 3, True), Count(0, 1))

    def test_a_bad_exit_code_is_a_failure_whatever_was_said(self):
        self.assertEqual(judge(Count(5, 0), 101, False), Count(5, 1))
        self.assertEqual(judge(Count(5, 2), 101, False), Count(5, 2))
        self.assertEqual(judge(Count(), 1, False), Count(0, 1))


class Telling(unittest.TestCase):
    def test_names_and_reasons_are_repeated(self):
        cargo = [
            "test one ... ok",
            "test two - should panic ... FAILED",
            "thread 'two' (7) panicked at src/lib.rs:1:2:",
            "assertion failed: false",
            "stack backtrace:",
            "error: test failed, to rerun pass `-p three --lib`",
            "  process didn't exit successfully: `/target/three` (signal: 11, SIGSEGV: invalid memory reference)",
        ]
        self.assertEqual(telling(cargo), [cargo[number] for number in (1, 2, 3, 6)])
        failed = ["cluster.Failed: no node: why", "  hint: start one", "", "-" * 70]
        unittests = ["ERROR: test_a (test_b.C.test_a)", "Traceback (most recent call last):", *failed, "FAIL: test_d (test_b.C.test_d)"]
        self.assertEqual(telling(unittests), [unittests[number] for number in (0, 2, 3, 6)])

    def test_what_our_own_scripts_say_of_a_case_is_repeated_and_nothing_long(self):
        ours = ["seed 1 crash 1: equal", "FAILED seed 1 crash 2: the job ended:", "mend: a node is lost", "x" * 500, "said before", "seed 1 crash 3: equal", "2 passed, 1 failed"]
        told = telling(ours)
        self.assertEqual((told[:2], told[3:], len(told[2])), (ours[1:3], [ours[4]], LONGEST + 2))

    def test_of_what_says_nothing_known_the_end_is(self):
        lines = [f"line {number}" for number in range(100)]
        self.assertEqual(telling([*lines, ""]), lines[-REPEATED // 2 :])
        self.assertEqual(telling([]), [])
        self.assertEqual(len(telling(["FAIL: again"] * 100)), REPEATED)


class Tiers(unittest.TestCase):
    def tier(self, steps, minutes=1, at_once=1):
        os.makedirs(LOGS, exist_ok=True)
        self.remarks = Remarks()
        # Not to be counted with the output of these tests themselves.
        with contextlib.redirect_stdout(io.StringIO()) as said:
            tier = Tier("house-selftest", "a tier of the tests' tests", lambda: steps, minutes, "not asked for", at_once=at_once)
            count = run_tier(tier, self.remarks)
        self.said = said.getvalue()
        return count

    def test_a_tier_without_tests_fails(self):
        self.assertEqual(self.tier([]), Count(0, 1))
        self.assertEqual(self.tier([Step(["true"])]), Count(0, 1))
        self.assertEqual(self.remarks.failed, ["house-selftest: no test ran"])

    def test_a_tier_that_makes_no_sense_is_skipped(self):
        self.assertIsNone(self.tier(None))

    def test_a_tier_that_cannot_run_here_is_skipped_for_its_reason(self):
        def steps():
            raise NotHere("no machine of that kind")

        os.makedirs(LOGS, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertIsNone(run_tier(Tier("house-selftest", "a tier of the tests' tests", steps, 1), Remarks()))
        self.assertIn("skipped: no machine of that kind", said.getvalue())

    def test_what_is_skipped_is_kept_with_its_name(self):
        os.makedirs(LOGS, exist_ok=True)
        said = "printf 'skipped: soft-dirty: no such bits\\nwas skipped: no\\n1 passed, 0 failed, 1 skipped\\n'"
        remarks = Remarks()
        with contextlib.redirect_stdout(io.StringIO()):
            count = run_tier(Tier("house-selftest", "a tier of the tests' tests", lambda: [Step(["sh", "-c", said])], 1), remarks)
            self.assertIsNone(run_tier(Tier("other", "a tier of the tests' tests", lambda: None, 1, "not asked for"), remarks))
        self.assertEqual(count, Count(1, 0))
        self.assertEqual(remarks.skipped, ["house-selftest: soft-dirty: no such bits", "other: all of it: not asked for"])

    def test_steps_at_once_are_counted_and_told_each_by_itself(self):
        with tempfile.TemporaryDirectory() as place:
            # Each waits for the other one.
            meet = lambda own, other: f"echo {own} one; touch {place}/{own}; until [ -e {place}/{other} ]; do sleep 0.01; done; echo {own} two"  # noqa: E731
            steps = [Step(["sh", "-c", meet("a", "b") + "; echo 1 passed, 0 failed"]), Step(["sh", "-c", meet("b", "a") + "; exit 3"]),
                     Step(["echo", "2 passed, 0 failed"])]
            self.assertEqual(self.tier(steps, at_once=2), Count(3, 1))
        self.assertEqual(len(self.remarks.failed), 3)
        self.assertIn("exit code 3", self.remarks.failed[0])
        for own in "ab":
            self.assertIn(f"{own} one\n{own} two\n", self.said)
        with open(os.path.join(LOGS, "house-selftest.log"), encoding="utf-8") as log:
            self.assertIn("2 passed, 0 failed\n", log.read())

    def test_all_steps_run_whatever_the_first_says(self):
        self.assertEqual(self.tier([Step(["sh", "-c", "echo why; exit 3"]), Step(["echo", "2 passed, 0 failed"])]), Count(2, 1))
        self.assertEqual(self.remarks.failed, ["house-selftest: sh -c echo why; exit 3: exit code 3", "    why"])

    def test_a_missing_program_and_an_endless_one_fail(self):
        self.assertEqual(self.tier([Step(["/nonexistent/program"])]), Count(0, 1))
        self.assertIn("No such file", self.remarks.failed[1])
        self.assertEqual(self.tier([Step(["sleep", "1000"])], minutes=0), Count(0, 1))
        self.assertEqual(self.remarks.failed[1:], ["    stopped: the tier's 0 minutes are over"])

    def test_the_end_of_the_runner_is_its_step_s_end(self):
        script = (
            "import sys; sys.path.insert(0, sys.argv[1]); import run, tiers; "
            "run.Ending.listen(); run.stream(tiers.Step(['sh', '-c', 'echo $$; exec sleep 1000']), sys.stderr, float('inf'))"
        )
        command = [sys.executable, "-c", script, os.path.join(os.path.dirname(LOGS), "..", "tests")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as runner:
            step = int(runner.stdout.readline())
            runner.terminate()
            self.assertNotEqual(runner.wait(), 0)
            with self.assertRaises(ProcessLookupError):
                os.kill(step, 0)

    def test_what_a_step_started_and_takes_no_notice_ends_too(self):
        deaf = "trap '' TERM; echo $$; exec >/dev/null 2>&1; while :; do sleep 0.1; done"
        script = (
            "import sys; sys.path.insert(0, sys.argv[1]); import run, tiers; "
            "run.Ending.listen(); run.stream(tiers.Step(['sh', '-c', 'sh -c \"$0\" & exec sleep 1000', sys.argv[2]]), sys.stderr, float('inf'))"
        )
        command = [sys.executable, "-c", script, os.path.join(os.path.dirname(LOGS), "..", "tests"), deaf]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as runner:
            left = int(runner.stdout.readline())
            runner.terminate()
            self.assertNotEqual(runner.wait(), 0)
            until = time.monotonic() + 60
            # Whoever inherits it may take its time to bury it.
            while alive(left) and time.monotonic() < until:
                time.sleep(0.01)
            self.assertFalse(alive(left))

    def test_a_process_left_behind_fails(self):
        with unittest.mock.patch("run.LEAVING_SECONDS", 0.5):
            self.assertEqual(self.tier([Step(["sh", "-c", "sleep 1000 & echo 2 passed, 0 failed"])]), Count(2, 1))


if __name__ == "__main__":
    unittest.main()
