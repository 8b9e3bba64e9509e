"""What sections of arrays are counted from: objects, and what pointers lead to whose value isn't known. Integers as polynomials."""

from .alone import elements
from .externals import ALLOCATE
from .ir import Expr, Variable
from .memory import Heap, Mark
from .polynomials import constant, key_of, plus, times
from .running import wide


class Unclear(Exception):
    """This can't be told here."""


def row(kind):
    """How many elements a row of an array has, as a polynomial, or None."""
    count = elements(kind)
    return None if count is None else constant(count)


class Bases:
    """The part of Walk that knows them."""

    # ---- polynomials ----

    def symbol(self, place):
        return (place, self.versions.get(place, 0))

    def poly(self, expr):
        """An integer expression as a polynomial, or None."""
        if expr.op == "const":
            return constant(expr.value) if isinstance(expr.value, int) else None
        if expr.op in ("var", "member", "deref") and expr.type and expr.type.kind in ("int", "uint"):
            place = self.alone(expr)
            if place is None:
                return None
            return self.numbers[place] if place in self.numbers else {(self.symbol(place),): 1}
        if expr.op == "cast":
            return self.poly(expr.args[0]) if wide(expr.type) else None
        if expr.op == "unary" and expr.value in "+-":
            inner = self.poly(expr.args[0])
            return inner if expr.value == "+" else plus({}, inner, -1)
        if expr.op == "binary" and expr.value in ("+", "-", "*"):
            one, other = self.poly(expr.args[0]), self.poly(expr.args[1])
            return times(one, other) if expr.value == "*" else plus(one, other, 1 if expr.value == "+" else -1)
        if expr.op == "binary" and expr.value in ("/", "%", ">>"):
            # Not a polynomial: a symbol of its own.
            one, other = self.poly(expr.args[0]), self.poly(expr.args[1])
            if one is not None and other is not None:
                return {((expr.value, key_of(one), key_of(other)),): 1}
        return None

    def subscript(self, expr):
        """The value of a subscript that is evaluated by now, with what it counts."""
        if expr.op == "cast" and wide(expr.type):
            return self.subscript(expr.args[0])
        if expr.op != "step" or not wide(expr.type):
            return self.poly(expr)
        step, is_new = expr.value
        return plus(self.poly(expr.args[0]), constant(0 if is_new else step), -1)

    def alone(self, expr):
        """The location that an expression names where no other memory has it as well, or None: a field of an array's structures is one location for all of them."""
        places = self.memory.places(expr)
        if len(places) != 1:
            return None
        (place,) = places
        kind = self.single.type(place)
        return None if kind is None or kind.kind == "array" or kind.name.startswith("union ") else place

    # ---- pointers and elements ----

    def pointer(self, expr):
        """(base, offset in elements) of a pointer's value. Unclear: it isn't known."""
        if expr.op == "cast":
            return self.pointer(expr.args[0])
        if expr.op == "addr":
            return self.element(expr.args[0])
        if expr.op == "binary" and expr.value in "+-" and expr.args[0].type and expr.args[0].type.kind == "pointer":
            base, offset = self.pointer(expr.args[0])
            kind = expr.args[0].type.element
            self.check_unit(base, kind)
            moved = plus(offset, times(self.poly(expr.args[1]), row(kind)), 1 if expr.value == "+" else -1)
            if moved is None:
                raise Unclear
            return base, moved
        if expr.op in ("var", "member", "deref"):
            places, alone = self.memory.places(expr), self.alone(expr)
            if alone in self.pointers:
                return self.pointers[alone]
            target = self._object(next(iter(places))) if len(places) == 1 else None
            if target is not None:
                return ("object", target), {}
            if alone is not None and isinstance(alone[0], Variable):
                return ("start", alone, self.versions.get(alone, 0)), {}
        if expr.op == "index" and expr.type and expr.type.kind == "pointer":
            # A row of an array of pointers, as long as none of them changes.
            base, offset = self.element(expr)
            versions = tuple(sorted((self.symbol(place) for place in self.memory.places(expr)), key=repr))
            return ("row", base, key_of(offset), expr.type.element.scalar().size, versions), {}
        raise Unclear

    def element(self, expr):
        """(base, offset) of an element."""
        if expr.op == "index":
            subscript = self.subscript(expr.args[1])
            inner = expr.args[0]
            base, offset = self.element(inner) if inner.type and inner.type.kind == "array" else self.pointer(inner)
            self.check_unit(base, expr.type)
            found = plus(offset, times(subscript, row(expr.type)))
            if found is None:
                raise Unclear
            return base, found
        if expr.op == "deref":
            base, offset = self.pointer(expr.args[0])
            self.check_unit(base, expr.type)
            return base, offset
        if expr.op == "cast":
            return self.element(expr.args[0])
        if expr.op in ("var", "member"):
            places = self.memory.places(expr)
            if len(places) == 1:
                (place,) = places
                if expr.op == "var" or self._single(expr) or self.single.type(place) is not None:
                    base = ("object", place)
                    self.check_unit(base, expr.type)
                    return base, {}
        raise Unclear

    def base(self, expr, pointer=False):
        """What an element is counted from though it isn't known which one it is, or what a pointer leads into; None: not even that is known."""
        while not pointer and expr.op in ("index", "deref", "member", "cast") and expr.args:
            pointer = expr.op == "deref" or (expr.op == "index" and not (expr.args[0].type and expr.args[0].type.kind == "array"))
            expr = expr.args[0]
        while expr.op == "cast" or (expr.op == "binary" and expr.value in ("+", "-") and expr.args[0].type and expr.args[0].type.kind == "pointer"):
            expr = expr.args[0]
        try:
            return self.pointer(expr)[0] if pointer else None
        except Unclear:
            return self.base(expr.args[0]) if expr.op == "addr" else None

    @staticmethod
    def _single(expr):
        while expr.op == "member":
            expr = expr.args[0]
        return expr.op == "var"

    def check_unit(self, base, kind):
        """Unclear: elements of this type aren't what offsets from the base are counted in, as where a pointer was cast, or in a union."""
        if base[0] == "row":
            unit = base[3]
        else:
            found = self.memory.type_at(base[1])
            found = found.scalar() if found is not None else None
            if base[0] != "object" and found is not None:
                found = found.element
            unit = found.scalar().size if found is not None else None
        if kind is None or kind.scalar().size != unit:
            raise Unclear

    # ---- arrays as wholes ----

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

    # ---- pointers that always lead to the start of one block ----

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
            called = self.memory.callees(source)
            # What a function that is looked at already returns is among what it returns.
            own = [name for name in called if name in self.program.functions and name not in seen]
            results = [stmt.expr for name in own for stmt in self.program.functions[name].body.walk() if stmt.kind == "return" and stmt.expr is not None]
            return all(name in ALLOCATE or name in self.program.functions for name in called) and all(self._starts_at(one, seen.union(own)) for one in results)
        if source.op == "const":
            return True
        if source.op == "cond":
            return all(self._starts_at(one, seen) for one in source.args[1:])
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
        if isinstance(target[0], Mark) or (isinstance(target[0], Heap) and target[0] not in self.single.once):
            return None
        return target
