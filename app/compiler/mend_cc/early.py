"""What runs before MPI_Init has returned: the runtime isn't there yet, so what is opened then isn't known to it."""

STARTS = {"MPI_Init", "MPI_Init_thread"}


def before_init(flow):
    """Calls, as expressions, that a run may come to before that: a start can still follow them."""
    found, seen, left = set(), set(), [("main", False)]
    while left:
        name, later = left.pop()
        if (name, later) in seen or name not in flow.graphs:
            continue
        seen.add((name, later))
        graph = flow.graphs[name]
        starting = {node for node in graph.nodes if node.expr is not None and flow.called([node]) & STARTS}
        nodes = graph.reached([graph.entry], starting)
        for node in nodes | {one for node in nodes for one in node.succ if one in starting}:
            calls = [part for part in node.expr.walk() if part.op == "call"] if node.expr is not None else []
            # `later`: one may follow in what has called the function.
            follows = later or bool(calls and starting & graph.reached(node.succ))
            if follows or node in starting:
                found.update(calls)
                left.extend((callee, follows) for call in calls for callee in flow.memory.callees(call) if callee)
    return found
