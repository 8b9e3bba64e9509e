#!/usr/bin/env python3
"""What ranks do whose files are sent away.

    offloading.py rounds DIR ROUNDS      each rank writes a file in each round, and closes it
    offloading.py hold DIR GO            a rank writes a file and keeps it open until GO is there; then writes its end
    offloading.py change DIR GO          a rank overwrites a file of 8 MiB again and again, closing it each time, until GO is there
"""

import os
import random
import sys
import time

RANK = int(os.environ.get("PMI_RANK", "0"))


def content(rank, number):
    drawn = random.Random(f"{rank} {number}")
    return drawn.randbytes(drawn.choice((0, 1, 65_536, 1_500_000)))


def put(path, written):
    with open(path, "wb") as file:
        file.write(written)


def rounds(directory, count):
    for number in range(int(count)):
        place = os.path.join(directory, f"round {number}")
        os.makedirs(place, exist_ok=True)
        put(os.path.join(place, f"rank.{RANK}"), content(RANK, number))
        time.sleep(0.3)
    print("written")


def hold(directory, go):
    with open(os.path.join(directory, "held"), "wb", buffering=0) as file:
        file.write(b"begin")
        os.fsync(file.fileno())
        put(os.path.join(directory, "closed"), b"closed")
        open(f"{go}.begun", "w").close()
        while not os.path.exists(go):
            time.sleep(0.02)
        file.write(b"end")


def change(directory, go):
    number = 0
    while not os.path.exists(go):
        number += 1
        put(os.path.join(directory, "changing"), bytes([number % 251]) * (8 << 20))
        if number == 2:
            open(f"{go}.begun", "w").close()
        # Long enough for a sender to find it closed and begin; most of the time it is open.
        time.sleep(0.4)
    print(number % 251)


if __name__ == "__main__":
    {"rounds": rounds, "hold": hold, "change": change}[sys.argv[1]](*sys.argv[2:])
