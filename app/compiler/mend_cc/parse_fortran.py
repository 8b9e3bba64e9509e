"""Fortran sources (free form), read by fparser, as the intermediate form.

An array is one variable with its elements in a row; a subscript list becomes one index, first dimension first. A dummy argument is a pointer. An assignment to arrays
becomes loops. Extents that only the run knows are variables that nothing changes."""

import re

from fparser.two import Fortran2003 as F
from fparser.two.parser import ParserFactory
from fparser.two.utils import FortranSyntaxError, walk

from .fortran_arrays import Arrays
from .fortran_calls import BY_POSITION, INQUIRIES, INTRINSICS, Calls
from .fortran_control import Control, specifiers
from .fortran_expressions import INT, REFERENCES, Expressions
from .fortran_names import CONSTANTS, Declarations, Scope, constant, listed, text_of
from .fortran_source import compiled_text, reader, span
from .ir import Directive, Expr, Function, Naming, Place, Program, Stmt, Type, Unit
from .parse_c import BadDirective, CannotParse
from .pragmas import turned_on

# What an expression for a unit may be made from, so that it is the same as long as its variables are.
NAMING = ("const", "var", "index", "deref", "member", "binary", "unary")


class _Reader(Declarations, Calls, Expressions, Arrays, Control):
    """All sources of one program: path -> flags of its compilation."""

    def __init__(self, program, sources):
        self.program, self.sources, self.texts = program, sources, {}
        self.modules, self.structures, self.shapes, self.shape_scope, self.extents = {}, {}, {}, {}, {}
        self.components = {}  # (type, component that is an array) -> a variable that has its shape
        self.allocations, self.externals, self.repeated = {}, set(), set()
        self.program_unit_variables = []
        self.path, self.lines, self.shared = None, [], set()
        self.counters, self.bounded, self.count = None, [], 0

    def read(self):
        paths = list(self.sources)
        trees = []
        for path in paths:
            self.open(path)
            try:
                tree = ParserFactory().create(std="f2008")(reader(path, self.texts[path], self.sources[path]))
            except FortranSyntaxError as error:
                raise CannotParse(f"{path}: {str(error).strip()}") from None
            for one in walk(tree, F.Include_Stmt):
                # MPI's own file names constants.
                if "mpif.h" not in text_of(one):
                    raise CannotParse(f"{self.line_place(one)}: this file isn't found ({text_of(one.items[0])})")
            trees.append((path, tree))
            self.directives(path)
        units = []
        for path, tree in trees:
            self.open(path)
            for node in tree.children:
                if isinstance(node, F.Module):
                    name = text_of(node.children[0].items[1])
                    self.modules[name] = Scope(name)
        for path, tree in trees:
            self.open(path)
            for node in tree.children:
                if isinstance(node, F.Module):
                    scope = self.modules[text_of(node.children[0].items[1])]
                    self.declare(_part(node, F.Specification_Part), scope, None)
                    self.data(node, scope)
                    inner = _part(node, F.Module_Subprogram_Part)
                    units += [(path, one, scope) for one in (inner.children if inner is not None else ()) if isinstance(one, (F.Subroutine_Subprogram, F.Function_Subprogram))]
                elif isinstance(node, (F.Main_Program, F.Subroutine_Subprogram, F.Function_Subprogram)):
                    units.append((path, node, None))
        named = [text_of(node.children[0].items[1]) for _, node, _ in units if not isinstance(node, F.Main_Program)] + ["main"]
        self.repeated = {name for name in named if named.count(name) > 1}
        made = [self.unit(path, node, outer) for path, node, outer in units]
        for path, node, scope, function in made:
            self.open(path)
            for one in walk(node, F.Allocation):
                variable = scope.find(text_of(one.items[0]))
                if variable is not None and one.items[1] is not None:
                    self.allocations.setdefault(variable, []).append((scope, one.items[1]))
        for path, node, scope, function in made:
            self.open(path)
            self.body(node, scope, function)
        for variable in self.shapes:
            variable.dimensions = len(self.shapes[variable])
            extents = [self.extent(variable, dimension) for dimension in range(len(self.shapes[variable]))]
            if variable.scope != "param" and all(one is not None and one.op in ("const", "var") for one in extents):
                variable.extents = extents
        self.program.lines = {path: self.starts(path) for path in paths}

    def starts(self, path):
        """Offset of each line's start."""
        self.open(path)
        return self.lines

    def open(self, path):
        self.path = path
        with open(path, "rb") as file:
            text = file.read()
        if path not in self.texts:
            self.texts[path] = compiled_text(path, text, self.sources[path])
        self.lines = [0]
        self.shared = {number for number, line in enumerate(self.texts[path].split(b"\n"), start=1) if b";" in line and re.search(rb";\s*[^\s!]", re.sub(rb"'[^']*'|\"[^\"]*\"|!.*", b"", line))}
        for line in text.split(b"\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)

    def directives(self, path):
        threads = any(flag.startswith("-fopenmp") for flag in self.sources[path])
        on = turned_on(self.sources[path])
        for number, line in enumerate(self.texts[path].decode(errors="replace").split("\n"), start=1):
            match = re.match(r"\s*!\$mend\s+(\w+)\s*(.*)", line, re.I)
            if ("omp" in on and re.match(r"\s*!\$omp\s+.*\btarget", line, re.I)) or ("acc" in on and re.match(r"\s*!\$acc\s", line, re.I)):
                raise CannotParse(f"{path}:{number}: a device has data (OpenMP, OpenACC) in Fortran")
            if re.match(r"\s*!\$omp\s+.*(parallel|threadprivate)", line, re.I) or (threads and re.match(r"\s*!\$\s", line)):
                raise CannotParse(f"{path}:{number}: threads (OpenMP) in Fortran")
            if match:
                if match.group(1).lower() not in ("checkpoint", "exclude", "shape"):
                    raise BadDirective(f"{path}:{number}: there is no directive `mend {match.group(1)}`: checkpoint, exclude, shape")
                self.program.directives.append(Directive(match.group(1).lower(), Place(path, number, self.lines[number - 1], self.lines[number] - 1), match.group(2).strip()))

    def unit(self, path, node, outer):
        """A program unit with its variables; its statements come later."""
        self.open(path)
        head = node.children[0]
        main = isinstance(node, F.Main_Program)
        source = text_of(head.items[1])
        # Procedures of several modules may have one name.
        name = "main" if main else f"{outer.name}:{source}" if outer is not None and source in self.repeated else source
        if name in self.program.functions:
            raise CannotParse(f"{path}:{head.item.span[0]}: there are two program units of the name {source}")
        if span(head.item)[2] or span(node.children[-1].item)[2]:
            raise CannotParse(f"{self.line_place(head)}: a program unit in a file that is included here")
        scope = Scope(name, outer)
        self.program_unit_variables = []
        dummies = [text_of(one) for one in head.items[2].children] if not main and head.items[2] is not None else []
        self.declare(_part(node, F.Specification_Part), scope, name, dummies)
        for dummy in dummies:
            if dummy not in scope.variables:
                self.implicit(dummy, scope, name, True, self.line_place(head))
        place = Place(path, head.item.span[0], self.lines[head.item.span[0] - 1], self.lines[node.children[-1].item.span[1]] - 1)
        function = Function(name, place, [scope.variables[one] for one in dummies], None, None, source=source)
        if isinstance(node, F.Function_Subprogram):
            suffix = re.search(r"result\((\w+)\)", text_of(head))
            result = suffix.group(1) if suffix else source
            if result not in scope.variables:
                prefix = head.items[0]
                specs = walk(prefix, F.Intrinsic_Type_Spec) if prefix is not None else []
                base = self.base_type(specs[0], scope) if specs else Type("float", 4)
                self.make(result, base, None, "", False, self.line_place(head), scope, name, False)
            scope.result = scope.variables[result]
        self.data(node, scope)
        if _part(node, F.Internal_Subprogram_Part) is not None:
            self.program.cannot_see(place, "internal procedures, which use variables of what is around them")
        function.variables = self.program_unit_variables
        function.spec = self.spec_lines(node)
        function.scope = scope
        self.program.functions[name] = function
        if outer is not None:
            outer.procedures[source] = name
        elif not main:
            self.externals.add(name)
        return path, node, scope, function

    @staticmethod
    def spec_lines(node):
        """(line of the head, last line before the first statement)."""
        execution = _part(node, F.Execution_Part)
        head = node.children[0].item.span[1]
        first = execution.children[0] if execution is not None else node.children[-1]
        while first.item is None:
            first = first.children[0]
        return head, span(first.item)[0] - 1

    def implicit(self, name, scope, function, dummy, place):
        base = scope.letter(name[0]) or (INT if name[0] in "ijklmn" else Type("float", 4))
        return self.make(name, base, None, "", False, place, scope, function, dummy)

    def body(self, node, scope, function):
        self.scope, self.function = scope, function
        execution = _part(node, F.Execution_Part)
        self.find_labels(execution)
        statements = self.block(execution.children) if execution is not None else []
        if scope.result is not None:
            place = self.line_place(node.children[-1])
            statements.append(Stmt("return", place, expr=self.result(place)))
        first = self.line_place(node.children[0])
        function.body = Stmt("block", Place(self.path, first.line, first.start, function.place.end), tuple(statements))
        for one in function.variables:
            one.block = (function.place.start, function.place.end)

    def result(self, place):
        """What a function gives back."""
        variable = self.scope.result
        return self.all_of(variable, place) if variable in self.shapes else self.variable(variable, place)

    # ---- statements ----

    def block(self, nodes, macro=False):
        made = []
        for node in nodes:
            if isinstance(node, (F.Comment, F.Format_Stmt)) or type(node).__name__ in ("Data_Stmt", "Include_Stmt"):
                continue
            made += self.labelled(node, macro)
        return made

    def stmt(self, node, macro=False):
        """The statements that one of Fortran's becomes."""
        place = self.line_place(node, macro)
        self.before = []
        if isinstance(node, F.Assignment_Stmt):
            return self.assignment(node, place)
        if isinstance(node, F.Call_Stmt):
            arguments = list(node.items[1].children) if node.items[1] is not None else []
            expr = self.call(text_of(node.items[0]), arguments, place)
            return [Stmt("expr", place, expr=self.with_temporaries(expr))]
        if isinstance(node, F.If_Stmt):
            inner = self.block([node.items[1]], True)
            return [Stmt("if", place, (Stmt("block", place, tuple(inner)), None), self.condition(node.items[0]))]
        if isinstance(node, F.If_Construct):
            return self.if_construct(node, place)
        if isinstance(node, (F.Block_Nonlabel_Do_Construct, F.Block_Label_Do_Construct, F.Action_Term_Do_Construct)):
            return self.loop(node, place)
        if isinstance(node, F.Case_Construct):
            return self.case(node, place)
        if isinstance(node, (F.Exit_Stmt, F.Cycle_Stmt)):
            return [self.jump(node, place)]
        if isinstance(node, F.Goto_Stmt):
            return [Stmt("goto", place, label=text_of(node.items[0]))]
        if isinstance(node, F.Return_Stmt):
            return [Stmt("return", place, expr=self.result(place) if self.scope.result else None)]
        if isinstance(node, F.Stop_Stmt) or type(node).__name__ == "Error_Stop_Stmt":
            return [Stmt("expr", place, expr=Expr("call", (Expr("func", (), "exit", None, place),), None, Type("void"), place))]
        if isinstance(node, F.Continue_Stmt):
            return [Stmt("empty", place)]
        if isinstance(node, (F.Print_Stmt, F.Write_Stmt)):
            return [self.output(node, place), *self.after_transfer(node, place)]
        if isinstance(node, F.Read_Stmt):
            return [*self.input(node, place), *self.after_transfer(node, place)]
        if isinstance(node, F.Open_Stmt):
            self.program.cannot_see(place, "a unit: what is written to it after a checkpoint isn't cut off by a restart")
        if isinstance(node, (F.Open_Stmt, F.Close_Stmt, F.Nullify_Stmt, F.Flush_Stmt, F.Rewind_Stmt)):
            return [Stmt("empty", place, unit=self.unit_of(node)), *self.after_transfer(node, place)]
        if isinstance(node, (F.Allocate_Stmt, F.Deallocate_Stmt)):
            return self.allocation(node, place)
        if isinstance(node, F.Associate_Construct):
            return self.associate(node, place)
        return self.seen_as_a_whole(node, place)

    def calls(self, node):
        """Whether there is a call in it of a function that isn't known."""
        components = {name for kind in self.structures.values() for name, _, _ in kind.fields}
        known = {*INTRINSICS, *INQUIRIES, *BY_POSITION, *self.structures}
        own = {text_of(one.items[0]) for one in walk(node, (F.Association, F.Entity_Decl))}
        for one in walk(node, REFERENCES):
            name = text_of(one.items[0])
            below = isinstance(one.parent, F.Data_Ref) and one is not one.parent.items[0]
            if name not in (components if below else known | own) and (below or (self.scope.find(name) is None and not self.scope.table(name))):
                return True
        return bool(walk(node, F.Call_Stmt))

    def with_temporaries(self, expr):
        """What must be computed before a call comes before it."""
        for one in reversed(self.before):
            expr = Expr("comma", (one, expr), None, expr.type, expr.place)
        self.before = []
        return expr

    def condition(self, node):
        expr = self.expr(node)
        return self.with_temporaries(expr)

    def output(self, node, place):
        controls = specifiers(node.items[0]) if isinstance(node, F.Write_Stmt) else []
        unit = controls[0][1] if controls else None
        values = [self.expr(one) for one in listed(node.items[1])]
        values += [self.expr(value) for word, value in controls if word in ("rec", "pos")]
        values += [self.variable(one, place) for word, value in controls for one in self.group(word, value)]
        inside = self.text_unit(unit)
        if inside is not None and inside.op == "var" and isinstance(unit, F.Name):
            # What is left of the text becomes blank.
            return Stmt("expr", place, expr=self.with_temporaries(Expr("assign", (inside, Expr("list", tuple(values), None, inside.type, place)), "=", inside.type, place)))
        if inside is not None:
            return Stmt("expr", place, expr=self.with_temporaries(Expr("call", (Expr("func", (), "sprintf", None, place), self.address(inside), *values), None, Type("void"), place)))
        name = "mend_cc record" if unit is not None and text_of(unit) != "*" and self.unit_key(unit) not in (0, 6) else "mend_cc output"
        made = Stmt("expr", place, expr=self.with_temporaries(Expr("call", (Expr("func", (), name, None, place), *values), None, Type("void"), place)))
        made.unit = self.unit_of(node)
        return made

    def unit_of(self, node, own=()):
        """What a statement does with a unit, or None. `own`: names of a construct around it, which hide others -> whether that is a text."""
        kind = "open" if isinstance(node, F.Open_Stmt) else "close" if isinstance(node, F.Close_Stmt) else "write" if isinstance(node, F.Write_Stmt) else None
        parts = specifiers(node) if kind else []
        if kind == "open" and text_of(dict(parts).get("status", "'unknown'")).strip("'\"") not in ("unknown", "old"):
            kind = "empty"
        elif kind == "write" and "rec" in dict(parts):
            kind = "record"
        named = next((value for word, value in parts if word in ("", "unit", "newunit")), "*")
        hidden = [own[text_of(one)] for one in walk(named, F.Name) if text_of(one) in own]
        if text_of(named) == "*" or any(hidden) or (kind in ("write", "record") and not hidden and self.text_unit(named) is not None):
            return None
        return Unit(kind, None if hidden else self.unit_key(named), "newunit" in dict(parts))

    def unit_key(self, node):
        """What Unit.key is of a unit."""
        name = text_of(node)
        variable = self.scope.find(name)
        if variable is None:
            value = self.number(node, self.scope)
            value = CONSTANTS.get(name) if value is None and not self.scope.parameter(name)[0] else value
            if value is not None:
                return value
        elif not variable.declared and variable is not self.scope.result and self.scope.declares_all():
            # Of a module that isn't among the sources.
            return None
        elif variable.scope != "param" and variable not in self.shapes:
            return variable
        kept, self.before = self.before, []
        expr = self.aside(lambda: self.location(node))
        self.before = kept
        if any(part.op not in NAMING for part in expr.walk()):
            return None
        return Naming(self.function.name, name, frozenset(part.value for part in expr.walk() if part.op == "var"))

    def text_unit(self, unit):
        """A text that is written to or read from in the place of a unit, or None."""
        if not isinstance(unit, (F.Name, F.Part_Ref, F.Data_Ref, F.Array_Section, F.Substring)):
            return None
        found = self.location(unit)
        return found if found.type is not None and found.type.scalar().kind == "text" else None

    def group(self, word, value):
        """The variables of a namelist."""
        names = self.scope._look("lists", text_of(value))[1] if word in ("", "nml") and isinstance(value, F.Name) else None
        return [variable for variable in map(self.scope.find, names or ()) if variable is not None]

    def input(self, node, place):
        controls = specifiers(node.items[0]) if node.items[0] is not None else []
        targets = []
        for one in listed(node.items[2]):
            inner = [*listed(one.items[0])] if isinstance(one, F.Io_Implied_Do) else []
            targets += [self.location(one)] if not inner else [made for part in inner for made in self.loosely(part, place)]
        targets += [self.variable(one, place) for word, value in controls for one in self.group(word, value)]
        inside = self.text_unit(controls[0][1]) if controls else None
        read = [self.expr(value) for word, value in controls if word in ("rec", "pos")]
        made = []
        for target in targets:
            if inside is not None:
                source = Expr("call", (Expr("func", (), "mend_cc number", None, place), inside), None, target.type, place)
                made.append(Stmt("expr", place, expr=Expr("assign", (target, source), "=", target.type, place)))
            else:
                made.append(Stmt("expr", place, expr=Expr("call", (Expr("func", (), "scanf", None, place), constant(0, place), self.address(target)), None, Type("void"), place)))
        made += [Stmt("expr", place, expr=one) for one in read]
        for later in made[1:]:
            later.place = Place(place.file, place.line, place.start, place.end, True)
        return made or [Stmt("empty", place)]


def _part(node, kind):
    return next((child for child in node.children if isinstance(child, kind)), None)


def parse(sources):
    """Sources as (path, flags) make one program."""
    program = Program(language="fortran")
    program.files = [path for path, _ in sources]
    program.constants = {"proc_null": -1, "any_source": -2, "any_tag": -1, "undefined": -32766, "comm_world": CONSTANTS["mpi_comm_world"]}
    _Reader(program, dict(sources)).read()
    return program
