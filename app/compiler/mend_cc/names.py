"""What registered things are called in checkpoints, and how C names them where they are registered."""

from .ir import Variable, is_plain, named
from .memory import Heap
from .plan import ALL, Refused

INTEGERS = {1: "8", 2: "16", 4: "32", 8: "64"}


def app_type(kind):
    """libmend-app's name for a scalar type, or None: it has pointers or is none."""
    if kind.kind == "int":
        return f"MEND_APP_INT{INTEGERS[kind.size]}" if kind.size in INTEGERS else None
    if kind.kind == "uint":
        return f"MEND_APP_UINT{INTEGERS[kind.size]}" if kind.size in INTEGERS else None
    if kind.kind == "float":
        return "MEND_APP_LONG_DOUBLE" if kind.name == "long double" else {4: "MEND_APP_FLOAT", 8: "MEND_APP_DOUBLE"}.get(kind.size)
    if kind.kind == "complex":
        return {8: "MEND_APP_COMPLEX_FLOAT", 16: "MEND_APP_COMPLEX_DOUBLE"}.get(kind.size)
    if kind.kind == "pointer":
        return "MEND_APP_POINTER"
    if kind.kind == "struct" and is_plain(kind):
        return "MEND_APP_BYTES"
    return None


def element_bytes(kind):
    """Bytes of a scalar or a structure."""
    return kind.scalar().size


def extents(kind):
    """Dimensions of an array of arrays."""
    found = []
    while kind.kind == "array":
        found.append(kind.count)
        kind = kind.element
    return found


def fields(kind, wanted=ALL, before="", base=0):
    """(name, offset, type, count) of the scalar fields of a structure that `wanted` leads to, or ends in. Refused: one can't be registered."""
    found = []
    for name, part, offset in kind.fields:
        below = frozenset(path[1:] for path in wanted if path[:1] in ((), (name,)))
        if not below:
            continue
        scalar, count = part.scalar(), 1
        for extent in extents(part):
            count *= extent or 0
        if scalar.kind == "struct" and scalar.fields and not is_plain(scalar) and count == 1:
            found += fields(scalar, below, f"{before}{name}." if named((name,)) else before, base + offset)
            continue
        known = app_type(scalar)
        if scalar.name == "bit-field":
            raise Refused(f"field {before}{name} of a structure with pointers can't be registered (a bit-field)")
        if known is None or scalar.kind == "opaque" or not count:
            raise Refused(f"field {before}{name} of a structure can't be registered ({scalar.name or scalar.kind})")
        found.append((f"{before}{name}", base + offset, known, count * scalar.size if known == "MEND_APP_BYTES" else count))
    return found


def label(program, point):
    """The name of a point's own context: "solve loop 1"."""
    function = program.functions[point.function]
    if point.loop is None:
        return f"{function.source} line {point.stmt.place.line}"
    loops = [one for one in function.body.walk() if one.kind == "loop"]
    text = f"{function.source} loop {loops.index(point.loop) + 1}"
    return text if point.stmt is point.loop.parts[0] or point.stmt in point.loop.parts[0].parts else f"{text} line {point.stmt.place.line}"


def path(program, point):
    """Its contexts, as libmend-app has them."""
    return "/".join([*(program.functions[caller].source for caller, _, _ in point.chain), label(program, point)])


def item_names(point):
    """Item -> its name in the checkpoint, unique within its level."""
    taken, found = set(), {}
    for item in sorted(point.items, key=lambda one: isinstance(one.place[0], Heap)):
        thing = item.place[0]
        first = thing.name if isinstance(thing, Variable) else (thing.name or f"block {thing.number}")
        wanted = ".".join((first, *named(item.place[1]))) if isinstance(thing, Variable) else first
        name, number = wanted, 2
        level = len(point.chain) if item.level == -1 else item.level
        while (level, name) in taken:
            # "u 2" is the second block of a place that has the name "u".
            more = f"{wanted} place {number}" if isinstance(thing, Heap) else f"{wanted} {number}"
            name = f"{wanted} data" if isinstance(thing, Heap) and (level, f"{wanted} data") not in taken else more
            number += 1
        taken.add((level, name))
        found[item] = name
    return found


def visible(function, variable, offset):
    """Whether its name means this variable at an offset of the function's file."""
    best = None
    for other in function.variables:
        if other.name == variable.name and other.scope in ("local", "param", "static") and other.block and other.block[0] <= offset < other.block[1]:
            if (other.scope == "param" or other.place.start < offset) and (best is None or other.block[0] >= best.block[0]):
                best = other
    return best is variable if variable.function else best is None
