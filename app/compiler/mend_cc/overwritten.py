"""Blocks of memory of which a part is overwritten after a place before anything reads it, as where two arrays change places by their pointers: of such a block only the rest is saved.

Which block it is only the run knows: the one that a pointer leads to at the place. Sections that are written through this pointer on every way from the place to the end of the
pass are known; so are the pointers by which something is read on the way. Where these lead to other blocks, as the run finds, nothing needs what stands in the sections."""

from dataclasses import dataclass

from . import names
from .directives import shape_of
from .ir import Variable, named
from .memory import Heap


@dataclass
class Overwritten:
    """What `pointer` leads to at a place: its sections, but where one of `others` leads to the same block."""

    pointer: tuple
    sections: list
    others: list
    heaps: set
    remade: bool  # what no pass writes is made again by a restart


def overwritten(program, memory, point):
    """All of a place."""
    if point.walk is None or program.language != "c":
        return []
    found = _Finder(program, memory, point)
    pointers = dict.fromkeys(section.base[1] for section in found.sections)
    return [made for pointer in pointers if (made := found.of(pointer)) is not None]


class _Finder:
    def __init__(self, program, memory, point):
        self.program, self.memory, self.point = program, memory, point
        lasting, self.reads = point.walk.straight
        self.sections = [one for one in lasting if self._is_known(one)]

    def of(self, pointer):
        """What a pointer leads to, or None."""
        heaps = {thing for thing, _ in self.memory.content.get(pointer, ()) if isinstance(thing, Heap)}
        sections = [one for one in self.sections if one.base[1] == pointer]
        others = {}
        for base, things, written in self.reads:
            if things & heaps and not all(any(other.covers(one) for other in written) for one in sections):
                if base is None or base[1] == pointer or not self._is_pointer_now(base):
                    return None
                others[base[1]] = None
        if not heaps or not all(self._is_plain(heap) and self._is_unit(pointer, heap) for heap in heaps) or not self._by_starts(heaps):
            return None
        remade = not any((heap, ()) in self.point.unmade for heap in heaps)
        return Overwritten(pointer, sections, list(others), heaps, remade)

    def _is_known(self, section):
        """Whether it is counted from what a pointer leads to at the place, by numbers that don't change."""
        return self._is_pointer_now(section.base) and all(len(one) == 2 and isinstance(one[0], tuple) and one[1] == 0 and self._has_name(one[0]) and self._is_made_again(one[0]) for one in section.used())

    def _is_made_again(self, place):
        """Whether a restart has its value before it restores anything."""
        restored = any(item.place[0] is place[0] and item.place[1] == place[1][:len(item.place[1])] for item in self.point.items)
        return not restored and place not in self.point.changed | self.point.unmade

    def _is_unit(self, pointer, heap):
        """Whether sections that are counted from a pointer are counted in a block's elements."""
        return self.memory.type_at(pointer).element.scalar().size == heap.type.scalar().size

    def _is_pointer_now(self, base):
        return base[0] == "start" and base[2] == 0 and self._has_name(base[1])

    def _has_name(self, place):
        """Whether it can be named at the place."""
        thing, path = place
        stmt, function = self.point.stmt, self.program.functions[self.point.function]
        if not isinstance(thing, Variable) or not thing.addressable or not names.visible(function, thing, stmt.place.start):
            return False
        if thing.function is None and (thing.place.file != stmt.place.file or thing.place.start > stmt.place.start):
            return False
        return thing.function in (None, self.point.function) and thing.type.kind != "array" and named(path) == path

    def _is_plain(self, heap):
        """Whether its blocks are registered as arrays of numbers, by each rank."""
        item = next((one for one in self.point.items if one.place[0] is heap), None)
        known = names.app_type(heap.type.scalar()) if item is not None else None
        shaped = any(one.kind == "shape" and shape_of(one.text)[0] == heap.name for one in self.program.directives)
        return known not in (None, "MEND_APP_BYTES", "MEND_APP_POINTER") and (heap, ()) not in self.point.replicated and not shaped

    def _by_starts(self, heaps):
        """Whether all registered pointers to such blocks lead to their starts: of a block that is saved in part no other element has an address in the checkpoint."""
        leaves = {leaf for item in self.point.items for leaf in self.memory.leaves((item.place[0], ()))}
        return all(self.point.walk.from_start(leaf) for leaf in leaves if any(thing in heaps for thing, _ in self.memory.content.get(leaf, ())))


def name(place):
    """As C names it."""
    return ".".join((place[0].name, *place[1]))


def _number(poly):
    """A polynomial as C computes it."""
    terms = []
    for key, number in sorted(poly.items(), key=repr):
        factors = [f"(int64_t){name(place)}" for place, _ in key]
        terms.append(" * ".join([*factors, *([str(number)] if number != 1 or not factors else [])]))
    return " + ".join(terms) or "0"


def call(one):
    """The call that tells the run."""
    heap = next(iter(one.heaps))
    numbers = []
    for section in one.sections:
        numbers += [str(len(section.ranges)), _number(section.offset)]
        for coefficient, extent in section.ranges:
            numbers += [_number(coefficient), _number(extent)]
    sites = ", ".join(str(number) for number in sorted(heap.number for heap in one.heaps))
    others = "".join(f"&{name(other)}, " for other in one.others)
    return (f"mend_cc_overwritten(&{name(one.pointer)}, {heap.type.scalar().size}, {int(one.remade)}, (const int[]){{{sites}, 0}}, (const void *const[]){{{others}NULL}}, "
            f"(const int64_t[]){{{', '.join(numbers)}, -1}});")
