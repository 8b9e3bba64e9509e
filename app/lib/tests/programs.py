"""The test programs: built against target/app with the MPICH of .venv, Fortran with Debian's; run in directories of their own.

Run as a command it builds those that several files of tests use, once for all of them.
"""

import glob
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

from cases import OUT, PATIENCE, ROOT, VENV, InDirectory as InFreshDirectory, digest, skip

SOURCES = os.path.join(ROOT, "app", "lib", "tests", "programs")
PYTHON = os.path.join(VENV, "bin", "python3")
# Debian's packages of other MPI libraries.
OTHER_MPI = {"mpich": "mpich libmpich-dev", "openmpi": "openmpi-bin libopenmpi-dev"}
_built = {}
# Built for all, with a digest of what each was built from. Not `moves`: its tests know their own processes by the program's path.
COMMON = os.path.join(OUT, "tests", "programs")
COMMON_NAMES = ("heat", "lines", "loops", "sessions")


def _compiler(*names):
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    return None


def _compile(name, directory):
    target = os.path.join(directory, name)
    flags = ["-O2", f"-I{OUT}/include", f"-L{OUT}/lib", f"-Wl,-rpath,{OUT}/lib"]
    shared = os.path.join(OUT, "share", "mend-app")
    if name == "templates":
        commands = [["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *flags[:2], os.path.join(SOURCES, "templates.cpp"), *flags[2:], "-lmend-app", "-o", target]]
    elif name == "plate":
        mpif90, mpicc = _compiler("mpif90.mpich"), _compiler("mpicc.mpich")
        if not mpif90 or not mpicc:
            skip("Fortran", "Debian's mpif90.mpich isn't there (apt-get install mpich libmpich-dev gfortran)")
        mpi_part = os.path.join(directory, "plate-mpi.o")
        commands = [[mpicc, *flags[:2], "-c", os.path.join(shared, "mend_app_mpi.c"), "-o", mpi_part],
                    [mpif90, "-std=f2018", "-O2", f"-J{directory}", os.path.join(shared, "mend_app.f90"), os.path.join(SOURCES, "plate.f90"), mpi_part, *flags[2:],
                     "-lmend-app", "-o", target]]
    elif name == "carry":
        mpif90, mpicc = _compiler("mpif90.openmpi"), _compiler("mpicc.openmpi")
        if not mpif90 or not mpicc:
            skip("moves in Fortran", "Open MPI isn't there (apt-get install openmpi-bin libopenmpi-dev gfortran)")
        mpi_part = os.path.join(directory, "carry-mpi.o")
        commands = [[mpicc, *flags[:2], "-c", os.path.join(shared, "mend_app_mpi.c"), "-o", mpi_part],
                    [mpif90, "-std=f2018", "-O2", f"-J{directory}", os.path.join(shared, "mend_app.f90"), os.path.join(SOURCES, "carry.f90"), mpi_part, *flags[2:],
                     "-lmend-app", "-o", target]]
    else:
        # "heat.openmpi": by another MPI library's compiler.
        name, _, library = name.partition(".")
        compiler = _compiler(f"mpicc.{library}") if library else os.path.join(VENV, "bin", "mpicc")
        if not compiler:
            skip(f"{library}, another MPI library", f"there is no mpicc.{library} (apt-get install {OTHER_MPI[library]})")
        parts = [os.path.join(SOURCES, f"{name}.c"), os.path.join(shared, "mend_app_mpi.c")]
        commands = [[compiler, "-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", *flags[:2], *parts, *flags[2:], "-lmend-app", "-lm", "-o", target]]
    for command in commands:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return target


def _digest(name):
    """Of a program's sources and of what is compiled with them. Those who run tests may not write where it is built, and compile their own if it is another one."""
    return digest([os.path.join(SOURCES, f"{name}.c"), *glob.glob(os.path.join(OUT, "include", "*")), os.path.join(OUT, "share", "mend-app", "mend_app_mpi.c")])


def _is_common(name):
    try:
        with open(os.path.join(COMMON, f"{name}.digest"), encoding="ascii") as file:
            return file.read() == _digest(name)
    except OSError:
        return False


def build_common(name):
    """For all files of tests."""
    if _is_common(name):
        return
    with tempfile.TemporaryDirectory(dir=COMMON) as directory:
        os.replace(_compile(name, directory), os.path.join(COMMON, name))
    with open(os.path.join(COMMON, f"{name}.digest"), "w", encoding="ascii") as file:
        file.write(_digest(name))


def program(name):
    """Path of a test program, built once."""
    if name not in _built and name in COMMON_NAMES and _is_common(name):
        _built[name] = os.path.join(COMMON, name)
    if name not in _built:
        if "directory" not in _built:
            _built["directory"] = tempfile.TemporaryDirectory()
        _built[name] = _compile(name, _built["directory"].name)
    return _built[name]


def environment(**settings):
    """Settings by their keys."""
    # Unbuffered, one `print` is several writes, and those of two ranks come between each other.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MEND_APP_") and key != "PYTHONUNBUFFERED"}
    clean.update({f"MEND_APP_{key.upper()}": str(value) for key, value in settings.items()})
    # Open MPI asks twice.
    clean.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
    clean["PYTHONPATH"] = os.path.join(ROOT, "app", "python")
    clean["MEND_APP_LIBRARY"] = os.path.join(OUT, "lib", "libmend-app.so")
    return clean


def start(ranks, command, room, mpiexec=None, **settings):
    """A program on `ranks` ranks (0: without mpiexec), its output together."""
    launcher = [mpiexec or os.path.join(VENV, "bin", "mpiexec"), "-n", str(ranks)] if ranks else []
    return subprocess.Popen([*launcher, *command], cwd=room, env=environment(**settings), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(ranks, command, room, mpiexec=None, **settings):
    """Exit code and output."""
    process = start(ranks, command, room, mpiexec, **settings)
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"{command} doesn't end; so far:\n{output}") from None
    return process.returncode, output


class InDirectory(InFreshDirectory):
    """Each test in a fresh directory, in which programs leave checkpoints."""

    def checkpoints(self):
        """Numbers of what counts, oldest first."""
        where = self.path("checkpoints")
        found = [entry for entry in os.listdir(where) if os.path.exists(os.path.join(where, entry, "manifest"))] if os.path.isdir(where) else []
        return sorted(int(entry.split("-")[1]) for entry in found)

    def python(self, script, **settings):
        """A script with the Python package, in one process; exit code and output."""
        return run(0, [PYTHON, "-c", script], self.directory, **settings)

    def good(self, outcome):
        code, output = outcome
        self.assertEqual(code, 0, output)
        return output

    def line(self, output, start_of_line):
        lines = [line for line in output.splitlines() if line.startswith(start_of_line)]
        self.assertEqual(len(lines), 1, output)
        return lines[0]


if __name__ == "__main__":
    os.makedirs(COMMON, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as builders:
        list(builders.map(build_common, COMMON_NAMES))
