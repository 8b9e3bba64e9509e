"""Formats of checkpoints: what this and each later library must read, and one that it doesn't know, which is refused and kept."""

import ctypes
import os
import re
import shutil
import tarfile
import unittest

import h5py

from programs import InDirectory, program, run
from test_refusals import SAVE, restore

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")


class Golden(InDirectory):
    """golden/format-N.tar.xz holds what libraries of format N left of two programs that were killed: `heat 60 20 -f -k 17` on 3 ranks with calls = 8, incremental = yes and keep = 2, and
    `templates 30 27` with calls = 10."""

    def setUp(self):
        super().setUp()
        with tarfile.open(os.path.join(GOLDEN, "format-1.tar.xz")) as archive:
            archive.extractall(self.directory, filter="data")

    def test_arrays_of_all_distributions_and_links(self):
        expected = self.line(self.good(run(1, [program("heat"), "60", "20", "-f"], self.directory)), "heat digest")
        for newest in (16, 8):
            output = self.good(run(2, [program("heat"), "60", "20", "-f"], self.directory, directory="heat", restart=newest))
            self.assertIn(f"checkpoint {newest} of 3 ranks is restored", output)
            self.assertEqual(self.line(output, "heat digest"), expected)

    def test_types_pointers_contexts_and_a_file(self):
        expected = self.line(self.good(run(0, [program("templates"), "30"], self.directory)), "templates ")
        os.rename(self.path("templates", "templates.log"), self.path("templates.log"))
        output = self.good(run(0, [program("templates"), "30"], self.directory, directory="templates"))
        self.assertIn("checkpoint 20 of 1 ranks is restored", output)
        self.assertEqual(self.line(output, "templates "), expected)


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def hashed(data):
    """XXH3 of 128 bits, as in seals and manifests."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype, library.XXH3_128bits.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]
    found = library.XXH3_128bits(data, len(data))
    return f"{found.high:016x}{found.low:016x}"


class Unknown(InDirectory):
    """A checkpoint of format 2 is whole, so it isn't passed over for an older one."""

    def setUp(self):
        super().setUp()
        self.good(self.python(SAVE))
        self.place = self.path("checkpoints", "checkpoint-000002")

    def change(self, name, pattern, replacement):
        path = os.path.join(self.place, name)
        with open(path, encoding="utf-8") as file:
            text = re.sub(pattern, replacement, file.read())
        self.write(path, text)
        return text

    def sealed(self):
        """The seal and the manifest tell of the files as they are."""
        with open(os.path.join(self.place, "rank-00000.h5"), "rb") as file:
            data = file.read()
        seal = self.change("rank-00000.seal", r"bytes .*\n(table .*\n)rest .*\n", rf"bytes {len(data)}\n\1rest {hashed(data)}\n")
        self.assertNotIn("\ndata ", seal)
        text = self.change("manifest", r"(rank 0 \d+) .*\n", rf"\1 {hashed(seal.encode())}\n").rpartition("hash ")[0]
        self.write(os.path.join(self.place, "manifest"), f"{text}hash {hashed(text.encode())}\n")

    def test_it_is_refused_and_kept(self):
        self.sealed()
        shutil.copytree(self.place, self.path("kept"))

        def change_file():
            with h5py.File(os.path.join(self.place, "rank-00000.h5"), "r+") as file:
                file["Header"].attrs.modify("Format", 2)

        known = "it has format 2, and this library reads format 1: use the library that wrote it"
        for what, change, word in (("manifest", lambda: self.change("manifest", "^mend-app manifest 1\n", "mend-app manifest 2\n"), known),
                                   ("seal", lambda: self.change("rank-00000.seal", "^mend-app seal 1\n", "mend-app seal 2\n"), "has another format: use the library that wrote it"),
                                   ("file", change_file, known)):
            with self.subTest(what):
                change()
                self.sealed()
                code, output = self.python(restore(), restart="newest")
                self.assertEqual(code, 1, output)
                self.assertIn(word, output)
                self.assertEqual(self.checkpoints(), [1, 2])
                shutil.rmtree(self.place)
                shutil.copytree(self.path("kept"), self.place)
        # The hashes of this test are right: it was for the format alone.
        self.assertIn("restored 6 ", self.good(self.python(restore(), restart="newest")))


if __name__ == "__main__":
    unittest.main()
