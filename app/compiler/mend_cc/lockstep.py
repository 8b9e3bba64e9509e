"""All ranks of a program at once: the analysis that finds where no message is in transit.

A message that was sent and not received is in transit. So where all ranks stand at the same execution of one place, and as many messages were sent as
receives have completed, none is: tags and partners don't matter for that. The analysis follows the control flow with the ranks in step, for several
numbers of ranks, and keeps the difference, with each rank's values as far as they are known (values.py). A condition that differs between ranks splits them until
their ways meet again; what lies between isn't a place that all come to. A condition that isn't known, and is the same on all ranks, is followed both ways:
where the ways meet, the difference must be the same on both, or is lost for good. So it is with loops: what an iteration sends it must receive.

It assumes that all ranks get the same command line, and that MPI functions that fail end the job."""

from . import values
from .alone import Alone
from .evaluate import Ends, Evaluate, Point
from .externals import MPI, effects
from .flow import Graph
from .memory import ARGV
from .mpi_calls import Calls
from .values import OTHER, SAME, join, known, spread, uniform

STEPS = 150_000  # of one number of ranks, before the analysis gives up
SIZES = 40  # numbers of ranks to try, at most
UNROLLED = 48  # executions of a branch whose condition is known


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


class Lockstep(Evaluate, Calls):
    """The analysis of one program. `points`: statement -> Point."""

    def __init__(self, program, memory, graphs):
        self.program, self.memory, self.graphs = program, memory, graphs
        self.single, self.named = Alone(program, memory), {}
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
        """Numbers of ranks to try: small ones, and those around constants that may decide. Larger constants decide nothing (values.py)."""
        found = {1, 2, 3, 4, 5, 6, 7, 8}
        for function in self.program.functions.values():
            for expr in function.body.expressions():
                for part in expr.walk():
                    for side in part.args if part.op == "binary" and part.value not in ("+", "-", "*") else ():
                        number = side.value if side.op == "const" and isinstance(side.value, int) else 0
                        if part.value in (">>", "<<") and 0 < number <= 6:
                            number = 2 ** number
                        if 8 <= number <= values.LARGEST:
                            found |= {number + 1, number + 2}
        return sorted(found)

    def run(self):
        main = self.program.functions.get("main")
        if not main:
            return
        sizes = self.sizes()
        if len(sizes) > SIZES or self.memory.wild is not None:
            self.program.cannot_see(self.memory.wild or main.place, "pointers made from numbers" if self.memory.wild else "too many constants that numbers of ranks may be compared with")
            return
        for ranks in sizes:
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
                state.env[place] = spread(SAME if getattr(variable, "undefined", False) else 0 if initial is None else OTHER, self.ranks)
            if initial is not None and initial.op == "list" and variable.type.kind == "array" and self.plain_list(initial):
                for at, part in enumerate(initial.args):
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
        if len(group) == self.ranks:
            same = {key for key, value in state.env.items() if len(key) == 2 and uniform(value, group)}
            same -= {key[:2] for key, value in state.env.items() if len(key) == 3 and not uniform(value, group)}
            point.same = same if point.same is None else point.same & same
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


def graphs_of(program):
    """The control flow of each function."""
    return {name: Graph(function) for name, function in program.functions.items()}
