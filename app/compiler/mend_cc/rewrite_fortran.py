"""Fortran sources with the calls added: whole lines, before and after the user's."""

import re

from . import names
from .directives import split_at_commas
from .ir import Variable, parent_map
from .plan import Refused
from .rewrite import Edits
from .shapes import Shapes

# Columns of a line, where the standard allows 132, and of a literal in it.
WIDTH, LITERAL = 120, 60
# libmend-app's numbers of types; a text's characters are bytes.
TEXT = 14
KINDS = {("int", 1): 1, ("int", 2): 2, ("int", 4): 3, ("int", 8): 4, ("float", 4): 9, ("float", 8): 10, ("complex", 8): 12, ("complex", 16): 13}
# Fortran's functions in lines that are added.
FUNCTIONS = re.compile(r"\b(allocated|int|len|product|shape|storage_size)\(")

# How a dimension is spread, and how many arguments say so.
SPREADS = {"whole": 1, "block": 5, "cyclic": 4, "list": 2}


class Rewriter(Shapes):
    """All files of a Fortran program."""

    def __init__(self, program, memory, plan, poison=False, name="program"):
        super().__init__(program, memory)
        self.plan, self.poison, self.name = plan, poison, name
        self.files = {path: Edits(path) for path in program.files}
        self.above = {one: parent_map(function.body) for one, function in program.functions.items()}
        self.using, self.declared, self.targets = set(), {}, set()

    def run(self):
        """path -> its new text, of all files."""
        for point in self.plan.points:
            self._point(point)
            self._frames(point)
        for stmt, numbers in self.plan.skips.items():
            owner = next(name for name, function in self.program.functions.items() if stmt in set(function.body.walk()))
            self.using.add(owner)
            self._lines(stmt, [f"if (.not. mend_cc_skip('{' '.join(map(str, sorted(numbers)))}')) then ! a restart has no need of it"], -5)
            self._after(stmt, ["end if"], 5)
        self._start_and_end()
        for name in self.using:
            function = self.program.functions[name]
            head, last = function.spec
            edits, starts = self.files[function.place.file], self.program.lines[function.place.file]
            edits.insert(starts[head], "  use mend_cc\n", -9)
            if name in self.declared:
                edits.insert(starts[last], "".join(f"  {one}\n" for one in self.declared[name]), -8)
        return {path: edits.result() for path, edits in self.files.items()}

    def _lines(self, stmt, lines, order):
        """Whole lines before a statement."""
        if stmt.place.macro:
            raise Refused(f"{stmt.place}: nothing can be inserted within a line")
        edits = self.files[stmt.place.file]
        text = edits.text[stmt.place.start:stmt.place.end].decode()
        indent = text[:len(text) - len(text.lstrip())]
        edits.insert(stmt.place.start, "".join(f"{part}\n" for line in lines for part in _wrapped(f"{indent}{line}")), order)

    def _after(self, stmt, lines, order):
        """Whole lines after a statement: before those that belong to the next one."""
        edits = self.files[stmt.place.file]
        text = edits.text[stmt.place.start:].decode(errors="replace")
        indent = text[:len(text) - len(text.lstrip())]
        edits.insert(min(stmt.place.end + 1, len(edits.text)), "".join(f"{part}\n" for line in lines for part in _wrapped(f"{indent}{line}")), order - 100)

    def _point(self, point):
        flag = f"mend_at_{point.number}"
        function = point.function
        self.using.add(function)
        self.declared.setdefault(function, []).append(f"integer :: {flag}")
        level = len(point.chain)
        lines = [f"if (mend_cc_arrive({point.number}, {flag})) then"]
        lines += [f"  {line}" for line in self._unhidden(function, [*self._poisoned(point, function), *self._registered(point, level)])]
        lines.append("end if")
        counter = self._counter(point.loop)
        if counter is None:
            lines.append(f"if (mend_cc_checkpoint({point.number})) continue")
        else:
            lines.insert(0, f"mend_step_{point.number} = {counter.name}")
            lines += [f"if (mend_cc_checkpoint({point.number})) then", f"  mend_from_{point.number} = mend_step_{point.number}", "  exit", "end if"]
        before = [f"{flag} = 0 ! mend-cc: safe point {point.number}"]
        if point.loop is None:
            lines = before + lines
        elif counter is None:
            self._lines(point.loop, before, 1)
        else:
            self._counted(point, counter, before)
        self._lines(point.stmt, lines, 2)

    @staticmethod
    def _counter(loop):
        """The variable that a counted loop counts with."""
        return loop.init.expr.args[0].value if loop is not None and loop.init is not None and loop.init.expr.args[0].op == "var" else None

    def _counted(self, point, counter, before):
        """A counted loop fixes its number of iterations when it begins: where a state is restored in it, it must begin again, from the restored counter."""
        loop, number = point.loop, point.number
        edits = self.files[loop.place.file]
        header = edits.text[loop.place.start:].split(b"\n", 1)[0].decode()
        match = re.match(r"(\s*(?:\w+\s*:\s*)?do\s+(?:\d+\s*,?\s*)?\w+\s*=\s*)", header, re.I)
        end = _first_comma(header, match.end()) if match else None
        if end is None:
            raise Refused(f"{loop.place}: the head of this loop isn't understood")
        first = header[match.end():end].strip()
        kind = f"integer(kind={counter.type.size})"
        self.declared[point.function] += [f"{kind} :: mend_from_{number}", f"{kind}, target :: mend_step_{number}"]
        self._lines(loop, [*before, f"mend_from_{number} = {first}", "do ! once, and again where a state was restored"], 1)
        longer = len(header) - (end - match.end()) + len(f"mend_from_{number}") > WIDTH
        edits.replace(loop.place.start + len(header[:match.end()].encode()), loop.place.start + len(header[:end].encode()), f"mend_from_{number}" + (" &\n  " if longer else ""))
        self._after(loop, ["if (.not. mend_cc_again()) exit"], 1)
        self._after(loop, ["end do"], 2)

    def _frames(self, point):
        for level, (caller, node, _) in enumerate(point.chain):
            self.using.add(caller)
            self._lines(node.stmt, [f"call mend_cc_frame({level}, {point.number}) ! mend-cc: for this safe point", *self._unhidden(caller, self._registered(point, level))], -7)

    def _unhidden(self, function, lines):
        """The lines, in which Fortran's functions are what they say. Refused: the program has something else of such a name there."""
        function = self.program.functions[function]
        for name in sorted(set(FUNCTIONS.findall(" ".join(lines)))):
            if function.scope.find(name) or function.scope.procedure(name) or function.scope.parameter(name)[0] or function.scope.table(name):
                raise Refused(f"{function.place}: {name} isn't Fortran's function in {function.source}, where calls that need it would be added: give what has this name another one")
        return lines

    def _poisoned(self, point, function):
        if not self.poison:
            return []
        scope = self.program.functions[function].scope
        made = []
        for thing in sorted(point.dead, key=str):
            if any(re.search(rf"\b{re.escape(thing.name)}\b", part, re.I) for _, shape in self.shapes.values() for part in shape):
                # It is read where the array is registered.
                continue
            own = isinstance(thing, Variable) and (thing.function == function and thing.scope == "local" or thing.function is None and function == point.function)
            if own and scope.find(thing.name) is thing and ((thing.type.scalar().kind, thing.type.scalar().size) in KINDS or thing.type.scalar().kind == "text") and not thing.allocatable and thing.type.size and thing.declared == "here":
                self._target(thing)
                made.append(f"  call mend_cc_spoil(mend_cc_address({thing.name}), storage_size({thing.name}) / 8 * product(shape({thing.name})))")
        return [f"if (mend_cc_restoring({point.number})) then", *made, "end if"] if made else []

    def _registered(self, point, level):
        called = names.item_names(point)
        last = len(point.chain)
        scope = self.program.functions[point.function if level == last else point.chain[level][0]].scope
        made = []
        for item in point.items:
            thing = item.place[0]
            if item.level != level and not (item.level == -1 and level == last):
                continue
            kind = self._element(item.place)
            is_text = kind.kind == "text" and not kind.name
            if (kind.kind, kind.size) not in KINDS and not is_text:
                raise Refused(f"{thing.place}: {called[item]} is of a type that can't be registered ({kind.name or kind.kind})")
            text = "%".join((thing.name, *item.place[1]))
            if scope.find(thing.name) is not thing:
                raise Refused(f"{thing.place}: {thing.name} has no name in {self.program.functions[point.function].source}")
            if level == last and thing is self._counter(point.loop):
                text = f"mend_step_{point.number}"
            else:
                self._target(thing)
            whose = 1 if item.place in point.replicated else 0
            element = TEXT if is_text else KINDS[kind.kind, kind.size]
            if thing.type.kind == "array" and not item.place[1] and self._has_shape(thing):
                if is_text:
                    raise Refused(f"{self.shapes[thing.name][0].place}: {thing.name} can't be spread over ranks: texts can't, so take its shape away (it then restarts on as many ranks as before)")
                call = f"call mend_cc_spread({level}, '{called[item]}', mend_cc_address({text}), {element}, shape({text}, kind=8), {self._shape(thing)}, storage_size({text}))"
            else:
                # The characters of a text are a dimension of their own.
                extents, bits = (f"[len({text}, kind=8), shape({text}, kind=8)]", "8") if is_text else (f"shape({text}, kind=8)", f"storage_size({text})")
                call = f"call mend_cc_register({level}, '{called[item]}', mend_cc_address({text}), {element}, {extents}, {whose}, {bits})"
            made += self._where_allocated(item.place, call, f"call mend_cc_unallocated({level}, '{called[item]}', {element}, {whose})")
        return made

    def _shape(self, variable):
        """The dimensions that a directive gives an array, as an array of Fortran's."""
        directive, shape = self.shapes[variable.name]
        if len(shape) != variable.dimensions:
            raise Refused(f"{directive.place}: {variable.name} has {variable.dimensions} dimensions, and its shape {len(shape)}")
        made = []
        for part in shape:
            match = re.fullmatch(r"mend_app_(\w+)\s*\((.*)\)", part, re.I)
            spread = match.group(1).lower() if match else None
            arguments = split_at_commas(match.group(2)) if match else []
            if SPREADS.get(spread) != len(arguments):
                raise Refused(f"{directive.place}: `{part}` is no dimension: mend_app_whole(N), mend_app_block(ALL, START, COUNT, BEFORE, AFTER), mend_app_cyclic(ALL, BLOCK, PART, PARTS), mend_app_list(ALL, SUBSCRIPTS)")
            made.append(f"mend_cc_{spread}({', '.join(f'int({one}, 8)' for one in arguments)})")
        self.shaped.add(variable.name)
        return f"[{', '.join(made)}]"

    @staticmethod
    def _where_allocated(place, call, otherwise):
        """A call, and another where an allocatable variable or component on the way isn't allocated in this run."""
        thing, path = place
        parts, kind = ["%".join((thing.name, *path[:depth])) for depth in range(len(path) + 1)], thing.base
        needed = [parts[0]] if thing.allocatable else []
        for part, name in zip(parts[1:], path):
            kind = dict((field, below) for field, below, _ in kind.scalar().fields)[name]
            needed += [part] if kind.kind == "array" and kind.name == "allocatable" else []
        lines = [call]
        for part in reversed(needed):
            lines = [f"if (allocated({part})) then", *(f"  {line}" for line in lines), "else", f"  {otherwise}", "end if"]
        return lines

    def _element(self, place):
        thing = place[0]
        kind = thing.base if not place[1] else self.memory.type_at(place)
        return kind.scalar()

    def _target(self, variable):
        """What the library keeps the address of must be a target."""
        if variable in self.targets or "target" in variable.attributes or "pointer" in variable.attributes:
            return
        self.targets.add(variable)
        if variable.declared != "here":
            self._undeclared(variable)
            return
        starts = self.program.lines[variable.place.file]
        edits = self.files[variable.place.file]
        line = variable.place.line
        while starts[line] - 1 < variable.place.end:
            line += 1
        edits.insert(starts[line], f"  target :: {variable.name}\n", -8)

    def _undeclared(self, variable):
        """The same of one without a declaration in this file: where those of its program unit end."""
        function = self.program.functions.get(variable.function)
        if function is None or (not variable.declared and function.scope.result is not variable and function.scope.declares_all()):
            raise Refused(f"{variable.place}: {variable.name} is declared in another file: nothing can be inserted there")
        self.declared.setdefault(variable.function, []).append(f"target :: {variable.name}")

    def _start_and_end(self):
        lines = []
        for point in self.plan.points:
            called = names.item_names(point)
            own = [item for item in point.items if item.level in (len(point.chain), -1)]
            if not own:
                raise Refused(f"{point.stmt.place}: nothing of {self.program.functions[point.function].source} changes between checkpoints")
            lines.append(f"call mend_cc_point({point.number}, '{names.path(self.program, point)}', '{called[own[0]]}')")
        lines.append(f"call mend_cc_start('{self.name}')")
        placed = False
        for name, function in self.program.functions.items():
            for stmt in function.body.walk():
                called = {part.args[0].value for part in stmt.expr.walk() if part.op == "call" and part.args[0].op == "func"} if stmt.expr is not None and stmt.kind == "expr" else set()
                if called & {"MPI_Init", "MPI_Init_thread"}:
                    self._after(stmt, lines, -1)
                    placed = True
                    self.using.add(name)
                elif "MPI_Finalize" in called:
                    self._lines(stmt, ["call mend_cc_end()"], 5)
                    self.using.add(name)
        if not placed:
            raise Refused("MPI_Init isn't called in these sources")


def _wrapped(line):
    """A line as the lines that it needs."""
    if len(line) <= WIDTH:
        return [line]
    indent = line[:len(line) - len(line.lstrip())] + "  "
    made = [""]
    for token in re.findall(r"'(?:[^']|'')*'|\w+|\s+|!.*|.", line):
        if token.startswith("!"):
            break
        pieces = [token]
        if token.startswith("'") and len(token) > LITERAL:
            text = token[1:-1].replace("''", "'")
            pieces = [piece for at in range(0, len(text), LITERAL) for piece in ("//", "'" + text[at:at + LITERAL].replace("'", "''") + "'")][1:]
        for piece in pieces:
            if len(made[-1]) + len(piece) > WIDTH and made[-1].strip():
                made[-1] = made[-1].rstrip() + " &"
                made.append(indent)
            made[-1] += piece if made[-1].strip() or len(made) == 1 else piece.lstrip()
    return made


def _first_comma(text, start):
    """Offset of the first comma outside of parentheses."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "([") - (text[at] in ")]")
        if text[at] == "," and depth == 0:
            return at
    return None
