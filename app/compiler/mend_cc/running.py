"""Counts that go on while a loop runs, as in `to[m++] = …`: what each pass adds to them, and so their value in each pass and behind the loop."""

from .ir import Variable
from .polynomials import passes, plus, symbols, times

# What ends a pass or a loop early: a count may not have got there what other passes add.
JUMPS = {"break", "continue", "return", "goto", "label", "switch"}
# Smaller integers begin again at 0.
SMALLEST_BYTES = 4


def wide(kind):
    """Whether an integer is large enough to count elements."""
    return kind is not None and kind.kind in ("int", "uint") and (kind.size or 0) >= SMALLEST_BYTES


class Running:
    """The part of Walk that knows them."""

    def running(self, loop):
        """What loops may count: the locations that a loop's body adds to, and their values before its first pass."""
        body = loop.parts[0]
        if any(one.kind in JUMPS for one in body.walk()):
            return {}
        found, counters, called = {}, set(), set()
        for stmt in self._executed(body, called):
            if stmt.expr is not None:
                found.update((place, self.numbers.get(place, {(self.symbol(place),): 1})) for place in self._added(stmt.expr))
            if stmt.advance is not None:
                counters |= self._added(stmt.advance)
        # Counters of loops within it, and what functions have of their own, begin anew in each pass.
        return {place: value for place, value in found.items() if place not in counters and not (place[0].scope in ("local", "param") and place[0].function in called)}

    def _executed(self, body, seen):
        """A statement, all in it, and in the functions that it may call."""
        for stmt in body.walk():
            yield stmt
            for access in (one for expr in (stmt.expr, stmt.advance) if expr is not None for one in self.memory.accesses(expr)):
                for name in access.targets:
                    if name in self.program.functions and name not in seen:
                        seen.add(name)
                        yield from self._executed(self.program.functions[name].body, seen)

    def _added(self, expr):
        """Variables to which an expression adds."""
        found = set()
        for part in expr.walk():
            place = self.alone(part.args[0]) if part.op in ("step", "assign") and wide(part.args[0].type) else None
            if place is not None and isinstance(place[0], Variable) and self._adds(part, place):
                found.add(place)
        return found

    def _adds(self, part, place):
        if part.op == "step" or part.value in ("+=", "-="):
            return True
        return part.value == "=" and any(one.op in ("var", "member", "deref") and self.alone(one) == place for one in part.args[1].walk())

    def gains(self, loop, run, places):
        """What each pass adds to these locations, where that is the same in all passes. `run` follows one pass; afterwards nothing of it is known."""
        kept = set(self.exposed), list(self.reads), dict(self.versions), dict(self.numbers), dict(self.pointers), list(self.written), list(self.lasting), self.uncertain, dict(self.jumped)
        starts = {place: {(self.symbol(place),): 1} for place in places}
        self.inside(run)
        ends = {place: self.numbers.get(place) for place in places}
        self.loosen_body(loop)
        found = {place: plus(ends[place], starts[place], -1) for place in places}
        found = {place: gain for place, gain in found.items() if gain is not None and all(self.is_current(symbol) for symbol in symbols(gain))}
        self.exposed, self.reads, self.versions, self.numbers, self.pointers, self.written, self.lasting, self.uncertain, self.jumped = kept
        return found

    def begin_pass(self, entry, gains, symbol, low):
        """Their values in the pass of a loop whose counter is `symbol`."""
        for place, gain in gains.items():
            self.numbers[place] = plus(entry[place], times(gain, plus({(symbol,): 1}, low, -1)))

    def end_loop(self, entry, gains, low, high):
        """Their values behind the loop."""
        for place, gain in gains.items():
            self.numbers[place] = plus(entry[place], times(gain, passes(plus(plus(high, low, -1), {(): 1}))))

    def is_current(self, symbol):
        """Whether the variables of a symbol still have the values that it stands for."""
        if len(symbol) == 2:
            return symbol[1] == self.versions.get(symbol[0], 0)
        return all(self.is_current(inner) for part in symbol[1:] for key, _ in part for inner in key)
