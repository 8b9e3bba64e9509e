"""Standard input over checkpoints and restarts: nothing of it is lost, nothing is read twice."""

import os
import subprocess
import unittest

from cases import OnMachine

# Reads lines, prints each, and stays where it is told to, without a child.
READER = 'while read -r line; do echo "got $line"; case $line in stay*) while [ ! -e go ]; do :; done;; esac; done; echo end'


class StandardInput(OnMachine):
    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def begin(self, stdin):
        """A job that has read until `stay` from this, with a checkpoint; it was killed."""
        job = self.machine.start(self.directory, "run", "bash", "-c", READER, stdin=stdin)
        name = self.machine.running(job)
        job.wait_for(lambda: "got stay" in self.output(), "it read to its middle")
        self.machine.verb("checkpoint", name)
        self.machine.mend("kill", name)
        job.finish(137)
        self.machine.verb("ps", "--all")
        self.write("go", "")
        return name

    def whole(self, text):
        return "".join(f"got {line}\n" for line in text.splitlines()) + "end\n"

    def restart(self, *arguments, stdin=subprocess.DEVNULL):
        job = self.machine.start(self.directory, "restart", *arguments, stdin=stdin)
        job.finish(0)
        return job

    # More than a pipe holds, so that much of it is not even read when the checkpoint is taken.
    LONG = "a\nstay\n" + "".join(f"line {i}\n" for i in range(30000))

    def test_a_file_goes_on_where_it_was(self):
        with open(self.write("input", self.LONG), encoding="utf-8") as file:
            self.begin(file)
        with open(self.path("input"), encoding="utf-8") as file:
            job = self.restart(stdin=file)
        self.assertEqual(self.output(), self.whole(self.LONG))
        self.assertRegex(job.stderr(), r"standard input goes on behind the \d+ bytes")

    def test_without_its_file_the_end_is_read_and_told_of(self):
        with open(self.write("input", self.LONG), encoding="utf-8") as file:
            self.begin(file)
        job = self.restart()
        said = self.output()
        self.assertTrue(self.whole(self.LONG).startswith(said[: said.rindex("got")]) and said.endswith("end\n"))
        self.assertRegex(job.stderr(), r"standard input is empty: rank 0 reads its end behind the \d+ bytes")

    def test_another_file_is_new_input(self):
        with open(self.write("input", "a\nstay\nb\n"), encoding="utf-8") as file:
            name = self.begin(file)
        # All of it was read, and its end: there is no more.
        with open(self.write("other", "c\nd\n"), encoding="utf-8") as file:
            self.restart(name, stdin=file)
        self.assertEqual(self.output(), self.whole("a\nstay\nb\n"))

    def test_what_came_through_a_pipe_may_come_again_from_a_file(self):
        with subprocess.Popen(["cat", self.write("input", self.LONG)], stdout=subprocess.PIPE) as cat:
            self.begin(cat.stdout)
            # What was not read by then is lost to everybody.
            cat.kill()
        with open(self.path("input"), encoding="utf-8") as file:
            job = self.restart("--input", "same", stdin=file)
        self.assertEqual(self.output(), self.whole(self.LONG), job.stderr())

    def test_what_was_read_of_a_pipe_after_the_checkpoint_is_given_again_before_what_comes(self):
        read, write = os.pipe()
        job = self.machine.start(self.directory, "run", "bash", "-c", READER, stdin=read)
        os.close(read)
        name = self.machine.running(job)
        os.write(write, b"a\nb\n")
        job.wait_for(lambda: "got b" in self.output(), "it read")
        self.machine.verb("checkpoint", name)
        os.write(write, b"c\nd\n")
        job.wait_for(lambda: "got d" in self.output(), "it read on")
        self.machine.mend("kill", name)
        job.finish(137)
        os.close(write)
        with subprocess.Popen(["printf", "e\\nf\\n"], stdout=subprocess.PIPE) as more:
            job = self.restart(stdin=more.stdout)
        self.assertEqual(self.output(), self.whole("a\nb\nc\nd\ne\nf\n"))
        self.assertIn("is new input, behind the 8 bytes", job.stderr())

    def test_a_pipe_that_has_ended_is_kept(self):
        with subprocess.Popen(["printf", "a\\nstay\\nb\\n"], stdout=subprocess.PIPE) as pipe:
            self.begin(pipe.stdout)
        job = self.restart()
        self.assertEqual(self.output(), self.whole("a\nstay\nb\n"))
        self.assertNotIn("standard input", job.stderr())

    def test_the_same_pipe_serves_an_older_checkpoint_where_the_newest_is_damaged(self):
        read, write = os.pipe()
        job = self.machine.start(self.directory, "run", "bash", "-c", READER, stdin=read)
        os.close(read)
        name = self.machine.running(job)
        self.machine.verb("checkpoint", name)
        os.write(write, b"a\nb\nstay\n")
        job.wait_for(lambda: "got stay" in self.output(), "it read")
        newest = self.machine.verb("checkpoint", name)["directory"]
        self.machine.mend("kill", name)
        job.finish(137)
        os.close(write)
        with open(os.path.join(newest, "rank-0.image"), "r+b") as image:
            middle = os.path.getsize(image.name) // 2
            byte = os.pread(image.fileno(), 1, middle)[0]
            os.pwrite(image.fileno(), bytes([byte ^ 1]), middle)
        self.write("go", "")
        with subprocess.Popen(["printf", "a\\nb\\nstay\\nc\\n"], stdout=subprocess.PIPE) as again:
            job = self.restart("--input", "same", stdin=again.stdout)
        self.assertIn("checkpoint 2 cannot be used", job.stderr())
        self.assertEqual(self.output(), self.whole("a\nb\nstay\nc\n"), job.stderr())

    def test_another_input_is_refused_where_the_same_was_wanted(self):
        with open(self.write("input", self.LONG), encoding="utf-8") as file:
            name = self.begin(file)
        with open(self.write("other", self.LONG.replace("a", "A", 1)), encoding="utf-8") as file:
            done = self.machine.mend("restart", "--input", "same", name, stdin=file)
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("does not begin with the", done.stderr)


if __name__ == "__main__":
    unittest.main()
