"""Control flow: a function's body as a graph of nodes, and what dominates what in it."""

from dataclasses import dataclass, field

from .externals import NO_RETURN
from .parse_c import CannotParse


@dataclass(eq=False)
class Node:
    """kind: entry, exit, point (the place before a statement), expr, branch (successors: true, false), switch, halt (the program ends), join."""

    number: int
    kind: str
    expr: object = None
    stmt: object = None
    succ: list = field(default_factory=list)
    pred: list = field(default_factory=list)
    labels: list = field(default_factory=list)  # switch: for each successor its case's expression, or None

    def __repr__(self):
        return f"{self.number}{self.kind}"


class Graph:
    """The control flow of one function. `point` of a statement is the node before it."""

    def __init__(self, function):
        self.function = function
        self.nodes = []
        self.point = {}
        self.jumps = any(one.kind == "goto" for one in function.body.walk())
        self.entry, self.exit, self.halt = self.node("entry"), self.node("exit"), self.node("halt")
        self._labels, self._waiting = {}, []
        self._breaks, self._continues, self._cases = [], [], []
        last = self._stmt(function.body, self.entry)
        self._link(last, self.exit)
        for node, label in self._waiting:
            if label and label not in self._labels:
                raise CannotParse(f"{node.stmt.place}: where this jump leads ({label}) isn't seen")
            # A computed goto may lead to any label.
            for target in [self._labels[label]] if label else self._labels.values():
                self._link(node, target)
        self._after = None

    def node(self, kind, expr=None, stmt=None):
        made = Node(len(self.nodes), kind, expr, stmt)
        self.nodes.append(made)
        if stmt is not None:
            stmt.nodes.append(made)
        return made

    @staticmethod
    def _link(start, end):
        if start is not None and end is not None:
            start.succ.append(end)
            end.pred.append(start)

    def _add(self, last, kind, expr=None, stmt=None):
        made = self.node(kind, expr, stmt)
        self._link(last, made)
        return made

    def _stmt(self, stmt, last):
        """Nodes of a statement after `last` (None: it isn't reached by falling into it); the last of them."""
        point = self.node("point", None, stmt)
        self.point[stmt] = point
        self._link(last, point)
        return getattr(self, f"_{stmt.kind}")(stmt, point)

    def _expression(self, stmt, last, expr):
        if expr is None:
            return last
        made = self._add(last, "expr", expr, stmt)
        if any(part.op == "call" and part.args[0].op == "func" and part.args[0].value in NO_RETURN for part in certain(expr)):
            self._link(made, self.halt)
            return None
        return made

    def _block(self, stmt, last):
        for part in stmt.parts:
            last = self._stmt(part, last)
        return last

    def _expr(self, stmt, last):
        return self._expression(stmt, last, stmt.expr)

    _decl = _expr

    def _empty(self, _stmt, last):
        return last

    def _if(self, stmt, last):
        branch = self._add(last, "branch", stmt.expr, stmt)
        then, other = self.node("join"), self.node("join")
        self._link(branch, then)
        self._link(branch, other)
        after = self.node("join")
        self._link(self._stmt(stmt.parts[0], then), after)
        self._link(self._stmt(stmt.parts[1], other) if stmt.parts[1] else other, after)
        return after if after.pred else None

    def _loop(self, stmt, last):
        if stmt.init:
            last = self._stmt(stmt.init, last)
        after, again = self.node("join"), self.node("join")
        self._breaks.append(after)
        self._continues.append(again)
        if stmt.form == "do":
            start = self._add(last, "join")
            self._link(self._stmt(stmt.parts[0], start), again)
            branch = self._add(again, "branch", stmt.expr, stmt)
            self._link(branch, start)
            self._link(branch, after)
        else:
            head = self._add(last, "join")
            if stmt.expr is None:
                inside = head
            else:
                branch = self._add(head, "branch", stmt.expr, stmt)
                inside = self.node("join")
                self._link(branch, inside)
                self._link(branch, after)
            self._link(self._stmt(stmt.parts[0], inside), again)
            back = self._expression(stmt, again, stmt.advance)
            self._link(back, head)
        self._breaks.pop()
        self._continues.pop()
        return after if after.pred else None

    def _switch(self, stmt, last):
        switch = self._add(last, "switch", stmt.expr, stmt)
        after = self.node("join")
        self._breaks.append(after)
        self._cases.append((switch, []))
        self._link(self._stmt(stmt.parts[0], None), after)
        _, found = self._cases.pop()
        self._breaks.pop()
        if None not in switch.labels:
            switch.labels.append(None)
            self._link(switch, after)
        return after if after.pred else None

    def _case(self, stmt, last):
        target = self._add(last, "join")
        switch, _ = self._cases[-1]
        switch.labels.append(stmt.expr)
        self._link(switch, target)
        return self._stmt(stmt.parts[0], target)

    _default = _case

    def _label(self, stmt, last):
        target = self._add(last, "join")
        self._labels[stmt.label] = target
        return self._stmt(stmt.parts[0], target)

    def _goto(self, stmt, last):
        self._waiting.append((self._add(last, "join", None, stmt), stmt.label))

    def _break(self, stmt, last):
        self._link(self._add(last, "join", None, stmt), self._breaks[-1])

    def _continue(self, stmt, last):
        self._link(self._add(last, "join", None, stmt), self._continues[-1])

    def _return(self, stmt, last):
        self._link(self._add(last, "expr", stmt.expr, stmt) if stmt.expr else last, self.exit)

    # ---- what is derived ----

    def after(self, node):
        """The nearest node that each way from `node` to the function's end passes (its immediate post-dominator). Ways on which the program
        ends don't count. None: there is none."""
        if self._after is None:
            self._after = self._post_dominators()
        return self._after.get(node)

    def _post_dominators(self):
        order, seen = [], set()
        stack = [(self.exit, iter(self.exit.pred))]
        seen.add(self.exit)
        while stack:
            node, rest = stack[-1]
            for one in rest:
                if one not in seen:
                    seen.add(one)
                    stack.append((one, iter(one.pred)))
                    break
            else:
                order.append(node)
                stack.pop()
        rank = {node: at for at, node in enumerate(order)}
        above = {self.exit: self.exit}

        def meet(one, other):
            while one is not other:
                while rank[one] < rank[other]:
                    one = above[one]
                while rank[other] < rank[one]:
                    other = above[other]
            return one

        changed = True
        while changed:
            changed = False
            for node in reversed(order[:-1]):
                known = [one for one in node.succ if one in above]
                if not known:
                    continue
                best = known[0]
                for one in known[1:]:
                    best = meet(best, one)
                if above.get(node) is not best:
                    above[node] = best
                    changed = True
        above.pop(self.exit)
        return above

    def reached(self, starts, stop=()):
        """All nodes that can be reached from `starts`, those included, without passing `stop`."""
        found, left = set(), [one for one in starts if one not in stop]
        while left:
            node = left.pop()
            if node in found:
                continue
            found.add(node)
            left.extend(one for one in node.succ if one not in stop)
        return found


def certain(expr):
    """The parts of an expression that are evaluated whenever it is."""
    yield expr
    if expr.op == "cond" or (expr.op == "binary" and expr.value in ("&&", "||")):
        yield from certain(expr.args[0])
        return
    for part in expr.args:
        yield from certain(part)
