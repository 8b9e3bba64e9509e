"""What counts as a command in the README, and as its output."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "readme"))
from readme import missing, parse  # noqa: E402


class Parsing(unittest.TestCase):
    def test_only_console_blocks_are_commands(self):
        text = "$ no\n```sh\n$ no\n```\n```console\n$ yes   # exit code 3\nsaid\n…\n$ two \\\n> lines\n```\n$ no"
        first, second = parse(text)
        self.assertEqual((first.line, first.code, first.output), (6, 3, ["said"]))
        self.assertEqual((second.text, second.code, second.output), ("two \\\nlines", 0, []))

    def test_waiting_is_a_command(self):
        (wait,) = parse("<!-- readme: until test -e x -->")
        self.assertIn("test -e x", wait.text)


class Output(unittest.TestCase):
    def test_expected_lines_follow_each_other_among_others(self):
        self.assertIsNone(missing(["a", "c"], "a\nb\nc"))
        self.assertEqual(missing(["c", "a"], "a\nb\nc"), "a")

    def test_an_ellipsis_stands_for_anything_within_its_line(self):
        self.assertIsNone(missing(["took … ms (all)"], "took 3.5 ms (all)"))
        self.assertEqual(missing(["took … ms (all)"], "took 3.5 ms (a.l)"), "took … ms (all)")


if __name__ == "__main__":
    unittest.main()
