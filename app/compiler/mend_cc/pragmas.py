"""What lines of OpenMP and OpenACC say of the code and the variables after them: several threads run it, a device has data."""

import re

from .ir import Place

PRAGMA = re.compile(rb"^[ \t]*#[ \t]*pragma[ \t]+((?:[^\n\\]|\\\r?\n|\\.)*)", re.M)
COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.S)
# Their constructs whose statement several threads, or lanes, run.
THREADS = {"omp": {"parallel", "target", "teams", "simd", "loop"}, "acc": {"parallel", "kernels", "serial", "loop"}}


def lines(text):
    """(start, end, words) of each #pragma, with the lines that go on from it."""
    for match in PRAGMA.finditer(text):
        said = match.group(1).replace(b"\\\r\n", b" ").replace(b"\\\n", b" ").decode(errors="replace")
        yield match.start(), match.end(), re.findall(r"\w+|\([^)]*\)", said)


def front(text, offset):
    """Where code can be inserted before a statement: what #pragma lines right above it say, as they stand or within a condition, is of the statement that follows them."""
    begin = text.rfind(b"\n", 0, offset) + 1
    above = COMMENT.sub(lambda one: re.sub(rb"[^\n]", b" ", one.group()), text[:offset])
    found, depth, seen = offset, 0, False
    if above[begin:].strip():
        return offset
    for line in reversed(list(re.finditer(rb"(?:[^\n\\]|\\\r?\n|\\.)*\n", above[:begin]))):
        said = re.match(rb"\s*#\s*(\w+)\s*(\w*)", line.group())
        if not line.group().strip():
            continue
        if not said or said.group(1) not in (b"pragma", b"if", b"ifdef", b"ifndef", b"elif", b"else", b"endif"):
            break
        depth += (said.group(1) == b"endif") - said.group(1).startswith(b"if")
        if depth < 0 or (depth == 0 and said.group(1).startswith(b"el")):
            break
        seen = seen or (said.group(1) == b"pragma" and said.group(2) != b"mend")
        if seen and depth == 0 and said.group(2) != b"mend":
            found = line.start() + line.group().index(b"#")
    return found


def read(program, path, text, variables):
    """Takes them in, when the file's functions are known."""
    places = sorted({(stmt.place.start, -stmt.place.end) for function in program.functions.values() for stmt in function.body.walk() if stmt.place.file == path})
    own = [one for one in variables if one.place.file == path and one.scope in ("global", "static")]
    declaring = None
    for start, end, words in lines(text):
        if words[:1] not in (["omp"], ["acc"]):
            continue
        kind, said = words[0], [word for word in words[1:] if not word.startswith("(")]
        listed = set(re.findall(r"\w+", " ".join(word for word in words if word.startswith("("))))
        here = Place(path, text.count(b"\n", 0, start) + 1, start, end)
        if said[:1] == ["threadprivate"]:
            program.copied.update({one: "threads have copies of" for one in own if one.name in listed})
        elif kind == "omp" and (said[:2] == ["declare", "target"] or said[:3] == ["begin", "declare", "target"]):
            program.copied.update({one: "a device has a copy of" for one in own if one.name in listed})
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


def _region(places, path, end, regions):
    """The statement after a line."""
    after = next((place for place in places if place[0] >= end), None)
    if after is not None:
        regions.append((path, after[0], -after[1]))
