"""The text of Fortran sources as it is compiled: what the preprocessor leaves of it, and lines of included files."""

import io
import os
import re

from fparser.common.readfortran import FortranFileReader
from fparser.common.sourceinfo import FortranFormat

from .build import pairs
from .parse_c import CannotParse

TOKEN = re.compile(r"\s*(?:(0[xX][\da-fA-F]+|\d+)[uUlL]*\b|([A-Za-z_]\w*)|(&&|\|\||[=!<>]=|[-+*/%!<>()]))")
LEVELS = (("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
# They are there, or not, by the compiler and the machine.
COMPILERS = {"linux", "unix", "i386"}


class Source(FortranFileReader):
    """Reads one source. `at` of a reader: the line of the source that includes its file, or None: it is the source's own."""

    at = _inner = None

    @property
    def reader(self):
        """The reader of what is included here, while there is one."""
        return self._inner

    @reader.setter
    def reader(self, inner):
        self._inner = inner
        if inner is not None:
            # fparser makes it; it must know where it is, also for what it includes.
            inner.__class__ = Source
            inner.at = self.linecount if self.at is None else self.at
            inner.set_format(FortranFormat(True, False))


def directories(path, flags):
    """Where included files are looked for. MPI's own file, which names constants, isn't one of them."""
    named = [pair[1] if len(pair) == 2 else pair[0][2:] for pair in pairs(flags) if pair[0].startswith("-I")]
    return [one for one in (os.path.dirname(path) or ".", *named) if not os.path.exists(os.path.join(one, "mpif.h"))]


def reader(path, text, flags):
    """What fparser reads a source by."""
    file = io.StringIO(text.decode(errors="replace"))
    file.name = path
    made = Source(file, include_dirs=directories(path, flags), ignore_comments=True)
    made.set_format(FortranFormat(True, False))
    return made


def span(item):
    """(first, last line of the source, whether the text is an included file's)."""
    at = item.reader.at
    return (*item.span, False) if at is None else (at, at, True)


def compiled_text(path, text, flags):
    """A source's text with empty lines where the preprocessor leaves none, so that all others stay where they are."""
    switches = {pair[0] for pair in pairs(flags)}
    wanted = os.path.splitext(path)[1][1:2] == "F" or switches & {"-cpp", "-fpp"}
    return Preprocessor(path, flags, wanted and "-nocpp" not in switches).run(text)


class Preprocessor:
    """Directives that decide which lines there are. `macros`: name -> its text; None: it has arguments, or a text that isn't understood."""

    def __init__(self, path, flags, wanted):
        self.path, self.wanted, self.macros, self.line = path, wanted, {}, 0
        self.absent, self.left, self.within = set(), [], ()
        for pair in pairs(flags):
            word = pair[1] if len(pair) == 2 else pair[0][2:]
            if pair[0].startswith("-D"):
                name, _, value = word.partition("=")
                self.macros[re.match(r"\w*", name).group()] = (value if "=" in word else "1") if re.fullmatch(r"\w+", name) else None
            elif pair[0].startswith("-U"):
                self.undefine(word)
            elif pair[0].startswith("-fopenmp"):
                self.macros["_OPENMP"] = "201511"

    def undefine(self, name):
        self.macros.pop(name, None)
        self.absent.add(name)

    def fail(self, why):
        raise CannotParse(f"{self.path}:{self.line}: {why}")

    def run(self, text):
        """The lines that are compiled; others are empty."""
        lines, made, open_, at = text.split(b"\n"), [], [], 0
        while at < len(lines):
            self.line, last = at + 1, at
            active = all(state == "on" for state in open_)
            if not lines[at].startswith(b"#"):
                if active and self.wanted:
                    self.plain(lines[at].decode(errors="replace"))
                made.append(lines[at] if active else b"")
                at += 1
                continue
            if not self.wanted:
                self.fail("a line for the preprocessor, which this source doesn't pass")
            while lines[last].rstrip().endswith(b"\\") and last + 1 < len(lines):
                last += 1
            whole = b" ".join(line.rstrip().removesuffix(b"\\") for line in lines[at:last + 1]).decode(errors="replace")
            match = re.match(r"#\s*(\w*)\s*(.*)", re.sub(r"/\*.*?\*/", " ", whole))
            self.directive(match.group(1), match.group(2).strip(), open_, active)
            made += [b""] * (last + 1 - at)
            at = last + 1
        if open_:
            self.fail("an #if without its #endif")
        return b"\n".join(made)

    def directive(self, word, rest, open_, active):
        """`open_`: on, off (another branch may come), or done, of each condition around."""
        if word in ("if", "ifdef", "ifndef"):
            # Within what isn't compiled nothing is evaluated.
            holds = active and (self.holds(rest) if word == "if" else self.defined(rest) == (word == "ifdef"))
            open_.append("on" if holds else "off" if active else "done")
        elif word in ("elif", "else", "endif") and not open_:
            self.fail(f"#{word} without an #if")
        elif word == "endif":
            open_.pop()
        elif word in ("elif", "else"):
            reached = open_[-1] == "off" and all(state == "on" for state in open_[:-1])
            open_[-1] = "done" if open_[-1] != "off" else "on" if reached and (word == "else" or self.holds(rest)) else "off"
        elif active and word == "define":
            name, more, value = re.match(r"(\w*)(\(?)(.*)", rest).groups()
            self.macros[name] = None if more else value.strip()
        elif active and word == "undef":
            self.undefine(rest)
        elif active and word not in ("", "pragma", "warning"):
            self.fail(f"the preprocessor's #{word} isn't understood")

    def plain(self, line):
        """A line that is compiled must be as it stands."""
        code = re.sub(r"'[^']*'|\"[^\"]*\"|!.*", " ", line)
        if "/*" in code:
            self.fail("a comment that the preprocessor takes away")
        for name in re.findall(r"(?<!\w)[A-Za-z_]\w*", code):
            if name in self.macros or name.startswith("__") or name in COMPILERS:
                self.fail(f"the preprocessor replaces {name}: make it a named constant")

    def known(self, name):
        if name not in self.macros and name not in self.absent and name != "_OPENMP" and (name.startswith("_") or name in COMPILERS):
            self.fail(f"whether there is {name} depends on the compiler: -D{name} or -U{name} is expected")

    def defined(self, rest):
        match = re.match(r"[A-Za-z_]\w*", rest)
        if match is None:
            self.fail("a name is expected here")
        self.known(match.group())
        return match.group() in self.macros

    def holds(self, text):
        """Whether a condition is met."""
        self.left = self.tokens(text)
        value = self.operation(0)
        if self.left:
            self.fail(f"the preprocessor's condition isn't understood ({text})")
        return value != 0

    def tokens(self, text):
        found, at = [], 0
        while text[at:].strip():
            match = TOKEN.match(text, at)
            if match is None:
                self.fail(f"the preprocessor's condition isn't understood ({text})")
            found.append(match.group().strip())
            at = match.end()
        return found

    def operation(self, level):
        if level == len(LEVELS):
            return self.operand()
        value = self.operation(level + 1)
        while self.left and self.left[0] in LEVELS[level]:
            operator, other = self.left.pop(0), self.operation(level + 1)
            if operator in ("/", "%") and other == 0:
                self.fail("a division by zero")
            value = {
                "||": lambda a, b: int(bool(a or b)), "&&": lambda a, b: int(bool(a and b)), "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b), "<": lambda a, b: int(a < b),
                "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b), ">=": lambda a, b: int(a >= b), "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
                "/": lambda a, b: abs(a) // abs(b) * (1 if a * b >= 0 else -1), "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
            }[operator](value, other)
        return value

    def operand(self):
        word = self.left.pop(0) if self.left else ""
        if word in ("!", "-", "+"):
            value = self.operand()
            return int(value == 0) if word == "!" else -value if word == "-" else value
        if word == "(":
            value = self.operation(0)
            if not self.left or self.left.pop(0) != ")":
                self.fail("a parenthesis is missing")
            return value
        if re.fullmatch(r"0[xX][\da-fA-F]+|0[0-7]*|[1-9]\d*", word.rstrip("uUlL")):
            digits = word.rstrip("uUlL")
            return int(digits, 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10)
        if word == "defined":
            paired = self.left[:1] == ["("]
            name = self.left.pop(1 if paired else 0) if len(self.left) > paired else ""
            if paired and self.left[:2] != ["(", ")"]:
                self.fail("a parenthesis is missing")
            del self.left[:2 if paired else 0]
            return int(self.defined(name))
        if not re.match(r"[A-Za-z_]", word):
            self.fail("the preprocessor's condition isn't understood")
        self.known(word)
        return self.value(word) if word in self.macros and word not in self.within else 0

    def value(self, name):
        """Of a macro whose text is one operand: more would mix with what stands around it."""
        if self.macros[name] is None or self.left[:1] == ["("]:
            self.fail(f"the preprocessor's {name} has arguments")
        rest, within = self.left, self.within
        self.left, self.within = self.tokens(self.macros[name]), (*within, name)
        value = self.operand()
        if self.left:
            self.fail(f"the preprocessor's {name} isn't one number")
        self.left, self.within = rest, within
        return value
