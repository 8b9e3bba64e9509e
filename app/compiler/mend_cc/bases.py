"""Pointers that always lead to the start of one block: what sections of arrays are counted from."""

from .ir import Expr, Variable
from .memory import Heap, Mark
from .polynomials import constant


class Unclear(Exception):
    """This can't be told here."""


class Bases:
    """The part of Walk that knows them."""

    # An array or a section of it, as Fortran has them in expressions: the subscript names the first element, and for each dimension a step and the last multiple of it.

    @staticmethod
    def _is_section(expr):
        return expr.op == "index" and expr.args[1].op == "opaque" and expr.args[1].value == "a section of an array"

    def first(self, expr):
        """The first element of what is read."""
        return Expr("index", (expr.args[0], expr.args[1].args[0]), None, expr.type, expr.place) if self._is_section(expr) else expr

    def steps(self, expr):
        """The dimensions of what is read, as sections have them."""
        numbers = [self.poly(part) for part in expr.args[1].args[1:]] if self._is_section(expr) else []
        if None in numbers:
            raise Unclear
        return [(step, last) for step, last in zip(numbers[::2], numbers[1::2]) if last not in ({}, constant(0))]

    def from_start(self, place, seen=frozenset()):
        """Whether a pointer at this location always points to the start of an object."""
        if place in self._starts:
            return self._starts[place]
        if place in seen:
            return True
        answer = True
        initial = getattr(place[0], "initial", None)
        if initial is not None:
            answer = self._part_starts_at(place, (place[0], ()), initial, seen | {place})
        for function in self.program.functions.values():
            for expr in function.body.expressions():
                for part in expr.walk():
                    if part.op in ("assign", "step") and place in self.memory.places(part.args[0]):
                        answer &= part.op == "assign" and part.value == "=" and self._starts_at(part.args[1], seen | {place})
                    elif part.op == "assign" and place[1]:
                        # The structure that it is a field of.
                        for whole in self.memory.places(part.args[0]):
                            if whole[0] is place[0] and whole[1] == place[1][:len(whole[1])]:
                                answer &= self._part_starts_at(place, whole, part.args[1], seen | {place})
                    elif part.op == "call" and place[0].__class__ is Variable and place[0].scope == "param":
                        for name in self.memory.callees(part):
                            target = self.program.functions.get(name)
                            if target and place[0] in target.params:
                                at = target.params.index(place[0])
                                answer &= at + 1 < len(part.args) and self._starts_at(part.args[at + 1], seen | {place})
        if not seen:
            self._starts[place] = answer
        return answer

    def _part_starts_at(self, place, whole, source, seen):
        """The same of what a field gets when the structure around it gets a value."""
        kind = self.memory.type_at(whole)
        for name in place[1][len(whole[1]):]:
            names = [field for field, _, _ in kind.fields] if kind is not None else []
            if source.op != "list" or source.value == "unordered" or name not in names:
                return False
            if names.index(name) >= len(source.args):
                return True
            source, kind = source.args[names.index(name)], kind.fields[names.index(name)][1]
        return source.op != "list" and self._starts_at(source, seen)

    def _starts_at(self, source, seen):
        if source.op == "cast":
            return self._starts_at(source.args[0], seen)
        if source.op == "call":
            return all(isinstance(thing, Heap) for thing, _ in self.memory.targets(source)) and all(name not in self.program.functions for name in self.memory.callees(source))
        if source.op == "const":
            return True
        if source.op == "addr" and source.args[0].op == "index" and source.args[0].args[1].value == 0:
            base = source.args[0].args[0]
            return base.op == "var" and base.type.kind == "array"
        if source.op in ("var", "member", "index", "deref"):
            return all(self.from_start(place, seen) for place in self.memory.places(source))
        return False

    def _object(self, place):
        """The object that a pointer at this location always points to the start of, where there is one and it is one block; or None."""
        targets = self.memory.content.get(place, set())
        if len(targets) != 1 or not self.from_start(place):
            return None
        (target,) = targets
        if isinstance(target[0], Mark) or (isinstance(target[0], Heap) and target[0] not in self._once):
            return None
        return target

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
