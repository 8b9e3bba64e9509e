"""Which arrays may be read after a place before they are written: the statements after it, out to main, one way after the other."""

from .ir import parent_map
from .sections import Walk


def jumps_ahead(body):
    """Whether each jump leads out of statements, to one that comes after them, as `exit` and `cycle` with names do."""
    above = parent_map(body)
    labels = [stmt for stmt in body.walk() if stmt.kind == "label"]
    for jump in (stmt for stmt in body.walk() if stmt.kind == "goto"):
        targets = [one for one in labels if one.label == jump.label]
        block = above.get(targets[0]) if len(targets) == 1 else None
        here = jump
        while here is not None and above.get(here) is not block:
            here = above.get(here)
        if block is None or block.kind != "block" or here is None or block.parts.index(here) >= block.parts.index(targets[0]):
            return False
    return True


def walk_after(flow, function, stmt, changed):
    """The walk, which knows locations of arrays; or None where the function jumps back, or into something: then it isn't told. `changed`: what may change between two passes of the place."""
    program, memory = flow.program, flow.memory
    chain = flow.chain(function)
    names = [caller for caller, _, _ in chain] + [function]
    if any(flow.graphs[name].jumps and not jumps_ahead(program.functions[name].body) for name in names):
        return None
    walk = Walk(program, memory)
    first = [True]
    always = []

    def restart():
        if first[0]:
            always.extend(walk.lasting)
            walk.straight = list(walk.lasting), list(walk.reads)
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
    return walk
