"""Back migration: a rank that left a sick node goes back when that is worth it, and the job says why it does or does not."""

import os
import shutil
import subprocess
import sys
import time
import unittest

from cases import InDirectory
from cluster import PATIENCE, ROOT, VENV, Failed, Lab, NotHere, compile_mpi
from test_health import FOLLOWS, QUICK
from throttle import processor_group, slow_rank

STEP = os.path.join(ROOT, "app", "step")
# Of one processor, in per cent, for the rank on the spare: little enough on a machine that does other things, too.
SHARE = 5


class Back(InDirectory):
    """Each test has a lab of its own: node1 and node2, and node3 as a spare."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = compile_mpi("mpi_steps.c", os.path.join(cls.work, "steps"))

    def start_lab(self):
        plugins = os.path.join(self.directory, "plugins")
        os.mkdir(plugins, 0o755)
        path = os.path.join(plugins, "follows")
        with open(path, "w", encoding="utf-8") as file:
            file.write(FOLLOWS.replace("DIRECTORY", self.directory))
        os.chmod(path, 0o755)
        self.lab = self.enterContext(Lab(3, daemons={**QUICK, "MEND_HEALTH_PLUGINS": plugins}))

    def slow_group(self):
        try:
            return self.enterContext(processor_group(SHARE))
        except NotHere as reason:
            os.write(2, f"skipped: a spare that is slow: {reason}\n".encode())
            raise unittest.SkipTest(str(reason)) from None

    def say(self, node, code, line):
        path = os.path.join(self.directory, f"{node}.state")
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(f"{code} {line}\n")
        os.rename(path + ".new", path)

    def begin(self, *argv):
        """A job of two ranks that have been measured on node1 and node2: it and its name."""
        job = self.lab.start(self.directory, "run", "-n", "2", "--hosts", "node1,node2", "--spares", "node3", "--", *argv)
        name = self.lab.running(job)
        job.wait_for(lambda: "begins" in job.stderr(), "the first step is done")
        time.sleep(15)
        return job, name

    def events(self, name, kind):
        return [entry for entry in self.lab.verb("log", name) if entry["event"] == kind]

    def until(self, condition, what):
        start = time.monotonic()
        while not (found := condition()):
            if time.monotonic() - start > PATIENCE:
                raise Failed(f"still waiting after {PATIENCE} s for {what}")
            time.sleep(0.1)
        return found

    def leave_and_get_well(self, name, group=None):
        """The rank on node2 leaves it for node3, where it is in this control group, and node2 is well again."""
        self.say("node2", 1, "a fan stands still")
        self.until(lambda: self.lab.places(name) == ["node1", "node3"], "the rank leaves node2")
        if group:
            slow_rank(self.lab, 1, group)
        self.say("node2", 0, "it turns again")
        self.until(lambda: self.events(name, "node_fit"), "node2 is well again")

    def goes_back(self, argv, by):
        group = self.slow_group()
        job, name = self.begin(*argv)
        self.leave_and_get_well(name, group)
        try:
            self.until(lambda: self.lab.places(name) == ["node1", "node2"], "the rank goes back")
        except Failed as failure:
            raise Failed(f"{failure}\n{self.lab.mend('explain', name, '--why').stdout}") from None
        went = self.events(name, "goes_back")
        self.assertEqual([(one["rank"], one["data"]["from"], one["data"]["to"], one["data"]["by"]) for one in went], [(1, "node3", "node2", by)])
        weighed = went[0]["data"]
        self.assertGreater(weighed["here_us"], 1.5 * weighed["there_us"])
        self.assertGreater(weighed["gain_s"], weighed["price_s"])
        why = self.lab.mend("explain", name, "--why")
        self.assertIn("rank 1 on node3 goes back from node3 to node2: ", why.stdout)
        self.assertIn("mend: rank 1 goes back from node3 to node2", job.stderr())
        self.assertEqual([one["data"]["by"] for one in self.events(name, "migration_asked")], ["health", "back_migration"])
        self.lab.verb("kill", name)
        job.finish(None)

    def test_a_rank_whose_program_tells_its_steps_goes_back_from_a_slow_spare(self):
        self.start_lab()
        self.goes_back([self.program, "-n", "1000000", "-w", "4000"], "steps")

    def test_without_steps_messages_count_if_the_time_limit_is_known(self):
        self.start_lab()
        self.lab.set("MEND_TIME_LIMIT_S", "3600")
        self.goes_back([self.program, "-n", "1000000", "-w", "4000", "-q"], "messages")

    def test_steps_of_a_python_program_are_weighed_and_a_node_that_is_as_fast_gains_nothing(self):
        self.start_lab()
        argv = [os.path.join(VENV, "bin", "python"), os.path.join(ROOT, "tests", "apps", "steps.py"), STEP, "100000"]
        job, name = self.begin(*argv)
        self.leave_and_get_well(name)

        def weighed():
            said = [one["data"]["why"] for one in self.events(name, "stays_away") if "a step takes" in one["data"]["why"]]
            return said or [one for one in self.events(name, "goes_back") if one["data"]["by"] == "steps"]

        # As fast here as there, but for what else the machine does: it may go or stay.
        self.until(weighed, "the rank is weighed")
        shown = self.lab.mend("explain", name, "--why").stdout
        self.assertRegex(shown, r"rank 1 on node3 (does not go back to node2|goes back from node3 to node2): ")
        self.lab.verb("kill", name)
        job.finish(None)


RECORDS = """#include <stdint.h>
#include <stdio.h>
void mend_fi_step(uint64_t now, uint64_t total) { printf("%lu of %lu\\n", now, total); fflush(stdout); }
"""
C = '#include "mend_step.h"\nint main(void) { for (int i = 0; i < 3; i++) mend_step(i + 1, 3); mend_step(1ull << 40, 0); return 0; }\n'
FORTRAN = """program steps
  use mend_step_module, only: mend_step
  use, intrinsic :: iso_fortran_env, only: int64
  integer :: i
  do i = 1, 3
    call mend_step(i, 3)
  end do
  call mend_step(1099511627776_int64, 0_int64)
end program
"""
PYTHON = "from mend_step import mend_step\nfor i in range(3):\n    mend_step(i + 1, 3)\nmend_step(1 << 40)\n"


class Call(InDirectory):
    """`mend_step` by itself: with whatever stands for the preloaded library, and with nothing."""

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def build(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.directory, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), " ".join(command))

    def test_it_does_nothing_without_mend_and_passes_its_numbers_on_with_it(self):
        self.write("records.c", RECORDS)
        self.build("cc", "-shared", "-fPIC", "-o", "records.so", "records.c")
        self.write("steps.c", C)
        strict = ["-Wall", "-Wextra", "-Werror", f"-I{STEP}", "-ldl"]
        self.build("cc", "-std=c99", "-o", "c", "steps.c", *strict)
        commands = [["./c"], [sys.executable, self.write("steps.py", PYTHON)]]
        for compiler, source, options, name in (("g++", "steps.cpp", ["-std=c++11", *strict], "c++"), ("gfortran", "steps.f90", [], "fortran")):
            if not shutil.which(compiler):
                os.write(2, f"skipped: mend_step in {name}: {compiler} is not installed\n".encode())
                continue
            self.write(source, FORTRAN if name == "fortran" else C)
            sources = [os.path.join(STEP, "mend_step.f90"), source] if name == "fortran" else [source]
            self.build(compiler, "-o", name, *sources, *options)
            commands.append([f"./{name}"])
        for command in commands:
            for preload, said in ((None, ""), (os.path.join(self.directory, "records.so"), "1 of 3\n2 of 3\n3 of 3\n1099511627776 of 0\n")):
                environment = {**os.environ, "PYTHONPATH": STEP, **({"LD_PRELOAD": preload} if preload else {})}
                done = subprocess.run(command, capture_output=True, text=True, cwd=self.directory, env=environment, check=False)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, said, ""), command)


if __name__ == "__main__":
    unittest.main()
