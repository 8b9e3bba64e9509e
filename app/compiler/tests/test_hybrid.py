"""Programs with lines of OpenMP and OpenACC: where code is inserted beside them, what threads do at once, what devices and threads have copies of."""

import os
import re
import subprocess
import unittest

from building import OUT, InDirectory
from test_analysis import FRAME, analysed
from test_sources import PRINT, InRoom

from mend_cc.pragmas import front

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


class Lines(InRoom):
    def test_where_code_goes(self):
        text = "{\n    a();\n    #pragma omp parallel for \\\n        schedule(static) /* as\n    it is */\n    // so\n    for (;;) b();\n"
        for between, place in (("", "#pragma omp"), ("    c();\n", "for"), ("#pragma mend checkpoint\n", "#pragma omp"), ("#define X\n", "for"), ("#ifdef Y\n#pragma omp simd\n#endif\n", "#pragma omp parallel")):
            with self.subTest(between=between):
                changed = text.replace("    for", between + "    for")
                self.assertEqual(front(changed.encode(), changed.index("for (;;)")), changed.index(place if place != "for" else "for (;;)"))
        for within, place in (("#ifdef Y\n#pragma omp simd\n#endif\n", "#ifdef"), ("#ifdef Y\n", "for"), ("#ifdef Y\n#pragma omp simd\n#else\n", "for"), ("#pragma mend shape(u) 1\n", "for")):
            with self.subTest(within=within):
                changed = f"a();\n{within}for (;;) b();\n"
                self.assertEqual(front(changed.encode(), changed.index("for")), changed.index(place))

    def test_loops_that_are_left_out(self):
        found = self.analysed(FRAME % (U % "", f"\n#pragma omp parallel for\nfor (int k = 0; k < 900; k++) {STEP}", f"{STEP} {BARRIER}", PRINTED))
        self.assertRegex(self.rewritten(found), r"mend_cc_skip.*\n.*#pragma omp parallel for\n\s*for")

    def test_places_before_such_loops(self):
        for line in ("omp simd", "omp parallel for", "GCC ivdep", "GCC unroll 4"):
            for first in ("", BARRIER):
                with self.subTest(line=line, first=first):
                    found = self.analysed(FRAME % (U % "", f"\n#pragma {line}\n{STEP}", f"{first}\n#pragma {line}\n{STEP}\n{BARRIER}", PRINTED))
                    text = self.rewritten(found)
                    self.assertEqual(len(re.findall(rf"#pragma {line}\n\s*for", text)), 2)

    def test_a_line_that_goes_on(self):
        found = analysed("", f"\n#pragma omp \\\n parallel for\nfor (int k = 0; k < 900; k++) {{ {STEP} }}", PRINTED, U % "")
        self.assertEqual(found.plan.points[0].loop.expr.args[1].value.name, "steps")
        self.assertEqual(len(found.program.parallel), 1)

    def test_the_compiler_s_own_header(self):
        self.assertEqual(len(analysed("", f"x += omp_get_max_threads(); {BARRIER}", PRINT, "#include <omp.h>").plan.points), 1)


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
        self.compile("-g", "-O1", "-ffunction-sections", "-fsanitize=thread", "-c", "threads.c", os.path.join(RUNTIME, "mend_cc.c"), f"-I{RUNTIME}", f"-I{os.path.join(OUT, 'include')}")
        # MPICH doesn't start under ThreadSanitizer. What calls it isn't needed here.
        self.compile("-fsanitize=thread", "-Wl,--gc-sections", "-o", "threads", "threads.o", "mend_cc.o", compiler="gcc")
        done = subprocess.run([self.path("threads")], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
