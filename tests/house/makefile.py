"""What the Makefile runs by its name can be run."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Makefile(unittest.TestCase):
    def test_scripts_are_executable(self):
        with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as file:
            scripts = sorted(set(re.findall(r"\./([\w/]+\.(?:py|sh))", file.read())))
        self.assertGreater(len(scripts), 10)
        self.assertEqual([script for script in scripts if not os.access(os.path.join(ROOT, script), os.X_OK)], [])

    def test_a_checkout_whose_path_lists_would_split_is_refused_first(self):
        for name in ("my mend", "mend;1", "a:b"):
            with tempfile.TemporaryDirectory() as place:
                os.makedirs(os.path.join(place, name, "tests"))
                script = shutil.copy(os.path.join(ROOT, "tests", "setup.sh"), os.path.join(place, name, "tests"))
                # Without what it might install with.
                os.mkdir(os.path.join(place, "bin"))
                os.symlink(shutil.which("dirname"), os.path.join(place, "bin", "dirname"))
                done = subprocess.run(["/bin/bash", script, "demo"], env={"PATH": os.path.join(place, "bin")}, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"{name}, has a blank, a colon or a semicolon", done.stderr)


if __name__ == "__main__":
    unittest.main()
