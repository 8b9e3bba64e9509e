"""What the tests of this library and of mend-cc share: where things are, a fresh directory for each test, READMEs whose commands are executed."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
OUT = os.environ.get("MEND_APP_OUT", os.path.join(ROOT, "target", "app"))
VENV = os.path.join(ROOT, os.environ.get("MEND_VENV", ".venv"))
PATIENCE = float(os.environ.get("MEND_TEST_PATIENCE", "180"))


def skip(what, why):
    """A line past the capture of the test's output, and unittest's own word."""
    print(f"skipped: {what}: {why}", file=sys.__stdout__, flush=True)
    raise unittest.SkipTest(f"{what}: {why}")


def digest(paths):
    """Of what files hold: what was compiled from them is good as long as it is the same."""
    summed = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            summed.update(file.read() + b"\0")
    return summed.hexdigest()


def matches(expected, found):
    """Lines as they stand; … stands for anything."""
    pattern = "\n".join(re.escape(line).replace("…", ".*") for line in expected)
    return re.fullmatch(pattern, "\n".join(found)) is not None


class InDirectory(unittest.TestCase):
    """Each test in a fresh directory."""

    def setUp(self):
        self._directory = tempfile.TemporaryDirectory()
        self.directory = self._directory.name
        self.addCleanup(self._directory.cleanup)

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def follow(self, readme, variables):
        """Writes the files of a README and executes its commands, which must print what it says. How many they were."""
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        for name, body in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text, re.S):
            self.write(name, body)
        commands = 0
        for block in re.findall(r"```console\n(.*?)```", text, re.S):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, *expected = part.rstrip("\n").split("\n")
                done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=self.directory, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr}")
                found = [line for line in done.stdout.splitlines() if line]
                self.assertTrue(matches(expected, found), f"{command}\n{done.stdout}\n{done.stderr}")
                commands += 1
        return commands
