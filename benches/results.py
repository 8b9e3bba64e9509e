"""Figures of benchmarks as JSON: one file for each benchmark in docs/results, which `render.py` makes pages of.

A file holds what the benchmark measures (`title`, `about`), what is promised of it (`limits`) and `records`, one for each machine and
source. A record says where, when and by which command its `figures` came about. A new record takes the place of an earlier
one of the same processor that was measured too; transcribed ones stay.

A figure is what was measured (`what`, `size` in bytes where there are several), against what (`against`), in which `unit`, `theirs` and
`ours` (the medians), the `ratio` of ours by theirs (the median of the pairs' ratios, `low` and `high` the least and the greatest of
them) and all `samples`. A ratio without `median` is a span over several lengths or runs.
"""

import datetime
import json
import os
import platform
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIRECTORY = os.path.join(ROOT, "docs", "results")
MEASURED = "measured"

figures = []


def pressure():
    """Per cent of the last ten seconds in which some process waited for a processor; None where the kernel does not tell."""
    try:
        with open("/proc/pressure/cpu", encoding="ascii") as file:
            return float(file.readline().split()[1].removeprefix("avg10="))
    except OSError:
        return None


# Before the benchmarks began: other work on the machine makes times longer.
PRESSURE = pressure()


def rounded(number):
    """Four digits say all that a clock here can tell."""
    return float(f"{number:.4g}")


def median(numbers):
    return rounded(statistics.median(numbers))


def note(what, unit, ours, theirs=None, against=None, size=None, remark=None, ratio=None):
    """Adds a figure. `ours` and `theirs` are samples, in pairs; where they are medians already, `ratio` is the pairs'."""
    figure = {"what": what, "unit": {"us": "µs"}.get(unit, unit), "ours": median(ours)}
    if size is not None:
        figure["size"] = size
    if remark:
        figure["note"] = remark
    figure["samples"] = {"ours": [rounded(number) for number in ours]}
    if theirs is not None:
        figure["against"], figure["theirs"], figure["pairs"] = against, median(theirs), len(theirs)
        figure["samples"]["theirs"] = [rounded(number) for number in theirs]
        ratios = [mine / other for mine, other in zip(ours, theirs) if other]
        if ratio is not None:
            figure["ratio"] = {"median": ratio}
        elif ratios:
            figure["ratio"] = {"median": median(ratios), "low": rounded(min(ratios)), "high": rounded(max(ratios))}
    figures.append(figure)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = dict(line.split(":", 1) for line in file.read().replace("\t", "").splitlines() if ":" in line)
    return {"processor": lines["model name"].strip(), "processors": len(os.sched_getaffinity(0)), "virtual": "hypervisor" in lines["flags"].split(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)}


def commit():
    """What `make build` says that it built from: a commit, with a plus if files differed from it; None if it could not tell."""
    try:
        with open(os.path.join(ROOT, "target", "mend", "built-from"), encoding="ascii") as file:
            return file.read().strip() or None
    except OSError:
        return None


def command(name):
    """As a person types it, of this benchmark alone."""
    script = os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)
    words = [word for word in sys.argv[1:] if word.startswith("-") and word != "--record" or word.isdigit()]
    return " ".join([script, *words, name])


def record(name):
    """What was noted since the last time, as a record."""
    taken = {"machine": machine(), "kernel": platform.release(), "date": datetime.date.today().isoformat(), "pressure": PRESSURE, "commit": commit(),
             "command": command(name), "source": MEASURED, "figures": list(figures)}
    figures.clear()
    return taken


def save(file, taken):
    """Puts a record into the benchmark's file."""
    path = os.path.join(DIRECTORY, f"{file}.json")
    page = {"title": file, "about": "", "limits": [], "records": []}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stored:
            page = json.load(stored)
    same = [old for old in page["records"] if old["source"] == MEASURED and old["machine"] == taken["machine"]]
    page["records"] = [taken, *(old for old in page["records"] if old not in same)]
    with open(path, "w", encoding="utf-8") as stored:
        stored.write(written(page))


def written(page):
    """JSON with one figure a line, so that a changed figure is a changed line."""
    records = [{**taken, "figures": "FIGURES"} for taken in page["records"]]
    text = json.dumps({**page, "records": records}, indent=1, ensure_ascii=False)
    for taken in page["records"]:
        lines = ",\n".join(f"    {json.dumps(figure, ensure_ascii=False)}" for figure in taken["figures"])
        text = text.replace('"FIGURES"', f"[\n{lines}\n   ]", 1)
    return text + "\n"
