"""app/README.md is true: its program is compiled, its commands are executed, and its settings are the library's."""

import ctypes
import os
import re
import subprocess
import unittest

from programs import OUT, ROOT, VENV, InDirectory, environment

README = os.path.join(ROOT, "app", "README.md")


def matches(expected, found):
    """Lines as they stand; … stands for anything."""
    pattern = "\n".join(re.escape(line).replace("…", ".*") for line in expected)
    return re.fullmatch(pattern, "\n".join(found)) is not None


class Readme(InDirectory):
    def test_the_example(self):
        with open(README, encoding="utf-8") as file:
            text = file.read()
        for name, body in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text, re.S):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(body)
        variables = environment()
        variables.update(APP=OUT, PATH=f"{VENV}/bin:{variables['PATH']}")
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

    def test_the_settings(self):
        library = ctypes.CDLL(os.path.join(OUT, "lib", "libmend-app.so"))
        library.mend_app_settings.restype = ctypes.c_char_p
        with open(README, encoding="utf-8") as file:
            written = re.search(r"<!-- settings -->\n```ini\n(.*?)```", file.read(), re.S).group(1)
        self.assertEqual(written, library.mend_app_settings().decode())


if __name__ == "__main__":
    unittest.main()
