/* A place in a function that gets its state by pointers, in a do loop that may end early. stencil STEPS [KILL] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#define N 24
enum mode { COLD, HOT };
struct conf { int n, m; double dt; enum mode mode; char name[16]; };
static double grid[N + 2][N + 2], fresh[N + 2][N + 2];
static long flops;
static void relax(double (*g)[N + 2], double (*f)[N + 2], int n, const struct conf *c) {
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= N; j++)
            f[i][j] = g[i][j] + c->dt * (g[i-1][j] + g[i+1][j] + g[i][j-1] + g[i][j+1] - 4 * g[i][j]);
    for (int i = 1; i <= n; i++)
        memcpy(&g[i][1], &f[i][1], N * sizeof(double));
    flops += 6L * n * N;
}
static int run(struct conf *c, MPI_Comm comm, double *history, int steps, int stop) {
    int rank, size, step = 0;
    double change;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
    do {
        MPI_Request r[4]; int k = 0;
        MPI_Irecv(grid[0], N + 2, MPI_DOUBLE, up, 1, comm, &r[k++]);
        MPI_Irecv(grid[N + 1], N + 2, MPI_DOUBLE, down, 2, comm, &r[k++]);
        MPI_Isend(grid[1], N + 2, MPI_DOUBLE, up, 2, comm, &r[k++]);
        MPI_Isend(grid[N], N + 2, MPI_DOUBLE, down, 1, comm, &r[k++]);
        MPI_Waitall(k, r, MPI_STATUSES_IGNORE);
        relax(grid, fresh, N, c);
        double mine = grid[step % N + 1][3];
        MPI_Allreduce(&mine, &change, 1, MPI_DOUBLE, MPI_SUM, comm);
        history[step % 16] += change;
        if (step == stop && rank == size - 1) abort();
        if (c->mode == HOT && step > 3 * steps) break;
        step++;
    } while (step < steps);
    return step;
}
int main(int argc, char **argv) {
    struct conf c = { .n = N, .m = N, .dt = 0.1, .mode = COLD };
    double history[16] = {0}; int steps = atoi(argv[1]), stop = argc > 2 ? atoi(argv[2]) : -1, done;
    MPI_Comm comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    strcpy(c.name, "stencil");
    for (int i = 0; i < N + 2; i++) for (int j = 0; j < N + 2; j++) grid[i][j] = i * j % 7;
    done = run(&c, comm, history, steps, stop);
    double s = 0; for (int i = 0; i < 16; i++) s += history[i] * (i + 1);
    int rank; MPI_Comm_rank(comm, &rank);
    if (!rank) printf("%s digest %.17g %d %ld\n", c.name, s, done, flops);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
