"""Calls in Fortran: of procedures, by reference; of MPI, as C has them; of intrinsics."""

from fparser.two import Fortran2003 as F
from fparser.two.utils import walk

from .externals import MPI
from .fortran_expressions import LOCATIONS
from .fortran_names import binary, constant, text_of
from .ir import Expr, Type, Variable
from .parse_c import CannotParse

NAMES = {name.lower(): name for name in MPI}
INT = Type("int", 4)
INTRINSICS = {name: name if name in ("sqrt", "abs", "sin", "cos", "tan", "exp", "log") else "mend_cc intrinsic" for name in """sqrt abs sin cos tan asin acos atan atan2 sinh cosh tanh exp log
log10 sign sum maxval minval product dot_product matmul transpose reshape any all count maxloc minloc merge aimag conjg dabs dsqrt dsin dcos dexp dlog iand ior ieor ishft btest
trim adjustl adjustr index char ichar achar len_trim repeat spread pack min max amax1 amin1 dmax1 dmin1 ibset ibclr cshift eoshift norm2 hypot gamma erf""".split()}

# fparser takes a function's arguments for a structure's components where all have keywords.
KEYWORDS = (F.Actual_Arg_Spec, F.Component_Spec)
BY_POSITION = {"mod", "modulo", "min", "max", "min0", "max0", "int", "nint", "floor", "ceiling", "real", "dble", "float", "cmplx", "dcmplx"}
INQUIRIES = {"size", "lbound", "ubound", "shape", "allocated", "command_argument_count", "present", "kind", "huge", "tiny", "epsilon", "len", "associated"}
# They aren't done element by element: the first ones make one number of an array.
REDUCTIONS = {"sum", "product", "maxval", "minval", "any", "all", "count", "norm2", "dot_product"}
TRANSFORMATIONAL = REDUCTIONS | {"matmul", "transpose", "reshape", "maxloc", "minloc", "spread", "pack", "cshift", "eoshift", "repeat", "trim"}


def _in_order(nodes, dummies, name, place):
    """Actual arguments in the order of the dummies; None where one is left out."""
    found = [None] * len(dummies)
    for at, one in enumerate(nodes):
        keyword = text_of(one.items[0]) if isinstance(one, KEYWORDS) else None
        at = at if keyword is None else dummies.index(keyword) if keyword in dummies else len(dummies)
        if at >= len(dummies) or found[at] is not None:
            raise CannotParse(f"{place}: {name} has no such argument{f' ({keyword})' if keyword else ''}, as far as can be seen")
        found[at] = one if keyword is None else one.items[1]
    return found


def _before_error(name):
    """How many arguments an MPI procedure has before its status."""
    if name == "MPI_Init_thread":
        return 2
    return 0 if name in ("MPI_Init", "MPI_Finalize") else len(MPI[name][0].rstrip("*"))


def _base(expr):
    while expr.args and expr.op in ("index", "deref", "member"):
        expr = expr.args[0]
    return expr.value


class Calls:
    """The part of the reader that knows calls."""

    def call(self, name, nodes, place):
        """A call of a procedure, an intrinsic or MPI."""
        values = [one.items[1] if isinstance(one, KEYWORDS) else one for one in nodes]
        keywords = [text_of(one.items[0]) for one in nodes if isinstance(one, KEYWORDS)]
        known = self.procedure(name)
        if known is not None:
            dummies = self.program.functions[known].params
            ordered = _in_order(nodes, [one.name for one in dummies], name, place)
            arguments = (constant(0, place) if one is None else self.actual(one, place, dummy) for one, dummy in zip(ordered, dummies))
            return Expr("call", (Expr("func", (), known, None, place), *arguments), None, Type("float", 8), place)
        if name in NAMES:
            if keywords and (keywords != ["ierror"] or len(nodes) != _before_error(NAMES[name]) + 1):
                raise CannotParse(f"{place}: arguments of {NAMES[name]} by their keywords: write them in their order")
            return self.mpi(NAMES[name], values, place)
        callee = Expr("func", (), name, None, place)
        if name == "get_command_argument":
            values = _in_order(nodes, ["number", "value", "length", "status"], name, place)
        elif name in BY_POSITION and set(keywords) - {"kind"}:
            raise CannotParse(f"{place}: arguments of {name} by their keywords: write them in their order")
        if name in ("mod", "modulo") and len(values) == 2:
            one, other = (self.expr(value) for value in values)
            # The sign of modulo is the divisor's.
            return binary("%", one, other) if name == "mod" else binary("%", binary("+", binary("%", one, other), other), other)
        if name == "merge" and len(values) == 3 and not keywords:
            one, other, which = (self.expr(value) for value in values)
            return Expr("cond", (which, one, other), None, one.type, place)
        if name in ("min", "max", "min0", "max0") and len(values) == 2:
            one, other = (self.expr(value) for value in values)
            return Expr("cond", (binary("<" if name.startswith("min") else ">", one, other), one, other), None, one.type, place)
        if name in ("int", "nint", "floor", "ceiling"):
            return Expr("cast", (self.expr(values[0]),), None, INT, place)
        if name in ("cmplx", "dcmplx"):
            plain = [self.expr(one) for one in nodes if not isinstance(one, KEYWORDS)][:2]
            return Expr("call", (Expr("func", (), "mend_cc intrinsic", None, place), *plain), None, Type("complex", 16), place)
        if name in ("real", "dble", "float"):
            return Expr("cast", (self.expr(values[0]),), None, Type("float", 8), place)
        if name in INQUIRIES:
            return Expr("call", (Expr("func", (), "mend_cc inquiry", None, place),), None, INT, place)
        if name in ("get_command_argument", "getarg"):
            made = [self.address(self.location(one)) for one in values[1:] if one is not None]
            return Expr("call", (Expr("func", (), "mend_cc argument", None, place), self.expr(values[0]), *made), None, Type("void"), place)
        if name in ("random_number", "random_seed"):
            return Expr("call", (Expr("func", (), "random_number", None, place), *(self.address(self.location(one)) for one in values)), None, Type("void"), place)
        if name in ("system_clock", "cpu_time", "date_and_time"):
            return Expr("call", (Expr("func", (), "mend_cc clock", None, place), *(self.address(self.location(one)) for one in values)), None, Type("void"), place)
        if name in INTRINSICS:
            made = self.aside(lambda: [self.expr(one) for one in values]) if name in TRANSFORMATIONAL else [self.expr(one) for one in values]
            return Expr("call", (Expr("func", (), INTRINSICS[name], None, place), *made), None, Type("float", 8), place)
        return Expr("call", (callee, *(self.actual(one, place) for one in values)), None, Type("float", 8), place)

    def procedure(self, name):
        """The program's procedure of a name that is called here, or None: a dummy, a generic name, or one that isn't among the sources."""
        here = self.scope.variables.get(name)
        if here is not None and here.scope == "param":
            return None
        return self.scope.procedure(name) or (name if name in self.externals else None)

    def actual(self, node, place, dummy=None):
        """An argument by reference; an expression gets a variable of its own. `dummy`: what it is for, where that is known."""
        variable = self.scope.find(text_of(node.items[0] if isinstance(node, F.Part_Ref) else node)) if isinstance(node, (F.Name, F.Part_Ref)) else None
        # A scalar dummy of an elemental procedure is each element of an array in turn.
        if dummy is not None and dummy not in self.shapes:
            array = variable in self.shapes and (isinstance(node, F.Name) or walk(node, F.Subscript_Triplet))
            return self.reference_to(self.expr(node) if array else self.location(node), place)
        return self.reference_to(self.aside(lambda: self.location(node)), place)

    def reference_to(self, value, place):
        """The address of something, or of a variable that gets its value."""
        if value.op in LOCATIONS:
            return self.address(value)
        self.count += 1
        made = Variable(f"%{self.count}", value.type or INT, "local", place, self.function.name)
        self.before.append(Expr("assign", (Expr("var", (), made, made.type, place), value), "=", made.type, place))
        return self.address(Expr("var", (), made, made.type, place))

    def mpi(self, name, nodes, place):
        letters = MPI[name][0].rstrip("*")
        wanted = _before_error(name)
        if name == "MPI_Init_thread":
            letters = "-W"
        status = nodes[wanted] if len(nodes) > wanted else None
        arguments = []
        if name == "MPI_Init_thread":
            arguments = [constant(0, place), constant(0, place)]
        for letter, node in zip(letters, nodes[:wanted]):
            value = self.location(node) if letter in "rwWbo" else self.expr(node)
            pointer = letter in "rwWbo" and value.op not in ("const",)
            if letter == "o" and value.op in ("var", "index", "deref") and isinstance(_base(value), Variable):
                self.handle(_base(value), name)
            arguments.append(self.reference_to(value, place) if pointer else value)
        made = Expr("call", (Expr("func", (), name, None, place), *arguments), None, INT, place)
        if status is not None:
            made = Expr("assign", (self.location(status), made), "=", INT, place)
        return made

    @staticmethod
    def handle(variable, name):
        """An integer that is a handle of MPI."""
        made = Type("opaque", 4, name="MPI_Request" if MPI[name][1] in ("isend", "irecv", "wait", "waitall", "some", "start", "startall", "send_init", "recv_init", "icollective", "request_free") else "MPI_Comm")
        if variable.type.kind == "array":
            variable.type = Type("array", variable.type.size, made, variable.type.count)
        elif variable.type.kind == "int":
            variable.type = made


