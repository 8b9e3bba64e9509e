"""How programs of mend-cc start: with what is wrong, with files, in Fortran."""

import fcntl
import os
import re
import shutil
import subprocess
import unittest

from building import MPICC, PROGRAMS, InDirectory, ring
from cases import skip

CELLS = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static struct cell { struct cell *next; int value; } cells[2];

int main(int argc, char **argv) {
    int rank, steps = atoi(argv[1]), stop = argc > 2 ? atoi(argv[2]) : -1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    cells[0].next = &cells[1];
    for (; cells[0].value < steps; cells[0].value++) {
        if (cells[0].value == stop)
            abort();
        cells[0].next->value += cells[0].value + rank;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    printf("cells digest %d\\n", cells[1].value);
    MPI_Finalize();
    return 0;
}
"""


class Start(InDirectory):
    """What hasn't its checkpoints doesn't begin anew as if nothing was wrong."""

    def setUp(self):
        super().setUp()
        # What a run from step 0 would destroy.
        self.text = ring().replace("    for (int step", '    FILE *log = fopen("log", "w");\n    for (int step')
        self.build()

    def build(self, *options):
        self.write("ring.c", self.text)
        self.mend_cc(*options, MPICC, "ring.c", "-o", "ring")

    def name(self):
        """That of the program of the newest checkpoint."""
        return re.search(r"\nprogram (ring, sources [0-9a-f]{12})\n", self.read(f"checkpoints/checkpoint-{self.checkpoints()[-1]:06}/manifest").decode()).group(1)

    def ends(self, message, steps=20, **settings):
        self.write("log", "kept")
        code, output, errors = self.run_ranks(2, ["./ring", str(steps)], **settings)
        self.assertNotEqual(code, 0, errors)
        self.assertRegex(errors, message)
        self.assertNotIn("digest", output)
        self.assertEqual(self.read("log"), b"kept")

    def test_settings_and_directories(self):
        self.ends("MEND_APP_CALLS: calls = often: a whole number[^\0]*mend-cc: the program ends", calls="often")
        self.ends("restart = newset: auto[^\0]*mend-cc: the program ends", restart="newset")
        self.write("file", "")
        self.ends("file[^\0]*mend-cc: the program ends", directory="file")
        os.mkdir(self.path("checkpoints"))
        with open(self.path("checkpoints", "lock"), "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.ends("another run uses the directory[^\0]*mend-cc: the program ends")

    def test_a_state_of_another_source(self):
        self.good(self.run_ranks(2, ["./ring", "20"], calls=5))
        self.text = self.text.replace("    FILE *log", "    for (int i = 0; i < 3; i++)\n        in = i;\n    FILE *log")
        self.build()
        self.ends("is of program .ring, sources .*, and this is .ring, sources .*restart = none.*mend-cc --name", restart="newest")
        self.build("--name", self.name())
        self.ends(r"has none of its safe points \(main loop 2\).*MEND_APP_RESTART=none", restart="newest")

    def test_a_safe_point_that_is_not_reached(self):
        self.good(self.run_ranks(2, ["./ring", "20"], calls=5))
        self.text = self.text.replace('    FILE *log = fopen("log", "w");\n', "").replace('    printf("ring digest', '    if (steps)\n        printf("ring digest')
        self.build("--name", self.name())
        self.ends("ended before it came to the safe point[^\0]*mend-cc: the program ends", steps=0, restart="newest")

    def test_a_place_with_structures_alone(self):
        self.write("cells.c", CELLS)
        self.mend_cc(MPICC, "cells.c", "-o", "cells")
        expected = self.good(self.run_ranks(1, ["./cells", "20"]))
        self.assertNotEqual(self.run_ranks(1, ["./cells", "20", "14"], calls=4)[0], 0)
        code, output, errors = self.run_ranks(1, ["./cells", "20"])
        self.assertEqual((code, output), (0, expected), errors)
        self.assertIn("checkpoint 12 of 1 ranks is restored", errors)


class Files(InDirectory):
    def test_several_files_of_one_place(self):
        before = '    FILE *logs[3];\n    for (int i = 0; i < 3; i++) {\n        char name[20];\n        sprintf(name, "log-%d-%d", rank, i);\n        logs[i] = fopen(name, "w");\n    }\n    for (int step'
        text = ring().replace("    for (int step", before).replace("seen += in;", 'seen += in;\n        for (int i = 0; i < 3; i++)\n            fprintf(logs[i], "%d %d\\n", step, in);\n        if (step == 17 && argc > 2)\n            abort();')
        self.kept(text)
        self.kept(text.replace("FILE *logs[3]", "FILE **logs = malloc(3 * sizeof *logs)"))
        self.kept(text.replace("FILE *logs[3]", "struct { FILE *log; } logs[3]").replace("logs[i]", "logs[i].log"))

    def kept(self, text):
        self.forget()
        self.write("ring.c", text)
        self.mend_cc(MPICC, "ring.c", "-o", "ring")
        self.good(self.run_ranks(2, ["./ring", "20"]))
        names = [f"log-{rank}-{number}" for rank in range(2) for number in range(3)]
        expected = [self.read(name) for name in names]
        self.assertNotEqual(self.run_ranks(2, ["./ring", "20", "stop"], calls=5)[0], 0)
        self.good(self.run_ranks(2, ["./ring", "20"]))
        self.assertEqual([self.read(name) for name in names], expected)


    def test_a_place_that_opens_one_file_after_another(self):
        opened = '    FILE *log = NULL;\n    for (int i = 0; i < 2; i++) {\n        char name[20];\n        sprintf(name, "log-%d-%d", rank, i);\n        log = fopen(name, "w");\n        if (i == 0) {\n            fprintf(log, "longer than all that the other one gets\\n");\n            fclose(log);\n        }\n    }\n    for (int step'
        text = ring().replace("    for (int step", opened).replace("seen += in;", 'seen += in;\n        fprintf(log, "%d\\n", in);\n        if (step == 4 && argc > 2)\n            abort();')
        self.write("ring.c", text)
        self.mend_cc(MPICC, "ring.c", "-o", "ring")
        names = ("log-0-0", "log-0-1", "log-1-0", "log-1-1")
        self.good(self.run_ranks(2, ["./ring", "6"]))
        expected = [self.read(name) for name in names]
        self.assertNotEqual(self.run_ranks(2, ["./ring", "6", "stop"], calls=3)[0], 0)
        code, output, errors = self.run_ranks(2, ["./ring", "6"])
        self.assertEqual(code, 0, output + errors)
        self.assertIn("is restored", errors)
        self.assertEqual([self.read(name) for name in names], expected)

    def test_files_that_are_used_before_the_loop(self):
        before = """    char name[20];
    sprintf(name, "log-%d", rank);
    FILE *in = fopen("in", "r"), *log = fopen(name, "w");
    sprintf(name, "more-%d", rank);
    FILE *more = fopen(name, "a");
    int factor, number;
    if (!in || !log || !more || fscanf(in, "%d", &factor) != 1)
        abort();
    fprintf(log, "factor %d\\n", factor);
    fprintf(more, "begins\\n");
    fflush(log);
    for (int step"""
        inside = 'if (fscanf(in, "%d", &number) != 1)\n            abort();\n        seen += factor * number;\n        fprintf(log, "%d\\n", number);\n        fprintf(more, "%d\\n", seen);\n        if (step == 17 && argc > 2)\n            abort();'
        self.write("ring.c", ring().replace("    for (int step", before).replace("seen += in;", inside).replace(", in = 0, seen", ", got = 0, seen").replace("&in, 1", "&got, 1"))
        self.write("in", "3\n" + "".join(f"{number}\n" for number in range(100, 120)))
        self.mend_cc(MPICC, "ring.c", "-o", "ring")
        names = ("log-0", "log-1", "more-0", "more-1")
        output = self.good(self.run_ranks(2, ["./ring", "20"]))
        expected = [self.read(name) for name in names]
        for name in names:
            os.remove(self.path(name))
        self.assertNotEqual(self.run_ranks(2, ["./ring", "20", "stop"], calls=5)[0], 0)
        code, again, errors = self.run_ranks(2, ["./ring", "20"])
        self.assertEqual((code, sorted(again.splitlines())), (0, sorted(output.splitlines())), errors)
        self.assertIn("is restored", errors)
        self.assertEqual([self.read(name) for name in names], expected)

    def test_a_file_after_the_end_of_mpi(self):
        text = ring().replace("    for (int step", '    FILE *log = fopen(rank ? "other" : "log", "w");\n    for (int step').replace("seen += in;", 'seen += in;\n        fprintf(log, "%d\\n", in);')
        self.write("ring.c", text.replace("    MPI_Finalize();", '    MPI_Finalize();\n    fprintf(log, "end\\n");\n    if (fclose(log) != 0)\n        return 1;'))
        self.mend_cc(MPICC, "ring.c", "-o", "ring")
        self.good(self.run_ranks(2, ["./ring", "3"]))
        self.assertEqual(self.read("log"), b"1\n2\n3\nend\n")

    def test_a_full_disk_ends_the_run_with_an_error(self):
        self.write("ring.c", ring().replace("    for (int step", '    FILE *log = fopen("/dev/full", "w");\n    for (int step').replace("seen += in;", 'seen += in;\n        fprintf(log, "%d\\n", in);'))
        self.mend_cc(MPICC, "ring.c", "-o", "ring")
        code, output, errors = self.run_ranks(2, ["./ring", "3"])
        self.assertNotEqual(code, 0, output + errors)
        self.assertIn("can't be written: No space left on device", errors)
        self.assertFalse(os.path.exists(self.path("checkpoints", "ended")))


class Fortran(InDirectory):
    def programs(self):
        """Debian's compiler and launcher; its sources are copied."""
        if not shutil.which("mpif90.mpich"):
            skip("mend-cc for Fortran", "Debian's mpif90.mpich isn't there (apt-get install mpich libmpich-dev gfortran)")
        for name in ("rod.f90", "rod_grid.f90", "sponge.f90", "spread.f90"):
            shutil.copy(os.path.join(PROGRAMS, name), self.directory)
        return shutil.which("mpif90.mpich"), shutil.which("mpiexec.mpich")

    def test_flags_and_directives(self):
        mpif90, _ = self.programs()
        os.mkdir(self.path("mods"))
        self.write("part.c", "int part(void) { return 1; }\n")
        self.compile("-c", "part.c")
        subprocess.run(["ar", "rc", self.path("libpart.a"), self.path("part.o")], check=True)
        build = (mpif90, "-J", "mods", "-I", "mods", "rod_grid.f90", "rod.f90", "libpart.a", "-l", "m", "-o", "rod")
        self.assertNotIn("as it is", self.mend_cc(*build))
        text = self.read("rod.f90").decode()
        self.write("rod.f90", text.replace("  do step = 1", "  !$mend exclude(Total)\n  do step = 1"))
        report = self.mend_cc("--report", *build)
        self.assertIn("total is excluded by a directive", report)
        self.write("rod.f90", text.replace("  do step = 1", "  !$mend exclude(totel)\n  do step = 1"))
        self.assertIn("the program has no variable totel", self.mend_cc(*build, fails=True))

    def test_the_checking_mode_needs_calls_that_pass_through_c(self):
        self.programs()
        if not shutil.which("mpif90.openmpi"):
            skip("mend-cc's checking mode in Fortran", "Open MPI isn't there (apt-get install openmpi-bin libopenmpi-dev gfortran)")
        text = self.mend_cc("--check", shutil.which("mpif90.openmpi"), "rod_grid.f90", "rod.f90", "-o", "rod", fails=True)
        self.assertRegex(text, r"Fortran's calls don't in Open MPI .*without --check")
        self.assertFalse(os.path.exists(self.path("rod")))

    def test_killed_and_restarted(self):
        mpif90, mpiexec = self.programs()
        self.compile("-O2", "-o", "plain", "rod_grid.f90", "rod.f90", compiler=mpif90)
        expected = self.good(self.run_ranks(2, ["./plain", "60"], mpiexec))
        # By objects, as a Makefile does.
        self.mend_cc(mpif90, "-O2", "-c", "rod_grid.f90")
        self.mend_cc(mpif90, "-O2", "-c", "rod.f90")
        for options in ([], *([["--drop", name] for name in ("u", "step", "total")] if os.environ.get("MEND_CC_EACH") else [])):
            with self.subTest(options=options):
                report = self.mend_cc("--poison", "--report", *options, mpif90, "rod.o", "rod_grid.o", "-o", "rod")
                self.assertNotRegex(report, r"\n    next \(")
                self.forget()
                self.assertNotEqual(self.run_ranks(2, ["./rod", "60", "45"], mpiexec, calls=7)[0], 0)
                # As much as a list by hand.
                self.assertLessEqual(self.saved_bytes(), 50 * 22 * 8 + 8 + 4)
                code, output, errors = self.run_ranks(2, ["./rod", "60"], mpiexec)
                self.assertEqual(code, 0, output + errors)
                self.assertIn("checkpoint 42 of 2 ranks is restored", errors)
                self.assertEqual(output == expected, not options)

    def test_a_shape_restarts_on_other_ranks(self):
        mpif90, mpiexec = self.programs()
        self.assertNotIn("does nothing", self.mend_cc("--poison", mpif90, "-O2", "-o", "spread", "spread.f90"))
        expected = self.good(self.run_ranks(1, ["./spread", "30", "-1", "1"], mpiexec, restart="none"))
        self.forget()
        self.assertNotEqual(self.run_ranks(2, ["./spread", "30", "20", "1"], mpiexec, calls=7)[0], 0)
        code, output, errors = self.run_ranks(3, ["./spread", "30", "-1", "1"], mpiexec)
        self.assertEqual((code, output), (0, expected), errors)
        self.assertIn("checkpoint 14 of 2 ranks is restored", errors)
        code, output, errors = self.run_ranks(1, ["./spread", "30", "-1", "0"], mpiexec, restart="none")
        self.assertNotEqual(code, 0, output)
        self.assertIn("u: dimension 2 of its shape has 61 elements, and u has 62 in memory, so the program ends", errors)

    def test_an_array_that_a_run_does_not_allocate_and_two_places_behind_a_call(self):
        mpif90, mpiexec = self.programs()
        report = self.mend_cc("--report", mpif90, "-O2", "-o", "sponge", "sponge.f90")
        self.assertIn("main/relax loop 3", report)
        for wanted in ("0", "1"):
            expected = self.good(self.run_ranks(1, ["./sponge", wanted, "20", "-1"], mpiexec, restart="none"))
            self.forget()
            self.assertNotEqual(self.run_ranks(1, ["./sponge", wanted, "20", "14"], mpiexec, calls=4)[0], 0)
            self.assertLessEqual(self.saved_bytes(), (100 + int(wanted) * 300) * 8 + 8 + 4)
            code, output, errors = self.run_ranks(1, ["./sponge", wanted, "20", "-1"], mpiexec)
            self.assertEqual((code, output), (0, expected), errors)
            self.assertIn("checkpoint 12 of", errors)


if __name__ == "__main__":
    unittest.main()
