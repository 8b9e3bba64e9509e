/* Arrays of which two dimensions are spread over a grid of ranks: block x block with a halo, block x cyclic, cyclic x block, list x block.
 *
 *   grid DOWN ACROSS write | check
 *
 * write: takes a checkpoint; check: restores it, and compares each element by its global indices.
 */
#include <mend_app_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 23, COLUMNS = 17, ARRAYS = 4, LONGEST = 40 };

/* Global indices of a dimension's elements in memory; -1: beyond the array. */
struct side {
    mend_app_dimension dimension;
    int count;
    int index[LONGEST];
};

static uint64_t indices[ROWS];

static struct side blocks(int all, int part, int parts, int halo) {
    int start = all * part / parts, end = all * (part + 1) / parts;
    struct side s = {.dimension = mend_app_block(all, start, end - start, halo, halo), .count = end - start + 2 * halo};
    for (int i = 0; i < s.count; i++)
        s.index[i] = start - halo + i < all ? start - halo + i : -1;
    return s;
}

static struct side dealt(int all, int block, int part, int parts) {
    struct side s = {.dimension = mend_app_cyclic(all, block, part, parts)};
    for (int i = 0; i < all; i++)
        if (i / block % parts == part)
            s.index[s.count++] = i;
    return s;
}

/* Backwards, those with the part's number as remainder. */
static struct side listed(int all, int part, int parts) {
    struct side s = {.count = 0};
    for (int i = all - 1; i >= 0; i--)
        if (i % parts == part) {
            indices[s.count] = i;
            s.index[s.count++] = i;
        }
    s.dimension = mend_app_list(all, s.count, indices);
    return s;
}

static double value(int array, int row, int column) {
    return array * 1e6 + row * 1e3 + column;
}

int main(int argc, char **argv) {
    int rank, wrong = 0, all_wrong, down = atoi(argv[1]), across = atoi(argv[2]), writes = strcmp(argv[3], "write") == 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (mend_app_init_mpi(MPI_COMM_WORLD, "grid 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    int row = rank / across, column = rank % across;
    const char *const names[ARRAYS] = {"blocks", "dealt", "turned", "listed"};
    struct side rows[ARRAYS] = {blocks(ROWS, row, down, 1), blocks(ROWS, row, down, 0), dealt(ROWS, 2, row, down), listed(ROWS, row, down)};
    struct side columns[ARRAYS] = {blocks(COLUMNS, column, across, 2), dealt(COLUMNS, 3, column, across), blocks(COLUMNS, column, across, 1), blocks(COLUMNS, column, across, 0)};
    double *data[ARRAYS];
    mend_app_enter("main");
    for (int a = 0; a < ARRAYS; a++) {
        data[a] = malloc((size_t)(rows[a].count * columns[a].count + 1) * sizeof(double));
        for (int i = 0; i < rows[a].count; i++)
            for (int j = 0; j < columns[a].count; j++) {
                /* Only the rank that has an element has its value: halos are filled from it. */
                const mend_app_dimension *x = &rows[a].dimension, *y = &columns[a].dimension;
                int own = writes && (x->kind != MEND_APP_BLOCK || (i >= (int)x->first && i < (int)(x->first + x->count))) && (y->kind != MEND_APP_BLOCK || (j >= (int)y->first && j < (int)(y->first + y->count)));
                data[a][i * columns[a].count + j] = own ? value(a, rows[a].index[i], columns[a].index[j]) : -1;
            }
        mend_app_dimension both[] = {rows[a].dimension, columns[a].dimension};
        mend_app_array(names[a], data[a], MEND_APP_DOUBLE, 2, both);
    }
    int done = writes ? mend_app_checkpoint_now() : mend_app_checkpoint();
    for (int a = 0; a < ARRAYS && !writes; a++)
        for (int i = 0; i < rows[a].count; i++)
            for (int j = 0; j < columns[a].count; j++) {
                int r = rows[a].index[i], c = columns[a].index[j];
                if (r >= 0 && c >= 0 && data[a][i * columns[a].count + j] != value(a, r, c) && wrong++ == 0)
                    printf("rank %d: %s[%d][%d] is %g\n", rank, names[a], r, c, data[a][i * columns[a].count + j]);
            }
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("grid %s: %d wrong\n", done == (writes ? MEND_APP_TAKEN : MEND_APP_RESTORED) ? argv[3] : "not done", all_wrong);
    mend_app_leave();
    int end = mend_app_finalize();
    MPI_Finalize();
    return end < 0 || all_wrong;
}
