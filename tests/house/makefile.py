"""What the Makefile runs by its name can be run."""

import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Makefile(unittest.TestCase):
    def test_scripts_are_executable(self):
        with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as file:
            scripts = sorted(set(re.findall(r"\./([\w/]+\.(?:py|sh))", file.read())))
        self.assertGreater(len(scripts), 10)
        self.assertEqual([script for script in scripts if not os.access(os.path.join(ROOT, script), os.X_OK)], [])


if __name__ == "__main__":
    unittest.main()
