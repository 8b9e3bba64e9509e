"""Fortran's names: types, variables, constants, shapes; what front-end expressions are made from."""

import re

from fparser.two import Fortran2003 as F
from fparser.two.utils import BlockBase, walk

from .fortran_source import span
from .ir import Expr, Place, Type, Variable
from .parse_c import CannotParse

KINDS = {"real32": 4, "real64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "c_int": 4, "c_long": 8, "c_size_t": 8, "c_double": 8, "c_float": 4, "c_int64_t": 8, "c_int32_t": 4,
         "mpi_address_kind": 8, "mpi_offset_kind": 8, "mpi_integer_kind": 4}
UNITS = {"output_unit": 6, "error_unit": 0}
CONSTANTS = {"mpi_proc_null": -1, "mpi_any_source": -2, "mpi_any_tag": -1, "mpi_undefined": -32766, "mpi_comm_world": 1140850688, "mpi_success": 0, **UNITS}
HANDLES = {"mpi_comm": "MPI_Comm", "mpi_request": "MPI_Request", "mpi_datatype": "MPI_Datatype", "mpi_op": "MPI_Op", "mpi_win": "MPI_Win", "mpi_file": "MPI_File", "mpi_group": "MPI_Group",
           "mpi_status": "MPI_Status", "mpi_info": "MPI_Info", "mpi_message": "MPI_Message"}
POINTER_BYTES = 8
# Initial values of longer arrays aren't read.
LONGEST = 64


def text_of(node):
    """A node's text in lower case, without blanks."""
    return re.sub(r"\s+", "", str(node)).lower()


def constant(value, place=None):
    """A number."""
    return Expr("const", (), value, Type("int", 4), place)


def binary(operator, one, other):
    """An integer operation."""
    return Expr("binary", (one, other), operator, Type("int", 4), one.place)


class Scope:
    """Names of one program unit. `uses`: (module, names here -> names there, whether all others are seen). `procedures`: a module's own -> their names in the program.
    `letters`: what names without a declaration that begin with them are; None under "none": there are no such names. `lists`: namelists. `shaped`: named constants that are arrays."""

    def __init__(self, name, outer=None):
        self.name, self.outer = name, outer
        self.variables, self.parameters, self.procedures = {}, {}, {}
        self.uses, self.result = [], None
        self.private, self.public, self.hides = set(), set(), False
        self.letters, self.lists, self.shaped = {}, {}, {}

    def shows(self, name):
        """Whether a module's name is seen where it is used."""
        return name not in self.private and (not self.hides or name in self.public)

    def _look(self, what, name, seen=()):
        """What a name stands for here, in modules that are used, or around, as a pair with True; or (False, None)."""
        own = getattr(self, what)
        if name in own:
            return True, own[name]
        for used, names, rest in self.uses:
            there = names.get(name, name if rest and name not in names.values() else None)
            if there is not None and used not in seen and used.shows(there):
                known, found = used._look(what, there, (*seen, self))
                if known:
                    return known, found
        return self.outer._look(what, name, seen) if self.outer else (False, None)

    def find(self, name):
        """The variable of a name."""
        return self._look("variables", name)[1]

    def procedure(self, name):
        """A module's procedure: its name in the program."""
        return self._look("procedures", name)[1]

    def parameter(self, name):
        """A named constant's value: (True, number or None), or (False, None)."""
        return self._look("parameters", name)

    def table(self, name):
        """Whether it is a named constant that is an array."""
        return self._look("shaped", name)[0]

    def letter(self, letter):
        """The type of names without a declaration, or None: it isn't said."""
        return self.letters.get(letter) or (self.outer.letter(letter) if self.outer and "none" not in self.letters else None)

    def declares_all(self):
        """Whether `implicit none` holds."""
        return "none" in self.letters or bool(not self.letters and self.outer and self.outer.declares_all())


def listed(node):
    """The parts of a list, of which fparser makes none where there is one."""
    return [] if node is None else list(node.children) if type(node).__name__.endswith("_List") else [node]


class Declarations:
    """Reads specification parts. The reader of statements inherits it."""

    def line_place(self, node, macro=False):
        """The lines of a statement."""
        item, inside, above = node.item, node, node
        while item is None and isinstance(inside, BlockBase):
            inside = inside.children[0]
            item = inside.item
        while item is None and above.parent is not None:
            above = above.parent
            item = above.item
        first, last, included = span(item) if item is not None else (1, 1, False)
        # Lines can't be inserted between statements that share one, nor into another file.
        macro = macro or included or any(line in self.shared for line in range(first, last + 1))
        return Place(self.path, first, self.lines[first - 1], self.lines[last] - 1, macro)

    def number(self, node, scope):
        """An integer constant's value, or None."""
        text = text_of(node)
        if re.fullmatch(r"[+-]?\d+", text):
            return int(text)
        known, value = scope.parameter(text)
        if known:
            return value
        if text in KINDS:
            return KINDS[text]
        match = re.fullmatch(r"kind\((\d*\.?\d*(?:[de][+-]?\d+)?)\)", text)
        if match:
            return 8 if "d" in match.group(1) else 4
        match = re.fullmatch(r"selected_(real|int)_kind\((?:p=)?(\d+).*\)", text)
        if match:
            digits = int(match.group(2))
            return (4 if digits <= 6 else 8 if digits <= 15 else 16) if match.group(1) == "real" else (4 if digits <= 9 else 8)
        values = {name: scope.parameter(name)[1] for name in re.findall(r"[a-z_]\w*", text)}
        if re.fullmatch(r"[\w+*()-]+", text) and "**" not in text and all(isinstance(value, int) for value in values.values()) and not re.search(r"\w\(|\d[a-z_]", text):
            return int(eval(text, {"__builtins__": {}}, values))  # numbers, their names, and + - * ( ) alone
        return None

    def base_type(self, node, scope):
        """Type of a declaration."""
        if isinstance(node, F.Declaration_Type_Spec):
            name = text_of(node.items[1])
            if name in HANDLES:
                return Type("opaque", 4, name=HANDLES[name])
            return self.structures.get(name, Type("opaque", None, name=name))
        words = text_of(node.items[0])
        size = None
        if words == "character":
            selector = text_of(node.items[1]) if node.items[1] is not None else ""
            lengths = [part.removeprefix("len=") for part in re.sub(r"^[(*]+|\)+$", "", selector).split(",") if not part.startswith("kind=")]
            kind = re.search(r"kind=(.*?)[,)]", selector)
            why = "a text whose length changes: give it a fixed one" if ":" in selector else "a text of a kind of its own" if kind and kind.group(1) not in ("1", "c_char") else ""
            return Type("text", 1 if lengths in ([], [""]) else self.number(lengths[0], scope) if lengths[0] not in (":", "*", "") else None, name=why)
        if node.items[1] is not None:
            selector = text_of(node.items[1])
            inner = re.sub(r"^(\(|\*)(kind=)?|\)$", "", selector)
            size = self.number(inner, scope)
            if size is None:
                return Type({"integer": "int", "logical": "int", "complex": "complex"}.get(words, "float"), None, name=f"the kind {inner} isn't known")
        if words == "integer":
            return Type("int", size or 4)
        if words == "logical":
            return Type("int", size or 4, name="logical")
        if words == "doubleprecision":
            return Type("float", 8)
        if words == "complex":
            return Type("complex", 2 * (size or 4))
        return Type("float", size or 4)

    def declare(self, part, scope, function, dummies=()):
        """All declarations of a specification part."""
        nodes = [below for node in (part.children if part is not None else ()) for below in (node.children if isinstance(node, F.Implicit_Part) else (node,))]
        for node in nodes:
            if isinstance(node, F.Use_Stmt):
                module = self.modules.get(text_of(node.items[2]))
                if module is None:
                    # Of MPI's and the compiler's own modules.
                    known = {**KINDS, **UNITS} if text_of(node.items[2]) == "iso_fortran_env" else KINDS
                    for ours, theirs in re.findall(r"(\w+)=>(\w+)", text_of(node)):
                        scope.parameters[ours] = known.get(theirs)
                if module is not None:
                    head, only, listed = text_of(node).partition(",only:")
                    words = listed.split(",") if only else head.split(",")[1:]
                    scope.uses.append((module, dict((one.split("=>") * 2)[:2] for one in words if one), not only))
            elif isinstance(node, F.Access_Stmt):
                listed = {text_of(one) for one in walk(node.items[1])} if node.items[1] is not None else set()
                private = text_of(node.items[0]) == "private"
                scope.hides = scope.hides or (private and not listed)
                (scope.private if private else scope.public).update(listed)
            elif isinstance(node, F.Derived_Type_Def):
                self.structure(node, scope)
            elif isinstance(node, F.Type_Declaration_Stmt):
                self.declaration(node, scope, function, dummies)
            elif isinstance(node, F.Implicit_Stmt):
                self.implicit_letters(node, scope)
            elif isinstance(node, F.Parameter_Stmt):
                for one in walk(node, F.Named_Constant_Def):
                    self.forget(scope.variables.pop(text_of(one.items[0]), None))
                    scope.parameters[text_of(one.items[0])] = self.number(one.items[1], scope)
            elif isinstance(node, F.Namelist_Stmt):
                for name, listed in node.items:
                    scope.lists.setdefault(text_of(name), []).extend(text_of(one) for one in walk(listed, F.Name))
            elif isinstance(node, (F.Common_Stmt, F.Equivalence_Stmt)):
                raise CannotParse(f"{self.line_place(node)}: memory that several names share (common, equivalence)")
            elif isinstance(node, F.Target_Stmt) and "(" not in text_of(node):
                for variable in (scope.variables.get(text_of(one)) for one in walk(node, F.Name)):
                    if variable is not None:
                        variable.attributes += ",target"
            elif isinstance(node, (F.Target_Stmt, F.Dimension_Stmt, F.Allocatable_Stmt, F.Pointer_Stmt, F.Cray_Pointer_Stmt, F.Entry_Stmt)):
                raise CannotParse(f"{self.line_place(node)}: a statement that isn't understood ({type(node).__name__.lower().replace('_', ' ')}): write it as an attribute")
        # In the main program all variables stay, whether that is said or not.
        for node in [node for node in nodes if isinstance(node, F.Save_Stmt) and function not in (None, "main")]:
            named = {text_of(one) for one in walk(node.items[1], F.Name)} if node.items[1] is not None else set(scope.variables)
            self.stays(scope, named)

    def data(self, node, scope):
        """Variables that a DATA statement gives initial values, which aren't read."""
        for one in walk(node, F.Data_Stmt_Set):
            counters = {text_of(inner.items[1]) for inner in walk(one.items[0], F.Data_Implied_Do)}
            self.stays(scope, {text_of(name) for name in walk(one.items[0], F.Name)} - counters)

    @staticmethod
    def stays(scope, named):
        for name in named:
            variable = scope.variables.get(name)
            if variable is not None and variable.scope != "param":
                variable.scope = "static" if variable.scope == "local" else variable.scope
                variable.undefined = True

    def forget(self, variable):
        """What was taken for a variable is none."""
        for known in (self.program.globals, self.program_unit_variables):
            if variable in known:
                known.remove(variable)

    def implicit_letters(self, node, scope):
        if not walk(node, F.Implicit_Spec):
            scope.letters["none"] = None
        for one in walk(node, F.Implicit_Spec):
            kind = self.base_type(one.items[0], scope)
            for first, last in re.findall(r"([a-z])(?:-([a-z]))?", text_of(one.items[1])):
                scope.letters.update({chr(letter): kind for letter in range(ord(first), ord(last or first) + 1)})

    def structure(self, node, scope):
        name = text_of(node.children[0].items[1])
        above = re.search(r"extends\((\w+)\)", text_of(node.children[0]))
        fields = list(self.structures[above.group(1)].fields) if above and above.group(1) in self.structures else []
        inherited = [(part, array) for (kind, part), array in self.components.items() if above and kind == above.group(1)]
        self.components.update({(name, part): array for part, array in inherited})
        for component in walk(node, F.Data_Component_Def_Stmt):
            kind = self.base_type(component.items[0], scope)
            words = text_of(component.items[1]) if component.items[1] is not None else ""
            for one in walk(component, F.Component_Decl):
                part, shape = kind, one.items[1]
                if shape is None and "dimension" in words:
                    shape = walk(component.items[1], (F.Dimension_Attr_Spec, F.Dimension_Component_Attr_Spec))[0].items[1]
                if shape is not None:
                    part = Type("array", None, kind, None, name="allocatable" if "allocatable" in words else "")
                if "pointer" in words:
                    part = Type("opaque", None, name="pointer")
                elif shape is not None:
                    self.shaped_component(name, text_of(one.items[0]), part, kind, shape, words, scope, self.line_place(component))
                fields.append((text_of(one.items[0]), part, 0))
        made = Type("struct", None, fields=tuple(fields), name=name)
        if self.structures.get(name, made) != made:
            raise CannotParse(f"{self.line_place(node.children[0])}: another type has the name {name}, too")
        self.structures[name] = made

    def declaration(self, node, scope, function, dummies):
        kind, attributes, entities = node.items
        base = self.base_type(kind, scope)
        words = text_of(attributes) if attributes is not None else ""
        common = [one for one in walk(attributes, F.Dimension_Attr_Spec)] if attributes is not None else []
        for entity in entities.children:
            name = text_of(entity.items[0])
            if "private" in words or "public" in words:
                (scope.private if "private" in words else scope.public).add(name)
            shape = entity.items[1] if entity.items[1] is not None else common[0].items[1] if common else None
            initial = entity.items[3] if len(entity.items) > 3 else None
            if "parameter" in words and shape is not None:
                scope.shaped[name] = True
            if "parameter" in words:
                scope.parameters[name] = self.number(initial.items[1], scope) if initial is not None and shape is None else None
                continue
            made = self.make(name, base, shape, words, initial is not None, self.line_place(node), scope, function, name in dummies)
            made.declared = "included" if span(node.item)[2] else "here"
            if initial is not None and base.kind == "int" and made.scope != "param":
                self.first_value(made, initial.items[1], scope)

    def shaped_component(self, structure, name, kind, base, shape, words, scope, place):
        """What stands for the shape of a component that is an array: extents that aren't numbers are those of each variable of the type by itself."""
        made = Variable(f"{structure}%{name}", kind, "component", place)
        made.base, made.allocatable, made.attributes, made.declared = base, "allocatable" in words, words, ""
        self.shapes[made] = [(low if isinstance(low, int) else None, high if isinstance(low, int) and isinstance(high, int) else None) for low, high in map(lambda one: self.bound(one, scope), listed(shape))]
        self.components[structure, name] = made

    def first_value(self, variable, node, scope):
        """An initial value of numbers."""
        array = isinstance(node, F.Array_Constructor)
        nodes = list(node.items[1].children) if array and hasattr(node.items[1], "children") else [node]
        values = [{".true.": 1, ".false.": 0}.get(text_of(one), CONSTANTS.get(text_of(one), self.number(one, scope))) for one in nodes]
        count = variable.type.count if variable.type.kind == "array" else None
        if None in values or (variable.type.kind == "array" and (count is None or count > LONGEST or len(self.shapes[variable]) != 1 or len(values) not in (1, count))):
            return
        numbers = tuple(constant(value, variable.place) for value in values)
        variable.initial = numbers[0] if count is None else Expr("list", numbers * (1 if len(numbers) == count else count), None, variable.type, variable.place)
        variable.undefined = False

    def make(self, name, base, shape, words, saved, place, scope, function, dummy):
        """One variable. A dummy argument is a pointer to what the caller gives."""
        kind, bounds = base, []
        if shape is not None:
            bounds = [self.bound(one, scope) for one in listed(shape)]
            count = 1
            for low, high in bounds:
                if low is None or high is None or count is None or not isinstance(low, int) or not isinstance(high, int):
                    count = None
                else:
                    count *= max(high - low + 1, 0)
            kind = Type("array", count * base.size if count is not None and base.size else None, base, count)
        if base.kind == "opaque" and base.name == "MPI_Status":
            pass
        if dummy:
            kind = Type("pointer", POINTER_BYTES, base)
        elif "pointer" in words:
            kind = Type("opaque", None, name="pointer")
        scope_kind = "param" if dummy else "global" if function is None else "static" if saved or "save" in words else "local"
        made = Variable(name, kind, scope_kind, place, function)
        made.qualifiers = False
        made.file_static = False
        made.allocatable = "allocatable" in words
        made.base = base
        made.undefined = saved  # its initial value isn't read
        made.attributes = words
        made.declared = ""
        scope.variables[name] = made
        if shape is not None:
            self.shapes[made] = bounds
            self.shape_scope[made] = scope
        if function is None:
            self.program.globals.append(made)
        elif not dummy:
            self.program_unit_variables.append(made)
        return made

    def bound(self, node, scope):
        """(lower, upper) of a dimension: numbers, front-end nodes, or None."""
        if isinstance(node, (F.Assumed_Shape_Spec, F.Deferred_Shape_Spec)) or text_of(node) == ":":
            return None, None
        items = getattr(node, "items", (None, node))
        low, high = (items[0], items[1]) if isinstance(node, (F.Explicit_Shape_Spec, F.Allocate_Shape_Spec)) and len(items) == 2 else (None, node)
        first = 1 if low is None else self.number(low, scope)
        last = self.number(high, scope) if high is not None else None
        return (first if first is not None else low), (last if last is not None else high)
