"""Programs with lines of OpenMP and OpenACC: where code is inserted beside them, what threads do at once, what devices and threads have copies of."""

import os
import re
import subprocess
import tempfile
import unittest

from building import OUT, InDirectory
from test_analysis import FLAGS, FRAME
from test_analysis import analysed as analysed_with
from test_sources import PRINT, InRoom

from mend_cc.analyse import analyse
from mend_cc.command import Line
from mend_cc.pragmas import compiled, front, turned_on
from mend_cc.rewrite import Rewriter

RUNTIME = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "mend_cc", "runtime")
U = "static double u[1000];\nstatic long state = 1;\n%s"
STEP = "for (int i = 0; i < 1000; i++) u[i] += x;"
BARRIER = "MPI_Barrier(MPI_COMM_WORLD);"
PRINTED = 'printf("%g\\n", u[3]);'
THREADS = """
#include "mend_cc.h"
#include <pthread.h>
#include <stdlib.h>
void *mend_cc_need(void *memory) {
    return memory ? memory : (abort(), NULL);
}
static void *work(void *data) {
    for (int i = 1; i < 300; i++)
        mend_cc_free(mend_cc_realloc(2, mend_cc_malloc(1, 8), 64 * i));
    return data;
}
int main(void) {
    pthread_t all[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&all[i], NULL, work, NULL);
    for (int i = 0; i < 8; i++)
        pthread_join(all[i], NULL);
    return 0;
}
"""


def analysed(*parts):
    """With options that turn on devices: clang has them as definitions."""
    return analysed_with(*parts, flags=["-D_OPENMP=201511", "-D_OPENACC=201711"])


class Lines(InRoom):
    def test_where_code_goes(self):
        text = "{\n    a();\n    #pragma omp parallel for \\\n        schedule(static) /* as\n    it is */\n    // so\n    for (;;) b();\n"
        for between, place in (("", "#pragma omp"), ("    c();\n", "for"), ("#pragma mend checkpoint\n", "#pragma omp"), ("#define X\n", "for"), ("#ifdef Y\n#pragma omp simd\n#endif\n", "#pragma omp parallel")):
            with self.subTest(between=between):
                changed = text.replace("    for", between + "    for")
                self.assertEqual(front(compiled(changed.encode()), changed.index("for (;;)")), changed.index(place if place != "for" else "for (;;)"))
        for within, place in (("#ifdef Y\n#pragma omp simd\n#endif\n", "#ifdef"), ("#ifdef Y\n", "for"), ("#ifdef Y\n#pragma omp simd\n#else\n", "for"), ("#pragma mend shape(u) 1\n", "for")):
            with self.subTest(within=within):
                changed = f"a();\n{within}for (;;) b();\n"
                self.assertEqual(front(compiled(changed.encode()), changed.index("for")), changed.index(place))

    def test_loops_that_are_left_out(self):
        found = self.analysed(FRAME % (U % "", f"\n#pragma omp parallel for\nfor (int k = 0; k < 900; k++) {STEP}", f"{STEP} {BARRIER}", PRINTED))
        self.assertRegex(self.rewritten(found), r"mend_cc_skip.*\n.*#pragma omp parallel for\n\s*for")

    def test_lines_that_are_indented(self):
        found = self.analysed(FRAME % (U % "", f"\n    #pragma omp parallel for\n    for (int k = 0; k < 900; k++) {STEP}", f"\n\t#  pragma omp simd\n\t{STEP} {BARRIER}", PRINTED))
        self.assertEqual(found.program.held, set())
        self.assertRegex(self.rewritten(found), r"mend_cc_skip.*\n.*#pragma omp parallel for\n\s*for")
        run = f"static void run(int steps) {{ int x = 0;\n    #pragma unroll\n    for (int s = 0; s < steps; s++) {{ x++; {STEP} {BARRIER} }} }}"
        found = self.analysed((FRAME % (U % run, "", "", f"\n    #pragma acc data copy(u)\n    run(steps); {PRINTED}")).replace("step < steps", "step < 2"))
        self.assertEqual(found.plan.points[0].function, f"{self.room}/source0.c:run")
        self.assertRegex(self.rewritten(found), r"mend_cc_frame(.*\n)+?\s*#pragma acc data copy.u.\n\s*run")

    def test_pragmas_within_lines(self):
        for between in (" ", "\n    ", "\n#pragma GCC ivdep\n    "):
            for pragma in ("unroll", "clang loop unroll(enable)"):
                with self.subTest(pragma=pragma, between=between):
                    found = self.analysed(FRAME % (U % "", f'\n_Pragma("{pragma}"){between}for (int k = 0; k < 900; k++) {STEP}', f'_Pragma("{pragma}"){between}{STEP} {BARRIER}', PRINTED))
                    self.assertEqual(found.plan.skips, {})
                    text = next(iter(Rewriter(found.program, found.memory, found.plan).run().values())).decode()
                    self.assertEqual(len(re.findall(r"_Pragma.*?\)\s*(?:#pragma GCC ivdep\s*)?for", text)), 2)

    def test_lines_that_conditions_leave_out(self):
        # Between a line and its loop.
        found = self.analysed(FRAME % (U % "", f"\n#pragma omp parallel for\n#ifdef NO\nx = 4;\n#endif\nfor (int k = 0; k < 900; k++) {STEP}", f"{STEP} {BARRIER}", PRINTED))
        self.assertRegex(self.rewritten(found), r"mend_cc_skip.*\n.*#pragma omp parallel for\n#ifdef NO")
        for line in ("#pragma acc data copy(u)", "#pragma omp parallel"):
            found = self.analysed(FRAME % (U % "", "", f"\n#ifdef NO\n    {line}\n    {STEP}\n#else\n    {STEP}\n#endif\n{BARRIER}", PRINTED))
            self.assertEqual((found.program.held, found.program.parallel), (set(), []))
            self.assertEqual(len(found.plan.points), 1)

    def test_headers_that_are_included_several_times(self):
        private = "#pragma omp threadprivate(state)"
        for text, on, copied in ((f"#ifdef ON\n{private}\n#endif\n", "", False), (f"#ifdef ON\n{private}\n#endif\n", "#define ON\n", True),
                                 (f"#ifdef ON\n{private}\n#endif\n", '#include "state.h"\n#define ON\n', True), (f"#if 0\n{private}\n#endif\n", '#include "state.h"\n', False)):
            with self.subTest(text=text, on=on):
                self.write("state.h", text)
                found = self.analysed(FRAME % (f'{U % ""}{on}#include "state.h"'.replace("static long", "long"), "", f"state = state * 3 % 7; {STEP} {BARRIER}", 'printf("%ld\\n", state);'))
                self.assertEqual(len(found.plan.points), 0 if copied else 1, found.plan.considered)

    def test_the_end_without_braces(self):
        for end in ("MPI_Finalize();", "else MPI_Finalize();"):
            found = self.analysed((FRAME % (U % "", "", f"{STEP} {BARRIER}", f"{PRINTED} if (x)\n#pragma omp master\n")).replace("    MPI_Finalize();", f"    {end}" if "else" not in end else f"    x = 2;\n    {end}"))
            text = self.rewritten(found)
            self.assertRegex(text, r"if \(x\)\n\{\n\s*mend_cc_end\(\);\n\s*#pragma omp master\n\s*MPI_Finalize\(\); \}" if "else" not in end else r"else \{ mend_cc_end\(\);\n\s*MPI_Finalize\(\); \}")

    def test_places_before_such_loops(self):
        for line in ("omp simd", "omp parallel for", "GCC ivdep", "GCC unroll 4"):
            for first in ("", BARRIER):
                with self.subTest(line=line, first=first):
                    found = self.analysed(FRAME % (U % "", f"\n#pragma {line}\n{STEP}", f"{first}\n#pragma {line}\n{STEP}\n{BARRIER}", PRINTED))
                    text = self.rewritten(found)
                    self.assertEqual(len(re.findall(rf"#pragma {line}\n\s*for", text)), 2)

    def test_lines_that_are_not_about_what_follows(self):
        for line in ("omp declare reduction(most: double: omp_out = omp_in)", "omp barrier", "omp target update from(u)", "GCC diagnostic pop", "pack(pop)", "acc wait(1)"):
            text = f"a();\n#pragma {line}\n#pragma omp parallel for\nfor (;;) b();\n"
            with self.subTest(line=line):
                self.assertEqual(front(compiled(text.encode()), text.index("for (;;)")), text.index("#pragma omp parallel"))
        declare = "#pragma omp declare reduction(most: double: omp_out = omp_out > omp_in ? omp_out : omp_in)"
        found = self.analysed(FRAME % (U % "", f"\n{declare}\n#pragma omp parallel for\nfor (int k = 0; k < 900; k++) {STEP}", f"{STEP} {BARRIER}", PRINTED))
        self.assertRegex(self.rewritten(found), r"declare reduction.*\n.*mend_cc_skip.*\n.*#pragma omp parallel for\n\s*for")

    def test_what_stands_between_a_line_and_its_loop(self):
        self.write("sched.h", "")
        loop = "for (int k = 0; k < 900; k++)"
        for above in ('#pragma omp parallel for\n#include "sched.h"', '#pragma GCC ivdep\n#include "sched.h"', "#ifndef NO\nx = 4;\n#pragma omp parallel for\n#endif"):
            with self.subTest(above=above):
                # Nothing is left out by a condition that would stand between.
                found = self.analysed(FRAME % (U % "", f"\n{above}\n{loop} {STEP}", f"{STEP} {BARRIER}", PRINTED))
                self.assertEqual(found.plan.skips, {})
                found = self.analysed((FRAME % (U % "", "", f"\n{above}\n{STEP}\n{BARRIER}", PRINTED)).replace("x++;", "")).plan
                self.assertNotIn("for (int i", [self.text_at(point.stmt.place) for point in found.points])
                found = self.analysed((FRAME % (U % "", "", f"\n{above}\n{STEP}\n{BARRIER}", PRINTED)).replace("x++;", "\n#pragma mend checkpoint")).plan
                if "x = 4" in above:
                    # What the directive is at.
                    self.assertEqual([self.text_at(point.stmt.place) for point in found.points], ["x = 4;\n#pr"])
                    continue
                self.assertEqual(found.points, [])
                self.assertIn("nothing can be inserted before the #pragma line", str(found.refused))

    @staticmethod
    def text_at(place):
        with open(place.file, encoding="utf-8") as file:
            return file.read()[place.start:place.start + 10]

    def test_a_line_that_goes_on(self):
        found = analysed("", f"\n#pragma omp \\\n parallel for\nfor (int k = 0; k < 900; k++) {{ {STEP} }}", PRINTED, U % "")
        self.assertEqual(found.plan.points[0].loop.expr.args[1].value.name, "steps")
        self.assertEqual(len(found.program.parallel), 1)

    def test_the_compiler_s_own_header(self):
        self.assertEqual(len(analysed("", f"x += omp_get_max_threads(); {BARRIER}", PRINT, "#include <omp.h>").plan.points), 1)
        self.assertEqual(len(analysed("\n#ifdef _OPENACC\nacc_set_device_num(0, acc_device_default);\n#endif\n", BARRIER, PRINT, "#ifdef _OPENACC\n#include <openacc.h>\n#endif").plan.points), 1)


class Copies(unittest.TestCase):
    def refused(self, why, *parts):
        found = analysed(*parts)
        self.assertEqual(found.plan.points, [])
        self.assertIn(why, str(found.plan.considered))

    def test_devices_that_have_data(self):
        inside = f"{BARRIER}\n#pragma omp target\n{STEP}"
        for before in ("#pragma omp target enter data map(to: u)", "#pragma acc enter data copyin(u)"):
            self.refused("a device has data of the program from here on", f"\n{before}\nx = 1;", inside, PRINTED, U % "")
        self.refused("a device has data of the program from here on", "", inside, PRINTED, U % "#pragma acc declare create(u)")
        for around in ("omp target data map(tofrom: u)", "acc data \\\n copy(u)"):
            with self.subTest(around=around):
                # Before it nothing is on the device.
                self.assertEqual(len(analysed("", f"\n#pragma {around}\n{{\n{inside} }}", PRINTED, U % "").plan.points), 1)
                self.refused("a device has data of the program there", f"x = 0;\n#pragma {around}", inside, PRINTED, U % "")
        found = analysed("", inside, PRINTED, U % "")
        self.assertEqual(len(found.plan.points), 1)

    def test_lines_that_nobody_heeds(self):
        inside = f"{BARRIER}\n{STEP}"
        for line in ("#pragma acc enter data copyin(u)", "#pragma omp target enter data map(to: u)"):
            # Also where a text is opened that isn't closed.
            for around in (f"#ifdef NO\n#define X \"\n{line}\n/* don't */\n#else\n#endif", f"#if defined(NO) \\\n && 1\n{line}\n#elif 1\n#else\n{line}\n#endif", f"/*\n{line}\n*/", f"#if 0\n{line}\n#else\n#endif", f"#if 0\n#if 1\n{line}\n#endif\n#endif", f"//\\\n{line}"):
                with self.subTest(around=around):
                    self.assertEqual(len(analysed(f"\n{around}\nx = 1;", inside, PRINTED, U % "").plan.points), 1)
            for around in (f"#ifndef NO\n{line}\n#endif", f"#if 1\n{line}\n#endif", f"#if 0\n#else\n{line}\n#endif", f'puts("/*");\n{line}\nputs("*/");', f"#if 0\n#elif 1\n{line}\n#endif"):
                with self.subTest(around=around):
                    self.refused("a device has data of the program from here on", f"\n{around}\nx = 1;", inside, PRINTED, U % "")
            self.refused("a device has data of the program from here on", f"\n#ifdef _OPENACC\n    {line}\n#endif\nx = 1;", inside, PRINTED, U % "")
            # Without an option for it.
            self.assertEqual(len(analysed_with(f"\n{line}\nx = 1;", inside, PRINTED, U % "").plan.points), 1)
        self.assertEqual(turned_on(["-O2", "-fopenmp-simd", "-mpi", "-accuracy", "-mpreferred-stack-boundary=4"]), set())
        self.assertEqual([turned_on([one]) for one in ("-fopenmp", "-qopenmp", "-mp", "-mp=gpu", "-fopenacc", "-acc=gpu")], 4 * [{"omp"}] + 2 * [{"acc"}])
        self.assertEqual(turned_on(Line(["-fopenmp=libomp", "-acc", "a.c"]).for_clang()), {"omp", "acc"})

    def test_copies_that_a_header_tells_of(self):
        change, printed = f"state = state * 3 % 7; {BARRIER}", 'printf("%ld\\n", state);'
        for line, why in (("omp threadprivate(state)", "threads have copies of state"), ("omp declare target(state)", "a device has a copy of state")):
            for declared in ("long state = 1;", ""):
                with self.subTest(line=line, declared=declared), tempfile.TemporaryDirectory() as room:
                    texts = {"state.h": f"extern long state;\n#pragma {line}\n", "main.c": FRAME % ('#include "state.h"\n' + declared, "", change, printed), "state.c": '#include "state.h"\n' + ("" if declared else "long state = 1;\n")}
                    for name, text in texts.items():
                        with open(os.path.join(room, name), "w", encoding="utf-8") as file:
                            file.write(text)
                    for order in (("main.c", "state.c"), ("state.c", "main.c")):
                        found = analyse([(os.path.join(room, name), [*FLAGS, "-D_OPENMP=201511"]) for name in order])
                        self.assertEqual(found.plan.points, [])
                        self.assertIn(why, str(found.plan.considered))

    def test_variables_that_have_copies(self):
        change = f"state = state * 3 % 7; {STEP} {BARRIER}"
        printed = 'printf("%g %ld\\n", u[3], state);'
        self.assertEqual(len(analysed("", change, printed, U % "").plan.points), 1)
        self.refused("threads have copies of state", "", change, printed, U % "#pragma omp threadprivate(state)")
        self.refused("threads have copies of state", "", change, printed, (U % "").replace("static long", "static _Thread_local long"))
        self.refused("a device has a copy of u", "", change, printed, U % "#pragma omp declare target(u)")
        self.refused("a device has a copy of u", "", change, printed, "#pragma omp declare target\n" + U % "#pragma omp end declare target")
        self.assertEqual(len(analysed("", change, printed, U % "#pragma omp declare target\nvoid f(void);\n#pragma omp end declare target").plan.points), 1)


class Allocation(InDirectory):
    def test_by_several_threads_at_once(self):
        self.write("threads.c", THREADS)
        self.compile("-g", "-O1", "-ffunction-sections", "-fsanitize=thread", "-c", "threads.c", *(os.path.join(RUNTIME, name) for name in ("mend_cc.c", "mend_cc_parts.c")), f"-I{RUNTIME}", f"-I{os.path.join(OUT, 'include')}")
        # MPICH doesn't start under ThreadSanitizer. What calls it isn't needed here.
        self.compile("-fsanitize=thread", "-Wl,--gc-sections", "-o", "threads", "threads.o", "mend_cc.o", "mend_cc_parts.o", compiler="gcc")
        done = subprocess.run([self.path("threads")], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
