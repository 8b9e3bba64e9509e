"""Images encrypted at rest: nothing shows, nothing can be changed, the key is nowhere but in its file."""

import contextlib
import json
import os
import unittest

from cases import InDirectory
from cluster import Lab, Machine, MEND, compile_mpi

KEY = "c0ffee" * 10 + "0123"
OTHER = "0123456789abcdef" * 4
SECRET = b"what nobody else should read"
PROGRAM = """\
import os, sys, time
kept = bytes(byte ^ 1 for byte in bytes.fromhex(sys.argv[1])) * 1000
open('started', 'w').close()
while not os.path.exists('go'): time.sleep(0.005)
print('kept', len(kept), kept[:28].decode())
"""


class Encryption(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.iters = compile_mpi("mpi_iters.c", os.path.join(cls.work, "iters"))

    def setUp(self):
        super().setUp()
        self.key = self.key_file("key", KEY)

    def saved(self, machine, *options, checkpoints=1):
        """A job of a program that holds a secret, with checkpoints, ended; its name and their directory."""
        for left in ("go", "started"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(self.directory, left))
        script = os.path.join(self.directory, "keeper.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        # The command line, which stands in the manifest, has the secret in another form than the memory.
        hidden = bytes(byte ^ 1 for byte in SECRET).hex()
        job = machine.start(self.directory, "run", *options, "python3", "-S", script, hidden)
        name = machine.running(job)
        job.wait_for(lambda: os.path.exists(os.path.join(self.directory, "started")), "it has its secret")
        for _ in range(checkpoints):
            done = machine.verb("checkpoint", name)
        machine.mend("kill", name)
        job.finish(137)
        job.let_go()
        return name, os.path.dirname(done["directory"])

    def images(self, place):
        return [os.path.join(base, file) for base, _, files in os.walk(place) for file in files if file.endswith(".image")]

    def read(self, path):
        with open(path, "rb") as file:
            return file.read()

    def refused(self, machine, *arguments, code, text):
        done = machine.mend("restart", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(text, done.stderr)
        return done

    def test_the_secret_does_not_show_and_comes_back(self):
        with Machine() as machine:
            _, plain = self.saved(machine)
            self.assertIn(SECRET, self.read(self.images(plain)[0]))
        with Machine() as machine:
            name, place = self.saved(machine, "--encryption-key", self.key, checkpoints=2)
            for image in self.images(place):
                self.assertNotIn(SECRET, self.read(image))
            self.assertEqual([one["usable"] for one in machine.verb("checkpoints", name)], [True, True])
            job = machine.start(self.directory, "restart", name, "--encryption-key", self.key)
            job.finish(0)
            self.assertIn("kept 28000 " + SECRET.decode(), job.stdout())
            everything = b"".join(self.read(os.path.join(base, file)) for base, _, files in os.walk(machine.home) for file in files)
            self.assertNotIn(KEY.encode(), everything)
            self.assertNotIn(bytes.fromhex(KEY), everything)

    def test_without_the_key_with_another_and_with_one_too_many(self):
        with Machine() as machine:
            name, _ = self.saved(machine, "--encryption-key", self.key)
            self.refused(machine, name, code=65, text="it is encrypted")
            other = self.key_file("other", OTHER)
            done = self.refused(machine, name, "--encryption-key", other, code=65, text="encrypted with another key")
            self.assertNotIn(OTHER, done.stderr)
            open_to_all = self.key_file("open", KEY, 0o644)
            self.refused(machine, name, "--encryption-key", open_to_all, code=64, text="can be read by others")
            self.refused(machine, name, "--encryption-key", os.path.join(self.directory, "absent"), code=64, text="absent")
            machine.environment["MEND_ENCRYPTION_KEY"] = self.key
            machine.start(self.directory, "restart", name).finish(0)
        with Machine() as machine:
            name, _ = self.saved(machine)
            self.refused(machine, name, "--encryption-key", self.key, code=65, text="it is not encrypted")

    def test_damage_falls_back_to_the_checkpoint_before(self):
        with Machine() as machine:
            name, place = self.saved(machine, "--encryption-key", self.key, checkpoints=3)
            cut, changed = (os.path.join(place, str(number), "rank-0.image") for number in (3, 2))
            os.truncate(cut, os.path.getsize(cut) - 1)
            with open(changed, "r+b") as file:
                middle = os.path.getsize(changed) // 2
                file.seek(middle)
                byte = file.read(1)[0]
                file.seek(middle)
                file.write(bytes([byte ^ 1]))
            job = machine.start(self.directory, "restart", name, "--encryption-key", self.key)
            job.finish(0)
            self.assertIn("checkpoint 3 cannot be used", job.stderr())
            self.assertIn("checkpoint 2 cannot be used", job.stderr())
            self.assertIn("it is damaged or was changed", job.stderr())
            self.assertIn("from checkpoint 1 ", job.stderr())

    def test_manifests_that_others_wrote_are_refused_by_name(self):
        with Machine() as machine:
            name, place = self.saved(machine, "--encryption-key", self.key, checkpoints=3)
            files = {number: os.path.join(place, str(number), "manifest.json") for number in (1, 2, 3)}
            texts = {number: json.loads(self.read(file)) for number, file in files.items()}
            # The checksum, which anybody can make, is not of the code: one is taken away, the other another checkpoint's.
            del texts[3]["code"]
            texts[2]["code"] = texts[1]["code"]
            for number in (2, 3):
                with open(files[number], "w", encoding="utf-8") as file:
                    json.dump(texts[number], file)
            changed = "changed by somebody who does not have it"
            self.refused(machine, name, "--encryption-key", self.key, "--checkpoint", "2", code=65, text=changed)
            job = machine.start(self.directory, "restart", name, "--encryption-key", self.key)
            job.finish(0)
            self.assertIn(f"checkpoint 3 cannot be used: {files[3]} cannot be used: it is not encrypted", job.stderr())
            self.assertIn("checkpoint 2 cannot be used: ", job.stderr())
            self.assertIn(changed, job.stderr())
            self.assertIn("from checkpoint 1 ", job.stderr())

    def test_a_full_disk_fails_the_checkpoint_and_not_the_job(self):
        with Machine() as machine:
            small = os.path.join(self.directory, "small")
            os.makedirs(small)
            command = f"run -n 2 --checkpoint-dir {small} --encryption-key {self.key} {self.iters} -i 60 -w 100 -m 8 -u go"
            inside = f"mount -t tmpfs -o size=3m tmpfs {small} && exec {MEND} {command}"
            unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
            machine.command = lambda *arguments: [*unshare, "sh", "-c", inside] if arguments[0] == "run" else [MEND, *arguments]
            job = machine.start(self.directory, "run")
            name = machine.running(job)
            job.wait_for(lambda: "iteration" in job.stderr(), "the tables are filled")
            for _ in range(2):
                done = machine.mend("checkpoint", name)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("No space left", done.stderr)
            job.let_go()
            job.finish(0)

    def test_a_job_on_several_nodes(self):
        with Lab(2) as lab:
            argv = [self.iters, "-i", "60", "-w", "100", "-m", "4", "-u", "go"]
            job = lab.start(self.directory, "run", "-n", "3", "--hosts", "node1,node2", "--encryption-key", self.key, *argv)
            name = lab.running(job)
            lab.verb("checkpoint", name)
            lab.verb("migrate", name, "0", "--to", "node2")
            lab.verb("checkpoint", name)
            lab.mend("kill", name)
            job.finish(137)
            job.let_go()
            again = lab.start(self.directory, "restart", name, "--hosts", "node2", "--encryption-key", self.key)
            again.finish(0)
            self.assertEqual(again.stdout(), lab.undisturbed("-n", "3", "--hosts", "node1", *argv))


if __name__ == "__main__":
    unittest.main()
