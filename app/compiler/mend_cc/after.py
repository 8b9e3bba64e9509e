"""Which arrays may be read after a place before they are written: the statements after it, out to main, one way after the other."""

from .ir import parent_map
from .sections import Walk


def exposed_after(flow, function, stmt, changed):
    """Locations of arrays, or None where the function jumps: then it isn't told. `changed`: what may change between two passes of the place."""
    program, memory = flow.program, flow.memory
    chain = flow.chain(function)
    names = [caller for caller, _, _ in chain] + [function]
    if any(flow.graphs[name].jumps for name in names):
        return None
    walk = Walk(program, memory)
    first = [True]
    always = []

    def restart():
        if first[0]:
            always.extend(walk.lasting)
            first[0] = False
        walk.lasting = list(always)
        walk.restart(changed)

    def outwards(body, start, itself):
        above = parent_map(body)
        here = start
        if itself:
            walk.stmt(here)
        while here is not body:
            parent = above[here]
            if parent.kind == "block":
                at = parent.parts.index(here)
                for later in parent.parts[at + 1:]:
                    walk.stmt(later)
            elif parent.kind == "loop":
                restart()
                for expr in (parent.advance, parent.expr):
                    if expr is not None:
                        walk.expr(expr)
                walk.stmt(parent.parts[0])
                if parent.advance is not None:
                    walk.expr(parent.advance)
                if parent.expr is not None:
                    walk.expr(parent.expr)
                restart()
            here = parent

    outwards(program.functions[function].body, stmt, True)
    for caller, node, number in reversed(chain):
        restart()
        for access in flow.steps(node)[number + 1:]:
            if access.kind == "read":
                walk.read(access.expr, access.places)
        outwards(program.functions[caller].body, node.stmt, False)
    return walk.exposed
