"""What directives name: it must be there."""

import re

from .memory import Heap
from .parse_c import BadDirective


def excluded_names(text):
    """Names of `exclude(NAME, ...)`, or None: it isn't of that form."""
    match = re.match(r"\(\s*(\w+(?:\s*,\s*\w+)*)\s*\)", text)
    return re.split(r"\s*,\s*", match.group(1)) if match else None


def split_at_commas(text):
    """Its parts, where commas within parentheses don't count."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return [*parts, current.strip()]


def shape_of(text):
    """(name, dimensions) of `shape(name) dimension, dimension`."""
    match = re.match(r"\(\s*(\w+)\s*\)\s*(.+)$", text)
    return (match.group(1), split_at_commas(match.group(2))) if match else None


def check(program, memory):
    """BadDirective: one that names nothing of the program would do nothing, without a word."""
    there = {variable.name for variable in program.globals} | {thing.name for thing in memory.sites if isinstance(thing, Heap)}
    there |= {variable.name for function in program.functions.values() for variable in function.variables}
    for directive in program.directives:
        named = []
        if directive.kind == "exclude":
            named = excluded_names(directive.text)
            if named is None:
                raise BadDirective(f"{directive.place}: `exclude(NAME, ...)` is expected")
        elif directive.kind == "shape":
            parsed = shape_of(directive.text)
            if parsed is None:
                raise BadDirective(f"{directive.place}: `shape(NAME) DIMENSION, ...` is expected")
            named = [parsed[0]]
        for name in named:
            if (name.lower() if program.language == "fortran" else name) not in there:
                raise BadDirective(f"{directive.place}: the program has no variable {name}: put the directive `{directive.kind}` right, or take it away")
