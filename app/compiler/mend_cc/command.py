"""The command line: mend-cc as a compiler, and its own options."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from . import parse_c
from .analyse import analyse, is_fortran
from .build import WITH_VALUE, Stop, build, for_compiling, pairs, write
from .identity import identity
from .plan import Refused
from .pragmas import told
from .report import report
from .rewrite import Rewriter
from .rewrite_fortran import Rewriter as FortranRewriter

ABOUT = """Adds portable checkpoints to MPI programs in C and Fortran: finds safe points and what must be registered there, adds calls of libmend-app, and has your own compiler
compile the result."""
SIDECAR = ".mend-cc"
PASSED = ("-E", "-S", "-M", "-MM", "-show", "--showme", "--version", "-v", "-V", "-dumpversion", "-dumpmachine", "--help")
UNREAD = {"C++": (".cpp", ".cc", ".cxx", ".c++", ".cp", ".C", ".CPP"), "Fortran in fixed form": (".f", ".F", ".for", ".FOR", ".ftn", ".f77", ".fpp"), "assembler": (".s", ".S")}


class Line:
    """A compiler's command line, taken apart."""

    def __init__(self, words):
        self.words, self.sources, self.unread, self.objects, self.flags, self.output, self.only_compile = words, [], [], [], [], None, False
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
            elif _unread(word) and not word.startswith("-"):
                self.unread.append(word)
            elif word.endswith(".o") and not word.startswith("-"):
                self.objects.append(word)
            else:
                self.flags.append(word)

    def for_clang(self):
        """What of the flags decides how a source reads."""
        found = []
        for pair in pairs(self.flags):
            if pair[0] in ("-include", "-iquote", "-idirafter") and len(pair) == 2 or pair[0].startswith(("-I", "-D", "-U", "-std=", "-isystem")):
                found += pair
        return [*found, *told(self.flags)]


class _Parser(argparse.ArgumentParser):
    """argparse shows a value that may be left out as a word of its own, which would be the compiler."""

    def format_help(self):
        return super().format_help().replace("--report [FILE]", "--report[=FILE]")


def parser():
    """Options that stand before the sources or the compiler."""
    made = _Parser(prog="mend-cc", description=ABOUT, usage="mend-cc [options] FILE.c ... [-o DIR] -- mpicc [flags]\n       mend-cc [options] mpicc [flags] FILE.c ...",
                                   epilog="As CC=\"mend-cc mpicc\" it serves in Makefiles: what `-c` compiles is analysed when the program is linked. "
                                   "Directives in sources: #pragma mend checkpoint | exclude(NAME, ...) | shape(NAME) DIMENSION, ..., and !$mend in Fortran. "
                                   "For a Fortran program the environment's MEND_CC_MPICC names the C compiler of its MPI library (default: the mpicc beside the mpif90).")
    made.add_argument("--report", metavar="FILE", nargs="?", const="-", help="say what was found, what is registered and why, and what couldn't be seen: on standard error, or in a file (--report=FILE)")
    made.add_argument("--source-only", action="store_true", help="write the sources with the calls added, and compile nothing")
    made.add_argument("-o", dest="directory", metavar="DIR", help="where --source-only writes; without it, what is built, as the compiler's own -o")
    made.add_argument("--keep", metavar="DIR", help="also keep the sources with the calls added there")
    made.add_argument("--check", action="store_true", help="count messages when the program runs, and refuse a checkpoint while one is in transit (slow: for tests)")
    made.add_argument("--poison", action="store_true", help="overwrite in a restart what isn't registered and isn't needed (for tests)")
    made.add_argument("--drop", metavar="NAME", action="append", default=[], help="don't register NAME, though it should be (for tests)")
    made.add_argument("--name", help="the program's name in checkpoints: those of another one are refused (default: the name of the output, and a hash of the sources)")
    made.add_argument("--app", metavar="DIR", help="where `make app` has put libmend-app (default: MEND_APP_HOME; without that, this checkout's target/app, then /usr/local)")
    return made


def main(arguments=None):
    """Exit code of mend-cc."""
    own, words = _split(list(sys.argv[1:] if arguments is None else arguments))
    options = parser().parse_args(own)
    options.words = words
    try:
        return _run(options)
    except (Stop, parse_c.BadDirective) as error:
        _say([str(error)])
    except OSError as error:
        _say([f"{error.filename}: {error.strerror}" if error.filename else str(error)])
    except ImportError as error:
        # What reads Fortran is imported when there is some.
        if (error.name or "").split(".", maxsplit=1)[0] != "fparser":
            raise
        _say([f"{error.name} is missing: pip install libclang fparser"])
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
        command = [*command, *own]
    else:
        command = list(words)
    if not command:
        raise Stop("which compiler? mend-cc mpicc [flags] FILE.c ..., or mend-cc FILE.c ... -- mpicc [flags] (mend-cc --help)")
    if options.directory and not options.source_only:
        # Without --source-only it names what is built.
        given = Line(command[1:]).output
        if given:
            raise Stop(f"-o is given twice: {options.directory}, {given}")
        command += ["-o", options.directory]
    compiler, line = command[:1], Line(command[1:])
    if shutil.which(compiler[0]) is None:
        file = f"; --report={compiler[0]} writes the report to a file" if options.report == "-" else ""
        raise Stop(f"there is no compiler `{compiler[0]}`: the first word is the compiler{file}")
    if any(word in PASSED for word in line.words) or not (line.sources or line.unread or line.objects):
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
            # A test of the compiler may give /dev/null.
            if os.path.isfile(target):
                with open(target + SIDECAR, "w", encoding="utf-8") as file:
                    json.dump({"source": os.path.abspath(source), "flags": line.flags, "directory": os.getcwd(), "compiler": compiler}, file)
        _say([f"{path}: {_unread(path)}: it is compiled as it is" for path in line.unread])
    return code


def _unit(source, flags, directory, compiler):
    return {"source": os.path.abspath(source), "flags": flags, "directory": directory, "compiler": compiler}


def _unread(path):
    """Why a source isn't one that can be read, or None."""
    ending = os.path.splitext(path)[1]
    return next((f"{language} isn't read" for language, endings in UNREAD.items() if ending in endings), None)


def _say(lines):
    for text in lines:
        print(f"mend-cc: {text}", file=sys.stderr)


def _as_it_is(options, compiler, line, why):
    """What can't have checkpoints is built all the same; people learn why."""
    _say(why)
    if options.source_only:
        _say(["so no sources are written"])
        return 1
    _say(["the program is compiled as it is, without checkpoints"])
    return subprocess.run([*compiler, *line.words], check=False).returncode


def _units(compiler, line):
    """Sources of a link, objects that have none, and what people must know of both."""
    units, plain, known = [], [], [f"{path}: {_unread(path)}: what is in it can't be seen" for path in line.unread]
    for source in line.sources:
        if not os.path.exists(source):
            raise Stop(f"there is no file {source}")
        units.append(_unit(source, line.flags, os.getcwd(), compiler))
    for item in line.objects:
        try:
            with open(item + SIDECAR, encoding="utf-8") as file:
                note = json.load(file)
                units.append({**_unit(note["source"], note["flags"], note["directory"], note["compiler"]), "object": item})
        except FileNotFoundError:
            known.append(f"{item} wasn't compiled by mend-cc (there is no note {item}{SIDECAR}): what is in it can't be seen")
            plain.append(item)
        except (ValueError, KeyError, TypeError):
            known.append(f"the note {item}{SIDECAR} can't be read: compile {item} again; what is in it can't be seen")
            plain.append(item)
    return units, plain, known


def _link(options, compiler, line):
    units, plain, known = _units(compiler, line)
    fortran = [unit for unit in units if is_fortran(unit["source"])]
    gone = [f"{unit['object']}: its source {unit['source']} is gone (the note {unit['object']}{SIDECAR} names it): compile it again" for unit in units if not os.path.exists(unit["source"])]
    if gone or not units:
        return _as_it_is(options, compiler, line, known + gone)
    if fortran and len(fortran) < len(units):
        return _as_it_is(options, compiler, line, [*known, "C and Fortran in one program can't be analysed together"])
    _say(known)
    with tempfile.TemporaryDirectory(prefix="mend-cc-") as room:
        try:
            units = _by_modules(units) if fortran else units
            more = [] if fortran else parse_c.compiler_flags(compiler)
            flags = for_compiling if fortran else lambda unit: [*Line(unit["flags"]).for_clang(), *_relative(unit), *more]
            found = analyse([(unit["source"], flags(unit)) for unit in units], options.drop)
        except parse_c.CannotParse as error:
            return _as_it_is(options, compiler, line, [str(error), "this can't be analysed"])
        program = found.program
        name = options.name or f"{os.path.basename(line.output or 'a.out')}, sources {identity(units)}"
        texts = None
        if found.plan.points:
            try:
                rewriter = (FortranRewriter if fortran else Rewriter)(program, found.memory, found.plan, options.poison, name)
                texts = rewriter.run()
                _say(rewriter.warnings())
                if options.report != "-":
                    _say(f"safe point {point.number}: {warning}" for point in found.plan.points for warning in point.warnings)
            except Refused as refusal:
                found.plan.refused.append((None, str(refusal)))
        _report(options, found)
        if texts is None:
            why = [f"{place}: {reason}" if place else reason for place, reason in found.plan.refused] + [f"{stmt.place}: {reason}" for stmt, _, reason in found.plan.considered]
            return _as_it_is(options, compiler, line, ["no place for checkpoints", *why])
        if options.source_only or options.keep:
            write(options.directory if options.source_only else options.keep, texts)
        if options.source_only:
            return 0
        return build(options, compiler, line, units, texts, plain, room)


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
            raise parse_c.CannotParse("the modules of these sources use each other in a circle: " + ", ".join(unit["source"] for unit in left))
        ordered.append(ready[0])
        left.remove(ready[0])
    return ordered


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
        try:
            with open(options.report, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise Stop(f"the report can't be written to {options.report}: {error.strerror}: give another file") from None
