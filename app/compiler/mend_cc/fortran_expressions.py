"""Fortran's expressions, arrays in them, and what they name."""

from fparser.two import Fortran2003 as F
from fparser.two.utils import BinaryOpBase, UnaryOpBase, walk

from .fortran_names import CONSTANTS, binary, constant, text_of
from .ir import Expr, Type, Variable

OPERATORS = {".and.": "&&", ".or.": "||", ".eq.": "==", ".ne.": "!=", "/=": "!=", ".lt.": "<", ".le.": "<=", ".gt.": ">", ".ge.": ">=", ".eqv.": "==", ".neqv.": "!="}
INT, LOGICAL = Type("int", 4), Type("int", 4, name="logical")
REFERENCES = (F.Part_Ref, F.Function_Reference, F.Intrinsic_Function_Reference, F.Structure_Constructor)
# What has an address.
LOCATIONS = ("var", "index", "deref", "member")


class Expressions:
    """The part of the reader that knows expressions. `counters`: within an assignment to an array, what counts its elements; None: an array stands for all of it."""

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
        elif high is None and variable.scope == "param" and not variable.allocatable:
            # An allocatable one has the bounds of what is passed.
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

    def element(self, variable, subscripts, place, base=None):
        """An element, by expressions for its subscripts. `base`: the component that `variable` describes."""
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
        base = base or Expr("var", (), variable, variable.type, place)
        return Expr("index", (base, index), None, variable.base, place)

    def some_of(self, variable, place, *bounds, base=None):
        """Elements of an array, of which isn't told which."""
        base = base or Expr("var", (), variable, variable.type, place)
        return Expr("index", (base, Expr("opaque", bounds, "some of an array", INT, place)), None, variable.base, place)

    def all_of(self, variable, place, base=None):
        """An array."""
        return self.section(variable, [None] * len(self.shapes[variable]), place, base)

    def section(self, variable, parts, place, base=None):
        """Part of an array. `parts`: for each dimension a subscript, a triplet, or None for all of it. The subscript is as bases.py has it."""
        shapes = [self.dimension(variable, dimension) for dimension in range(len(parts))]
        triplets = [part.items if isinstance(part, F.Subscript_Triplet) else (None, None, None) for part in parts]
        ranges = [part is None or isinstance(part, F.Subscript_Triplet) for part in parts]
        bounds = self.bounds([part for part in parts if part is not None])
        if any(None in shape for shape in shapes) or any(step is not None for _, _, step in triplets) or any(not run and self.shape_of(part) != () for part, run in zip(parts, ranges)):
            return self.some_of(variable, place, *bounds, base=base)
        subscripts, pairs, stride = [], [], constant(1, place)
        for part, run, (low, extent), (first, last, _) in zip(parts, ranges, shapes, triplets):
            start = self.expr(part) if not run else self.expr(first) if first is not None else low
            end = None if not run else self.expr(last) if last is not None else binary("-", binary("+", low, extent), constant(1, place))
            subscripts.append(start)
            pairs += [stride, binary("-", end, start)] if run else []
            stride = binary("*", stride, extent)
        base, index = self.element(variable, subscripts, place, base).args
        return Expr("index", (base, Expr("opaque", (index, *pairs), "a section of an array", INT, place)), None, variable.base, place)

    def aside(self, run):
        """What is within an assignment to an array, and isn't done element by element."""
        kept, self.counters = self.counters, None
        made = run()
        self.counters = kept
        return made

    def location(self, node):
        """What has an address, or gets a value: an array stands for its start."""
        if isinstance(node, F.Name):
            return self.name(text_of(node), self.place_of(node), True)
        if isinstance(node, REFERENCES):
            return self.reference(node, self.place_of(node), True)
        if isinstance(node, F.Data_Ref):
            return self.component(node, self.place_of(node), True)
        return self.expr(node)

    def loosely(self, node, place):
        """All that is named in an implied loop."""
        found = [self.scope.find(name) for name in dict.fromkeys(text_of(one) for one in walk(node, F.Name))]
        made = [self.some_of(one, place) if one in self.shapes else self.variable(one, place) for one in found if one is not None]
        if self.calls(node):
            made = [Expr("call", (Expr("func", (), "a call within it", None, place), *map(self.address, made)), None, INT, place)]
        return made

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
        if isinstance(node, REFERENCES):
            return self.reference(node, place)
        if isinstance(node, F.Data_Ref):
            return self.component(node, place)
        if isinstance(node, (F.Array_Section, F.Substring)):
            text = self.aside(lambda: self.location(node.items[0]))
            return self.part_of(text, [node.items[1]], place) if text.op in LOCATIONS else text
        if isinstance(node, BinaryOpBase):
            return self.operation(node, place)
        if isinstance(node, UnaryOpBase):
            operator, inner = text_of(node.items[0]), self.expr(node.items[1])
            return Expr("unary", (inner,), "!" if operator == ".not." else operator, INT if operator == ".not." else inner.type, place)
        if isinstance(node, (F.Ac_Implied_Do, F.Io_Implied_Do)):
            return Expr("list", tuple(self.loosely(node, place)), None, INT, place)
        if isinstance(node, (F.Array_Constructor, F.Ac_Value_List)):
            return Expr("list", self.aside(lambda: self.parts(node)), None, INT, place)
        self.program.cannot_see(place, f"an expression of a kind that isn't known ({type(node).__name__.lower().replace('_', ' ')})")
        return Expr("opaque", self.parts(node), type(node).__name__, Type("opaque"), place)

    def parts(self, node):
        return tuple(self.expr(one) for one in getattr(node, "children", ()) if one is not None and not isinstance(one, str))

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

    def name(self, name, place, located=False):
        variable = self.scope.find(name)
        if variable is not None:
            if variable in self.shapes and self.counters and len(self.counters) == len(self.shapes[variable]):
                return self.counted(variable, place)
            return self.aside(lambda: self.all_of(variable, place)) if variable in self.shapes and not located else self.variable(variable, place)
        known, value = self.scope.parameter(name)
        if known or name in CONSTANTS or name.startswith("mpi_"):
            return Expr("const", (), value if known else CONSTANTS.get(name), Type("int", 4, name=name), place)
        return self.variable(self.implicit(name, self.scope, self.function.name, False, place), place)

    def reference(self, node, place, located=False):
        name = text_of(node.items[0])
        arguments = list(node.items[1].children) if node.items[1] is not None else []
        variable = self.scope.find(name)
        if variable in self.shapes or (variable is not None and variable.base.kind == "text" and variable is not self.scope.result):
            return self.elements(variable, arguments, place, located) if variable in self.shapes else self.part_of(self.variable(variable, place), arguments, place)
        if variable is None and self.scope.parameter(name)[0]:
            return Expr("call", (Expr("func", (), "mend_cc intrinsic", None, place), *self.aside(lambda: self.bounds(arguments))), None, Type("float", 8), place)
        if variable is None and name in self.structures and self.scope.procedure(name) is None:
            return Expr("list", tuple(self.expr(one.items[1] if isinstance(one, F.Component_Spec) else one) for one in arguments), None, self.structures[name], place)
        return self.call(name, arguments, place)

    def part_of(self, text, arguments, place):
        """A substring: characters of a text, of which isn't told which."""
        bounds = tuple(self.aside(lambda: self.bounds(arguments)))
        whole = Expr(text.op, text.args, text.value, Type("array", text.type.size, text.type), place)
        return Expr("index", (whole, Expr("opaque", bounds, "part of a text", INT, place)), None, text.type, place)

    def bounds(self, arguments):
        """What subscripts read."""
        return [self.expr(one) for part in arguments for one in (part.items if isinstance(part, (F.Subscript_Triplet, F.Substring_Range)) else (part,)) if one is not None]

    def counted(self, variable, place, base=None):
        """The element of an array that the counters are at."""
        subscripts = [binary("+", self.variable(counter, place), self.lower(variable, at) or constant(1)) for at, counter in enumerate(self.counters)]
        return self.element(variable, subscripts, place, base)

    def elements(self, variable, arguments, place, located, base=None):
        """An element, or a section."""
        triplets = [part for part in arguments if isinstance(part, F.Subscript_Triplet)]
        counted = bool(self.counters) and len(triplets) == len(self.counters)
        # What is passed on as a section may be a copy, or have gaps.
        start = located and not self.counters and len(triplets) == 1 and arguments[0] is triplets[0] and triplets[0].items[2] is None
        if triplets and not counted and not start:
            if located:
                return self.some_of(variable, place, *self.aside(lambda: self.bounds(arguments)), base=base)
            return self.aside(lambda: self.section(variable, arguments, place, base))
        subscripts, counters = [], list(self.counters or ())
        for dimension, part in enumerate(arguments):
            if isinstance(part, F.Subscript_Triplet):
                first = self.aside(lambda part=part: self.expr(part.items[0])) if part.items[0] is not None else self.lower(variable, dimension) or constant(1)
                if part.items[2] is not None:
                    first = Expr("opaque", (first,), "a section with a stride", INT, place)
                subscripts.append(binary("+", first, self.variable(counters.pop(0), place)) if counters else first)
            else:
                subscripts.append(self.aside(lambda part=part: self.expr(part)))
        return self.element(variable, subscripts, place, base)

    def component(self, node, place, located=False):
        base, *fields = node.items
        made = self.expr(base)
        for field in fields:
            name = text_of(field.items[0]) if isinstance(field, F.Part_Ref) else text_of(field)
            kind = made.type.element if made.type.kind == "array" else made.type
            part = next((below for one, below, _ in kind.fields if one == name), Type("opaque", None, name=name))
            arguments = list(field.items[1].children) if isinstance(field, F.Part_Ref) and field.items[1] is not None else []
            array = self.components.get((kind.name, name))
            if array is not None:
                made = self.component_array(array, Expr("member", (made,), name, part, place), arguments, place, located or field is not fields[-1])
                continue
            bounds = tuple(self.aside(lambda arguments=arguments: self.bounds(arguments)))
            if kind.kind == "struct" and all(one != name for one, _, _ in kind.fields):
                # A procedure of the type: which one isn't known.
                return Expr("call", (Expr("func", (), "a call within it", None, place), self.address(made), *(self.address(one) if one.op in LOCATIONS else one for one in bounds)), None, Type("float", 8), place)
            made = Expr("member", (made,), name, part, place)
            if part.kind == "text" and arguments:
                made = self.part_of(made, arguments, place)
        return made

    def component_array(self, array, member, arguments, place, located):
        """A component that is an array, an element or a section of it; `located`: its address is wanted, or a component of it."""
        if arguments:
            return self.elements(array, arguments, place, located, member)
        if self.counters and len(self.counters) == len(self.shapes[array]):
            return self.counted(array, place, member)
        return member if located else self.aside(lambda: self.all_of(array, place, member))
