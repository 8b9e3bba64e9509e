"""What lines of OpenMP and OpenACC say of the code and the variables after them: several threads run it, a device has data."""

import re

from .ir import Place

PRAGMA = re.compile(rb"^[ \t]*#[ \t]*pragma[ \t]+((?:[^\n\\]|\\\r?\n|\\.)*)", re.M)
# A comment, or a text, in which none begins.
COMMENT = re.compile(rb"//(?:\\\r?\n|[^\n])*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
NEVER = re.compile(rb"#[ \t]*if[ \t]+0[ \t\r]*\n")
# Their constructs whose statement several threads, or lanes, run.
THREADS = {"omp": {"parallel", "target", "teams", "simd", "loop"}, "acc": {"parallel", "kernels", "serial", "loop"}}
# Lines that aren't about the statement after them.
ALONE = {
    "omp": {"declare", "threadprivate", "requires", "begin", "end", "assumes", "allocate", "groupprivate", "barrier", "flush", "taskwait", "taskyield", "cancel", "cancellation", "depobj", "error", "interop", "nothing"},
    "acc": {"declare", "routine", "enter", "exit", "update", "wait", "init", "shutdown", "set", "cache"},
    "GCC": {"diagnostic", "push_options", "pop_options", "optimize", "target", "reset_options", "poison", "system_header", "visibility", "dependency", "warning", "error"},
    "clang": {"diagnostic", "attribute", "section", "assume_nonnull"},
    "STDC": None, "once": None, "pack": None, "message": None, "weak": None, "redefine_extname": None, "push_macro": None, "pop_macro": None, "mend": None,
}
# Options of compilers that heed OpenMP or OpenACC, also as they are told to the analysis.
OPENMP = re.compile(r"-(fopenmp(?!-simd)|fiopenmp|qopenmp(?!-simd)|openmp|mp(=|$)|homp|xopenmp|qsmp|D_OPENMP)")
OPENACC = re.compile(r"-(fopenacc|acc\b|ta=|hacc|D_OPENACC)")


def turned_on(flags):
    """Which of the two a compiler's options turn on."""
    return {name for name, option in (("omp", OPENMP), ("acc", OPENACC)) if any(option.match(flag) for flag in flags)}


def told(flags):
    """The same as definitions: the analysis gets no other options."""
    return [{"omp": "-D_OPENMP=201511", "acc": "-D_OPENACC=201711"}[one] for one in sorted(turned_on(flags))]


def _blank(text):
    return re.sub(rb"[^\n]", b" ", text)


def compiled(text, skipped=()):
    """The text with nothing in the place of comments, and of what conditions leave out: `skipped` are stretches from one's line to that of the next."""
    made, last = [], 0
    for start, end in skipped:
        begun = re.compile(rb"(?:[^\n\\]|\\\r?\n|\\.)*").match(text, start).end()
        over = text.rfind(b"\n", 0, end) + 1
        if last <= begun < over:
            made += [text[last:begun], _blank(text[begun:over])]
            last = over
    return COMMENT.sub(lambda one: one.group() if one.group()[:1] in b"\"'" else _blank(one.group()), b"".join([*made, text[last:]]))


def always(text, skipped):
    """Of stretches that conditions leave out, those that `#if 0` does: where a file is included several times, something else may be left out each time."""
    return [one for one in skipped if NEVER.match(text, one[0])]


def lines(text):
    """(start, end, words) of each #pragma, from its # on, with the lines that go on from it."""
    for match in PRAGMA.finditer(text):
        said = match.group(1).replace(b"\\\r\n", b" ").replace(b"\\\n", b" ").decode(errors="replace")
        yield text.index(b"#", match.start()), match.end(), re.findall(r"\w+|\([^)]*\)", said)


def _alone(words):
    """Whether a line isn't about the statement after it."""
    kind, said = words[0] if words else "once", set(words[1:3])
    alone = ALONE.get(kind, ())
    return alone is None or (words[1:2] and words[1] in alone) or (kind == "omp" and "target" in said and bool(said & {"enter", "exit", "update"}))


def front(above, offset):
    """Where code can be inserted before a statement of a text as it is compiled: what #pragma lines right above it say, as they stand or within a condition, is of the statement that follows them."""
    begin = above.rfind(b"\n", 0, offset) + 1
    found, depth, seen = offset, 0, False
    if above[begin:offset].strip():
        return offset
    # Not all of a long text at once.
    for start, line in _upwards(above, begin):
        said = re.match(rb"\s*#\s*(\w+)\s*(\w*)", line)
        if not line.strip():
            continue
        if not said or said.group(1) not in (b"pragma", b"if", b"ifdef", b"ifndef", b"elif", b"else", b"endif"):
            break
        mend = said.group(1) == b"pragma" and said.group(2) == b"mend"
        if said.group(1) == b"pragma" and not mend and _alone(next(lines(line))[2]):
            break
        depth += (said.group(1) == b"endif") - said.group(1).startswith(b"if")
        if depth < 0 or (depth == 0 and said.group(1).startswith(b"el")):
            break
        seen = seen or (said.group(1) == b"pragma" and not mend)
        if seen and depth == 0 and not mend:
            found = start + line.index(b"#")
    return found


def _upwards(text, end):
    """(start, text) of the lines before an offset, the last one first, each with those that go on from it."""
    while end > 0:
        start = text.rfind(b"\n", 0, end - 1) + 1
        while start > 0 and text.endswith((b"\\\n", b"\\\r\n"), 0, start):
            start = text.rfind(b"\n", 0, start - 1) + 1
        yield start, text[start:end]
        end = start


def read(program, path, text, variables, flags):
    """Takes them in, when the file's functions are known: of a source, or of a file that it includes. `text`: as it is compiled."""
    on = turned_on(flags)
    places = sorted({(stmt.place.start, -stmt.place.end) for function in program.functions.values() for stmt in function.body.walk() if stmt.place.file == path})
    # A variable of all sources may be declared in another file, as well.
    shared = [one for one in variables if one.scope == "global" and not one.file_static]
    own = [one for one in variables if one.place.file == path and one.scope in ("global", "static")]
    declaring = None
    for start, end, words in lines(text):
        if words and not _alone(words):
            _above(program, places, path, text, start, end, words[0] in THREADS)
        if words[:1] not in (["omp"], ["acc"]):
            continue
        kind, said = words[0], [word for word in words[1:] if not word.startswith("(")]
        if kind == "acc" and kind not in on:
            continue
        if kind == "omp" and "target" in said and kind not in on:
            # Without the option there is no device. Threads count all the same.
            if not (THREADS["omp"] - {"target"}) & set(said):
                continue
        listed = set(re.findall(r"\w+", " ".join(word for word in words if word.startswith("("))))
        named = [one for one in {*own, *shared} if one.name in listed]
        here = Place(path, text.count(b"\n", 0, start) + 1, start, end)
        if said[:1] == ["threadprivate"]:
            program.copied.update({one: "threads have copies of" for one in named})
        elif kind == "omp" and (said[:2] == ["declare", "target"] or said[:3] == ["begin", "declare", "target"]):
            program.copied.update({one: "a device has a copy of" for one in named})
            declaring = end if not listed or said[0] == "begin" else declaring
        elif said[:3] == ["end", "declare", "target"]:
            program.copied.update({one: "a device has a copy of" for one in own if declaring is not None and declaring <= one.place.start < start})
            declaring = None
        elif said[:2] == ["enter", "data"] or said[:3] == ["target", "enter", "data"] or (kind == "acc" and said[:1] == ["declare"]):
            program.unbounded = program.unbounded or here
        elif said[:1] in (["declare"], ["begin"], ["end"], ["exit"], ["update"], ["cancel"], ["cancellation"]) or said[1:2] in (["exit"], ["update"]):
            continue
        else:
            data = said[:1] == ["data"] or said[:2] == ["target", "data"]
            if data or THREADS[kind] & set(said):
                _region(places, path, end, program.offloaded if data else program.parallel)


def _after(places, end):
    return next((place for place in places if place[0] >= end), None)


def _region(places, path, end, regions):
    """The statement after a line."""
    after = _after(places, end)
    if after is not None:
        regions.append((path, after[0], -after[1]))


def _above(program, places, path, text, start, end, known):
    """Notes a statement for which there is no place before such a line of its own. `known`: the line is surely about the next one."""
    after = _after(places, end)
    if after is None:
        return
    between = re.sub(rb"^[ \t]*#(?:[^\n\\]|\\\r?\n|\\.)*", b"", text[end:after[0]], flags=re.M)
    if (known or not between.strip()) and front(text, after[0]) > start:
        program.held.add((path, after[0]))
