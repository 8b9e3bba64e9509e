#!/usr/bin/env python3
"""Damaged checkpoints: bits flipped, files cut, missing and swapped. A restart falls back or refuses, and never goes wrong.

    damage.py [--times N] [--seed S] [--only K]

A job of two ranks has taken several checkpoints, another job some of its own; such pairs of jobs are plain, encrypted, with a
directory of the node as first tier, or both, which the seed draws. Again and again their files are copied and some are damaged: a few bits, a stretch of zeros, of other bytes or of another file; a file cut, longer, empty, gone, or in another's
place (another rank's, another checkpoint's, another job's). Then `mend restart` without a number must use the newest
checkpoint that is whole (with tiers: of which each image has a whole copy), say which ones it passed over, and end with the right result; if a damaged one was used, then
without harm. Only where none is whole may it refuse, with exit code 65. What is named with --checkpoint is taken or refused.
"""

import argparse
import glob
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
# Whether images are encrypted, and whether there is a tier before the shared directory.
VARIANTS = {"plain": (False, False), "encrypted": (True, False), "in tiers": (False, True), "encrypted in tiers": (True, True)}


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


def number_of(file):
    """The checkpoint of a file that is named from its place on."""
    return int(file.split(os.sep)[0])


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


class Story:
    """A job that has ended, and the places of its checkpoints: the checkpoint directory first."""

    def __init__(self, machine, app, directory, tiers, checkpoints):
        os.makedirs(directory)
        store = os.path.join(directory, "store")
        options = ["--tiers", f"local:{store},shared"] if tiers else []
        if tiers:
            os.mkdir(store)
        job = machine.start(directory, "run", "-n", str(RANKS), *options, app, STEPS, PAUSE, "go")
        self.directory, self.name = directory, machine.running(job)
        for number in range(1, checkpoints + 1):
            machine.verb("checkpoint", self.name)
            # One that comes too soon is not copied.
            job.wait_for(lambda number=number: self.settled(machine, number, 2 if tiers else 0), f"checkpoint {number} is in all tiers")
        self.places = [os.path.dirname(machine.verb("checkpoints", self.name)[0]["directory"])]
        machine.mend("kill", self.name)
        job.finish(137)
        if tiers:
            self.places += glob.glob(os.path.join(store, "mend.*", "*", "*"))
        if len(self.places) != 1 + tiers:
            raise Failed(f"checkpoints are in {self.places}")
        self.needs = {one: needs(self.places[0], one) for one in range(1, checkpoints + 1)}
        self.pristine = [contents(place) for place in self.places]
        self.kept = [shutil.copytree(place, os.path.join(directory, f"good-{at}")) for at, place in enumerate(self.places)]
        self.record = os.path.join(machine.home, "jobs", self.name, "job.json")
        with open(self.record, encoding="utf-8") as file:
            self.recorded = file.read()

    def settled(self, machine, number, tiers):
        return any(one["number"] == number and len(one["tiers"]) >= tiers for one in machine.verb("checkpoints", self.name))

    def files(self):
        return [path for place in self.places for path in files_of(place)]

    def shown(self, path):
        """A file's name for people."""
        at = next(at for at, place in enumerate(self.places) if path.startswith(place + os.sep))
        return ("", "first tier's ")[at] + os.path.relpath(path, self.places[at])

    def broken(self):
        """Numbers of the checkpoints that lack a whole manifest, or a whole copy of an image."""
        now = [contents(place) for place in self.places]
        good = {file for place, pristine in zip(now, self.pristine) for file in pristine
                if file.endswith(".image") and place.get(file) == pristine[file]}
        lost = {file for pristine in self.pristine for file in pristine if file.endswith(".image")} - good
        manifests = {file for file in self.pristine[0] if file.endswith("manifest.json") and now[0].get(file) != self.pristine[0][file]}
        return {number_of(file) for file in lost | manifests}

    def restore(self):
        # A store that others could reach is not used.
        before = os.umask(0o077)
        for place, kept in zip(self.places, self.kept):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(kept, place)
        # A restart from a chosen checkpoint has given up the newer ones.
        with open(self.record, "w", encoding="utf-8") as file:
            file.write(self.recorded)
        os.umask(before)


def check_result(job, expected, what):
    """Each rank printed the end of what it prints undisturbed, up to the last line."""
    lines = job.stdout().splitlines()
    if lines.count(expected[-1]) != RANKS or not set(lines) <= set(expected):
        raise Failed(f"{what}: it printed {lines[-4:]} instead of {expected[-1]!r}")


def one_damage(what, draw, machine, story, foreign, expected, work):
    done = []
    files = story.files()
    for path in draw.sample(files, draw.choice([1, 1, 2, 3, 5])):
        kind = draw.choice(list(KINDS))
        if not os.path.exists(path) or not os.path.getsize(path):
            continue
        if kind == "swap":
            swap(path, draw, [other for other in story.files() + foreign.files() if os.path.getsize(other)])
        else:
            KINDS[kind](path, draw)
        done.append(f"{kind} {story.shown(path)}")
    what = f"{what} ({', '.join(done)})"
    broken, chains = story.broken(), story.needs
    whole = [one for one in chains if not chains[one] & broken]
    named = draw.random() < 0.2
    number_asked = draw.choice(sorted(chains)) if named else None
    directory = tempfile.mkdtemp(dir=work)
    open(os.path.join(story.directory, "go"), "w", encoding="utf-8").close()
    job = machine.start(directory, "restart", story.name, "--repeat-output", *(["--checkpoint", str(number_asked)] if named else []))
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only the damage of this number")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="mend-damage-")
    app = compile_plain("count.c", os.path.join(work, "count"))
    expected = subprocess.run([app, STEPS, "0"], capture_output=True, text=True, check=True).stdout.splitlines()
    key = os.path.join(work, "key")
    with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write("5eed" * 16)
    tally, pairs = Tally(), {}
    with Machine() as machine:
        def pair(variant):
            """A job and another one of its kind, with the environment for their verbs."""
            encrypted, tiers = VARIANTS[variant]
            machine.environment.pop("MEND_ENCRYPTION_KEY", None)
            if encrypted:
                machine.environment["MEND_ENCRYPTION_KEY"] = key
            if variant not in pairs:
                directory = os.path.join(work, variant.replace(" ", "-"))
                pairs[variant] = [Story(machine, app, os.path.join(directory, name), tiers, count)
                                  for name, count in (("job", CHECKPOINTS), ("other", 1))]
            return pairs[variant]

        def case(number):
            draw = random.Random(f"{arguments.seed}/{number}")
            variant = draw.choice(list(VARIANTS))
            stories = pair(variant)
            try:
                return one_damage(f"seed {arguments.seed} damage {number}, {variant}", draw, machine, *stories, expected, work)
            finally:
                for story in stories:
                    story.restore()

        numbers = range(arguments.times) if arguments.only is None else [arguments.only]
        tally.run(lambda number=number: case(number) for number in numbers)
    return tally.end(work)


if __name__ == "__main__":
    sys.exit(main())
