"""C sources, read by libclang, as the intermediate form."""

import ctypes
import functools
import os
import re
import shlex
import subprocess
from collections import Counter

from clang import cindex

from . import pragmas
from .initial import Initials
from .ir import UNNAMED, Directive, Expr, Function, Place, Program, Stmt, Type, Variable, is_plain

# CXBinaryOperatorKind of clang-c/Index.h; 1 and 2 are of C++.
BINARY = dict(enumerate("* / % + - << >> <=> < > <= >= == != & ^ | && || = *= /= %= += -= <<= >>= &= ^= |= ,".split(), start=3))
UNARY = {1: "x++", 2: "x--", 3: "++x", 4: "--x", 5: "&", 6: "*", 7: "+", 8: "-", 9: "~", 10: "!"}
# Handles of MPI and of the C library, which only mean something within one run. By name, since in some MPI libraries they are integers.
OPAQUE = re.compile(r"^(MPI_(Comm|Datatype|Op|Group|Request|Win|File|Info|Message|Errhandler|Session|Status)|FILE|DIR|va_list|pthread_\w+|jmp_buf|locale_t)$")
CONSTANTS = {"proc_null": "MPI_PROC_NULL", "any_source": "MPI_ANY_SOURCE", "any_tag": "MPI_ANY_TAG", "undefined": "MPI_UNDEFINED"}
# Expressions whose value is no array, whatever libclang calls it.
VALUES = {"BINARY_OPERATOR", "COMPOUND_ASSIGNMENT_OPERATOR", "CONDITIONAL_OPERATOR", "CSTYLE_CAST_EXPR", "CALL_EXPR"}
POINTER_BYTES = 8
POINTEES = 3  # deeper types aren't needed: each expression has its own
HEADERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "headers")
INTEGERS = {"SHORT", "INT", "LONG", "LONGLONG", "CHAR_S", "SCHAR", "INT128"}
UNSIGNED = {"BOOL", "CHAR_U", "UCHAR", "USHORT", "UINT", "ULONG", "ULONGLONG", "UINT128"}


class CannotParse(Exception):
    """The source doesn't compile, or has what can't be analysed."""


class BadDirective(Exception):
    """A directive that doesn't exist."""


class _Ranges(ctypes.Structure):
    """CXSourceRangeList of clang-c/CXSourceLocation.h."""

    _fields_ = [("count", ctypes.c_uint), ("ranges", ctypes.POINTER(cindex.SourceRange))]


def _library():
    library = cindex.conf.lib
    for name in ("clang_getCursorBinaryOperatorKind", "clang_getCursorUnaryOperatorKind"):
        getattr(library, name).argtypes = [cindex.Cursor]
    library.clang_Location_isFromMainFile.argtypes = [cindex.SourceLocation]
    library.clang_Cursor_Evaluate.argtypes = [cindex.Cursor]
    library.clang_Cursor_Evaluate.restype = cindex.c_object_p
    for name in ("clang_EvalResult_getKind", "clang_EvalResult_dispose", "clang_EvalResult_getAsLongLong"):
        getattr(library, name).argtypes = [cindex.c_object_p]
    library.clang_getSkippedRanges.argtypes = [cindex.TranslationUnit, cindex.File]
    library.clang_getSkippedRanges.restype = ctypes.POINTER(_Ranges)
    library.clang_disposeSourceRangeList.argtypes = [ctypes.POINTER(_Ranges)]
    library.clang_EvalResult_getAsLongLong.restype = cindex.c_longlong
    return library


LIBRARY = _library()


def compiler_flags(compiler):
    """What an MPI compiler adds (its -show or --showme), as far as reading needs it."""
    found = []
    for ask in ("-show", "--showme:compile"):
        done = subprocess.run([*compiler, ask], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            words = shlex.split(done.stdout)
            found = [*(word for word in words if word.startswith(("-I", "-D", "-isystem"))), *pragmas.told(words)]
            break
    inner = subprocess.run(["gcc", "-print-file-name=include"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout.strip()
    return [*found, "-isystem", HEADERS, *(("-isystem", inner) if inner else ())]


def evaluate(cursor):
    """An integer constant's value, or None."""
    result = LIBRARY.clang_Cursor_Evaluate(cursor)
    if not result:
        return None
    try:
        return LIBRARY.clang_EvalResult_getAsLongLong(result) if LIBRARY.clang_EvalResult_getKind(result) == 1 else None
    finally:
        LIBRARY.clang_EvalResult_dispose(result)


def make_type(given, known=None, followed=0):
    """clang's type as ours. `followed`: how many pointers were; `known`: the structures on the way, which a pointer may lead back to."""
    known = {} if known is None else known
    if given.kind.name in ("FUNCTIONPROTO", "FUNCTIONNOPROTO"):
        return Type("function")
    spelled = given.spelling.replace("const ", "").replace("volatile ", "").replace("struct ", "").strip()
    if OPAQUE.match(spelled):
        return Type("opaque", max(given.get_size(), 0) or None, name=spelled)
    kind = given.kind.name
    if kind in ("ELABORATED", "TYPEDEF") or "UNEXPOSED" in kind or kind == "ATTRIBUTED":
        declared = given.get_declaration()
        if declared.kind == cindex.CursorKind.TYPEDEF_DECL:
            return make_type(declared.underlying_typedef_type, known, followed)
        canonical = given.get_canonical()
        if canonical.kind.name != kind:
            return make_type(canonical, known, followed)
    size = given.get_size()
    size = size if size > 0 else None
    if kind in INTEGERS:
        return Type("int", size)
    if kind in UNSIGNED or kind == "ENUM":
        return Type("uint" if kind != "ENUM" else "int", size)
    if kind in ("FLOAT", "DOUBLE", "LONGDOUBLE", "FLOAT128", "HALF"):
        return Type("float", size, name="long double" if kind == "LONGDOUBLE" else "")
    if kind == "COMPLEX":
        return Type("complex", size)
    if kind == "POINTER":
        return Type("pointer", size, make_type(given.get_pointee(), known, followed + 1) if followed < POINTEES else Type("void"))
    if kind in ("CONSTANTARRAY", "INCOMPLETEARRAY", "VARIABLEARRAY"):
        return Type("array", size, make_type(given.element_type, known, followed), given.element_count if kind == "CONSTANTARRAY" else None)
    if kind == "RECORD":
        declared = given.get_declaration()
        name = ("union " if declared.kind == cindex.CursorKind.UNION_DECL else "") + declared.spelling
        key = (declared.get_usr(), declared.location.offset, followed)
        if key not in known:
            parts = tuple((field_name(part), bit_field(part) or make_type(part.type, known, followed), part.get_field_offsetof() // 8)
                          for part in given.get_fields() if part.spelling or not part.is_bitfield()) if followed < POINTEES else ()
            made = Type("struct", size, fields=parts, name=name)
            if declared.kind == cindex.CursorKind.UNION_DECL:
                # Its parts are one location.
                made = Type("struct", size, name=name, holds_plain=bool(parts) and is_plain(made))
            known[key] = made
        return known[key]
    return Type("void") if kind == "VOID" else Type("opaque", size, name=spelled)


def bit_field(part):
    """A bit-field's type, or None: it has no address."""
    return Type("int", max(part.type.get_size(), 0), name="bit-field") if part.is_bitfield() else None


def field_name(part):
    """A field's name; a structure or union within another may have none, and libclang describes it then."""
    return part.spelling if part.spelling.isidentifier() else f"{UNNAMED}{part.get_field_offsetof() // 8}"


def unnamed_around(field, base):
    """The fields without names, outermost first, that lie between a value of this type and a field that is named as if it were its own: libclang leaves the last of them out."""
    outer = (base.get_canonical().get_pointee() if base.get_canonical().kind == cindex.TypeKind.POINTER else base).get_canonical().get_declaration()
    found, record = [], field.semantic_parent
    while record != outer and record.is_anonymous():
        inner, record = record, record.semantic_parent
        found += [part for part in record.type.get_fields() if part.type.get_declaration() == inner]
    return found[::-1]


def decayed(kind):
    """A parameter that is written as an array is a pointer, and so is what is computed with it: libclang names the array."""
    return Type("pointer", POINTER_BYTES, kind.element) if kind.kind == "array" else kind


def _bytes(path):
    with open(path, "rb") as file:
        return file.read()


class _Reader(Initials):
    """One source file."""

    def __init__(self, program, path, flags):
        self.program, self.path, self.flags = program, path, flags
        try:
            unit = cindex.Index.create().parse(path, args=flags, options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
        except cindex.TranslationUnitLoadError:
            raise CannotParse(f"{path}: libclang can't read it") from None
        errors = [one for one in unit.diagnostics if one.severity >= cindex.Diagnostic.Error]
        if errors:
            raise CannotParse("\n".join(f"{one.location.file}:{one.location.line}: {one.spelling}" for one in errors[:5]))
        self.unit = unit
        self.variables = {}
        self.text = _bytes(path)
        # How often each is read.
        self.files = Counter([path, *(one.include.name for one in unit.get_includes())])
        program.skipped[path] = self.skipped(path, self.text)
        self.compiled = pragmas.compiled(self.text, program.skipped[path])
        # Headers have thousands of others, of which the number of their kind tells enough.
        wanted = {one.value for one in (cindex.CursorKind.MACRO_INSTANTIATION, cindex.CursorKind.FUNCTION_DECL, cindex.CursorKind.VAR_DECL)}
        self.top = [node for node in unit.cursor.get_children() if node._kind_id in wanted]
        self.macros = sorted((node.extent.start.offset, node.extent.end.offset) for node in self.top
                             if node.kind == cindex.CursorKind.MACRO_INSTANTIATION and LIBRARY.clang_Location_isFromMainFile(node.location))
        self.function = None
        self.blocks = []

    def mine(self, node):
        return node.location.file is not None and node.location.file.name == self.path

    def macro_at(self, offset):
        for start, end in self.macros:
            if start <= offset < end:
                return start, end
        return None

    def place(self, node, above=None):
        extent = node.extent
        start, end = extent.start.offset, extent.end.offset
        within = self.macro_at(start)
        macro = within is not None and (start != within[0] or (above is not None and within[0] <= above.start < within[1]))
        file = node.location.file.name if node.location.file is not None else self.path
        return Place(file, extent.start.line, start, end, macro or not self.mine(node))

    # ---- declarations ----

    def read(self):
        self.directives()
        for node in self.top:
            if node.kind == cindex.CursorKind.FUNCTION_DECL and node.is_definition() and (self.mine(node) or (node.location.file and not self.system(node))):
                self.read_function(node)
            elif node.kind == cindex.CursorKind.VAR_DECL and self.mine(node):
                self.variable(node)
        pragmas.read(self.program, self.path, self.compiled, self.variables.values(), self.flags)
        for path in sorted(one for one in self.files if one != self.path and not self.of_system(one)):
            text = _bytes(path)
            pragmas.read(self.program, path, pragmas.compiled(text, self.skipped(path, text)), self.variables.values(), self.flags)
        for variable in list(self.variables.values()):
            if variable.scope == "global" and variable not in self.program.globals:
                self.program.globals.append(variable)

    def skipped(self, path, text):
        """(start, end) of what conditions leave out of a file. libclang tells of the first time that it is read."""
        found = LIBRARY.clang_getSkippedRanges(self.unit, self.unit.get_file(path))
        ranges = sorted((one.start.offset, one.end.offset) for one in (found.contents.ranges[at] for at in range(found.contents.count)))
        LIBRARY.clang_disposeSourceRangeList(found)
        return ranges if self.files[path] == 1 else pragmas.always(text, ranges)

    @staticmethod
    def of_system(path):
        return path.startswith("/usr/") or "/include/mpi" in path

    def system(self, node):
        return self.of_system(node.location.file.name)

    def directives(self):
        at = 0
        for number, line in enumerate(self.text.split(b"\n"), start=1):
            match = re.match(rb"\s*#\s*pragma\s+mend\s+(\w+)\s*(.*)", line)
            if match:
                kind, rest = match.group(1).decode(), match.group(2).decode().strip()
                where = Place(self.path, number, at, at + len(line))
                if kind in ("checkpoint", "exclude", "shape"):
                    self.program.directives.append(Directive(kind, where, rest))
                else:
                    raise BadDirective(f"{self.path}:{number}: there is no directive `mend {kind}`: checkpoint, exclude, shape")
            at += len(line) + 1

    def function_name(self, node):
        static = node.storage_class == cindex.StorageClass.STATIC or node.linkage == cindex.LinkageKind.INTERNAL
        return f"{node.location.file.name}:{node.spelling}" if static and node.location.file else node.spelling

    def variable(self, node):
        declared = node.canonical
        known = self.variables.get(declared.get_usr() + str(declared.location.offset))
        if known:
            self.defined(known, node)
            return known
        inside = self.function is not None and node.semantic_parent.kind == cindex.CursorKind.FUNCTION_DECL
        static = node.storage_class == cindex.StorageClass.STATIC
        if node.kind == cindex.CursorKind.PARM_DECL:
            scope = "param"
        elif inside and node.storage_class != cindex.StorageClass.EXTERN:
            scope = "static" if static else "local"
        else:
            scope = "global"
            if not static:
                for other in self.program.globals:
                    if other.name == node.spelling and other.addressable and not other.file_static:
                        self.defined(other, node)
                        self.variables[declared.get_usr() + str(declared.location.offset)] = other
                        return other
        made = Variable(node.spelling, decayed(make_type(node.type)) if scope == "param" else make_type(node.type), scope, self.place(node), self.function.name if inside else None,
                        self.blocks[-1] if self.blocks and inside else None)
        # A file's own can't be named by others.
        made.addressable = node.storage_class != cindex.StorageClass.REGISTER and not (scope == "global" and static and not self.mine(node))
        made.file_static = scope == "global" and static
        made.qualifiers = node.type.get_array_element_type().is_const_qualified() or node.type.is_const_qualified()
        self.variables[declared.get_usr() + str(declared.location.offset)] = made
        if node.tls_kind != cindex.TLSKind.NONE:
            self.program.copied[made] = "threads have copies of"
        if inside:
            self.function.variables.append(made)
        # What a global begins with, that is defined elsewhere, isn't known; a parameter has no initial value.
        made.undefined = scope == "global"
        if scope != "local":
            self.defined(made, node)
        return made

    def defined(self, variable, node):
        """Takes over what a variable's definition says, which may stand behind declarations, in another source."""
        if node.kind != cindex.CursorKind.VAR_DECL or variable.scope == "local":
            return
        initial = self.initial(node)
        if initial is None and (node.storage_class == cindex.StorageClass.EXTERN or not variable.undefined):
            return
        if variable.undefined and self.mine(node):
            variable.place = self.place(node)
        variable.undefined, variable.initial, variable.type = False, initial, make_type(node.type)

    def initial(self, node):
        parts = list(node.get_children())
        # The last part of an array without an initial value is its number of elements.
        if parts and parts[-1].kind.is_expression() and "ARRAY" not in node.type.get_canonical().kind.name:
            return self.expr(parts[-1])
        if parts and parts[-1].kind in (cindex.CursorKind.INIT_LIST_EXPR, cindex.CursorKind.STRING_LITERAL):
            return self.expr(parts[-1])
        return None

    def read_function(self, node):
        name = self.function_name(node)
        if name in self.program.functions:
            return
        made = Function(name, self.place(node), [], None, make_type(node.result_type), source=node.spelling)
        self.function = made
        body = [part for part in node.get_children() if part.kind == cindex.CursorKind.COMPOUND_STMT][-1]
        self.blocks = [(body.extent.start.offset, body.extent.end.offset)]
        made.params = [self.variable(part) for part in node.get_arguments()]
        made.body = self.stmt(body, None)
        self.function, self.blocks = None, []
        self.program.functions[name] = made

    # ---- statements ----

    def block(self, nodes, place, above):
        parts = []
        for node in nodes:
            made = self.stmt(node, above)
            parts.extend(made.parts if made.kind == "decls" else [made])
        return Stmt("block", place, tuple(parts))

    def stmt(self, node, above):
        kind, place = node.kind.name, self.place(node, above)
        children = list(node.get_children())
        if kind == "COMPOUND_STMT":
            self.blocks.append((place.start, place.end))
            made = self.block(children, place, place)
            self.blocks.pop()
            return made
        if kind == "DECL_STMT":
            parts = []
            for child in children:
                if child.kind == cindex.CursorKind.VAR_DECL:
                    variable = self.variable(child)
                    parts.append(Stmt("decl", place, expr=None if variable.scope != "local" else self.initial_of(child, variable), variable=variable))
            return Stmt("decls", place, tuple(parts))
        if kind == "IF_STMT":
            return Stmt("if", place, (self.stmt(children[1], place), self.stmt(children[2], place) if len(children) > 2 else None), self.expr(children[0]))
        if kind in ("WHILE_STMT", "DO_STMT", "FOR_STMT"):
            return self.loop(node, kind, children, place)
        if kind == "SWITCH_STMT":
            return Stmt("switch", place, (self.stmt(children[1], place),), self.expr(children[0]))
        if kind == "CASE_STMT":
            if len(children) > 2:
                raise CannotParse(f"{place}: a range of cases")
            return Stmt("case", place, (self.stmt(children[-1], place),), self.expr(children[0]))
        if kind == "DEFAULT_STMT":
            return Stmt("default", place, (self.stmt(children[0], place),))
        if kind == "LABEL_STMT":
            return Stmt("label", place, (self.stmt(children[0], place),), label=node.spelling)
        if kind == "GOTO_STMT":
            return Stmt("goto", place, label=children[0].spelling)
        if kind == "INDIRECT_GOTO_STMT":
            self.program.cannot_see(place, "a computed goto")
            return Stmt("goto", place, label="")
        if kind in ("BREAK_STMT", "CONTINUE_STMT"):
            return Stmt(kind.split("_", maxsplit=1)[0].lower(), place)
        if kind == "RETURN_STMT":
            return Stmt("return", place, expr=self.expr(children[0]) if children else None)
        if kind == "NULL_STMT":
            return Stmt("empty", place)
        if kind == "UNEXPOSED_STMT" and children and children[-1].kind.is_statement():
            # A loop with what a #pragma says of it. _Pragma isn't a line of its own: nothing can be inserted between it and its loop.
            made = self.stmt(children[-1], above)
            if made.kind != "empty" and made.place.file == self.path and pragmas.front(self.compiled, made.place.start) > place.start:
                self.program.held.add((made.place.file, made.place.start))
            return made
        if not node.kind.is_expression():
            raise CannotParse(f"{place}: a statement of a kind that isn't known ({kind.lower()})")
        return Stmt("expr", place, expr=self.expr(node))

    def initial_of(self, node, variable):
        initial = self.initial(node)
        if initial is None:
            return None
        target = Expr("var", (), variable, variable.type, initial.place)
        return Expr("assign", (target, initial), "=", variable.type, initial.place)

    def loop(self, node, kind, children, place):
        if kind == "WHILE_STMT":
            body = self.stmt(children[1], place)
            made = Stmt("loop", place, (body,), self.expr(children[0]), form="while")
        elif kind == "DO_STMT":
            body = self.stmt(children[0], place)
            made = Stmt("loop", place, (body,), self.expr(children[1]), form="do")
        else:
            first, condition, advance = self.header(node, children, place)
            self.blocks.append((place.start, place.end))
            init = self.stmt(first, place) if first else None
            if init and init.kind == "decls":
                init = Stmt("block", init.place, init.parts)
            body = self.stmt(children[-1], place)
            made = Stmt("loop", place, (body,), self.expr(condition) if condition else None, form="for", init=init, advance=self.expr(advance) if advance else None)
            self.blocks.pop()
        made.braced = body.kind == "block"
        return made

    def header(self, node, children, place):
        """Which of the three parts of a for statement are there: clang lists only those that are."""
        parts = children[:-1]
        if len(parts) == 3:
            return parts
        depth, semicolons = 0, []
        for token in node.get_tokens():
            if token.spelling == "(":
                depth += 1
            elif token.spelling == ")":
                depth -= 1
                if depth == 0:
                    break
            elif token.spelling == ";" and depth == 1:
                semicolons.append(token.extent.start.offset)
        if len(semicolons) != 2:
            if parts:
                self.program.cannot_see(place, "the head of a loop that comes out of a macro")
            return (*parts, None, None, None)[:3]
        found = [None, None, None]
        for part in parts:
            at = part.extent.start.offset
            found[sum(at > one for one in semicolons)] = part
        return found

    # ---- expressions ----

    def expr(self, node):
        kind, children, place = node.kind.name, list(node.get_children()), self.place(node)
        if kind == "DECL_REF_EXPR" and node.referenced.kind == cindex.CursorKind.FUNCTION_DECL:
            # libclang dies where it is asked for the size of a builtin's type.
            declared = node.referenced
            return Expr("func", (), self.function_name(declared.get_definition() or declared), Type("function"), place)
        single = kind in ("UNEXPOSED_EXPR", "PAREN_EXPR") and len(children) == 1 and children[0].kind.is_expression()
        inner = self.expr(children[0]) if single else None
        if single and inner.op == "func":
            return inner
        kind_of = make_type(node.type)
        if kind in VALUES:
            kind_of = decayed(kind_of)

        def make(operator, *args, value=None):
            return Expr(operator, tuple(args), value, kind_of, place)

        if single:
            if inner.type and inner.type.kind == "array" and kind_of.kind == "pointer":
                return address_of(make_index(inner) if inner.op != "comma" else Expr("comma", (*inner.args[:-1], make_index(inner.args[-1])), None, inner.type.element, place), kind_of)
            return inner
        if kind in ("INTEGER_LITERAL", "CHARACTER_LITERAL"):
            return make("const", value=evaluate(node))
        if kind in ("FLOATING_LITERAL", "IMAGINARY_LITERAL", "CXX_BOOL_LITERAL_EXPR"):
            return make("const")
        if kind == "CXX_UNARY_EXPR":
            return make("const", value=evaluate(node))
        if kind == "STRING_LITERAL":
            return make("string", value=node.spelling)
        if kind == "DECL_REF_EXPR":
            declared = node.referenced
            if declared.kind == cindex.CursorKind.ENUM_CONSTANT_DECL:
                return make("const", value=declared.enum_value)
            variable = self.variable(declared)
            return Expr("var", (), variable, variable.type if variable.scope == "param" else kind_of, place)
        if kind == "CSTYLE_CAST_EXPR":
            return make("cast", self.expr(children[-1]))
        if kind == "ARRAY_SUBSCRIPT_EXPR":
            return make("index", undecay(self.expr(children[0])), self.expr(children[1]))
        if kind == "MEMBER_REF_EXPR":
            base = self.expr(children[0])
            if base.type and base.type.kind == "pointer":
                base = Expr("deref", (base,), None, base.type.element, place)
            for part in unnamed_around(node.referenced, children[0].type):
                base = Expr("member", (base,), field_name(part), make_type(part.type), place)
            kind_of = bit_field(node.referenced) or kind_of
            return make("member", base, value=field_name(node.referenced))
        if kind == "CALL_EXPR":
            parts = [self.expr(child) for child in children]
            if node.spelling in ("__builtin_expect", "__builtin_expect_with_probability"):
                return parts[1]
            return make("call", *parts)
        if kind in ("BINARY_OPERATOR", "COMPOUND_ASSIGNMENT_OPERATOR"):
            operator = BINARY.get(LIBRARY.clang_getCursorBinaryOperatorKind(node), "?")
            left, right = self.expr(children[0]), self.expr(children[1])
            if operator == ",":
                return make("comma", left, right)
            if operator.endswith("=") and operator not in ("==", "!=", "<=", ">="):
                return make("assign", left, right, value=operator)
            return make("binary", left, right, value=operator)
        if kind == "UNARY_OPERATOR":
            operator = UNARY.get(LIBRARY.clang_getCursorUnaryOperatorKind(node), "?")
            inner = self.expr(children[0])
            if operator in ("x++", "x--", "++x", "--x"):
                return Expr("step", (inner,), (1 if "+" in operator else -1, operator.startswith(("+", "-"))), decayed(kind_of), place)
            if operator == "&":
                return address_of(inner, kind_of) if inner.op != "func" else inner
            if operator == "*":
                return inner if inner.op == "func" else inner.args[0] if inner.op == "addr" else make("deref", inner)
            if operator in "+-~!":
                return make("unary", inner, value=operator)
        if kind == "CONDITIONAL_OPERATOR":
            return make("cond", *map(self.expr, children))
        if kind == "INIT_LIST_EXPR":
            return self.initial_list(node, kind_of, place)
        if kind == "COMPOUND_LITERAL_EXPR":
            return self.literal(node, kind_of, place)
        if kind == "UNEXPOSED_EXPR":
            return self.unexposed(node, children, kind_of, place)
        if kind == "StmtExpr" or "STMT" in kind.upper() or "LAMBDA" in kind or "BLOCK" in kind:
            raise CannotParse(f"{place}: statements within an expression")
        if kind != "TYPE_REF":
            self.program.cannot_see(place, f"an expression of a kind that isn't known ({kind.lower()})")
        return make("opaque", *(self.expr(child) for child in children if child.kind.is_expression()), value=kind)


def make_index(array):
    """An array's first element: what its name stands for as a pointer."""
    return Expr("index", (array, Expr("const", (), 0, Type("int", 4), array.place)), None, array.type.element, array.place)


def address_of(target, kind):
    """The address of a location; of a literal's after it got its value."""
    if target.op == "comma":
        return Expr("comma", (*target.args[:-1], address_of(target.args[-1], kind)), None, kind, target.place)
    return Expr("addr", (target,), None, kind, target.place)


def undecay(expr):
    """The array itself where its name was made a pointer to be indexed."""
    if expr.op == "addr" and expr.args[0].op == "index" and expr.args[0].args[1].value == 0 and expr.args[0].args[0].type.kind == "array":
        return expr.args[0].args[0]
    return expr


@functools.lru_cache(maxsize=None)
def mpi_constants(flags):
    """MPI's constants in this MPI library: they differ between libraries."""
    path = os.path.join(os.sep, "mend-cc-constants.c")
    lines = ["#include <mpi.h>", "MPI_Comm world = MPI_COMM_WORLD;", *(f"enum {{ mend_{ours} = {name} }};" for ours, name in CONSTANTS.items())]
    unit = cindex.Index.create().parse(path, args=flags, unsaved_files=[(path, "\n".join(lines) + "\n")])

    def at(line, column):
        return cindex.Cursor.from_location(unit, cindex.SourceLocation.from_position(unit, unit.get_file(path), line, column))

    # By their lines: the header has thousands of declarations.
    parts = list(at(2, len("MPI_Comm w")).walk_preorder())
    literals = [evaluate(part) for part in parts if part.kind == cindex.CursorKind.INTEGER_LITERAL]
    names = [part.spelling for part in parts if part.kind == cindex.CursorKind.DECL_REF_EXPR]
    found = {"comm_world": names[0] if names else literals[0] if literals else None} if parts[0].kind == cindex.CursorKind.VAR_DECL else {}
    for line, ours in enumerate(CONSTANTS, start=3):
        node = at(line, len("enum { m"))
        if node.kind == cindex.CursorKind.ENUM_CONSTANT_DECL:
            found[ours] = node.enum_value
    return found


def parse(sources):
    """Sources as (path, flags for clang) make one program."""
    program = Program(language="c")
    for path, flags in sources:
        program.files.append(path)
        _Reader(program, path, flags).read()
    program.constants = mpi_constants(tuple(sources[0][1])) if sources else {}
    return program
