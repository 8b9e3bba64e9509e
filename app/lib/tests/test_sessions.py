"""How sessions begin and end, and what is registered in them that can't be saved as it is."""

import glob
import unittest

import h5py

from programs import InDirectory, program, run

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
