"""Expressions of all ranks at once: their values, and what evaluating them does to the state of the analysis (lockstep.py)."""

from . import values
from .alone import elements
from .externals import HIDDEN_STATE, MPI, NO_RETURN, PURE, UNREPEATABLE, effects
from .ir import Expr, Variable
from .memory import Heap, Mark
from .values import OTHER, SAME, join, known, put, spread, uniform


class Ends(Exception):
    """The program ends here on the ranks that are looked at."""


class Point:
    """What is known of the place before a statement. `why`: why it isn't safe, or None; `same`: locations with one value on all ranks."""

    __slots__ = ("seen", "why", "same")

    def __init__(self):
        self.seen, self.why, self.same = False, None, None


class Evaluate:
    """The part of Lockstep that evaluates expressions."""

    def _set(self, key, value, state, group):
        old = state.env.get(key)
        state.env[key] = put(old if old is not None else spread(OTHER, self.ranks), value, group)
        state.written.add(key)

    def _slots(self, expr, state, group):
        """Keys of what an expression names, for each a list of index by rank or None; and whether a write there replaces what was there."""
        index = pointers = None
        base = expr
        if base.op == "index" and base.args[0].type and base.args[0].type.kind == "array":
            index = self._rows(self._eval(base.args[1], state, group), expr.type, group)
            base = base.args[0]
            while base.op == "index" and base.args[0].type and base.args[0].type.kind == "array":
                outer = self._rows(self._eval(base.args[1], state, group), base.type, group)
                index = values.binary("+", index, outer, group)
                base = base.args[0]
        if base.op in ("index", "deref"):
            # Of where the pointer leads.
            pointers = self._eval(base.args[0], state, group)
            if base is expr and base.op == "deref" and self._dummy(pointers, group) is not None:
                return [self._dummy(pointers, group)], None, True, True
            inner = self._rows(self._eval(base.args[1], state, group), base.type, group) if base.op == "index" else spread(0, self.ranks)
            index = inner if index is None else values.binary("+", index, inner, group)
        elif base.op == "member":
            self._inside(base.args[0], state, group)
        leaves, kind, whole = self._named(expr)
        single = kind is not None
        array = not single or kind.kind == "array"
        if pointers is not None:
            index = values.binary("+", index, tuple(one[3] if isinstance(one, tuple) and one[0] == "ptr" else SAME if one == SAME else OTHER for one in pointers), group)
            # The pointer must count the array's own elements.
            single = single and expr.type is not None and expr.type.scalar().size == kind.scalar().size and all(pointers[rank][:3] == ("ptr", *leaves[0]) for rank in group if isinstance(pointers[rank], tuple))
        index = index if array else None
        exact = single and array and index is not None and all(isinstance(index[rank], int) for rank in group)
        alike = index is None or uniform(index, group)
        if exact:
            return [leaves[0]], index, True, alike
        return leaves, None, (single and not array) or whole, alike

    def _named(self, expr):
        """(locations, type of the one that is one place in memory, whether it is all of a variable's location) of what an expression names."""
        if expr not in self.named:
            places = self.memory.places(expr)
            leaves = [leaf for place in places for leaf in self.memory.leaves(place)]
            whole = expr.op in ("var", "member") and len(places) == 1 and self.memory.whole(expr) and isinstance(next(iter(places))[0], Variable)
            self.named[expr] = leaves, self.single.type(leaves[0]) if len(leaves) == 1 else None, whole
        return self.named[expr]

    def _rows(self, index, kind, group):
        """An index of rows as one of elements."""
        count = elements(kind)
        return index if count == 1 else values.binary("*", index, spread(OTHER if count is None else count, self.ranks), group)

    def _dummy(self, pointers, group):
        """The scalar that a dummy of Fortran stands for in this call, where it is one, or None."""
        found = {pointers[rank] for rank in group}
        pointer = found.pop() if len(found) == 1 else None
        if self.program.language != "fortran" or not isinstance(pointer, tuple) or pointer[0] != "ptr" or not isinstance(pointer[1], Variable) or pointer[1].type.holds("array"):
            return None
        return pointer[1:3] if self.memory.leaves(pointer[1:3]) == {pointer[1:3]} else None

    def _inside(self, expr, state, group):
        """Evaluates what leads to the structure that a member is of."""
        if expr.op == "member":
            self._inside(expr.args[0], state, group)
        elif expr.op in ("index", "deref"):
            for part in expr.args:
                self._eval(part, state, group)
        elif expr.op != "var":
            self._eval(expr, state, group)

    def _holds_array(self, leaf):
        """Whether a location is that of an array's elements."""
        kind = self.memory.type_at(leaf)
        return kind is None or kind.kind == "array"

    def _elements(self, leaf, state):
        """Keys of an array's elements of which something is known by themselves."""
        kind = self.single.type(leaf)
        return [key for key in state.env if len(key) == 3 and key[0] is leaf[0] and key[1] == leaf[1]] if kind is not None and kind.kind == "array" else []

    def _read(self, expr, state, group):
        leaves, index, _, alike = self._slots(expr, state, group)
        if index is not None:
            entries = [OTHER] * self.ranks
            for rank in group:
                value = state.env.get((*leaves[0], index[rank]))
                value = value if value is not None else state.env.get(leaves[0])
                entries[rank] = value[rank] if value is not None else OTHER
            if not alike:
                entries = [OTHER if value == SAME else value for value in entries]
            return tuple(entries)
        made = None
        if any(isinstance(leaf[0], Mark) and leaf[0].kind in ("unknown", "lost") for leaf in leaves):
            return spread(OTHER, self.ranks)
        for leaf in leaves:
            parts = [state.env.get(leaf, spread(OTHER, self.ranks))]
            parts += [state.env[key] for key in self._elements(leaf, state)]
            for part in parts:
                made = part if made is None else join(made, part, group)
        if made is None:
            return spread(OTHER, self.ranks)
        if not alike:
            # Elements may differ where all hold the same on all ranks.
            made = tuple(OTHER if value == SAME else value for value in made)
        return made

    def _write(self, expr, value, state, group):
        leaves, index, replaces, _ = self._slots(expr, state, group)
        if index is not None:
            for rank in group:
                key = (*leaves[0], index[rank])
                if index[rank] not in range(4096):
                    self._write_leaf(leaves[0], value, state, (rank,), False)
                    continue
                self._set(key, put(state.env.get(key, state.env.get(leaves[0], spread(OTHER, self.ranks))), value, (rank,)), state, (rank,))
            return
        for leaf in leaves:
            self._write_leaf(leaf, value, state, group, replaces and not (isinstance(leaf[0], Variable) and self._holds_array(leaf)))

    def _write_leaf(self, leaf, value, state, group, replaces):
        keys = [leaf, *self._elements(leaf, state)]
        if replaces:
            for key in keys:
                self._set(key, value, state, group)
            return
        for key in keys:
            self._set(key, join(state.env.get(key, spread(OTHER, self.ranks)) if key in state.env or not isinstance(leaf[0], Heap) else value, value, group), state, group)

    def _eval(self, expr, state, group):
        """The value of an expression, and all that evaluating it does to the state."""
        operator = expr.op
        if operator == "const":
            return spread(SAME if expr.value is None else expr.value, self.ranks)
        if operator in ("var", "index", "deref", "member"):
            return self._read(expr, state, group)
        if operator == "binary" and expr.value in ("&&", "||"):
            return self._logical(expr, state, group)
        if operator == "binary":
            one, other = (self._eval(part, state, group) for part in expr.args)
            if any(part.type and part.type.kind in ("pointer", "array") for part in expr.args):
                return self._pointer_sum(expr, one, other)
            return values.binary(expr.value, one, other, group)
        if operator == "addr":
            return self._pointer_to(expr.args[0], state, group)
        if operator == "unary":
            return values.unary(expr.value, self._eval(expr.args[0], state, group), group)
        if operator == "cond":
            return self._choice(expr, state, group)
        if operator == "cast":
            value = self._eval(expr.args[0], state, group)
            if expr.type and expr.type.kind in ("int", "uint"):
                value = tuple(int(one) if isinstance(one, float) else one for one in value)
            return value
        if operator == "assign":
            value = self._eval(expr.args[1], state, group)
            if expr.value != "=":
                value = values.binary(expr.value[:-1], self._read(expr.args[0], state, group), value, group)
            if expr.type and expr.type.kind in ("int", "uint"):
                value = tuple(int(one) if isinstance(one, float) else one for one in value)
            if expr.args[0].type and expr.args[0].type.kind == "array" and expr.args[1].op == "list":
                simple = self.plain_list(expr.args[1])
                for place in self.memory.places(expr.args[0]):
                    for key in [place, *self._elements(place, state)]:
                        self._set(key, spread(0 if simple else OTHER, self.ranks), state, group)
                for at, part in enumerate(expr.args[1].args if simple else ()):
                    target = Expr("index", (expr.args[0], Expr("const", (), at)), None, expr.args[0].type.element, expr.place)
                    self._write(target, self._eval(part, state, group), state, group)
                return value
            self._write(expr.args[0], value, state, group)
            return value
        if operator == "step":
            old = self._read(expr.args[0], state, group)
            new = values.binary("+", old, spread(expr.value[0], self.ranks), group)
            self._write(expr.args[0], new, state, group)
            return new if expr.value[1] else old
        if operator == "comma":
            for part in expr.args[:-1]:
                self._eval(part, state, group)
            return self._eval(expr.args[-1], state, group)
        if operator == "call":
            return self._call(expr, state, group)
        parts = [self._eval(part, state, group) for part in expr.args]
        if operator == "list":
            return spread(SAME if all(uniform(part, group) for part in parts) else OTHER, self.ranks)
        if operator == "opaque" and self.program.language == "c":
            state.sent = None
        return spread(OTHER, self.ranks)

    def _pointer_sum(self, expr, one, other):
        made = [OTHER] * self.ranks
        for rank in range(self.ranks):
            a, b, kind = one[rank], other[rank], expr.args[0].type
            if isinstance(b, tuple) and expr.value == "+":
                a, b, kind = b, a, expr.args[1].type
            count = elements(kind.element) if kind is not None and kind.kind == "pointer" else 1
            if isinstance(a, tuple) and a[0] == "ptr" and isinstance(b, int) and expr.value in "+-" and count is not None:
                made[rank] = (*a[:3], a[3] + count * (b if expr.value == "+" else -b))
        return tuple(made)

    def _pointer_to(self, target, state, group):
        """The address of a variable or of an array's element, where it is known."""
        made = [OTHER] * self.ranks
        if target.op == "index" and not (target.args[0].type and target.args[0].type.kind == "array"):
            # p + i
            pointers, index = self._eval(target.args[0], state, group), self._rows(self._eval(target.args[1], state, group), target.type, group)
            for rank in group:
                if isinstance(pointers[rank], tuple) and pointers[rank][0] == "ptr" and isinstance(index[rank], int):
                    made[rank] = (*pointers[rank][:3], pointers[rank][3] + index[rank])
            return tuple(made)
        if target.op == "deref":
            return self._eval(target.args[0], state, group)
        if target.op in ("var", "index", "member"):
            leaves, index, _, _ = self._slots(target, state, group)
            if len(leaves) == 1 and self.single.type(leaves[0]) is not None:
                for rank in group:
                    made[rank] = ("ptr", *leaves[0], 0 if index is None and target.op != "index" else index[rank] if index is not None else None)
                return tuple(OTHER if isinstance(one, tuple) and one[3] is None else one for one in made)
        return tuple(made)

    @staticmethod
    def plain_list(initial):
        """Whether a list gives the first elements of a one-dimensional array, in order."""
        return len(initial.args) <= 64 and initial.value != "unordered" and all(part.op not in ("list", "opaque") for part in initial.args)

    def _conditional(self, expr, state, group):
        """Evaluates what only some ranks may evaluate; messages there are lost to the analysis."""
        if any(part.op in ("call", "assign", "step") for part in expr.walk()):
            other = state.copy()
            self.split += 1
            try:
                value = self._eval(expr, other, group)
            except Ends:
                value = spread(OTHER, self.ranks)
            finally:
                self.split -= 1
            talked = other.sent != state.sent or other.open != state.open
            for key in other.env:
                if other.env[key] != state.env.get(key):
                    state.env[key] = put(other.env[key], spread(OTHER, self.ranks), group)
                    state.written.add(key)
            state.sent = None if talked else state.sent
            state.open = tuple(a | b for a, b in zip(state.open, other.open))
            return value
        return self._eval(expr, state, group)

    def _logical(self, expr, state, group):
        one = self._eval(expr.args[0], state, group)
        decided = [known(one[rank]) and bool(one[rank]) == (expr.value == "||") for rank in group]
        if all(decided):
            return spread(int(expr.value == "||"), self.ranks)
        runs = not any(decided) and all(known(one[rank]) for rank in group)
        other = self._eval(expr.args[1], state, group) if runs else self._conditional(expr.args[1], state, group)
        return values.binary(expr.value, one, other, group)

    def _choice(self, expr, state, group):
        condition = self._eval(expr.args[0], state, group)
        if all(known(condition[rank]) for rank in group) and len({bool(condition[rank]) for rank in group}) == 1:
            return self._eval(expr.args[1 if condition[group[0]] else 2], state, group)
        one, other = self._conditional(expr.args[1], state, group), self._conditional(expr.args[2], state, group)
        if all(known(condition[rank]) for rank in group):
            made = [OTHER] * self.ranks
            for rank in group:
                value = one[rank] if condition[rank] else other[rank]
                made[rank] = OTHER if value == SAME else value
            return tuple(made)
        if uniform(condition, group):
            return join(one, other, group)
        return tuple(a if a == b and known(a) else OTHER for a, b in zip(one, other))

    # ---- calls ----

    def _call(self, call, state, group):
        names = self.memory.callees(call)
        if len(names) > 1 or names[0] is None:
            return self._unclear(call, names, state, group)
        name = names[0]
        if name in self.program.functions:
            return self._enter(name, call, state, group)
        arguments = [self._eval(argument, state, group) for argument in call.args[1:]]
        if name in MPI:
            return self.mpi(name, call, arguments, state, group)
        if name in NO_RETURN:
            raise Ends
        if name in values.SMALL_FUNCTIONS and arguments and all(known(arguments[0][rank]) for rank in group):
            try:
                return tuple(values.SMALL_FUNCTIONS[name](one) if known(one) else OTHER for one in arguments[0])
            except ValueError:
                return spread(OTHER, self.ranks)
        if name == "mend_cc argument":
            for place in self.memory.targets(call.args[2]):
                self._write_leaf(place, spread(SAME, self.ranks), state, group, True)
            return spread(SAME, self.ranks)
        if effects(name) is None:
            # A name with blanks stands for what has been told of already.
            if " " not in name:
                self.program.cannot_see(call.place, f"{name}() isn't part of the program, and isn't known")
            state.sent = None
        for access in self.memory.accesses(call):
            if access.kind == "write":
                for leaf in access.places:
                    if not isinstance(leaf[0], Mark):
                        zero = name == "memset" and arguments[1][group[0]] == 0
                        self._write_leaf(leaf, spread(0 if zero else OTHER, self.ranks), state, group, access.must)
            elif access.kind == "call":
                self._havoc(access.targets, state, group)
        if name in ("calloc", "malloc", "realloc"):
            for heap, _ in self.memory.targets(call):
                if isinstance(heap, Heap):
                    for leaf in self.memory.leaves((heap, ())):
                        self._write_leaf(leaf, spread(0 if name == "calloc" else OTHER, self.ranks), state, group, False)
                    return spread(("ptr", heap, (), 0), self.ranks)
        repeatable = name in PURE or (name in ("atoi", "atol", "atof", "atoll", "strtol", "strtod", "strcmp", "strlen", "strncmp") and self._same_text(call, state, group))
        if repeatable and name not in UNREPEATABLE | HIDDEN_STATE and (name not in PURE or all(uniform(one, group) for one in arguments)):
            return spread(SAME, self.ranks)
        return spread(OTHER, self.ranks)

    def _same_text(self, call, state, group):
        for argument in call.args[1:]:
            for place in self.memory.targets(argument):
                if isinstance(place[0], Mark):
                    if place[0].kind not in ("argv", "text"):
                        return False
                elif not uniform(state.env.get(place, spread(OTHER, self.ranks)), group):
                    return False
        return True

    def _enter(self, name, call, state, group):
        function = self.program.functions[name]
        if name in self.stack:
            if name in self.talking:
                self.program.cannot_see(call.place, f"{function.source}() calls itself, with messages in it")
                state.sent = None
            self._havoc((name,), state, group)
            return spread(OTHER, self.ranks)
        arguments = [self._eval(argument, state, group) for argument in call.args[1:]]
        for parameter, value in zip(function.params, arguments):
            for leaf in self.memory.leaves((parameter, ())):
                self._set(leaf, value, state, group)
        graph = self.graphs[name]
        self.stack.append(name)
        found = self._walk(graph, graph.entry, state.copy(), frozenset({graph.exit}), group)
        self.stack.pop()
        if graph.exit not in found:
            raise Ends
        state.take(found[graph.exit])
        return state.env.get((("result", name), ()), spread(OTHER, self.ranks))

    def _unclear(self, call, names, state, group):
        """A call through a pointer: to one of several functions, or to one that can't be seen."""
        for argument in call.args[1:]:
            self._eval(argument, state, group)
        if None in names:
            self.program.cannot_see(call.place, "a call through a pointer that may lead anywhere")
        inside = [name for name in names if name in self.program.functions]
        if None in names or any(name in self.talking or (name not in self.program.functions and (effects(name) is None or name in MPI)) for name in names if name):
            self.program.cannot_see(call.place, "a call through a pointer, to functions with messages: which one isn't known")
            state.sent = None
        self._havoc(inside, state, group)
        return spread(OTHER, self.ranks)

    def _havoc(self, names, state, group):
        """Whatever these functions may write isn't known afterwards."""
        seen, left = set(), list(names)
        while left:
            name = left.pop()
            if name in seen or name not in self.program.functions:
                continue
            seen.add(name)
            for stmt in self.program.functions[name].body.walk():
                point = self.points.setdefault(stmt, Point())
                point.why = point.why or "it is reached through a pointer, or a function that calls itself"
            for expr in self.program.functions[name].body.expressions():
                for access in self.memory.accesses(expr):
                    left.extend(access.targets)
                    if access.kind == "write":
                        for leaf in access.places:
                            if not isinstance(leaf[0], Mark):
                                self._write_leaf(leaf, spread(OTHER, self.ranks), state, group, False)
