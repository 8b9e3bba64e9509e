"""A thread consumes what the first one gives it, and finds all of it, once."""

import threading, time, queue, os, sys
q = queue.Queue()
seen = []
def consume():
    while True:
        item = q.get()
        if item is None: return
        seen.append(item)
t = threading.Thread(target=consume); t.start()
d = {}
i = 0
while not os.path.exists("end"):
    i += 1
    d[i] = [str(k) for k in range(i % 100 * 10)]
    q.put(i)
    time.sleep(0.03)
    assert all(len(d[k]) == k % 100 * 10 for k in d) and len(d) == i
    print("tick", i, flush=True)
q.put(None); t.join()
assert seen == list(range(1, i + 1))
import json, decimal, subprocess
print(subprocess.run(["/bin/echo", "OK"], capture_output=True, text=True).stdout, end="")
