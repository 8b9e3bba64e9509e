"""Memory as the analysis sees it: locations, what pointers may point to, what an expression reads and writes.

A location is (object, fields): an object is a Variable, a Heap (one for each place in the source that allocates), or one of the marks below. An array's
elements are one location. What pointers point to is computed for the whole program at once, without regard to order (after L. O. Andersen, *Program
analysis and specialization for the C programming language*, 1994)."""

from dataclasses import dataclass

from .externals import ALLOCATE, BUFFERS, MPI, RETURNS, STARTS_OR_ENDS, buffer_bytes, effects, in_place, letter, own_datatype
from .ir import Variable, straight


@dataclass(eq=False)
class Heap:
    """All that one call allocates. `type` of its elements, by what it is assigned to; `several`: another type that part of it has, too, or None."""

    number: int
    expr: object
    function: str
    type: object = None
    name: str = ""
    several: object = None

    def take(self, kind):
        """Another use of it. Bytes by which elements without pointers are looked at are no other type."""
        if self.type is None:
            self.type = kind
            return
        mine, other = self.type.scalar(), kind.scalar()
        if mine.kind == other.kind == "struct" and mine.name and mine.name == other.name:
            # One source may not see what is in it.
            self.type = self.type if mine.fields else kind
            return
        if _alike(mine, other) or (_byte(other) and not mine.holds("pointer")):
            return
        if _byte(mine) and not other.holds("pointer") and not other.name.startswith("union "):
            self.type = kind
        else:
            self.several = self.several or other

    def __repr__(self):
        return f"heap {self.number} {self.name}"


@dataclass(frozen=True)
class Mark:
    """unknown: memory that can't be seen; lost: where a pointer leads to of which nothing is known, `name`; text: string constants, argv: the command line;
    code: a function; number: a number in the place of a pointer, as MPI_IN_PLACE."""

    kind: str
    name: str = ""


UNKNOWN, TEXT, ARGV = Mark("unknown"), Mark("text"), Mark("argv")


@dataclass(frozen=True)
class Access:
    """Of memory, in the order of execution. `must`: all of the location is written; `through`: all that this pointer leads to. kind: read, write, call (`targets`)."""

    kind: str
    places: frozenset = frozenset()
    must: bool = False
    expr: object = None
    targets: tuple = ()
    external: str = ""
    through: object = None


class Memory:
    """Points-to sets of a program."""

    def __init__(self, program):
        self.program = program
        self.content = {}
        self.heaps = {}
        self.sites = []
        self.changed = True
        self.settled = False  # whether all is learned that pointers may lead to
        self.wild = None  # where a pointer is made from a number: nothing is known of memory then
        self._leaves = {}
        self._persistent = self._addressed = None
        self._uses = {}
        main = program.functions.get("main")
        if main:
            for parameter in main.params:
                if parameter.type.kind == "pointer":
                    self._put((parameter, ()), {(ARGV, ())})
            self._put((ARGV, ()), {(ARGV, ())})
        while self.changed:
            self.changed = False
            for variable in [*program.globals, *(one for function in program.functions.values() for one in function.variables if one.scope == "static")]:
                if getattr(variable, "initial", None) is not None:
                    self._learn(variable.initial)
                    self._assign({(variable, ())}, variable.initial, variable.type)
            for function in program.functions.values():
                self.current = function
                for expr in function.body.expressions():
                    self._learn(expr)
                for stmt in function.body.walk():
                    if stmt.kind == "return" and stmt.expr:
                        self._assign({(("result", function.name), ())}, stmt.expr, function.result)
        self.settled = True

    def _put(self, key, found):
        if not found:
            return
        known = self.content.setdefault(key, set())
        if not found <= known:
            known |= found
            self.changed = True

    # ---- locations ----

    def places(self, expr):
        """Locations that an expression names."""
        operator = expr.op
        if operator == "var":
            return {(expr.value, ())}
        if operator == "index":
            base = expr.args[0]
            if base.type and base.type.kind == "array":
                return self.places(base)
            return self.led(base) if expr.args[1].op == "const" and expr.args[1].value == 0 else self._moved(self.led(base))
        if operator == "deref":
            return self.led(expr.args[0])
        if operator == "member" and expr.args[0].type and expr.args[0].type.name.startswith("union "):
            return self.places(expr.args[0])
        if operator == "member":
            return {(thing, (*path, expr.value)) if not isinstance(thing, Mark) else (thing, path) for thing, path in self.places(expr.args[0])}
        if operator == "cast":
            return self.places(expr.args[0])
        if operator == "string":
            return {(TEXT, ())}
        if operator == "cond":
            return self.places(expr.args[1]) | self.places(expr.args[2])
        if operator == "comma":
            return self.places(expr.args[-1])
        if operator == "assign":
            return self.places(expr.args[0])
        if operator == "call":
            return {(("result", name), ()) if name in self.program.functions else (UNKNOWN, ()) for name in self.callees(expr)}
        return set()

    def led(self, pointer):
        """Where a pointer leads that is followed: of one that leads nowhere, as far as was seen, nothing is known."""
        found = self.targets(pointer)
        if found or not self.settled or self.program.language != "c" or _constant(pointer):
            return found
        return {(Mark("lost", _text(pointer)), ())}

    def targets(self, expr):
        """Locations that a pointer's value may be the address of."""
        operator = expr.op
        if operator in ("var", "index", "deref", "member"):
            found = set()
            for place in self.places(expr):
                found |= {place} if isinstance(place[0], Mark) and place[0].kind in ("unknown", "lost") else self.content.get(place, set())
            return found
        if operator == "addr":
            return self.places(expr.args[0])
        if operator == "func":
            return {(Mark("code", expr.value), ())}
        if operator == "string":
            return {(TEXT, ())}
        if operator == "call":
            return self._result(expr)
        if operator == "cast":
            inner = expr.args[0]
            if expr.type and expr.type.kind == "pointer" and _constant(inner):
                return set() if inner.op == "const" and inner.value == 0 else {(Mark("number"), ())}
            if expr.type and expr.type.kind == "pointer" and inner.type and inner.type.kind in ("int", "uint"):
                self.wild = self.wild or expr.place
                return {(UNKNOWN, ())}
            return self.targets(inner)
        if operator == "cond":
            return self.targets(expr.args[1]) | self.targets(expr.args[2])
        if operator == "comma" or (operator == "assign" and expr.value == "="):
            return self.targets(expr.args[-1])
        if operator in ("binary", "step", "assign"):
            return self._moved(set().union(*(self.targets(part) for part in expr.args if part.type and part.type.kind in ("pointer", "array"))))
        if operator == "opaque":
            return {(UNKNOWN, ())}
        return set()

    def _moved(self, places):
        """Where a pointer to one of these may lead when it is moved. All elements of an array are one location; of a structure's fields it comes to those of this type."""
        found = set(places)
        for thing, path in places:
            kind = self.type_at((thing, path)) if path and getattr(thing, "type", None) is not None else None
            if kind is not None and kind.kind != "array":
                found |= {(thing, other) for other, part in _parts(thing.type) if _alike(part, kind)}
        return found

    def callees(self, call):
        """Names of the functions that a call may reach; None among them: one that can't be seen."""
        callee = call.args[0]
        while callee.op in ("cast", "deref"):
            callee = callee.args[0]
        if callee.op == "func":
            return [callee.value]
        found = [thing.name if isinstance(thing, Mark) and thing.kind == "code" else None for thing, _ in self.targets(callee)]
        return sorted(set(found), key=str) or [None]

    def _result(self, call):
        found = set()
        for name in self.callees(call):
            if name in self.program.functions:
                found |= self.content.get((("result", name), ()), set())
            elif name in ALLOCATE:
                found.add((self._heap(call), ()))
                if name == "realloc":
                    found |= self.targets(call.args[1])
            elif name in RETURNS:
                found |= self.targets(call.args[1 + RETURNS[name]]) if RETURNS[name] is not None else set()
            elif call.type and call.type.kind == "pointer" and call.type.element.kind != "opaque":
                found.add((UNKNOWN, ()))
        return found

    def _heap(self, call):
        if call not in self.heaps:
            self.heaps[call] = Heap(len(self.heaps) + 1, call, self.current.name)
            self.sites.append(self.heaps[call])
        return self.heaps[call]

    # ---- learning ----

    def _assign(self, places, source, kind):
        if source.op == "list" and (source.value == "unordered" or (kind is not None and kind.name.startswith("union "))):
            for part in source.args:
                self._spread(places, part, kind)
            return
        if source.op == "list" and kind is not None and kind.kind in ("array", "struct"):
            parts = kind.fields if kind.kind == "struct" else ()
            for at, part in enumerate(source.args):
                if kind.kind == "array":
                    self._assign(places, part, kind.element)
                elif at < len(parts):
                    self._assign({(thing, (*path, parts[at][0])) for thing, path in places}, part, parts[at][1])
            return
        if kind is not None and kind.kind == "array" and source.op == "string":
            return
        if kind is not None and kind.kind == "struct":
            for thing, path in self.places(source):
                if isinstance(thing, Mark):
                    for place in places:
                        for name, _ in kind.pointers():
                            self._put((place[0], (*place[1], *name)), {(thing, ())})
                for (other, deeper), found in list(self.content.items()):
                    if other == thing and deeper[: len(path)] == path:
                        for target, below in places:
                            self._put((target, (*below, *deeper[len(path):])), found)
            return
        found = self.targets(source)
        for place in places:
            self._put(place, found)
        for thing, path in found:
            if isinstance(thing, Heap) and not path and kind is not None and kind.kind == "pointer" and kind.element.kind != "void":
                thing.take(kind.element)
                name = sorted(str(place[-1][-1]) if place[-1] else place[0].name for place in places if isinstance(place[0], (Variable, Heap)))
                thing.name = thing.name or (name[0] if name else "")

    def _spread(self, places, part, kind):
        """Something that any pointer of these locations may get."""
        inner = part.args if part.op == "list" else (part,)
        for place in places:
            for one in inner:
                if one.op == "list":
                    self._spread(places, one, kind)
                    continue
                for name, below in kind.pointers():
                    self._assign({(place[0], (*place[1], *name))}, one, below)

    def _learn(self, expr):
        for part in expr.walk():
            if part.op == "assign" and part.value == "=":
                self._assign(self.places(part.args[0]), part.args[1], part.args[0].type)
            elif part.op in ("assign", "step") and part.type and part.type.kind == "pointer":
                for place in self.places(part.args[0]):
                    self._put(place, self._moved(self.targets(part.args[0])))
            elif part.op == "call":
                for name in self.callees(part):
                    self._bind(part, name)

    def _bind(self, call, name):
        function = self.program.functions.get(name)
        if function:
            for parameter, argument in zip(function.params, call.args[1:]):
                self._assign({(parameter, ())}, argument, parameter.type)
        elif name in ("qsort", "bsearch") or name == "MPI_Op_create":
            for thing, _ in self.targets(call.args[-1] if name != "MPI_Op_create" else call.args[1]):
                callback = self.program.functions.get(thing.name) if isinstance(thing, Mark) else None
                for parameter in callback.params if callback else []:
                    self._put((parameter, ()), self.targets(call.args[1]) if name == "qsort" else {(UNKNOWN, ())})
        elif name in ("memcpy", "memmove"):
            for target in self.targets(call.args[1]):
                for origin in self.targets(call.args[2]):
                    for (other, path), found in list(self.content.items()):
                        if other is origin[0]:
                            self._put((target[0], path), found)
        elif effects(name) is None or name == "mend_cc unknown":
            # It may keep what it gets, and store anything there.
            for argument in call.args[1:]:
                for place in self.reach(self.targets(argument)):
                    if self._holds_pointers(place):
                        self._put(place, {(UNKNOWN, ())})

    @staticmethod
    def _holds_pointers(place):
        thing = place[0]
        return getattr(thing, "type", None) is not None and any(True for _ in thing.type.pointers())

    def reach(self, places):
        """These locations and all that pointers in them lead to."""
        found, left = set(), list(places)
        while left:
            place = left.pop()
            if place in found:
                continue
            found.add(place)
            for (thing, path), targets in list(self.content.items()):
                if thing is place[0] and path[: len(place[1])] == place[1]:
                    left.extend(targets)
        return found

    # ---- leaves ----

    def leaves(self, place):
        """The scalar locations within one: a struct's fields."""
        known = self._leaves.get(place)
        if known is None:
            known = self._leaves[place] = frozenset(self._find_leaves(place))
        return known

    def _find_leaves(self, place):
        thing, path = place
        kind = getattr(thing, "type", None)
        if kind is None:
            return [place]
        for name in path:
            kind = dict((part, below) for part, below, _ in kind.scalar().fields).get(name)
            if kind is None:
                return [(thing, ())]
        kind = kind.scalar()
        if kind.kind == "struct" and kind.fields:
            return [leaf for part, _, _ in kind.fields for leaf in self._find_leaves((thing, (*path, part)))]
        return [place]

    def type_at(self, place):
        """Type of a location, arrays around it left away."""
        kind = place[0].type
        for name in place[1]:
            if kind is None:
                break
            kind = dict((part, below) for part, below, _ in kind.scalar().fields).get(name)
        return kind

    # ---- what an expression does ----

    def accesses(self, expr, certain=True):
        """Reads, writes and calls, in order."""
        operator = expr.op
        if operator in ("const", "func", "string"):
            return
        if operator in ("var", "index", "deref", "member"):
            yield from self._address(expr, certain)
            if expr.type is not None and expr.type.kind == "array":
                return
            yield Access("read", self._all(self.places(expr)), False, expr)
            return
        if operator == "addr":
            yield from self._address(expr.args[0], certain)
            return
        if operator in ("assign", "step"):
            target = expr.args[0]
            if operator == "assign":
                yield from self.accesses(expr.args[1], certain)
            yield from self._address(target, certain)
            if operator == "step" or expr.value != "=":
                yield Access("read", self._all(self.places(target)), False, target)
            places = self.places(target)
            through = target.args[0] if certain and target.op == "deref" else None
            yield Access("write", self._all(places), certain and len(places) == 1 and self.whole(target), target, through=through)
            return
        if operator == "call":
            yield from self._call(expr, certain)
            return
        for at, part in enumerate(expr.args):
            yield from self.accesses(part, certain and not (at and (operator == "cond" or (operator == "binary" and expr.value in ("&&", "||")))))

    def _all(self, places):
        return frozenset(leaf for place in places if not isinstance(place[0], tuple) for leaf in self.leaves(place))

    def _address(self, expr, certain):
        """What is read to find the location."""
        if expr.op == "index":
            base = expr.args[0]
            yield from self._address(base, certain) if base.type and base.type.kind == "array" else self.accesses(base, certain)
            yield from self.accesses(expr.args[1], certain)
        elif expr.op == "deref":
            yield from self.accesses(expr.args[0], certain)
        elif expr.op in ("member", "cast"):
            yield from self._address(expr.args[0], certain)
        elif expr.op not in ("var", "string"):
            yield from self.accesses(expr, certain)

    @staticmethod
    def whole(expr):
        """Whether it names all of a variable's location, not one of many elements, nor less than a union."""
        first = expr.type
        while expr.op == "member":
            expr = expr.args[0]
            if expr.type and expr.type.name.startswith("union ") and (first is None or first.size != expr.type.size or first.name == "bit-field"):
                return False
        return expr.op == "var" and isinstance(expr.value, Variable) and expr.value.type.kind != "array"

    def _call(self, call, certain):
        yield from self.accesses(call.args[0], certain) if call.args[0].op != "func" else ()
        for argument in call.args[1:]:
            yield from self.accesses(argument, certain)
        names = self.callees(call)
        certain = certain and len(names) == 1
        for name in names:
            if name in self.program.functions:
                for parameter in self.program.functions[name].params[:len(call.args) - 1]:
                    yield Access("write", self.leaves((parameter, ())), certain, call)
                yield Access("call", frozenset(), certain, call, (name,))
                continue
            letters = self.effects(name, call.args[1:]) if name else None
            if letters is None:
                given = {(thing, ()) for argument in call.args[1:] for thing, _ in self.targets(argument)}
                touched = self._all(self.reach(given | {(one, ()) for one in self.program.globals}))
                yield Access("read", touched | {(UNKNOWN, ())}, False, call, external=name or "?")
                yield Access("write", touched | {(UNKNOWN, ())}, False, call, external=name or "?")
                continue
            for at, argument in enumerate(call.args[1:]):
                what = letter(letters, at)
                if what in "rb":
                    yield Access("read", self._all(self.given(name, call.args[1:], at)), False, argument, external=name)
            for at, argument in enumerate(call.args[1:]):
                what = letter(letters, at)
                if what in "wWbo":
                    places = self.given(name, call.args[1:], at)
                    must = certain and what == "W" and len(places) == 1 and argument.op == "addr" and self.whole(argument.args[0])
                    must = must and buffer_bytes(name, call.args[1:], at) in (None, argument.args[0].type.size)
                    through = straight(argument) if certain and what == "W" and argument.type is not None and argument.type.kind == "pointer" and buffer_bytes(name, call.args[1:], at) in (None, argument.type.element.size) else None
                    yield Access("write", self._all(places), must, argument, external=name, through=through)
            if self.messages(name) in STARTS_OR_ENDS:
                for kind in ("read", "write"):
                    yield Access(kind, self._all(self.persistent(kind)), False, call, external=name)
            if name in ("qsort", "bsearch", "MPI_Op_create", "atexit"):
                for argument in call.args[1:]:
                    for thing, _ in self.targets(argument):
                        if isinstance(thing, Mark) and thing.kind == "code" and thing.name in self.program.functions:
                            yield Access("call", frozenset(), False, call, (thing.name,))

    def effects(self, name, arguments):
        """Letters for the arguments of a known function as it is called here, or None."""
        letters = effects(name)
        if letters and name in MPI and arguments:
            first = {thing for thing, _ in self.targets(arguments[0])}
            if not first or any(isinstance(thing, Mark) and thing.kind in ("number", "unknown", "lost") for thing in first):
                return in_place(name, letters)
        return letters

    def given(self, name, arguments, at):
        """Where an argument of a known function leads. A buffer that begins at a field, and isn't known to end in it, stands for the whole structure."""
        argument = arguments[at]
        found = self.led(argument) if argument.type is not None and argument.type.kind == "pointer" else self.targets(argument)
        found = {(thing, ()) for thing, _ in found} if self.overflows(name, arguments, at) else found
        return found | self.besides(name, arguments, at)

    def besides(self, name, arguments, at):
        """Where a datatype may lead besides."""
        return set() if own_datatype(name, arguments, at) else self.addressed()

    def addressed(self):
        """What MPI_Get_address is given: a datatype may lead there from any buffer, by differences of addresses or from MPI_BOTTOM."""
        if self._addressed is None:
            calls = [part for function in self.program.functions.values() for expr in function.body.expressions() for part in expr.walk() if part.op == "call"]
            # Fortran passes what it is the address of.
            given = [call.args[1] for call in calls if "MPI_Get_address" in self.callees(call) and len(call.args) > 1]
            self._learn_uses(given)
            given = [one for one in given if not self._only_describes(one)]
            found = set().union(*(self.led(one) if one.type is not None and one.type.kind == "pointer" else self.places(one) for one in given))
            # No message is received into a handle, or a pointer.
            self._addressed = {leaf for place in found for leaf in self.leaves(place) if isinstance(leaf[0], Mark) or not self._is_handle(leaf)}
        return self._addressed

    def _only_describes(self, expr):
        """Whether an address only tells of a type: one within null, or of a function's own variable that is there for nothing else."""
        root = _root(expr)
        if root.op != "var":
            return _null(root)
        variable, uses = root.value, self._uses[root.value]
        if variable.type.kind == "pointer":
            return uses <= {"null"} and variable.scope != "param" and not (variable.scope == "global" and variable.undefined)
        if uses or variable.scope not in ("local", "static") or any(True for _ in variable.type.pointers()):
            return False
        # What the function sends may be read there.
        body = self.program.functions[variable.function].body
        called = {name for one in body.expressions() for part in one.walk() if part.op == "call" for name in self.callees(part)}
        return not any(self.messages(name) in BUFFERS | STARTS_OR_ENDS for name in called)

    def _learn_uses(self, given):
        """Variables whose addresses are given, and what else is done with them: "null" is assigned, or something else."""
        roots = {id(_root(one)): _root(one).value for one in given if _root(one).op == "var"}
        self._uses = {variable: set() for variable in roots.values()}
        kept = [one for function in self.program.functions.values() for one in function.variables if one.scope == "static"]
        for variable in [*self.program.globals, *kept]:
            initial = getattr(variable, "initial", None)
            if variable in self._uses and initial is not None and variable.type.kind == "pointer" and not _null(initial):
                self._uses[variable].add("other")
            self._count_uses([initial] if initial is not None else [], roots)
        for function in self.program.functions.values():
            self._count_uses(function.body.expressions(), roots)

    def _count_uses(self, exprs, roots):
        for part in (part for expr in exprs for part in expr.walk()):
            if part.op == "assign" and part.value == "=" and part.args[0].op == "var" and _null(part.args[1]):
                roots[id(part.args[0])] = part.args[0].value
                self._uses.get(part.args[0].value, set()).add("null")
            elif part.op == "var" and id(part) not in roots and part.value in self._uses:
                self._uses[part.value].add("other")

    def _is_handle(self, leaf):
        kind = self.type_at(leaf)
        return kind is not None and kind.scalar().kind in ("opaque", "pointer", "function")

    def overflows(self, name, arguments, at):
        """Whether a buffer may take in more than the field at which it begins."""
        size = buffer_bytes(name, arguments, at)
        if size is None:
            return False
        for thing, path in self.targets(arguments[at]):
            kind = self.type_at((thing, path)) if path and getattr(thing, "type", None) is not None else None
            if kind is not None and (kind.kind != "array" if size < 0 or not kind.size else size > kind.size):
                return True
        return False

    def persistent(self, kind):
        """Where the buffers of persistent requests lie that starting or completing one may read, or write: which one it is isn't told."""
        if self._persistent is None:
            self._persistent = {"read": set(), "write": set()}
            for function in self.program.functions.values():
                for part in (part for expr in function.body.expressions() for part in expr.walk() if part.op == "call"):
                    for name in self.callees(part):
                        found = {"send_init": "read", "recv_init": "write"}.get(self.messages(name))
                        if found and len(part.args) > 1:
                            self._persistent[found] |= self.given(name, part.args[1:], 0)
        return self._persistent[kind]

    def messages(self, name):
        """What an MPI function does with messages, or None."""
        return MPI[name][1] if name in MPI else None


def _constant(expr):
    """A null pointer, or one of MPI's marks in the place of one."""
    while expr.op in ("cast", "unary"):
        expr = expr.args[0]
    return expr.op == "const"


def _null(expr):
    while expr.op == "cast":
        expr = expr.args[0]
    return expr.op == "const" and expr.value == 0


def _root(expr):
    """What an address is computed from by fields and first elements."""
    while expr.op in ("addr", "member", "index", "deref", "cast"):
        expr = expr.args[0]
    return expr


def _text(expr):
    """A pointer as the source names it, nearly."""
    if expr.op == "member":
        return f"{_text(expr.args[0])}.{expr.value}"
    if expr.op == "var":
        return expr.value.name
    return _text(expr.args[0]) if expr.args else str(expr.value or "a pointer")


def _parts(kind, path=()):
    """(path, type) of all fields in a type, at any depth."""
    for name, part, _ in kind.scalar().fields:
        yield (*path, name), part
        yield from _parts(part, (*path, name))


def _alike(one, other):
    return (one.kind.replace("uint", "int"), one.size, one.name) == (other.kind.replace("uint", "int"), other.size, other.name)


def _byte(kind):
    return kind.kind in ("int", "uint") and kind.size == 1
