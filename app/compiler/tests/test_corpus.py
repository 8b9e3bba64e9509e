"""The corpus: places labelled safe and unsafe. None that is unsafe is accepted, and four of five safe ones are found."""

import glob
import os
import re
import unittest

from building import HERE, MPICC

from mend_cc import parse_c
from mend_cc.analyse import analyse

CORPUS = os.path.join(HERE, "corpus")
LABEL = re.compile(rb"/\* (safe|unsafe) \*/\s*|^ *! (safe|unsafe)\n", re.M)


def labels(path):
    """(label, line, offset of the statement that follows)."""
    with open(path, "rb") as file:
        text = file.read()
    return [((match.group(1) or match.group(2)).decode(), text[:match.start()].count(b"\n") + 1, match.end()) for match in LABEL.finditer(text)]


def judged(path, flags):
    """(label, line, whether the analysis takes the place for safe)."""
    found = analyse([(path, flags)])
    statements = sorted((stmt for function in found.program.functions.values() for stmt in function.body.walk() if stmt.kind != "block"), key=lambda stmt: (stmt.place.start, -stmt.place.end))
    for label, line, offset in labels(path):
        stmt = next(one for one in statements if one.place.start >= offset)
        point = found.lockstep.points.get(stmt)
        yield label, line, point is not None and point.seen and not point.why


class Corpus(unittest.TestCase):
    def test_no_unsafe_place_is_accepted_and_most_safe_ones_are(self):
        flags = parse_c.compiler_flags([MPICC])
        programs = sorted(glob.glob(os.path.join(CORPUS, "*")))
        self.assertGreaterEqual(len(programs), 40)
        accepted, missed, safe, unsafe = [], [], 0, 0
        for path in programs:
            for label, line, found in judged(path, flags if path.endswith(".c") else []):
                where = f"{os.path.basename(path)}:{line}"
                if label == "safe":
                    safe += 1
                    missed += [] if found else [where]
                else:
                    unsafe += 1
                    accepted += [where] if found else []
        self.assertEqual(accepted, [], "unsafe places that are taken for safe")
        self.assertGreaterEqual(unsafe, 40)
        self.assertGreaterEqual((safe - len(missed)) / safe, 0.8, f"missed: {missed}")


if __name__ == "__main__":
    unittest.main()
