"""Which checkpoints and ends count: what is left of others is cleared away, and an end that can't be written down is none."""

import glob
import os
import shutil
import unittest

from programs import PYTHON, InDirectory, run, skip
from test_refusals import SAVE, restore


class Ends(InDirectory):
    def test_what_is_left_of_a_checkpoint_is_cleared_away(self):
        self.good(self.python(SAVE))
        os.makedirs(self.path("checkpoints", "checkpoint-000001", "x"), exist_ok=True)
        shutil.rmtree(self.path("checkpoints", "checkpoint-000001", "x"))
        os.remove(self.path("checkpoints", "checkpoint-000001", "manifest"))
        self.good(self.python(SAVE, restart="none"))
        self.assertEqual([os.path.basename(path) for path in sorted(glob.glob(self.path("checkpoints", "checkpoint-*")))], ["checkpoint-000003", "checkpoint-000004"])

    def test_a_file_with_a_checkpoint_s_name_is_none(self):
        os.mkdir(self.path("checkpoints"))
        self.write("checkpoints/checkpoint-000003", "")
        output = self.good(self.python(SAVE))
        self.assertNotIn("can't be used", output)
        self.assertEqual(self.checkpoints(), [4, 5])

    def test_a_good_end_covers_all_that_is_there(self):
        """Also of a run from an older checkpoint, and of one anew, that take none themselves."""
        crash = SAVE + "        import os\n        os._exit(7)\n"
        for again in ({"restart": "1"}, {"restart": "none"}):
            with self.subTest(**again):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                self.assertEqual(self.python(crash)[0], 7)
                self.assertIn("restored", self.good(self.python(restore(), **again)))
                output = self.good(self.python(restore()))
                self.assertIn("restored 0 ", output)
                self.assertNotIn("is restored", output)
                self.assertIn("restored 6 ", self.good(self.python(restore(), restart="newest")))
        # And it doesn't go backwards.
        shutil.rmtree(self.path("checkpoints"))
        self.good(self.python(SAVE))
        self.assertIn("restored 5 ", self.good(self.python(restore(), restart="1")))
        self.assertIn("restored 0 ", self.good(self.python(restore())))

    def test_a_manifest_that_is_not_durable_does_not_stay(self):
        if not shutil.which("strace"):
            skip("a directory that can't be made durable", "strace isn't there")
        script = self.write("one.py", "import mend_app, os\nsession = mend_app.Session(program='p 1')\nsession.checkpoint(now=True)\nos._exit(0)")
        for watched in ("checkpoints/checkpoint-000001", "checkpoints"):
            with self.subTest(watched):
                command = ["strace", "-f", "-P", self.path(watched), "-e", "trace=fsync"]
                self.good(run(0, [*command, "-o", self.path("syncs"), PYTHON, script], self.directory, restart="none"))
                self.assertEqual(self.checkpoints(), [1])
                with open(self.path("syncs"), encoding="utf-8") as file:
                    syncs = sum("fsync(" in line for line in file)
                shutil.rmtree(self.path("checkpoints"))
                output = self.good(run(0, [*command, "-o", "/dev/null", "-e", f"inject=fsync:error=EIO:when={syncs}", PYTHON, script], self.directory, restart="none"))
                self.assertIn("Input/output error", output)
                self.assertEqual(glob.glob(self.path("checkpoints", "*", "*")), [])
                shutil.rmtree(self.path("checkpoints"))

    def test_an_end_that_can_not_be_written_down_is_none(self):
        script = "import mend_app, os\nsession = mend_app.Session(program='p 1')\nsession.checkpoint(now=True)\nos.mkdir('checkpoints/ended')\nsession.close()"
        code, output = self.python(script)
        self.assertEqual(code, 1, output)
        self.assertRegex(output, "Error: .*checkpoints/ended can't be read: Is a directory")
        code, output = self.python(script.replace("os.mkdir('checkpoints/ended')", "pass"), restart="none")
        self.assertEqual(code, 1, output)
        self.assertRegex(output, "`ended` in it: Is a directory")
        os.rmdir(self.path("checkpoints", "ended"))
        os.mkdir(self.path("checkpoints", "ended.part"))
        code, output = self.python("import mend_app\nmend_app.Session(program='p 1').close()", restart="none")
        self.assertEqual(code, 1, output)
        self.assertRegex(output, "Error: this run doesn't count as ended: .*checkpoints/ended can't be written: Is a directory")

    def test_a_request_after_the_last_safe_point_says_that_there_is_none(self):
        word = "no checkpoint: the program has ended before a safe point answered the request"
        start = "import mend_app, os\nwith mend_app.Session(program='p 1') as session:\n    session.checkpoint()\n"
        for request in ("import signal; os.kill(os.getpid(), signal.SIGUSR2)", "open('checkpoints/request', 'w').close()"):
            with self.subTest(request):
                self.assertEqual(self.good(self.python(f"{start}    {request}\n", watch_seconds=60, signal="USR2")).count(word), 1)
        # Taken in time, or asked for by the clock, it is none.
        for request in ("session.request(); session.checkpoint(); session.checkpoint()", "import time; time.sleep(0.2)"):
            self.assertNotIn("no checkpoint", self.good(self.python(f"{start}    {request}\n", watch_seconds=0.05, interval=0.1, restart="none")))

    def test_an_end_before_the_saved_safe_point(self):
        self.good(self.python(SAVE))
        code, output = self.python("import mend_app\nwith mend_app.Session(program='p 1') as session:\n    session.checkpoint()\n", restart="newest")
        self.assertEqual(code, 1)
        self.assertIn('the program ended before it came to the safe point of checkpoint 2 (contexts "main"), which is kept', output)
        self.assertEqual(self.checkpoints(), [1, 2])


if __name__ == "__main__":
    unittest.main()
