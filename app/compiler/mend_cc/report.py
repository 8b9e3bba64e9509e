"""What was found, what is registered and why, what couldn't be seen: for people."""

import os

from . import names, overwritten
from .ir import Variable, named


def _where(place):
    return f"{os.path.relpath(place.file)}:{place.line}" if place is not None else "the program"


def size_text(kind):
    """Bytes of a location, or what decides them."""
    return f"{kind.size} bytes" if kind is not None and kind.size else "as large as allocated"


def report(program, memory, plan, lockstep):
    """The whole report, as text."""
    lines = []
    lines.append(f"Sources: {', '.join(os.path.relpath(path) for path in program.files)}")
    safe = sum(1 for point in lockstep.points.values() if point.seen and not point.why)
    lines.append(f"Places: {len(lockstep.points)} statements are reached, {safe} of them with no message in transit (numbers of ranks tried: {', '.join(map(str, lockstep.tried))}).")
    lines.append("")
    lines.append("Loops that cost most:")
    for stmt, share, came in plan.considered:
        lines.append(f"  {_where(stmt.place)}: {share:.0%} of the cost: {came}")
    if not plan.considered:
        lines.append("  none was looked for: directives decide" if any(one.kind == "checkpoint" for one in program.directives) else "  none costs enough")
    for point in plan.points:
        called = names.item_names(point)
        lines += ["", f"Safe point {point.number}: {_where(point.stmt.place)}, in {names.path(program, point)}", "  Registered:"]
        for item in point.items:
            thing = item.place[0]
            where = thing.place if isinstance(thing, Variable) else thing.expr.place
            kind = memory.type_at(item.place) if isinstance(thing, Variable) else None
            whose = "replicated" if item.place in point.replicated else "each rank's own"
            some = sorted(".".join(named(path)) for path in item.fields if path)
            size = f"of its {size_text(kind)} the fields {', '.join(some)}" if some and () not in item.fields else size_text(kind)
            lines.append(f"    {called[item]} ({_where(where)}; {size}; {whose}): {item.why}")
        if not point.items:
            lines.append("    nothing")
        for one in overwritten.overwritten(program, memory, point):
            lines.append(f"    of what {overwritten.name(one.pointer)} leads to only what isn't overwritten before it is read{', nor made again' if one.remade else ''}")
        kept = sorted({planned for planned in (f"{place[0].name}{''.join('.' + part for part in named(place[1]))}" for place in point.kept if isinstance(place[0], Variable))})
        if kept:
            lines.append(f"  Needed, but made again when the program runs again: {', '.join(kept)}")
        lines += [f"  Warning: {warning}" for warning in point.warnings]
    skipped = [f"  {_where(stmt.place)} (safe points {', '.join(map(str, numbers))})" for stmt, numbers in plan.skips.items()]
    if skipped:
        lines += ["", "Left out in a restart:", *skipped]
    if plan.refused:
        lines += ["", "Refused:", *(f"  {_where(place)}: {why}" for place, why in plan.refused)]
    if program.unseen:
        lines += ["", "Couldn't be seen through:", *(f"  {_where(place)}: {why}" for place, why in program.unseen)]
    return "\n".join(lines) + "\n"
