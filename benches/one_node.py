#!/usr/bin/env python3
"""Measures messages on one node: mend run beside stock MPICH, and beside it over libfabric's own shm provider, in one
run, as tables.

    one_node.py [--runs N] [NAME ...]

    latency      IMB PingPong, 0 to 64 B
    bandwidth    IMB PingPong, Sendrecv and Uniband, 4 KiB to 4 MiB
    collectives  IMB Allreduce, Bcast, Barrier, Allgather, Alltoall, Reduce, 8 B to 1 MiB, 2 ranks; also stock MPICH
                 without collective operations of its own in shared memory ("messages")
    exchange     MPI_Sendrecv, 16 KiB to 4 MiB, buffers that lie alike in their cache lines and such that do not
    rma          IMB-RMA Unidir_put, Unidir_get, Bidir_put, Bidir_get, 8 B to 4 MiB, one at a time and many (AGGREGATE)
    crowded      collectives with 4 and 8 ranks, stock with fewer repetitions (8 ranks: to 1 KiB); the ratio that counts has fewer cores
                 than ranks
    switches     what the scheduler does in collective operations with 4 and 8 ranks: time of one, how often a processor is taken from a
                 rank in it, and the part of the ranks' processor time that is the kernel's
    polls        a computation in chunks of about 1, 10 and 50 us, alone and with MPI_Test or MPI_Iprobe after each to which
                 nothing comes, 2 and 4 ranks; a message there and back that is probed for (MPI_Probe), one way
    lammps       LAMMPS melt and rhodo-like (PPPM), 2 ranks, loop time, of three times as many runs; also the fastest runs, since other
                 users of the machine can only make runs slower
    floor        what reading another process's memory costs without MPI: by /proc/PID/mem, by process_vm_readv, and by that
                 between places that do not lie alike in their cache lines; the same, and a ring, between two processes that both wait for the end, one way and
                 both ways; and what it costs to hand 8 bytes from one processor to another

Runs alternate (A B A B …); a figure is the median of the runs, a ratio the median of the pairs' ratios: mend's time
by the other's, so that less is better. The machine should have nothing else to do.
"""

import os
import re
import statistics
import sys

import results
from side_by_side import HERE, MPIEXEC, main, output
from cluster import MEND, Failed, Machine, compile_mpi, compile_plain, find_lammps, imb_programs, mpi_environment

COLLECTIVES = ["Allreduce", "Bcast", "Barrier", "Allgather", "Alltoall", "Reduce"]
# Stock MPICH over libfabric's own provider for one node, with MPICH's shared memory out of the way, as Mend has it.
LIBFABRIC = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "shm"}
# Stock MPICH that makes collective operations of messages, as it must over any provider. Between two ranks of one node it
# has algorithms of its own in shared memory instead.
MESSAGES = {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"}
OTHERS = ["stock", "libfabric"]


def alternate(kinds, ranks, argv, runs, work, read):
    """Alternating runs; per kind the list of what `read` made of the outputs."""
    stock = [MPIEXEC, "-n", str(ranks), *argv]
    figures = {kind: [] for kind in kinds}
    with Machine() as machine:
        commands = {
            "stock": (stock, mpi_environment()),
            "messages": (stock, {**mpi_environment(), **MESSAGES}),
            "libfabric": (stock, {**mpi_environment(), **LIBFABRIC}),
            "mend": ([MEND, "run", "-q", "-n", str(ranks), *argv], machine.environment),
        }
        for _ in range(runs):
            for kind in kinds:
                figures[kind].append(read(output(*commands[kind], work)))
    return figures


def imb_tables(text):
    """The tables of an IMB run: {benchmark: {bytes: microseconds per message or call}}."""
    tables, name, time = {}, None, None
    for line in text.splitlines():
        words = line.split()
        if line.startswith("# Benchmarking"):
            name = words[2]
        elif line.startswith("#    MODE: AGGREGATE"):
            name += ", many"
        elif "#repetitions" in line:
            columns = [word for word in words if word != "#bytes"]
            # The mean over the ranks where there is one; Uniband gives megabytes per second.
            time = next((at for at, word in enumerate(columns) if word.startswith(("t_avg", "t[usec]", "Mbytes/sec"))), None)
            rate, sized = columns[time].startswith("Mbytes"), "#bytes" in line
        elif "time-out.;" in words:
            raise Failed(f"IMB gave up on {name}, which takes too long: is the machine busy?")
        elif words and words[0].isdigit() and name:
            size = int(words[0]) if sized else 0
            value = float(words[time + sized])
            if rate and size == 0:
                continue
            tables.setdefault(name, {})[size] = size / value if rate else value
    return tables


# How results call what is measured beside.
CALLED = {"stock": "stock MPICH", "messages": "stock MPICH of messages", "libfabric": "libfabric's shm"}


def table(title, figures, others, prefix=""):
    """Prints and notes a line per benchmark and size."""
    width = max(map(len, figures["mend"][0])) + 1
    print(f"\n{title}\n{'':>{width}}{'bytes':>9}" + "".join(f"{kind:>12}" for kind in [*others, "mend"]) + "".join(f"{'/ ' + kind:>13}" for kind in others))
    for name, sizes in figures["mend"][0].items():
        for size in sizes:
            column = {kind: [run[name][size] for run in runs] for kind, runs in figures.items()}
            ratios = [statistics.median(ours / theirs for ours, theirs in zip(column["mend"], column[kind])) for kind in others]
            times = [statistics.median(column[kind]) for kind in [*others, "mend"]]
            for kind in others:
                results.note(prefix + name, "us", column["mend"], column[kind], CALLED[kind], size=size)
            print(f"{name:>{width}}{size:>9}" + "".join(f"{time:>10.2f}us" for time in times) + "".join(f"{ratio:>13.3f}" for ratio in ratios), flush=True)


def imb(iterations, sizes, names, *more, program="IMB-MPI1"):
    return [imb_programs()[program], "-iter_policy", "off", "-iter", str(iterations), "-msglog", sizes, *more, *names]


def latency(runs, work):
    figures = alternate([*OTHERS, "mend"], 2, imb(20000, "0:6", ["PingPong"]), runs, work, imb_tables)
    table("latency of short messages, 2 ranks", figures, OTHERS)


def without(figures, size=0):
    """Leaves out messages of so many bytes. Those of 0 come with every run of IMB."""
    for tables in figures.values():
        for sizes in (sizes for run in tables for sizes in run.values()):
            sizes.pop(size, None)


def bandwidth(runs, work):
    # As for collectives: each line that is printed takes a processor from a rank for a while.
    # The first length is measured while what IMB says before is still on its way: one more is, and left out.
    for length, repeated, first, last in (("short", 10, 11, 15), ("long", 1, 15, 22)):
        sizes = f"{first}:{last}"
        figures = alternate([*OTHERS, "mend"], 2, imb(200 * repeated, sizes, ["PingPong", "Sendrecv"]), runs, work, imb_tables)
        more = alternate([*OTHERS, "mend"], 2, imb(10 * repeated, sizes, ["Uniband"]), runs, work, imb_tables)
        for kind, tables in more.items():
            for whole, part in zip(figures[kind], tables):
                whole.update(part)
        without(figures)
        without(figures, 1 << first)
        table(f"time of long messages, 2 ranks, {length}", figures, OTHERS)


def collectives(runs, work):
    # 200 of the short ones would be over in a fraction of a millisecond: one interruption would be all that is measured.
    for length, iterations, sizes in (("short", 5000, "3:13"), ("long", 200, "14:20")):
        others = ["stock", "messages", "libfabric"]
        figures = alternate([*others, "mend"], 2, imb(iterations, sizes, COLLECTIVES), runs, work, imb_tables)
        table(f"collective operations, 2 ranks, {length}", figures, others)


def rma(runs, work):
    names = [f"{way}_{what}" for way in ("Unidir", "Bidir") for what in ("put", "get")]
    for length, iterations, sizes in (("short", 2000, "3:12"), ("long", 100, "13:22")):
        figures = alternate([*OTHERS, "mend"], 2, imb(iterations, sizes, names, program="IMB-RMA"), runs, work, imb_tables)
        without(figures)
        table(f"one-sided operations, 2 ranks, {length}", figures, OTHERS)


def crowded(runs, work):
    # Stock may need 100 ms for one operation, a second for a long one. Where that is not so, there are as many as IMB makes by itself, so
    # that what comes first does not count: channels are opened, ranks that slept in a barrier are woken, and it takes the scheduler some 50 ms to
    # spread them evenly.
    for ranks in (4, 8):
        plans = [("libfabric", 1000, "3:12"), ("libfabric", 200, "13:20"), ("stock", 8, "3:20" if ranks == 4 else "3:10")]
        for other, iterations, sizes in plans:
            argv = imb(iterations, sizes, COLLECTIVES, "-npmin", str(ranks))
            figures = alternate([other, "mend"], ranks, argv, runs, work, imb_tables)
            table(f"collective operations, {ranks} ranks on {os.cpu_count()} cores", figures, [other], f"{ranks} ranks, ")


def named_lines(text):
    """{name: {number: microseconds}} of lines of these three."""
    tables = {}
    for name, number, time in (line.split() for line in text.splitlines()):
        tables.setdefault(name, {})[int(number)] = float(time)
    return tables


def exchange(runs, work):
    program = compile_mpi("mpi_exchange.c", os.path.join(work, "mpi_exchange"))
    table("MPI_Sendrecv by where the buffers lie, 2 ranks", alternate([*OTHERS, "mend"], 2, [program], runs, work, named_lines), OTHERS)


def switches(runs, work):
    program = compile_mpi("mpi_switches.c", os.path.join(work, "mpi_switches"))
    for ranks, count in ((4, 100_000), (8, 20_000)):
        print(f"\n{ranks} ranks on {os.cpu_count()} cores\n{'':>10}{'bytes':>9}" + "".join(f"{kind:>14}{'switches':>10}{'kernel':>8}" for kind in ("libfabric", "mend")))
        figures = alternate(["libfabric", "mend"], ranks, [program, str(count)], runs, work, lambda text: [line.split() for line in text.splitlines()])
        for lines in zip(*(zip(*figures[kind]) for kind in figures)):
            columns = [[statistics.median(float(run[at]) for run in line) for at in (2, 3, 4)] for line in lines]
            name, size = lines[0][0][:2]
            print(f"{name:>10}{size:>9}" + "".join(f"{time:>12.2f}us{count:>10.2f}{part:>8.2f}" for time, count, part in columns), flush=True)
            theirs, ours = ([float(run[2]) for run in line] for line in lines)
            results.note(f"{ranks} ranks, {name}", "us", ours, theirs, CALLED["libfabric"], size=int(size),
                         remark="a processor changes hands {1:.2f} times in it, {2:.2f} of the processors' time is the kernel's".format(*columns[1]))


def polls(runs, work):
    program = compile_mpi("mpi_polls.c", os.path.join(work, "mpi_polls"))
    for ranks in (2, 4):
        table(f"chunks of a computation, and a call after each, by length (3: about 1 us), {ranks} ranks; a probed message",
              alternate([*OTHERS, "mend"], ranks, [program], runs, work, named_lines), OTHERS, f"{ranks} ranks, ")


def lammps(runs, work):
    def read(text):
        return {"loop": {0: float(re.search(r"^Loop time of ([0-9.]+)", text, re.MULTILINE)[1]) * 1e6}}
    melt = os.path.join(os.path.dirname(HERE), "tests", "demo", "in.melt")
    cases = {
        "melt": ["-in", melt, "-var", "x", "16", "-var", "y", "16", "-var", "z", "16", "-var", "steps", "600"],
        "charged (PPPM)": ["-in", os.path.join(HERE, "in.charged")],
    }
    for name, argv in cases.items():
        figures = alternate(["stock", "mend"], 2, [find_lammps(), *argv, "-log", "none"], 3 * runs, work, read)
        table(f"LAMMPS {name}, 2 ranks", figures, ["stock"], f"{name}, ")
        stock, mend = (min(run["loop"][0] for run in figures[kind]) for kind in ("stock", "mend"))
        results.note(f"{name}, fastest", "us", [mend], [stock], CALLED["stock"])
        print(f"{'fastest':>14}{stock:>12.2f}us{mend:>10.2f}us{mend / stock:>13.3f}", flush=True)


def floor(runs, work):
    program = compile_plain("copy_floor.c", os.path.join(work, "copy_floor"))
    plan = [str(number) for log in range(13, 23) for number in (1 << log, max(4, (1 << 25) >> log))]
    tables = [[line.split() for line in output([program, *plan], None, work).splitlines()] for _ in range(runs)]
    print(f"\nreading another process's memory\n{'bytes':>9}{'/proc/PID/mem':>16}{'process_vm_readv':>18}{'ratio':>8}{'not alike':>14}")
    for rows in zip(*tables):
        ours, theirs, apart = ([float(row[column]) for row in rows] for column in (1, 2, 3))
        ratio = statistics.median(mine / other for mine, other in zip(ours, theirs))
        print(f"{rows[0][0]:>9}{statistics.median(ours):>14.2f}us{statistics.median(theirs):>16.2f}us{ratio:>8.3f}"
              f"{statistics.median(apart):>12.2f}us", flush=True)
        for how, times in (("/proc/PID/mem", ours), ("process_vm_readv", theirs), ("process_vm_readv, not alike", apart)):
            results.note(f"reading, {how}", "us", times, size=int(rows[0][0]))
    program = compile_plain("exchange_floor.c", os.path.join(work, "exchange_floor"))
    plan = [str(number) for log in (14, 16, 18, 20) for number in (1 << log, max(4, (1 << 24) >> log))]
    tables = [[line.split() for line in output([program, *plan], None, work).splitlines()] for _ in range(runs)]
    print(f"\nfrom one process to another; each to the other at the same time\n{'bytes':>9}{'ring':>19}{'/proc/PID/mem':>19}{'process_vm_readv':>19}")
    for rows in zip(*tables):
        columns = [[float(row[column]) for row in rows] for column in range(1, 7)]
        times = [statistics.median(column) for column in columns]
        ways = [f"{how}, {way}" for how in ("ring", "/proc/PID/mem", "process_vm_readv") for way in ("one way", "both ways")]
        for way, column in zip(ways, columns):
            results.note(way, "us", column, size=int(rows[0][0]))
        print(f"{rows[0][0]:>9}" + "".join(f"{time:>8.2f}{both:>9.2f}us" for time, both in zip(times[::2], times[1::2])), flush=True)
    program = compile_plain("line_floor.c", os.path.join(work, "line_floor"))
    ways = {}
    for _ in range(runs):
        for line in output([program, "300000"], None, work).splitlines():
            name, time = line.rsplit(maxsplit=1)
            ways.setdefault(name, []).append(float(time))
    print("\n8 bytes from one processor to another, half a round trip")
    for name, times in ways.items():
        results.note(f"8 bytes from one processor to another, {name}", "ns", times)
        print(f"{name:>14}{statistics.median(times):>10.1f}ns", flush=True)


BENCHES = {"latency": latency, "bandwidth": bandwidth, "exchange": exchange, "collectives": collectives, "rma": rma, "crowded": crowded,
           "switches": switches, "polls": polls, "lammps": lammps, "floor": floor}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES))
