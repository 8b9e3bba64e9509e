"""`mend image`: what image files hold, whether they are whole, how they differ, several made one."""

import json
import os
import shutil
import unittest

from cases import InDirectory
from cluster import Machine, compile_plain


class Images(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.machine = cls.enterClassContext(Machine())
        count = compile_plain("count.c", os.path.join(cls.work, "count"))
        job = cls.machine.start(cls.work, "run", count, "400", "500", "go")
        name = cls.machine.running(job)
        directories = [cls.machine.verb("checkpoint", name)["directory"] for _ in range(2)]
        cls.machine.mend("kill", name)
        job.finish(137)
        cls.first, cls.second = (os.path.join(directory, "rank-0.image") for directory in directories)

    def image(self, *arguments, code=0):
        done = self.machine.mend("image", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_show(self):
        shown = json.loads(self.image("show", self.first, "--json").stdout)
        self.assertTrue(shown["executable"].endswith("/count"))
        self.assertEqual((shown["rank"], shown["ranks"], shown["whole"]), (0, 1, True))
        [image] = shown["chain"]
        self.assertEqual((image["base"], image["sequence"], image["bytes"]), (None, 0, os.path.getsize(self.first)))
        self.assertEqual(sum(one["live"] for one in shown["mappings"]), image["live"])
        self.assertTrue(any(one["what"].endswith("/count") for one in shown["mappings"]))
        text = self.image("show", self.first).stdout
        self.assertIn("[vdso]", text)
        self.assertIn("rank 0 of 1", text)

    def test_verify(self):
        self.assertIn("every checksum fits", self.image("verify", self.first).stdout)
        damaged = os.path.join(self.work, "damaged.image")
        shutil.copy(self.first, damaged)
        with open(damaged, "r+b") as file:
            file.seek(os.path.getsize(damaged) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        self.assertIn(damaged, self.image("verify", damaged, code=65).stderr)
        with open(damaged, "r+b") as file:
            file.truncate(5000)
        self.assertIn("incomplete", self.image("verify", damaged, code=65).stderr)
        self.assertIn("hint:", self.image("verify", "/no/such/image", code=65).stderr)

    def test_an_image_of_a_checkpoint_is_not_written_over(self):
        before = os.stat(self.second).st_ino
        said = self.image("compact", self.second, "--to", self.second, code=64).stderr
        self.assertIn("belongs to a checkpoint", said)
        self.assertEqual(os.stat(self.second).st_ino, before)

    def test_verify_of_a_checkpoint_looks_at_all_ranks(self):
        said = self.image("verify", os.path.dirname(self.second)).stdout
        self.assertRegex(said, r"^rank 0: 2 image\(s\), .*, every checksum fits; .* of live pages\n$")
        [one] = json.loads(self.image("verify", "--json", os.path.dirname(self.first)).stdout)
        self.assertEqual((one["rank"], one["good"], one["files"]), (0, True, [self.first]))
        self.assertIn("holds no complete checkpoint", self.image("verify", self.work, code=65).stderr)

    def test_what_does_not_fit_as_a_chain_is_refused(self):
        self.assertIn("builds on no other one", self.image("verify", self.first, self.second, code=65).stderr)

    def test_what_an_image_builds_on_is_found(self):
        """The second image is built on the first where changes can be noticed, else full: either way it stands alone here."""
        shown = json.loads(self.image("show", self.second, "--json").stdout)
        self.assertTrue(shown["whole"])
        self.assertEqual(len(shown["chain"]), 1 + shown["chain"][0]["sequence"])
        self.image("verify", self.second)
        merged = os.path.join(self.work, "second.image")
        self.image("compact", self.second, "--to", merged)
        self.assertIn("0 page(s) differ", self.image("diff", self.second, merged).stdout)

    def test_diff(self):
        self.assertIn("0 page(s) differ", self.image("diff", self.first, self.first).stdout)
        # Its counter went on, and its stack with it.
        found = json.loads(self.image("diff", self.first, self.second, "--json", code=1).stdout)
        self.assertGreater(found["pages"], 0)
        self.assertEqual(sum(one["end"] - one["start"] for one in found["differences"]), found["pages"] * 4096)

    def test_compact(self):
        merged = os.path.join(self.work, "merged.image")
        self.image("compact", self.first, "--to", merged)
        self.assertIn("0 page(s) differ", self.image("diff", self.first, merged).stdout)
        self.image("verify", merged)
        self.assertEqual(os.stat(merged).st_mode & 0o777, 0o600)
        self.image("compact", merged, "--to", os.path.join(self.work, "absent", "x"), code=1)
        self.assertFalse([name for name in os.listdir(self.work) if name.endswith(".compact")])


if __name__ == "__main__":
    unittest.main()
