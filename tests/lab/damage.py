#!/usr/bin/env python3
"""Damaged checkpoints: bits flipped, files cut, missing and swapped. A restart falls back or refuses, and never goes wrong.

    damage.py [--times N] [--seed S] [--only K]

A job of two ranks has taken several checkpoints, another job some of its own. Again and again their files are copied and some
are damaged: a few bits, a stretch of zeros, of other bytes or of another file; a file cut, longer, empty, gone, or in another's
place (another rank's, another checkpoint's, another job's). Then `mend restart` without a number must use the newest
checkpoint that is whole, say which ones it passed over, and end with the right result; if a damaged one was used, then
without harm. Only where none is whole may it refuse, with exit code 65. What is named with --checkpoint is taken or refused.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
from cluster import Failed, Machine, Tally, compile_plain  # noqa: E402

STEPS, PAUSE, RANKS = "600", "400", 2
CHECKPOINTS = 4


def files_of(directory):
    return sorted(os.path.join(base, name) for base, _, names in os.walk(directory) for name in names)


def flip(path, draw):
    with open(path, "r+b") as file:
        for _ in range(draw.choice([1, 1, 1, 3, 40])):
            at = draw.randrange(os.path.getsize(path))
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << draw.randrange(8))]))


def overwrite(path, draw):
    """A stretch of zeros, of noise, or of the file itself from elsewhere: what a lost or misdirected write leaves."""
    size = os.path.getsize(path)
    length = min(size, draw.choice([1, 8, 512, 4096, 65536]))
    with open(path, "r+b") as file:
        source = draw.choice(["zeros", "noise", "elsewhere"])
        if source == "elsewhere":
            file.seek(draw.randrange(size - length + 1) // 512 * 512)
            content = file.read(length)
        else:
            content = bytes(length) if source == "zeros" else draw.randbytes(length)
        file.seek(draw.randrange(size - length + 1) // 512 * 512)
        file.write(content[: max(0, size - file.tell())])


def cut(path, draw):
    size = os.path.getsize(path)
    os.truncate(path, draw.choice([0, 1, 100, size // 2, size - 1, draw.randrange(size)]))


def lengthen(path, draw):
    with open(path, "ab") as file:
        file.write(draw.choice([b"\0", b"\0" * 4096, draw.randbytes(8)]))


def remove(path, _):
    os.remove(path)


def swap(path, draw, others):
    """Another file of the same kind in its place, or the two exchanged."""
    kind = path.rsplit(".", 1)[1]
    other = draw.choice([other for other in others if other.endswith(kind) and other != path])
    if draw.random() < 0.5:
        shutil.copyfile(other, path)
    else:
        os.rename(path, path + ".aside")
        shutil.copyfile(other, path)
        shutil.copyfile(path + ".aside", other)
        os.remove(path + ".aside")


KINDS = {"flip": flip, "overwrite": overwrite, "cut": cut, "lengthen": lengthen, "remove": remove, "swap": swap}


def take(machine, app, directory, checkpoints, go="go"):
    """A job's checkpoints, and its name."""
    os.makedirs(directory)
    job = machine.start(directory, "run", "-n", str(RANKS), app, STEPS, PAUSE, go)
    name = machine.running(job)
    for _ in range(checkpoints):
        machine.verb("checkpoint", name)
    place = os.path.dirname(machine.verb("checkpoints", name)[0]["directory"])
    machine.mend("kill", name)
    job.finish(137)
    return name, place


def number_of(path, place):
    return int(os.path.relpath(path, place).split(os.sep)[0])


def needs(place, number):
    """Numbers of a checkpoint and of all it builds on."""
    with open(os.path.join(place, str(number), "manifest.json"), encoding="utf-8") as file:
        bases = {image["base"] for image in json.load(file)["manifest"]["images"]} - {None}
    return {number}.union(*(needs(place, base) for base in bases))


def contents(place):
    found = {}
    for path in files_of(place):
        with open(path, "rb") as file:
            found[os.path.relpath(path, place)] = file.read()
    return found


def check_result(job, expected, what):
    """Each rank printed the end of what it prints undisturbed, up to the last line."""
    lines = job.stdout().splitlines()
    if lines.count(expected[-1]) != RANKS or not set(lines) <= set(expected):
        raise Failed(f"{what}: it printed {lines[-4:]} instead of {expected[-1]!r}")


def one_damage(number, seed, machine, stories, pristine, expected, work):
    draw = random.Random(f"{seed}/{number}")
    (name, place), (_, foreign) = stories
    done = []
    files = files_of(place)
    for path in draw.sample(files, draw.choice([1, 1, 2, 3, 5])):
        kind = draw.choice(list(KINDS))
        if not os.path.exists(path) or not os.path.getsize(path):
            continue
        if kind == "swap":
            swap(path, draw, [other for other in files_of(place) + files_of(foreign) if os.path.getsize(other)])
        else:
            KINDS[kind](path, draw)
        done.append(f"{kind} {os.path.relpath(path, place)}")
    what = f"seed {seed} damage {number} ({', '.join(done)})"
    now = contents(place)
    changed = {number_of(os.path.join(place, file), place) for file in pristine if now.get(file) != pristine[file]}
    chains = stories[0].needs
    whole = [one for one in chains if not chains[one] & changed]
    named = draw.random() < 0.2
    number_asked = draw.choice(sorted(chains)) if named else None
    directory = tempfile.mkdtemp(dir=work)
    open(os.path.join(stories[0].directory, "go"), "w", encoding="utf-8").close()
    job = machine.start(directory, "restart", name, "--repeat-output", *(["--checkpoint", str(number_asked)] if named else []))
    code = job.finish(None)
    said = job.stderr()
    if "panicked" in said:
        raise Failed(f"{what}: {said}")
    if code not in (0, 65):
        raise Failed(f"{what}: exit code {code}: {said}")
    if code == 65:
        if named and number_asked in whole or not named and whole:
            raise Failed(f"{what}: refused, though {whole} are whole: {said}")
        shutil.rmtree(directory, ignore_errors=True)
        return f"{what}: refused" + (f" ({number_asked} was asked for)" if named else "")
    check_result(job, expected, what)
    used = int(re.findall(r"^mend: restarting \S+ from checkpoint (\d+)", said, re.MULTILINE)[-1])
    if named and used != number_asked or not named and whole and used < max(whole):
        raise Failed(f"{what}: restarted from {used}, whole are {whole}: {said}")
    for passed in range(used + 1, CHECKPOINTS + 1):
        if not named and f"checkpoint {passed} cannot be used: " not in said:
            raise Failed(f"{what}: restarted from {used}, and not a word of {passed}: {said}")
    shutil.rmtree(directory, ignore_errors=True)
    return f"{what}: restarted from {used}, result equal"


class Story(tuple):
    """A job's name and the place of its checkpoints."""

    def __new__(cls, machine, app, directory, checkpoints):
        story = super().__new__(cls, take(machine, app, directory, checkpoints))
        story.directory = directory
        story.needs = {one: needs(story[1], one) for one in range(1, checkpoints + 1)}
        return story


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only the damage of this number")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-damage-")
    app = compile_plain("count.c", os.path.join(work, "count"))
    expected = subprocess.run([app, STEPS, "0"], capture_output=True, text=True, check=True).stdout.splitlines()
    tally = Tally()
    with Machine() as machine:
        stories = [Story(machine, app, os.path.join(work, name), count) for name, count in (("job", CHECKPOINTS), ("other", 1))]
        good = [shutil.copytree(place, os.path.join(work, f"good-{at}")) for at, (_, place) in enumerate(stories)]
        pristine = contents(stories[0][1])

        def case(number):
            try:
                return one_damage(number, arguments.seed, machine, stories, pristine, expected, work)
            finally:
                for (_, place), kept in zip(stories, good):
                    shutil.rmtree(place)
                    shutil.copytree(kept, place)

        numbers = range(arguments.times) if arguments.only is None else [arguments.only]
        tally.run(lambda number=number: case(number) for number in numbers)
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
