#!/usr/bin/env python3
"""What ranks do that write files of a data space, and compare what they read with what it must be. Ranks of a job wait for each other in a plain directory.

    writing.py posix DIR            one rank: what POSIX promises of files, and what is refused
    writing.py fsx DIR SEED STEPS   one rank: steps drawn at random, compared with a file in memory
    writing.py shared DIR MEET      all ranks write one file at offsets of their own, and read what the others wrote
    writing.py append DIR MEET      all ranks append to one file
    writing.py log DIR GO SEED      appends lines until GO is there, then compares all of them
    writing.py change DIR GO SEED   has a log open for appending and a table for reading; gives the log's name to another file, or writes the table, when it is told so
    writing.py names DIR MEET       all ranks claim tasks by renaming them, and count one after the other, by a file that each makes and removes
    writing.py full DIR             one rank: fills the targets; what was written before stays, and after something is removed there is room again
    writing.py hold DIR GO SEED     writes and syncs a file, then says so and writes behind it until it is killed
    writing.py pace DIR GO SEED     writes and syncs blocks until GO is there, then compares all of it
"""

import errno
import fcntl
import mmap
import os
import random
import stat
import sys
import time

RANK, RANKS = int(os.environ.get("PMI_RANK", "0")), int(os.environ.get("PMI_SIZE", "1"))


def must(condition, what):
    if not condition:
        raise SystemExit(f"rank {RANK}: {what}")


def fails(number, action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        must(error.errno == number, f"{action.__name__}{arguments} fails with {errno.errorcode[error.errno]} instead of {errno.errorcode[number]}")
    else:
        raise SystemExit(f"rank {RANK}: {action.__name__}{arguments} does not fail")


def meet(directory, name):
    """Waits until all ranks are here."""
    open(f"{directory}/{name}.{RANK}", "w").close()
    until = time.monotonic() + 120
    while not all(os.path.exists(f"{directory}/{name}.{rank}") for rank in range(RANKS)):
        must(time.monotonic() < until, f"the others do not come to {name}")
        time.sleep(0.01)


def put(path, content):
    with open(path, "wb") as file:
        file.write(content)


def get(path):
    with open(path, "rb") as file:
        return file.read()


def posix(directory):
    os.mkdir(directory)
    at = lambda name: os.path.join(directory, name)
    big = random.Random(1).randbytes(5_000_001)
    put(at("big"), big)
    must(get(at("big")) == big, "what was written in order is read")
    must(os.stat(at("big")).st_size == len(big), "its size")
    # Making and opening.
    fd = os.open(at("new"), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)
    fails(errno.EEXIST, os.open, at("new"), os.O_CREAT | os.O_EXCL | os.O_RDWR)
    must(stat.S_IMODE(os.fstat(fd).st_mode) == 0o640 & ~umask(), "permissions as they were given")
    must(os.pread(fd, 10, 0) == b"", "a new file is empty")
    # Holes and ends.
    must(os.pwrite(fd, b"end", 300_000) == 3, "bytes beyond the end")
    must(os.pread(fd, 10, 299_995) == b"\0" * 5 + b"end" and os.fstat(fd).st_size == 300_003, "a hole, and the end")
    os.ftruncate(fd, 70_000)
    os.ftruncate(fd, 400_000)
    must(os.pread(fd, 400_000, 0) == b"\0" * 400_000, "what was cut off does not come back")
    os.pwrite(fd, b"abc", 65_535)
    must(os.pread(fd, 5, 65_534) == b"\0abc\0", "across blocks")
    fails(errno.EINVAL, os.ftruncate, fd, -1)
    os.fsync(fd)
    os.close(fd)
    must(len(get(at("new"))) == 400_000, "its size after it was closed")
    with open(at("new"), "wb"):
        pass
    must(get(at("new")) == b"", "O_TRUNC")
    # Appending.
    for word in (b"one ", b"two ", b"three"):
        with open(at("log"), "ab") as file:
            file.write(word)
    must(get(at("log")) == b"one two three", "appended words")
    fd = os.open(at("log"), os.O_WRONLY | os.O_APPEND)
    os.pwrite(fd, b"!", 0)
    os.close(fd)
    must(get(at("log")) == b"one two three!", "O_APPEND writes to the end wherever it is told to write")
    fd = os.open(at("log"), os.O_RDONLY)
    fails(errno.EBADF, os.write, fd, b"x")
    # Directories.
    os.mkdir(at("d"))
    fails(errno.EEXIST, os.mkdir, at("d"))
    fails(errno.ENOENT, os.mkdir, at("none/d"))
    fails(errno.ENOENT, os.open, at("none/f"), os.O_CREAT | os.O_WRONLY)
    fails(errno.ENOTDIR, os.open, at("log/f"), os.O_CREAT | os.O_WRONLY)
    os.mkdir(at("d/e"))
    put(at("d/e/f"), b"deep")
    must(sorted(os.listdir(directory)) == ["big", "d", "log", "new"] and os.listdir(at("d/e")) == ["f"], "what is listed")
    fails(errno.ENOTEMPTY, os.rmdir, at("d/e"))
    fails(errno.ENOTDIR, os.rmdir, at("log"))
    fails(errno.EISDIR, os.unlink, at("d"))
    # Names.
    os.rename(at("d/e/f"), at("g"))
    must(get(at("g")) == b"deep" and os.listdir(at("d/e")) == [], "a file with another name")
    fails(errno.ENOENT, os.stat, at("d/e/f"))
    os.rename(at("g"), at("log"))
    must(get(at("log")) == b"deep" and os.pread(fd, 20, 0) == b"one two three!", "a replaced file is read by who has it open")
    os.close(fd)
    fails(errno.ENOENT, os.rename, at("g"), at("h"))
    fails(errno.EXDEV, os.rename, at("d"), at("h"))
    os.rmdir(at("d/e"))
    os.rmdir(at("d"))
    fails(errno.ENOENT, os.stat, at("d"))
    # Removed while it is open.
    fd = os.open(at("log"), os.O_RDWR)
    os.unlink(at("log"))
    fails(errno.ENOENT, os.stat, at("log"))
    os.pwrite(fd, b"still", 0)
    must(os.pread(fd, 5, 0) == b"still", "a file without a name")
    os.fsync(fd)
    os.close(fd)
    fails(errno.ENOENT, os.unlink, at("log"))
    must(sorted(os.listdir(directory)) == ["big", "new"], "no hidden name is listed")
    # Times and permissions.
    os.utime(at("new"), ns=(5, 1_500_000_000_123_456_789))
    must(os.stat(at("new")).st_mtime_ns == 1_500_000_000_123_456_789, "a time that was set")
    put(at("new"), b"x")
    must(abs(os.stat(at("new")).st_mtime - time.time()) < 3600, "a time of writing")
    os.chmod(at("new"), 0o600)
    must(stat.S_IMODE(os.stat(at("new")).st_mode) == 0o600, "permissions that were set")
    # What cannot be kept right is refused.
    with open(at("new"), "r+b") as file:
        fails(errno.ENOLCK, fcntl.lockf, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fails(errno.ENOLCK, fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fails(errno.ENODEV, mmap.mmap, file.fileno(), 1)
    with open(at("big"), "rb") as file, mmap.mmap(file.fileno(), len(big), access=mmap.ACCESS_COPY) as mapped:
        must(mapped[:] == big, "a private map")
    fails(errno.EPERM, os.link, at("new"), at("link"))
    staged = os.path.join(directory, "..", "staged.dat")
    if os.path.exists(staged):
        number = errno.EPERM if os.geteuid() == 0 else errno.EACCES
        fails(number, os.open, staged, os.O_WRONLY)
        fails(errno.EPERM, os.unlink, staged)
        fails(errno.EPERM, os.rename, staged, at("mine"))
        fails(errno.EPERM, os.rename, at("new"), staged)
    print("all of POSIX that is promised")


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def fsx(directory, seed, steps):
    drawn, path, model = random.Random(seed), os.path.join(directory, "fsx"), bytearray()
    most = 3_000_000
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
    for step in range(int(steps)):
        kind, offset = drawn.randrange(12), drawn.randrange(most)
        length = drawn.choice((1, 4096, 65_536, drawn.randrange(1, 300_000)))
        if kind < 5:
            content = drawn.randbytes(length)
            must(os.pwrite(fd, content, offset) == length, f"step {step}: all bytes are written")
            model.extend(bytes(max(0, offset + length - len(model))))
            model[offset:offset + length] = content
        elif kind == 5:
            os.ftruncate(fd, offset)
            del model[offset:]
            model.extend(bytes(offset - len(model)))
        elif kind == 6:
            os.fsync(fd)
        elif kind == 7:
            os.close(fd)
            fd = os.open(path, os.O_RDWR)
        elif kind == 8 and model:
            with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
                must(mapped[:] == model, f"step {step}: the map is the file")
        got = os.pread(fd, length, offset)
        must(got == model[offset:offset + length], f"step {step} ({kind}): {length} bytes at {offset} of {len(model)}")
        must(os.fstat(fd).st_size == len(model), f"step {step} ({kind}): the size is {os.fstat(fd).st_size} instead of {len(model)}")
    os.close(fd)
    must(get(path) == model, "all of it at the end")
    print("as in memory")


def full(directory):
    at = lambda name: os.path.join(directory, name)
    content = random.Random(2).randbytes(1 << 20)
    put(at("before"), content)
    file = os.open(at("large"), os.O_RDWR | os.O_CREAT)
    written = 0
    try:
        while written < 1 << 30:
            written += os.write(file, content)
    except OSError as error:
        must(error.errno == errno.ENOSPC, f"a full target gives {errno.errorcode[error.errno]}")
    must(8 << 20 < written < 1 << 30, f"{written} bytes fit")
    os.fsync(file)
    must(os.pread(file, 1 << 20, written - (1 << 20)) == content and get(at("before")) == content, "what was written before is not there")
    fails(errno.ENOSPC, put, at("after"), content * 8)
    os.close(file)
    os.remove(at("large"))
    put(at("after"), content * 8)
    must(get(at("after")) == content * 8, "there is no room again")
    print("as full as can be")


def shared(directory, meeting):
    """Pieces of odd sizes, so that ranks share blocks and stripes."""
    path, piece, rounds = os.path.join(directory, "shared"), 50_021, 24
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    content = lambda rank, number: random.Random(f"{rank} {number}").randbytes(piece)
    for number in range(rounds):
        os.pwrite(fd, content(RANK, number), (number * RANKS + RANK) * piece)
        if number == rounds // 2:
            os.fsync(fd)
            meet(meeting, "half")
            half = os.pread(fd, RANKS * piece, 0)
            must(half == b"".join(content(rank, 0) for rank in range(RANKS)), "what the others synced is read")
    os.close(fd)
    meet(meeting, "written")
    must(get(path) == b"".join(content(rank, number) for number in range(rounds) for rank in range(RANKS)), "what the others wrote")
    meet(meeting, "compared")
    if RANK == 0:
        os.rename(path, f"{path}.0")
    meet(meeting, "renamed")
    must(os.listdir(directory) == ["shared.0"] and os.stat(f"{path}.0").st_size == rounds * RANKS * piece, "the name that another one gave")
    meet(meeting, "seen")
    put(os.path.join(directory, f"own.{RANK}"), b"%d" % RANK)
    meet(meeting, "own")
    must([get(os.path.join(directory, f"own.{rank}")) for rank in range(RANKS)] == [b"%d" % rank for rank in range(RANKS)], "files of the others")
    print("all wrote all")


def append(directory, meeting):
    """Ranks of a node may append, those of two nodes at once may not."""
    path, refused = os.path.join(directory, "log"), 0
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    meet(meeting, "open")
    lines = 0
    for number in range(20):
        try:
            os.write(fd, b"rank %d line %2d\n" % (RANK, number))
            lines += 1
        except OSError as error:
            must(error.errno == errno.EIO, f"refused with {error}")
            refused += 1
    put(os.path.join(meeting, f"lines.{RANK}"), b"%d" % lines)
    meet(meeting, "appended")
    os.close(fd)
    meet(meeting, "closed")
    found = get(path).decode().splitlines()
    must(all(line.startswith("rank ") and len(line) == 14 for line in found), "lines are whole")
    count = sum(int(get(os.path.join(meeting, f"lines.{rank}"))) for rank in range(RANKS))
    must(len(found) == count, f"{len(found)} lines of {count}")
    print(f"refused {refused}")


def names(directory, meeting):
    at = lambda name: os.path.join(directory, name)
    tasks, rounds = 50, 6
    if RANK == 0:
        for task in range(tasks):
            put(at(f"task{task}"), b"%d" % task)
        put(at("counter"), b"0")
    meet(meeting, "made")
    claimed = 0
    for task in range(tasks):
        try:
            os.rename(at(f"task{task}"), at(f"task{task}.{RANK}"))
            claimed += 1
        except FileNotFoundError:
            pass
    put(os.path.join(meeting, f"tasks.{RANK}"), b"%d" % claimed)
    meet(meeting, "claimed")
    count = sum(int(get(os.path.join(meeting, f"tasks.{rank}"))) for rank in range(RANKS))
    found = [name.split(".")[0] for name in os.listdir(directory) if name.startswith("task")]
    must(count == tasks and sorted(found) == sorted(f"task{task}" for task in range(tasks)), f"{count} tasks are claimed, {len(found)} there")
    for _ in range(rounds):
        while True:
            try:
                os.close(os.open(at("lock"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                break
            except FileExistsError:
                pass
            # Others look at what is there, also while it goes or another file takes its name.
            must(os.stat(at("counter")).st_size > 0, "a counter")
            for name in os.listdir(directory):
                try:
                    os.stat(at(name))
                except FileNotFoundError:
                    must(not name.startswith("task") and name != "counter", f"{name} is there all the time")
        counted = int(get(at("counter"))) + 1
        put(at(f"counter.{RANK}"), b"%d" % counted)
        os.rename(at(f"counter.{RANK}"), at("counter"))
        os.unlink(at("lock"))
    meet(meeting, "counted")
    must(int(get(at("counter"))) == rounds * RANKS, "all are counted")
    print("all claimed and counted")


def hold(directory, go, seed):
    fd = os.open(os.path.join(directory, f"hold.{RANK}"), os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, random.Random(seed).randbytes(3_000_000))
    os.fsync(fd)
    open(f"{go}.begun.{RANK}", "w").close()
    while True:
        os.write(fd, b"later" * 1000)


def log(directory, go, _):
    path, line = os.path.join(directory, f"log.{RANK}"), b"line %6d\n"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    count = 0
    while not os.path.exists(go):
        os.write(fd, line % count)
        count += 1
        if count == 10:
            open(f"{go}.begun.{RANK}", "w").close()
        time.sleep(0.05)
    os.close(fd)
    must(get(path) == b"".join(line % number for number in range(count)), "all lines, each once")
    print(f"{count} lines")


def change(directory, go, _):
    path, table = os.path.join(directory, "log"), os.path.join(directory, "table")
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.write(fd, b"before\n")
    put(table, b"before")
    with open(table, "rb"):
        open(f"{go}.begun.{RANK}", "w").close()
        while not os.path.exists(go):
            if os.path.exists(f"{go}.write") and not os.path.exists(f"{go}.written"):
                put(table, b"other bytes")
                open(f"{go}.written", "w").close()
            if os.path.exists(f"{go}.replace") and not os.path.exists(f"{go}.replaced"):
                os.rename(path, f"{path}.1")
                put(path, b"after\n" * 100)
                open(f"{go}.replaced", "w").close()
            time.sleep(0.05)
    print("changed")


def pace(directory, go, seed):
    drawn, path = random.Random(f"{seed} {RANK}"), os.path.join(directory, f"pace.{RANK}")
    model = bytearray(4_000_000)
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, len(model))
    step = 0
    while not os.path.exists(go):
        offset, length = drawn.randrange(len(model) - 200_000), drawn.randrange(1, 200_000)
        content = drawn.randbytes(length)
        os.pwrite(fd, content, offset)
        model[offset:offset + length] = content
        if step % 5 == 0:
            os.fsync(fd)
        if step == 10:
            open(f"{go}.begun.{RANK}", "w").close()
        step += 1
    must(os.pread(fd, len(model) + 1, 0) == model[:len(model)] or get(path) == model, "what was written before and after")
    os.fsync(fd)
    os.close(fd)
    must(get(path) == model, "what was written")
    with open(f"{go}.model.{RANK}", "wb") as file:
        file.write(model)
    print(f"{step} steps")


if __name__ == "__main__":
    {"posix": posix, "fsx": fsx, "shared": shared, "append": append, "names": names, "full": full, "hold": hold, "log": log, "change": change, "pace": pace}[sys.argv[1]](*sys.argv[2:])
