"""app/compiler/README.md is true: its program is compiled, its commands are executed."""

import os
import unittest

from building import OUT, ROOT, VENV, InDirectory, environment

README = os.path.join(ROOT, "app", "compiler", "README.md")


class Readme(InDirectory):
    def test_the_tutorial(self):
        variables = environment()
        variables.pop("MEND_APP_HOME", None)
        variables["PATH"] = f"{OUT}/bin:{VENV}/bin:{variables['PATH']}"
        self.assertGreaterEqual(self.follow(README, variables), 8)


if __name__ == "__main__":
    unittest.main()
