"""Jobs whose messages go over RDMA verbs are saved, moved, ended and restarted, again and again, with the results of an undisturbed run.

MEND_TEST_RDMA names three addresses of this machine at which a device for RDMA can be reached; the tier `vm` makes one in software.
The daemons are this machine's own, one at each address: what a network namespace has of such devices differs by kernel.
"""

import os
import subprocess
import tempfile
import unittest

from cases import InDirectory
from cluster import BIN, Failed, Machine, compile_mpi

ADDRESSES = [address for address in os.environ.get("MEND_TEST_RDMA", "").split(",") if address]
ROUNDS = int(os.environ.get("MEND_TEST_RDMA_ROUNDS", "1"))


def told(job):
    """What its ranks tell of channels that are none, or that broke. Of a job that is being killed they may notice it, one before the other."""
    return [line for line in job.stderr().splitlines() if line.startswith("mend: rank") and "is gone; messages for it wait" not in line]


class Rdma(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if len(ADDRESSES) < 3:
            raise unittest.SkipTest("no device for RDMA: MEND_TEST_RDMA names no three addresses of one")
        cls.machine = cls.enterClassContext(Machine())
        for name, value in {
            "MEND_CHANNELS": "ofi",
            "MEND_OFI_PROVIDER": "verbs;ofi_rxm",
            # Software RDMA has few completion queue entries.
            "FI_UNIVERSE_SIZE": "16",
        }.items():
            cls.machine.set(name, value)
        for address in ADDRESSES:
            cls.daemon(address)

    @classmethod
    def daemon(cls, address):
        command = [os.path.join(BIN, "mendd"), "--listen", f"{address}:7117", "--name", address, "--advertise", address]
        listening, ready = os.pipe()
        command += ["--ready-fd", str(ready), "--until-eof"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=cls.machine.environment, pass_fds=[ready])
        os.close(ready)
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.stdin.close)
        with os.fdopen(listening) as file:
            assert file.readline(), f"no mendd at {address}"

    def disturbed(self, argv, mode):
        """The output of a job of four ranks that begins at two of the addresses, and moves about, over RDMA too: by its reads or its writes."""
        for name, value in {"MEND_MIGRATE_TRANSPORT": "ofi", "MEND_MIGRATE_OFI_MODE": mode}.items():
            self.machine.set(name, value)
            self.addCleanup(self.machine.set, name, None)
        directory = tempfile.mkdtemp(dir=self.work)
        job = self.machine.start(directory, "run", "-n", "4", "--hosts", ",".join(ADDRESSES[:2]), "--spares", ADDRESSES[2], "--", *argv)
        name = self.machine.running(job)
        places = [0, 0, 1, 1]

        def move(rank):
            places[rank] = (places[rank] + 1) % 3
            try:
                done = self.machine.verb("migrate", name, str(rank), "--to", ADDRESSES[places[rank]])
                self.assertEqual(done["transport"], "ofi")
            except Failed as error:
                raise Failed(f"{error}\n{job.stderr()}\n{self.machine.mend('log', name).stdout}") from error

        self.machine.verb("checkpoint", name)
        move(3)
        move(0)
        self.machine.verb("checkpoint", name)
        for number in range(ROUNDS):
            self.assertEqual(self.machine.mend("kill", name).returncode, 0)
            job.finish(137)
            self.assertEqual(told(job), [])
            job = self.machine.start(directory, "restart", name)
            self.machine.running(job)
            move(number % 4)
            self.machine.verb("checkpoint", name)
            move((number + 1) % 4)
            self.machine.verb("checkpoint", name)
        job.let_go()
        job.finish()
        self.assertEqual(told(job), [])
        return job.stdout()

    def undisturbed(self, argv):
        """What the program prints when nothing happens to it, over the default channels."""
        with Machine() as machine:
            return machine.undisturbed("-n", "4", "--", *argv)

    def test_results_stay_over_rdma(self):
        program = compile_mpi("mpi_iters.c", os.path.join(self.work, "iters"))
        argv = [program, "-i", "20", "-w", "10", "-m", "2", "-u", "go"]
        self.assertEqual(self.disturbed(argv, "write"), self.undisturbed(argv))

    def test_messages_of_all_sizes_stay_whole_over_rdma(self):
        program = compile_mpi("mpi_checksums.c", os.path.join(self.work, "checksums"))
        argv = [program, "-s", "5", "-r", "40", "-u", "go"]
        self.assertEqual(self.disturbed(argv, "read"), self.undisturbed(argv))

    def test_ranks_that_may_lock_too_little_memory_use_other_channels(self):
        if os.geteuid() == 0:
            self.skipTest("the limit does not hold for root")
        program = compile_mpi("mpi_checksums.c", os.path.join(self.work, "checksums"))
        argv = [program, "-s", "5", "-r", "10"]
        limited = ["sh", "-c", 'ulimit -l 8192; exec "$@"', "sh", *argv]
        job = self.machine.start(self.directory, "run", "-n", "4", "--hosts", ",".join(ADDRESSES[:2]), "--", *limited)
        job.finish()
        self.assertEqual(job.stdout(), self.undisturbed(argv))
        self.assertIn("and this process may lock 8192 KiB; others are used (hint: raise the limit on locked memory", job.stderr())


if __name__ == "__main__":
    unittest.main()
