"""Fortran's control flow: conditions, loops, and jumps, also out of constructs that have names."""

import re

from fparser.two import Fortran2003 as F
from fparser.two.utils import BlockBase, NoMatchError, walk

from .fortran_expressions import INT, LOGICAL
from .fortran_names import binary, constant, listed, text_of
from .ir import NEW_UNIT, Expr, Place, Stmt, Type
from .parse_c import CannotParse

# Parts of input and output that name a label to go on at, and a variable that says how it went.
SPECIFIERS = (F.Io_Control_Spec, F.Connect_Spec, F.Close_Spec, F.Position_Spec, F.Flush_Spec)
JUMPS, RESULTS = ("end", "err", "eor"), ("iostat", "iomsg", "size", "id", "newunit")
# Constructs that are seen as wholes.
LEAVING = (F.Return_Stmt, F.Goto_Stmt, F.Computed_Goto_Stmt, F.Arithmetic_If_Stmt, F.Exit_Stmt, F.Cycle_Stmt)


# In a statement's text: literals, components and keywords of arguments as they are; names.
WORD = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|%\s*\w+|(?<=[(,])\s*[a-z_]\w*(?=\s*=(?![=>]))|(?<!\d\.)\b[a-z_]\w*", re.I)


def first_of(node):
    """The line at which a statement or a construct begins, as fparser has it."""
    while node.item is None and isinstance(node, BlockBase) and node.children:
        node = node.children[0]
    return node.item


def name_of(node):
    """The name of a construct, or None."""
    item = first_of(node)
    return item.name.lower() if item is not None and item.name else None


def specifiers(node):
    """(keyword or "", value) of a statement for input or output."""
    return [(text_of(one.items[0]) if one.items[0] is not None else "", one.items[1]) for one in walk(node, SPECIFIERS)]


class Control:
    """The part of the reader that knows them. `loops`: names of those around, or None for each; `left`: labels for jumps by names; `jumped`: labels that something jumps to."""

    def find_labels(self, execution):
        """Labels that are only where a format is, or a loop ends, are no places to go to."""
        self.loops, self.left, self.jumped = [], set(), set()
        if execution is None:
            return
        self.jumped = {text_of(one.items[0]) for one in walk(execution, F.Goto_Stmt)}
        self.jumped |= {text_of(value) for word, value in specifiers(execution) if word in JUMPS}

    def labelled(self, node, macro):
        """The statements that one of Fortran's becomes, with its label."""
        item = first_of(node)
        label = str(item.label) if item is not None and item.label else None
        if label not in self.jumped:
            return self.stmt(node, macro)
        # What is inserted stands before the label, and some come from elsewhere.
        made = self.stmt(node, True)
        place = self.line_place(node, macro)
        return [Stmt("label", place, (made[0] if made else Stmt("empty", place),), label=label), *made[1:]]

    def jump(self, node, place):
        """exit and cycle."""
        kind = "break" if isinstance(node, F.Exit_Stmt) else "continue"
        name = text_of(node.items[1]) if node.items[1] is not None else None
        if self.loops and name in (None, self.loops[-1]):
            return Stmt(kind, place)
        self.left.add(f"{kind} {name}")
        return Stmt("goto", place, label=f"{kind} {name}")

    def target(self, label, node):
        """Where a jump by a name leads, if there is one."""
        at = self.line_place(node, True)
        return [Stmt("label", at, (Stmt("empty", at),), label=label)] if label in self.left else []

    def left_by_name(self, node, made):
        """A construct's statements, and what comes after it."""
        return [*made, *self.target(f"break {name_of(node)}", node.children[-1])]

    def ahead(self, place):
        """What must be computed before a construct."""
        made = [Stmt("expr", Place(place.file, place.line, place.start, place.end, True), expr=one) for one in self.before]
        self.before = []
        return made

    def after_transfer(self, node, place):
        """What may follow a statement for input or output: where it fails, and what says so."""
        hidden = Place(place.file, place.line, place.start, place.end, True)
        failed = Expr("opaque", (), "an error, or the end of a file", LOGICAL, place)
        found = [Stmt("expr", hidden, expr=self.unknown(value, place, NEW_UNIT if word == "newunit" else "a status")) for word, value in specifiers(node) if word in RESULTS]
        return found + [Stmt("if", hidden, (Stmt("goto", hidden, label=text_of(value)), None), failed) for word, value in specifiers(node) if word in JUMPS]

    def associate(self, node, place):
        """The statements in it, with what its names stand for. Nothing is inserted there, where a name may hide a variable."""
        given = {text_of(one.items[0]): one.items[2] for one in walk(node.children[0], F.Association)}
        bases = [self.scope.find(text_of(one.items[0] if isinstance(one, F.Data_Ref) else one)) for one in given.values()]
        within = walk(node.children[1:-1], (F.Associate_Construct, F.Type_Declaration_Stmt, F.Select_Type_Construct))
        if None in bases or within or not all(isinstance(one, F.Name) or (isinstance(one, F.Data_Ref) and "(" not in text_of(one)) for one in given.values()):
            return self.seen_as_a_whole(node, place)
        try:
            changes = [change for child in node.children[1:-1] for change in self.renamed(child, node, {name: str(one) for name, one in given.items()})]
        except NoMatchError:
            return self.seen_as_a_whole(node, place)
        for parent, old, new in changes:
            parent.content[next(at for at, one in enumerate(parent.content) if one is old)] = new
        self.shared.update(range(place.line, self.line_place(node.children[-1]).line + 1))
        # A place may be before it.
        return [Stmt("expr", place, expr=constant(0, place)), *self.left_by_name(node, self.block(node.children[1:-1]))]

    def renamed(self, node, parent, names):
        """(parent, statement, statement with other names) for all statements of a construct."""
        if isinstance(node, BlockBase):
            for child in node.children:
                yield from self.renamed(child, node, names)
            return
        text = "" if isinstance(node, F.Comment) else str(node)
        made = WORD.sub(lambda match: names.get(match.group(0).lower(), match.group(0)), text)
        if made != text:
            new = type(node)(made)
            if new is None:
                raise NoMatchError(made)
            new.item, new.parent = node.item, parent
            yield parent, node, new

    def seen_as_a_whole(self, node, place):
        """A construct that isn't followed: all that is named in it may be read and written."""
        self.program.cannot_see(place, f"a statement of a kind that isn't known ({type(node).__name__.lower().replace('_', ' ')})")
        names = [self.scope.find(text_of(one)) for one in walk(node, F.Name)]
        parts = tuple(self.address(self.variable(one, place)) for one in names if one is not None)
        if isinstance(node, LEAVING) or any(not self.stays_within(one, node) for one in walk(node, LEAVING)) or any(word in JUMPS for word, _ in specifiers(node)):
            raise CannotParse(f"{place}: a construct of a kind that isn't known is left from within")
        if any(one.items[1] is not None and "save" in text_of(one.items[1]) or walk(one, F.Initialization) for one in walk(node, F.Type_Declaration_Stmt)):
            raise CannotParse(f"{place}: a variable of a block keeps its value: declare it where the program unit begins")
        # What is called in it may send.
        kind = "a call within it" if self.calls(node) else "mend_cc unknown"
        hidden = Place(place.file, place.line, place.start, place.end, True)
        more = [one for inner in walk(node, (F.Allocate_Stmt, F.Deallocate_Stmt)) for one in self.allocation(inner, hidden)]
        if not type(node).__name__.startswith(("Where", "Forall")):
            more += [made for one in walk(node, F.Assignment_Stmt) for made in self.growth(one.items[0], one.items[2], hidden)]
        more += [Stmt("empty", hidden, unit=unit) for unit in self.units_within(node)]
        self.before = []
        return [Stmt("expr", place, expr=Expr("call", (Expr("func", (), kind, None, place), *parts), None, Type("void"), place)), *more]

    def units_within(self, node):
        """What it does with units, but for closing them, which it may not come to. A unit by a name of its own may be any."""
        own = {text_of(one.items[0]): self.text_unit(one.items[2]) is not None for one in walk(node, F.Association)}
        own.update((text_of(one.items[0]), text_of(kind.items[0]).startswith("character")) for kind in walk(node, F.Type_Declaration_Stmt) for one in walk(kind, F.Entity_Decl))
        return [unit for unit in (self.unit_of(one, own) for one in walk(node, (F.Open_Stmt, F.Write_Stmt))) if unit is not None]

    @staticmethod
    def stays_within(jump, node):
        """Whether an exit or a cycle leads to within a construct."""
        name, above = (text_of(jump.items[1]) if jump.items[1] is not None else None) if isinstance(jump, (F.Exit_Stmt, F.Cycle_Stmt)) else None, jump.parent
        while isinstance(jump, (F.Exit_Stmt, F.Cycle_Stmt)) and above is not None and above is not node:
            if name_of(above) == name if name else "Do_Construct" in type(above).__name__:
                return True
            above = above.parent
        return False

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
        return self.left_by_name(node, [made])

    def loop(self, node, place):
        head = next(child for child in node.children if isinstance(child, (F.Nonlabel_Do_Stmt, F.Label_Do_Stmt)))
        control = head.items[-1] if isinstance(head.items[-1], F.Loop_Control) else None
        whole = Place(place.file, place.line, place.start, self.line_place(node.children[-1]).end, place.macro)
        inner = [child for child in node.children if child is not head and not isinstance(child, F.End_Do_Stmt)]
        if control is not None and len(control.items) > 3 and control.items[3] is not None:
            return self.concurrent(node, control.items[3], inner, whole)
        made = Stmt("loop", whole, (), form="for")
        if control is not None and control.items[0] is not None:
            made.form, made.expr = "while", self.condition(control.items[0])
        elif control is not None and control.items[1] is not None:
            variable, values = control.items[1]
            self.count_by(made, self.location(variable), values, place)
        ahead = self.ahead(place)
        made.parts = (Stmt("block", whole, tuple(self.inside(node, inner))),)
        return [*ahead, *self.left_by_name(node, [made])]

    def inside(self, node, inner):
        """The statements of a loop."""
        self.loops.append(name_of(node))
        made = self.block(inner)
        self.loops.pop()
        return [*made, *self.target(f"continue {name_of(node)}", node.children[-1])]

    def count_by(self, made, counter, values, place):
        """Makes a loop a counted one. `values`: nodes of its first and last number, and perhaps its step."""
        low, high, *steps = (self.expr(one) for one in values if one is not None)
        step = self.number(values[2], self.scope) if steps else 1
        made.init = Stmt("expr", Place(place.file, place.line, place.start, place.end, True), expr=Expr("assign", (counter, low), "=", counter.type, place))
        made.expr = Expr("binary", (counter, high), "<=" if step is None or step > 0 else ">=", INT, place)
        if step is None:
            made.expr = Expr("cond", (binary(">", steps[0], constant(0, place)), made.expr, Expr("binary", (counter, high), ">=", INT, place)), None, INT, place)
        made.advance = Expr("step", (counter,), (1, True), counter.type, place) if step == 1 else Expr("assign", (counter, steps[0] if step is None else constant(step, place)), "+=", counter.type, place)

    def concurrent(self, node, header, inner, whole):
        """do concurrent: loops in one another, whose counters are their own. Nothing can be inserted in them."""
        hidden = Place(whole.file, whole.line, whole.start, whole.end, True)
        triplets, mask = header.items
        counters = [self.counter(whole) for _ in listed(triplets)]
        loops = []
        for counter, triplet in zip(counters, listed(triplets)):
            loops.append(Stmt("loop", hidden, (), form="for"))
            self.count_by(loops[-1], self.variable(counter, whole), triplet.items[1:], whole)
        loops[0].place = whole
        ahead = self.ahead(whole)
        kept = dict(self.scope.variables)
        self.scope.variables.update({text_of(triplet.items[0]): counter for counter, triplet in zip(counters, listed(triplets))})
        condition = self.condition(mask) if mask is not None else None
        body = Stmt("block", hidden, tuple(self.inside(node, inner)))
        for triplet in listed(triplets):
            name = text_of(triplet.items[0])
            self.scope.variables.pop(name)
            self.scope.variables.update({name: kept[name]} if name in kept else {})
        if condition is not None:
            body = Stmt("block", hidden, (Stmt("if", hidden, (body, None), condition),))
        for loop in reversed(loops):
            loop.parts = (body,)
            body = Stmt("block", hidden, (loop,))
        return [*ahead, loops[0]]

    def case(self, node, place):
        selector, parts = self.expr(node.children[0].items[0]), []
        ahead = self.ahead(place)
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
        choices = [part for part in parts if part[0] is not None]
        for condition, statements, at in reversed(choices):
            made = Stmt("if", place if condition is choices[0][0] else Place(at.file, at.line, at.start, at.end, True), (Stmt("block", at, tuple(statements)), made), condition)
        return [*ahead, *self.left_by_name(node, [made if made is not None else Stmt("empty", place)])]

