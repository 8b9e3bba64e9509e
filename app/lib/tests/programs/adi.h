/* What the two programs after NPB's BT and SP share (see slabs.h): C values a cell diffuse towards a known steady state. A step solves, for lines in each of the three directions in turn,
 * (1 - dt D) du = right side; lines of the first dimension on slabs of the second. A program brings C and solve_line(). */
enum { MOST_N = 512 };
static const double dt = 0.4;
static double *u, *f, *change, *turned;

/* `line`: n cells of C values, `stride` doubles apart. */
static void solve_line(double *line, size_t stride);

static double *cell(double *of, int64_t i, int64_t j, int64_t k) {
    return of + (((i + 1) * n + j) * n + k) * C;
}

static double exact(int64_t i, int64_t j, int64_t k, int c) {
    double h = 1.0 / (double)(n + 1);
    return sin(M_PI * (double)(i + 1) * h) * sin(2 * M_PI * (double)(j + 1) * h) * (double)((k + 1) * (n - k)) * h * h * (1 + 0.5 * c);
}

/* What the five or fewer values of a cell and its six neighbours make of it: sum of second differences, and a decay. */
static double operate(int64_t i, int64_t j, int64_t k, int c) {
    double here = cell(u, i, j, k)[c], sum = cell(u, i - 1, j, k)[c] + cell(u, i + 1, j, k)[c];
    sum += (j ? cell(u, i, j - 1, k)[c] : 0) + (j < n - 1 ? cell(u, i, j + 1, k)[c] : 0);
    sum += (k ? cell(u, i, j, k - 1)[c] : 0) + (k < n - 1 ? cell(u, i, j, k + 1)[c] : 0);
    return sum - 6 * here - 0.3 * here;
}

/* change = dt (operator of u + f), and the norm of that without dt; with `only`, f = -(operator of u). */
static double right_side(int only) {
    double *planes = calloc((size_t)n, sizeof *planes);
    exchange(cell(u, 0, 0, 0), (size_t)(n * n * C));
    for (int i = 0; i < count; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t k = 0; k < n; k++)
                for (int c = 0; c < C; c++) {
                    double made = operate(i, j, k, c);
                    if (only)
                        cell(f, i, j, k)[c] = -made;
                    made += cell(f, i, j, k)[c];
                    change[((i * n + j) * n + k) * C + c] = dt * made;
                    planes[i] += made * made;
                }
    double sum = sum_of_planes(planes);
    free(planes);
    return sqrt(sum);
}

static void advance(void) {
    right_side(0);
    transpose(change, turned, (int)n * C);
    for (int j = 0; j < count; j++)
        for (int64_t k = 0; k < n; k++)
            solve_line(turned + ((size_t)j * n * n + k) * C, (size_t)n * C);
    transpose(turned, change, (int)n * C);
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < n; k++)
            solve_line(change + ((size_t)i * n * n + k) * C, (size_t)n * C);
        for (int64_t j = 0; j < n; j++)
            solve_line(change + ((size_t)i * n + j) * n * C, C);
    }
    for (size_t at = 0; at < (size_t)count * n * n * C; at++)
        cell(u, 0, 0, 0)[at] += change[at];
}

static int diffuse(int argc, char **argv, const char *name, double shrinks) {
    char program[16];
    snprintf(program, sizeof program, "%s 1", name);
    begin(argc, argv, program);
    size_t values = (size_t)(count + 2) * n * n * C;
    double **fields[] = {&u, &f, &change, &turned}, first = 0;
    int64_t step = 0;
    for (int i = 0; i < 4; i++)
        *fields[i] = calloc(values, sizeof(double));
    if (!mend_app_restarting()) {
        for (int i = 0; i < count; i++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t k = 0; k < n; k++)
                    for (int c = 0; c < C; c++)
                        cell(u, i, j, k)[c] = exact(start + i, j, k, c);
        right_side(1);
        memset(u, 0, values * sizeof *u);
        first = right_side(0);
    }
    mend_app_enter("main");
    mend_app_dimension shape[] = {mend_app_block(n, start, count, 1, 1), mend_app_whole(n), mend_app_whole(n * C)};
    mend_app_variable("step", &step, MEND_APP_INT64, 0, NULL, MEND_APP_REPLICATED);
    mend_app_variable("first", &first, MEND_APP_DOUBLE, 0, NULL, MEND_APP_REPLICATED);
    mend_app_array("u", u, MEND_APP_DOUBLE, 3, shape);
    mend_app_array("f", f, MEND_APP_DOUBLE, 3, shape);
    for (; step < steps; step++) {
        between_steps(step);
        advance();
    }
    mend_app_leave();
    double last = right_side(0);
    if (rank == 0)
        printf("%s residual=%.17g of %.17g steps=%" PRId64 " %s\n", name, last, first, step, last < first * pow(shrinks, (double)step) ? "verified" : "WRONG");
    return finish();
}
