"""Directives `shape`: which arrays they are for."""

from .directives import shape_of
from .plan import blocks_of


class Shapes:
    """The part of both rewriters that knows them. `shapes`: name -> its directive, its dimensions; `shaped`: names of arrays that got theirs."""

    def __init__(self, program, memory):
        self.program, self.memory = program, memory
        self.shapes, self.shaped = {}, set()
        for directive in program.directives:
            if directive.kind == "shape":
                name, dimensions = shape_of(directive.text)
                self.shapes[name.lower() if program.language == "fortran" else name] = directive, dimensions

    def _has_shape(self, thing):
        """Whether a directive is for this variable or block: another may have the same name, in another function or as a structure's field."""
        if thing.name not in self.shapes:
            return False
        directive = self.shapes[thing.name][0]
        inside = [one for one in self.program.functions.values() if one.place.file == directive.place.file and one.place.start <= directive.place.start < one.place.end]
        holders = [one for function in inside for one in function.variables if one.name == thing.name]
        holders = holders or [one for one in self.program.globals if one.name == thing.name]
        return not holders or thing in holders or thing in blocks_of(self.memory, holders, {thing.name})

    def warnings(self):
        """Shapes that came to nothing."""
        return [f"{directive.place}: shape({name}) does nothing: no array of this name is registered (--report says what is)" for name, (directive, _) in self.shapes.items() if name not in self.shaped]
