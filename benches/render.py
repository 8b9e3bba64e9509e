#!/usr/bin/env python3
"""Makes pages of the figures in docs/results/*.json: tables (docs/results/*.md), plots (*.svg) and the list of all (README.md).

    render.py            writes the pages
    render.py --check    exit code 1, with the names, if they are not what the figures say

The plots are written by hand, a few shapes each: no library is needed, and the same figures give the same bytes everywhere.
"""

import json
import math
import os
import sys
from html import escape

from results import DIRECTORY, MEASURED

# The pages, and whose figures are on each: files whose name begins so.
PAGES = {
    "one-node": "Messages on one node",
    "network": "Messages between nodes",
    "images": "Drains, migrations, encryption",
    "migration": "Moves of ranks",
    "moving-cost": "What moves cost besides",
    "placement": "Ranks that move to their data",
    "pipe": "Streams through the pipe",
    "copies": "Second copies of job input",
    "data": "Data spaces beside other ways to a job's data",
    "healing": "Jobs that go on by themselves",
    "checkpoints": "Checkpoints",
    "tracking": "Incremental images",
    "restart": "Restarts",
    "tiers": "Restarts from the nodes' memory",
    "rivals": "Beside other checkpointers",
    "app": "Portable checkpoints",
}
# Longer texts are remarks below the table.
CELL = 120
# Per cent of time in which processes waited for a processor before a benchmark began, from which on its figures are said to be disturbed.
BUSY = 5
COLOURS = ("#1f6feb", "#c2410c", "#15803d", "#7e22ce", "#b45309", "#0e7490", "#be123c", "#4d7c0f", "#475569", "#a16207")


def number(value):
    """Four digits, or two ends of a span."""
    if value is None:
        return ""
    if isinstance(value, list):
        return f"{number(value[0])} to {number(value[1])}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ratio(figure):
    """The median and what it spans; or the span alone."""
    told = figure.get("ratio")
    if not told:
        return ""
    span = f"{number(told['low'])} to {number(told['high'])}" if "low" in told else ""
    if "median" not in told:
        return span
    return number(told["median"]) + (f" ({span})" if span and told["low"] != told["high"] else "")


def limit_of(figure, limits):
    """The limit that a figure is held against, or None."""
    for limit in limits:
        if limit.get("what", "") not in figure["what"] or limit.get("against", figure.get("against")) != figure.get("against"):
            continue
        if "ours_at_most" in limit or "ratio" in figure:
            return limit
    return None


def ends(value):
    return value if isinstance(value, list) else [value, value]


def verdict(figure, limits):
    """"met", "missed", "in part" (of a span), or nothing where there is no limit."""
    limit = limit_of(figure, limits)
    if limit is None:
        return ""
    if "ours_at_most" in limit:
        low, high = ends(figure["ours"])
        bound = limit["ours_at_most"]
    else:
        told = figure["ratio"]
        low, high = (told["median"],) * 2 if "median" in told else (told["low"], told["high"])
        bound = limit.get("ratio_at_most")
        if bound is None:
            low, high, bound = -high, -low, -limit["ratio_at_least"]
    return "met" if high <= bound else "missed" if low > bound else "in part"


def limit_text(limit):
    what = f"{limit['what']}: " if "what" in limit else ""
    if "ours_at_most" in limit:
        return f"{what}at most {limit['ours_at_most']:g} {limit['unit']}"
    side, bound = ("at most", limit["ratio_at_most"]) if "ratio_at_most" in limit else ("at least", limit["ratio_at_least"])
    return f"{what}{side} {bound} x {limit['against']}" if "against" in limit else f"{what}{side} {bound} x"


def size_text(size):
    for unit, power in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << power and size % (1 << power) == 0:
            return f"{size >> power} {unit}"
    return f"{size} B"


def name_of(figure):
    return figure["what"] + (f", {size_text(figure['size'])}" if "size" in figure else "")


def place_of(record):
    machine = record["machine"]
    memory = f", {machine['memory_gib']} GiB" if "memory_gib" in machine else ""
    return f"{machine['processor']}, {machine['processors']} processors{' of a virtual machine' if machine['virtual'] else ''}{memory}"


def origin_of(record):
    """Where, when and how a record came about, as a sentence."""
    words = [f"Linux {record['kernel']}", record["date"]]
    if record.get("conditions"):
        words.append(record["conditions"])
    if (record.get("pressure") or 0) >= BUSY:
        words.append(f"disturbed: in {record['pressure']:.0f} % of the ten seconds before, some process waited for a processor")
    words += [f"built from commit `{record['commit']}`"] if record["commit"] else []
    words += [record["source"]] if record["source"] != MEASURED else []
    return f"{'; '.join(words)}. Command: `{record['command']}`."


def table(record, limits):
    """The lines of a record's table, and the remarks that are too long for it."""
    figures = record["figures"]
    columns = [("what", name_of), ("against", lambda f: f.get("against", "")), ("theirs", lambda f: told(f, "theirs")), ("Mend", lambda f: told(f, "ours")),
               ("ratio", ratio), ("pairs", lambda f: str(f.get("pairs", ""))), ("limit", lambda f: verdict(f, limits)), ("remark", lambda f: f.get("note", ""))]
    rows = [[read(figure) for _, read in columns] for figure in figures]
    remarks = list(record.get("remarks", []))
    for row in rows:
        if len(row[-1]) > CELL:
            remarks.append(f"{row[0]}: {row[-1]}.")
            row[-1] = "see below"
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    lines = ["| " + " | ".join(columns[at][0] for at in used) + " |", "|" + " --- |" * len(used)]
    lines += ["| " + " | ".join(row[at].replace("|", "\\|") for at in used) + " |" for row in rows]
    return lines, remarks


def told(figure, side):
    value = figure.get(side)
    unit = figure.get("unit", "")
    return f"{number(value)} {unit}".strip() if value is not None else ""


def summary(page):
    """One word on a benchmark: what its records together say of its limits."""
    words = [verdict(figure, page["limits"]) for record in page["records"] for figure in record["figures"]]
    counted = {word: words.count(word) for word in ("met", "in part", "missed") if word in words}
    return ", ".join(f"{count} {word}" for word, count in counted.items()) or "no limit"


# Plots.


def plot(page):
    """An SVG of a benchmark's ratios, a panel for each record that has at least two; None if no record has."""
    panels, top, width = [], 10, 760
    for record in page["records"]:
        drawn = curves(record, page["limits"], top, width) or dots(record, page["limits"], top, width)
        if drawn:
            panels += drawn[0]
            top = drawn[1] + 14
    if not panels:
        return None
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}" '
                      'font-family="sans-serif" font-size="11">', f"<title>{escape(page['title'])}: Mend's figure by the other's</title>",
                      f'<rect width="{width}" height="{top}" fill="white"/>', *panels, "</svg>", ""])


def spans(figure):
    """Middle, low and high of a figure's ratio."""
    told = figure["ratio"]
    low, high = told.get("low", told.get("median")), told.get("high", told.get("median"))
    return told.get("median", math.sqrt(low * high)), low, high


def axis(values, left, right):
    """A logarithmic axis over the values and 1: where a value lies, and its ticks."""
    low, high = min(0.5, *values), max(2, *values)
    scale = (right - left) / (math.log(high) - math.log(low))
    ticks = [tick for power in range(-4, 5) for tick in (10.0 ** power, 2 * 10.0 ** power, 5 * 10.0 ** power) if low <= tick <= high]
    if len(ticks) > 9:
        ticks = [tick for tick in ticks if f"{tick:g}".strip("0.").startswith("1")]
    return lambda value: left + (math.log(value) - math.log(low)) * scale, ticks


def text(x, y, words, anchor="start", colour="#333", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(words)}</text>'


def line(x1, y1, x2, y2, colour, width=1, more=""):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{more}/>'


def heading(record, top):
    return text(10, top + 12, f"{record['machine']['processor']}, {record['date']}", more=' font-weight="bold"')


def bounds(figures, limits):
    """The ratios that are promised of these figures."""
    chosen = [limit_of(figure, limits) or {} for figure in figures]
    return sorted({limit.get("ratio_at_most", limit.get("ratio_at_least")) for limit in chosen} - {None})


def dots(record, limits, top, width):
    """A row for each figure: its span, and its middle."""
    figures = [figure for figure in record["figures"] if figure.get("ratio") and min(spans(figure)) > 0]
    if not 2 <= len(figures) <= 60:
        return None
    left, right, height = 390, width - 20, 15
    where, ticks = axis([value for figure in figures for value in spans(figure)], left, right)
    bottom = top + 24 + height * len(figures)
    shapes = [heading(record, top)]
    for tick in ticks:
        shapes += [line(where(tick), top + 20, where(tick), bottom, "#999" if tick == 1 else "#e5e5e5"), text(where(tick), bottom + 12, f"{tick:g}", "middle")]
    shapes += [line(where(bound), top + 20, where(bound), bottom, "#c00", 1, ' stroke-dasharray="3 3"') for bound in bounds(figures, limits) if ticks[0] <= bound <= ticks[-1]]
    for at, figure in enumerate(figures):
        y = top + 24 + height * (at + 0.5)
        middle, low, high = spans(figure)
        colour = {"missed": "#c2410c", "in part": "#b45309"}.get(verdict(figure, limits), "#1f6feb")
        label = f"{name_of(figure)} / {figure.get('against', '')}"
        shapes.append(text(left - 8, y + 4, label if len(label) < 68 else f"{label[:66]}…", "end"))
        shapes.append(line(where(low), y, where(high), y, colour, 3))
        shapes.append(f'<circle cx="{where(middle):.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    return shapes, bottom + 16


def curves(record, limits, top, width):
    """A line for each thing that was measured at several sizes."""
    series = {}
    for figure in record["figures"]:
        if figure.get("ratio") and figure.get("size") is not None:
            series.setdefault((figure["what"], figure["against"]), []).append(figure)
    series = {name: sorted(figures, key=lambda one: one["size"]) for name, figures in series.items() if len(figures) >= 3}
    if not series:
        return None
    drawn = [figure for figures in series.values() for figure in figures]
    left, right, low = 50, 470, top + 24
    bottom = low + max(200, 14 * len(series))
    down, ticks = axis([spans(figure)[0] for figure in drawn], bottom, low)
    sizes = sorted({figure["size"] for figure in drawn})
    step = (right - left) / max(1, len(sizes) - 1)
    shapes = [heading(record, top)]
    for tick in ticks:
        shapes += [line(left, down(tick), right, down(tick), "#999" if tick == 1 else "#e5e5e5"), text(left - 6, down(tick) + 4, f"{tick:g}", "end")]
    shapes += [line(left, down(bound), right, down(bound), "#c00", 1, ' stroke-dasharray="3 3"') for bound in bounds(drawn, limits) if ticks[0] <= bound <= ticks[-1]]
    every = max(1, len(sizes) // 8)
    shapes += [text(left + at * step, bottom + 14, size_text(size), "middle") for at, size in enumerate(sizes) if at % every == 0]
    for at, ((what, against), figures) in enumerate(series.items()):
        colour = COLOURS[at % len(COLOURS)]
        points = " ".join(f"{left + sizes.index(figure['size']) * step:.1f},{down(spans(figure)[0]):.1f}" for figure in figures)
        dashes = f' stroke-dasharray="{3 + at // len(COLOURS)} 2"' if at >= len(COLOURS) else ""
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>')
        shapes.append(line(right + 14, low + 14 * at + 4, right + 30, low + 14 * at + 4, colour, 2, dashes))
        shapes.append(text(right + 36, low + 14 * at + 8, f"{what} / {against}"))
    return shapes, bottom + 20


# Pages.

HEAD = "<!-- Written by benches/render.py from the figures beside it: change those. -->\n"
EXPLAINED = """A figure is the median of its runs, and `ratio` is Mend's by the other's: the median of the pairs' ratios, with the least and the greatest in
brackets. A ratio without brackets that spans (`0.8 to 1.1`) is that of several lengths or runs. `limit` says whether the figure keeps to what
[SPECIFICATION.md](../../SPECIFICATION.md) promises; `in part` is a span of which some does."""


def section(name, page):
    lines = [f"## {page['title']}", "", page["about"], ""]
    if page["limits"]:
        lines += ["Promised: " + "; ".join(map(limit_text, page["limits"])) + ".", ""]
    if plot(page):
        lines += [f"![Mend's figure by the other's]({name}.svg)", ""]
    for record in page["records"]:
        rows, remarks = table(record, page["limits"])
        lines += [f"**{place_of(record)}.** {origin_of(record)}", "", *rows, ""]
        lines += [*(f"- {remark}" for remark in remarks), *([""] if remarks else [])]
    return lines


def pages(files):
    """{name: text} of all that the figures are rendered to; `files` is {name of a JSON file without its end: what is in it}."""
    rendered, index = {}, []
    for start, title in PAGES.items():
        chosen = {name: page for name, page in files.items() if name == start or name.startswith(f"{start}-")}
        if not chosen:
            continue
        lines = [HEAD, f"# {title}", "", EXPLAINED, ""]
        for name, page in chosen.items():
            lines += section(name, page)
            if drawing := plot(page):
                rendered[f"{name}.svg"] = drawing
            newest = page["records"][0]
            origin = "measured" if newest["source"] == MEASURED else "transcribed"
            anchor = "".join(c for c in page["title"].lower().replace(" ", "-") if c.isalnum() or c == "-")
            index.append(f"| [{page['title']}]({start}.md#{anchor}) | {'; '.join(map(limit_text, page['limits'])) or 'none'} | {summary(page)} | {newest['date']}, {origin} |")
        rendered[f"{start}.md"] = "\n".join(lines).rstrip("\n") + "\n"
    lines = [HEAD, "# Results", "", "What benchmarks measured, with machine and date. `make bench` measures anew and writes the figures (JSON) into this directory;",
             "`benches/render.py` makes the pages. Figures that an earlier specification told are transcribed, and say so.", "", EXPLAINED, "",
             "| benchmark | promised | figures | newest |", "| --- | --- | --- | --- |", *index]
    rendered["README.md"] = "\n".join(lines) + "\n"
    return rendered


def load():
    files = {}
    for name in sorted(os.listdir(DIRECTORY)):
        if name.endswith(".json"):
            with open(os.path.join(DIRECTORY, name), encoding="utf-8") as file:
                files[name.removesuffix(".json")] = json.load(file)
    return files


def differing(rendered):
    """Names of pages that are missing, old, or that no figures belong to."""
    there = {name for name in os.listdir(DIRECTORY) if name.endswith((".md", ".svg"))}
    wrong = there ^ set(rendered)
    for name in there & set(rendered):
        with open(os.path.join(DIRECTORY, name), encoding="utf-8") as file:
            if file.read() != rendered[name]:
                wrong.add(name)
    return sorted(wrong)


def main():
    rendered = pages(load())
    wrong = differing(rendered)
    if "--check" in sys.argv[1:]:
        print("\n".join(wrong), end="\n" if wrong else "")
        return 1 if wrong else 0
    for name in wrong:
        path = os.path.join(DIRECTORY, name)
        if name not in rendered:
            os.remove(path)
            continue
        with open(path, "w", encoding="utf-8") as file:
            file.write(rendered[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
