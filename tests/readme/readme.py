#!/usr/bin/env python3
"""Executes the README: every command of its ```console blocks, in order, in one shell, as a reader would type them.

    readme.py [FILE]

A line that begins with "$ " is a command (lines that begin with "> " go on with it); the lines below it are output it
must print, in that order, among others. "…" stands for anything within a line, a line "…" for nothing in particular. A
command must end with 0, unless "# exit code N" ends its line. Other blocks (```sh) are for reading only.

What a reader does by waiting and looking, a comment before a block does here:
    <!-- readme: until COMMAND -->     repeats COMMAND until it succeeds, 60 s at most

The shell starts in an empty directory in which the checkout's files appear (as links), with a home of its own. The last
line is "N passed, N failed": each command is one test, the first failure is the last.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE = 180
UNTIL = "for _ in $(seq 600); do {{ {}; }} >/dev/null 2>&1 && break; sleep 0.1; done; {}"
# Reads commands from file 3, each ended by NUL, so that none of them can read the next as its standard input.
LOOP = "shopt -s expand_aliases; while IFS= read -r -d '' -u 3 command; do eval \"$command\"; printf '\\n\\036%d\\n' $?; done"


@dataclass
class Command:
    """One command, the line it stands on, and what it must say."""

    line: int
    text: str
    code: int = 0
    output: list = field(default_factory=list)


def parse(text):
    """The commands of a Markdown text, in order."""
    commands, block, current = [], None, None
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            block = line[3:].strip() if block is None else None
            current = None
        elif block is None and (match := re.match(r"<!-- readme: until (.*) -->$", line)):
            commands.append(Command(number, UNTIL.format(match[1], match[1])))
        elif block == "console" and line.startswith("$ "):
            exit_code = re.search(r"\s+# exit code (\d+)$", line)
            current = Command(number, line[2:], int(exit_code[1]) if exit_code else 0)
            commands.append(current)
        elif block == "console" and current and line.startswith("> "):
            current.text += "\n" + line[2:]
        elif block == "console" and current and line.strip() not in ("", "…"):
            current.output.append(line)
    return commands


def missing(expected, printed):
    """The first of the expected lines that does not follow in what was printed, or None."""
    lines = iter(line.rstrip() for line in printed.split("\n"))
    for line in expected:
        pattern = re.compile(".*".join(re.escape(part) for part in line.rstrip().split("…")))
        if not any(pattern.fullmatch(candidate) for candidate in lines):
            return line
    return None


class Shell:
    """One bash for all commands."""

    def __init__(self, directory, environment):
        read, self.write = os.pipe()

        def third():
            os.dup2(read, 3)

        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-c", LOOP], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True, pass_fds=[3, read], preexec_fn=third)
        os.close(read)

    def run(self, text):
        """Output and exit code; None as code if it took too long or ended the shell."""
        os.write(self.write, text.encode() + b"\0")
        timer = threading.Timer(PATIENCE, self.kill)
        timer.start()
        printed = []
        for line in self.process.stdout:
            if line.startswith("\x1e"):
                timer.cancel()
                return "".join(printed).removesuffix("\n"), int(line[1:])
            printed.append(line)
        timer.cancel()
        return "".join(printed), None

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def end(self):
        os.close(self.write)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        self.process.wait()


def judge(command, printed, code):
    """What is wrong, or None."""
    if code is None:
        return f"it did not end within {PATIENCE} s, or ended the shell"
    if code != command.code:
        return f"exit code {code} instead of {command.code}"
    line = missing(command.output, printed)
    return f"it did not print: {line}" if line is not None else None


def execute(commands):
    home = tempfile.mkdtemp(prefix="mend-readme-")
    work = os.path.join(home, "mend")
    os.mkdir(work)
    for name in os.listdir(ROOT):
        os.symlink(os.path.join(ROOT, name), os.path.join(work, name))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
    environment["HOME"] = home
    # Other tests use this machine, too: a node that stands still for longer than the default lease would end its ranks. Whoever is lost is waited for so long.
    environment["MEND_LEASE_MS"] = "10000"
    shell, passed, lab = Shell(work, environment), 0, False
    try:
        for command in commands:
            print(f"README.md:{command.line}: $ {command.text}", flush=True)
            printed, code = shell.run(command.text)
            lab = lab or (code == 0 and "mend lab up" in command.text)
            wrong = judge(command, printed, code)
            print("".join(f"    {line}\n" for line in printed.split("\n") if line), end="", flush=True)
            if wrong:
                print(f"README.md:{command.line}: {wrong}")
                return passed, 1
            passed += 1
        return passed, 0
    finally:
        shell.end()
        if lab:
            down = [os.path.join(ROOT, "target", "mend", "mend"), "lab", "down"]
            subprocess.run(down, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "README.md")
    with open(path, encoding="utf-8") as file:
        passed, failed = execute(parse(file.read()))
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
