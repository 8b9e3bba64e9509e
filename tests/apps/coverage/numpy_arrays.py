"""NumPy: arrays of many kinds, a generator's state, a mapped file, threads inside BLAS, Python's own machinery."""

import os
import queue
import sys
import threading
import time

import numpy as np

generator = np.random.Generator(np.random.PCG64(42))
matrix = generator.standard_normal((400, 400))
complexes = np.fft.fft(generator.standard_normal(1 << 14))
table = np.zeros(1000, dtype=[("id", "i8"), ("name", "U12"), ("value", "f4")])
table["id"] = np.arange(1000)
table["name"] = [f"row {i}" for i in range(1000)]
mapped = np.memmap("mapped.npy", dtype="f8", mode="w+", shape=(1000, 10))
mapped[:] = 1.5
view = matrix[::3, ::-2]
expected_view = float(view.sum())
stop = threading.Event()
problems = []
rounds = [0] * 3
work = queue.Queue()
handled = []


def multiply(which):
    own = np.random.Generator(np.random.PCG64(which)).standard_normal((200, 200))
    first = own @ own
    while not stop.is_set():
        if not np.array_equal(own @ own, first):
            problems.append(f"product of thread {which}")
        rounds[which] += 1


def consume():
    while (item := work.get()) is not None:
        handled.append(item * 2)


def numbers():
    value = 0
    while True:
        value += yield value


threads = [threading.Thread(target=multiply, args=(i,)) for i in range(3)] + [threading.Thread(target=consume)]
for thread in threads:
    thread.start()
coroutine = numbers()
next(coroutine)
coroutine.send(20)
spectrum = np.linalg.svd(matrix, compute_uv=False)
while min(rounds) < 3:
    time.sleep(0.01)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)
before = list(rounds)
for i in range(100):
    work.put(i)
work.put(None)
while any(now <= then for now, then in zip(rounds, before)):
    time.sleep(0.01)
stop.set()
for thread in threads:
    thread.join()

again = np.random.Generator(np.random.PCG64(42))


def check(what, good):
    if not good:
        problems.append(what)


check("matrix", np.array_equal(matrix, again.standard_normal((400, 400))))
check("transform", np.array_equal(complexes, np.fft.fft(again.standard_normal(1 << 14))))
check("generator", np.array_equal(generator.standard_normal(1000), again.standard_normal(1000)))
check("view", float(view.sum()) == expected_view and np.shares_memory(view, matrix))
check("singular values", np.allclose(spectrum, np.linalg.svd(matrix, compute_uv=False)))
check("table", table["name"][577] == "row 577" and table["id"].sum() == 499500)
mapped[5] = 2.5
mapped.flush()
check("mapped file", np.fromfile("mapped.npy").sum() == 1.5 * 9990 + 25)
check("queue", handled == [i * 2 for i in range(100)])
check("coroutine", coroutine.send(22) == 42)
for problem in problems:
    print("LOST", problem)
if problems:
    sys.exit(1)
print("OK")
