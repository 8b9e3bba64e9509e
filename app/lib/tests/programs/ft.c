/* A heat equation by fast Fourier transforms in three dimensions, after NPB's FT (see slabs.h): the spectrum decays, and each step transforms it back and adds to a checksum. N is a
 * power of two. The transform along the first dimension is done on slabs of the second. */
#include "slabs.h"

static double *wave; /* cos and sin of -2 pi k / n */

/* In place, one line of complex numbers that stand `stride` doubles apart; `sign` -1 is forward. */
static void transform(double *line, size_t stride, int sign) {
    for (int64_t i = 1, j = 0; i < n; i++) {
        int64_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j |= bit;
        if (i < j)
            for (int c = 0; c < 2; c++) {
                double kept = line[i * stride + c];
                line[i * stride + c] = line[j * stride + c];
                line[j * stride + c] = kept;
            }
    }
    for (int64_t half = 1; half < n; half *= 2)
        for (int64_t from = 0; from < n; from += 2 * half)
            for (int64_t k = 0; k < half; k++) {
                double *a = line + (from + k) * stride, *b = a + half * stride;
                double re = wave[2 * (k * (n / 2 / half))], im = -sign * wave[2 * (k * (n / 2 / half)) + 1];
                double x = b[0] * re - b[1] * im, y = b[0] * im + b[1] * re;
                b[0] = a[0] - x;
                b[1] = a[1] - y;
                a[0] += x;
                a[1] += y;
            }
}

/* Lines of the third and second dimension, in slabs of the first. */
static void transform_slab(double *u, int sign) {
    for (int i = 0; i < count; i++) {
        for (int64_t j = 0; j < n; j++)
            transform(u + ((size_t)i * n * n + j * n) * 2, 2, sign);
        for (int64_t k = 0; k < n; k++)
            transform(u + ((size_t)i * n * n + k) * 2, 2 * n, sign);
    }
}

/* Lines of the first dimension, in slabs of the second. */
static void transform_lines(double *v, int sign) {
    for (int j = 0; j < count; j++)
        for (int64_t k = 0; k < n; k++)
            transform(v + ((size_t)j * n * n + k) * 2, 2 * n, sign);
}

static double energy(const double *u) {
    double *planes = malloc((size_t)n * sizeof *planes);
    for (int i = 0; i < count; i++) {
        planes[i] = 0;
        for (int64_t at = 0; at < 2 * n * n; at++)
            planes[i] += u[i * 2 * n * n + at] * u[i * 2 * n * n + at];
    }
    double sum = sum_of_planes(planes);
    free(planes);
    return sum;
}

static double squared(int64_t k) {
    int64_t wave_number = k < n / 2 ? k : k - n;
    return (double)(wave_number * wave_number);
}

int main(int argc, char **argv) {
    begin(argc, argv, "ft 1");
    size_t cells = (size_t)count * n * n;
    double *spectrum = calloc(2 * cells + 1, sizeof *spectrum), *u = calloc(2 * cells + 1, sizeof *u), *v = calloc(2 * cells + 1, sizeof *v);
    double sums[2] = {0, 0}, worst = 0;
    int64_t step = 0;
    wave = malloc((size_t)n * sizeof *wave);
    for (int64_t k = 0; k < n / 2; k++) {
        wave[2 * k] = cos(2 * M_PI * (double)k / (double)n);
        wave[2 * k + 1] = -sin(2 * M_PI * (double)k / (double)n);
    }
    if (!mend_app_restarting()) {
        for (size_t at = 0; at < 2 * cells; at++)
            u[at] = hashed((uint64_t)start * n * n * 2 + at, 7);
        transform_slab(u, -1);
        transpose(u, spectrum, 2 * (int)n);
        transform_lines(spectrum, -1);
    }
    mend_app_enter("main");
    uint64_t two = 2;
    mend_app_dimension shape[] = {mend_app_block(n, start, count, 0, 0), mend_app_whole(n), mend_app_whole(2 * n)};
    mend_app_variable("step", &step, MEND_APP_INT64, 0, NULL, MEND_APP_REPLICATED);
    mend_app_variable("sums", sums, MEND_APP_DOUBLE, 1, &two, MEND_APP_REPLICATED);
    mend_app_variable("worst", &worst, MEND_APP_DOUBLE, 0, NULL, MEND_APP_REPLICATED);
    mend_app_array("spectrum", spectrum, MEND_APP_DOUBLE, 3, shape);
    for (; step < steps; step++) {
        between_steps(step);
        for (int j = 0; j < count; j++)
            for (int64_t i = 0; i < n; i++)
                for (int64_t k = 0; k < n; k++) {
                    double decay = exp(-4e-6 * M_PI * M_PI * (squared(start + j) + squared(i) + squared(k)));
                    double *at = spectrum + (((size_t)j * n + i) * n + k) * 2;
                    at[0] *= decay;
                    at[1] *= decay;
                }
        memcpy(v, spectrum, 2 * cells * sizeof *v);
        transform_lines(v, 1);
        transpose(v, u, 2 * (int)n);
        transform_slab(u, 1);
        double scale = 1 / ((double)n * (double)n * (double)n), *planes = calloc(2 * (size_t)n, sizeof *planes);
        for (size_t at = 0; at < 2 * cells; at++) {
            u[at] *= scale;
            if (at % (2 * n * n) % 14 < 2)
                planes[(at % 2) * n + at / (2 * n * n)] += u[at];
        }
        sums[0] += sum_of_planes(planes);
        sums[1] += sum_of_planes(planes + n);
        free(planes);
        /* Parseval: what a transform may not change. */
        double there = energy(spectrum) * scale, here = energy(u), off = fabs(here - there) / there;
        worst = off > worst ? off : worst;
    }
    mend_app_leave();
    if (rank == 0)
        printf("ft sums=%.17g,%.17g steps=%" PRId64 " %s\n", sums[0], sums[1], step, worst < 1e-12 ? "verified" : "WRONG");
    return finish();
}
