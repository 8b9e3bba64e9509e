"""Which arrays are read before they are written, element by element, after a place.

A section is a set of elements: offset + sum of coefficient x [0 .. extent], where all are polynomials in the program's variables. A loop that writes
a[i] for i = 1 .. n makes such a section; a later read of a part of it needs nothing from before. This is array privatization as P. Tu and D. Padua have it
(*Automatic array privatization*, 1993), for sections that loops of step 1 make. What isn't understood counts as read."""

from .alone import Alone
from .bases import Bases, Unclear
from .externals import BUFFERS, COUNTS, STARTS_OR_ENDS, count_of, datatype_bytes, effects, letter
from .ir import Variable
from .memory import Heap
from .polynomials import Section, at_least_zero, constant, joined, plus, times
from .running import Running, wide


class Walk(Bases, Running):
    """Follows the statements after a place. `exposed`: locations whose elements may be read before they are written."""

    def __init__(self, program, memory):
        self.program, self.memory = program, memory
        self.exposed = set()
        self.reads = []  # (base or None, things, sections that are written by then): what is read and wasn't written before
        self.versions, self.numbers, self.pointers = {}, {}, {}
        self.written, self.lasting = [], []
        self.straight = [], []  # lasting sections and reads until a pass of a loop ends: nothing is left out on this way
        self.loops, self.uncertain, self.stack, self.entry, self.jumped = [], 0, [], ([], []), {}
        self.result, self.given = None, (None, None)  # what `return` gave last; a call that was entered last, and what it gave
        self.single = Alone(program, memory)
        self._starts = {}

    # ---- reads and writes ----

    def read(self, expr, places):
        """One element, or what `places` are if it isn't clear."""
        arrays = [place for place in places if self._is_array(place)]
        if not arrays:
            return
        try:
            section = Section(*self.element(self.first(expr)), self.steps(expr))
        except Unclear:
            self.expose(arrays, self.base(expr))
            return
        self.read_section(section, arrays)

    def expose(self, places, base=None):
        """They are read, and which elements isn't told: nothing is needed from before where all were written."""
        found = [place for place in places if self._is_array(place) and not any(one.covers(whole) for whole in self._whole(place) for one in self.written)]
        self.exposed.update(found)
        self.reads.append((base, {thing for thing, _ in found}, list(self.written)))

    def _whole(self, place):
        """All elements of an array; nothing where it isn't known how many it has."""
        thing, path = place
        extents = getattr(thing, "extents", None)
        if extents is None or path:
            kind, extents = self.memory.type_at(place) if isinstance(thing, Variable) else None, []
            while kind is not None and kind.kind == "array":
                extents.insert(0, constant(kind.count) if kind.count else None)
                kind = kind.element
        else:
            extents = [self.poly(one) for one in extents]
        stride, ranges = constant(1), []
        for extent in extents:
            ranges += [(stride, plus(extent, constant(1), -1))] if extent != constant(1) else []
            stride = times(stride, extent)
        return [Section(("object", place), {}, ranges)] if extents and stride is not None else []

    @staticmethod
    def _is_array(place):
        if isinstance(place[0], Heap):
            return True
        return isinstance(place[0], Variable) and (place[0].type.kind == "array" or place[0].type.holds("array"))

    def read_section(self, section, places):
        current = section
        for symbol, low, high in [(None, None, None), *reversed(self.loops)]:
            if symbol is not None:
                current = current.over(symbol, low, high)
                if current is None:
                    break
            if self._is_written(current):
                return
        known = self.memory.leaves(section.base[1]) if section.base[0] == "object" else None
        self.expose((place for place in places if known is None or place in known), section.base)

    def _is_written(self, section):
        mine = [one for one in self.written if one.base == section.base]
        return any(one.covers(section) for one in mine) or any(one.covers(section) for one in joined(mine))

    def write_section(self, section):
        self.written.append(section)
        if not self.uncertain:
            self.lasting.append(section)

    def change(self, place):
        """A scalar has another value from now on."""
        self.versions[place] = self.versions.get(place, 0) + 1
        self.numbers.pop(place, None)
        self.pointers.pop(place, None)

    # ---- expressions ----

    def expr(self, expr):
        """All that evaluating an expression reads and writes."""
        operator = expr.op
        if operator in ("const", "func", "string"):
            return
        if operator == "assign":
            self.expr(expr.args[1])
            self.address(expr.args[0])
            if expr.value != "=":
                self.read(expr.args[0], self._leaves(expr.args[0]))
            self.assign(expr)
            return
        if operator == "step":
            self.address(expr.args[0])
            self.read(expr.args[0], self._leaves(expr.args[0]))
            number = self.poly(expr.args[0])
            self.forget(expr.args[0])
            places = self.memory.places(expr.args[0])
            if number is not None and len(places) == 1 and not self.uncertain:
                self.numbers[next(iter(places))] = plus(number, constant(expr.value[0]))
            return
        if operator in ("var", "index", "deref", "member"):
            self.address(expr)
            if not (expr.type and expr.type.kind == "array"):
                self.read(expr, self._leaves(expr))
            return
        if operator == "addr":
            self.address(expr.args[0])
            return
        if operator == "call":
            self.call(expr)
            return
        if operator == "cond" or (operator == "binary" and expr.value in ("&&", "||")):
            self.expr(expr.args[0])
            for part in expr.args[1:]:
                self.maybe(lambda part=part: self.expr(part))
            return
        for part in expr.args:
            self.expr(part)

    def maybe(self, run):
        """What may not be executed: its writes don't count afterwards."""
        kept, lasting, versions = list(self.written), list(self.lasting), dict(self.versions)
        run()
        self.written, self.lasting = kept, lasting
        for place, version in list(self.versions.items()):
            if versions.get(place, 0) != version:
                self._lose(place)

    def _leaves(self, expr):
        return [leaf for place in self.memory.places(expr) for leaf in self.memory.leaves(place)]

    def address(self, expr):
        if expr.op == "index":
            inner = expr.args[0]
            if inner.type and inner.type.kind == "array":
                self.address(inner)
            else:
                self.expr(inner)
            self.expr(expr.args[1])
        elif expr.op == "deref":
            self.expr(expr.args[0])
        elif expr.op in ("member", "cast"):
            self.address(expr.args[0])
        elif expr.op not in ("var", "string"):
            self.expr(expr)

    def forget(self, target):
        for place in self._leaves(target):
            self.change(place)

    def assign(self, expr):
        target, source = expr.args
        value = position = None
        if expr.value == "=" and target.type:
            if wide(target.type):
                value = self.given[1] if source is self.given[0] else self.poly(source)
            elif target.type.kind == "pointer":
                try:
                    position = self.pointer(source)
                except Unclear:
                    position = None
        elif expr.value in ("+=", "-=") and wide(target.type):
            value = plus(self.poly(target), self.poly(source), 1 if expr.value == "+=" else -1)
        section = None
        places = self._leaves(target)
        if any(self._is_array(place) for place in places):
            try:
                section = Section(*self.element(target))
            except Unclear:
                section = None
        self.forget(target)
        if section is not None:
            if target.type and target.type.kind in ("array", "struct"):
                return
            self.write_section(section)
        if len(places) == 1 and (self.memory.whole(target) or (target.type.kind == "pointer" and self.alone(target) == places[0])):
            if target.type.kind == "pointer" and position is None:
                self.pointers[places[0]] = (("fresh", places[0], self.versions[places[0]]), {})
            if value is not None:
                self.numbers[places[0]] = value
            if position is not None:
                self.pointers[places[0]] = position

    # ---- calls ----

    def call(self, call):
        names = self.memory.callees(call)
        for argument in call.args[1:]:
            self.expr(argument)
        self.given = None, None
        if len(names) == 1 and names[0] in self.program.functions and self._walkable(names[0]):
            self.enter(names[0], call)
            return
        if len(names) == 1 and names[0] not in self.program.functions and names[0] is not None and effects(names[0]) is not None:
            self.external(names[0], call)
            return
        for access in self.memory.accesses(call):
            self._generic(access, set())

    def _walkable(self, name):
        return name not in self.stack and len(self.stack) < 12 and not any(stmt.kind == "goto" for stmt in self.program.functions[name].body.walk())

    def _generic(self, access, seen):
        if access.kind == "read":
            self.expose(access.places)
        elif access.kind == "write":
            for place in access.places:
                self.change(place)
        for name in access.targets:
            if name in self.program.functions and name not in seen:
                seen.add(name)
                for expr in self.program.functions[name].body.expressions():
                    for inner in self.memory.accesses(expr):
                        self._generic(inner, seen)

    def enter(self, name, call):
        function = self.program.functions[name]
        bound = []
        for parameter, argument in zip(function.params, call.args[1:]):
            number = position = None
            if wide(parameter.type):
                number = self.poly(argument)
            elif parameter.type.kind == "pointer":
                try:
                    position = self.pointer(argument)
                except Unclear:
                    position = None
            bound.append((parameter, number, position))
        for parameter, number, position in bound:
            place = (parameter, ())
            self.change(place)
            if number is not None:
                self.numbers[place] = number
            if position is not None:
                self.pointers[place] = position
            elif parameter.type.kind == "pointer":
                self.pointers[place] = (("fresh", place, self.versions[place]), {})
        self.stack.append(name)
        made = self.inside(lambda: self.stmt(function.body))
        self.stack.pop()
        self.keep(made)
        last = function.body.parts[-1] if function.body.parts else None
        if any(stmt.kind == "return" for stmt in function.body.walk() if stmt is not last):
            # It may have come back before it changed what it changes.
            self.loosen(function.body)
            self.result = None
        self.given = call, self.result if last is not None and last.kind == "return" and wide(function.result) else None

    def inside(self, run):
        """Runs a body of its own; sections that it writes however it is left."""
        before, lasting, uncertain = list(self.written), self.lasting, self.uncertain
        self.lasting, self.uncertain = [], 0
        run()
        made = self.lasting
        self.written, self.lasting, self.uncertain = before, lasting, uncertain
        return made

    def keep(self, sections):
        """They are written from here on."""
        self.written.extend(sections)
        if not self.uncertain:
            self.lasting.extend(sections)

    def external(self, name, call):
        arguments = call.args[1:]
        letters = self.memory.effects(name, arguments)
        for at, argument in enumerate(arguments):
            if letter(letters, at) in "rb":
                self._buffer(name, arguments, at, True)
        for at, argument in enumerate(arguments):
            what = letter(letters, at)
            if what in "wWbo":
                if what == "W" and name in COUNTS:
                    self._buffer(name, arguments, at, False)
                for place in self.memory.given(name, arguments, at):
                    for leaf in self.memory.leaves(place):
                        if not self._is_array(leaf) or leaf[0].type is not None:
                            self.change(leaf)
        if self.memory.messages(name) in STARTS_OR_ENDS:
            self.expose(leaf for place in self.memory.persistent("read") for leaf in self.memory.leaves(place))
            for place in self.memory.persistent("write"):
                for leaf in self.memory.leaves(place):
                    self.change(leaf)

    def _buffer(self, name, arguments, at, reads):
        """A buffer of `count` elements from a pointer on."""
        places = [leaf for place in self.memory.given(name, arguments, at) for leaf in self.memory.leaves(place)]
        try:
            if self.memory.overflows(name, arguments, at):
                raise Unclear
            base, offset = self.pointer(arguments[at])
            count = self._length(name, arguments, at, base)
        except (Unclear, IndexError):
            if reads:
                self.expose(places, self.base(arguments[at], True))
            return
        section = Section(base, offset, [(constant(1), plus(count, constant(1), -1))] if count != constant(1) else [])
        if reads:
            self.read_section(section, places)
        else:
            self.write_section(section)

    def _length(self, name, arguments, at, base):
        pointed = arguments[at]
        while pointed.op == "cast":
            pointed = pointed.args[0]
        kind = pointed.type.element.scalar() if pointed.type and pointed.type.element else None
        size = kind.size if kind is not None else None
        self.check_unit(base, kind)
        if name in COUNTS:
            number, in_bytes = COUNTS[name]
        elif self.memory.messages(name) in BUFFERS and count_of(name, at) is not None:
            number, in_bytes = count_of(name, at), False
        else:
            raise Unclear
        if not in_bytes and (not size or datatype_bytes(arguments[number + 1]) != size):
            raise Unclear
        count = self.poly(arguments[number])
        if count is None:
            raise Unclear
        if in_bytes:
            if not size or any(part % size for part in count.values()):
                raise Unclear
            count = {key: part // size for key, part in count.items()}
        return count

    # ---- statements ----

    def stmt(self, stmt):
        """A statement, in the order of execution."""
        getattr(self, f"_{stmt.kind}", self._plain)(stmt)

    def _plain(self, stmt):
        if stmt.expr:
            self.expr(stmt.expr)
        for part in stmt.parts:
            if part:
                self.stmt(part)

    def _leave(self, stmt):
        if stmt.expr:
            self.expr(stmt.expr)
        self.result = self.poly(stmt.expr) if stmt.kind == "return" and stmt.expr else None
        # What follows may be left out.
        self.uncertain += 1

    _return = _break = _continue = _leave

    def _goto(self, stmt):
        self.jumped.setdefault(stmt.label, []).append((list(self.written), dict(self.versions)))
        self._leave(stmt)

    def _label(self, stmt):
        # One may come here without what stands before it: from jumps further up (after.py sees to that).
        for written, versions in self.jumped.pop(stmt.label, ()):
            self.written = [one for one in self.written if any(other.covers(one) for other in written)]
            for place, version in list(self.versions.items()):
                if versions.get(place, 0) != version:
                    self._lose(place)
        self._plain(stmt)

    def _switch(self, stmt):
        self.expr(stmt.expr)
        self.loosen(stmt.parts[0])
        outer, self.entry = self.entry, (list(self.written), list(self.lasting))
        self.maybe(lambda: self.stmt(stmt.parts[0]))
        self.entry = outer
        self.loosen(stmt.parts[0])

    def _case(self, stmt):
        # One may come here from the head of the switch.
        self.written, self.lasting = list(self.entry[0]), list(self.entry[1])
        self.numbers, self.pointers = {}, {}
        self._plain(stmt)

    _default = _case

    def _if(self, stmt):
        self.expr(stmt.expr)
        before = (list(self.written), list(self.lasting))
        numbers, pointers = dict(self.numbers), dict(self.pointers)
        uncertain = self.uncertain
        results, after = [], []
        for part in stmt.parts:
            self.written, self.lasting = list(before[0]), list(before[1])
            self.numbers, self.pointers = dict(numbers), dict(pointers)
            self.uncertain = uncertain
            if part:
                self.stmt(part)
            results.append((self.written[len(before[0]):], self.lasting[len(before[1]):]))
            after.append(self.uncertain)
        self.uncertain = max(after)
        both = [one for one in results[0][0] if any(other.covers(one) and one.covers(other) for other in results[1][0])]
        self.written = before[0] + both
        self.lasting = before[1] + ([] if self.uncertain > uncertain else both)
        self.numbers, self.pointers = numbers, pointers
        self.loosen(stmt)

    def loosen(self, stmt):
        """What a statement may have changed isn't known any more."""
        for expr in stmt.expressions():
            for access in self.memory.accesses(expr):
                self._changes(access, set())

    def _lose(self, place):
        """Its value may be another one, which isn't known."""
        self.change(place)
        if isinstance(place[0], Variable) and self.memory.content.get(place) and not self._object(place):
            self.pointers[place] = (("fresh", place, self.versions[place]), {})

    def _changes(self, access, seen):
        if access.kind == "write":
            for place in access.places:
                self._lose(place)
        for name in access.targets:
            if name in self.program.functions and name not in seen:
                seen.add(name)
                for expr in self.program.functions[name].body.expressions():
                    for inner in self.memory.accesses(expr):
                        self._changes(inner, seen)

    def _loop(self, stmt):
        if stmt.init:
            self.stmt(stmt.init)
        counter, low, high = self.bounds(stmt)
        entry = self.running(stmt) if counter is not None else {}
        self.loosen_body(stmt)
        symbol = None
        if counter is not None:
            self.change(counter)
            symbol = self.symbol(counter)
            self.loops.append((symbol, low, high))
        body = stmt.parts[0]

        def run():
            if stmt.expr and stmt.form != "do":
                self.expr(stmt.expr)
            self.stmt(body)
            if stmt.expr and stmt.form == "do":
                self.expr(stmt.expr)

        gains = self.gains(stmt, run, entry) if entry else {}
        self.begin_pass(entry, gains, symbol, low)
        made = self.inside(run)
        if counter is not None:
            self.loops.pop()
        if stmt.advance:
            self.expr(stmt.advance)
        self.loosen_body(stmt)
        self.end_loop(entry, gains, low, high)
        kinds = {one.kind for one in body.walk()}
        # A body that may not run at all writes nothing that each of its passes would write.
        runs = stmt.form == "do" or (counter is not None and at_least_zero(plus(high, low, -1)))
        if kinds & {"break", "return", "goto"}:
            # Its first pass writes them before the loop may be left.
            self.keep([one for one in made if runs and symbol not in one.used() and self._holds(one)])
        elif counter is not None or stmt.form == "do":
            whole = [one.over(symbol, low, high) if counter is not None else one for one in [*made, *joined(made)] if runs or one.depends(symbol)]
            self.keep([one for one in whole if one is not None and self._holds(one)])
        if kinds & {"return", "goto"}:
            self.uncertain += 1

    def _holds(self, section):
        """Whether its symbols still have their values."""
        for symbol in section.used():
            if not self.is_current(symbol):
                return False
        base = section.base
        return base[0] != "start" or base[2] == self.versions.get(base[1], 0)

    def loosen_body(self, stmt):
        for part in (*stmt.parts,):
            self.loosen(part)
        for expr in (stmt.advance, stmt.expr):
            if expr is not None:
                for access in self.memory.accesses(expr):
                    self._changes(access, set())

    def bounds(self, stmt):
        """(counter's location, first, last value) of a loop that counts up by 1, or None three times."""
        nothing = None, None, None
        condition, advance = stmt.expr, stmt.advance
        if stmt.form != "for" or condition is None or advance is None or condition.op != "binary" or condition.value not in ("<", "<="):
            return nothing
        counted = condition.args[0].args[0] if condition.args[0].op == "cast" else condition.args[0]
        place = self.alone(counted)
        if place is None or not self._steps_by_one(advance, {place}):
            return nothing
        written = set()
        for expr in stmt.parts[0].expressions():
            for access in self.memory.accesses(expr):
                self._writes(access, written, set())
        if place in written:
            return nothing
        low, last = self.numbers.get(place), self.poly(condition.args[1])
        read = {inner for access in self.memory.accesses(condition.args[1]) for inner in access.places}
        if low is None or last is None or read & written:
            return nothing
        return place, low, plus(last, constant(0 if condition.value == "<=" else 1), -1)

    def _writes(self, access, found, seen):
        """All that an access writes, with what it calls."""
        if access.kind == "write":
            found |= access.places
        for name in access.targets:
            if name in self.program.functions and name not in seen:
                seen.add(name)
                for expr in self.program.functions[name].body.expressions():
                    for inner in self.memory.accesses(expr):
                        self._writes(inner, found, seen)

    def _steps_by_one(self, advance, places):
        if advance.op == "step" and advance.value[0] == 1:
            return self.memory.places(advance.args[0]) == places
        return advance.op == "assign" and advance.value == "+=" and advance.args[1].value == 1 and self.memory.places(advance.args[0]) == places

    def restart(self, changed):
        """What follows comes after an unknown number of passes: values that may have changed are forgotten, sections that depend on them too."""
        for place in changed:
            self.change(place)
        self.numbers, self.pointers = {}, {}
        self.written = [one for one in self.lasting if self._holds(one) and one.base[0] == "object"]
        self.lasting = list(self.written)
        self.uncertain = 0
