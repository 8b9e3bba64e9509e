"""app/README.md is true: its program is compiled, its commands are executed, and its settings are the library's."""

import ctypes
import os
import re
import unittest

from programs import OUT, ROOT, VENV, InDirectory, environment

README = os.path.join(ROOT, "app", "README.md")


class Readme(InDirectory):
    def test_the_example(self):
        variables = environment()
        variables.update(APP=OUT, PATH=f"{VENV}/bin:{variables['PATH']}")
        self.assertGreaterEqual(self.follow(README, variables), 8)

    def test_the_settings(self):
        library = ctypes.CDLL(os.path.join(OUT, "lib", "libmend-app.so"))
        library.mend_app_settings.restype = ctypes.c_char_p
        with open(README, encoding="utf-8") as file:
            written = re.search(r"<!-- settings -->\n```ini\n(.*?)```", file.read(), re.S).group(1)
        self.assertEqual(written, library.mend_app_settings().decode())


if __name__ == "__main__":
    unittest.main()
