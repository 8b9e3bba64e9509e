"""Intel MPI over the same provider, started by `mend run`: IMB, and LAMMPS with checkpoint, move, kill and restart."""

import os
import subprocess
import sys
import tempfile
import unittest

from cases import InDirectory
from cluster import Lab, ROOT, compile_mpi, find_lammps, imb_programs, intel_environment

sys.path.append(os.path.join(ROOT, "tests", "demo"))
import compare  # noqa: E402

MELT = os.path.join(ROOT, "tests", "demo", "in.melt")


class Intel(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        # What a site may have set for its own launcher and network must not matter.
        cls.lab.environment |= intel_environment() | {"I_MPI_PMI_LIBRARY": "/usr/lib/libpmi2.so", "I_MPI_OFI_PROVIDER": "tcp"}

    def start(self, *arguments):
        directory = tempfile.mkdtemp(dir=self.work)
        return self.lab.start(directory, "run", *arguments)

    def test_it_is_intel_mpi(self):
        """The library that answers is Intel's, and it says which provider it uses."""
        program = compile_mpi("mpi_ring.c", os.path.join(self.work, "ring"))
        job = self.start("-n", "2", "--hosts", "node1,node2", "-env", "I_MPI_DEBUG", "2", "--", program)
        job.finish()
        self.assertIn("Intel(R) MPI Library", job.stdout())
        self.assertIn("libfabric provider: mend", job.stdout())

    def test_benchmarks(self):
        options = ["-time", "0.01", "-iter", "10", "-msglog", "3:16", "-mem", "0.2"]
        for name, path in imb_programs().items():
            if name == "IMB-MT":
                # Needs an OpenMP library that the wheel lacks; conformance.py runs it.
                continue
            with self.subTest(name):
                job = self.start("-n", "2", "--hosts", "node1,node2", "--", path, *options)
                job.finish()
                self.assertIn("Benchmarking", job.stdout())
                self.assertIn("All processes entering MPI_Finalize", job.stdout())

    def test_lammps_is_saved_moved_and_restarted(self):
        size = [word for axis in "xyz" for word in ("-var", axis, "10")]
        program = ["--", find_lammps(), "-in", MELT, *size, "-var", "steps", "4000"]
        plain = self.start("-n", "3", "--hosts", "node1,node2", *program)
        plain.finish()
        job = self.start("-n", "3", "--hosts", "node1:2,node2:1", "--spares", "node3", *program)
        name = self.lab.running(job)
        log = os.path.join(job.directory, "log.lammps")
        job.wait_for(lambda: os.path.exists(log) and "TotEng" in open(log, encoding="utf-8").read(), "the first step")
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.verb("migrate", name, "1")["to"], "node3")
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        job = self.lab.start(job.directory, "restart", name, "--hosts", "node2,node3")
        self.lab.running(job)
        self.lab.verb("checkpoint", name)
        self.lab.verb("migrate", name, "0")
        job.finish()
        self.assertEqual(compare.differences(plain.directory, job.directory), [])

    def test_without_libfabric_the_reason_is_named(self):
        if "libfabric.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout:
            self.skipTest("this machine has a libfabric that every program finds")
        library = os.path.dirname(self.lab.environment["LD_LIBRARY_PATH"].split(os.pathsep)[0]) + "/lib"
        done = self.lab.mend("run", "--hosts", "node1", "-env", "LD_LIBRARY_PATH", library, "--", imb_programs()["IMB-MPI1"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libfabric.so.1", done.stderr)
        self.assertIn("LD_LIBRARY_PATH", done.stderr)


if __name__ == "__main__":
    unittest.main()
