"""What is to be done to a program: at which places checkpoints are taken, what is registered there, what a restart leaves out."""

import re
from dataclasses import dataclass, field

from .after import walk_after
from .directives import excluded_names
from .early import before_init
from .externals import HIDDEN_STATE, MPI
from .ir import Variable, holds_allocatable, is_plain, named, parent_map
from .liveness import NoChain
from .memory import Heap, Mark
from .skips import Refused, Skips
from .units import written_across

# Share of the program's cost from which on a loop gets a place for checkpoints.
LOOP_SHARE = 0.05
ITERATIONS = 100  # of a loop whose number isn't known
FEW = 10  # fewer iterations than this make a loop a bad place
ALL = frozenset({()})


def blocks_of(memory, variables, named):
    """Blocks of memory with these names that variables lead to."""
    found, left = set(), list(variables)
    while left:
        holder = left.pop()
        for (thing, _), targets in memory.content.items():
            if thing is holder:
                more = {target for target, _ in targets if isinstance(target, Heap) and target.name in named} - found
                found |= more
                left += more
    return found


@dataclass(eq=False)
class Item:
    """Something that is registered: `place` is its location, `why` for the report."""

    place: tuple
    why: str
    level: int = 0  # the function of the chain whose it is; -1: a global
    fields: frozenset = ALL  # of an array of structures with pointers: paths of the fields that are registered

    def has(self, path):
        """Whether it takes in a location of its variable."""
        depth = len(self.place[1])
        return path[:depth] == self.place[1] and any(path[depth:][:len(one)] == one for one in self.fields)


@dataclass(eq=False)
class Point:
    """A place where checkpoints are taken."""

    number: int
    function: str
    stmt: object
    loop: object
    chain: list
    items: list = field(default_factory=list)
    kept: set = field(default_factory=set)  # live, but made again by running again
    dead: set = field(default_factory=set)
    excluded: set = field(default_factory=set)  # names in directives
    left_out: set = field(default_factory=set)  # blocks of memory that excluded variables lead to
    replicated: set = field(default_factory=set)
    files: set = field(default_factory=set)
    forced: bool = False
    warnings: list = field(default_factory=list)
    walk: object = None  # what comes after it, statement by statement; None: that isn't told
    changed: set = field(default_factory=set)
    unmade: set = field(default_factory=set)  # locations that a restart doesn't make as they were when the place was first reached


@dataclass
class Plan:
    """All of it. `skips`: statement -> numbers of the places for which a restart leaves it out."""

    points: list = field(default_factory=list)
    skips: dict = field(default_factory=dict)
    refused: list = field(default_factory=list)  # (Place, why)
    considered: list = field(default_factory=list)  # (statement, share of the cost, what came of it)
    early: set = field(default_factory=set)  # calls that may run before MPI_Init has returned


class Planner(Skips):
    """Decides by the results of the analysis. `drop`: names that aren't registered though they should be (tests)."""

    def __init__(self, program, memory, flow, lockstep, drop=()):
        self.program, self.memory, self.flow, self.lockstep, self.drop = program, memory, flow, lockstep, set(drop)
        self.above = {name: parent_map(function.body) for name, function in program.functions.items()}
        self.tainted = flow.unrepeatable()
        self._costs, self._taken = {}, {}
        self.plan = Plan()

    # ---- costs ----

    def cost(self, stmt, stack=()):
        """An estimate of the operations that a statement takes."""
        found = sum(self._expr_cost(expr, stack) for expr in (stmt.expr, stmt.advance) if expr is not None)
        if stmt.init:
            found += self.cost(stmt.init, stack)
        found += sum(self.cost(part, stack) for part in stmt.parts if part)
        return found * self.iterations(stmt) if stmt.kind == "loop" else found

    def _expr_cost(self, expr, stack):
        found = 1
        for part in expr.walk():
            if part.op == "call":
                for name in self.memory.callees(part):
                    if name in self.program.functions and name not in stack:
                        if name not in self._costs:
                            self._costs[name] = self.cost(self.program.functions[name].body, (*stack, name))
                        found += self._costs[name]
                    elif name in MPI:
                        found += 50
            elif part.op in ("binary", "index", "deref"):
                found += 1
        return found

    @staticmethod
    def iterations(stmt):
        """How often a loop runs, where constants tell."""
        condition, init = stmt.expr, stmt.init
        first = next((one.expr for one in init.walk() if one.expr and one.expr.op == "assign"), None) if init else None
        if condition is not None and condition.op == "binary" and condition.value in ("<", "<=") and condition.args[1].op == "const" and isinstance(condition.args[1].value, int):
            low = first.args[1].value if first is not None and first.args[1].op == "const" and isinstance(first.args[1].value, int) else 0
            return max(1, min(condition.args[1].value - low, 1000))
        return ITERATIONS

    # ---- places ----

    def make(self):
        """The plan."""
        directives = [one for one in self.program.directives if one.kind == "checkpoint"]
        main = self.program.functions.get("main")
        if main is None:
            self.plan.refused.append((None, "there is no main function among these sources"))
            return self.plan
        if directives:
            for directive in directives:
                self._directed(directive)
        else:
            self.total = self.cost(main.body)
            self._descend("main", main.body, set())
        self.total = self.cost(main.body)
        self.plan.early = before_init(self.flow)
        self._skips()
        for point in self.plan.points:
            point.unmade = self.tainted.union(*(self._written(stmt) for stmt, numbers in self.plan.skips.items() if point.number in numbers))
            point.items = [item for item in point.items if self.name_of(item.place if isinstance(item.place[0], Variable) else (item.place[0], ())) not in self.drop]
        return self.plan

    def _directed(self, directive):
        best = None
        for name, function in self.program.functions.items():
            for stmt in function.body.walk():
                if stmt.kind in ("block", "decls") or stmt.place.file != directive.place.file or stmt.place.start < directive.place.end:
                    continue
                if self.above[name].get(stmt) is not None and self.above[name][stmt].kind == "block" and (best is None or stmt.place.start < best[1].place.start):
                    best = (name, stmt)
        if best is None or not self.program.functions[best[0]].place.start < directive.place.start < self.program.functions[best[0]].place.end:
            self.plan.refused.append((directive.place, "no statement of a function follows this directive"))
            return
        name, stmt = best
        loop = self.above[name].get(stmt)
        while loop is not None and loop.kind != "loop":
            loop = self.above[name].get(loop)
        try:
            point = self._point(name, stmt, loop, True)
            known = self.lockstep.points.get(stmt)
            if known is None or known.why:
                point.warnings.append(f"{directive.place}: that this place is safe isn't shown ({known.why if known else 'it is never reached'}); the directive decides")
            self.plan.points.append(point)
        except Refused as refusal:
            self.plan.refused.append((directive.place, str(refusal)))

    def _descend(self, name, stmt, seen):
        """The outermost loops that cost enough and have a safe place; below loops that have none, and in functions that are called, the same."""
        if stmt.kind == "loop":
            share = self._share(name, stmt)
            if share < LOOP_SHARE:
                return
            few = self.iterations(stmt) < FEW
            if few:
                # Loops in it, if they can.
                before = len(self.plan.points)
                self._below(name, stmt, seen)
                if len(self.plan.points) > before:
                    return
            if self._accept(name, stmt, share) or few:
                return
        self._below(name, stmt, seen)

    def _below(self, name, stmt, seen):
        for expr in [one for one in (stmt.expr, stmt.advance) if one is not None]:
            for part in expr.walk():
                if part.op == "call":
                    for callee in self.memory.callees(part):
                        if callee in self.program.functions and callee not in seen:
                            self._descend(callee, self.program.functions[callee].body, seen | {callee})
        for part in (stmt.init, *stmt.parts):
            if part is not None:
                self._descend(name, part, seen)

    def _share(self, name, stmt):
        """Of the program's whole cost."""
        found, here, function = self.cost(stmt), stmt, name
        for _ in range(50):
            here = self.above[function].get(here)
            if here is None:
                callers = self.flow.calls.get(function, [])
                if len(callers) != 1:
                    break
                function, here = callers[0][0], callers[0][1].stmt
            if here is not None and here.kind == "loop":
                found *= self.iterations(here)
        return found / max(self.total, 1)

    def _accept(self, name, loop, share):
        body = loop.parts[0]
        places = list(body.parts) if body.kind == "block" else [body]
        places = [one for one in places if one.kind != "empty"]
        if self.program.language == "fortran" and loop.init is not None:
            # See _check_counted.
            places = places[:1]
        why = "its body is empty"
        for stmt in places:
            known = self.lockstep.points.get(stmt)
            if known is None:
                why = "it is never reached, as far as can be seen"
            elif known.why:
                why = known.why
            elif self._is_held(loop) or self._is_held(stmt):
                why = "nothing can be inserted before a #pragma line that is about it"
            elif loop.place.macro or stmt.place.macro or body.place.macro:
                why = "it comes out of a macro: nothing can be inserted there"
            else:
                try:
                    self.plan.points.append(self._point(name, stmt, loop, False))
                    self.plan.considered.append((loop, share, f"safe point {len(self.plan.points)}, line {stmt.place.line}"))
                    return True
                except Refused as refusal:
                    why = str(refusal)
                    break
        self.plan.considered.append((loop, share, why))
        return False

    # ---- what is registered ----

    def _point(self, name, stmt, loop, forced):
        try:
            chain = self.flow.chain(name)
            levels = self.flow.live_at(name, self.flow.graphs[name].point[stmt])
        except NoChain as several:
            raise Refused(str(several)) from None
        point = Point(len(self.plan.points) + 1, name, stmt, loop, chain, forced=forced)
        for start in [stmt, *(node.stmt for _, node, _ in chain), *([loop] if loop is not None else ())]:
            if self._is_held(start):
                raise Refused(f"{start.place}: nothing can be inserted before the #pragma line that is about this statement")
        for start in [stmt, *(node.stmt for _, node, _ in chain)]:
            if self._within(self.program.parallel, start, stmt):
                raise Refused("several threads run it")
            if self._within(self.program.offloaded, start, stmt):
                self._object(point, "a device has data of the program there: what is in the host's memory may be older")
        if self.program.unbounded is not None:
            self._object(point, f"{self.program.unbounded}: a device has data of the program from here on: what is in the host's memory may be older")
        self._check_counted(name, stmt, loop, chain)
        cycle = self.flow.cycle(name, self.flow.graphs[name].point[stmt])
        names = {caller for caller, _, _ in chain} | {name}
        changed = self.flow.changed(cycle, names)
        live = set().union(*(places for _, places in levels))
        point.walk, point.changed = walk_after(self.flow, name, stmt, changed), changed
        if point.walk is not None:
            live = {place for place in live if not self._is_array(place) or place in point.walk.exposed}
        self._check_seen(point, live, changed)
        self._check_calls(point, cycle)
        self._check_units(point, cycle)
        point.excluded = self._excluded(name)
        point.left_out = self._left_out(point.excluded, names)
        for place in sorted(live, key=self._order):
            if not self._lives(place[0], levels, chain, stmt):
                continue
            if isinstance(place[0], Mark):
                continue
            if self._is_excluded(point, place[0]):
                point.warnings.append(f"{self.name_of(place)} is excluded by a directive")
                continue
            if self.program.language == "fortran" and isinstance(place[0], Variable) and "%" in place[0].name:
                if place in changed and place[0].function not in (None, name):
                    self._object(point, f"an argument that is an expression changes between checkpoints ({place[0].place}): give it a variable of its own")
                # What is called from the place's own function gets it anew.
                continue
            if place in changed:
                self._add(point, place, "it changes between checkpoints, and is used after them", names)
            elif place in self.tainted:
                self._add(point, place, "another run wouldn't make the same value again", names)
            elif not (isinstance(place[0], Variable) and "%" in place[0].name):
                point.kept.add(place)
        self._close(point, names)
        self._check_allocated(point, cycle, changed)
        point.dead = self._dead(point, names, live)
        known = self.lockstep.points.get(stmt)
        # Where a place isn't shown to be safe, the analysis has ended before all ways to it were followed.
        point.replicated = known.same if known is not None and known.same and not known.why else set()
        return point

    def _is_held(self, stmt):
        return (stmt.place.file, stmt.place.start) in self.program.held

    @staticmethod
    def _within(regions, start, stmt):
        """Whether a statement is in one of the regions. The place itself is before its statement, and before what #pragma lines say of that."""
        return any(path == start.place.file and first <= start.place.start < end and not (start is stmt and first == start.place.start) for path, first, end in regions)

    def _check_counted(self, name, stmt, loop, chain):
        """Fortran's counted loops fix their number of iterations when they begin: only the one around the place can begin again, at its first statement."""
        if self.program.language != "fortran":
            return
        for function, start in [*((caller, node.stmt) for caller, node, _ in chain), (name, stmt)]:
            here = self.above[function].get(start)
            while here is not None:
                if here.kind == "loop" and here.init is not None and not (here is loop and here.parts[0].parts[0] is stmt):
                    raise Refused(f"a counted loop is around it (line {here.place.line}): make that one a `do while`, or place it at the start of its body")
                here = self.above[function].get(here)

    def _lives(self, thing, levels, chain, stmt):
        """Whether a local variable is there at the place: one that is declared later, or in a block that isn't entered, is another one each time."""
        if not isinstance(thing, Variable) or thing.scope not in ("local", "param"):
            return True
        places = {caller: node.stmt.place.start for caller, node, _ in chain} | {levels[-1][0]: stmt.place.start}
        if thing.function not in places:
            return False
        if thing.scope == "param" or thing.block is None:
            return True
        return thing.block[0] <= places[thing.function] < thing.block[1] and thing.place.start < places[thing.function]

    @staticmethod
    def _is_array(place):
        return isinstance(place[0], Heap) or (isinstance(place[0], Variable) and (place[0].type.kind == "array" or place[0].type.holds("array")))

    @staticmethod
    def _order(place):
        thing = place[0]
        number = thing.place.start if isinstance(thing, Variable) else thing.number if isinstance(thing, Heap) else 0
        return (isinstance(thing, Heap), number, place[1], str(thing))

    def name_of(self, place):
        """As the report and the checkpoint name it."""
        thing = place[0]
        first = thing.name if isinstance(thing, Variable) else (thing.name or f"block {thing.number}")
        return ".".join((first, *named(place[1])))

    def _object(self, point, why):
        """A reason against a place; a directive decides against the reason."""
        if not point.forced:
            raise Refused(why)
        point.warnings.append(why)

    def _check_seen(self, point, live, changed):
        """What pointers lead to must be known: of those that are followed after the place, and of those that are written through between two passes."""
        marks = {thing for thing, _ in changed if isinstance(thing, Mark) and thing.kind in ("unknown", "lost")} | {thing for thing, _ in live if isinstance(thing, Mark) and thing.kind == "lost"}
        for mark in sorted(marks, key=str):
            if mark.kind == "lost":
                self._object(point, f"where {mark.name} leads to can't be seen, and it is followed")
            else:
                self._object(point, "memory that can't be seen changes between checkpoints, and is used after them")

    def _check_allocated(self, point, cycle, changed):
        """Fortran's arrays: a restart gives them the size that they had before the loop."""
        nodes = [node for part in cycle.values() for node in part if node.expr is not None]
        exprs = [node.expr for node in nodes] + [expr for name in self.flow.called(nodes) if name in self.program.functions for expr in self.program.functions[name].body.expressions()]
        again = {variable for expr in exprs for part in expr.walk() if part.op == "call" and self._allocates(part, changed) for variable, _ in part.value or ()}
        # What a dummy stands for.
        again |= {thing for variable in again if variable.scope == "param" for thing, _ in self.memory.content.get((variable, ()), ())}
        for item in point.items:
            if item.place[0] in again and (not item.place[1] or self.memory.type_at(item.place).kind == "array"):
                self._object(point, f"{item.place[0].name} is allocated or deallocated between checkpoints: a restart wouldn't know its size")
        self._check_way(point)

    def _check_way(self, point):
        """Fortran's arrays of a function above the place are noted before its call: on the way from there none may get another address. No directive decides against that."""
        if self.program.language != "fortran":
            return
        inside = [(caller, node) for caller, node, _ in point.chain] + [(point.function, self.flow.graphs[point.function].point[point.stmt])]
        for level in range(len(point.chain)):
            items = [item for item in point.items if item.level == level and (not item.place[1] or self.memory.type_at(item.place).kind == "array")]
            again = set().union(*(self._allocated_on_the_way(name, node) for name, node in inside[level + 1:])) if items else ()
            for item in items:
                if any(thing is item.place[0] and all(one == other for one, other in zip(path, item.place[1])) for thing, path in again):
                    raise Refused(f"{self.name_of(item.place)} may be allocated or deallocated by what {self.program.functions[inside[level][0]].source}() calls on the way here: allocate it before the call")

    def _allocated_on_the_way(self, name, target):
        """Locations in which arrays may be allocated or deallocated from a function's start on until a node of it is reached."""
        graph = self.flow.graphs[name]
        exprs = [node.expr for node in self._on_the_way(graph, [graph.entry], target) if node.expr is not None]
        dummies = {one: self.memory.content.get((one, ()), set()) for one in self.program.functions[name].params}
        return self._allocated(exprs, dummies, set())

    def _allocated(self, exprs, dummies, seen):
        """The same of a function's expressions, in a call in which its dummies stand for these locations. `seen`: calls that are counted."""
        # An array that is intent(out) is deallocated when the procedure begins, also in a derived type.
        emptied = [one for one in dummies if re.search(r"intent\(\s*out\s*\)", one.attributes) and (one.allocatable or holds_allocatable(one.base))]
        found = {place for one in emptied for place in dummies[one]}
        for call in (part for expr in exprs for part in expr.walk() if part.op == "call"):
            if call.args[0].value in ("mend_cc allocate", "mend_cc allocate if"):
                found |= {(thing, (*above, *path)) for variable, path in call.value or () for thing, above in dummies.get(variable, {(variable, ())})}
            elif call.args[0].value == "move_alloc":
                found |= {place for part in call.args[1:] for place in self._given(part, dummies)}
            for callee in self.memory.callees(call):
                function = self.program.functions.get(callee)
                given = tuple(frozenset(self._given(part, dummies)) for part in call.args[1:])
                if function is not None and (callee, given) not in seen:
                    seen.add((callee, given))
                    found |= self._allocated(list(function.body.expressions()), dict(zip(function.params, given)), seen)
        return found

    def _given(self, argument, dummies):
        """What an argument leads to where dummies stand for these locations."""
        inner, path = argument.args[0] if argument.op == "addr" else argument, ()
        while inner.op in ("member", "index"):
            path, inner = ((inner.value, *path) if inner.op == "member" else path), inner.args[0]
        if argument.op == "addr" and inner.op == "deref" and inner.args[0].op == "var" and inner.args[0].value in dummies:
            return {(thing, (*above, *path)) for thing, above in dummies[inner.args[0].value]}
        return self.memory.targets(argument)

    def _allocates(self, call, changed):
        """Whether it may give arrays another size between two passes."""
        if call.args[0].value == "mend_cc allocate if":
            return any(access.places & changed for part in call.args[1:] for access in self.memory.accesses(part))
        return call.args[0].value == "mend_cc allocate"

    def _check_calls(self, point, cycle):
        nodes = [node for part in cycle.values() for node in part]
        for called in sorted(self.flow.called(nodes) & HIDDEN_STATE):
            self._object(point, f"{called}() is called between checkpoints: its state can't be registered (rand_r's can)")

        called = self.flow.called(nodes)
        for name in sorted(called & {"scanf", "getchar"}):
            self._object(point, f"{name}() reads standard input between checkpoints: its position can't be saved")
        if "fopen" in called:
            point.warnings.append("files are opened between checkpoints: what is written to them after one isn't cut off by a restart")

    def _check_units(self, point, cycle):
        found = written_across(self.flow, point.chain, point.function, point.stmt, cycle)
        if found is not None:
            write, opening = found
            if opening is None:
                point.warnings.append(f"{write.place}: it can't be told which unit is written: if it has a file, a restart writes over it unless it is opened with position='append'")
                return
            where = "without open" if write is opening else f"opened at line {opening.place.line}"
            self._object(point, f"{write.place}: a unit is written between checkpoints and is open at them ({where}): a restart would open it anew and write over its file. Open it with position='append', write and close it within a step")

    def _excluded(self, function):
        found = set()
        for directive in self.program.directives:
            if directive.kind == "exclude":
                owner = [one.name for one in self.program.functions.values() if one.place.file == directive.place.file and one.place.start <= directive.place.start < one.place.end]
                if not owner or function in owner or owner[0] in {caller for caller, _, _ in self.flow.chain(function)}:
                    found |= {name.lower() if self.program.language == "fortran" else name for name in excluded_names(directive.text)}
        return found

    def _left_out(self, excluded, functions):
        """What is allocated for excluded variables. Another array may have the same name, as a structure's field: it is saved."""
        visible = [*self.program.globals]
        for name in functions:
            visible += [*self.program.functions[name].params, *self.program.functions[name].variables]
        return blocks_of(self.memory, [variable for variable in visible if variable.name in excluded], excluded)

    @staticmethod
    def _is_excluded(point, thing):
        return thing in point.left_out if isinstance(thing, Heap) else thing.name in point.excluded

    @staticmethod
    def _nameable(place):
        """The location, or the array of structures that it is a field of: there is no name for one field of all elements."""
        thing, path = place
        if not isinstance(thing, Variable):
            return place
        kind = thing.type
        for depth, name in enumerate(path):
            if kind.kind == "array":
                return thing, path[:depth]
            kind = dict((part, below) for part, below, _ in kind.fields).get(name, kind)
            if kind.name == "bit-field":
                path = path[:depth]
                break
        while path and not named(path[-1:]):
            path = path[:-1]
        return thing, path

    def _add(self, point, place, why, names):
        whole, place = place, self._nameable(place)
        fields = self._fields_of(whole, place)
        for item in [one for one in point.items if one.place[0] is place[0]]:
            if isinstance(place[0], Heap) or all(item.has((*place[1], *field)) for field in fields):
                return None
            if item.place == place:
                point.items[point.items.index(item)] = Item(place, item.why, item.level, item.fields | fields)
                return None
        thing = place[0]
        if isinstance(thing, Variable):
            kind = self.memory.type_at(place)
            scalar = kind.scalar() if kind else None
            if thing in self.program.copied:
                return self._object(point, f"{thing.place}: {self.program.copied[thing]} {thing.name}, which changes between checkpoints: only the main thread's on the host can be registered")
            if thing.name == "%literal":
                return self._object(point, f"{thing.place}: a compound literal changes between checkpoints: make it a variable with a name")
            if scalar is None or scalar.kind in ("opaque", "function", "void") or scalar.holds("opaque"):
                return self._object(point, f"{self.name_of(place)} ({scalar.name if scalar else '?'}) changes between checkpoints, and can't be registered")
            if scalar.kind == "pointer" and scalar.element.kind in ("opaque", "function") and scalar.element.name != "unknown":
                return self._object(point, f"{self.name_of(place)} points to what can't be registered ({scalar.element.name or scalar.element.kind}), and changes between checkpoints")
            if scalar.kind in ("int", "uint") and scalar.size not in (1, 2, 4, 8):
                return self._object(point, f"{self.name_of(place)} is an integer of {scalar.size} bytes: those of 1, 2, 4 and 8 can be registered")
            if not thing.addressable:
                return self._object(point, f"{thing.name} has no address here (register, or another file's own)")
            if thing.scope == "static" and thing.function != point.function:
                return self._object(point, f"{thing.function}() keeps {thing.name} (static): make it a variable of the file")
            if kind.kind == "array" and kind.size is None and self.program.language == "c":
                return self._object(point, f"the size of {thing.name} isn't known where it is declared: allocate it instead")
        elif isinstance(thing, Heap):
            if thing.type is None or thing.type.scalar().kind in ("void", "opaque", "function"):
                return self._object(point, f"{thing.expr.place}: what kind of data is allocated here can't be seen")
            if thing.several is not None or (not any(True for _ in thing.type.pointers()) and any(found for (holder, _), found in self.memory.content.items() if holder is thing)):
                return self._object(point, f"{thing.expr.place}: what is allocated here holds data of several types, as {thing.name or 'it'}: allocate each type by a call of its own")
            if thing.expr.place.macro:
                return self._object(point, f"{thing.expr.place}: the allocation comes out of a macro")
        chain = [caller for caller, _, _ in point.chain] + [point.function]
        level = chain.index(thing.function) if isinstance(thing, Variable) and thing.scope in ("local", "param") else -1
        # Parts of it aren't registered besides.
        point.items = [item for item in point.items if item.place[0] is not thing or item.place[1][:len(place[1])] != place[1]]
        point.items.append(Item(place, why, level, fields))
        return None

    def _fields_of(self, whole, place):
        """Which fields of each element are meant where `place` is an array of structures that are registered field by field."""
        kind = self.memory.type_at(place) if isinstance(place[0], Variable) else None
        by_fields = kind is not None and kind.kind == "array" and kind.scalar().kind == "struct" and not is_plain(kind)
        return frozenset({whole[1][len(place[1]):]}) if by_fields else ALL

    def _close(self, point, names):
        """What registered pointers lead to must be registered as well."""
        done = set()
        while left := [item for item in point.items if item not in done]:
            done.add(left[0])
            place = left[0].place
            leaves = sorted((leaf for leaf in self.memory.leaves((place[0], ()) if isinstance(place[0], Heap) else place) if isinstance(place[0], Heap) or left[0].has(leaf[1])), key=self._order)
            for leaf in leaves:
                kind = self.memory.type_at(leaf)
                if kind is None or kind.scalar().kind != "pointer":
                    continue
                for target in sorted(self.memory.content.get(leaf, ()), key=self._order):
                    if isinstance(target[0], Mark):
                        self._object(point, f"{self.name_of(leaf)} changes between checkpoints, and may point into {'a constant text' if target[0].kind == 'text' else 'code' if target[0].kind == 'code' else 'memory that can not be seen'}")
                        continue
                    if self._is_excluded(point, target[0]):
                        # A saved pointer must lead to what is saved.
                        self._object(point, f"{self.name_of(leaf)} points to {target[0].name}, which a directive excludes: exclude {leaf[0].name} as well")
                        continue
                    for inner in self.memory.leaves(target):
                        point.kept.discard(inner)
                        self._add(point, inner, f"{self.name_of(leaf)} points to it", names)

    def _dead(self, point, names, live):
        """Variables that nothing needs after the place: a debug mode poisons them."""
        registered = {item.place[0] for item in point.items}
        found = set()
        for function in names:
            for variable in self.program.functions[function].variables:
                found.add(variable)
        found |= set(self.program.globals)
        found |= set(self.memory.sites)
        return {thing for thing in found if thing not in registered and not any(place[0] is thing for place in live | point.kept)
                and not (isinstance(thing, Variable) and (thing.scope == "static" or thing.qualifiers if hasattr(thing, "qualifiers") else False))}
