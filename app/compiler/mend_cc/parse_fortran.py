"""Fortran sources (free form), read by fparser, as the intermediate form.

An array is one variable with its elements in a row; a subscript list becomes one index, first dimension first. A dummy argument is a pointer. An assignment to arrays
becomes loops. Extents that only the run knows are variables that nothing changes."""

import re

from fparser.common.readfortran import FortranFileReader
from fparser.two import Fortran2003 as F
from fparser.two.parser import ParserFactory
from fparser.two.utils import BinaryOpBase, FortranSyntaxError, UnaryOpBase, walk

from .fortran_calls import INTRINSICS, Calls
from .fortran_names import CONSTANTS, Declarations, Scope, binary, constant, text_of
from .ir import Directive, Expr, Function, Place, Program, Stmt, Type, Variable
from .parse_c import BadDirective, CannotParse

OPERATORS = {".and.": "&&", ".or.": "||", ".eq.": "==", ".ne.": "!=", "/=": "!=", ".lt.": "<", ".le.": "<=", ".gt.": ">", ".ge.": ">=", ".eqv.": "==", ".neqv.": "!="}
INT, LOGICAL = Type("int", 4), Type("int", 4, name="logical")


class _Reader(Declarations, Calls):
    """All sources of one program."""

    def __init__(self, program):
        self.program = program
        self.modules, self.structures, self.shapes, self.shape_scope, self.extents = {}, {}, {}, {}, {}
        self.allocations, self.externals, self.repeated = {}, set(), set()
        self.program_unit_variables = []
        self.path, self.lines, self.shared = None, [], set()
        self.counters, self.temporaries, self.count = None, None, 0

    def read(self, paths):
        trees = []
        for path in paths:
            self.open(path)
            try:
                tree = ParserFactory().create(std="f2008")(FortranFileReader(path, ignore_comments=True))
            except FortranSyntaxError as error:
                raise CannotParse(f"{path}: {str(error).strip()}") from None
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
        self.program.lines = {path: self.starts(path) for path in paths}

    def starts(self, path):
        """Offset of each line's start."""
        self.open(path)
        return self.lines

    def open(self, path):
        self.path = path
        with open(path, "rb") as file:
            text = file.read()
        self.lines = [0]
        self.shared = {number for number, line in enumerate(text.split(b"\n"), start=1) if b";" in line and re.search(rb";\s*[^\s!]", re.sub(rb"'[^']*'|\"[^\"]*\"|!.*", b"", line))}
        for line in text.split(b"\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)

    def directives(self, path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                match = re.match(r"\s*!\$mend\s+(\w+)\s*(.*)", line, re.I)
                if re.match(r"\s*!\$omp\s+.*parallel", line, re.I):
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
        return head, first.item.span[0] - 1

    def implicit(self, name, scope, function, dummy, place):
        base = INT if name[0] in "ijklmn" else Type("float", 4)
        return self.make(name, base, None, "", False, place, scope, function, dummy)

    def body(self, node, scope, function):
        self.scope, self.function = scope, function
        execution = _part(node, F.Execution_Part)
        self.loops = []
        statements = self.block(execution.children) if execution is not None else []
        if scope.result is not None:
            place = self.line_place(node.children[-1])
            statements.append(Stmt("return", place, expr=self.variable(scope.result, place)))
        first = self.line_place(node.children[0])
        function.body = Stmt("block", Place(self.path, first.line, first.start, function.place.end), tuple(statements))
        for one in function.variables:
            one.block = (function.place.start, function.place.end)

    # ---- statements ----

    def block(self, nodes, macro=False):
        made = []
        for node in nodes:
            if isinstance(node, (F.Comment, F.Format_Stmt)) or type(node).__name__ in ("Data_Stmt", "Entry_Stmt"):
                continue
            made += self.stmt(node, macro)
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
            return [self.if_construct(node, place)]
        if isinstance(node, (F.Block_Nonlabel_Do_Construct, F.Block_Label_Do_Construct)):
            return [self.loop(node, place)]
        if isinstance(node, F.Case_Construct):
            return [self.case(node, place)]
        if isinstance(node, (F.Exit_Stmt, F.Cycle_Stmt)):
            kind = "break" if isinstance(node, F.Exit_Stmt) else "continue"
            name = text_of(node.items[1]) if node.items[1] is not None else None
            if name is None or name == self.loops[-1][0]:
                return [Stmt(kind, place)]
            return [Stmt("goto", place, label=f"{kind} {name}")]
        if isinstance(node, F.Goto_Stmt):
            return [Stmt("goto", place, label=text_of(node.items[0]))]
        if isinstance(node, F.Return_Stmt):
            return [Stmt("return", place, expr=self.variable(self.scope.result, place) if self.scope.result else None)]
        if isinstance(node, F.Stop_Stmt) or type(node).__name__ == "Error_Stop_Stmt":
            return [Stmt("expr", place, expr=Expr("call", (Expr("func", (), "exit", None, place),), None, Type("void"), place))]
        if isinstance(node, F.Continue_Stmt):
            label = getattr(node.item, "label", None)
            return [Stmt("label", place, (Stmt("empty", place),), label=str(label))] if label else [Stmt("empty", place)]
        if isinstance(node, (F.Print_Stmt, F.Write_Stmt)):
            return [self.output(node, place)]
        if isinstance(node, F.Read_Stmt):
            return self.input(node, place)
        if isinstance(node, F.Open_Stmt):
            self.program.cannot_see(place, "a unit: what is written to it after a checkpoint isn't cut off by a restart")
            return [Stmt("empty", place)]
        if isinstance(node, (F.Close_Stmt, F.Nullify_Stmt, F.Flush_Stmt, F.Rewind_Stmt)):
            return [Stmt("empty", place)]
        if isinstance(node, (F.Allocate_Stmt, F.Deallocate_Stmt)):
            arrays = tuple(one for one in (self.scope.find(text_of(name)) for name in walk(node, F.Name)) if one is not None and one.allocatable)
            return [Stmt("expr", place, expr=Expr("call", (Expr("func", (), "mend_cc allocate", None, place), constant(0, place)), arrays, Type("void"), place))]
        self.program.cannot_see(place, f"a statement of a kind that isn't known ({type(node).__name__.lower().replace('_', ' ')})")
        names = [self.scope.find(text_of(one)) for one in walk(node, F.Name)]
        parts = tuple(self.address(self.variable(one, place)) for one in names if one is not None)
        if any(not self.stays_within(one, node) for one in walk(node, (F.Return_Stmt, F.Goto_Stmt, F.Exit_Stmt, F.Cycle_Stmt))):
            raise CannotParse(f"{place}: a construct of a kind that isn't known is left from within")
        # What is called in it may send.
        own = {text_of(one.items[0]) for one in walk(node, (F.Association, F.Entity_Decl))}
        named = {text_of(one.items[0]) for one in walk(node, (F.Part_Ref, F.Function_Reference, F.Structure_Constructor))} - own
        kind = "a call within it" if walk(node, F.Call_Stmt) or any(self.calls(name) for name in named) else "mend_cc unknown"
        return [Stmt("expr", place, expr=Expr("call", (Expr("func", (), kind, None, place), *parts), None, Type("void"), place))]

    def calls(self, name):
        """Whether a name with parentheses is that of a function that isn't known."""
        return self.scope.find(name) is None and name not in INTRINSICS

    @staticmethod
    def stays_within(jump, node):
        above = jump.parent
        while isinstance(jump, (F.Exit_Stmt, F.Cycle_Stmt)) and above is not None and above is not node:
            if "Do_Construct" in type(above).__name__:
                return True
            above = above.parent
        return False

    def with_temporaries(self, expr):
        """What must be computed before a call comes before it."""
        for one in reversed(self.before):
            expr = Expr("comma", (one, expr), None, expr.type, expr.place)
        self.before = []
        return expr

    def condition(self, node):
        expr = self.expr(node)
        return self.with_temporaries(expr)

    def if_construct(self, node, place):
        parts, current = [], None
        for child in node.children:
            if isinstance(child, (F.If_Then_Stmt, F.Else_If_Stmt)):
                current = (self.condition(child.items[0]), [], self.line_place(child))
                parts.append(current)
            elif isinstance(child, F.Else_Stmt):
                current = (None, [], self.line_place(child))
                parts.append(current)
            elif not isinstance(child, F.End_If_Stmt):
                current[1].extend(self.block([child]))
        made = None
        for condition, statements, at in reversed(parts):
            block = Stmt("block", at, tuple(statements))
            made = block if condition is None else Stmt("if", place if condition is parts[0][0] else Place(at.file, at.line, at.start, at.end, True), (block, made), condition)
        return made

    def loop(self, node, place):
        head = next(child for child in node.children if isinstance(child, (F.Nonlabel_Do_Stmt, F.Label_Do_Stmt)))
        name = getattr(head.item, "name", None)
        control = head.items[-1] if isinstance(head.items[-1], F.Loop_Control) else None
        whole = Place(place.file, place.line, place.start, self.line_place(node.children[-1]).end, place.macro)
        self.loops.append((name.lower() if name else None,))
        inner = [child for child in node.children if child is not head and not isinstance(child, F.End_Do_Stmt)]
        made = Stmt("loop", whole, (), form="for")
        if control is not None and control.items[0] is not None:
            made.form, made.expr = "while", self.condition(control.items[0])
        elif control is not None and control.items[1] is not None:
            variable, values = control.items[1]
            counter = self.expr(variable)
            low, high = self.expr(values[0]), self.expr(values[1])
            step = self.number(values[2], self.scope) if len(values) > 2 else 1
            made.init = Stmt("expr", Place(place.file, place.line, place.start, place.end, True), expr=Expr("assign", (counter, low), "=", counter.type, place))
            made.expr = Expr("binary", (counter, high), "<=" if step is None or step > 0 else ">=", INT, place)
            made.advance = Expr("step", (counter,), (1, True), counter.type, place) if step == 1 else Expr("assign", (counter, constant(step, place)), "+=", counter.type, place)
        self.before = []
        statements = self.block(inner)
        self.loops.pop()
        made.parts = (Stmt("block", whole, tuple(statements)),)
        return made

    def case(self, node, place):
        selector, parts = self.expr(node.children[0].items[0]), []
        for child in node.children[1:]:
            if isinstance(child, F.Case_Stmt):
                ranges = child.items[0].items[0]
                at = self.line_place(child)
                condition = None
                for one in ranges.children if ranges is not None else ():
                    if isinstance(one, F.Case_Value_Range):
                        sides = [(bound, operator) for bound, operator in zip(one.items, (">=", "<=")) if bound is not None]
                        tests = [binary(operator, selector, self.expr(bound)) for bound, operator in sides]
                        test = tests[0] if len(tests) == 1 else binary("&&", *tests)
                    else:
                        test = binary("==", selector, self.expr(one))
                    condition = test if condition is None else binary("||", condition, test)
                parts.append((condition, [], at))
            elif not isinstance(child, F.End_Select_Stmt):
                parts[-1][1].extend(self.block([child]))
        made = next((Stmt("block", at, tuple(statements)) for condition, statements, at in parts if condition is None), None)
        for condition, statements, at in reversed([part for part in parts if part[0] is not None]):
            made = Stmt("if", Place(at.file, at.line, at.start, at.end, True), (Stmt("block", at, tuple(statements)), made), condition)
        return made if made is not None else Stmt("empty", place)

    def output(self, node, place):
        items = node.items[1]
        controls = walk(node.items[0], F.Io_Control_Spec) if isinstance(node, F.Write_Stmt) else []
        values = [self.whole(one) for one in (items.children if items is not None and "List" in type(items).__name__ else [items] if items is not None else [])]
        inside = [self.scope.find(text_of(one.items[1])) for one in controls[:1] if isinstance(one.items[1], F.Name)]
        if inside and inside[0] is not None and inside[0].base.kind == "text":
            target = self.variable(inside[0], place)
            return Stmt("expr", place, expr=self.with_temporaries(Expr("call", (Expr("func", (), "sprintf", None, place), self.address(target), *values), None, Type("void"), place)))
        name = "mend_cc record" if controls and text_of(controls[0].items[1]) not in ("*", "6", "0", "output_unit", "error_unit") else "mend_cc output"
        return Stmt("expr", place, expr=self.with_temporaries(Expr("call", (Expr("func", (), name, None, place), *values), None, Type("void"), place)))

    def input(self, node, place):
        items = walk(node, F.Input_Item_List)
        targets = [self.expr(one) for one in items[0].children] if items else [self.expr(node.items[2])] if node.items[2] is not None else []
        controls = walk(node.items[0], F.Io_Control_Spec) if node.items[0] is not None else []
        inside = self.scope.find(text_of(controls[0].items[1])) if controls and isinstance(controls[0].items[1], F.Name) else None
        made = []
        for target in targets:
            if inside is not None and inside.base.kind == "text":
                source = Expr("call", (Expr("func", (), "mend_cc number", None, place), self.variable(inside, place)), None, target.type, place)
                made.append(Stmt("expr", place, expr=Expr("assign", (target, source), "=", target.type, place)))
            else:
                made.append(Stmt("expr", place, expr=Expr("call", (Expr("func", (), "scanf", None, place), constant(0, place), self.address(target)), None, Type("void"), place)))
        for later in made[1:]:
            later.place = Place(place.file, place.line, place.start, place.end, True)
        return made or [Stmt("empty", place)]

    def assignment(self, node, place):
        target, source = node.items[0], node.items[2]
        counters = self.section_counters(target)
        if not counters:
            left = self.expr(target)
            value = self.expr(source)
            expr = Expr("assign", (left, value), "=", left.type, place)
            return [Stmt("expr", place, expr=self.with_temporaries(expr))]
        inside = Place(place.file, place.line, place.start, place.end, True)
        self.counters = [counter for counter, _ in counters]
        value = self.expr(source)
        left = self.expr(target)
        self.counters = None
        made = Stmt("expr", inside, expr=self.with_temporaries(Expr("assign", (left, value), "=", left.type, place)))
        for at, (counter, last) in enumerate(counters):
            named = self.variable(counter, place)
            made = Stmt("loop", place if at == len(counters) - 1 else inside, (Stmt("block", inside, (made,)),), binary("<=", named, last), form="for",
                        init=Stmt("expr", inside, expr=Expr("assign", (named, constant(0, place)), "=", INT, place)), advance=Expr("step", (named,), (1, True), INT, place))
        return [made]

    def section_counters(self, target):
        """A counter for each dimension of an array-valued target, with its last value; none for an element."""
        variable = self.scope.find(text_of(target.items[0] if isinstance(target, F.Part_Ref) else target)) if isinstance(target, (F.Part_Ref, F.Name)) else None
        if variable is None or variable not in self.shapes:
            return []
        parts = list(target.items[1].children) if isinstance(target, F.Part_Ref) else [None] * len(self.shapes[variable])
        found = []
        for dimension, part in enumerate(parts):
            if part is None or isinstance(part, F.Subscript_Triplet):
                low, high, step = part.items if part is not None else (None, None, None)
                first = self.expr(low) if low is not None else self.lower(variable, dimension)
                if high is not None:
                    last = binary("-", self.expr(high), first)
                elif low is None:
                    last = binary("-", self.extent(variable, dimension), constant(1, self.line_place(target)))
                else:
                    last = binary("-", binary("+", self.extent(variable, dimension), self.lower(variable, dimension)), binary("+", first, constant(1)))
                if step is not None:
                    last = Expr("opaque", (last,), "a section with a stride", INT, first.place)
                self.count += 1
                found.append((Variable(f"%{self.count}", INT, "local", self.line_place(target), self.function.name), last))
        return found

    # ---- expressions ----

    def variable(self, variable, place):
        """A variable by its name; a dummy argument is what its pointer leads to."""
        if variable.scope == "param":
            pointer = Expr("var", (), variable, variable.type, place)
            if variable in self.shapes:
                return Expr("index", (pointer, constant(0, place)), None, variable.base, place)
            return Expr("deref", (pointer,), None, variable.base, place)
        return Expr("var", (), variable, variable.type, place)

    @staticmethod
    def address(expr):
        """The pointer to an expression's location."""
        if expr.type is not None and expr.type.kind == "array" and expr.op == "var":
            expr = Expr("index", (expr, constant(0, expr.place)), None, expr.type.element, expr.place)
        return Expr("addr", (expr,), None, Type("pointer", 8, expr.type), expr.place)

    def bound_expr(self, value):
        return constant(value) if isinstance(value, int) else self.expr(value) if value is not None else None

    def dimension(self, variable, dimension):
        """(lower, extent) as far as the source tells; extents that only the run knows are variables of their own."""
        bounds = self.shapes[variable]
        if dimension >= len(bounds):
            return None, None
        low, high = bounds[dimension]
        own = self.shape_scope.get(variable)
        key = (variable, dimension)
        if high is None and variable in self.allocations:
            made = self.allocations[variable]
            texts = {text_of(shape.children[dimension]) for _, shape in made if dimension < len(shape.children)}
            if len(texts) == 1:
                where, shape = made[0]
                low, high = self.bound(shape.children[dimension], where)
                if not (isinstance(low, int) and isinstance(high, int)):
                    high = None
                    key = (where.name, texts.pop())
        elif high is None and variable.scope == "param":
            low = 1 if low is None else low
        if isinstance(low, int) and isinstance(high, int):
            return constant(low), constant(high - low + 1)
        if isinstance(low, int) and high is not None and own is self.scope and low == 1:
            return constant(1), self.expr(high)
        pseudo = self.extents.setdefault(("extent", key), Variable(f"{variable.name}%extent{dimension + 1}", INT, "global", variable.place))
        extent = Expr("var", (), pseudo, INT, variable.place)
        if isinstance(low, int):
            return constant(low), extent
        first = self.extents.setdefault(("lower", key), Variable(f"{variable.name}%lower{dimension + 1}", INT, "global", variable.place))
        return Expr("var", (), first, INT, variable.place), extent

    def lower(self, variable, dimension):
        return self.dimension(variable, dimension)[0]

    def extent(self, variable, dimension):
        return self.dimension(variable, dimension)[1]

    def element(self, variable, subscripts, place):
        """An element, by expressions for its subscripts."""
        index = None
        stride = None
        for dimension, subscript in enumerate(subscripts):
            low, extent = self.dimension(variable, dimension)
            if low is None:
                index = Expr("opaque", tuple(subscripts), "a shape that isn't known", INT, place)
                break
            part = binary("-", subscript, low)
            part = part if stride is None else binary("*", part, stride)
            index = part if index is None else binary("+", index, part)
            stride = extent if stride is None else binary("*", stride, extent)
        base = Expr("var", (), variable, variable.type, place)
        return Expr("index", (base, index), None, variable.base, place)

    def whole(self, node):
        """An argument of an intrinsic or of output: of an array all elements."""
        if self.counters is None and isinstance(node, (F.Name, F.Part_Ref)):
            name = text_of(node.items[0] if isinstance(node, F.Part_Ref) else node)
            variable = self.scope.find(name)
            if variable is not None and variable in self.shapes and (isinstance(node, F.Name) or walk(node, F.Subscript_Triplet)):
                base = Expr("var", (), variable, variable.type, self.place_of(node))
                return Expr("index", (base, Expr("opaque", (), "all of an array", INT, base.place)), None, variable.base, base.place)
        return self.expr(node)

    def place_of(self, node):
        return self.line_place(node)

    def expr(self, node):
        """An expression."""
        place = self.place_of(node) if hasattr(node, "parent") else None
        if isinstance(node, F.Name):
            return self.name(text_of(node), place)
        if isinstance(node, F.Int_Literal_Constant):
            return constant(int(str(node.items[0])), place)
        if isinstance(node, F.Logical_Literal_Constant):
            return Expr("const", (), int("true" in text_of(node)), LOGICAL, place)
        if isinstance(node, (F.Real_Literal_Constant, F.Complex_Literal_Constant)):
            return Expr("const", (), None, Type("float", 8), place)
        if isinstance(node, F.Char_Literal_Constant):
            return Expr("string", (), str(node), Type("text"), place)
        if isinstance(node, F.Parenthesis):
            return self.expr(node.items[1])
        if isinstance(node, (F.Part_Ref, F.Function_Reference, F.Intrinsic_Function_Reference, F.Structure_Constructor)):
            return self.reference(node, place)
        if isinstance(node, F.Data_Ref):
            return self.component(node, place)
        if isinstance(node, BinaryOpBase):
            return self.operation(node, place)
        if isinstance(node, UnaryOpBase):
            operator = text_of(node.items[0])
            return Expr("unary", (self.expr(node.items[1]),), "!" if operator == ".not." else operator, INT if operator == ".not." else self.expr(node.items[1]).type, place)
        parts = [self.expr(one) for one in getattr(node, "children", ()) if one is not None and not isinstance(one, str)]
        if isinstance(node, (F.Array_Constructor, F.Ac_Value_List)):
            return Expr("list", tuple(parts), None, INT, place)
        self.program.cannot_see(place, f"an expression of a kind that isn't known ({type(node).__name__.lower().replace('_', ' ')})")
        return Expr("opaque", tuple(parts), type(node).__name__, Type("opaque"), place)

    def operation(self, node, place):
        operator = text_of(node.items[1])
        one, other = self.expr(node.items[0]), self.expr(node.items[2])
        kind = one.type if one.type and one.type.kind == "float" else other.type
        if operator == "**":
            if other.op == "const" and other.value == 2:
                return Expr("binary", (one, one), "*", one.type, place)
            return Expr("call", (Expr("func", (), "pow", None, place), one, other), None, kind, place)
        operator = OPERATORS.get(operator, operator)
        if operator == "//":
            return Expr("list", (one, other), None, Type("text"), place)
        return Expr("binary", (one, other), operator, LOGICAL if operator in ("==", "!=", "<", "<=", ">", ">=", "&&", "||") else kind, place)

    def name(self, name, place):
        variable = self.scope.find(name)
        if variable is not None:
            if variable in self.shapes:
                if self.counters:
                    subscripts = [binary("+", self.variable(counter, place), self.lower(variable, at) or constant(1)) for at, counter in enumerate(self.counters[:len(self.shapes[variable])])]
                    return self.element(variable, subscripts, place)
                return self.variable(variable, place)
            return self.variable(variable, place)
        known, value = self.scope.parameter(name)
        if known or name in CONSTANTS or name.startswith("mpi_"):
            return Expr("const", (), value if known else CONSTANTS.get(name), Type("int", 4, name=name), place)
        return self.variable(self.implicit(name, self.scope, self.function.name, False, place), place)

    def reference(self, node, place):
        name = text_of(node.items[0])
        arguments = list(node.items[1].children) if node.items[1] is not None else []
        variable = self.scope.find(name)
        if variable is not None and (variable in self.shapes or variable.base.kind == "text") and variable is not self.scope.result:
            if variable not in self.shapes:
                return self.variable(variable, place)
            subscripts, counters = [], list(self.counters or ())
            for dimension, part in enumerate(arguments):
                if isinstance(part, F.Subscript_Triplet):
                    first = self.expr(part.items[0]) if part.items[0] is not None else self.lower(variable, dimension) or constant(1)
                    if part.items[2] is not None:
                        first = Expr("opaque", (first,), "a section with a stride", INT, place)
                    subscripts.append(binary("+", first, self.variable(counters.pop(0), place)) if counters else first)
                else:
                    kept, self.counters = self.counters, None
                    subscripts.append(self.expr(part))
                    self.counters = kept
            return self.element(variable, subscripts, place)
        return self.call(name, arguments, place)

    def component(self, node, place):
        base, *fields = node.items
        made = self.expr(base)
        for field in fields:
            name = text_of(field.items[0]) if isinstance(field, F.Part_Ref) else text_of(field)
            kind = made.type.element if made.type.kind == "array" else made.type
            part = next((below for one, below, _ in kind.fields if one == name), Type("opaque", None, name=name))
            made = Expr("member", (made,), name, part, place)
            if isinstance(field, F.Part_Ref) and part.kind == "array":
                subscripts = tuple(self.expr(one) for one in field.items[1].children if not isinstance(one, F.Subscript_Triplet))
                made = Expr("index", (made, Expr("opaque", subscripts, "a component's element", INT, place)), None, part.element, place)
        return made


def _part(node, kind):
    return next((child for child in node.children if isinstance(child, kind)), None)


def parse(paths):
    """Sources make one program."""
    program = Program(language="fortran")
    program.files = list(paths)
    program.constants = {"proc_null": -1, "any_source": -2, "any_tag": -1, "undefined": -32766, "comm_world": CONSTANTS["mpi_comm_world"]}
    _Reader(program).read(paths)
    return program
