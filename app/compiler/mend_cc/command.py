"""The command line: mend-cc as a compiler, and its own options."""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from . import parse_c
from .analyse import analyse, is_fortran
from .plan import Refused
from .report import report
from .rewrite import Rewriter
from .rewrite_fortran import Rewriter as FortranRewriter

ABOUT = """Adds portable checkpoints to MPI programs in C and Fortran: finds safe points and what must be registered there, adds calls of libmend-app, and has your own compiler
compile the result."""
RUNTIME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runtime")
SIDECAR = ".mend-cc"
PASSED = ("-E", "-S", "-M", "-MM", "-show", "--showme", "--version", "-v", "-V", "-dumpversion", "-dumpmachine", "--help")
WITH_VALUE = {"-o", "-I", "-D", "-U", "-L", "-l", "-include", "-isystem", "-iquote", "-x", "-MF", "-MT", "-MQ", "-Xlinker", "-T", "-u"}
# The library's messages aren't the program's.
UNCOUNTED = ["-DMEND_APP_NO_WATCH"]


class Stop(Exception):
    """Ends mend-cc with a message."""


class Line:
    """A compiler's command line, taken apart."""

    def __init__(self, words):
        self.words, self.sources, self.objects, self.flags, self.output, self.only_compile = words, [], [], [], None, False
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "-o":
                self.output = rest.pop(0) if rest else None
            elif word == "-c":
                self.only_compile = True
            elif word in WITH_VALUE and rest:
                self.flags += [word, rest.pop(0)]
            elif (word.endswith(".c") or is_fortran(word)) and not word.startswith("-"):
                self.sources.append(word)
            elif word.endswith(".o") and not word.startswith("-"):
                self.objects.append(word)
            else:
                self.flags.append(word)

    def for_clang(self):
        """What of the flags decides how a source reads."""
        found, rest = [], list(self.flags)
        while rest:
            word = rest.pop(0)
            if word in ("-I", "-D", "-U", "-include", "-isystem", "-iquote"):
                found += [word, rest.pop(0)]
            elif word.startswith(("-I", "-D", "-U", "-std=", "-isystem")):
                found.append(word)
        return [*found, "-D_OPENMP=201511"] if any(word.startswith("-fopenmp") for word in self.flags) else found


def app_home(given):
    """Where libmend-app is: include, lib, share."""
    here = os.path.dirname(os.path.abspath(__file__))
    for home in (given, os.environ.get("MEND_APP_HOME"), os.path.join(here, "..", "..", "..", "target", "app"), "/usr/local"):
        if home and os.path.exists(os.path.join(home, "include", "mend_app.h")):
            return os.path.abspath(home)
    raise Stop("libmend-app isn't found: build it (`make app`) and name its directory with --app or MEND_APP_HOME")


def parser():
    """Options that stand before the sources or the compiler."""
    made = argparse.ArgumentParser(prog="mend-cc", description=ABOUT, usage="mend-cc [options] FILE.c ... [-o DIR] -- mpicc [flags]\n       mend-cc [options] mpicc [flags] FILE.c ...",
                                   epilog="As CC=\"mend-cc mpicc\" it serves in Makefiles: what `-c` compiles is analysed when the program is linked. "
                                   "Directives in sources: #pragma mend checkpoint | exclude(NAME, ...) | shape(NAME) DIMENSION, ..., and !$mend in Fortran")
    made.add_argument("--report", metavar="FILE", nargs="?", const="-", help="say what was found, what is registered and why, and what couldn't be seen: on standard error, or in a file (--report=FILE)")
    made.add_argument("--source-only", action="store_true", help="write the sources with the calls added, and compile nothing")
    made.add_argument("-o", dest="directory", metavar="DIR", help="where --source-only writes")
    made.add_argument("--keep", metavar="DIR", help="also keep the sources with the calls added there")
    made.add_argument("--check", action="store_true", help="count messages when the program runs, and refuse a checkpoint while one is in transit (slow: for tests)")
    made.add_argument("--poison", action="store_true", help="overwrite in a restart what isn't registered and isn't needed (for tests)")
    made.add_argument("--drop", metavar="NAME", action="append", default=[], help="don't register NAME, though it should be (for tests)")
    made.add_argument("--name", help="the program's name and version in checkpoints (default: the name of the output)")
    made.add_argument("--app", metavar="DIR", help="where `make app` has put libmend-app (default: MEND_APP_HOME, then this checkout's target/app)")
    return made


def main(arguments=None):
    """Exit code of mend-cc."""
    own, words = _split(list(sys.argv[1:] if arguments is None else arguments))
    options = parser().parse_args(own)
    options.words = words
    try:
        return _run(options)
    except (Stop, parse_c.BadDirective) as error:
        print(f"mend-cc: {error}", file=sys.stderr)
        return 1


def _split(arguments):
    """mend-cc's own options, and from the first other word on the rest."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "--":
        at += 2 if arguments[at] in ("-o", "--keep", "--drop", "--name", "--app") else 1
    return arguments[:at], arguments[at:]


def _run(options):
    words = options.words
    if "--" in words:
        at = words.index("--")
        own, command = words[:at], words[at + 1:]
        while "-o" in own:
            place = own.index("-o")
            options.directory = own[place + 1] if place + 1 < len(own) else None
            del own[place:place + 2]
        if not command:
            raise Stop("which compiler? mend-cc FILE.c ... -- mpicc [flags]")
        command = [command[0], *command[1:], *own]
    else:
        command = words
    if not command:
        raise Stop("which compiler? mend-cc mpicc [flags] FILE.c ..., or mend-cc FILE.c ... -- mpicc [flags] (mend-cc --help)")
    compiler, line = command[:1], Line(command[1:])
    if shutil.which(compiler[0]) is None:
        raise Stop(f"there is no compiler `{compiler[0]}`: the first word is the compiler")
    if any(word in PASSED for word in line.words) or not (line.sources or line.objects):
        return subprocess.run(command, check=False).returncode
    if line.only_compile and not options.source_only:
        return _compile_only(command, compiler, line)
    return _link(options, compiler, line)


def _compile_only(command, compiler, line):
    """Compiles as the compiler does, and notes how, for when the program is linked."""
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        for source in line.sources:
            target = line.output or os.path.splitext(os.path.basename(source))[0] + ".o"
            with open(target + SIDECAR, "w", encoding="utf-8") as file:
                json.dump({"source": os.path.abspath(source), "flags": line.flags, "directory": os.getcwd(), "compiler": compiler}, file)
    return code


def _unit(source, flags, directory, compiler):
    return {"source": os.path.abspath(source), "flags": flags, "directory": directory, "compiler": compiler}


def _link(options, compiler, line):
    units, plain = [], []
    for source in line.sources:
        if not os.path.exists(source):
            raise Stop(f"there is no file {source}")
        units.append(_unit(source, line.flags, os.getcwd(), compiler))
    for item in line.objects:
        try:
            with open(item + SIDECAR, encoding="utf-8") as file:
                units.append({**json.load(file), "object": item})
        except FileNotFoundError:
            plain.append(item)
    if not units:
        return subprocess.run([*compiler, *line.words], check=False).returncode
    fortran = [unit for unit in units if is_fortran(unit["source"])]
    if fortran and len(fortran) < len(units):
        raise Stop("C and Fortran in one program: that can't be analysed together")
    if fortran:
        units = _by_modules(units)
    known = [] if fortran else parse_c.compiler_flags(compiler)
    sources = [(unit["source"], [*Line(unit["flags"]).for_clang(), *_relative(unit), *known]) for unit in units]
    with tempfile.TemporaryDirectory(prefix="mend-cc-") as room:
        try:
            found = analyse(sources, room, options.drop)
        except parse_c.CannotParse as error:
            print(f"mend-cc: {error}", file=sys.stderr)
            if options.source_only:
                return 1
            print("mend-cc: this can't be analysed: the program is compiled as it is", file=sys.stderr)
            return subprocess.run([*compiler, *line.words], check=False).returncode
        program = found.program
        for item in plain:
            print(f"mend-cc: {item} wasn't compiled by mend-cc: what is in it can't be seen", file=sys.stderr)
        name = options.name or os.path.basename(line.output or "a.out")
        texts = None
        if found.plan.points:
            try:
                rewriter = (FortranRewriter if fortran else Rewriter)(program, found.memory, found.plan, options.poison, name)
                texts = rewriter.run()
                for warning in rewriter.warnings():
                    print(f"mend-cc: {warning}", file=sys.stderr)
            except Refused as refusal:
                found.plan.refused.append((None, str(refusal)))
        _report(options, found)
        if texts is None:
            print("mend-cc: no place for checkpoints: the program is compiled as it is", file=sys.stderr)
            for place, why in found.plan.refused:
                print(f"mend-cc: {place}: {why}" if place else f"mend-cc: {why}", file=sys.stderr)
            for stmt, _, why in found.plan.considered:
                print(f"mend-cc: {stmt.place}: {why}", file=sys.stderr)
            if options.source_only:
                return 1
            return subprocess.run([*compiler, *line.words], check=False).returncode
        if options.source_only or options.keep:
            _write(options.directory if options.source_only else options.keep, texts)
        if options.source_only:
            return 0
        return _build(options, compiler, line, units, texts, plain, room)


def _by_modules(units):
    """Fortran sources in an order in which modules come before those that use them."""
    made, uses = {}, {}
    for unit in units:
        with open(unit["source"], encoding="utf-8", errors="replace") as file:
            text = file.read().lower()
        for name in re.findall(r"^\s*module\s+(?!procedure\b)(\w+)\s*$", text, re.M):
            made[name] = unit["source"]
        uses[unit["source"]] = set(re.findall(r"^\s*use\s*(?:,[^:]*::)?\s*(\w+)", text, re.M))
    ordered, left = [], list(units)
    while left:
        ready = [unit for unit in left if all(made.get(name) in (None, unit["source"], *(done["source"] for done in ordered)) for name in uses[unit["source"]])]
        if not ready:
            raise Stop("the modules of these sources use each other in a circle")
        ordered.append(ready[0])
        left.remove(ready[0])
    return ordered


def _c_compiler(compiler):
    """The C compiler that belongs to a Fortran compiler of MPI: mpif90.mpich, mpicc.mpich."""
    directory, name = os.path.split(compiler[0])
    wanted = os.environ.get("MEND_CC_MPICC") or os.path.join(directory, re.sub(r"mpi(f90|f77|fort|ifort|ifx)", "mpicc", name))
    if shutil.which(wanted) is None:
        raise Stop(f"libmend-app's part for MPI is C, and there is no {wanted}: MEND_CC_MPICC names the C compiler of this MPI library")
    return [wanted]


def _relative(unit):
    """Directories that a source's own includes and flags are relative to."""
    return ["-iquote", os.path.dirname(unit["source"]), f"-working-directory={unit['directory']}"]


def _report(options, found):
    if not options.report:
        return
    text = report(found.program, found.memory, found.plan, found.lockstep)
    if options.report == "-":
        sys.stderr.write(text)
    else:
        with open(options.report, "w", encoding="utf-8") as file:
            file.write(text)


def _write(directory, texts):
    if not directory:
        raise Stop("--source-only needs -o DIR")
    os.makedirs(directory, exist_ok=True)
    for path, text in texts.items():
        target = os.path.join(directory, os.path.basename(path))
        if os.path.exists(target) and os.path.samefile(target, path):
            raise Stop(f"{target} is the source itself: give another directory")
        with open(target, "wb") as file:
            file.write(text)


def _build(options, compiler, line, units, texts, plain, room):
    home = app_home(options.app)
    include = [f"-I{os.path.join(home, 'include')}", f"-I{RUNTIME}"]
    objects = []
    fortran = is_fortran(units[0]["source"])
    c_compiler = _c_compiler(compiler) if fortran else compiler
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
        flags = [flag for flag in unit["flags"] if not flag.startswith(("-l", "-L", "-Wl,"))]
        if fortran:
            flags = [f"-I{os.path.join(unit['directory'], flag[2:])}" if flag.startswith("-I") else flag for flag in flags if not flag.startswith("-J")]
        quoted = ["-I", os.path.dirname(unit["source"])] if fortran else ["-iquote", os.path.dirname(unit["source"])]
        command = [*unit["compiler"], *flags, *include, *quoted, "-c", source, "-o", target]
        # Modules that an earlier compilation left in the user's directory aren't those of the new sources.
        code = subprocess.run(command, cwd=room if fortran else unit["directory"], check=False).returncode
        if code:
            kept = tempfile.mkdtemp(prefix="mend-cc-failed-")
            _write(kept, texts)
            raise Stop(f"the sources with the calls added don't compile ({shlex.join(command)}): they are kept in {kept}")
        objects.append(target)
    ours = [(os.path.join(home, "share", "mend-app", "mend_app_mpi.c"), UNCOUNTED if options.check else []), (os.path.join(RUNTIME, "mend_cc.c"), [])]
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
    return subprocess.run([*compiler, *objects, *plain, *line.flags, *output, f"-L{library}", "-lmend-app", f"-Wl,-rpath,{library}"], check=False).returncode
