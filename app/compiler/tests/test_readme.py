"""app/compiler/README.md is true: its program is compiled, its commands are executed."""

import os
import re
import subprocess
import unittest

from building import ROOT, VENV, InDirectory, environment

README = os.path.join(ROOT, "app", "compiler", "README.md")


def matches(expected, found):
    """Lines as they stand; … stands for anything."""
    pattern = "\n".join(re.escape(line).replace("…", ".*") for line in expected)
    return re.fullmatch(pattern, "\n".join(found)) is not None


class Readme(InDirectory):
    def test_the_tutorial(self):
        with open(README, encoding="utf-8") as file:
            text = file.read()
        for name, body in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text, re.S):
            self.write(name, body)
        variables = environment()
        variables["PATH"] = f"{os.path.join(ROOT, 'app', 'compiler')}:{VENV}/bin:{variables['PATH']}"
        commands = 0
        for block in re.findall(r"```console\n(.*?)```", text, re.S):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, *expected = part.rstrip("\n").split("\n")
                done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=self.directory, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr}")
                found = [line for line in done.stdout.splitlines() if line]
                self.assertTrue(matches(expected, found), f"{command}\n{done.stdout}\n{done.stderr}")
                commands += 1
        self.assertGreaterEqual(commands, 8)


if __name__ == "__main__":
    unittest.main()
