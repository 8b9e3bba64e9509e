"""C sources with the calls added: edits by position, so that all else stays as the user wrote it."""

import re

from . import names, overwritten
from .ir import Variable, named, parent_map
from .memory import Heap
from .plan import Refused
from .pragmas import compiled, front
from .shapes import Shapes

# MEND_APP_DIMENSIONS of mend_app.h.
MOST_DIMENSIONS = 7


class Edits:
    """Insertions and replacements in one file; offsets count bytes."""

    def __init__(self, path, skipped=()):
        with open(path, "rb") as file:
            self.text = file.read()
        self.compiled = compiled(self.text, skipped)
        self.edits = []

    def insert(self, offset, text, order=0):
        """At one offset lower orders come first."""
        self.edits.append((offset, order, len(self.edits), 0, text))

    def replace(self, start, end, text):
        self.edits.append((start, 0, len(self.edits), end - start, text))

    def result(self):
        made = self.text
        for offset, _, _, length, text in sorted(self.edits, key=lambda one: one[:3], reverse=True):
            made = made[:offset] + text.encode() + made[offset + length:]
        return made

    def indent(self, offset):
        """The white space before a statement that begins its line."""
        start = self.text.rfind(b"\n", 0, offset) + 1
        before = self.text[start:offset]
        return before.decode() if not before.strip() else ""

    def start(self, stmt):
        """Before a statement, and before #pragma lines that are about it."""
        return front(self.compiled, stmt.place.start)

    def end(self, stmt):
        """Behind a statement, its semicolon included."""
        offset = stmt.place.end
        if self.text[offset - 1:offset] in (b"}", b";"):
            return offset
        while offset < len(self.text):
            rest = self.text[offset:]
            match = re.match(rb"\s+|//[^\n]*|/\*.*?\*/", rest, re.S)
            if match:
                offset += match.end()
            elif rest[:1] == b";":
                return offset + 1
            else:
                break
        return stmt.place.end


def _behind_includes(text, end):
    """Offset behind the last #include before `end` that isn't within a condition: what the source defines for headers stands before all of them."""
    found = depth = at = 0
    for line in text[:end].split(b"\n")[:-1]:
        at += len(line) + 1
        match = re.match(rb"\s*#\s*(if|endif|include)", line)
        if match:
            depth += {b"if": 1, b"endif": -1}.get(match.group(1), 0)
            found = at if match.group(1) == b"include" and depth == 0 else found
    return found


class Rewriter(Shapes):
    """All files of a program."""

    def __init__(self, program, memory, plan, poison=False, name="program"):
        super().__init__(program, memory)
        self.plan, self.poison, self.name = plan, poison, name
        self.files = {path: Edits(path, program.skipped.get(path, ())) for path in program.files}
        self.above = {one: parent_map(function.body) for one, function in program.functions.items()}
        self.heaps = {item.place[0] for point in plan.points for item in point.items if isinstance(item.place[0], Heap)}

    def run(self):
        """path -> its new text, of all files."""
        for directive in self.program.directives:
            edits = self.files.get(directive.place.file)
            if edits:
                edits.replace(directive.place.start, directive.place.end, f"/* mend {directive.kind} {directive.text} */")
        for point in self.plan.points:
            self._point(point)
            self._frames(point)
        for stmt, numbers in self.plan.skips.items():
            listed = " ".join(map(str, sorted(numbers)))
            edits = self.files[stmt.place.file]
            indent = edits.indent(stmt.place.start) or "    "
            edits.insert(edits.start(stmt), f'if (!mend_cc_skip("{listed}")) {{ /* a restart has no need of it */\n{indent}', -5)
            edits.insert(edits.end(stmt), f"\n{indent}}}", 5)
        self._allocations()
        self._opened()
        self._start_and_end()
        for path, edits in self.files.items():
            first = min((function.place.start for function in self.program.functions.values() if function.place.file == path), default=0)
            edits.insert(_behind_includes(edits.text, first), "#include <mend_cc.h>\n", -9)
        return {path: edits.result() for path, edits in self.files.items()}

    # ---- safe points ----

    def _point(self, point):
        stmt, edits = point.stmt, self.files[point.stmt.place.file]
        indent = edits.indent(stmt.place.start) or "    "
        variable = f"mend_at_{point.number}"
        lines = [f"if (mend_cc_arrive({point.number}, &{variable})) {{"]
        last = len(point.chain)
        lines += [f"    {line}" for line in self._poisoned(point, point.function, stmt.place.start)]
        lines += [f"    {line}" for line in self._registered(point, last, stmt.place.start, stmt.place.file)]
        parts = [overwritten.call(one) for one in overwritten.overwritten(self.program, self.memory, point)]
        lines += [f"    {line}" for line in parts]
        lines += ["    mend_cc_poison_overwritten();"] if self.poison and parts else []
        lines += ["}", f"mend_cc_checkpoint({point.number});"]
        code = "".join(f"{line}\n{indent}" for line in lines)
        outer = point.loop
        above = self.above[point.function].get(stmt)
        braces = above is not None and above.kind != "block"
        if outer is None:
            edits.insert(edits.start(stmt), f"{{\n{indent}int {variable} = 0;\n{indent}{code}}}\n{indent}", 1)
            return
        if braces:
            edits.insert(edits.start(stmt), "{\n" + indent, 0)
            edits.insert(edits.end(stmt), f"\n{indent}}}", 0)
        edits.insert(edits.start(stmt), code, 1)
        outer_edits = self.files[outer.place.file]
        outer_indent = outer_edits.indent(outer.place.start) or "    "
        outer_edits.insert(outer_edits.start(outer), f"{{\n{outer_indent}int {variable} = 0; /* mend-cc: safe point {point.number} */\n{outer_indent}", -2)
        outer_edits.insert(outer_edits.end(outer), f"\n{outer_indent}}}", 3)

    def _frames(self, point):
        """Before each call that leads to the point: the caller's variables."""
        for level, (caller, node, _) in enumerate(point.chain):
            stmt = node.stmt
            if stmt.place.macro:
                raise Refused(f"{stmt.place}: the call that leads to a safe point comes out of a macro, or of a header")
            edits = self.files[stmt.place.file]
            items = self._registered(point, level, stmt.place.start, stmt.place.file)
            indent = edits.indent(stmt.place.start) or "    "
            lines = [f"mend_cc_frame({level}, {point.number}); /* mend-cc: for this safe point */", *items]
            above = self.above[caller].get(stmt)
            if above is not None and above.kind not in ("block",):
                edits.insert(edits.start(stmt), "{ ", -8)
                edits.insert(edits.end(stmt), " }", 8)
            edits.insert(edits.start(stmt), "".join(f"{line}\n{indent}" for line in lines), -7)

    def _poisoned(self, point, function, offset):
        if not self.poison:
            return []
        made = []
        owner = self.program.functions[function]
        for thing in sorted(point.dead, key=str):
            if isinstance(thing, Variable) and thing.function == function and thing.scope in ("local", "param") and names.visible(owner, thing, offset) and thing.addressable and not thing.type.holds("opaque"):
                made.append(f"mend_cc_poison(&{thing.name}, sizeof {thing.name});")
            elif isinstance(thing, Variable) and thing.function is None and function == point.function and names.visible(owner, thing, offset) and thing.place.file == owner.place.file and thing.place.start < offset:
                made.append(f"mend_cc_poison(&{thing.name}, sizeof {thing.name});")
            elif isinstance(thing, Heap) and function == point.function:
                made.append(f"mend_cc_poison_heap({thing.number});")
        if not made:
            return []
        return [f"if (mend_cc_restoring({point.number})) {{", *(f"    {line}" for line in made), "}"]

    def _registered(self, point, level, offset, file):
        """Calls that name the items of one level; the last one has the globals and all blocks, too."""
        called, made, elsewhere = names.item_names(point), [], {}
        last = len(point.chain)
        function = self.program.functions[point.function if level == last else point.chain[level][0]]
        for item in point.items:
            thing = item.place[0]
            if isinstance(thing, Heap):
                if level == last:
                    made += self._heap(point, item, called[item])
            elif item.level == level or (item.level == -1 and level == last):
                if item.level == -1 and (thing.place.file != file or thing.place.start > offset or not names.visible(function, thing, offset)):
                    elsewhere.setdefault(thing.place.file, []).append(item)
                    continue
                if not names.visible(function, thing, offset):
                    raise Refused(f"{thing.place}: {thing.name} is hidden by another variable of this name at {file}:{point.stmt.place.line}")
                made.append(self._variable(point, item, called[item], level))
        for number, (path, items) in enumerate(sorted(elsewhere.items())):
            if path not in self.files:
                raise Refused(f"{items[0].place[0].name} stands in {path}, which isn't among the sources")
            helper = f"mend_cc_globals_{point.number}_{number}"
            body = "".join(f"    {self._variable(point, item, called[item], level)}\n" for item in items)
            self.files[path].insert(len(self.files[path].text), f"\n/* mend-cc: this file's variables for safe point {point.number} */\nvoid {helper}(void) {{\n{body}}}\n", 9)
            for one in {path, file}:
                self.files[one].insert(0, f"void {helper}(void);\n", -8)
            made.append(f"{helper}();")
        return made

    def _whose(self, point, place):
        kind = self.memory.type_at(place)
        same = place in point.replicated and kind is not None and kind.scalar().kind != "pointer"
        return "MEND_APP_REPLICATED" if same else "MEND_APP_PRIVATE"

    def _variable(self, point, item, name, level):
        place = item.place
        kind = self.memory.type_at(place)
        scalar = kind.scalar()
        text = ".".join((place[0].name, *named(place[1])))
        known = names.app_type(scalar)
        dims = names.extents(kind)
        at = f"&{text}" if kind.kind != "array" else text
        whose = self._whose(point, place)
        # A pointer is each rank's own: the shape is that of what it points to.
        if self._has_shape(place[0]) and not place[1] and (kind.kind == "array" or scalar.kind != "pointer"):
            return f'mend_cc_array({level}, "{name}", {at}, sizeof {text}, {self._shape(place[0].name, scalar)});'
        if known == "MEND_APP_BYTES":
            size = f"sizeof {text}"
            return f'mend_cc_variable({level}, "{name}", {at}, {known}, 1, (const uint64_t[]){{{size}}}, {whose});'
        if known is None:
            listed, array = self._field_list(scalar, name, item.fields)
            count = 1
            for extent in dims:
                count *= extent
            return f'mend_cc_fields({level}, "{name}", {at}, {count}, sizeof({text}{"[0]" * len(dims)}), {listed}, {array}, MEND_APP_PRIVATE);'
        if dims:
            if None in dims:
                raise Refused(f"{place[0].place}: the size of {place[0].name} isn't known")
            return f'mend_cc_variable({level}, "{name}", {at}, {known}, {len(dims)}, (const uint64_t[]){{{", ".join(map(str, dims))}}}, {whose});'
        return f'mend_cc_variable({level}, "{name}", {at}, {known}, 0, NULL, {whose});'

    def _shape(self, name, kind):
        """Type, bytes of an element, and dimensions that a directive gives an array."""
        directive, shape = self.shapes[name]
        known, size = names.app_type(kind), kind.size
        if known in (None, "MEND_APP_POINTER"):
            has = "pointers can't" if known else "structures with pointers, and unions, can't"
            raise Refused(f"{directive.place}: {name} can't be spread over ranks: {has}, so take its shape away (it then restarts on as many ranks as before)")
        if known == "MEND_APP_BYTES":
            # Each element is a row of bytes.
            shape, size = [*shape, f"mend_app_whole({size})"], 1
        if len(shape) > MOST_DIMENSIONS:
            raise Refused(f"{directive.place}: the shape of {name} has too many dimensions: an array has {MOST_DIMENSIONS} at most, one of structures {MOST_DIMENSIONS - 1}")
        self.shaped.add(name)
        return f'{known}, {size}, {len(shape)}, (const mend_app_dimension[]){{{", ".join(shape)}}}'

    @staticmethod
    def _field_list(kind, name, wanted=names.ALL):
        if not kind.fields:
            raise Refused(f"{name}: what is in this structure can't be registered (a union, or nothing is known of it)")
        found = names.fields(kind, wanted)
        rows = ", ".join(f'{{"{field}", {offset}, {known}, {count}}}' for field, offset, known, count in found)
        return len(found), f"(const mend_cc_field[]){{{rows}}}"

    def _heap(self, point, item, name):
        heap = item.place[0]
        kind = heap.type.scalar()
        known = names.app_type(kind)
        whose = self._whose(point, (heap, ())) if kind.kind != "struct" else "MEND_APP_PRIVATE"
        if self._has_shape(heap):
            return [f'mend_cc_heap_array("{name}", {heap.number}, {self._shape(heap.name, kind)});']
        if known == "MEND_APP_BYTES":
            return [f'mend_cc_heap("{name}", {heap.number}, {known}, 1, {whose});']
        if known is None:
            listed, array = self._field_list(kind, name)
            return [f'mend_cc_heap_fields("{name}", {heap.number}, {kind.size}, {listed}, {array}, MEND_APP_PRIVATE);']
        return [f'mend_cc_heap("{name}", {heap.number}, {known}, {kind.size}, {whose});']

    # ---- allocation, files, start and end ----

    def _calls(self, wanted):
        for function in self.program.functions.values():
            for expr in function.body.expressions():
                for part in expr.walk():
                    if part.op == "call" and part.args[0].op == "func" and part.args[0].value in wanted:
                        yield part

    def _allocations(self):
        heaps = set(self.heaps)
        if self.poison and self.plan.points:
            heaps = set(self.memory.sites)
        for heap in heaps:
            call = heap.expr
            if call.args[0].op != "func":
                if heap in self.heaps:
                    raise Refused(f"{call.place}: this memory is allocated through a pointer to a function")
                continue
            edits, name = self.files.get(call.place.file), call.args[0].value
            start = call.place.start
            if edits is None or not edits.text[start:].startswith(name.encode()):
                if heap in self.heaps:
                    raise Refused(f"{call.place}: this allocation can't be changed (a macro, or a file that isn't among the sources)")
                continue
            opening = edits.text.index(b"(", start) + 1
            edits.insert(start, "mend_cc_", 2)
            edits.insert(opening, f"{heap.number}, ", 2)
        if not heaps:
            return
        self._freed_elsewhere(heaps)
        for call in self._calls({"free"}):
            if any(isinstance(thing, Heap) and thing in heaps for thing, _ in self.memory.targets(call.args[1])):
                edits = self.files.get(call.place.file)
                if edits is None or not edits.text[call.place.start:].startswith(b"free"):
                    raise Refused(f"{call.place}: this call of free() can't be changed (a macro)")
                edits.insert(call.place.start, "mend_cc_", 2)

    def _freed_elsewhere(self, heaps):
        """Refused: memory that is registered may be freed where nothing can be inserted."""
        for function in self.program.functions.values():
            for expr in function.body.expressions():
                for part in expr.walk():
                    if part.op == "call" and part.args[0].op != "func" and set(self.memory.callees(part)) & {"free", "realloc"}:
                        freed = {thing for argument in part.args[1:] for thing, _ in self.memory.targets(argument)} & heaps
                        if freed & self.heaps:
                            raise Refused(f"{part.place}: {min(heap.name for heap in freed)} may be freed through a pointer to a function")

    def _opened(self):
        """Files that are open at a safe point: their positions are saved."""
        kept = {place for point in self.plan.points for place in point.kept if self._is_file(place)}
        found = []
        for function in self.program.functions.values():
            for expr in function.body.expressions():
                for part in expr.walk():
                    if part.op != "assign" or not self.memory.places(part.args[0]) & kept:
                        continue
                    if part.args[1].op == "call" and part.args[1].args[0].value == "fopen":
                        if part.args[1] in self.plan.early:
                            # A restart would open it plainly: at its start, and emptied.
                            raise Refused(f"{part.place}: {self.name_of(part.args[0])} is opened before MPI_Init, and is open at a safe point: its position can't be saved so. Open it after MPI_Init")
                        found.append((part.args[1], self.name_of(part.args[0])))
                    elif any(one.op == "call" for one in part.args[1].walk()):
                        # A restart would open it anew, and empty it.
                        raise Refused(f"{part.place}: {self.name_of(part.args[0])} is opened by a function around fopen(), and is open at a safe point: its position can't be saved so. Assign what fopen() returns")
        for number, (call, name) in enumerate(found):
            edits = self.files.get(call.place.file)
            if edits is None or not edits.text[call.place.start:].startswith(b"fopen"):
                continue
            edits.insert(call.place.start, "mend_cc_", 2)
            edits.insert(edits.text.index(b"(", call.place.start) + 1, f'"{name}{"" if number == 0 else f" {number + 1}"}", ', 2)
        if found:
            for call in self._calls({"fclose"}):
                edits = self.files.get(call.place.file)
                if edits is not None and edits.text[call.place.start:].startswith(b"fclose"):
                    edits.insert(call.place.start, "mend_cc_", 2)

    @staticmethod
    def name_of(expr):
        while expr.args:
            expr = expr.args[0]
        return expr.value.name if isinstance(expr.value, Variable) else "file"

    def _is_file(self, place):
        kind = self.memory.type_at(place) if isinstance(place[0], (Variable, Heap)) else None
        return kind is not None and kind.scalar().kind == "pointer" and kind.scalar().element.name == "FILE"

    def _start_and_end(self):
        rows = []
        for point in self.plan.points:
            called = names.item_names(point)
            probe = self._probe(point, called)
            rows.append(f'{{{point.number}, "{names.path(self.program, point)}", "{probe}"}}')
        start = f'mend_cc_start("{self.name}", (const mend_cc_point[]){{{", ".join(rows)}}}, {len(rows)});'
        placed = False
        for function in self.program.functions.values():
            for stmt in function.body.walk():
                expr = stmt.expr
                if expr is None or stmt.kind == "loop":
                    continue
                called = {part.args[0].value for part in expr.walk() if part.op == "call" and part.args[0].op == "func"}
                edits = self.files.get(stmt.place.file)
                if called & {"MPI_Init", "MPI_Init_thread"}:
                    self._check_place(stmt)
                    if stmt.kind == "return":
                        raise Refused(f"{stmt.place}: nothing can follow MPI_Init here: make its call a statement of its own, before the `return`")
                    offset = edits.end(stmt)
                    self._in_block(function, stmt, edits)
                    edits.insert(offset, f"\n{edits.indent(stmt.place.start) or '    '}{start}", -1)
                    placed = True
                elif "MPI_Finalize" in called:
                    self._check_place(stmt)
                    self._in_block(function, stmt, edits)
                    edits.insert(edits.start(stmt), f"mend_cc_end();\n{edits.indent(stmt.place.start) or '    '}", 5)
        if not placed:
            raise Refused("MPI_Init isn't called in these sources")

    @staticmethod
    def _check_place(stmt):
        if stmt.place.macro:
            raise Refused(f"{stmt.place}: MPI_Init or MPI_Finalize comes out of a macro")

    def _in_block(self, function, stmt, edits):
        above = self.above[function.name].get(stmt)
        if above is not None and above.kind not in ("block", "label", "case", "default"):
            start = edits.start(stmt)
            # A #pragma line has its own.
            edits.insert(start, "{ " if start == stmt.place.start else f"{{\n{edits.indent(start) or '    '}", -8)
            edits.insert(edits.end(stmt), " }", 8)

    def _probe(self, point, called):
        last = len(point.chain)
        own = [item for item in point.items if item.level in (last, -1)]
        if not own:
            raise Refused(f"{point.stmt.place}: nothing of {self.program.functions[point.function].source}() changes between checkpoints")
        item = own[0]
        kind = self.memory.type_at(item.place).scalar() if isinstance(item.place[0], Variable) else item.place[0].type.scalar()
        if isinstance(item.place[0], Heap) and not self._has_shape(item.place[0]) and names.app_type(kind) is not None:
            # Its first block may be freed by then.
            return f"{called[item]} allocated"
        if names.app_type(kind) is not None:
            return called[item]
        plain = [one for one in own if isinstance(one.place[0], Variable) and names.app_type(self.memory.type_at(one.place).scalar()) is not None]
        if plain:
            return called[plain[0]]
        # Several structures have numbers.
        field = names.fields(kind, item.fields)[0][0]
        if isinstance(item.place[0], Heap) and not self._has_shape(item.place[0]):
            return f"{called[item]} allocated"
        return f"{called[item]}.{field}\\n{called[item]}[0].{field}"

