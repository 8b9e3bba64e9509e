/* Block-tridiagonal lines, after NPB's BT (see adi.h): the implicit part couples the five values of a cell, so that each row of a line is a block of 5 x 5. */
#include "slabs.h"
enum { C = 5 };
#include "adi.h"

/* m x = v, and m x = each column of `side`, in place; m is lost. */
static void solve_block(double m[C][C], double side[C][C], double v[C]) {
    for (int p = 0; p < C; p++) {
        double pivot = 1 / m[p][p];
        for (int d = 0; d < C; d++) {
            m[p][d] *= pivot;
            side[p][d] *= pivot;
        }
        v[p] *= pivot;
        for (int c = 0; c < C; c++) {
            double factor = m[c][p];
            if (c == p)
                continue;
            for (int d = 0; d < C; d++) {
                m[c][d] -= factor * m[p][d];
                side[c][d] -= factor * side[p][d];
            }
            v[c] -= factor * v[p];
        }
    }
}

static void solve_line(double *line, size_t stride) {
    static double upper[MOST_N][C][C];
    for (int64_t r = 0; r < n; r++) {
        double m[C][C], *v = line + r * stride;
        for (int c = 0; c < C; c++)
            for (int d = 0; d < C; d++) {
                m[c][d] = c == d ? 1 + 2 * dt + 0.1 * dt : 0.02 * dt / (1 + abs(c - d));
                upper[r][c][d] = c == d ? -dt : 0;
            }
        /* Off the diagonal stands -dt times one. */
        for (int c = 0; r && c < C; c++) {
            for (int d = 0; d < C; d++)
                m[c][d] += dt * upper[r - 1][c][d];
            v[c] += dt * line[(r - 1) * stride + c];
        }
        solve_block(m, upper[r], v);
    }
    for (int64_t r = n - 2; r >= 0; r--)
        for (int c = 0; c < C; c++)
            for (int d = 0; d < C; d++)
                line[r * stride + c] -= upper[r][c][d] * line[(r + 1) * stride + d];
}

int main(int argc, char **argv) {
    return diffuse(argc, argv, "bt", 0.97);
}
