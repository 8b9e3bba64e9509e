"""Which locations are one place in memory: no part of an array's elements, and no block of many that one call allocates."""

from .externals import ALLOCATE, number
from .memory import Heap


def elements(kind):
    """How many elements there are in a row; 1 of what is no array. None: that isn't known."""
    count = 1
    while kind is not None and kind.kind == "array":
        count = None if count is None or kind.count is None else count * kind.count
        kind = kind.element
    return count


class Alone:
    """Of a program whose memory is known."""

    def __init__(self, program, memory):
        self.program, self.memory = program, memory
        self.once = self._allocated_once()
        self._types = {}

    def type(self, place):
        """The type of a location that is one place in memory, which may be an array, or None."""
        if place not in self._types:
            self._types[place] = self._type(place)
        return self._types[place]

    def _type(self, place):
        thing, path = place
        kind = getattr(thing, "type", None)
        if kind is None or (isinstance(thing, Heap) and not (thing in self.once and _bytes(thing) == kind.size)):
            return None
        for name in path:
            kind = dict((part, below) for part, below, _ in kind.fields).get(name)
            if kind is None:
                return None
        return kind

    def _allocated_once(self):
        """Heaps of one block: allocated outside of loops, in functions that are called from one place outside of loops."""
        callers, looped = {}, set()
        for name, function in self.program.functions.items():
            jumps = any(stmt.kind == "goto" for stmt in function.body.walk())
            inside = {id(expr) for loop in function.body.walk() if loop.kind == "loop" for expr in loop.expressions()}
            for expr in function.body.expressions():
                for part in expr.walk():
                    if part.op == "call":
                        for callee in self.memory.callees(part):
                            callers.setdefault(callee, []).append((name, jumps or id(expr) in inside))
                        if jumps or id(expr) in inside:
                            looped.add(id(part))
        found = set()
        for heap in self.memory.sites:
            name, seen, good = heap.function, set(), id(heap.expr) not in looped
            while good and name != "main":
                sites = callers.get(name, [])
                good = len(sites) == 1 and not sites[0][1] and name not in seen
                seen.add(name)
                name = sites[0][0] if good else name
            if good:
                found.add(heap)
        return found


def _bytes(heap):
    """How many one call allocates, where constants tell, or None."""
    made = 1
    for at in ALLOCATE.get(heap.expr.args[0].value, (len(heap.expr.args),)):
        size = number(heap.expr.args[1 + at]) if 1 + at < len(heap.expr.args) else None
        made = None if made is None or size is None else made * size
    return made
