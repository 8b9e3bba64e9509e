/* Scalar pentadiagonal lines, after NPB's SP (see adi.h): each of the five values by itself, with a fourth difference in the implicit part, which damps the steps. */
#include "slabs.h"
enum { C = 5 };
#include "adi.h"

/* Of row r the coefficients of values r - 2 to r + 2. */
static void solve_line(double *line, size_t stride) {
    static double a[MOST_N][5];
    const double second = dt, fourth = 0.05 * dt;
    for (int64_t r = 0; r < n; r++) {
        double row[5] = {fourth, -second - 4 * fourth, 1 + 2 * second + 0.1 * dt + 6 * fourth, -second - 4 * fourth, fourth};
        memcpy(a[r], row, sizeof row);
    }
    for (int64_t r = 0; r < n; r++)
        for (int64_t below = r + 1; below <= r + 2 && below < n; below++) {
            int64_t off = below - r;
            double factor = a[below][2 - off] / a[r][2];
            for (int64_t at = 0; at <= 2; at++)
                if (2 - off + at < 5)
                    a[below][2 - off + at] -= factor * a[r][2 + at];
            for (int c = 0; c < C; c++)
                line[below * stride + c] -= factor * line[r * stride + c];
        }
    for (int64_t r = n - 1; r >= 0; r--)
        for (int c = 0; c < C; c++) {
            double value = line[r * stride + c];
            for (int64_t at = 1; at <= 2 && r + at < n; at++)
                value -= a[r][2 + at] * line[(r + at) * stride + c];
            line[r * stride + c] = value / a[r][2];
        }
}

int main(int argc, char **argv) {
    return diffuse(argc, argv, "sp", 0.97);
}
