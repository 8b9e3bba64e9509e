"""mend-cc as a command: in a Makefile, with directives, in its checking mode, and where something is wrong."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import unittest

from building import MPICC, PROGRAMS, InDirectory, environment
from cases import skip

RING = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = atoi(argv[1]), in = 0, seen = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 0; step < steps; step++) {
        AT_THE_START
        int out = rank + step;
        MPI_Send(&out, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD);
        IN_BETWEEN
        MPI_Recv(&in, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        seen += in;
    }
    printf("ring digest %d\\n", seen);
    MPI_Finalize();
    return 0;
}
"""
SPREAD = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, steps = atoi(argv[1]), all = 100;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int start = all * rank / size, count = all * (rank + 1) / size - start;
    double *x = malloc(count * sizeof *x), sum = 0, total;
#pragma mend shape(x) mend_app_block(all, start, count, 0, 0)
    for (int i = 0; i < count; i++)
        x[i] = start + i;
    for (int step = 0; step < steps; step++) {
        if (argc > 2 && step == atoi(argv[2]))
            abort();
        for (int i = 0; i < count; i++)
            x[i] = x[i] / 2 + step;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int i = 0; i < count; i++)
        sum += x[i] * (start + i);
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("spread digest %.10g\\n", total);
    MPI_Finalize();
    return 0;
}
"""
CHECKPOINT = "\n#pragma mend checkpoint\n"


def ring(start="", between=""):
    return RING.replace("AT_THE_START", start).replace("IN_BETWEEN", between)


class Make(InDirectory):
    def test_as_the_compiler_of_a_makefile(self):
        for name in ("plate.c", "plate_step.c", "plate.h"):
            shutil.copy(os.path.join(PROGRAMS, name), self.directory)
        for source in ("plate", "plate_step"):
            self.mend_cc(MPICC, "-O2", "-c", f"{source}.c", "-o", f"{source}.o")
        output = self.mend_cc("--report=report.txt", MPICC, "plate.o", "plate_step.o", "-o", "plate", "-lm")
        self.assertNotIn("no place", output)
        self.assertIn(b"largest", self.read("report.txt"))
        self.good(self.run_ranks(2, ["./plate", "20"], calls=5))
        self.assertEqual(self.checkpoints(), [15, 20])

    def test_what_is_no_program_is_compiled_as_it_is(self):
        self.write("plain.c", "#include <stdio.h>\nint main(void) { puts(\"plain\"); return 0; }\n")
        self.assertIn("no place for checkpoints", self.mend_cc(MPICC, "plain.c", "-o", "plain"))
        self.assertIn("plain", self.good(self.run_ranks(1, ["./plain"])))

    def test_sources_alone(self):
        self.write("ring.c", ring())
        self.mend_cc("--source-only", "-o", "out", "ring.c", "--", MPICC)
        changed = self.read("out/ring.c").decode()
        self.assertIn('mend_cc_variable(0, "seen", &seen, MEND_APP_INT32, 0, NULL, MEND_APP_PRIVATE);', changed)
        # All else is as it was.
        kept = [line for line in changed.splitlines() if "mend" not in line and line.strip() not in ("{", "}", "")]
        self.assertEqual(kept, [line for line in ring().splitlines() if line.strip() not in ("{", "}", "")])


    def test_sources_of_one_name(self):
        for directory, function in (("a", "first"), ("b/deep", "second")):
            os.makedirs(self.path(directory))
            self.write(f"{directory}/util.c", f"int {function}(int x) {{ return x + 1; }}\n")
        self.write("ring.c", ring().replace("int main", "int first(int), second(int);\nint main").replace("seen += in", "seen += first(in) + second(in)"))
        sources = ["ring.c", "a/util.c", "b/deep/util.c"]
        self.mend_cc("--source-only", "-o", "out", *sources, "--", MPICC)
        self.mend_cc("--keep", "kept", MPICC, *sources, "-o", "ring")
        for directory in ("out", "kept"):
            self.assertIn(b"first", self.read(f"{directory}/a/util.c"))
            self.assertIn(b"second", self.read(f"{directory}/b/deep/util.c"))
            self.assertIn(b"mend_cc_start", self.read(f"{directory}/ring.c"))

    def test_the_output_before_the_compiler(self):
        self.write("ring.c", ring())
        self.mend_cc("ring.c", "-o", "first", "--", MPICC)
        self.mend_cc("-o", "second", MPICC, "ring.c")
        for name in ("first", "second"):
            self.good(self.run_ranks(2, [f"./{name}", "3"]))
        self.assertIn("-o is given twice: first, second", self.mend_cc("ring.c", "-o", "first", "--", MPICC, "-o", "second", fails=True))

    def test_flags_of_two_words(self):
        os.mkdir(self.path("include"))
        self.write("include/steps.h", "#define EXTRA 1\n")
        self.write("ring.c", ring().replace("int main", "#include <math.h>\n#include <steps.h>\nint main").replace("seen += in", "seen += in + EXTRA + (int)floor(in)"))
        self.mend_cc(MPICC, "-I", "include", "-MD", "-MF", "ring.d", "-c", "ring.c")
        self.write("part.c", "int part(void) { return 1; }\n")
        self.compile("-c", "part.c")
        subprocess.run(["ar", "rc", self.path("libpart.a"), self.path("part.o")], check=True)
        output = self.mend_cc(MPICC, "ring.o", "-o", "ring", "libpart.a", "-l", "m", "-Xlinker", "--as-needed", "-L", ".")
        self.assertNotIn("no place", output)
        # What make knows of the object is what the first compilation has said.
        self.assertNotIn(b"mend-cc-", self.read("ring.d"))
        self.mend_cc(MPICC, "-I", "include", "ring.c", "-o", "ring", "libpart.a", "-l", "m", "-Xlinker", "--as-needed", "-L", ".")
        self.good(self.run_ranks(2, ["./ring", "3"]))


    def test_what_make_reads_of_one_step(self):
        self.write("steps.h", "#define EXTRA 1\n")
        self.write("ring.c", ring().replace("int main", "#include \"steps.h\"\nint main").replace("seen += in", "seen += in + EXTRA"))
        self.mend_cc(MPICC, "-MMD", "-MF", "own.d", "ring.c", "-o", "ring")
        self.mend_cc(MPICC, "-MD", "ring.c", "-o", "ring")
        for name in ("own.d", "ring.d"):
            words = self.read(name).split()
            self.assertEqual(words[:2], [b"ring:", b"ring.c"])
            self.assertIn(b"steps.h", words)


class Directives(InDirectory):
    def test_a_directive_decides_where(self):
        self.write("ring.c", ring(start=CHECKPOINT))
        report = self.mend_cc("--check", "--report", MPICC, "ring.c", "-o", "ring")
        self.assertNotIn("isn't shown", report)
        code, output, errors = self.run_ranks(3, ["./ring", "20"], calls=5)
        self.assertEqual((code, "refused" in errors), (0, False), output + errors)
        self.assertEqual(self.checkpoints(), [15, 20])

    def test_the_checking_mode_refuses_while_a_message_is_in_transit(self):
        self.write("ring.c", ring(between=CHECKPOINT))
        report = self.mend_cc("--check", "--report", MPICC, "ring.c", "-o", "ring")
        self.assertIn("isn't shown", report)
        code, output, errors = self.run_ranks(3, ["./ring", "20"], calls=5)
        self.assertEqual(code, 0, output + errors)
        self.assertIn("refused at safe point 1: 3 messages are in transit", errors)
        self.assertEqual(self.checkpoints(), [])

    def test_exclude(self):
        self.write("ring.c", ring(start="\n#pragma mend exclude(seen)\n"))
        report = self.mend_cc("--report", MPICC, "ring.c", "-o", "ring")
        self.assertIn("seen is excluded by a directive", report)
        self.assertNotIn("    seen (", report)

    def test_exclude_an_allocated_array(self):
        text = ring(start="\n#pragma mend exclude(seen)\n").replace(", seen = 0", ", *seen = calloc(1, sizeof *seen)").replace("seen += in", "*seen += in").replace("\\n\", seen)", "\\n\", *seen)")
        self.write("ring.c", text)
        report = self.mend_cc("--report", MPICC, "ring.c", "-o", "ring")
        self.assertRegex(report, r"Safe point 1.*\n(.*\n)*.*seen is excluded by a directive")
        self.assertNotIn("    seen (", report)

    def test_exclude_leaves_out_no_other_array_of_that_name(self):
        text = ring(start="\n#pragma mend exclude(u)\n").replace(", seen = 0", ", seen = 0, *u = calloc(9, sizeof *u);\n    struct { double *u; } grid = {0}").replace("IN_BETWEEN", "")
        text = text.replace("    MPI_Init(", "    grid.u = calloc(9, sizeof *grid.u);\n    MPI_Init(").replace("seen += in;", "seen += in; u[1] += in; grid.u[1] += in;").replace("seen);", "seen + u[1] + (int)grid.u[1]);")
        self.write("ring.c", text)
        self.assertIn("u is excluded by a directive", self.mend_cc(MPICC, "ring.c", "-o", "ring"))
        report = self.mend_cc("--report", MPICC, "ring.c", "-o", "ring")
        self.assertRegex(report, r"\n    u \(ring.c:\d+; as large as allocated")

    def test_directives_that_name_nothing(self):
        for directive, message in (("exclude(seeen)", "seeen"), ("exclude(seen, stepp)", "stepp"), ("shape(inn) mend_app_whole(1)", "inn")):
            self.write("ring.c", ring(start=f"\n#pragma mend {directive}\n"))
            self.assertIn(f"ring.c:13: the program has no variable {message}", self.mend_cc(MPICC, "ring.c", "-o", "ring", fails=True))
        for directive, message in (("exclude seen", "`exclude(NAME, ...)` is expected"), ("exclude()", "`exclude(NAME, ...)` is expected"), ("shape(in)", "`shape(NAME) DIMENSION, ...` is expected")):
            self.write("ring.c", ring(start=f"\n#pragma mend {directive}\n"))
            self.assertIn(f"ring.c:13: {message}", self.mend_cc(MPICC, "ring.c", "-o", "ring", fails=True))
        self.write("ring.c", ring(start="\n#pragma mend shape(argv) mend_app_whole(1)\n"))
        self.assertIn("ring.c:13: shape(argv) does nothing", self.mend_cc(MPICC, "ring.c", "-o", "ring"))

    def test_a_shape_restarts_on_other_ranks(self):
        self.write("spread.c", SPREAD)
        self.spread_restarts()

    def spread_restarts(self):
        self.mend_cc(MPICC, "-O2", "spread.c", "-o", "spread")
        expected = self.good(self.run_ranks(1, ["./spread", "30"], restart="none"))
        self.assertNotEqual(self.run_ranks(2, ["./spread", "30", "20"], calls=7)[0], 0)
        code, output, errors = self.run_ranks(3, ["./spread", "30"])
        self.assertEqual((code, output), (0, expected), errors)
        self.assertIn("of 2 ranks is restored", errors)

    def test_a_shape_of_structures(self):
        # They have no pointers: bytes, all of them.
        text = SPREAD.replace("double *x", "struct cell { int number; double value; } *x").replace("*x), sum", "*x); double sum").replace("x[i]", "x[i].value")
        self.write("spread.c", text.replace("x[i].value = start + i;", "x[i] = (struct cell){i, start + i};"))
        self.spread_restarts()

    def test_a_shape_of_what_cannot_be_spread_is_refused(self):
        self.write("spread.c", SPREAD.replace("double *x", "struct cell { double *to, value; } *x").replace("*x), sum", "*x); double sum")
                   .replace("x[i] = start + i;", "x[i] = (struct cell){&sum, start + i};").replace("x[i]", "x[i].value").replace("x[i].value = (struct", "x[i] = (struct")
                   .replace("x[i].value * (start", "*x[i].to * 0 + x[i].value * (start"))
        self.assertRegex(self.mend_cc(MPICC, "spread.c", "-o", "spread"), r"spread.c:\d+: x can't be spread over ranks: .*pointers")

    def refused_shape(self, text, message):
        self.write("spread.c", text)
        self.mend_cc(MPICC, "-O2", "spread.c", "-o", "spread")
        code, output, errors = self.run_ranks(2, ["./spread", "30"], calls=7)
        self.assertNotEqual(code, 0, output + errors)
        self.assertRegex(errors, message)
        self.assertEqual(self.checkpoints(), [])

    def test_a_shape_that_is_larger_than_its_array(self):
        self.refused_shape(SPREAD.replace("count, 0, 0", "count, 1, 1"), r"x: its shape has 416 bytes, and x has 400")
        fixed = SPREAD.replace("double *x = malloc(count * sizeof *x), sum", "static double x[100]; double sum")
        self.refused_shape(fixed.replace("count, 0, 0", "count, 1, 50"), r"x: its shape has 808 bytes, and x has 800")

    def test_a_shape_that_the_library_refuses_ends_the_program(self):
        self.refused_shape(SPREAD.replace("start, count, 0", "start + 90, count, 0"), r"its distribution makes no sense[^\0]*mend-cc: x can't be registered or restored")


class Wrong(InDirectory):
    def says(self, expected, *arguments):
        self.assertIn(expected, self.mend_cc(*arguments, fails=True))

    def test_errors_name_the_way_out(self):
        self.write("broken.c", "#include <mpi.h>\nint main(void) { return oops; }\n")
        self.write("odd.c", "#include <mpi.h>\n#pragma mend chekpoint\nint main(void) { return 0; }\n")
        self.write("ring.c", ring())
        self.says("broken.c:2", MPICC, "broken.c", "-o", "broken")
        self.says("odd.c:2: there is no directive `mend chekpoint`: checkpoint, exclude, shape", MPICC, "odd.c")
        self.says("there is no file absent.c", MPICC, "absent.c")
        self.says("which compiler?", "ring.c", "--")
        self.says("there is no compiler `nocc`", "nocc", "ring.c")
        self.says("--source-only needs -o DIR", "--source-only", "ring.c", "--", MPICC)
        self.says("is the source itself", "--source-only", "-o", ".", "ring.c", "--", MPICC)

    def note(self, name, text):
        """An object with a note that it comes of a Fortran source; it comes of C, for there may be no Fortran compiler."""
        self.write(f"{name}.f90", text)
        self.write(f"{name}.c", f"int {name};\n")
        self.compile("-c", f"{name}.c")
        self.write(f"{name}.o.mend-cc", json.dumps({"source": self.path(f"{name}.f90"), "flags": [], "directory": self.directory, "compiler": [MPICC]}))

    def as_it_is(self, message, *arguments):
        output = self.mend_cc(*arguments, "-o", "ring")
        self.assertIn(message, output)
        self.assertIn("the program is compiled as it is", output)
        self.good(self.run_ranks(2, ["./ring", "3"]))
        os.remove(self.path("ring"))

    def test_what_cannot_be_analysed_is_compiled_as_it_is(self):
        self.write("ring.c", ring())
        self.mend_cc(MPICC, "-c", "ring.c")
        self.note("part", "module part\n use other\nend module\n")
        self.note("other", "module other\n use part\nend module\n")
        self.as_it_is("C and Fortran in one program can't be analysed together", MPICC, "ring.o", "part.o")
        self.compile("-c", "ring.c", "-o", "plain.o")
        self.note("empty", "")
        os.rename(self.path("plain.o"), self.path("empty.o"))
        self.as_it_is("the modules of these sources use each other in a circle", MPICC, "empty.o", "part.o", "other.o")
        os.remove(self.path("empty.o.mend-cc"))
        self.as_it_is("empty.o wasn't compiled by mend-cc", MPICC, "empty.o")
        os.rename(self.path("ring.c"), self.path("gone.c"))
        self.as_it_is("ring.o: its source", MPICC, "ring.o")

    def test_sources_that_are_not_read(self):
        self.write("ring.c", ring().replace("int main", "int part(void);\nint main").replace("seen += in", "seen += in + part()"))
        self.write("part.cpp", "extern \"C\" int part() { return 1; }\n")
        self.assertIn("part.cpp: C++ isn't read", self.mend_cc(MPICC, "-c", "part.cpp"))
        self.as_it_is("part.cpp: C++ isn't read: what is in it can't be seen", MPICC, "ring.c", "part.cpp")
        self.write("ring.cpp", ring())
        self.as_it_is("ring.cpp: C++ isn't read", MPICC, "ring.cpp")
        # Beside those, places are found all the same.
        self.write("ring.c", ring())
        output = self.mend_cc(MPICC, "ring.c", "part.cpp", "-o", "ring")
        self.assertIn("part.cpp: C++ isn't read", output)
        self.good(self.run_ranks(2, ["./ring", "20"], calls=5))
        self.assertEqual(self.checkpoints(), [15, 20])

    def test_what_python_lacks_is_named(self):
        script = "import sys\nsys.modules['clang'] = None\nfrom mend_cc.__main__ import main\nsys.exit(main())\n"
        done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", "mend-cc: clang is missing: pip install libclang fparser\n"))

    def test_no_traceback(self):
        self.write("ring.c", ring())
        self.write("file", "")
        self.says("the report can't be written to missing/report.txt: No such file or directory", "--report=missing/report.txt", MPICC, "ring.c", "-o", "ring")
        self.says("file/ring.c can't be written: ", "--keep", "file", MPICC, "ring.c", "-o", "ring")
        self.says("file/ring.c can't be written: ", "--source-only", "-o", "file", "ring.c", "--", MPICC)
        self.write("fparser.py", "raise ModuleNotFoundError('no', name='fparser')\n")
        self.note("part", "program part\nend program\n")
        self.says("fparser is missing: pip install libclang fparser", MPICC, "part.o", "-o", "ring")
        self.mend_cc(MPICC, "-c", "ring.c")
        self.write("ring.o.mend-cc", "{")
        self.assertIn("the note ring.o.mend-cc can't be read", self.mend_cc(MPICC, "ring.o", "-o", "ring"))

    def test_options_that_lead_nowhere(self):
        self.write("ring.c", ring())
        self.says("there is no libmend-app in nowhere (--app)", "--app", "nowhere", MPICC, "ring.c", "-o", "ring")
        self.says("--report=report.txt", "--report", "report.txt", MPICC, "ring.c", "-o", "ring")
        about = self.mend_cc("--help")
        for word in ("--report[=FILE]", "/usr/local", "MEND_CC_MPICC"):
            self.assertIn(word, about)

    def test_it_says_what_cannot_be_seen(self):
        text = ring().replace("int main", "void outside(int *);\nint main").replace("seen += in;", "seen += in;\n        outside(&seen);")
        self.write("ring.c", text)
        self.write("outside.c", "void outside(int *x) { ++*x; }\n")
        self.compile("-c", "outside.c")
        report = self.mend_cc("--report", MPICC, "ring.c", "outside.o", "-o", "ring")
        self.assertIn("outside.o wasn't compiled by mend-cc", report)
        self.assertRegex(report, r"ring.c:\d+: outside\(\) isn't part of the program, and isn't known")
        self.assertIn("no place for checkpoints", report)

    def test_a_random_generator_with_hidden_state_is_refused(self):
        self.write("ring.c", ring().replace("seen += in;", "seen += in + rand() % 3;"))
        self.assertIn("rand() is called between checkpoints", self.mend_cc("--report", MPICC, "ring.c", "-o", "ring"))


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

    def build(self):
        self.write("ring.c", self.text)
        self.mend_cc(MPICC, "ring.c", "-o", "ring")

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
        self.ends(r"has none of its safe points \(main loop 2\).*MEND_APP_RESTART=none", restart="newest")

    def test_a_safe_point_that_is_not_reached(self):
        self.good(self.run_ranks(2, ["./ring", "20"], calls=5))
        self.text = self.text.replace('    FILE *log = fopen("log", "w");\n', "").replace('    printf("ring digest', '    if (steps)\n        printf("ring digest')
        self.build()
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
        for name in ("rod.f90", "rod_grid.f90"):
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

    def test_killed_and_restarted(self):
        mpif90, mpiexec = self.programs()
        self.compile("-O2", "-o", "plain", "rod_grid.f90", "rod.f90", compiler=mpif90)
        expected = self.good(self.run_ranks(2, ["./plain", "60"], mpiexec))
        # By objects, as a Makefile does.
        self.mend_cc(mpif90, "-O2", "-c", "rod_grid.f90")
        self.mend_cc(mpif90, "-O2", "-c", "rod.f90")
        every = os.environ.get("MEND_CC_EACH")
        for options in ([], ["--drop", "step"], *([["--drop", "u"], ["--drop", "total"]] if every else [])):
            with self.subTest(options=options):
                report = self.mend_cc("--poison", "--report", *options, mpif90, "rod.o", "rod_grid.o", "-o", "rod")
                self.assertNotRegex(report, r"\n    next \(")
                self.forget()
                self.assertNotEqual(self.run_ranks(2, ["./rod", "60", "45"], mpiexec, calls=7)[0], 0)
                code, output, errors = self.run_ranks(2, ["./rod", "60"], mpiexec)
                self.assertEqual(code, 0, output + errors)
                self.assertIn("checkpoint 42 of 2 ranks is restored", errors)
                self.assertEqual(output == expected, not options)


if __name__ == "__main__":
    unittest.main()
