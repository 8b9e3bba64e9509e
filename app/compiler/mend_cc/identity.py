"""What tells sources from others: a hash of them, of what they include of the user's own, and of macros of the command line. Comments, white space and names of files don't count."""

import hashlib
import os
import re

from .analyse import is_fortran
from .build import pairs

DIGITS = 12
# Other MPI libraries have others.
OF_MPI = {"mpi.h", "mpif.h"}
C_TOKEN = re.compile(r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<line>^[ \t]*\#)|(?P<end>\n)|(?P<blank>[^\S\n]+)
    |\w+|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|.""", re.X | re.S | re.M)
FORTRAN_TOKEN = re.compile(r"""(?P<text>"(?:""|[^"\n])*"|'(?:''|[^'\n])*')|(?P<more>&[ \t]*(?:![^\n]*)?\n(?:[ \t]*(?:!(?!\$[ \t])[^\n]*)?\n)*(?:[ \t]*&)?)|(?P<threads>^[ \t]*!\$[ \t])
    |(?P<comment>![^\n]*)|(?P<end>[\n;])|(?P<blank>[^\S\n]+)|\w+|\*\*|//|==|/=|<=|>=|=>|::|.""", re.X | re.S | re.M)
C_INCLUDE, FORTRAN_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"\n]+)[>"]', re.M), re.compile(r"""^\s*\#?\s*include\s*['"]([^'"\n]+)['"]""", re.M | re.I)


def identity(units):
    """Hexadecimal digits for all sources of a program."""
    found = set()
    for unit in units:
        given = list(pairs(unit["flags"]))
        macros = sorted("".join(pair) for pair in given if pair[0].startswith(("-D", "-U")))
        directories = [os.path.join(unit["directory"], pair[1] if len(pair) == 2 else pair[0][2:]) for pair in given if pair[0].startswith("-I")]
        ahead = [os.path.join(unit["directory"], pair[1]) for pair in given if pair[0] == "-include" and len(pair) == 2]
        fortran, left, seen = is_fortran(unit["source"]), [unit["source"], *ahead], set()
        while left:
            path = os.path.realpath(left.pop())
            if path in seen or not os.path.isfile(path):
                continue
            seen.add(path)
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read().replace("\r\n", "\n")
            found.add(hashlib.sha256("\0".join([*macros, "", *_tokens(text, fortran)]).encode()).hexdigest())
            for name in (FORTRAN_INCLUDE if fortran else C_INCLUDE).findall(text):
                if os.path.basename(name) not in OF_MPI:
                    left += [os.path.join(directory, name) for directory in (os.path.dirname(path), *directories)]
    return hashlib.sha256("".join(sorted(found)).encode()).hexdigest()[:DIGITS]


def _tokens(text, fortran):
    """The words and signs of a source. In Fortran lines end statements, and large letters are small ones; in C lines end what the preprocessor is told, where blanks count."""
    told, begun, gap = False, False, ""
    for match in (FORTRAN_TOKEN if fortran else C_TOKEN).finditer(text if fortran else text.replace("\\\n", "")):
        kind, token = match.lastgroup, match.group()
        if kind == "line":
            told, token = True, "#"
        elif kind in ("comment", "blank", "more"):
            token = " " if told else ""
        elif kind == "end":
            token, told = "\n" if told or fortran else "", False
        elif kind == "threads":
            # What compilers for threads take for a statement.
            token = "!$"
        elif fortran and kind != "text":
            token = token.lower()
        if token.isspace():
            # A blank at a line's end doesn't count.
            gap = "\n" if "\n" in (gap, token) else token
        elif token:
            if gap and begun:
                yield gap
            begun, gap = True, ""
            yield token
