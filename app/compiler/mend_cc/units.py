"""Fortran's units: one that is open for writing at a place is opened anew in a restart, and written from its start, so that what stands in its file is lost."""

from .ir import Variable

# Standard error and standard output: without `open` no file of the program's.
PRECONNECTED = (0, 6)


def written_across(flow, chain, name, stmt, cycle):
    """(statement that writes, statement that opens) where a unit is written between two passes of a place and is open at it; or None."""
    writes = [one for one in _reached(flow, cycle) if one.unit is not None and one.unit.kind in ("write", "record")]
    if not writes:
        return None
    states = _Units(flow)
    before = frozenset()
    for caller, node, _ in chain:
        before = states.at(caller, before)[node]
    opened = states.at(name, before)[flow.graphs[name].point[stmt]]
    for write in writes:
        mine = states.key(write)
        for key, opening in sorted(opened, key=lambda one: one[1].place.start):
            # Records stay where they are in a file that isn't emptied.
            if (key is None or mine in (None, key)) and (write.unit.kind == "write" or opening.unit.kind == "empty"):
                return write, opening
    return None


def _reached(flow, cycle):
    """All statements that may run between two passes, at any depth."""
    nodes = [node for part in cycle.values() for node in part]
    found = {node.stmt for node in nodes if node.stmt is not None and node.kind == "point"}
    for name in flow.called(nodes) & flow.program.functions.keys():
        found |= set(flow.program.functions[name].body.walk())
    return sorted(found, key=lambda one: (one.place.file, one.place.start))


class _Units:
    """Which units may be open: forward data flow over the calls. A state has (key, statement that opens it)."""

    def __init__(self, flow):
        self.flow, self.program = flow, flow.program
        self.values, self._known = {}, {}
        for function in self.program.functions.values():
            for expr in function.body.expressions():
                for part in expr.walk():
                    if part.op in ("assign", "step", "addr") and part.args[0].op == "var":
                        self.values.setdefault(part.args[0].value, []).append(part)

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
        if unit is not None and unit.kind == "write" and key not in PRECONNECTED and all(other != key for other, _ in state):
            return state | {(key, node.stmt)}
        if unit is not None and unit.kind == "close" and self._is_one(key):
            return frozenset(one for one in state if one[0] != key)
        if node.expr is not None:
            for access in self.flow.steps(node):
                for target in access.targets:
                    if target in self.flow.graphs and target not in stack:
                        inside = self.at(target, state, stack)[self.flow.graphs[target].exit]
                        state = inside if len(access.targets) == 1 and access.must else state | inside
        return state

    def key(self, stmt):
        """A statement's unit: its number where its variable has only one, else as Unit.key has it."""
        key = stmt.unit.key
        if isinstance(key, Variable):
            values = [part.args[1] if part.op == "assign" else None for part in self.values.get(key, ())] + [one for one in [getattr(key, "initial", None)] if one is not None]
            if len(values) == 1 and values[0] is not None and values[0].op == "const" and isinstance(values[0].value, int):
                return values[0].value
        return key

    def _is_one(self, key):
        """Whether it is the same unit wherever it is named so."""
        return key is not None and (not isinstance(key, Variable) or len(self.values.get(key, ())) <= 1)
