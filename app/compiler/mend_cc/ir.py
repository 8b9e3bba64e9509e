"""The intermediate form: what both front ends make of a program, and all that the analysis sees of it.

A program is functions and variables. A function's body is a tree of statements; each knows where it stands in its source file, so that calls can be
inserted there. Expressions are trees. Their operators:

    const    value: a number                       string   value: its text
    var      value: a Variable                     func     value: a function's name
    unary    value: - + ! ~                        binary   value: the operator as C writes it
    cond     c ? a : b                             cast     x, converted to `type`
    index    base, subscript (counted from 0)      deref    pointer
    member   base; value: the field                addr     of what
    call     callee, arguments...                  assign   target, source; value: "=" or "+=", ...
    step     target; value: (1 or -1, whether the new value is the result)
    list     parts of an initial value, in order     comma    operands
             (value "unordered": not in order)
    opaque   what the front end can't see through; value: why
"""

from dataclasses import dataclass, field

UNNAMED = "%"  # how the name of a field begins that has none in the source


@dataclass(frozen=True)
class Place:
    """A stretch of a source file; offsets count bytes from 0."""

    file: str
    line: int
    start: int
    end: int
    macro: bool = False  # it comes out of a macro: nothing can be inserted there

    def __str__(self):
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Type:
    """kind: int uint float complex pointer array struct opaque function void. size in bytes, or None where only the run knows it.

    `name` of an opaque type says what it is: MPI_Comm, FILE. A union is a struct without fields; `holds_plain`: there are no pointers among its parts."""

    kind: str
    size: int | None = None
    element: "Type | None" = None
    count: int | None = None
    fields: tuple = ()  # (name, Type, offset)
    name: str = ""
    holds_plain: bool = False

    def holds(self, kind):
        """Whether a value of this kind is in it, at any depth (what pointers point to isn't)."""
        if self.kind == kind:
            return True
        if self.kind == "array":
            return self.element.holds(kind)
        return any(part.holds(kind) for _, part, _ in self.fields)

    def pointers(self, path=()):
        """(path, type) of all pointers in it, and of unions, in which may be some."""
        kind = self.scalar()
        if kind.kind == "pointer" or kind.name.startswith("union "):
            yield path, kind
        for name, part, _ in kind.fields:
            yield from part.pointers((*path, name))

    def scalar(self):
        """What an array of arrays is made of."""
        return self.element.scalar() if self.kind == "array" else self


def named(path):
    """The fields on a way into a structure that have names: an unnamed structure's are as if they were those of the one around it."""
    return tuple(name for name in path if not name.startswith(UNNAMED))


def is_plain(kind):
    """Whether a structure is known, and holds nothing that only means something within one run."""
    kind = kind.scalar()
    if kind.kind == "struct":
        return kind.holds_plain or (bool(kind.fields) and all(is_plain(part) for _, part, _ in kind.fields))
    return kind.kind not in ("pointer", "opaque", "function")


def holds_allocatable(kind):
    """Whether there are allocatable arrays of Fortran in a type."""
    return (kind.kind == "array" and (kind.name == "allocatable" or holds_allocatable(kind.element))) or any(holds_allocatable(part) for _, part, _ in kind.fields)


@dataclass(eq=False)
class Variable:
    """scope: global, static (in a function), local, param."""

    name: str
    type: Type
    scope: str
    place: Place
    function: "str | None" = None
    block: "tuple | None" = None  # where a local one can be named: offsets
    addressable: bool = True

    def __repr__(self):
        return f"{self.function}.{self.name}" if self.function else self.name


@dataclass(eq=False)
class Expr:
    """An expression; operators are listed above."""

    op: str
    args: tuple = ()
    value: object = None
    type: "Type | None" = None
    place: "Place | None" = None

    def walk(self):
        """This one and all below it."""
        yield self
        for part in self.args:
            yield from part.walk()


@dataclass(frozen=True)
class Naming:
    """An expression for a unit, or a dummy: within its function it names the same unit as long as its variables keep their values."""

    function: str
    text: str
    variables: frozenset


# What newunit= gives a variable.
NEW_UNIT = "a new unit"


@dataclass(frozen=True)
class Unit:
    """What a statement does with a unit of Fortran's. kind: open, empty (it is opened, and its file emptied), write, record (written by its number), close.
    `key`: its number, the variable that has it, or a Naming; None: it isn't told which one it is. `new`: it gets a number that no source has (newunit=)."""

    kind: str
    key: "object | None"
    new: bool = False


@dataclass(eq=False)
class Stmt:
    """kind: expr decl block if loop switch case break continue return goto label empty.

    `parts` by kind: block: statements; if: then, else (or None); loop: body; switch: body; label, case: statement.
    A loop has `init` (Stmt or None), `cond` (None: for ever) and `advance`; `form`: for, while, do."""

    kind: str
    place: Place
    parts: tuple = ()
    expr: "Expr | None" = None
    variable: "Variable | None" = None
    form: str = ""
    init: "Stmt | None" = None
    advance: "Expr | None" = None
    label: str = ""
    braced: bool = True  # a loop's body stands in braces
    nodes: list = field(default_factory=list)
    unit: "Unit | None" = None

    def walk(self):
        """This statement and all below it."""
        yield self
        if self.init:
            yield from self.init.walk()
        for part in self.parts:
            if part:
                yield from part.walk()

    def expressions(self):
        """All expressions in it, the outermost ones."""
        for one in self.walk():
            if one.expr:
                yield one.expr
            if one.advance:
                yield one.advance


@dataclass(eq=False)
class Function:
    """A function with a body."""

    name: str  # unique in the program: a static one has its file before it
    place: Place
    params: list
    body: Stmt
    result: "Type | None" = None
    variables: list = field(default_factory=list)
    source: str = ""  # as the source names it


@dataclass(frozen=True)
class Directive:
    """`#pragma mend ...` or `!$mend ...`. kind: checkpoint, exclude, shape."""

    kind: str
    place: Place
    text: str = ""


@dataclass
class Program:
    """All that was read. `unseen`: (Place, why) of what can't be seen through."""

    functions: dict = field(default_factory=dict)
    globals: list = field(default_factory=list)
    directives: list = field(default_factory=list)
    unseen: list = field(default_factory=list)
    constants: dict = field(default_factory=dict)  # MPI's own: proc_null, any_source, comm_world, ...
    parallel: list = field(default_factory=list)  # (file, start, end) of what several threads run
    offloaded: list = field(default_factory=list)  # (file, start, end) of what runs while a device has data
    held: set = field(default_factory=set)  # (file, start) of statements to which a #pragma line belongs that nothing can be inserted before
    skipped: dict = field(default_factory=dict)  # source -> (start, end) of what the preprocessor's conditions leave out
    unbounded: "Place | None" = None  # where a device is given data for longer than one statement
    copied: dict = field(default_factory=dict)  # variable -> who has copies of it besides
    language: str = "c"
    files: list = field(default_factory=list)

    def cannot_see(self, place, why):
        """Notes it once."""
        if (place, why) not in self.unseen:
            self.unseen.append((place, why))


def parent_map(body):
    """Statement -> the one it stands in."""
    above = {}
    for one in body.walk():
        for part in (*one.parts, one.init):
            if part:
                above[part] = one
    return above


def straight(pointer):
    """A pointer without a way round: &*p is p."""
    while pointer.op == "addr" and pointer.args[0].op == "deref":
        pointer = pointer.args[0].args[0]
    return pointer
