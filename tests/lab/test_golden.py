"""Images and manifests that earlier releases wrote are read, verified and shown as ever (tests/golden)."""

import glob
import json
import os
import tarfile
import tempfile
import unittest

from cluster import ROOT, Machine, compile_plain

GOLDEN = os.path.join(ROOT, "tests", "golden")


def form(value):
    """What JSON is made of: names of members, and kinds of values."""
    if isinstance(value, dict):
        return {name: form(member) for name, member in value.items()}
    if isinstance(value, list):
        kinds = []
        kinds.extend(kind for kind in map(form, value) if kind not in kinds)
        return kinds
    return type(value).__name__


class Golden(unittest.TestCase):
    def each(self, check):
        """Calls `check(machine, directory, shown)` for every golden set: unpacked, with what `mend image show` said of its newest image."""
        packed = sorted(glob.glob(os.path.join(GOLDEN, "*.tar.xz")))
        self.assertTrue(packed, "no golden images")
        for path in packed:
            name = os.path.basename(path).removesuffix(".tar.xz")
            with open(os.path.join(GOLDEN, f"{name}.json"), encoding="utf-8") as file:
                shown = json.load(file)
            with self.subTest(name), tempfile.TemporaryDirectory() as directory, Machine() as machine:
                with tarfile.open(path) as archive:
                    # Python 3.11.4; before it, what may be unpacked is not asked. These are our own.
                    archive.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
                check(machine, directory, shown)

    def newest(self, directory):
        return os.path.join(directory, max(filter(str.isdigit, os.listdir(directory)), key=int), "rank-0.image")

    def formats(self, machine):
        """The name of the golden set of what this release writes."""
        version = json.loads(machine.mend("version", "--json").stdout)
        return f"image-{version['image_format']}-manifest-{version['manifest_format']}"

    def test_there_are_some_of_the_formats_that_are_written_today(self):
        with Machine() as machine:
            name = self.formats(machine)
        for ending in ("tar.xz", "json"):
            self.assertTrue(os.path.exists(os.path.join(GOLDEN, f"{name}.{ending}")), f"no {name}: tests/golden/make.py makes them")

    def test_a_manifest_of_another_form_has_another_version(self):
        """The same program is saved as for the golden set of this release's formats: its manifest has the same members, of the same kinds."""
        with Machine() as machine, tempfile.TemporaryDirectory() as directory:
            count = compile_plain("count.c", os.path.join(directory, "count"))
            job = machine.start(directory, "run", "--incremental", "2", count, "40", "1000", "go")
            name = machine.running(job)
            # What was printed is in the manifest.
            job.wait_for(job.stdout, "it has printed something")
            saved = os.path.join(machine.verb("checkpoint", name)["directory"], "manifest.json")
            with tarfile.open(os.path.join(GOLDEN, f"{self.formats(machine)}.tar.xz")) as archive:
                golden = json.load(archive.extractfile("1/manifest.json"))
            with open(saved, encoding="utf-8") as file:
                self.assertEqual(form(json.load(file)), form(golden))
            machine.mend("kill", name)
            job.finish(137)

    def test_they_verify_and_show_what_they_showed(self):
        def check(machine, directory, shown):
            done = machine.mend("image", "verify", self.newest(directory))
            self.assertEqual(done.returncode, 0, done.stderr)
            now = machine.verb("image", "show", self.newest(directory))
            for member in now["chain"]:
                member["file"] = os.path.relpath(os.path.realpath(member["file"]), os.path.realpath(directory))
            # A later release may show more, never something else.
            for key, value in shown.items():
                self.assertEqual(now[key], value, key)

        self.each(check)

    def test_one_flipped_bit_is_noticed(self):
        def check(machine, directory, _):
            image = self.newest(directory)
            with open(image, "r+b") as file:
                file.seek(os.path.getsize(image) // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 4]))
            done = machine.mend("image", "verify", image)
            self.assertEqual(done.returncode, 65, done.stdout)

        self.each(check)

    def test_a_restart_understands_them(self):
        """The program they are of is not here: that, and nothing about their format, is what a restart says."""
        def check(machine, directory, _):
            done = machine.mend("restart", directory)
            self.assertEqual(done.returncode, 65, done.stderr)
            # Whichever is looked at first: the processor here may not be of the kind that took them.
            self.assertRegex(done.stderr, "/opt/mend/count is not on this node|this machine's processor lacks |no node has a processor with ")

        self.each(check)

    def test_they_merge_into_one(self):
        def check(machine, directory, shown):
            merged = os.path.join(directory, "merged.image")
            done = machine.mend("image", "compact", self.newest(directory), "--to", merged)
            self.assertEqual(done.returncode, 0, done.stderr)
            now = machine.verb("image", "show", merged)
            sizes = [[(one["start"], one["end"], one["live"]) for one in of["mappings"]] for of in (now, shown)]
            self.assertEqual(*sizes)
            whole = ",".join([self.newest(directory), os.path.join(directory, "1", "rank-0.image")])
            same = machine.mend("image", "diff", whole, merged)
            self.assertEqual(same.returncode, 0, same.stdout + same.stderr)

        self.each(check)


if __name__ == "__main__":
    unittest.main()
