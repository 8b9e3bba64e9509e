#!/usr/bin/env python3
"""What programs do with data spaces in Python, without a mount. The module `mend_data` must be found.

    library.py files SPACE               files opened, written, named and removed as built-in ones are
    library.py fsspec SPACE DIRECTORY    the same by fsspec's names of things
    library.py read SPACE PATH SHA256    reads a file in pieces of odd lengths, and in threads
    library.py write SPACE COUNT         writes files `fN` of N bytes
    library.py lost SPACE COUNT          lists them after targets were lost: all of them, those that are lost without a size
    library.py rank SPACE GO             a rank that reads in.dat and writes a file of its own again and again, until GO is there; then says the digest of both
"""

import concurrent.futures
import contextlib
import errno
import hashlib
import os
import random
import sys
import time

import mend_data


def must(condition, what):
    if not condition:
        sys.exit(f"not so: {what}")


def fails(number, action, *arguments, **options):
    try:
        action(*arguments, **options)
    except OSError as error:
        must(error.errno == number and error.strerror, f"{error!r} is {errno.errorcode[number]}")
    else:
        sys.exit(f"not so: {action} fails with {errno.errorcode[number]}")


def files(name):
    space = mend_data.Space(name)
    must(space is mend_data.Space(name) and name in mend_data.Space.names(), "one space of a name")
    with mend_data.open(f"mend://{name}/text.txt", "w", encoding="utf-8") as file:
        for line in range(5000):
            print(f"línea {line}", file=file)
    with mend_data.open(f"mend://{name}/text.txt", "r", encoding="utf-8") as file:
        must([line.split()[1] for line in file] == [str(line) for line in range(5000)], "lines come back")
    with mend_data.open(f"mend://{name}/text.txt", "ab") as file:
        end = file.tell()
        file.write(b"last")
    with mend_data.open(f"mend://{name}/text.txt", "r+b") as file:
        file.seek(end)
        must(file.read() == b"last" and end > 5000, "what was appended")
        file.seek(-4, os.SEEK_END)
        file.write(b"LAST")
        file.truncate(end + 2)
    with mend_data.open(f"mend://{name}/text.txt", buffering=0) as file:
        must(file.pread(100, end) == b"LA", "it was cut")
        fails(errno.EBADF, file.write, b"x")
    space.rename("text.txt", "other.txt")
    must(set(space.list()) >= {"in.dat", "other.txt"} and space.stat("other.txt")["size"] == end + 2, "it has another name")
    fails(errno.ENOENT, space.stat, "text.txt")
    fails(errno.EPERM, mend_data.open, f"mend://{name}/in.dat", "wb")
    fails(errno.ENOENT, mend_data.Space, "no-such-space")
    space.unlink("other.txt")
    refused(space.stat, "in.dat\0none")
    for mode, options in (("w", {"buffering": 0}), ("rb", {"encoding": "utf-8"}), ("rbt", {}), ("rw", {}), ("", {})):
        refused(mend_data.open, f"mend://{name}/in.dat", mode, **options)
    with mend_data.open(f"mend://{name}/lines", "w", buffering=1) as file:
        file.write("one\ntwo")
        must(space.stat("lines")["size"] > 0, "lines are written as they end")
    space.unlink("lines")
    forked(name, space)
    closed_while_read(space)
    with space.open("cut", os.O_RDWR | os.O_CREAT) as file:
        fails(errno.EINVAL, file.truncate, -1)
        fails(errno.EFBIG, file.truncate, 1 << 64)
        fails(errno.EINVAL, file.pread, 1, -1)
    space.unlink("cut")
    with mend_data.Space(name) as left, left.open("in.dat") as file:
        left.close()
        must(len(file.readall()) == left_size(name), "an open file outlives the use of its space")
    refused(left.stat, "in.dat")


def left_size(name):
    return mend_data.Space(name).stat("in.dat")["size"]


def refused(action, *arguments, **options):
    try:
        action(*arguments, **options)
    except ValueError:
        return
    sys.exit(f"not so: {action} refuses {arguments} {options}")


def forked(name, space):
    with space.open("in.dat") as read_only, space.open("written", os.O_RDWR | os.O_CREAT) as written:
        before = read_only.pread(1000, 5000)
        child = os.fork()
        if child == 0:
            right = space is mend_data.Space(name) and space.stat("in.dat")["staged"] and read_only.pread(1000, 5000) == before
            fails(errno.EBADF, written.write, b"x")
            os._exit(0 if right else 1)
        must(os.waitpid(child, 0)[1] == 0, "a child opens anew what it was given")
        must(written.write(b"x") == 1, "the parent goes on")
    space.unlink("written")


def closed_while_read(space):
    file = space.open("in.dat")

    def reads():
        with contextlib.suppress(ValueError):
            while True:
                file.pread(1 << 16, 0)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(reads) for _ in range(4)]
        time.sleep(0.1)
        file.close()
    must(all(reader.exception() is None for reader in readers), "who reads what another thread closes is told so")


def by_fsspec(name, directory):
    import fsspec

    fs = fsspec.filesystem("mend")
    root = f"mend://{name}"
    must(name in [one.strip("/") for one in fs.ls("", detail=False)], "spaces are listed")
    with fsspec.open_files([f"{root}/many/{at}.bin" for at in range(3)], "wb") as several:
        for at, file in enumerate(several):
            file.write(bytes([at]) * (at << 20))
    must(fs.du(f"{root}/many") == 3 << 20 and sorted(fs.find(f"{root}/many")) == [f"{name}/many/{at}.bin" for at in range(3)], "all are found")
    must(fs.glob(f"{root}/many/[12].bin") == [f"{name}/many/1.bin", f"{name}/many/2.bin"], "patterns")
    must(fs.cat_file(f"{root}/many/2.bin", start=-3) == b"\2\2\2" and fs.cat_file(f"{root}/many/1.bin", 5, 9) == b"\1" * 4, "parts of a file")
    must(fs.info(f"{root}/in.dat")["staged"] and fs.isfile(f"{root}/in.dat") and fs.isdir(f"{root}/many") and not fs.exists(f"{root}/none"), "what there is")
    must(fs.read_block(f"{root}/many/2.bin", 5, 10) == b"\2" * 10 and fs.tail(f"{root}/many/2.bin", 4) == b"\2" * 4, "blocks and ends of a file")
    must(fs.read_block(f"{root}/many/1.bin", 5, None) == b"\1" * ((1 << 20) - 5), "the rest of a file")
    with fs.open(f"{root}/many/1.bin") as file:
        must(file.size == 1 << 20, "a file's size")
    fs.get(f"{root}/in.dat", os.path.join(directory, "got"))
    fs.put(os.path.join(directory, "got"), f"{root}/put/there.dat")
    must(fs.cat_file(f"{root}/put/there.dat") == fs.cat_file(f"{root}/in.dat"), "put and get")
    fs.mv(f"{root}/put/there.dat", f"{root}/put/moved.dat")
    must(fs.ls(f"{root}/put", detail=False) == [f"{name}/put/moved.dat"] and fs.modified(f"{root}/put/moved.dat").timestamp() > time.time() - 3600, "moved")
    fs.copy(f"{root}/many", f"{root}/copied", recursive=True)
    fs.mv(f"{root}/copied", f"{root}/put")
    must(fs.find(f"{root}/put/copied") == [f"{name}/put/copied/{at}.bin" for at in range(3)] and not fs.exists(f"{root}/copied"), "a directory is moved into another")
    must(fs.cat_file(f"{root}/put/copied/2.bin") == fs.cat_file(f"{root}/many/2.bin"), "with what is in it")
    fs.mv(f"{root}/put/copied/1.bin", f"{root}/put")
    must(fs.exists(f"{root}/put/1.bin") and not fs.exists(f"{root}/put/copied/1.bin"), "a file is moved into a directory")
    fails(errno.EPERM, fs.mv, f"{root}/in.dat", f"{root}/put")
    fails(errno.EINVAL, fs.mv, f"{root}/put", f"{root}/put/copied")
    fails(errno.EINVAL, fs.cp_file, f"{root}/put/1.bin", f"{root}/put/1.bin")
    refused(fs.start_transaction)
    refused(fs.transaction.__enter__)
    fs.rm(f"{root}/put", recursive=True)
    fs.rm(f"{root}/many", recursive=True)
    must(not fs.exists(f"{root}/many/1.bin"), "removed")
    fs.makedirs(f"{root}/made", exist_ok=True)
    fs.makedirs(f"{root}/made", exist_ok=True)
    fails(errno.EEXIST, fs.makedirs, f"{root}/made")
    fs.rmdir(f"{root}/made")
    fails(errno.EBUSY, fs.rmdir, root)
    fails(errno.ENOENT, fs.mkdir, "mend://another-space")
    fails(errno.EPERM, fs.mkdir, "mend://")


def read(name, path, digest):
    draw = random.Random(1)
    with mend_data.open(f"mend://{name}/{path}") as file:
        pieces = iter(lambda: file.read(draw.randrange(1, 700_000)), b"")
        must(hashlib.sha256(b"".join(pieces)).hexdigest() == digest, "the same bytes")
    with mend_data.Space(name).open(path) as file, concurrent.futures.ThreadPoolExecutor(4) as threads:
        offsets = range(0, file.seek(0, os.SEEK_END), 333_333)
        must(hashlib.sha256(b"".join(threads.map(lambda at: file.pread(333_333, at), offsets))).hexdigest() == digest, "the same bytes to threads")


def write(name, count):
    for at in range(int(count)):
        with mend_data.open(f"mend://{name}/many/f{at}", "wb") as file:
            file.write(bytes(at))


def lost(name, count):
    space = mend_data.Space(name)
    listed = space.list("many")
    must(set(listed) == {f"f{at}" for at in range(int(count))}, "all are listed")
    gone = [path for path, about in listed.items() if about.get("lost")]
    must(gone and all(listed[path]["size"] is None and listed[path]["mtime"] > 0 for path in gone), "some of them are lost")
    fails(errno.EIO, space.stat, f"many/{gone[0]}")
    must(all(path in gone or about["size"] == int(path[1:]) for path, about in listed.items()), "the others have their sizes")
    about = space.list()["in.dat"]
    must(about["size"] > 0 and "lost" not in about, "what was staged has its size")


def rank(name, go):
    number, rounds = os.environ.get("PMI_RANK", "0"), 0
    while True:
        last = os.path.exists(go)
        with mend_data.open(f"mend://{name}/in.dat") as file:
            content = file.read()
        with mend_data.open(f"mend://{name}/rank.{number}", "wb") as file:
            file.write(content[::-1])
        rounds += 1
        if rounds == 2:
            with open(f"{go}.begun.{number}", "w", encoding="ascii"):
                pass
        if last:
            break
        time.sleep(0.02)
    with mend_data.open(f"mend://{name}/rank.{number}") as file:
        must(file.read() == content[::-1], "what was written is there")
    print(hashlib.sha256(content).hexdigest())


if __name__ == "__main__":
    {"files": files, "fsspec": by_fsspec, "read": read, "write": write, "lost": lost, "rank": rank}[sys.argv[1]](*sys.argv[2:])
    print("all as it should be")
