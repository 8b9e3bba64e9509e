"""Intel MPI over the same provider, started by `mend run`: IMB and LAMMPS, with checkpoints, moves, a lost node and a restart."""

import os
import subprocess
import tempfile
import unittest

import melt
from cases import InDirectory
from cluster import Lab, compile_mpi, find_imb, imb_programs, imb_rows, intel_environment

# Binary logarithm of the longest messages of the benchmarks that are disturbed.
LONGEST = 17


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
        # Of each way to send a message, one length.
        lengths = os.path.join(self.directory, "lengths")
        with open(lengths, "w", encoding="utf-8") as file:
            file.write("0\n8\n4096\n65536\n")
        # A sample that takes longer than its time ends a benchmark, and IMB prints a time that it never took, beyond its buffer.
        options = ["-time", "60", "-iter", "10", "-msglen", lengths, "-mem", "0.2"]
        for name, path in imb_programs().items():
            if name == "IMB-MT":
                # Needs an OpenMP library that the wheel lacks; conformance.py runs it.
                continue
            with self.subTest(name):
                job = self.start("-n", "2", "--hosts", "node1,node2", "--", path, *options)
                job.finish()
                self.assertIn("Benchmarking", job.stdout())
                self.assertIn("All processes entering MPI_Finalize", job.stdout())

    def test_benchmarks_are_saved_moved_and_restarted_without_the_node_that_was_lost(self):
        stays = compile_mpi("stays.c", os.path.join(self.directory, "stays.so"), "-shared", "-fPIC")
        argv = ["-env", "LD_PRELOAD", stays, "--", find_imb(), "-iter", "40", "-iter_policy", "off", "-time", "60", "-msglog", str(LONGEST), "-npmin", "4",
                "PingPong", "Sendrecv", "Allreduce", "Alltoall"]
        with Lab(3) as lab:
            lab.environment |= self.lab.environment
            expected = lab.undisturbed("-n", "4", "--hosts", "node1:2,node2:2", *argv)
            job = lab.start(self.directory, "run", "-n", "4", "--hosts", "node1:2,node2:2", "--spares", "node3", *argv)
            name = lab.running(job)
            job.wait_for(lambda: f" {1 << LONGEST} " in job.stdout(), "the first benchmark is over")
            lab.verb("checkpoint", name)
            self.assertEqual(lab.verb("migrate", name, "1")["to"], "node3")
            lab.verb("checkpoint", name)
            lab.kill("node2")
            job.finish(75)
            job = lab.start(self.directory, "restart", name)
            lab.running(job)
            # The second one has had no end yet.
            self.assertNotIn("# Benchmarking Sendrecv", job.stdout())
            lab.verb("checkpoint", name)
            lab.verb("migrate", name, "0", "--to", "node3")
            job.let_go()
            job.finish()
            self.assertEqual(imb_rows(job.stdout()), imb_rows(expected))

    def test_lammps_is_saved_moved_and_restarted(self):
        program = ["--", *melt.argv(self.work)]
        expected = self.lab.undisturbed("-n", "3", "--hosts", "node1,node2", *program)
        job = self.start("-n", "3", "--hosts", "node1:2,node2:1", "--spares", "node3", *program)
        name = self.lab.running(job)
        job.wait_for(lambda: melt.steps(job.stdout()) >= 100, "the first steps are done")
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.verb("migrate", name, "1")["to"], "node3")
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        job = self.lab.start(job.directory, "restart", name, "--hosts", "node2,node3")
        self.lab.running(job)
        self.lab.verb("checkpoint", name)
        self.lab.verb("migrate", name, "0")
        job.let_go()
        job.finish()
        melt.compare(self, expected, job.stdout(), job.stderr())

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
