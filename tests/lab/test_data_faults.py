"""What `mend data` must not do: mix versions, believe holes, touch what was replaced, leave records behind, wait for ever or too little."""

import os
import tempfile
import unittest

from cases import MIB
from test_data import DAMAGED, Data, SIZE, UNREACHABLE

FAILED = 1
# Checksums of so much stand beside the file.
LARGE = 130 * MIB

# Serves the file OLD until a fourth range is asked for, NEW from then on: the first three are those by which mirrors are compared.
CHANGES = """#!/usr/bin/env python3
import os, sys
place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for line in sys.stdin:
    word, *rest = line.split()
    asked = os.path.join(place, "asked")
    if word == "read":
        with open(asked, "a") as file:
            file.write("x")
    new = os.path.exists(asked) and os.path.getsize(asked) > 3
    with open(os.path.join(place, "new.dat" if new else "source.dat"), "rb") as file:
        content = file.read()
    if word == "stat":
        answer = f"size {len(content)} etag {new}\\n".encode()
    elif word == "read":
        offset, length = int(rest[0]), int(rest[1])
        answer = f"data {length}\\n".encode() + content[offset:offset + length]
    elif word == "quit":
        break
    else:
        answer = b"mend-source 1\\n"
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
"""

# Lists for longer than ten times the limit of silence.
LISTS = """#!/bin/sh
while read word rest; do
    case $word in
        mend-source) echo mend-source 1;;
        list) for at in $(seq 55); do sleep 0.2; echo name $at; done; echo end;;
        stat) echo size 1;;
        read) printf 'data 1\\nx';;
        quit) exit;;
    esac
done
"""


class Faults(Data):
    def enlarge(self):
        """Makes the source long enough that something stands beside its copy; what is added are zeros."""
        os.truncate(self.source, LARGE)

    def names(self, directory):
        return os.listdir(os.path.join(self.directory, directory))

    def test_blocks_of_a_mirror_that_changed_are_not_gone_on_with(self):
        server = self.served()
        self.write("new.dat", self.random.randbytes(SIZE))
        self.plugin("changes", CHANGES)
        # Both have something to do.
        server.pause = 0.005
        sources = [server.uri(), "changes://x/in.dat"]
        done = self.data("stage", *sources, self.path, code=DAMAGED)
        self.assertIn("changes://x/in.dat has changed", done.stderr)
        self.assertEqual(self.left_over(), [])
        done = self.data("stage", *sources, self.path)
        self.assertIn("without changes://x/in.dat: it holds other bytes", done.stderr)
        self.assertEqual(self.read(), self.content)

    def test_a_source_that_changes_while_a_file_without_checksums_is_repaired_is_told(self):
        server = self.served()
        self.write("in put.dat", self.content[:-10])
        self.data("sources", self.path, "--add", server.uri())

        def change(sent):
            if sent >= last:
                server.etag = '"2"'
        last = 0
        server.watch = change
        done = self.data("repair", self.path, code=DAMAGED)
        self.assertIn(f"{server.uri()} has changed", done.stderr)
        self.assertIn("while it was repaired, and there are no checksums: 0 bytes that were put in", done.stderr)
        # What it lacked is not put in, and nothing is left of it.
        self.assertEqual((self.read(), self.left_over()), (self.content[:-10], []))
        server.etag, last = '"1"', server.sent + SIZE
        done = self.data("repair", "--against-source", self.path, code=DAMAGED)
        self.assertIn("while it was compared with it", done.stderr)
        self.assertIn("no checksums", self.data("sources", self.path).stdout)
        server.etag, server.watch = '"1"', lambda _: None
        self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)

    def test_a_hole_of_the_source_is_not_believed_where_checksums_say_otherwise(self):
        self.enlarge()
        self.data("stage", "file://" + self.source, self.path)
        before = os.stat(self.source)
        os.truncate(self.source, 0)
        os.truncate(self.source, LARGE)
        os.utime(self.source, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.remove(self.path)
        done = self.data("repair", self.path, code=UNREACHABLE)
        self.assertIn("it sent other bytes than were staged", done.stderr)
        self.assertFalse(os.path.exists(self.path))

    def test_a_file_that_was_replaced_since_it_was_checked_is_not_touched(self):
        server, second = self.served(), os.path.join(self.directory, "second.dat")
        for path in (self.path, second):
            self.data("stage", server.uri(), path)
            with open(path, "r+b") as file:
                file.write(b"spoiled")
        new = self.write("new.dat", self.content * 2)

        def replace(_):
            if os.path.exists(new):
                os.replace(new, second)
        server.watch = replace
        done = self.data("repair", self.path, second, code=FAILED)
        self.assertIn("second.dat: it changed meanwhile", done.stderr)
        self.assertEqual(self.read(), self.content)
        self.assertEqual(self.read(second), self.content * 2)

    def test_a_file_that_cannot_be_repaired_loses_nothing(self):
        server = self.served()
        self.staged(server.uri())
        self.spoil(5 * MIB)
        self.spoil(SIZE, b"more")
        server.etag = '"2"'
        self.data("repair", self.path, code=DAMAGED)
        self.assertEqual(os.path.getsize(self.path), SIZE + 4)

    def test_a_server_that_ignores_ranges_has_the_time_it_needs(self):
        server = self.served()
        self.staged(server.uri())
        server.ranges, server.pause = False, 0.02
        self.machine.set("MEND_DATA_TIMEOUT_MS", "2000")
        self.machine.set("MEND_DATA_ATTEMPTS", "1")
        self.spoil(11 * MIB)
        self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)

    def test_a_server_that_ignores_ranges_is_known_by_an_answer_that_breaks_off(self):
        server = self.served()
        self.staged(server.uri())
        for at in (8, 10):
            self.spoil(at * MIB)
        server.requests.clear()
        server.ranges, server.break_off = False, 1
        self.data("repair", self.path)
        self.assertEqual(self.read(), self.content)
        # One that broke off, then one for both blocks.
        self.assertEqual(len(server.requests), 2)

    def test_the_record_of_a_long_name_is_nobody_else_s(self):
        self.enlarge()
        os.mkdir(os.path.join(self.directory, "long"))
        self.path = os.path.join(self.directory, "long", "n" * 250)
        self.data("stage", "file://" + self.source, self.path)
        self.assertRegex(self.data("check", "long").stdout, r"1 file \(.*\): 1 whole")
        [record] = [name for name in self.names("long") if name.startswith(".")]
        # As earlier versions named it.
        os.rename(os.path.join(self.directory, "long", record), os.path.join(self.directory, "long", record.removesuffix("-long")))
        self.spoil(5 * MIB)
        self.assertEqual(self.found(), [(5, "differs")])
        self.data("repair", "long")
        self.assertRegex(self.data("check", "long").stdout, r"1 file \(.*\): 1 whole")
        self.assertEqual(len(self.names("long")), 2)

    def test_a_move_that_fails_leaves_no_record_behind(self):
        self.enlarge()
        self.data("stage", "file://" + self.source, self.path)
        shared = self.enterContext(tempfile.TemporaryDirectory(dir="/dev/shm"))
        if os.stat(shared).st_dev == os.stat(self.directory).st_dev:
            self.skipTest("one file system for all")
        done = self.data("mv", self.path, shared, code=FAILED)
        self.assertIn("is in another file system", done.stderr)
        self.assertEqual(self.names(shared), [])
        self.assertEqual(self.found(code=0), [])

    def test_a_move_takes_no_place_of_a_file_that_can_come_back(self):
        self.enlarge()
        gone = os.path.join(self.directory, "gone.dat")
        for path in (self.path, gone):
            self.data("stage", "file://" + self.source, path)
        os.remove(gone)
        done = self.data("mv", self.path, gone, code=FAILED)
        self.assertIn("what stands beside it says where it came from", done.stderr)
        self.data("repair", gone)
        self.assertEqual(os.path.getsize(gone), LARGE)

    def test_a_long_listing_has_the_time_it_needs(self):
        self.plugin("lists", LISTS)
        self.machine.set("MEND_DATA_TIMEOUT_MS", "1000")
        self.data("stage", "lists://x/", "listed/")
        self.assertEqual(len([name for name in self.names("listed") if not name.startswith(".")]), 55)

    def test_a_source_that_does_not_say_its_version_in_the_end_is_not_believed_and_what_came_is_kept(self):
        self.machine.set("MEND_DATA_ATTEMPTS", "2")
        silent, asked = (os.path.join(self.directory, name) for name in ("silent", "asked"))
        self.plugin("shy", f"""#!/bin/sh
            while read line; do
                case $line in
                    mend-source*) echo mend-source 1;;
                    stat*) if test -e {silent}; then echo later not now; else echo size 4 etag $(cat {asked}.tag); fi;;
                    read*) echo data 4; printf data; echo >> {asked}; test -e {asked}.once || touch {silent};;
                    quit) exit;;
                esac
            done\n""")
        self.write("asked.tag", b"first")
        done = self.data("stage", "shy://x/y", self.path, code=UNREACHABLE)
        self.assertIn("does not say whether it has changed (not now)", done.stderr)
        self.assertFalse(os.path.exists(self.path))
        # It is not fetched again.
        os.remove(silent)
        self.data("stage", "shy://x/y", self.path)
        self.assertEqual((self.read(), self.read(asked)), (b"data", b"\n"))
        # A fault that passes is no answer: it has changed.
        self.write("asked.once", b"")
        self.plugin("turns", f"""#!/bin/sh
            count() {{ echo >> {asked}.stats; wc -l < {asked}.stats; }}
            while read line; do
                case $line in
                    mend-source*) echo mend-source 1;;
                    stat*) case $(count) in 1) echo size 4 etag one;; 2) echo later not now;; *) echo size 4 etag two;; esac;;
                    read*) echo data 4; printf data;;
                    quit) exit;;
                esac
            done\n""")
        os.remove(self.path)
        self.assertIn("has changed", self.data("stage", "turns://x/y", self.path, code=DAMAGED).stderr)

    def test_a_first_mirror_that_cannot_be_read_takes_no_other_out(self):
        self.machine.set("MEND_DATA_ATTEMPTS", "2")
        self.plugin("closed", f"""#!/bin/sh
            while read line; do
                case $line in
                    mend-source*) echo mend-source 1;;
                    stat*) echo size {len(self.content)};;
                    read*) echo error no permission;;
                    quit) exit;;
                esac
            done\n""")
        self.staged("closed://x/y", "file://" + self.source)
        # One fault that passes leaves a mirror in.
        os.remove(self.path)
        self.plugin("slow", f"""#!/bin/sh
            while read line; do
                case $line in
                    mend-source*) echo mend-source 1;;
                    stat*) echo size {len(self.content)};;
                    read*) if test -e {self.directory}/read; then
                            set -- $line; echo data $3; tail -c +$(($2 + 1)) {self.source} | head -c $3
                        else touch {self.directory}/read; echo later not now; fi;;
                    quit) exit;;
                esac
            done\n""")
        self.staged("file://" + self.source, "slow://x/y")
        self.assertIn("slow://x/y", self.data("sources", self.path).stdout)


# Its tests are run where they stand.
del Data


if __name__ == "__main__":
    unittest.main()
