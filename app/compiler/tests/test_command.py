"""mend-cc as a command: in a Makefile, with wrong input, and with what it does not take."""

import json
import os
import shutil
import subprocess
import sys
import unittest

from building import MPICC, PROGRAMS, InDirectory, environment, ring

from mend_cc.identity import identity


class Identity(InDirectory):
    """Whether sources count as the same."""

    def told(self, name, text, flags=(), header="int a;"):
        self.write(name, text)
        self.write("other.h", header)
        return identity([{"source": self.path(name), "flags": list(flags), "directory": self.directory}])

    def test_comments_and_white_space_do_not_count(self):
        self.assertEqual(self.told("a.c", "int f(void) { /* it's one */ return 1+2; }\n"), self.told("b.c", "int f(void)\n{\n    return 1 + \\\n 2; // \"two\n}\n"))
        self.assertEqual(self.told("a.f90", "do i = 1, 3\n  x = x + & ! a sum\n  ! of two\n  & y ! it's\nend do\n"), self.told("b.f90", "DO I=1,3; X=X+Y\nend do\n"))
        self.assertEqual(self.told("a.c", "#define A 1  \n#define B 2 /* two */\n\nA \n"), self.told("b.c", "#define A 1\n#define B 2\nA"))
        self.assertEqual(self.told("a.f90", "x = 1  \n  \ny = 2 ! two\nend\t\n"), self.told("b.f90", "x = 1\ny = 2\nend"))

    def test_all_else_counts(self):
        for one, other in (("a + 1", "a + 2"), ("a+ +b", "a++b"), ('"a b"', '"a  b"'), ("#define A 1\n2", "#define A 1 2"), ("#define A 1 \n2", "#define A 1 2"), ("#define f(x) x", "#define f (x) x"), ("'/*' + a /* */", "'/*' + b /* */")):
            self.assertNotEqual(self.told("a.c", one), self.told("a.c", other))
        for one, other in (("x = 1", "x = 2"), ("x = 1\ny = 2", "x = 1y = 2"), ("print *, 'A'", "print *, 'a'"), ("print *, '!', a", "print *, '!', b"), ("!$ x = 1", "!$ x = 2"), ("x = y + &\n  !$ a +&\n z", "x = y + &\n  !$ b +&\n z")):
            self.assertNotEqual(self.told("a.f90", one), self.told("a.f90", other))
        self.assertNotEqual(self.told("a.c", "A", ["-DA=1"]), self.told("a.c", "A", ["-DA=2"]))
        self.assertEqual(self.told("a.c", "A", ["-O2"]), self.told("a.c", "A", ["-O3"]))
        self.assertNotEqual(self.told("a.c", '#include "other.h"'), self.told("a.c", '#include "other.h"', header="int b;"))
        self.assertNotEqual(self.told("a.f90", "include 'other.h'"), self.told("a.f90", "include 'other.h'", header="integer b"))


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


if __name__ == "__main__":
    unittest.main()
