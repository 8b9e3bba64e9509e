"""Programs that mend-cc builds, beside the same built without it; run by real ranks in directories of their own."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# Behind this directory, whose tests have names of their own.
sys.path.append(os.path.join(os.path.dirname(os.path.dirname(HERE)), "lib", "tests"))
from cases import OUT, PATIENCE, ROOT, VENV, InDirectory as InFreshDirectory, digest  # noqa: E402

PROGRAMS = os.path.join(HERE, "programs")
RUNTIME = os.path.join(ROOT, "app", "compiler", "mend_cc", "runtime")
MPI_PART = os.path.join(OUT, "share", "mend-app", "mend_app_mpi.c")
# The runtime, which mend-cc has compiled for each program, is compiled once for all that is built with the same options: as a command, this file does so for all
# processes of tests, and each of them does for what is missing.
ONCE = r"""#!/bin/sh
for last; do :; done
case "$*" in
*\ -c\ */mend_cc/runtime/*.c\ -o\ *|*\ -c\ */share/mend-app/mend_app_mpi.c\ -o\ *)
    name="$(basename "$0")-$(printf '%%s' "${*%%"$last"}" | md5sum | cut -c1-32).o"
    for kept in '%(common)s' '%(own)s'; do
        [ ! -e "$kept/$name" ] || exec cp "$kept/$name" "$last"
    done
    %(compiler)s "$@" || exit
    exec cp "$last" '%(own)s'"/$name" ;;
esac
exec %(compiler)s "$@"
"""
_compilers = tempfile.TemporaryDirectory()


def _common():
    """Where objects of the runtime as it is now are for all."""
    built_from = [MPI_PART, *glob.glob(os.path.join(RUNTIME, "*")), *glob.glob(os.path.join(OUT, "include", "*"))]
    return os.path.join(OUT, "tests", "mend-cc", digest(built_from)[:32])


def compiled_once(compiler, own=_compilers.name):
    """The same compiler."""
    found = os.path.join(_compilers.name, os.path.basename(compiler))
    with open(found, "w", encoding="utf-8") as file:
        file.write(ONCE % {"compiler": compiler, "common": _common(), "own": own})
    os.chmod(found, 0o755)
    return found


MPICC = compiled_once(os.path.join(VENV, "bin", "mpicc"))
sys.path.insert(0, os.path.join(ROOT, "app", "compiler"))
RING = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = atoi(argv[1]), in = 0, seen = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        AT_THE_START
        int out = rank + step;
        MPI_Send(&out, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD);
        IN_BETWEEN
        MPI_Recv(&in, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        seen += in;
    }
    printf("ring digest %d\\n", seen);
    MPI_Finalize();
    return 0;
}
"""


SEED = int(os.environ.get("MEND_TEST_SEED", "1"))


def registered_last(report):
    """Names of what is registered at the last safe point of a report."""
    last = re.findall(r"\nSafe point \d+.*?(?=\nSafe point|\nLeft out|\nCouldn|\Z)", report, re.S)[-1]
    return set(re.findall(r"\n    (\S.*?) \(\S+:\d+; ", last))


def ring(start="", between=""):
    return RING.replace("AT_THE_START", start).replace("IN_BETWEEN", between)


def environment(**settings):
    """Settings of libmend-app by their keys."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MEND_APP_")}
    clean.update({f"MEND_APP_{key.upper()}": str(value) for key, value in settings.items()})
    clean["PYTHONPATH"] = os.path.join(ROOT, "app", "compiler")
    clean["MEND_APP_HOME"] = OUT
    clean["PATH"] = f"{_compilers.name}:{os.path.join(VENV, 'bin')}:{clean['PATH']}"
    return clean


class InDirectory(InFreshDirectory):
    """Each test in a fresh directory, in which programs are built."""

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def mend_cc(self, *arguments, fails=False):
        """Output of mend-cc, both streams."""
        done = subprocess.run([os.path.join(VENV, "bin", "python3"), "-m", "mend_cc", *arguments], cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode != 0, fails, done.stdout)
        return done.stdout

    def compile(self, *arguments, compiler=MPICC):
        subprocess.run([compiler, *arguments], cwd=self.directory, check=True, stdin=subprocess.DEVNULL, env=environment())

    def run_ranks(self, ranks, command, mpiexec=None, **settings):
        """Exit code, standard output, standard error."""
        launcher = mpiexec or os.path.join(VENV, "bin", "mpiexec")
        process = subprocess.Popen([launcher, "-n", str(ranks), *command], cwd=self.directory, env=environment(**settings), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            output, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(f"{command} doesn't end; so far:\n{output}\n{errors}") from None
        return process.returncode, output, errors

    def good(self, outcome):
        code, output, errors = outcome
        self.assertEqual(code, 0, output + errors)
        return output

    def forget(self):
        shutil.rmtree(self.path("checkpoints"), ignore_errors=True)

    def checkpoints(self):
        """Numbers of what counts, oldest first."""
        where = self.path("checkpoints")
        found = [entry for entry in os.listdir(where) if os.path.exists(os.path.join(where, entry, "manifest"))] if os.path.isdir(where) else []
        return sorted(int(entry.split("-")[1]) for entry in found)

    def without(self, variable, build, kill, go_on):
        """How a run goes on that was killed, where a variable isn't registered, nor the pointers into it: with them checkpoints would be refused."""
        dropped = [variable]
        while True:
            build([word for name in dropped for word in ("--drop", name)])
            errors = kill()
            pointer = re.search(r"no checkpoint: pointer `([^`]*)` \[\d+\] points outside", errors)
            if not pointer:
                code, output, more = go_on()
                self.assertIn("is restored", more)
                return code, output, more
            self.assertNotIn(pointer.group(1), dropped)
            dropped.append(pointer.group(1))

    def saved_bytes(self):
        """What rank 0 has registered at the newest checkpoint."""
        # This file is also a command of the build, which may have another Python.
        import h5py

        with h5py.File(self.path("checkpoints", f"checkpoint-{self.checkpoints()[-1]:06}", "rank-00000.h5")) as file:
            found = sum(item.size * item.dtype.itemsize for item in file["MemBlocks"].values())
        self.assertGreater(found, 0)
        return found

if __name__ == "__main__" and not os.path.isdir(_common()):
    # Those of what the runtime was before are of no use.
    shutil.rmtree(os.path.dirname(_common()), ignore_errors=True)
    under_way = _common() + ".new"
    os.makedirs(under_way)
    compiler = compiled_once(os.path.join(VENV, "bin", "mpicc"), own=under_way)
    for source in (MPI_PART, *(os.path.join(RUNTIME, name) for name in ("mend_cc.c", "mend_cc_files.c", "mend_cc_parts.c"))):
        command = [compiler, "-O2", "-g", f"-I{os.path.join(OUT, 'include')}", f"-I{RUNTIME}", "-c", source, "-o", os.path.join(_compilers.name, "made.o")]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    os.rename(under_way, _common())
