"""Has something that no other process can be given by its name, until a file `change` is there, and ends when a file `go` is.

    unreachable.py WHAT     WHAT: directory, cwd, namespace, process, name, place
"""

import os
import subprocess
import sys
import time

HERE = os.getcwd()


def wait_for(name):
    while not os.path.exists(os.path.join(HERE, name)):
        time.sleep(0.01)


opened = None
if sys.argv[1] in ("directory", "cwd"):
    os.mkdir("below")
    if sys.argv[1] == "directory":
        opened = os.open("below", os.O_RDONLY)
    else:
        os.chdir("below")
    os.rmdir(os.path.join(HERE, "below"))
elif sys.argv[1] == "name":
    opened = os.open(b"caf\xe9", os.O_CREAT | os.O_RDWR)
elif sys.argv[1] == "place":
    os.mkdir(b"caf\xe9")
    os.chdir(b"caf\xe9")
elif sys.argv[1] == "namespace":
    opened = os.open("/proc/self/ns/net", os.O_RDONLY)
else:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        opened = os.open(f"/proc/{child.pid}/status", os.O_RDONLY)
        child.stdin.close()
print("open", flush=True)
wait_for("change")
if opened is not None:
    os.close(opened)
os.chdir(HERE)
print("changed", flush=True)
wait_for("go")
