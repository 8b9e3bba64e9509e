"""What a restart leaves out on its way to a place: costly loops and calls whose results are registered."""

from .externals import ALLOCATE, HIDDEN_STATE, MESSAGES, MPI, STARTS_OR_ENDS, STREAMS, WRITES, effects

# Share of the program's cost from which on a part is left out, and from which on though more must be registered for that.
SKIP_SHARE, SKIP_GROWS = 0.01, 0.2
REQUIRED = {"setup", "end", "dup", "split", "make", "cart", "send_init", "recv_init", "request_free"}
REQUIRED_NAMES = {"free", "fopen", "fclose", "freopen", "tmpfile", "opendir", "closedir", "setvbuf", "MPI_Comm_free", "MPI_Type_commit", "MPI_Type_free", "MPI_Group_free", "MPI_Op_free", "mend_cc allocate", *ALLOCATE}


class Refused(Exception):
    """No checkpoint can be taken at a place: why."""


class Skips:
    """The part of Planner that decides it."""

    def _skips(self):
        for point in self.plan.points:
            left_out = set()
            chain = [(caller, node) for caller, node, _ in point.chain] + [(point.function, self.flow.graphs[point.function].point[point.stmt])]
            for function, target in reversed(chain):
                for stmt in reversed(self._before(function, target)):
                    self._may_skip(point, function, stmt, target, left_out)

    def _before(self, function, target):
        """Loops and calls in a function's blocks before a node, in order."""
        above, stmt, found = self.above[function], target.stmt, []
        while stmt in above:
            parent = above[stmt]
            if parent.kind == "block":
                found = [one for one in parent.parts[:parent.parts.index(stmt)] if one.kind in ("loop", "expr")] + found
            stmt = parent
        return found

    def _may_skip(self, point, function, stmt, target, left_out):
        """Whether a restart can leave out a loop or a call; what is registered for that is added to the point's."""
        nodes = {node for inner in stmt.walk() for node in inner.nodes}
        share = self._share(function, stmt)
        loops = stmt.kind == "loop" or any(inner.kind == "loop" for name in self.flow.called(nodes) if name in self.program.functions for inner in self.program.functions[name].body.walk())
        if share < SKIP_SHARE or not loops:
            return False
        kept, before = list(point.items), set(point.kept)
        left = set(left_out)
        generous = share >= SKIP_GROWS or any(one.loop is stmt for one in self.plan.points)
        chosen = self._leave_out(point, function, stmt, target, left, generous)
        if chosen is None:
            point.items, point.kept = kept, before
            return False
        left_out |= left
        for one in chosen:
            if point.number not in self.plan.skips.setdefault(one, []):
                self.plan.skips[one].append(point.number)
        return True

    def _leave_out(self, point, function, stmt, target, left_out, generous):
        """The statements that must be left out together, or None. Those that read what this one writes go with it."""
        nodes = {node for inner in stmt.walk() for node in inner.nodes}
        known = self.lockstep.points.get(stmt)
        called = self.flow.called(nodes)
        if stmt.place.macro or self._is_held(stmt) or known is None or (known.why or "").startswith("only some") or any(inner.kind in ("return", "goto") for inner in stmt.walk()):
            return None
        if any(name in REQUIRED_NAMES or name in HIDDEN_STATE or (name in MPI and MPI[name][1] in REQUIRED) for name in called):
            return None
        if any(name not in self.program.functions and effects(name) is None for name in called):
            return None
        if not self._in_step(function, stmt, called):
            return None
        if self._moves_a_stream(point, nodes, called):
            return None
        written = self._written(stmt)
        left_out |= nodes
        chosen = [stmt]
        for reader in self._readers(point, function, stmt, target, left_out, written):
            more = self._leave_out(point, function, reader, target, left_out, generous) if reader is not None and generous else None
            if more is None:
                return None
            chosen += more
        grows = [place for place in written if place in point.kept]
        if grows and not generous:
            return None
        names = {caller for caller, _, _ in point.chain} | {point.function}
        try:
            for place in sorted(grows, key=self._order):
                self._add(point, place, f"a restart leaves out what makes it (line {stmt.place.line})", names)
                point.kept.discard(place)
            self._close(point, names)
        except Refused:
            return None
        return chosen

    def _written(self, stmt):
        """Locations that a statement may write, but variables of its own."""
        inner = {one.variable for one in stmt.walk() if one.variable is not None}
        return {place for place in self.flow.changed({None: {node for part in stmt.walk() for node in part.nodes}}, ()) if place[0] not in inner}

    def _in_step(self, function, stmt, called):
        """Whether all ranks leave out the same messages, from both ends: none is in transit, and no request open, before the statement and after it."""
        if not any(self.memory.messages(name) in MESSAGES for name in called):
            return True
        beside = self.above[function][stmt].parts
        at = beside.index(stmt) + 1
        ends = [self.lockstep.points.get(one) for one in (stmt, *beside[at:at + 1])]
        return len(ends) == 2 and all(known is not None and not known.why for known in ends)

    def _moves_a_stream(self, point, nodes, called):
        """Whether something reads or writes that would be elsewhere for what comes after it. Files that are open at the place, and are written alone, are set to where they were."""
        exprs = [node.expr for node in nodes if node.expr is not None] + [expr for name in called if name in self.program.functions for expr in self.program.functions[name].body.expressions()]
        for call in (part for expr in exprs for part in expr.walk() if part.op == "call"):
            names = set(self.memory.callees(call))
            if None in names:
                # It may lead anywhere.
                return True
            for name in names & set(STREAMS):
                stream = call.args[1 + STREAMS[name]] if STREAMS[name] is not None and 1 + STREAMS[name] < len(call.args) else None
                while stream is not None and stream.op == "cast":
                    stream = stream.args[0]
                if stream is not None and stream.op == "var" and stream.value.name in ("stdout", "stderr"):
                    continue
                if stream is None or name not in WRITES or not self.memory.places(stream) <= point.kept:
                    return True
        return False

    def _readers(self, point, function, stmt, target, left_out, written):
        """Statements beside this one, on the way to the point, that read what it writes; None: others do."""
        graph = self.flow.graphs[function]
        start = {one for inner in stmt.walk() for node in inner.nodes for one in node.succ}
        between = self._on_the_way(graph, start, target) - left_out
        siblings = self.above[function][stmt].parts
        later = siblings[siblings.index(stmt) + 1:] if stmt in siblings else ()
        found = []
        for node in between:
            if not self._reads(node, written):
                continue
            home = [one for one in later if any(node in part.nodes for part in one.walk())]
            leads = bool(home) and any(target in part.nodes for part in home[0].walk())
            found.append(home[0] if home and home[0].kind in ("expr", "loop", "if") and not leads else None)
        inside = [(caller, node) for caller, node, _ in point.chain] + [(point.function, self.flow.graphs[point.function].point[point.stmt])]
        at = [caller for caller, _ in inside].index(function)
        for deeper, place in inside[at + 1:]:
            ways = self._on_the_way(self.flow.graphs[deeper], [self.flow.graphs[deeper].entry], place) - left_out
            if any(self._reads(node, written) for node in ways):
                found.append(None)
        return list(dict.fromkeys(found))

    @staticmethod
    def _on_the_way(graph, start, target):
        """Nodes between, until the target is first reached."""
        return {node for node in graph.reached(start, (target,)) if target in graph.reached([node])}

    def _reads(self, node, written):
        for access in self.flow.steps(node):
            if access.places & written and (access.kind == "read" or self._takes_requests(access)):
                return True
            if any((self.flow.may_read.get(name, frozenset()) | self._requests(name)) & written for name in access.targets):
                return True
        return False

    def _takes_requests(self, access):
        """Whether an access is that of a function to requests that others have made."""
        return access.kind == "write" and access.expr.op != "call" and self.memory.messages(access.external) in STARTS_OR_ENDS

    def _requests(self, name):
        """What such functions take in a function, and in what it calls."""
        if name not in self._taken:
            graphs = self.flow.graphs
            inside = {name, *self.flow.called(graphs[name].nodes)} & graphs.keys() if name in graphs else ()
            self._taken[name] = {place for one in inside for node in graphs[one].nodes for access in self.flow.steps(node) if self._takes_requests(access) for place in access.places}
        return self._taken[name]
