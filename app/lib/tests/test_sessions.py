"""How sessions begin and end, and what is registered in them that can't be saved as it is."""

import glob
import os
import signal
import unittest

import h5py

from programs import PYTHON, InDirectory, program, run

SPREAD = """
import mend_app, numpy
x = numpy.arange({first}, {first} + 20000, dtype=float)
with mend_app.Session(program="spread 1") as session:
    with session.context("main"):
        session.array("x", x, {dimension})
        session.checkpoint(now=True)
        print("wrong", int((x != numpy.arange(20000)).sum()))
        {end}
"""


class Sessions(InDirectory):
    def test_a_second_beginning_is_refused_and_harms_nothing(self):
        output = self.good(run(1, [program("sessions"), "twice"], self.directory))
        self.assertIn("mend_app_init_mpi was called already", output)

    def test_a_child_that_was_forked_does_not_keep_the_directory(self):
        script = """
import mend_app, os, signal, time
def fork():
    child = os.fork()
    if child == 0:
        os.close(1), os.close(2)
        time.sleep(60)
        os._exit(0)
    return child
with mend_app.Session():
    first = fork()
with mend_app.Session():
    print("children", first, fork(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
        code, output = self.python(script)
        self.assertEqual(code, -9, output)
        for child in self.line(output, "children ").split()[1:]:
            self.addCleanup(os.kill, int(child), signal.SIGKILL)
        self.good(self.python("import mend_app\nmend_app.Session().close()"))

    def test_a_run_has_not_ended_while_one_rank_is_unfinished(self):
        self.assertNotEqual(run(2, [program("sessions"), "20"], self.directory)[0], 0)
        self.assertTrue(self.checkpoints())
        _, output = run(2, [program("sessions"), "20", "skip"], self.directory)
        self.assertIn("ended before it came to the safe point", output)
        self.assertEqual(glob.glob(self.path("checkpoints", "*ended*")), [])

    def test_values_that_are_spread_anew_are_compared(self):
        self.python(SPREAD.format(first=0, dimension="mend_app.block(20000, 0, 20000)", end="import os; os._exit(1)"))
        (path,) = glob.glob(self.path("checkpoints", "checkpoint-*", "rank-00000.h5"))
        with h5py.File(path) as file:
            offset = file["Context/main()/x"].id.get_offset()
        with open(path, "r+b") as file:
            file.seek(offset + 8000)
            byte = file.read(1)[0]
            file.seek(offset + 8000)
            file.write(bytes([byte ^ 1]))
        code, output = self.python(SPREAD.format(first=7, dimension="mend_app.cyclic(20000, 10, 0, 1)", end=""), verify="values")
        self.assertNotEqual(code, 0, output)
        self.assertNotIn("wrong", output)

    def test_a_restored_generator_spawns_its_next_children(self):
        script = """
import mend_app, numpy, sys
from numpy.random import MT19937, PCG64, Generator, SeedSequence, default_rng
again = "again" in sys.argv
# A run that restarts may begin with any seed.
made = {
    "plain": default_rng(9 if again else 1),
    "list": default_rng([9] if again else [1, 2, 3]),
    "array": default_rng(numpy.array([9] if again else [1, 2, 3], dtype=numpy.uint32)),
    "random": default_rng(),
    "child": default_rng(9 if again else 1).spawn(2)[1],
    "wide": Generator(MT19937(SeedSequence(1, pool_size=8))),
}
with mend_app.Session(program="spawn 1") as session:
    for name, generator in made.items():
        if not again:
            generator.spawn(2)
            generator.random(3)
        assert session.generator(name, generator) == again, name
    if not again:
        made["plain"].spawn(1)
    session.checkpoint(now=not again)
    for name, generator in made.items():
        print(name, generator.random(), [child.random() for child in generator.spawn(2)])
    sys.stdout.flush()
    import os; os._exit(0)
"""
        self.write("spawn.py", script)
        first = self.good(run(0, [PYTHON, "spawn.py"], self.directory))
        again = self.good(run(0, [PYTHON, "spawn.py", "again"], self.directory, restart="newest"))
        lines = lambda output: [line for line in output.splitlines() if "[" in line and "mend-app" not in line]
        self.assertEqual(len(lines(first)), 6, first)
        self.assertEqual(lines(first), lines(again))

    def test_a_generator_of_an_earlier_checkpoint_is_restored_and_a_seed_of_another_kind_is_refused(self):
        script = """
import json, mend_app, numpy
from mend_app._random import Generator
made = numpy.random.default_rng(1)
one = Generator("one", made)
expected = numpy.random.default_rng(1).random()
text = json.dumps({key: value for key, value in json.loads(one.memory.tobytes().rstrip(bytes(1))).items() if key != "seed_sequence"}).encode()
one.memory[:] = 0
one.memory[: len(text)] = numpy.frombuffer(text, dtype=numpy.uint8)
made.random(5)
one.load()
print("same", made.random() == expected)
class Own(numpy.random.bit_generator.ISpawnableSeedSequence):
    def generate_state(self, n_words, dtype=numpy.uint32):
        return numpy.arange(n_words, dtype=dtype)
    def spawn(self, count):
        return [Own() for _ in range(count)]
try:
    Generator("own", numpy.random.Generator(numpy.random.PCG64(Own())))
except TypeError as error:
    print("refused:", error)
"""
        output = self.good(self.python(script))
        self.assertIn("same True", output)
        self.assertIn("refused: own: its seed is a Own", output)

    def test_numbers_that_do_not_fit_are_refused(self):
        script = """
import copy, mend_app, numpy
with mend_app.Session(program="scalars 1") as session:
    state = session.scalars(small=numpy.uint8(7), step=0, x=0.5)
    for name, value in (("small", numpy.int64(300)), ("small", 300), ("small", -1), ("small", numpy.array(300)), ("small", 1.5), ("step", 0.5), ("step", 1 << 63),
                        ("step", numpy.array([1])), ("x", 1j), ("x", numpy.array([1.0]))):
        try:
            setattr(state, name, value)
            print("taken", name, value)
        except (OverflowError, TypeError) as error:
            assert name in str(error), error
    assert (state.small, state.step, state.x) == (7, 0, 0.5)
    state.small, state.step, state.x = numpy.int64(255), numpy.array(3), numpy.float32(0.25)
    assert (state.small, state.step, state.x) == (255, 3, 0.25)
    state.step = True
    state.step += numpy.bool_(True) + 1
    assert copy.copy(state).step == 3 and copy.deepcopy(state).small == 255
    for indices in ([0.5, 1.7], numpy.array([True]), [-1], numpy.array([-1])):
        try:
            mend_app.listed(10, indices)
            print("taken", indices)
        except (TypeError, ValueError) as error:
            pass
    assert mend_app.listed(10, []).extent == 0 and mend_app.listed(10, numpy.array([1, 3], dtype=numpy.int8)).extent == 2
"""
        self.assertNotIn("taken", self.good(self.python(script)))

    def test_what_a_handler_of_a_signal_raises_comes_when_the_library_has_done(self):
        script = """
import mend_app, numpy, signal, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
class Rang(Exception):
    pass
def ring(*_):
    global rang
    rang = time.monotonic()
    raise Rang
signal.signal(signal.SIGALRM, ring)
caught = 0
def late(work):
    global caught
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.5)
        return work()
    # It comes while this rank waits for the other one.
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    since = time.monotonic()
    try:
        work()
    except Rang:
        caught += rang - since < 0.3
        assert signal.getsignal(signal.SIGALRM) is ring
session = mend_app.Session(comm, program="rings 1")
state = session.scalars(step=0)
for state.step in range(3):
    late(lambda: session.checkpoint(now=True))
    assert session.newest == state.step + 1, session.newest
late(session.close)
print("caught", caught, flush=True)
"""
        output = self.good(run(2, [PYTHON, "-c", script], self.directory))
        self.assertEqual(sorted(line for line in output.splitlines() if line.startswith("caught")), ["caught 0", "caught 4"], output)
        self.assertNotIn("Traceback", output)
        self.assertEqual(self.checkpoints(), [2, 3])

    def test_indices_are_read_again_at_checkpoints_whatever_they_are(self):
        script = """
import mend_app, numpy, os, sys
again = "again" in sys.argv
with mend_app.Session(program="listed 1") as session:
    kinds = {"unsigned": numpy.arange(6, dtype=numpy.uint64), "signed": numpy.arange(6), "short": numpy.arange(6, dtype=numpy.int16), "strided": numpy.arange(12, dtype=numpy.uint64)[::2] // 2, "list": list(range(6))}
    values = {name: numpy.arange(6.0) * (not again) for name in kinds}
    for name, indices in kinds.items():
        session.array(name, values[name], mend_app.listed(6, indices))
    if again:
        session.checkpoint()
        print(values)
        assert all((value == numpy.arange(6.0)).all() for value in values.values())
    else:
        for name, indices in kinds.items():
            values[name][:], indices[:] = values[name][::-1].copy(), list(indices)[::-1]
        session.checkpoint(now=True)
        kinds["list"].append(6)
        try:
            session.checkpoint(now=True)
        except ValueError as error:
            print("raised:", error, session.newest)
        sys.stdout.flush()
        os._exit(0)
"""
        self.write("listed.py", script)
        output = self.good(run(0, [PYTHON, "listed.py"], self.directory))
        self.assertIn("raised: a list of 6 indices has 7 now 1", output)
        self.assertEqual(self.checkpoints(), [1])
        self.good(run(0, [PYTHON, "listed.py", "again"], self.directory))

    def test_a_masked_array_and_a_cycle_that_overflows_are_refused(self):
        script = """
import mend_app, numpy
with mend_app.Session(program="masked 1") as session:
    for values, dimensions in ((numpy.ma.masked_equal([1, 2, 3], 2), ()), (numpy.zeros(0), (mend_app.cyclic(100, 2 ** 63, 1, 2),))):
        try:
            session.array("m", values, *dimensions)
            print("taken")
        except Exception as error:
            print("refused:", error)
"""
        output = self.good(self.python(script))
        self.assertNotIn("taken", output)
        self.assertRegex(output, "refused: m: a masked array can't be registered")
        self.assertRegex(output, "refused: .*makes no sense")


if __name__ == "__main__":
    unittest.main()
