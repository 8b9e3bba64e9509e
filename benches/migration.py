#!/usr/bin/env python3
"""Measures moves of ranks between two lab nodes beside what they are to be compared with, in one run.

    migration.py [--runs N] [--record] [NAME ...]

    live      one rank with 1 GiB, of which it rewrites 8 MiB all the time, live and frozen in turns: how long it stands still, how long
              the whole move takes, what is sent in all and while it stands still; frozen against raw TCP of as many bytes
    empty     one rank that has next to nothing, frozen: everything, as who asks waits for it
    together  512 MiB in 1, 2, 4 or 8 ranks that move in one go: the whole time against that of one rank. Ranks that compute all the time, frozen and live, and ranks
              that rest, stopped (`mend bench migrate`)
    strategies
              1 GiB in 1 and 4 ranks, stopped: through the pipeline, and stored in a file on the way (`mend bench migrate`), with links of any rate
              and of 2 Gbit/s; the rate of the latter against that of the link
    compressed
              512 MiB of numbers as text in one rank, stopped, with and without compression (MEND_MIGRATE_COMPRESS=auto and off) in turns: with links of
              200 Mbit/s, of 1 Gbit/s and of any rate; what is sent and how long it takes
    over-ofi  512 MiB in one rank, stopped and live: over libfabric (its provider `tcp`), read by the target and written by the source, beside one TCP
              connection, in turns (`mend bench migrate --transports`)

MEND_BENCH_MIB sizes the rank of `live`. Times are wall-clock; the machine should have nothing else to do. All of it takes ten minutes.
"""

import os
import statistics
import sys
import tempfile
import time

import results
from side_by_side import main, report
from cluster import VENV, Lab, compile_mpi
from raw_tcp import RawTcp

MIB = 1 << 20
LIVE_MIB = int(os.environ.get("MEND_BENCH_MIB", "1024"))
DIRTY_MIB = 8
TOGETHER_MIB = 512
STRATEGIES_MIB = 1024
COMPRESSED_MIB = 512
OFI_MIB = 512


class Job:
    """Ranks on node1 that fill a table each and rewrite a part of it, and their moves to and fro."""

    def __init__(self, lab, work, ranks, footprint, dirty):
        self.lab, self.ranks, self.here = lab, ranks, 1
        program = compile_mpi("mpi_rewrites.c", os.path.join(work, "rewrites"))
        self.directory = tempfile.mkdtemp(dir=work)
        argv = [program, "-f", str(footprint), "-d", str(dirty), "-u", "go"]
        placed = ("-n", str(ranks), "--hosts", "node1", "--spares", "node2")
        self.job = lab.start(self.directory, "run", *placed, "--", *argv)
        self.name = lab.running(self.job)
        self.job.wait_for(lambda: "begins" in self.job.stderr(), "the tables are filled")

    def move(self, mode):
        """All ranks to the other node: what was told of each, and the milliseconds that it took whoever asked."""
        self.here = 3 - self.here
        ranks = "0" if self.ranks == 1 else f"0-{self.ranks - 1}"
        begun = time.monotonic()
        done = self.lab.verb("migrate", self.name, ranks, "--to", f"node{self.here}", "--mode", mode)
        took = (time.monotonic() - begun) * 1e3
        return (done if isinstance(done, list) else [done]), took

    def end(self):
        self.job.let_go()
        self.job.finish()


def live(runs, work):
    stopped, total, sent, while_stopped = {"live": [], "frozen": []}, {"live": [], "frozen": []}, [], []
    with Lab(2) as lab:
        job = Job(lab, work, 1, LIVE_MIB, DIRTY_MIB)
        # There and back, so that each timed move finds the same.
        size = job.move("frozen")[0][0]["bytes"]
        job.move("frozen")
        raw = []
        with RawTcp(lab, "node1", "node2", size, runs) as tcp:
            for _ in range(runs):
                raw.append(tcp.milliseconds())
                for mode in ("frozen", "live"):
                    (done,), took = job.move(mode)
                    stopped[mode].append(done["stopped_us"] / 1e3)
                    total[mode].append(took)
                    if mode == "live":
                        sent.append(done["bytes"] / size)
                        while_stopped.append(done["precopied"]["stopped_bytes"] / MIB)
        job.end()
    report(f"frozen, {size / MIB:.0f} MiB, in all", raw, total["frozen"], "ms", "raw TCP")
    results.note("live, time stopped", "ms", stopped["live"], stopped["frozen"], "frozen, time stopped")
    results.note("live, in all", "ms", total["live"], total["frozen"], "frozen, in all")
    results.note("live, bytes sent in all", "times the frozen image", sent)
    results.note(f"live, sent while it stands still ({DIRTY_MIB} MiB are rewritten all the time)", "MiB", while_stopped)
    for mode in ("frozen", "live"):
        times = sorted(stopped[mode])
        print(f"{mode:7} stopped {statistics.median(times):8.1f} ms ({times[0]:.1f} to {times[-1]:.1f}), "
              f"in all {statistics.median(total[mode]):8.1f} ms")
    print(f"live    sent {statistics.median(sent):.2f} x the image, {statistics.median(while_stopped):.1f} MiB while it stood still")


def empty(runs, work):
    times = []
    with Lab(2) as lab:
        job = Job(lab, work, 1, 1, 1)
        job.move("frozen")
        for _ in range(runs):
            times.append(job.move("frozen")[1])
        job.end()
    results.note("a rank with next to nothing, frozen, everything", "ms", times)
    print(f"empty   everything {statistics.median(times):8.1f} ms ({min(times):.1f} to {max(times):.1f})")


def together(runs, work):
    times = {(ranks, mode): [] for ranks in (1, 2, 4, 8) for mode in ("frozen", "live")}
    with Lab(2) as lab:
        # One job at a time, since all of its ranks compute; the numbers of ranks take turns.
        for _ in range(runs):
            for ranks in (1, 2, 4, 8):
                job = Job(lab, work, ranks, TOGETHER_MIB // ranks, 1)
                job.move("frozen")
                for mode in ("frozen", "live"):
                    times[ranks, mode].append(job.move(mode)[1])
                job.end()
    for mode in ("frozen", "live"):
        for ranks in (2, 4, 8):
            report(f"{TOGETHER_MIB} MiB in {ranks} ranks, {mode}, in all", times[1, mode], times[ranks, mode], "ms", "one rank")
    moved = []
    with Lab(2) as lab:
        # It goes from one number of ranks to the next: these take turns if it is asked for one run each time.
        chosen = ("--sizes", f"{TOGETHER_MIB}M", "--ranks", "1,2,4,8", "--runs", "1", "--strategies", "pipeline")
        for _ in range(runs):
            moved += lab.verb("bench", "migrate", "--hosts", "node1,node2", *chosen)
    of = lambda ranks: [one["whole_us"] / 1e3 for one in moved if one["ranks"] == ranks]
    for ranks in (2, 4, 8):
        report(f"{TOGETHER_MIB} MiB in {ranks} ranks that rest, stopped, in all", of(1), of(ranks), "ms", "one rank")


def strategies(runs, work):
    """`mend bench migrate`, which alternates the strategies."""
    del work
    link = 2e9 / 8
    for rate, options in (("links of any rate", ()), ("links of 2 Gbit/s", ("--bandwidth", "2gbit"))):
        with Lab(2, *options) as lab:
            for ranks in (1, 4):
                chosen = ("--sizes", f"{STRATEGIES_MIB}M", "--ranks", str(ranks), "--runs", str(runs), "--strategies", "pipeline,local,staged,shared")
                moved = lab.verb("bench", "migrate", "--hosts", "node1,node2", *chosen)
                of = lambda name, figure: [one[figure] / 1e3 for one in moved if one["strategy"] == name]
                pipeline = of("pipeline", "whole_us")
                for name in ("local", "staged", "shared"):
                    report(f"{STRATEGIES_MIB} MiB in {ranks} rank(s), {rate}, in all", of(name, "whole_us"), pipeline, "ms", name)
                if options and ranks == 1:
                    sent = [one["bytes"] / (one["write_us"] + one["transfer_us"]) for one in moved if one["strategy"] == "pipeline"]
                    report("rate through the pipeline", [link / 1e6] * runs, sent, "MB/s", "link of 2 Gbit/s")


def compressed(runs, work):
    """`mend bench migrate`, once with each setting in turns."""
    del work
    for rate, options in (("links of 200 Mbit/s", ("--bandwidth", "200mbit")), ("links of 1 Gbit/s", ("--bandwidth", "1gbit")), ("links of any rate", ())):
        whole, sent = {"off": [], "auto": []}, {"off": [], "auto": []}
        with Lab(2, *options) as lab:
            chosen = ("--sizes", f"{COMPRESSED_MIB}M", "--ranks", "1", "--runs", "1", "--strategies", "pipeline", "--content", "text")
            for _ in range(runs):
                for setting in ("off", "auto"):
                    lab.set("MEND_MIGRATE_COMPRESS", setting)
                    (moved,) = lab.verb("bench", "migrate", "--hosts", "node1,node2", *chosen)
                    whole[setting].append(moved["whole_us"] / 1e3)
                    sent[setting].append(moved["sent_bytes"] / MIB)
        report(f"{COMPRESSED_MIB} MiB of text, {rate}, in all", whole["off"], whole["auto"], "ms", "without compression")
        report(f"{COMPRESSED_MIB} MiB of text, {rate}, sent", sent["off"], sent["auto"], "MiB", "without compression")


def over_ofi(runs, work):
    """`mend bench migrate` with a job for each transport, which take turns."""
    del work
    strategies_, transports = ("pipeline", "live"), ("tcp", "ofi-read", "ofi-write")
    # Ranks of `mend bench` have loaded no libfabric.
    library = os.path.realpath(os.path.join(VENV, "lib", "mpich", "libfabric.so.1"))
    with Lab(2, daemons={"MEND_MIGRATE_LIBFABRIC": library}) as lab:
        chosen = ("--sizes", f"{OFI_MIB}M", "--ranks", "1", "--runs", str(runs), "--strategies", ",".join(strategies_))
        moved = lab.verb("bench", "migrate", "--hosts", "node1,node2", *chosen, "--transports", ",".join(transports))
    for strategy, text in zip(strategies_, ("stopped", "live")):
        of = lambda transport: [one["whole_us"] / 1e3 for one in moved if (one["strategy"], one["transport"]) == (strategy, transport)]
        for transport in transports[1:]:
            report(f"{OFI_MIB} MiB, {text}, {transport}, in all", of("tcp"), of(transport), "ms", "tcp")


BENCHES = {"live": live, "empty": empty, "together": together, "strategies": strategies, "compressed": compressed, "over-ofi": over_ofi}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
