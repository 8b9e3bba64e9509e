"""What a checkpoint counts on is durable before it counts: by the system calls that strace sees, in their order."""

import os
import re
import shutil
import unittest

from programs import InDirectory, program, run, skip

CALL = re.compile(r"(\d+) +(\w+)\((.*?)(?:\) += (-?\d+).*| <unfinished \.\.\.>)$")
RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>.*= (-?\d+).*$")


class Trace:
    """The calls of all threads; each has the lines at which it begins and ends."""

    def __init__(self, lines):
        self.synced, self.changed, self.renamed, self.removed, self.made, self.told = [], {}, [], [], {}, {}
        unfinished = {}
        for line, text in enumerate(lines):
            resumed, call = RESUMED.match(text), CALL.match(text)
            if resumed:
                name, arguments, begin = unfinished.pop(resumed[1])
                result = resumed[2]
            elif call and call[4] is None:
                unfinished[call[1]] = (call[2], call[3], line)
                continue
            elif call:
                _, name, arguments, result = call.groups()
                begin = line
            else:
                continue
            if int(result) >= 0:
                self._add(name, arguments, begin, line)

    def _add(self, name, arguments, begin, end):
        held, named = re.match(r"\d+<([^>]*)>", arguments), re.findall(r'"((?:[^"\\]|\\.)*)"', arguments)
        if name in ("fsync", "fdatasync"):
            self.synced.append((held[1], begin, end))
        elif name in ("write", "pwrite64", "pwritev", "ftruncate"):
            self.changed.setdefault(held[1], []).append(end)
            complete = re.search(r"checkpoint (\d+) is complete", arguments)
            if complete:
                self.told[int(complete[1])] = begin
        elif name in ("mkdir", "openat", "rename", "unlink") and (name != "openat" or "O_CREAT" in arguments):
            path = named[-1]
            if name == "rename":
                self.renamed.append((named[0], path, begin))
            if name == "unlink":
                self.removed.append((path, begin))
            new = name != "openat" or path not in self.made
            self.made.setdefault(path, end)
            # A name that another one will take counts by that.
            if new and not path.endswith(".part"):
                self.changed.setdefault(os.path.dirname(path), []).append(end)

    def durable(self, path, before):
        """Whether all that is changed of a file or of a directory's names before a line is written to disk by then."""
        last = max((end for end in self.changed.get(path, []) if end < before), default=-1)
        return any(synced == path and begin > last and end < before for synced, begin, end in self.synced)


class Durable(InDirectory):
    def setUp(self):
        super().setUp()
        if not shutil.which("strace"):
            skip("durable before it counts", "strace isn't there")
        self.directory = os.path.realpath(self.directory)

    def trace(self, **settings):
        """Three checkpoints, of which one is removed, and an end."""
        calls = "openat,write,pwrite64,pwritev,fsync,fdatasync,rename,mkdir,ftruncate,unlink"
        output = self.good(run(0, ["strace", "-f", "-y", "-s", "60", "-o", self.path("trace"), "-e", f"trace={calls}", program("templates"), "30"], self.directory, calls=8, **settings))
        with open(self.path("trace"), encoding="utf-8") as file:
            trace = Trace(file.read().splitlines())
        self.assertEqual(sorted(trace.told), [8, 16, 24], output)
        return trace

    def test_what_a_manifest_counts_on_is_durable_before_it(self):
        for settings in ({}, {"behind": "yes"}, {"behind": "yes", "incremental": "yes"}):
            with self.subTest(**settings):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                trace, checkpoints = self.trace(keep=2, **settings), self.path("checkpoints")
                manifests = {into: begin for _, into, begin in trace.renamed if into.endswith("/manifest")}
                self.assertEqual(len(manifests), 3)
                for number, told in trace.told.items():
                    place = os.path.join(checkpoints, f"checkpoint-{number:06}")
                    manifest, snapshot = manifests[os.path.join(place, "manifest")], trace.made[place]
                    for name in ("rank-00000.h5", "rank-00000.seal", "manifest.part"):
                        self.assertTrue(trace.durable(os.path.join(place, name), manifest), f"{name} of checkpoint {number}")
                    for directory in (self.directory, checkpoints, place):
                        self.assertTrue(trace.durable(directory, manifest), f"names in {directory} before the manifest of checkpoint {number}")
                        self.assertTrue(trace.durable(directory, told), f"names in {directory} before checkpoint {number} is complete")
                    # The program may write on into it while its variables are written behind.
                    self.assertTrue(trace.durable(self.path("templates.log"), snapshot), f"what the program has written before checkpoint {number}")
                self.assertTrue(trace.durable(os.path.join(checkpoints, "ended.part"), trace.made[os.path.join(checkpoints, "ended")]))
                self.assertTrue(trace.durable(checkpoints, float("inf")), "that the run has ended")

    def test_a_manifest_is_gone_for_good_before_its_files(self):
        trace = self.trace(keep=1)
        first = {}
        for path, begin in trace.removed:
            if "/rank-" in path:
                first.setdefault(os.path.dirname(path), begin)
        self.assertIn(self.path("checkpoints", "checkpoint-000008"), first)
        for directory, begin in first.items():
            self.assertTrue(trace.durable(directory, begin), directory)


if __name__ == "__main__":
    unittest.main()
