"""Fortran's units: one that is open for writing at a place is opened anew in a restart, and written from its start, so that what stands in its file is lost."""

from .ir import NEW_UNIT, Naming, Variable, parent_map

# Standard error and standard output: without `open` no file of the program's.
PRECONNECTED = (0, 6)


def written_across(flow, chain, name, stmt, cycle):
    """(statement that writes, statement that opens) where a unit is written between two passes of a place and is open at it; (statement that writes, None) where it isn't told which one is written; or None."""
    writes = [one for one in _reached(flow, cycle) if one.unit is not None and one.unit.kind in ("write", "record")]
    if not writes:
        return None
    states = _Units(flow)
    before = frozenset()
    for caller, node, _ in chain:
        before = states.at(caller, before)[node]
    opened = states.at(name, before)[flow.graphs[name].point[stmt]]
    for write in writes:
        mine, own = states.possible(write), states.opened_here(write)
        for key, opening in sorted(opened, key=lambda one: one[1].place.start):
            same = any(_may_be(key, one, opening) for one in mine) if own is None else opening is own
            # Records stay where they are in a file that isn't emptied.
            if same and (write.unit.kind == "write" or opening.unit.kind == "empty"):
                return write, opening
    return next(((write, None) for write in writes if write in states.untold), None)


def _is_told(key):
    """Whether it is one unit in the whole program."""
    return key is not None and not isinstance(key, Naming)


def _may_be(key, mine, opening):
    """Whether a unit that was opened may be the one that is written."""
    return key == mine or not _is_told(mine) or not (_is_told(key) or (opening.unit.new and isinstance(mine, int)))


def _root(expr):
    """The variable that a location is within, or a dummy that leads to it."""
    while expr.op in ("index", "deref", "member", "cast"):
        expr = expr.args[0]
    return expr.value if expr.op == "var" else None


def _reached(flow, cycle):
    """All statements that may run between two passes, at any depth."""
    nodes = [node for part in cycle.values() for node in part]
    found = {node.stmt for node in nodes if node.stmt is not None and node.kind == "point"}
    for name in flow.called(nodes) & flow.program.functions.keys():
        found |= set(flow.program.functions[name].body.walk())
    return sorted(found, key=lambda one: (one.place.file, one.place.start))


class _Units:
    """Which units may be open: forward data flow over the calls. A state has (key, statement that opens it). `untold`: statements that write to a unit of which isn't told which, and that may not be opened just before."""

    def __init__(self, flow):
        self.flow, self.program = flow, flow.program
        self.changes, self.within, self.given, self.handed = {}, {}, {}, {}
        self.untold, self.values, self._known, self._keys, self._numbers = set(), set(), {}, {}, {}
        callees = set()
        for function in self.program.functions.values():
            for part in (part for expr in function.body.expressions() for part in expr.walk()):
                if part.op in ("assign", "step", "addr"):
                    self.changes.setdefault(_root(part.args[0]), []).append(part)
                    self.within[part] = function.name
                elif part.op == "call" and part.args[0].op == "func":
                    callees.add(part.args[0])
                    called = self.program.functions.get(part.args[0].value)
                    for dummy, argument in zip(called.params if called else (), part.args[1:]):
                        self.given.setdefault(dummy, []).append(argument)
                        self.handed[argument] = dummy
                elif part.op == "func" and part not in callees:
                    self.values.add(part.value)
        # Variables that something changes: what is passed to a dummy that nothing changes isn't.
        self.altered, found = set(), None
        while found != set():
            found = {variable for variable in self.changes if variable not in self.altered and self._changed(variable)}
            self.altered |= found
        # Units of which is told which ones they are, and what opens them.
        units = [stmt for function in self.program.functions.values() for stmt in function.body.walk() if stmt.unit is not None and stmt.unit.kind in ("open", "empty")]
        self.opened = {key for key in map(self.key, units) if _is_told(key)}.union(PRECONNECTED)

    def at(self, name, before, stack=()):
        """For each node of a function what may be open before it, where `before` is at its start."""
        if (name, before) in self._known:
            return self._known[name, before]
        graph = self.flow.graphs[name]
        found, left = {graph.entry: before}, [graph.entry]
        while left:
            node = left.pop()
            after = self._after(node, found[node], (*stack, name))
            for one in node.succ:
                grown = found.get(one, frozenset()) | after
                if one not in found or grown != found[one]:
                    found[one] = grown
                    left.append(one)
        self._known[name, before] = {node: found.get(node, frozenset()) for node in graph.nodes}
        return self._known[name, before]

    def _after(self, node, state, stack):
        unit = node.stmt.unit if node.kind == "point" else None
        key = self.key(node.stmt) if unit is not None else None
        if unit is not None and unit.kind in ("open", "empty"):
            return state | {(key, node.stmt)}
        if unit is not None and unit.kind in ("write", "record") and key not in PRECONNECTED and all(other != key for other, _ in state):
            if not _is_told(key):
                if not self.possible(node.stmt) <= self.opened:
                    self.untold.add(node.stmt)
            elif unit.kind == "write":
                return state | {(key, node.stmt)}
        if unit is not None and unit.kind == "close" and self._is_one(key):
            return frozenset(one for one in state if one[0] != key)
        if unit is not None and unit.kind == "close":
            own = self.opened_here(node.stmt)
            return frozenset(one for one in state if own is None or one[1] is not own)
        if node.expr is not None:
            state = frozenset((None if isinstance(other, Naming) and self._may_change(other, node, stmt) else other, stmt) for other, stmt in state)
            for access in self.flow.steps(node):
                for target in access.targets:
                    if target in self.flow.graphs and target not in stack:
                        inside = self._unnamed(target, self.at(target, self._unnamed(target, state), stack)[self.flow.graphs[target].exit])
                        state = inside if len(access.targets) == 1 and access.must else state | inside
        return state

    @staticmethod
    def _unnamed(function, state):
        """A state where another call of a function begins or ends: what it has named means something else there."""
        return frozenset((None if isinstance(key, Naming) and key.function == function else key, stmt) for key, stmt in state)

    def _may_change(self, key, node, opening):
        """Whether what names a unit may name another one after an expression, which isn't what the opening itself sets."""
        if opening.unit.new and node.stmt is not None and node.stmt.place.start == opening.place.start:
            return False
        called, here = self.flow.called([node]), set(node.expr.walk())
        return any(part in here or self.within[part] in called for variable in key.variables for part in self._changed(variable))

    def _changed(self, variable):
        """What may change a variable."""
        return [part for part in self.changes.get(variable, ()) if part.op != "addr" or part not in self.handed or self.handed[part] in self.altered]

    def key(self, stmt):
        """A statement's unit: its number where its variable, or dummy, has only one, else as Unit.key has it."""
        if stmt not in self._keys:
            key = stmt.unit.key
            variable = next((one for one in key.variables if one.scope == "param" and one.name == key.text), None) if isinstance(key, Naming) else key
            number = self._only(variable) if isinstance(variable, Variable) else None
            self._keys[stmt] = key if number is None else number
        return self._keys[stmt]

    def possible(self, stmt):
        """Keys of all units that a statement's may be: a dummy stands for what is passed, a variable for what it is copied from, where the source tells."""
        key = self.key(stmt)
        dummy = next((one for one in key.variables if one.scope == "param" and one.name == key.text), None) if isinstance(key, Naming) else key
        found = self._meant(dummy, frozenset()) if isinstance(dummy, Variable) else None
        return {key} if found is None else found

    def _meant(self, variable, seen):
        """The same of a variable or a dummy; None: it isn't told."""
        number = self._only(variable)
        if number is not None or variable in seen:
            return set() if number is None else {number}
        sources = self._sources(variable)
        found = set()
        for source in sources:
            inner = source.args[0] if source.op == "addr" else source
            inner = inner.args[0] if inner.op == "deref" else inner
            if inner.op == "var" and isinstance(inner.value, Variable) and (getattr(inner.value, "declared", True) or inner.value.scope == "param"):
                more = self._meant(inner.value, seen | {variable})
            elif inner.op == "opaque" and inner.value == NEW_UNIT:
                more = {variable}
            else:
                more = {inner.value} if inner.op == "const" and isinstance(inner.value, int) else None
            if more is None:
                return None
            found |= more
        return found if sources else None

    def opened_here(self, stmt):
        """The statement with newunit= that opens what another one writes or closes, on every way to it in its procedure, or None. No other unit that is open then has its number."""
        key = stmt.unit.key
        name = next(name for name, function in self.program.functions.items() if stmt in set(function.body.walk()))
        if key is None or self.flow.graphs[name].jumps:
            return None
        above, here = parent_map(self.program.functions[name].body), stmt
        while here in above:
            parent = above[here]
            if parent.kind == "loop" and self._renames(key, parent):
                return None
            for earlier in reversed(parent.parts[:parent.parts.index(here)] if parent.kind == "block" else ()):
                opens = [one for one in parent.parts if one.place.start == earlier.place.start and one.unit is not None and one.unit.new and one.unit.key == key]
                if opens or self._renames(key, earlier):
                    return opens[0] if opens else None
            here = parent
        return None

    def _renames(self, key, stmt):
        """Whether what names a unit may name another one after a statement."""
        nodes = [node for inner in stmt.walk() for node in inner.nodes]
        called, here = self.flow.called(nodes), {part for expr in stmt.expressions() for part in expr.walk()}
        return any(part in here or self.within[part] in called for variable in (key.variables if isinstance(key, Naming) else {key} - {None}) if isinstance(variable, Variable) for part in self._changed(variable))

    def _only(self, variable):
        """The one number that a variable has, or None."""
        if variable not in self._numbers:
            # Where functions call each other in a circle it isn't told.
            self._numbers[variable] = None
            numbers = {self._number(source) for source in self._sources(variable)}
            self._numbers[variable] = numbers.pop() if len(numbers) == 1 else None
        return self._numbers[variable]

    def _sources(self, variable):
        """All that a variable gets its value from; none: that isn't told."""
        changed = self._changed(variable)
        if getattr(variable, "undefined", False) or any(part.op != "assign" or part.value != "=" for part in changed):
            return []
        if variable.scope == "param":
            # Whoever calls a function through a pointer isn't known.
            return [] if changed or variable.function in self.values else self.given.get(variable, [])
        return [part.args[1] for part in changed] + [one for one in [getattr(variable, "initial", None)] if one is not None]

    def _number(self, expr):
        expr = expr.args[0] if expr.op == "addr" else expr
        expr = expr.args[0] if expr.op == "deref" else expr
        if expr.op == "var" and isinstance(expr.value, Variable):
            return self._only(expr.value)
        return expr.value if expr.op == "const" and isinstance(expr.value, int) else None

    def _is_one(self, key):
        """Whether it is the same unit wherever it is named so."""
        return key is not None and (not isinstance(key, Variable) or len(self._changed(key)) <= 1)
