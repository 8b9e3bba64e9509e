"""From sources to a plan."""

from dataclasses import dataclass

from . import directives, parse_c
from .liveness import Flow
from .lockstep import Lockstep, graphs_of
from .memory import Memory
from .plan import Planner


@dataclass
class Analysis:
    """All that is known of a program."""

    program: object
    memory: object
    flow: object
    lockstep: object
    plan: object


def is_fortran(path):
    """By the end of its name."""
    return path.lower().endswith((".f90", ".f95", ".f03", ".f08"))


def analyse(sources, drop=()):
    """Sources as (path, flags: for clang, or in Fortran those of the compilation)."""
    paths = [path for path, _ in sources]
    if all(is_fortran(path) for path in paths):
        from . import parse_fortran

        program = parse_fortran.parse(sources)
    else:
        program = parse_c.parse(sources)
    return analyse_program(program, drop)


def analyse_program(program, drop=()):
    """The same of what a front end has read."""
    memory = Memory(program)
    directives.check(program, memory)
    graphs = graphs_of(program)
    lockstep = Lockstep(program, memory, graphs)
    lockstep.run()
    flow = Flow(program, memory, graphs)
    plan = Planner(program, memory, flow, lockstep, drop).make()
    return Analysis(program, memory, flow, lockstep, plan)
