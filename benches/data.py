#!/usr/bin/env python3
"""A data space beside other ways to a job's data, in one run: lab nodes, bytes kept in memory, so that no disk is measured.

    rates    reading a staged file and writing one, 1 and 4 ranks of a node: against a null relay (FUSE, TCP, memory, nothing between), SeaweedFS with two synced copies, and
             sshfs with one, which is encrypted. Mend has two copies of what is written, synced before the file is closed, and one copy where relay and sshfs have
    links    four ranks of four nodes read from four targets, whose links have 1 Gbit/s: against as many plain TCP connections at once over the same links
    again    what one rank has read another one of its node reads: against a FUSE pass-through over a file in memory; and what came over the network meanwhile
    names    making, looking at and removing 10,000 files by one rank: against SeaweedFS and sshfs
    lost     a job that reads a file of which one of four targets is lost, before it starts and in its middle, whose source gives 34 or 6 MB/s: against the same job without a loss
    probe    256 targets on 64 nodes, four of which are killed, so that 16 targets are silent: looking at all of them, against the time after which one counts as lost; and what
             is fetched for a file that lay on all of them, against what was lost of it

Peers want root, sshfs and fuse3; what is not there is left out, and named.
"""

import concurrent.futures
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import results
from side_by_side import HERE, main, report

from cluster import MEND, Failed, Lab, NotHere
from mounts import MEMORY, Passthrough, Relay, Seaweed, Space, Sshfs, address, file_rates, must
from raw_tcp import RawTcp

# A rank's part of a file, MiB, by the number of ranks.
PART = {1: 512, 4: 192}
# What Mend's cache of a node holds.
CACHED = 192
NAMES = 10_000
CAPPED, READERS, CAPPED_MIB = ("node1", "node2", "node3", "node4"), ("node5", "node6", "node7", "node8"), 256
# Sizes of the file in MiB, rate of its source in MB/s, and computing per MiB in ms: none, and enough to cover what a lost target's quarter takes.
LOSSES = ((64, 34, 0), (256, 34, 0), (64, 6, 0), (64, 34, 20), (256, 34, 20), (1024, 34, 20), (64, 6, 80), (256, 6, 80))
# Nodes with so many targets each; those that are killed.
WIDE, WIDE_EACH, WIDE_KILLED = 64, 4, ("node5", "node20", "node35", "node50")
SOURCE_PORT = 18790
seconds = lambda span: span[1] - span[0]


def peers(lab):
    """Makers of those that are here. The others are named."""
    for kind in (Seaweed, Sshfs):
        try:
            with kind(lab):
                pass
            yield kind
        except (NotHere, Failed) as why:
            print(f"left out: {kind.name}: {why}", file=sys.stderr)


def rates(runs, work):
    program = file_rates(work)
    with Lab(4) as lab:
        others = list(peers(lab))
        for ranks, part in PART.items():
            mib = ranks * part
            reads, writes, one_copy = {}, {}, []
            rate = lambda told, what: mib / seconds(told[what])
            for _ in range(runs):
                with Relay(lab, mib, direct=False) as relay:
                    reads.setdefault(relay.name, []).append(rate(relay.run(ranks, [program, "read", "SEEN/data", str(part)]), "read"))
                with Relay(lab, mib, direct=True) as relay:
                    writes.setdefault(relay.name, []).append(rate(relay.run(ranks, [program, "write", "SEEN/data", str(part)]), "write"))
                with Space(lab) as space:
                    space.stage(mib)
                    space.make()
                    reads.setdefault(space.name, []).append(rate(space.run(ranks, [program, "read", "SEEN/data", str(part)]), "read"))
                    writes.setdefault(space.name, []).append(rate(space.run(ranks, [program, "write", "SEEN/out", str(part)]), "write"))
                with Space(lab, copies=1) as space:
                    space.make()
                    one_copy.append(rate(space.run(ranks, [program, "write", "SEEN/out", str(part)]), "write"))
                for kind in list(others):
                    try:
                        with kind(lab) as other:
                            other.stage(mib)
                            other.make()
                            other.mount_anew()
                            reads.setdefault(kind.name, []).append(rate(other.run(ranks, [program, "read", "SEEN/data", str(part)]), "read"))
                            writes.setdefault(kind.name, []).append(rate(other.run(ranks, [program, "write", "SEEN/out", str(part)]), "write"))
                    except (Failed, subprocess.TimeoutExpired) as why:
                        print(f"left out from here on: {kind.name}: {why}", file=sys.stderr)
                        others.remove(kind)
            for what, figures in (("read", reads), ("written", writes)):
                for name, theirs in figures.items():
                    if name != Space.name:
                        report(f"{what}, {ranks} rank{'s' if ranks > 1 else ''}", theirs, figures[Space.name], "MiB/s", name)
            for name in (Relay.name, Sshfs.name):
                if name in writes:
                    report(f"written as one copy, {ranks} rank{'s' if ranks > 1 else ''}", writes[name], one_copy, "MiB/s", name)


def links(runs, work):
    program = file_rates(work)
    ours, theirs = [], []
    with Lab(8) as lab, Space(lab, CAPPED) as space, contextlib.ExitStack() as stack:
        mib = len(READERS) * CAPPED_MIB
        space.stage(mib)
        for node in CAPPED:
            device = must(lab.on(node, "sh", "-c", "ls /sys/class/net 2>/dev/null | grep -v -x lo || ip -o link | awk -F': |@' '$2 != \"lo\" {print $2}'")).split()[0]
            must(lab.on(node, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", "1gbit", "burst", "640kb", "latency", "50ms"))
        streams = [stack.enter_context(RawTcp(lab, target, reader, CAPPED_MIB << 20, runs)) for target, reader in zip(CAPPED, READERS)]
        for _ in range(runs):
            with concurrent.futures.ThreadPoolExecutor(len(streams)) as together:
                theirs.append(mib / (max(together.map(RawTcp.milliseconds, streams)) / 1e3))
            told = space.run(len(READERS), [program, "read", "SEEN/data", str(CAPPED_MIB)], hosts=",".join(f"{node}:1" for node in READERS), mode="r")
            ours.append(mib / seconds(told["read"]))
    report("read by four nodes, links of 1 Gbit/s", theirs, ours, "MiB/s", "four TCP connections")


def again(runs, work):
    program = file_rates(work)
    ours, theirs, came = [], [], []
    with Lab(4) as lab:
        for _ in range(runs):
            with Passthrough(lab, CACHED, direct=False) as over:
                theirs.append(CACHED / seconds(over.run(1, [program, "read", "SEEN/data", str(CACHED)])["read"]))
            with Space(lab) as space:
                space.stage(CACHED)
                told = space.run(2, [program, "again", "SEEN/data", str(CACHED)], mode="r")
                ours.append(CACHED / seconds(told["read1"]))
                came.append(seconds(told["came1"]) / 1024)
    report("what another rank of the node has read", theirs, ours, "MiB/s", Passthrough.name)
    results.note("what came over the network meanwhile", "KiB", came)
    print(f"what came over the network meanwhile: {max(came):.1f} KiB of {CACHED} MiB at most")


def names(runs, work):
    program = file_rates(work)
    took = {}
    with Lab(4) as lab:
        others = list(peers(lab))
        for _ in range(runs):
            for kind in (Space, *others):
                with kind(lab) as place:
                    told = place.run(1, [program, "names", "SEEN", str(NAMES)])
                    for what, span in told.items():
                        took.setdefault(what, {}).setdefault(kind.name, []).append(NAMES / seconds(span))
    for what, figures in took.items():
        for name, theirs in figures.items():
            if name != Space.name:
                report(what, theirs, figures[Space.name], "a second", name)


def probe(runs, work):
    silent_ms = 1000
    asked, probed, patience, fetched, gone = [], [], [], [], []
    for _ in range(runs):
        with Lab(WIDE) as lab, tempfile.TemporaryDirectory(prefix="mend-bench-") as where:
            targets = [f"node{node}:{MEMORY}-{number}" for node in range(1, WIDE + 1) for number in range(WIDE_EACH)]
            data = lambda *words: must(lab.mend("data", *words))
            lab.set("MEND_SPACE_TIMEOUT_MS", str(silent_ms))
            data("create", "wide", *[word for target in targets for word in ("--target", target)])
            source = os.path.join(where, "source")
            with open(source, "wb") as file:
                for _ in range(len(targets)):
                    file.write(os.urandom(1 << 20))
            with serving(lab, source, 10_000) as served:
                data("stage", f"http://{address(lab, 'head')}:{SOURCE_PORT}/source", "wide:data")
            data("check", "wide:")
            for node in WIDE_KILLED:
                must(subprocess.run([MEND, "lab", "kill", "--name", lab.name, node], capture_output=True, text=True, check=False))
            for took, words in ((asked, ("df", "wide")), (probed, ("check", "wide:"))):
                begun = time.monotonic()
                lab.mend("data", *words)
                took.append(time.monotonic() - begun)
            patience.append(silent_ms / 1e3)
            with serving(lab, source, 10_000) as served:
                data("repair", "wide:")
                served.terminate()
                fetched.append(int(served.stdout.read()) / 2**20)
            gone.append(float(len(WIDE_KILLED) * WIDE_EACH))
            data("check", "wide:")
    results.note("asking 256 targets, 16 of them silent", "s", asked, patience, "time until a silent one counts as lost")
    results.note("asking them, and comparing checksums", "s", probed, patience, "time until a silent one counts as lost")
    results.note("fetched for a file of which 16 of 256 parts were lost", "MiB", fetched, gone, "lost bytes")
    print(f"256 targets asked in {statistics.median(asked):.2f} s, with checksums in {statistics.median(probed):.2f} s, of which one waits {silent_ms / 1e3} s for the silent ones; "
          f"{statistics.median(fetched):.2f} MiB fetched, {statistics.median(gone):.0f} MiB lost")


@contextlib.contextmanager
def serving(lab, path, rate):
    """Serves a file from the lab's head, at so many MB/s."""
    command = [MEND, "lab", "exec", "--name", lab.name, "head", "--", sys.executable, os.path.join(HERE, "paced_source.py"), path, str(SOURCE_PORT), str(rate)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        server.stdout.readline()
        yield server
    finally:
        server.terminate()
        server.wait()


def job_time(program, mib, rate, computing, lost):
    """Seconds of a job that reads a file of whose four targets one is lost: before it starts, in its middle, or never."""
    with Lab(5) as lab, tempfile.TemporaryDirectory(prefix="mend-bench-") as work, contextlib.ExitStack() as stack:
        source = os.path.join(work, "source")
        with open(source, "wb") as file:
            for _ in range(mib):
                file.write(os.urandom(1 << 20))
        space = stack.enter_context(Space(lab, CAPPED, "node5"))
        uri = f"http://{address(lab, 'head')}:{SOURCE_PORT}/source"
        # Staging is not what is measured: the source is fast then.
        with serving(lab, source, 10_000):
            space.data("stage", uri, "bench:data")
        stack.enter_context(serving(lab, source, rate))
        lose = lambda: (lab.kill_daemon("node1"), lab.on("node1", "rm", "-rf", MEMORY))
        if lost == "before":
            lose()
        if lost == "midway":
            place = space.meet
            watcher = threading.Thread(target=lambda: (space.half_read(place), lose()))
            watcher.start()
            stack.callback(watcher.join)
        return seconds(space.run(1, [program, "paced", "SEEN/data", str(mib), str(computing)], mode="r")["paced"])


def lost(runs, work):
    program = file_rates(work)
    for mib, rate, computing in LOSSES:
        # Without computing all would be read before a target could be lost in the middle.
        shares = {"before": 1 / 4, **({"midway": 1 / 8} if computing else {})}
        took = {when: [] for when in ("never", *shares)}
        for _ in range(runs):
            for when, times in took.items():
                times.append(job_time(program, mib, rate, computing, when))
        for when, share in shares.items():
            patch = share * (mib << 20) / (rate * 1e6)
            extra = [with_loss - without for with_loss, without in zip(took[when], took["never"])]
            what = f"{mib} MiB, source of {rate} MB/s, {computing} ms of computing per MiB, lost {when}"
            results.note(what, "s", extra, [patch] * runs, "lost bytes by the source's rate")
            print(f"{what}: {statistics.median(extra):.2f} s longer; lost bytes by the source's rate {patch:.2f} s")


if __name__ == "__main__":
    sys.exit(main(__doc__, {"rates": rates, "links": links, "again": again, "names": names, "probe": probe, "lost": lost}))
