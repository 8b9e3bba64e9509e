#!/usr/bin/env python3
"""Makes this release's golden images: a checkpoint and one that builds on it, of a small program, packed; and what they hold.

    make.py            as root, after `make build`, when the format of images or manifests has a new version

They go to tests/golden/image-I-manifest-M.tar.xz and .json, named by the formats' versions. Older ones stay: what was
written once is read for good (tests/lab/test_golden.py). Nothing of the machine that makes them is in them: the program runs in
namespaces of its own, with parts under /opt/mend and an empty environment.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
INSIDE = """
set -e
mount -t tmpfs -o mode=0755 golden /opt
mkdir /opt/mend /opt/home
cp {parts}/* /opt/mend/
cc -O1 -o /opt/mend/count {root}/tests/apps/count.c
hostname golden
cd /opt/home
unset OLDPWD
export HOME=/opt/home MEND_HOME=/opt/home/mend PATH=/opt/mend:/usr/bin:/bin
mend run --incremental 2 --checkpoint-dir /opt/home/checkpoints count 40 1000 go > out 2> err &
until mend checkpoint --json > /dev/null 2>&1; do sleep 0.05; done
sleep 0.2
mend checkpoint > /dev/null
mend kill > /dev/null
wait || true
mend version --json > version
mend image show --json checkpoints/*/2/rank-0.image > shown
tar -C checkpoints/* -cJf checkpoints.tar.xz 1 2
cp version shown checkpoints.tar.xz {out}/
"""


def main():
    with tempfile.TemporaryDirectory() as out:
        script = INSIDE.format(parts=os.path.join(ROOT, "target", "mend"), root=ROOT, out=out)
        subprocess.run(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "unshare", "-m", "-u", "sh", "-c", script], check=True)

        def read(name):
            with open(os.path.join(out, name), encoding="utf-8") as file:
                return file.read()

        version = json.loads(read("version"))
        name = os.path.join(HERE, f"image-{version['image_format']}-manifest-{version['manifest_format']}")
        with open(os.path.join(out, "checkpoints.tar.xz"), "rb") as packed, open(f"{name}.tar.xz", "wb") as file:
            file.write(packed.read())
        shown = re.sub(r'"[^"]*?(\d+/rank-0\.image)"', r'"\1"', read("shown"))
        with open(f"{name}.json", "w", encoding="utf-8") as file:
            json.dump(json.loads(shown), file, indent=1)
            file.write("\n")
        print(f"{name}.tar.xz: {os.path.getsize(f'{name}.tar.xz')} bytes")


if __name__ == "__main__":
    sys.exit(main())
