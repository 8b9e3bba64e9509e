"""Compiles the sources with the calls added, and links them with libmend-app."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile

from .analyse import is_fortran

RUNTIME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runtime")
WITH_VALUE = {"-o", "-I", "-J", "-D", "-U", "-L", "-l", "-include", "-isystem", "-iquote", "-idirafter", "-x", "-MF", "-MT", "-MQ", "-Xlinker", "-T", "-u"}
# What make reads was written when the user's source was compiled: it must not come to name ours.
DEPENDENCIES = ("-M", "-MM", "-MD", "-MMD", "-MP", "-MG", "-MF", "-MT", "-MQ")
LIBRARY = re.compile(r"\.(a|so(\.\d+)*)$")
# The library's messages aren't the program's.
UNCOUNTED = ["-DMEND_APP_NO_WATCH"]


class Stop(Exception):
    """Ends mend-cc with a message."""


def app_home(given):
    """Where libmend-app is: include, lib, share. A directory that is named is the only one that counts."""
    checkout = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "target", "app")
    way_out = "build it (`make app`) and name its directory with --app or MEND_APP_HOME"
    for named, by in ((given, "--app"), (os.environ.get("MEND_APP_HOME"), "MEND_APP_HOME")):
        if named:
            if not os.path.exists(os.path.join(named, "include", "mend_app.h")):
                raise Stop(f"there is no libmend-app in {named} ({by}), for include/mend_app.h isn't there: {way_out}")
            return os.path.abspath(named)
    for home in (checkout, "/usr/local"):
        if os.path.exists(os.path.join(home, "include", "mend_app.h")):
            return os.path.abspath(home)
    raise Stop(f"libmend-app is neither in {os.path.normpath(checkout)} nor in /usr/local: {way_out}")


def pairs(flags):
    """Flags with their values, where those are words of their own."""
    rest = list(flags)
    while rest:
        word = rest.pop(0)
        yield [word, rest.pop(0)] if word in WITH_VALUE and rest else [word]


def for_compiling(unit):
    """Of the flags that a source was given, those for its compilation."""
    fortran, found = is_fortran(unit["source"]), []
    for pair in pairs(unit["flags"]):
        word = pair[0]
        if word in ("-Xlinker", "-T", "-u") or word in DEPENDENCIES or word.startswith(("-l", "-L", "-Wl,")) or (LIBRARY.search(word) and not word.startswith("-")):
            continue
        if fortran and word.startswith("-J"):
            # Our modules go where only we look for them.
            continue
        if fortran and word.startswith("-I"):
            # Fortran sources are compiled in another directory.
            pair = [f"-I{os.path.join(unit['directory'], pair[1] if len(pair) == 2 else word[2:])}"]
        found += pair
    return found


def write(directory, texts):
    """Writes sources with the calls added. Where some have the same name, they stand in directories as the user's do."""
    if not directory:
        raise Stop("--source-only needs -o DIR")
    names = {path: os.path.basename(path) for path in texts}
    if len(set(names.values())) < len(names):
        above = os.path.commonpath([os.path.dirname(path) for path in texts])
        names = {path: os.path.relpath(path, above) for path in texts}
    for path, name in names.items():
        target = os.path.join(directory, name)
        if os.path.exists(target) and os.path.samefile(target, path):
            raise Stop(f"{target} is the source itself: give another directory")
    for path, name in names.items():
        target = os.path.join(directory, name)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(texts[path])
        except OSError as error:
            raise Stop(f"{target} can't be written: {error.strerror}: give another directory") from None


def _c_compiler(compiler):
    """The C compiler that belongs to a Fortran compiler of MPI: mpif90.mpich, mpicc.mpich."""
    directory, name = os.path.split(compiler[0])
    wanted = os.environ.get("MEND_CC_MPICC") or os.path.join(directory, re.sub(r"mpi(f90|f77|fort|ifort|ifx)", "mpicc", name))
    if shutil.which(wanted) is None:
        raise Stop(f"libmend-app's part for MPI is C, and there is no {wanted}: MEND_CC_MPICC names the C compiler of this MPI library")
    return [wanted]


def _is_open_mpi(compiler):
    """Whether a C compiler is Open MPI's."""
    done = subprocess.run([*compiler, "-E", "-dM", "-include", "mpi.h", "-x", "c", os.devnull], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return re.search(r"^#define OPEN_MPI\b", done.stdout, re.M) is not None


def _write_dependencies(unit, line):
    """What make is to know of a source that is compiled and linked at once. The compilation of our text would name our files."""
    asked = [pair for pair in pairs(unit["flags"]) if pair[0] in DEPENDENCIES]
    kinds = {pair[0] for pair in asked}
    if "object" in unit or is_fortran(unit["source"]) or not kinds & {"-MD", "-MMD"}:
        return
    output, stem = line.output or "a.out", os.path.splitext(line.output or "a.out")[0]
    if len(line.sources) > 1 or not line.output:
        stem += "-" + os.path.splitext(os.path.basename(unit["source"]))[0]
    command = [*unit["compiler"], "-MM" if "-MMD" in kinds else "-M", *for_compiling(unit)]
    command += [word for pair in asked if pair[0] not in ("-MD", "-MMD") for word in pair]
    command += [] if "-MF" in kinds else ["-MF", stem + ".d"]
    command += [] if kinds & {"-MT", "-MQ"} else ["-MT", output]
    source = next((one for one in line.sources if os.path.abspath(one) == unit["source"]), unit["source"])
    if subprocess.run([*command, source], cwd=unit["directory"], check=False).returncode:
        raise Stop(f"what make reads can't be written: {shlex.join([*command, source])} fails")


def build(options, compiler, line, units, texts, plain, room):
    """Exit code of the link. `texts`: the new sources by the paths of the old ones; `plain`: objects that mend-cc hasn't compiled."""
    home = app_home(options.app)
    include = [f"-I{os.path.join(home, 'include')}", f"-I{RUNTIME}"]
    objects = []
    fortran = is_fortran(units[0]["source"])
    c_compiler = _c_compiler(compiler) if fortran else compiler
    if fortran and options.check and _is_open_mpi(c_compiler):
        raise Stop(f"--check counts what passes through MPI's functions of C, and Fortran's calls don't in Open MPI ({compiler[0]}): build it with MPICH's compiler, or without --check")
    if fortran:
        include = [f"-J{room}", f"-I{room}"]
        objects.append(os.path.join(room, "mend_cc-fortran.o"))
        if subprocess.run([*compiler, "-O2", "-g", *include, "-c", os.path.join(RUNTIME, "mend_cc.f90"), "-o", objects[0]], check=False).returncode:
            raise Stop(f"mend_cc.f90 doesn't compile with {compiler[0]}")
    for number, unit in enumerate(units):
        source = os.path.join(room, f"{number}", os.path.basename(unit["source"]))
        os.makedirs(os.path.dirname(source))
        with open(source, "wb") as file:
            file.write(texts[unit["source"]])
        target = os.path.splitext(source)[0] + ".o"
        quoted = ["-I", os.path.dirname(unit["source"])] if fortran else ["-iquote", os.path.dirname(unit["source"])]
        command = [*unit["compiler"], *for_compiling(unit), *include, *quoted, "-c", source, "-o", target]
        # Modules that an earlier compilation left in the user's directory aren't those of the new sources.
        code = subprocess.run(command, cwd=room if fortran else unit["directory"], check=False).returncode
        if code:
            kept = tempfile.mkdtemp(prefix="mend-cc-failed-")
            write(kept, texts)
            raise Stop(f"the sources with the calls added don't compile ({shlex.join(command)}): they are kept in {kept}")
        objects.append(target)
        _write_dependencies(unit, line)
    ours = [(os.path.join(home, "share", "mend-app", "mend_app_mpi.c"), UNCOUNTED if options.check else []), *((os.path.join(RUNTIME, name), []) for name in ("mend_cc.c", "mend_cc_files.c", "mend_cc_parts.c"))]
    include = [f"-I{os.path.join(home, 'include')}", f"-I{RUNTIME}"]
    if options.check:
        ours.append((os.path.join(RUNTIME, "mend_cc_check.c"), []))
    for source, flags in ours:
        target = os.path.join(room, os.path.splitext(os.path.basename(source))[0] + ".o")
        if subprocess.run([*c_compiler, "-O2", "-g", *flags, *include, "-c", source, "-o", target], check=False).returncode:
            raise Stop(f"{source} doesn't compile with {c_compiler[0]}")
        objects.append(target)
    output = ["-o", line.output] if line.output else []
    library = os.path.join(home, "lib")
    return subprocess.run([*compiler, *objects, *plain, *line.unread, *line.flags, *output, f"-L{library}", "-lmend-app", f"-Wl,-rpath,{library}"], check=False).returncode
