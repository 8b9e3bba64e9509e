"""All ranks of a program at once: the analysis that finds where no message is in transit.

A message that was sent and not received is in transit. So where all ranks stand at the same execution of one place, and as many messages were sent as
receives have completed, none is: tags and partners don't matter for that. The analysis follows the control flow with the ranks in step, for several
numbers of ranks, and keeps the difference, with each rank's values as far as they are known (values.py). A condition that differs between ranks splits them until
their ways meet again; what lies between isn't a place that all come to. A condition that isn't known, and is the same on all ranks, is followed both ways:
where the ways meet, the difference must be the same on both, or is lost for good. So it is with loops: what an iteration sends it must receive.

It assumes that all ranks get the same command line, and that MPI functions that fail end the job."""

from . import values
from .externals import HIDDEN_STATE, MPI, NO_RETURN, PURE, UNREPEATABLE, effects
from .flow import Graph
from .ir import Expr, Variable
from .memory import ARGV, Heap, Mark
from .mpi_calls import Calls
from .values import OTHER, SAME, join, known, put, spread, uniform

STEPS = 150_000  # of one number of ranks, before the analysis gives up
UNROLLED = 48  # executions of a branch whose condition is known


class Ends(Exception):
    """The program ends here on the ranks that are looked at."""


class TooLong(Exception):
    """The analysis takes too many steps."""


class State:
    """What holds at a place. `sent`: sends less completed receives of the group, None: not known. `open`: for each rank the requests that may be active."""

    __slots__ = ("env", "sent", "open", "written")

    def __init__(self, env, sent, open_, written):
        self.env, self.sent, self.open, self.written = env, sent, open_, written

    def copy(self):
        return State(dict(self.env), self.sent, self.open, set(self.written))

    def take(self, other):
        self.env, self.sent, self.open, self.written = other.env, other.sent, other.open, other.written


class Point:
    """What is known of the place before a statement. `why`: why it isn't safe, or None; `same`: locations with one value on all ranks."""

    __slots__ = ("seen", "why", "same")

    def __init__(self):
        self.seen, self.why, self.same = False, None, None


class Lockstep(Calls):
    """The analysis of one program. `points`: statement -> Point."""

    def __init__(self, program, memory, graphs):
        self.program, self.memory, self.graphs = program, memory, graphs
        self.points = {}
        self._limits = {}
        self.talking = self._talking()
        self.tried = []

    def _talking(self):
        """Functions in which a message may be sent, themselves or in what they call."""
        direct, calls = set(), {}
        for name, function in self.program.functions.items():
            calls[name] = set()
            for expr in function.body.expressions():
                for part in expr.walk():
                    if part.op == "call":
                        for callee in self.memory.callees(part):
                            if callee in self.program.functions:
                                calls[name].add(callee)
                            elif callee is None or callee.startswith("MPI_") or effects(callee) is None:
                                direct.add(name)
        changed = True
        while changed:
            grown = {name for name, below in calls.items() if below & direct} | direct
            changed, direct = grown != direct, grown
        return direct

    def sizes(self):
        """Numbers of ranks to try: small ones, and those around constants that something is compared with."""
        found = {1, 2, 3, 4, 5, 6, 7, 8}
        for function in self.program.functions.values():
            for expr in function.body.expressions():
                for part in expr.walk():
                    if part.op == "binary" and part.value in values.COMPARISONS:
                        for side in part.args:
                            if side.op == "const" and isinstance(side.value, int) and 8 <= side.value <= values.LARGEST:
                                found |= {side.value + 1, side.value + 2}
        return sorted(found)[:16]

    def run(self):
        main = self.program.functions.get("main")
        if not main:
            return
        for ranks in self.sizes():
            self.ranks, self.steps, self.stack, self.split = ranks, 0, [], 0
            self.tried.append(ranks)
            state = State({}, 0, (frozenset(),) * ranks, set())
            self._start(state)
            try:
                self._walk(self.graphs["main"], self.graphs["main"].entry, state, frozenset({self.graphs["main"].exit}), tuple(range(ranks)))
            except Ends:
                pass
            except TooLong:
                for point in self.points.values():
                    point.why = point.why or "the program is too large for the analysis"
                return

    def _start(self, state):
        main = self.program.functions["main"]
        for parameter in main.params:
            state.env[(parameter, ())] = spread(SAME, self.ranks)
        state.env[(ARGV, ())] = spread(SAME, self.ranks)
        statics = [one for function in self.program.functions.values() for one in function.variables if one.scope == "static"]
        for variable in [*self.program.globals, *statics]:
            initial = getattr(variable, "initial", None)
            for place in self.memory.leaves((variable, ())):
                state.env[place] = spread(0 if initial is None else OTHER, self.ranks)
            if initial is not None and initial.op == "list" and variable.type.kind == "array":
                for at, part in enumerate(initial.args[:64]):
                    state.env[(variable, (), at)] = self._eval(part, state, tuple(range(self.ranks)))
                state.env[(variable, ())] = spread(0, self.ranks)
            elif initial is not None and initial.op != "list":
                state.env[(variable, ())] = self._eval(initial, state, tuple(range(self.ranks)))

    # ---- ways ----

    def _walk(self, graph, node, state, stop, group):
        """From `node` on to nodes of `stop`: states there."""
        passed = {}
        while True:
            if node in stop:
                return {node: state}
            self.steps += 1
            if self.steps > STEPS:
                raise TooLong
            if node.kind in ("halt", "exit"):
                return {}
            if node.kind == "point":
                self._visit(node, state, group)
            elif node.kind == "expr":
                try:
                    value = self._eval(node.expr, state, group)
                except Ends:
                    return {}
                if node.stmt is not None and node.stmt.kind == "return":
                    self._set((("result", graph.function.name), ()), value, state, group)
            elif node.kind in ("branch", "switch"):
                try:
                    ways = self._ways(node, state, group)
                except Ends:
                    return {}
                passed[node] = passed.get(node, 0) + 1
                distinct = {ways[rank] for rank in group}
                decided = len(distinct) == 1 and None not in distinct
                if decided and passed[node] <= self._patience(graph, node):
                    node = node.succ[distinct.pop()]
                    continue
                if decided or len(group) == 1 or (distinct == {None} and self._agree):
                    found = self._both(graph, node, state, stop, group)
                else:
                    found = self._apart(graph, node, state, stop, group, ways)
                after = graph.after(node)
                if after is None or after in stop or after not in found:
                    return found
                state = found.pop(after)
                if found:
                    return self._merge(found, self._walk(graph, after, state, stop, group), group)
                node = after
                continue
            if not node.succ:
                return {}
            node = node.succ[0]

    def _patience(self, graph, node):
        """How often a branch is followed by its known condition: seldom in loops without messages."""
        known_limit = self._limits.get(node)
        if known_limit is None:
            after = graph.after(node)
            inside = graph.reached(node.succ, {after} if after is not None else ())
            talks = any(part.op == "call" and any(name is None or name in self.talking or name in MPI for name in self.memory.callees(part))
                        for one in inside if one.expr is not None for part in one.expr.walk())
            nested = sum(one.kind == "branch" and one.stmt.kind == "loop" for one in inside) > 1
            known_limit = self._limits[node] = UNROLLED if talks or node not in inside else 0 if nested else 12
        return known_limit

    def _ways(self, node, state, group):
        """For each rank the number of the successor, or None: not known. Sets `_agree`: not known, but the same on all ranks."""
        value = self._eval(node.expr, state, group)
        self._agree = uniform(value, group)
        ways = [None] * self.ranks
        labels = None
        if node.kind == "switch":
            labels = [None if label is None else self._eval(label, state, group) for label in node.labels]
        for rank in group:
            if not known(value[rank]):
                continue
            if labels is None:
                ways[rank] = 0 if value[rank] else 1
            else:
                hits = [at for at, label in enumerate(labels) if label is not None and label[rank] == value[rank]]
                ways[rank] = hits[0] if hits else labels.index(None)
        return ways

    def _both(self, graph, node, state, stop, group):
        """A condition that isn't known, and that all ranks of the group meet alike."""
        after = graph.after(node)
        ends = stop | {after} if after is not None else stop
        around = node in graph.reached(node.succ, ends)
        current, found = state, {}
        for _ in range(60):
            found = {}
            for way in node.succ:
                found = self._merge(found, self._walk(graph, way, current.copy(), ends | {node} if around else ends, group), group)
            again = found.pop(node, None) if around else None
            if again is None:
                break
            grown = self._join(current, again, group)
            if self._equal(grown, current):
                break
            current = grown
            try:
                self._ways(node, current, group)
            except Ends:
                break
        return found

    def _apart(self, graph, node, state, stop, group, ways):
        """A condition that differs between ranks: each goes its own way until all meet."""
        after = graph.after(node)
        ends = stop | {after} if after is not None else stop
        arrived = []
        self.split += 1
        try:
            for rank in group:
                own = state.copy()
                own.sent, own.written = (0 if state.sent is not None else None), set()
                if ways[rank] is None:
                    found = self._both(graph, node, own, ends, (rank,))
                else:
                    found = self._walk(graph, node.succ[ways[rank]], own, ends, (rank,))
                if not found:
                    # The job ends with it.
                    return {}
                arrived.append((rank, found))
        finally:
            self.split -= 1
        met = {end for _, found in arrived for end in found}
        whole = len(met) == 1
        results = {}
        for end in met:
            merged = state.copy()
            lost = set()
            total = state.sent
            opened = list(state.open)
            for rank, found in arrived:
                own = found.get(end)
                if own is None:
                    own = next(iter(found.values()))
                lost |= own.written
                total = None if total is None or own.sent is None else total + own.sent
                opened[rank] = own.open[rank]
            for key in lost:
                entries = list(merged.env.get(key, spread(OTHER, self.ranks)))
                for rank, found in arrived:
                    own = found.get(end) or next(iter(found.values()))
                    value = own.env.get(key, spread(OTHER, self.ranks))[rank]
                    entries[rank] = OTHER if value == SAME else value
                merged.env[key] = tuple(entries)
            merged.sent, merged.open = (total if whole else None), tuple(opened)
            merged.written = state.written | lost
            results[end] = merged
        return results

    def _merge(self, one, other, group):
        made = dict(one)
        for node, state in other.items():
            made[node] = self._join(made[node], state, group) if node in made else state
        return made

    def _join(self, one, other, group):
        env = dict(one.env)
        nothing = spread(OTHER, self.ranks)
        for key in one.env.keys() | other.env.keys():
            a, b = self._look(one, key, nothing), self._look(other, key, nothing)
            if a != b:
                env[key] = join(a, b, group)
        opened = tuple(a | b for a, b in zip(one.open, other.open))
        return State(env, one.sent if one.sent == other.sent else None, opened, one.written | other.written)

    @staticmethod
    def _look(state, key, nothing):
        found = state.env.get(key)
        if found is None and len(key) == 3:
            found = state.env.get(key[:2])
        return nothing if found is None else found

    @staticmethod
    def _equal(one, other):
        return one.sent == other.sent and one.open == other.open and one.env == other.env

    def _visit(self, node, state, group):
        point = self.points.setdefault(node.stmt, Point())
        point.seen = True
        if point.why:
            return
        if self.split:
            point.why = "only some ranks may come here, or not equally often"
        elif state.sent is None:
            point.why = "how many messages are in transit isn't known"
        elif state.sent:
            point.why = f"of {self.ranks} ranks {abs(state.sent)} {'messages are' if state.sent > 1 else 'message is'} in transit"
        elif any(state.open):
            point.why = "a request is open"
        if len(group) == self.ranks:
            same = {key for key, value in state.env.items() if len(key) == 2 and uniform(value, group)}
            same -= {key[:2] for key, value in state.env.items() if len(key) == 3 and not uniform(value, group)}
            point.same = same if point.same is None else point.same & same

    # ---- expressions ----

    def _set(self, key, value, state, group):
        old = state.env.get(key)
        state.env[key] = put(old if old is not None else spread(OTHER, self.ranks), value, group)
        state.written.add(key)

    def _slots(self, expr, state, group):
        """Keys of what an expression names, for each a list of index by rank or None; and whether a write there replaces what was there."""
        index = None
        base = expr
        if base.op == "index" and base.args[0].type and base.args[0].type.kind == "array":
            index = self._eval(base.args[1], state, group)
            base = base.args[0]
            while base.op == "index" and base.args[0].type and base.args[0].type.kind == "array":
                count = base.type.count
                outer = self._eval(base.args[1], state, group)
                index = values.binary("+", index, values.binary("*", outer, spread(count if count else OTHER, self.ranks), group), group)
                base = base.args[0]
        elif base.op in ("index", "deref"):
            self._eval(base.args[0], state, group)
            if base.op == "index":
                index = self._eval(base.args[1], state, group)
        places = self.memory.places(expr)
        leaves = [leaf for place in places for leaf in self.memory.leaves(place)]
        single = len(leaves) == 1 and isinstance(leaves[0][0], Variable)
        array = index is not None or not single or leaves[0][0].type.kind == "array"
        exact = single and index is not None and leaves[0][0].type.kind == "array" and expr.op == "index" and expr.args[0].type.kind == "array" and all(isinstance(index[rank], int) for rank in group)
        alike = index is None or uniform(index, group)
        if exact:
            return [leaves[0]], index, True, alike
        return leaves, None, single and not array, alike

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
        for leaf in leaves:
            parts = [state.env.get(leaf, spread(OTHER, self.ranks))]
            if leaf[0].__class__ is Variable and leaf[0].type.kind == "array":
                parts += [value for key, value in state.env.items() if len(key) == 3 and key[0] is leaf[0] and key[1] == leaf[1]]
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
                    continue
                self._set(key, put(state.env.get(key, state.env.get(leaves[0], spread(OTHER, self.ranks))), value, (rank,)), state, (rank,))
            return
        for leaf in leaves:
            self._write_leaf(leaf, value, state, group, replaces)

    def _write_leaf(self, leaf, value, state, group, replaces):
        if replaces:
            self._set(leaf, value, state, group)
            return
        keys = [leaf] + [key for key in state.env if len(key) == 3 and key[0] is leaf[0] and key[1] == leaf[1]]
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
                for at, part in enumerate(expr.args[1].args[:64]):
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
        for part in expr.args:
            self._eval(part, state, group)
        if operator == "opaque":
            state.sent = None
        return spread(OTHER, self.ranks)

    def _pointer_sum(self, expr, one, other):
        made = [OTHER] * self.ranks
        for rank in range(self.ranks):
            a, b = one[rank], other[rank]
            if isinstance(b, tuple) and expr.value == "+":
                a, b = b, a
            if isinstance(a, tuple) and a[0] == "ptr" and isinstance(b, int) and expr.value in "+-":
                made[rank] = (*a[:3], a[3] + (b if expr.value == "+" else -b))
        return tuple(made)

    def _pointer_to(self, target, state, group):
        """The address of a variable or of an array's element, where it is known."""
        made = [OTHER] * self.ranks
        if target.op == "index" and not (target.args[0].type and target.args[0].type.kind == "array"):
            # p + i
            pointers, index = self._eval(target.args[0], state, group), self._eval(target.args[1], state, group)
            for rank in group:
                if isinstance(pointers[rank], tuple) and pointers[rank][0] == "ptr" and isinstance(index[rank], int):
                    made[rank] = (*pointers[rank][:3], pointers[rank][3] + index[rank])
            return tuple(made)
        if target.op == "deref":
            return self._eval(target.args[0], state, group)
        if target.op in ("var", "index", "member"):
            leaves, index, _, _ = self._slots(target, state, group)
            if len(leaves) == 1 and isinstance(leaves[0][0], Variable):
                for rank in group:
                    made[rank] = ("ptr", *leaves[0], 0 if index is None and target.op != "index" else index[rank] if index is not None else None)
                return tuple(OTHER if isinstance(one, tuple) and one[3] is None else one for one in made)
        return tuple(made)

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
        if effects(name) is None:
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


def graphs_of(program):
    """The control flow of each function."""
    return {name: Graph(function) for name, function in program.functions.items()}
