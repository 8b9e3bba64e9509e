"""Has a file open at a checkpoint and changes it afterwards, in one of several ways.

    files_change.py HOW     HOW: truncate, rename, replace, delete, recreate, sqlite, append

Prints "open" when the file is open and written to, waits for a file `change`, changes what it has, prints "changed", waits for a file
`go`, and prints a last line with a digest of all that it read back, the same in every run.
"""

import hashlib
import os
import sqlite3
import sys
import time

SEEN = hashlib.sha256()


def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def say(what):
    print(what, flush=True)


def changes():
    say("open")
    wait_for("change")


def block(number, size=100_000):
    return hashlib.sha256(str(number).encode()).digest() * (size // 32)


def note(data):
    SEEN.update(data)


def truncate():
    with open("data", "w+b", buffering=0) as file:
        file.write(block(1))
        changes()
        file.seek(0)
        note(file.read())
        file.truncate(0)
        file.seek(0)
        file.write(block(2, 1000))
        say("changed")
        wait_for("go")
        file.seek(0)
        note(file.read())


def rename():
    with open("data.tmp", "w+b", buffering=0) as file:
        file.write(block(1))
        changes()
        file.write(block(2))
        file.seek(0)
        note(file.read())
    os.rename("data.tmp", "data")
    say("changed")
    wait_for("go")
    with open("data", "rb") as file:
        note(file.read())


def replace():
    with open("data", "w+b", buffering=0) as file:
        file.write(block(1))
        changes()
        with open("data.new", "wb") as new:
            new.write(block(2, 200_000))
        file.seek(0)
        note(file.read())
        os.replace("data.new", "data")
        say("changed")
        wait_for("go")
        file.seek(0)
        note(file.read())
    with open("data", "rb") as file:
        note(file.read())


def delete():
    with open("data", "w+b", buffering=0) as file:
        file.write(block(1))
        changes()
        file.seek(0)
        note(file.read())
    os.remove("data")
    say("changed")
    wait_for("go")
    note(str(os.listdir(".")).encode() if os.path.exists("data") else b"gone")


def recreate():
    with open("data", "w+b", buffering=0) as file:
        file.write(block(1))
        changes()
        file.seek(0)
        note(file.read())
    os.remove("data")
    with open("data", "wb") as file:
        file.write(block(3, 150_000))
    say("changed")
    wait_for("go")
    with open("data", "rb") as file:
        note(file.read())


def append():
    with open("data", "ab", buffering=0) as file:
        file.write(block(1))
        changes()
        file.write(block(2))
        say("changed")
        wait_for("go")
        file.write(block(3))
    with open("data", "rb") as file:
        note(file.read())


def sqlite():
    """In the middle of a transaction that is partly in the database's file already, its undoing in the journal."""
    base = sqlite3.connect("base", isolation_level=None)
    base.execute("PRAGMA journal_mode=DELETE")
    base.execute("PRAGMA synchronous=OFF")
    base.execute("PRAGMA cache_size=2")
    base.execute("CREATE TABLE numbers (n INTEGER, text TEXT)")
    base.execute("BEGIN")
    for number in range(2000):
        base.execute("INSERT INTO numbers VALUES (?, ?)", (number, "x" * 100))
    assert os.path.getsize("base-journal") > 0
    changes()
    base.execute("COMMIT")
    assert not os.path.exists("base-journal")
    for number in range(20):
        base.execute("UPDATE numbers SET n = n + ? WHERE n % 20 = ?", (number, number))
    base.execute("DELETE FROM numbers WHERE n % 7 = 3")
    base.execute("VACUUM")
    say("changed")
    wait_for("go")
    base.execute("INSERT INTO numbers VALUES (1, 'last')")
    note(str(base.execute("SELECT count(*), sum(n), sum(length(text)) FROM numbers").fetchall()).encode())
    note(str(base.execute("PRAGMA integrity_check").fetchall()).encode())
    base.close()


globals()[sys.argv[1]]()
say(f"digest={SEEN.hexdigest()}")
