"""Initial values in C: lists with designators as lists in the order of the fields or elements; literals as variables of their own."""

from clang import cindex

from .ir import Expr, Type, Variable

# Gaps that designators leave in longer arrays aren't filled.
LONGEST = 4096


class Unordered(Exception):
    """Which part an expression is for can't be told cheaply."""


class Initials:
    """The part of the reader that knows them."""

    def initial_list(self, node, kind, place):
        """`value` "unordered": each expression may be for each part."""
        children = [child for child in node.get_children() if child.kind.is_expression()]
        try:
            return Expr("list", tuple(self._ordered(children, kind)), None, kind, place)
        except Unordered:
            return Expr("list", tuple(self._unordered(children)), "unordered", kind, place)

    @staticmethod
    def designated(node):
        """Whether it is one of a list's parts with a designator before it."""
        return node.kind == cindex.CursorKind.UNEXPOSED_EXPR and node.type.kind == cindex.TypeKind.VOID

    def _ordered(self, children, kind):
        if not any(self.designated(child) for child in children):
            values = [self.expr(child) for child in children]
            flat = kind.kind == "array" and kind.element.kind == "struct" and any(value.value != 0 for value in values)
            if kind.kind not in ("struct", "array") or (all(value.op == "const" for value in values) and not flat):
                return values
        slots, at = {}, 0
        for child in children:
            value = child
            if self.designated(child):
                *path, value = child.get_children()
                if len(path) != 1:
                    raise Unordered
                at = self._position(path[0], kind)
            part = self._part(kind, at)
            made = self.expr(value)
            if part.kind in ("struct", "array") and made.op not in ("list", "string") and not (made.type and made.type.kind == part.kind):
                # The braces around its parts are left out.
                raise Unordered
            slots[at] = made
            at += 1
        return [slots.get(one, Expr("const", (), 0, Type("int", 4))) for one in range(max(slots, default=-1) + 1)]

    @staticmethod
    def _part(kind, at):
        if kind.kind == "array":
            return kind.element
        if kind.kind != "struct" or at >= len(kind.fields):
            raise Unordered
        return kind.fields[at][1]

    def _position(self, designator, kind):
        if designator.kind == cindex.CursorKind.MEMBER_REF:
            names = [name for name, _, _ in kind.fields]
            if designator.spelling not in names:
                raise Unordered
            return names.index(designator.spelling)
        index = self.expr(designator)
        if index.op != "const" or not isinstance(index.value, int) or not 0 <= index.value < LONGEST:
            raise Unordered
        return index.value

    def _unordered(self, children):
        for child in children:
            if self.designated(child):
                yield from self._unordered([part for part in child.get_children() if part.kind.is_expression()][-1:])
            else:
                yield self.expr(child)

    def literal(self, node, kind, place):
        """A compound literal: a variable without a name, which gets its value where it stands."""
        made = Variable("%literal", kind, "local" if self.function else "global", place, self.function.name if self.function else None, self.blocks[-1] if self.blocks else None)
        made.addressable = made.qualifiers = made.file_static = False
        if self.function:
            self.function.variables.append(made)
        target = Expr("var", (), made, kind, place)
        parts = [child for child in node.get_children() if child.kind.is_expression()]
        return Expr("comma", (Expr("assign", (target, self.expr(parts[-1])), "=", kind, place), target), None, kind, place)

    def unexposed(self, node, children, kind, place):
        """What libclang doesn't name: `p ?: q`, atomic operations, and others."""
        expressions = [child for child in children if child.kind.is_expression()]
        if not expressions:
            return Expr("const", (), None, kind, place)
        values = [self.expr(child) for child in expressions]
        shorthand = len(children) == 4 and not place.macro and node.extent.start.offset == children[0].extent.start.offset and children[0].extent == children[1].extent
        if shorthand and not any(part.op in ("call", "assign", "step", "opaque") for part in values[0].walk()):
            return Expr("cond", (values[0], values[0], values[-1]), None, kind, place)
        # It may read and write all that its parts lead to.
        return Expr("call", (Expr("func", (), "mend_cc unknown", None, place), *values), None, kind, place)
