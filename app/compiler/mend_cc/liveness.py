"""What of memory is needed after a place, and what changes between two passes of it: data flow over the whole program.

A location is live at a place if it may be read after it before it is written. The chain of calls that leads to the place is followed back to main, so
that what callers need after their call counts. Arrays are judged by sections.py, since whether all of one is written first takes more than this."""

from .externals import HIDDEN_STATE, MPI, UNREPEATABLE
from .ir import Variable, straight
from .memory import UNKNOWN

# A new run's clock is its own.
CLOCKS = {"MPI_Wtime", "clock", "omp_get_wtime", "clock_gettime", "gettimeofday", "gethostname"}
# Kinds of MPI's functions that send from rank to rank, and that receive.
SENDS, RECEIVES = {"send", "isend", "sendrecv", "send_init"}, {"recv", "irecv", "sendrecv", "recv_init"}


class NoChain(Exception):
    """The place is reached by several chains of calls."""


def _root(expr):
    """The pointer that an expression's location is reached from in one step, or None. Of a pointer that is itself loaded through one nothing is known."""
    while expr is not None:
        if expr.op == "var":
            return expr.value
        if expr.op == "deref" or (expr.op == "index" and expr.args[0].type and expr.args[0].type.kind == "pointer"):
            return _pointer(expr.args[0])
        if expr.op not in ("cast", "member", "index"):
            return None
        expr = expr.args[0]
    return None


def _pointer(expr):
    """The variable whose value a pointer's value is, moved within its object at most, or None."""
    while expr.op == "cast" or (expr.op == "binary" and expr.value in ("+", "-")):
        expr = expr.args[0]
    if expr.op == "addr":
        return _root(expr.args[0])
    return expr.value if expr.op == "var" else None


class Flow:
    """Summaries of all functions: what each reads before it writes it, surely writes, may write."""

    def __init__(self, program, memory, graphs):
        self.program, self.memory, self.graphs = program, memory, graphs
        self._steps, self._given, self._bound_writes, self._under = {}, {}, {}, {}
        self.calls = {name: [] for name in program.functions}
        for name, graph in graphs.items():
            for node in graph.nodes:
                for at, access in enumerate(self.steps(node)):
                    for target in access.targets:
                        if access.kind == "call" and target in self.calls:
                            self.calls[target].append((name, node, at))
        self.may_write = self._closure("write")
        self.may_read = self._closure("read")
        self.must_write = {name: frozenset() for name in graphs}
        self.exposed = {name: frozenset() for name in graphs}
        for _ in range(2 + len(graphs)):
            before = dict(self.must_write)
            for name, graph in graphs.items():
                self.must_write[name] = self._surely(graph)
            if before == self.must_write:
                break
        changed = True
        while changed:
            changed = False
            for name, graph in graphs.items():
                live = self.live(graph, frozenset())[graph.entry]
                mine = frozenset(place for place in live if not (isinstance(place[0], Variable) and place[0].function == name and place[0].scope in ("local", "param")))
                if mine != self.exposed[name]:
                    self.exposed[name], changed = mine, True

    def steps(self, node):
        """A node's accesses, in order."""
        if node not in self._steps:
            self._steps[node] = list(self.memory.accesses(node.expr)) if node.expr is not None else []
        return self._steps[node]

    def _closure(self, kind):
        """For each function all that it, and what it calls, may read or write."""
        own = {name: frozenset(place for node in graph.nodes for access in self.steps(node) if access.kind == kind for place in access.places) for name, graph in self.graphs.items()}
        below = {name: {target for node in graph.nodes for access in self.steps(node) for target in access.targets if target in self.graphs} for name, graph in self.graphs.items()}
        changed = True
        while changed:
            changed = False
            for name in own:
                grown = own[name].union(*(own[target] for target in below[name]))
                if grown != own[name]:
                    own[name], changed = grown, True
        return own

    def _surely(self, graph):
        """Locations that are written on every way through a function."""
        everything = None
        out = {graph.exit: frozenset()}
        order = [node for node in graph.nodes if node is not graph.exit]
        changed = True
        while changed:
            changed = False
            for node in reversed(order):
                parts = [out.get(one, everything) for one in node.succ]
                known = [part for part in parts if part is not None]
                if node.kind == "halt" or not node.succ or not known:
                    continue
                below = known[0].intersection(*known[1:]) | self._kills(node)
                if out.get(node) != below:
                    out[node], changed = below, True
        return out.get(graph.entry, frozenset())

    def _kills(self, node):
        found = set()
        for access in self.steps(node):
            if access.kind == "write" and access.must:
                found |= access.places
            elif access.kind == "write":
                found |= self._through(access.through)
            elif access.kind == "call" and len(access.targets) == 1 and access.must:
                found |= self._written_by(access)
        return found

    def _through(self, pointer):
        """What stands for all that a pointer leads to which a function was given, and keeps: which location that is, the call tells."""
        parameter = pointer.value if pointer is not None and pointer.op == "var" else None
        kept = getattr(parameter, "scope", None) == "param" and parameter not in self._assigned(parameter.function)
        return frozenset({(parameter, "whole")}) if kept else frozenset()

    def _written_by(self, access):
        """Locations that a call surely writes, with those that its arguments are the addresses of."""
        name, call = access.targets[0], access.expr
        found, mine = set(self.must_write.get(name, ())), {}
        function = self.program.functions.get(name)
        if function is not None and call.op == "call" and call.args[0].op == "func":
            mine = dict(zip(function.params, call.args[1:]))
        for place in [one for one in found if one[1] == "whole"]:
            found.discard(place)
            argument, kind = mine.get(place[0]), place[0].type.element
            if argument is None:
                continue
            argument = straight(argument)
            if argument.op == "var" and argument.type.kind == "pointer" and argument.type.element.size == kind.size:
                found |= self._through(argument)
            elif argument.op == "addr" and self.memory.whole(argument.args[0]) and argument.args[0].type.size == kind.size:
                found |= self.memory.leaves(next(iter(self.memory.places(argument.args[0]))))
        return frozenset(found)

    def before(self, steps, live):
        """Live locations before some accesses, where `live` are after them."""
        live = set(live)
        for access in reversed(steps):
            if access.kind == "read":
                live |= access.places
            elif access.kind == "write" and access.must:
                live -= access.places
            elif access.kind == "call":
                if len(access.targets) == 1 and access.must:
                    live -= self._written_by(access)
                for target in access.targets:
                    live |= self.exposed.get(target, frozenset())
        return live

    def live(self, graph, at_exit):
        """For each node what is live before it."""
        found = {node: frozenset() for node in graph.nodes}
        found[graph.exit] = frozenset(at_exit)
        left = list(graph.nodes)
        while left:
            node = left.pop()
            if node is graph.exit:
                continue
            after = frozenset().union(*(found[one] for one in node.succ)) if node.succ else frozenset()
            now = frozenset(self.before(self.steps(node), after))
            if now != found[node]:
                found[node] = now
                left.extend(node.pred)
        return found

    # ---- one place ----

    def chain(self, name):
        """The calls that lead to a function, outermost first: (caller, node, number of the access). NoChain: there are several, or none."""
        found, seen = [], set()
        while name != "main":
            callers = self.calls.get(name, [])
            if name in seen or len(callers) != 1:
                raise NoChain(f"{self.program.functions[name].source}() is called from {len(callers)} places" if name not in seen else "it is in a function that calls itself")
            seen.add(name)
            found.insert(0, callers[0])
            name = callers[0][0]
        return found

    def live_at(self, name, node):
        """(function, locations) for each function of the chain: what is live at the place, and what is live after each call that leads to it."""
        chain = self.chain(name)
        at_exit, levels = frozenset(), []
        for caller, call, number in chain:
            graph = self.graphs[caller]
            live = self.live(graph, at_exit)
            after = frozenset().union(*(live[one] for one in call.succ)) if call.succ else frozenset()
            at_exit = frozenset(self.before(self.steps(call)[number + 1:], after))
            levels.append((caller, at_exit))
        levels.append((name, self.live(self.graphs[name], at_exit)[node]))
        return levels

    def cycle(self, name, node):
        """Nodes that may run between two passes of a place, by function; empty: it is passed once."""
        found = {}
        places = [(caller, call) for caller, call, _ in self.chain(name)] + [(name, node)]
        whole = False
        for function, at in places:
            graph = self.graphs[function]
            forward = graph.reached(at.succ)
            if whole:
                found[function] = set(graph.nodes)
            elif at in forward:
                found[function] = {one for one in forward if at in graph.reached([one])}
                whole = True
        return found

    def changed(self, cycle, inner):
        """Locations that may be written in these nodes, and in what they call (functions of `inner` count by their nodes alone)."""
        found, bound = set(), []
        for nodes in cycle.values():
            for node in nodes:
                for access in self.steps(node):
                    if access.kind == "write" and access.expr.op == "call" and not access.external:
                        bound.append(access)
                    elif access.kind == "write":
                        found |= access.places
                    for target in access.targets:
                        if target in self.may_write and target not in inner:
                            found |= self._writes(target, self._bind(target, access.expr, {}), frozenset())
        for _ in bound:
            # A parameter changes where what is given for it may.
            for access in bound:
                if not access.places <= found and self._may_differ(access, found):
                    found |= access.places
        return found

    def _may_differ(self, access, changed):
        call = access.expr
        for name in self.memory.callees(call):
            function = self.program.functions.get(name)
            for parameter, argument in zip(function.params if function else (), call.args[1:]):
                if (parameter, ()) in access.places or access.places <= self.memory.leaves((parameter, ())):
                    return any(part.op in ("call", "opaque") for part in argument.walk()) or any(one.places & changed for one in self.memory.accesses(argument) if one.kind == "read")
        return True

    def _bind(self, name, call, outer):
        """What the pointers that a call gives to a function lead to, for parameters that keep what they got. `outer`: the same of the caller."""
        found = {}
        for parameter, argument in zip(self.program.functions[name].params, call.args[1:]):
            if parameter.type.kind == "pointer" and parameter not in self._assigned(name):
                targets = {thing for thing, _ in self.memory.targets(argument)}
                root = _pointer(argument)
                found[parameter] = frozenset(targets & outer[root] if root in outer else targets)
        return found

    def _assigned(self, name):
        if name not in self._given:
            self._given[name] = {part.args[0].value for expr in self.program.functions[name].body.expressions() for part in expr.walk()
                                 if part.op in ("assign", "step", "addr") and part.args[0].op == "var"}
        return self._given[name]

    def _writes(self, name, bound, stack):
        """What a function may write where its pointers lead to what is given."""
        key = (name, frozenset(bound.items()))
        if key in self._bound_writes:
            return self._bound_writes[key]
        if name in stack:
            return self.may_write[name]
        found = set()
        for node in self.graphs[name].nodes:
            for access in self.steps(node):
                if access.kind == "write":
                    # What a function without a body writes is where its argument leads.
                    root = _pointer(access.expr) if access.external else _root(access.expr)
                    found |= {place for place in access.places if place[0] in bound[root] or place[0] is root} if root in bound else access.places
                for target in access.targets:
                    if target in self.graphs and len(self.memory.callees(access.expr)) == 1 and access.expr.args[0].op == "func" and access.expr.args[0].value == target:
                        found |= self._writes(target, self._bind(target, access.expr, bound), stack | {name})
                    elif target in self.graphs:
                        found |= self.may_write[target]
        self._bound_writes[key] = found
        return found

    def called(self, nodes):
        """Names of all functions that these nodes may call, at any depth."""
        found, left = set(), []
        for node in nodes:
            if node.expr is not None:
                left.extend(self._names(node.expr))
        while left:
            name = left.pop()
            if name in found:
                continue
            found.add(name)
            if name in self.program.functions:
                for expr in self.program.functions[name].body.expressions():
                    left.extend(self._names(expr))
        return found

    def _names(self, expr):
        return [name for part in expr.walk() if part.op == "call" for name in self.memory.callees(part) if name]

    def unrepeatable(self):
        """Locations whose value another run may not make again, where clocks don't count: by data, by what decides whether they are written, and by messages."""
        sources = (UNREPEATABLE | HIDDEN_STATE) - CLOCKS
        tainted, results, sent = set(), set(), False
        before = None
        while before != (len(tainted), len(results), sent):
            before = (len(tainted), len(results), sent)
            for name, graph in self.graphs.items():
                dirty = {node for node in graph.nodes if node.expr is not None and self._is_dirty(node, tainted, sources | results)}
                decided = set().union(*(self._decided(graph, node) for node in dirty if node.kind in ("branch", "switch")))
                for node in dirty | decided:
                    if node.stmt is not None and node.stmt.kind == "return" and node.expr is not None:
                        results.add(name)
                    for access in self.steps(node):
                        if access.kind == "write" and node in dirty:
                            tainted |= access.places
                        elif access.kind == "write":
                            tainted |= self._data(access.places)
                        for target in access.targets if node in decided else ():
                            tainted |= self._data(self.may_write.get(target, ()))
                            results.add(target)
                        sent = sent or (access.kind == "read" and self._message(access) in SENDS and bool(access.places & tainted))
            if sent:
                tainted |= self._data(place for graph in self.graphs.values() for node in graph.nodes for access in self.steps(node) if access.kind == "write" and self._message(access) in RECEIVES
                                      for place in access.places)
        tainted.discard((UNKNOWN, ()))
        return tainted

    def _is_dirty(self, node, tainted, sources):
        return any(access.kind == "read" and access.places & tainted for access in self.steps(node)) or any(name in sources for name in self._names(node.expr))

    @staticmethod
    def _message(access):
        return MPI[access.external][1] if access.external in MPI else None

    def _decided(self, graph, node):
        """Nodes of which a branch decides whether, or how often, they run."""
        if node not in self._under:
            after = graph.after(node)
            self._under[node] = graph.reached(node.succ, (after,) if after is not None else ())
        return self._under[node]

    def _data(self, places):
        """Those that can be registered: handles are made again."""
        return {place for place in places if self._is_data(place)}

    def _is_data(self, place):
        kind = self.memory.type_at(place) if getattr(place[0], "type", None) is not None else None
        kind = kind.scalar() if kind is not None else None
        return kind is not None and kind.kind not in ("opaque", "function") and not (kind.kind == "pointer" and kind.element.kind in ("opaque", "function"))
