"""Fortran's arrays as wholes: assignments to them, what allocates them, and whether an assignment may."""

import re

from fparser.two import Fortran2003 as F
from fparser.two.utils import BinaryOpBase, UnaryOpBase, walk

from .fortran_calls import BY_POSITION, INQUIRIES, INTRINSICS, KEYWORDS, REDUCTIONS, TRANSFORMATIONAL
from .fortran_expressions import INT, REFERENCES
from .fortran_names import binary, constant, listed, text_of
from .ir import Expr, Place, Stmt, Type, Variable, holds_allocatable

LITERALS = (F.Int_Literal_Constant, F.Real_Literal_Constant, F.Logical_Literal_Constant, F.Complex_Literal_Constant, F.Char_Literal_Constant)


class Arrays:
    """The part of the reader that knows them."""

    def counter(self, place):
        """A variable that the source doesn't have."""
        self.count += 1
        made = Variable(f"%{self.count}", INT, "local", place, self.function.name)
        made.base, made.allocatable, made.attributes = INT, False, ""
        return made

    def assignment(self, node, place):
        target, source = node.items[0], node.items[2]
        inside = Place(place.file, place.line, place.start, place.end, True)
        more = self.growth(target, source, inside)
        counters = self.section_counters(target)
        if not counters:
            left = self.location(target)
            value = self.expr(source)
            expr = Expr("assign", (left, value), "=", left.type, place)
            return [Stmt("expr", place, expr=self.with_temporaries(expr)), *more]
        self.counters = [counter for counter, _ in counters]
        value = self.expr(source)
        left = self.location(target)
        self.counters = None
        made = Stmt("expr", inside, expr=self.with_temporaries(Expr("assign", (left, value), "=", left.type, place)))
        for at, (counter, last) in enumerate(counters):
            named = self.variable(counter, place)
            made = Stmt("loop", place if at == len(counters) - 1 else inside, (Stmt("block", inside, (made,)),), binary("<=", named, last), form="for",
                        init=Stmt("expr", inside, expr=Expr("assign", (named, constant(0, place)), "=", INT, place)), advance=Expr("step", (named,), (1, True), INT, place))
        return [made, *more]

    def section_counters(self, target):
        """A counter for each dimension of an array-valued target, with its last value; none for an element."""
        last = target.items[-1] if isinstance(target, F.Data_Ref) else target
        if isinstance(target, F.Data_Ref):
            variable = self.array_of(target)
        else:
            variable = self.scope.find(text_of(target.items[0] if isinstance(target, F.Part_Ref) else target)) if isinstance(target, (F.Part_Ref, F.Name)) else None
        if variable is None or variable not in self.shapes:
            return []
        parts = list(last.items[1].children) if isinstance(last, F.Part_Ref) else [None] * len(self.shapes[variable])
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
                found.append((self.counter(self.line_place(target)), last))
        return found

    def array_of(self, node):
        """What has the shape of the component that a reference ends in, where it is an array and nothing before it is; or None."""
        base, *fields = node.items
        variable = self.scope.find(text_of(base)) if isinstance(base, F.Name) else None
        kind, found = (variable.base, None) if variable is not None and variable not in self.shapes else (None, None)
        for field in fields:
            name = text_of(field.items[0] if isinstance(field, F.Part_Ref) else field)
            part = dict((one, below) for one, below, _ in kind.fields).get(name) if kind is not None and found is None else None
            kind, found = part, self.components.get((kind.name, name)) if part is not None else None
        return found

    # ---- allocation ----

    def allocated(self, variables, arguments, place):
        """The statement that gives arrays another size: variables, each with the path to its component."""
        return Stmt("expr", place, expr=Expr("call", (Expr("func", (), "mend_cc allocate", None, place), constant(0, place), *arguments), tuple(variables), Type("void"), place))

    def path_to(self, node, variable):
        """The components on the way to what is allocated; as far as none of them is known, it may be any."""
        made, path = self.aside(lambda: self.location(node)), ()
        while made.op in ("member", "index"):
            path, made = ((made.value, *path) if made.op == "member" else path), made.args[0]
        made = made.args[0] if made.op == "deref" else made
        return path if made.op == "var" and made.value is variable else ()

    def allocation(self, node, place):
        """Of allocate and deallocate."""
        made = isinstance(node, F.Allocate_Stmt)
        found, arguments, more = [], [], []
        inside = Place(place.file, place.line, place.start, place.end, True)
        options = [(text_of(one.items[0]), one.items[1]) for one in listed(node.items[2 if made else 1])]
        for one in listed(node.items[1 if made else 0]):
            thing = one.items[0] if isinstance(one, F.Allocation) else one
            variable = self.scope.find(text_of(thing if isinstance(thing, F.Name) else walk(thing, F.Name)[0]))
            if isinstance(one, F.Allocation):
                arguments += [self.expr(bound) for bounds in listed(one.items[1]) for bound in (bounds.items if isinstance(bounds, F.Allocate_Shape_Spec) else (bounds,)) if bound is not None]
            if variable is not None and (variable.allocatable or not isinstance(thing, F.Name)):
                found.append((variable, () if isinstance(thing, F.Name) else self.path_to(thing, variable)))
            for value in [value for option, value in options if option == "source" and variable is not None]:
                target = self.location(thing) if variable not in self.shapes or not isinstance(thing, F.Name) else self.some_of(variable, place)
                more.append(Expr("assign", (target, self.expr(value)), "=", target.type, place))
        more += [self.unknown(value, place) for option, value in options if option in ("stat", "errmsg")]
        return [self.allocated(found, arguments, place), *(Stmt("expr", inside, expr=one) for one in more)]

    def unknown(self, node, place, what="a status"):
        """An assignment of what isn't known."""
        target = self.location(node)
        return Expr("assign", (target, Expr("opaque", (), what, INT, place)), "=", target.type, place)

    def growth(self, target, source, place):
        """A statement for what an assignment may allocate anew, or none. Bounds of the same text give the same size as long as they don't change."""
        self.bounded = []
        variable = self.grown(target, source)
        if variable is not None:
            return [self.allocated(((variable, self.path_to(target, variable)),), (), place)]
        if not self.bounded:
            return []
        variable = self.scope.find(text_of(walk(target, F.Name)[0]))
        made = self.allocated(((variable, self.path_to(target, variable)),), [self.variable(one, place) for one in dict.fromkeys(self.bounded)], place)
        made.expr.args[0].value = "mend_cc allocate if"
        return [made]

    def grown(self, target, source):
        """The variable that an assignment may allocate anew, or in which it may."""
        if isinstance(target, F.Name):
            variable = self.scope.find(text_of(target))
            if variable is None:
                return None
            if variable in self.shapes and variable.allocatable:
                return None if self.shape_of(source) in ((), self.shape_of(target)) else variable
            return variable if holds_allocatable(variable.base) else None
        variable = self.scope.find(text_of(walk(target, F.Name)[0])) if isinstance(target, (F.Part_Ref, F.Data_Ref)) else None
        if variable is None:
            return None
        made = self.aside(lambda: self.location(target))
        if made.type is not None and made.type.kind == "array" and made.type.name == "allocatable":
            return None if self.shape_of(source) in ((), self.shape_of(target)) else variable
        return variable if made.type is not None and made.type.kind != "array" and holds_allocatable(made.type) else None

    # ---- shapes ----

    def shape_of(self, node):
        """Something for each dimension of an expression that is equal where its extents are; () of a scalar; None: it isn't known."""
        if isinstance(node, LITERALS):
            return ()
        if isinstance(node, F.Name):
            variable = self.scope.find(text_of(node))
            if variable is None:
                return None if self.scope.table(text_of(node)) else ()
            return tuple(self.extent_key(variable, dimension) for dimension in range(len(self.shapes.get(variable, ()))))
        if isinstance(node, F.Parenthesis):
            return self.shape_of(node.items[1])
        if isinstance(node, UnaryOpBase):
            return self.shape_of(node.items[1])
        if isinstance(node, BinaryOpBase):
            return self.together([node.items[0], node.items[2]])
        if isinstance(node, REFERENCES):
            return self.shape_of_reference(node)
        if isinstance(node, F.Array_Constructor):
            inner = listed(node.items[1])
            return (len(inner),) if all(not isinstance(one, F.Ac_Implied_Do) and self.shape_of(one) == () for one in inner) else None
        if isinstance(node, F.Data_Ref):
            made = self.aside(lambda: self.location(node))
            if made.type is not None and made.type.kind == "array":
                return ((text_of(node),),)
            arrays = [part for part in made.walk() if part.op == "member" and part.type.kind == "array"]
            elements = [part for part in made.walk() if part.op == "opaque" and part.value == "a component's element"]
            unclear = made.type.kind == "opaque" or any(part.op == "call" or part.value in ("some of an array", "a section of an array") for part in made.walk()) or walk(node, F.Subscript_Triplet)
            return () if not unclear and len(arrays) == len(elements) else None
        return None

    def together(self, nodes):
        """The shape of what is made of several element by element."""
        found = [self.shape_of(one) for one in nodes]
        arrays = [one for one in found if one != ()]
        return () if not arrays else arrays[0] if all(one == arrays[0] for one in arrays) else None

    def extent_key(self, variable, dimension):
        """Equal where extents are: a number, a text with the variables in it, or the array's own."""
        _, extent = self.dimension(variable, dimension)
        if extent is not None and extent.op == "const":
            return extent.value
        made, low, high = self.allocations.get(variable, []), None, None
        texts = {text_of(shape.children[dimension]) for _, shape in made if dimension < len(shape.children)}
        if len(texts) == 1:
            low, _, high = texts.pop().rpartition(":")
            return self.text_key(low or "1", high, made[0][0])
        low, high = self.shapes[variable][dimension]
        return self.bounded_by(self.text_key(str(low), text_of(high), self.shape_scope[variable])) if high is not None else (variable, dimension)

    @staticmethod
    def text_key(low, high, scope):
        found = [scope.find(name) or scope.parameter(name)[1] or scope.name for name in re.findall(r"[a-z]\w*", f"{low} {high}")]
        return (high if low == "1" else f"{low}:{high}", *found)

    def section_key(self, variable, dimension, triplet):
        """The same of a triplet; None: it isn't known."""
        low, high, step = triplet.items
        if low is None and high is None and step is None:
            return self.extent_key(variable, dimension)
        first, last = (self.number(low, self.scope) if low is not None else 1), self.number(high, self.scope) if high is not None else None
        lower = self.lower(variable, dimension)
        if step is not None or high is None or (low is None and (lower is None or lower.value != 1 or lower.op != "const")):
            return None
        if first is not None and last is not None:
            return max(last - first + 1, 0)
        return self.bounded_by(self.text_key("1" if low is None else text_of(low), text_of(high), self.scope))

    def bounded_by(self, key):
        """It counts as long as the variables in it don't change."""
        self.bounded += [one for one in key[1:] if isinstance(one, Variable)]
        return key

    def shape_of_reference(self, node):
        name = text_of(node.items[0])
        arguments = list(node.items[1].children) if node.items[1] is not None else []
        variable = self.scope.find(name)
        if variable in self.shapes:
            if any(not isinstance(part, F.Subscript_Triplet) and self.shape_of(part) != () for part in arguments):
                return None
            parts = [(at, part) for at, part in enumerate(arguments) if isinstance(part, F.Subscript_Triplet)]
            found = tuple(self.section_key(variable, at, part) for at, part in parts)
            return None if None in found else found
        if variable is not None:
            return () if variable.base.kind == "text" else None
        values = [one.items[1] if isinstance(one, KEYWORDS) else one for one in arguments]
        keywords = {text_of(one.items[0]) for one in arguments if isinstance(one, KEYWORDS)}
        known = self.procedure(name)
        if known is not None:
            function = self.program.functions[known]
            result = function.scope.result
            if result is None or result in self.shapes:
                return None
            # Of an elemental one as its arguments.
            return self.together(values) if all(one not in self.shapes for one in function.params) else ()
        if name in REDUCTIONS:
            return () if len(values) == 1 + len(keywords & {"mask"}) or name == "dot_product" else None
        if name in INQUIRIES:
            return None if name in ("shape", "lbound", "ubound") and len(values) == 1 else ()
        return self.together(values) if name in BY_POSITION or (name in INTRINSICS and name not in TRANSFORMATIONAL) else None
