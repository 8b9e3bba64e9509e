/* A value of every type, extremes included, for other machines to read. In one process, without MPI.
 *
 *   values write NAME    takes a checkpoint; NAME: all, or what not every machine can hold: long, third
 *   values check NAME    restores it and compares
 *   values run STOP      computes 200 steps, from the newest checkpoint on; takes one at step STOP, and ends there
 */
#include <complex.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <mend_app.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

#define EXPECT(condition) (condition ? 0 : (wrong++, fprintf(stderr, "values: not so: %s\n", #condition)))

struct node {
    void *next;
};

/* Sums, functions of the C library and float beside double: what machines round in ways of their own. */
static int computes(long stop) {
    enum { CELLS = 500, STEPS = 200 };
    static double u[CELLS];
    static float slow[CELLS];
    double energy = 1;
    int32_t step = 0;
    uint64_t cells = CELLS;
    mend_app_variable("u", u, MEND_APP_DOUBLE, 1, &cells, MEND_APP_PRIVATE);
    mend_app_variable("slow", slow, MEND_APP_FLOAT, 1, &cells, MEND_APP_PRIVATE);
    mend_app_variable("energy", &energy, MEND_APP_DOUBLE, 0, NULL, MEND_APP_PRIVATE);
    mend_app_variable("step", &step, MEND_APP_INT32, 0, NULL, MEND_APP_PRIVATE);
    for (; step < STEPS; step++) {
        int done = step == stop && !mend_app_restarting() ? mend_app_checkpoint_now() : mend_app_checkpoint();
        if (done == MEND_APP_TAKEN)
            exit(0);
        double sum = 0;
        for (int i = 0; i < CELLS; i++) {
            slow[i] = 0.5f * slow[i] + (float)(i % 7);
            u[i] = 0.9 * u[i] + 0.05 * (u[(i + 1) % CELLS] + u[(i + CELLS - 1) % CELLS]) + sin(i + 0.1 * step) * exp(-0.01 * i) / sqrt(1 + energy) + 1e-3 * (double)slow[i];
            sum += u[i] * u[i];
        }
        energy = sum / CELLS;
    }
    printf("values computed %.17g %.17g after %d steps\n", energy, u[CELLS / 2], (int)step);
    return mend_app_finalize() < 0;
}

int main(int argc, char **argv) {
    if (argc < 3 || mend_app_init("values 1", NULL) < 0)
        return 2;
    int writes = strcmp(argv[1], "write") == 0, done = 0;
    mend_app_enter("main");
    if (strcmp(argv[1], "run") == 0)
        return computes(atol(argv[2]));
    if (strcmp(argv[2], "long") == 0) {
        long big = writes && sizeof(long) == 8 ? (long)(INT64_C(1) << 40) : 7;
        mend_app_variable("big", &big, MEND_APP_LONG, 0, NULL, MEND_APP_PRIVATE);
        done = writes ? mend_app_checkpoint_now() : mend_app_checkpoint();
        printf("values long %jd\n", (intmax_t)big);
    } else if (strcmp(argv[2], "third") == 0) {
        long double third = writes ? 1.0L / 3 : 0;
        mend_app_variable("third", &third, MEND_APP_LONG_DOUBLE, 0, NULL, MEND_APP_PRIVATE);
        done = writes ? mend_app_checkpoint_now() : mend_app_checkpoint();
        printf("values third %.6Lf digits %d\n", third, LDBL_MANT_DIG);
    } else {
        int8_t i8[3] = {INT8_MIN, 0, INT8_MAX};
        int16_t i16[3] = {INT16_MIN, -2, INT16_MAX};
        int32_t i32[3] = {INT32_MIN, 66051, INT32_MAX};
        int64_t i64[3] = {INT64_MIN, 283686952306183, INT64_MAX};
        uint64_t u64[2] = {UINT64_MAX, 1};
        float f[4] = {FLT_MIN, -FLT_MAX, 1.0f / 3, FLT_TRUE_MIN};
        double d[5] = {DBL_MIN, -DBL_MAX, 1.0 / 3, DBL_TRUE_MIN, -0.0};
        double complex c[2] = {CMPLX(1.0 / 3, 2.0 / 7), CMPLX(-1.0, 0.0)};
        volatile double rounded = 1.0 / 3;
        long double ld[2] = {rounded, -65536.5L};
        unsigned char bytes[5] = "a\0b\xff";
        long count = 1234567890;
        size_t size = 3000000000u;
        double *big = calloc(300000, sizeof *big);
        for (int i = 0; i < 300000; i++)
            big[i] = i < 200000 ? 0 : i / 3.0;
        struct node ring[3] = {{&ring[1]}, {&ring[2]}, {&ring[0]}};
        void *into = &i32[1];
        uint64_t three = 3, rows[2] = {3, 100000}, four = 4, five = 5, two = 2;
        if (!writes) {
            memset(i8, 0, sizeof i8), memset(i16, 0, sizeof i16), memset(i32, 0, sizeof i32), memset(i64, 0, sizeof i64), memset(u64, 0, sizeof u64);
            memset(f, 0, sizeof f), memset(d, 0, sizeof d), memset(c, 0, sizeof c), memset(bytes, 0, sizeof bytes), memset(ring, 0, sizeof ring);
            memset(big, 0, 300000 * sizeof *big);
            ld[0] = ld[1] = count = size = 0, into = NULL;
        }
        mend_app_variable("i8", i8, MEND_APP_INT8, 1, &three, 0);
        mend_app_variable("i16", i16, MEND_APP_INT16, 1, &three, 0);
        mend_app_variable("into", &into, MEND_APP_POINTER, 0, NULL, 0);
        mend_app_variable("i32", i32, MEND_APP_INT32, 1, &three, 0);
        mend_app_variable("i64", i64, MEND_APP_INT64, 1, &three, 0);
        mend_app_variable("u64", u64, MEND_APP_UINT64, 1, &two, 0);
        mend_app_variable("f", f, MEND_APP_FLOAT, 1, &four, 0);
        mend_app_variable("d", d, MEND_APP_DOUBLE, 1, &five, 0);
        mend_app_variable("c", c, MEND_APP_COMPLEX_DOUBLE, 1, &two, 0);
        mend_app_variable("ld", ld, MEND_APP_LONG_DOUBLE, 1, &two, 0);
        mend_app_variable("bytes", bytes, MEND_APP_BYTES, 1, &five, 0);
        mend_app_variable("count", &count, MEND_APP_LONG, 0, NULL, 0);
        mend_app_variable("size", &size, MEND_APP_SIZE, 0, NULL, 0);
        mend_app_variable("big", big, MEND_APP_DOUBLE, 2, rows, 0);
        mend_app_variable("ring", ring, MEND_APP_POINTER, 1, &three, 0);
        done = writes ? mend_app_checkpoint_now() : mend_app_checkpoint();
        EXPECT(i8[0] == INT8_MIN && i8[2] == INT8_MAX && i16[0] == INT16_MIN && i16[1] == -2 && i32[0] == INT32_MIN && i32[1] == 66051);
        EXPECT(i64[0] == INT64_MIN && i64[1] == 283686952306183 && u64[0] == UINT64_MAX);
        /* As they lie in memory: where expressions have more digits than their type, == compares those. */
        static const float f_was[4] = {FLT_MIN, -FLT_MAX, 1.0f / 3, FLT_TRUE_MIN};
        static const double d_was[5] = {DBL_MIN, -DBL_MAX, 1.0 / 3, DBL_TRUE_MIN, -0.0};
        volatile double parts[4] = {1.0 / 3, 2.0 / 7, -1.0, 0}, third = 1.0 / 3, read = (double)ld[0];
        double complex c_was[2];
        memcpy(c_was, (const void *)parts, sizeof c_was);
        EXPECT(memcmp(f, f_was, sizeof f) == 0);
        EXPECT(memcmp(d, d_was, sizeof d) == 0);
        EXPECT(memcmp(c, c_was, sizeof c) == 0);
        EXPECT(read == third && ld[1] == -65536.5L);
        EXPECT(memcmp(bytes, "a\0b\xff", 5) == 0 && count == 1234567890 && size == 3000000000u);
        volatile double first = 200000 / 3.0, last = 299999 / 3.0;
        EXPECT(big[199999] == 0 && big[200000] == first && big[299999] == last);
        EXPECT(ring[0].next == &ring[1] && ring[2].next == &ring[0] && into == &i32[1]);
        printf("values all %s\n", wrong ? "wrong" : "right");
    }
    mend_app_leave();
    int end = mend_app_finalize();
    return wrong || done < 0 || end < 0 || (done != MEND_APP_TAKEN && done != MEND_APP_RESTORED);
}
