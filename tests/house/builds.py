"""What is built for the product is not built again for the tests: a library has the same features in both.

Cargo unifies features within one command. A feature that only a library of the tests asks for, of a library that the product is built
on, makes two libraries of it, and of all that is built on it: half of the product, in release. Cargo itself says what it would
build, without building it.
"""

import json
import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PRODUCT = ["build", "--release", "--package", "mend-cli", "--package", "mend-daemon", "--package", "mend-bucket", "--package", "mend-object",
           "--package", "mend-space", "--package", "mend-staging", "--package", "mend-preload"]
TESTS = ["test", "--release", "--no-run", "--workspace"]


class Unit:
    """One call of the compiler. It is the same as another if what it is built on is, too."""

    def __init__(self, unit, units):
        self.name = re.sub(r"^.*[/#](?=[^/]*$)", "", unit["pkg_id"])
        # Libraries for build scripts and macros are built with another profile.
        self.what = (unit["pkg_id"], unit["target"]["name"], *unit["target"]["kind"], unit["mode"], unit["profile"]["opt_level"])
        self.features = tuple(sorted(unit["features"]))
        self.below = frozenset(units[dependency["index"]].key for dependency in unit["dependencies"])
        self.key = hash((self.what, self.features, json.dumps(unit["profile"], sort_keys=True), self.below))


def planned(command):
    """The units of a command of cargo's."""
    done = subprocess.run(
        ["cargo", *command, "--locked", "--unit-graph", "-Z", "unstable-options"], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=True, env={**os.environ, "RUSTC_BOOTSTRAP": "1"})
    graph = json.loads(done.stdout)["units"]
    units = {}

    def unit(index):
        if index not in units:
            for dependency in graph[index]["dependencies"]:
                unit(dependency["index"])
            units[index] = Unit(graph[index], units)

    for index in range(len(graph)):
        unit(index)
    return units.values()


class Builds(unittest.TestCase):
    def test_nothing_of_the_product_is_built_twice(self):
        product, tests = planned(PRODUCT), planned(TESTS)
        keys, others = {unit.key for unit in tests}, {unit.what: unit for unit in tests}
        twice = [(unit, others[unit.what]) for unit in product if unit.key not in keys and unit.what in others]
        causes = {f"{one.name}: {sorted(set(one.features) ^ set(other.features))}" for one, other in twice if one.features != other.features}
        self.assertEqual(causes, set(), f"the tests have other features of these, so {len(twice)} units are built twice; ask for them in Cargo.toml")
        self.assertEqual([unit.name for unit, _ in twice], [])
        self.assertGreater(len(keys & {unit.key for unit in product}), 100)


if __name__ == "__main__":
    unittest.main()
