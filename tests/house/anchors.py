"""Links of Markdown files lead to headings that are there. That the files are there, `cargo xtask check` sees to."""

import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINK = re.compile(r"\]\(([^)\s]*)#([^)\s]+)\)")


def prose(text):
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """Of a file's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken(file, text, read):
    """Links of a file to headings that are not there; `read` gives the text of another."""
    wrong = []
    for target, anchor in LINK.findall(prose(text)):
        if "://" in target:
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(file), target)) if target else file
        if path.endswith(".md") and anchor not in anchors(read(path)):
            wrong.append(f"{file}: {path} has no heading #{anchor}")
    return wrong


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Anchors(unittest.TestCase):
    def test_headings_that_are_linked_are_there(self):
        command = ["git", "-c", "safe.directory=*", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
        files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        files = [file for file in files if os.path.exists(os.path.join(ROOT, file))]
        self.assertGreater(len(files), 30)
        self.assertEqual([wrong for file in files for wrong in broken(file, read(file), read)], [])

    def test_anchors_are_githubs(self):
        self.assertEqual(anchors("# A `b`, c\n## 1 + 3 images\n```\n# no\n```\n"), {"a-b-c", "1--3-images"})

    def test_a_heading_that_is_not_there_is_found(self):
        self.assertEqual(broken("docs/a.md", "[x](b.md#there) [y](b.md#gone) [z](#here)\n# Here\n", lambda path: "# There\n" if "b" in path else "# Here\n"),
                         ["docs/a.md: docs/b.md has no heading #gone"])


if __name__ == "__main__":
    unittest.main()
