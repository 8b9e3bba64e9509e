/* Two phases: smoothing, then conjugate gradients with the smoothed right-hand side; the second in a function that is called in a loop of its own.
 * solver STEPS [KILL]: killed at that iteration of the second phase. */
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define N 200

static int rank, ranks, left, right;
static double b[N + 2], x[N + 2], r[N + 2], p[N + 2], q[N + 2];

static double dot(const double *a, const double *c) {
    double mine = 0, all;
    for (int i = 1; i <= N; i++)
        mine += a[i] * c[i];
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static void halo(double *v) {
    MPI_Sendrecv(&v[1], 1, MPI_DOUBLE, left, 0, &v[N + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&v[N], 1, MPI_DOUBLE, right, 1, &v[0], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double solve(int iterations, int kill_at, int round) {
    double rho, alpha, old = 0;
    for (int i = 0; i < N + 2; i++) {
        r[i] = b[i] * (round + 1);
        p[i] = 0;
        x[i] = 0;
    }
    rho = dot(r, r);
    for (int k = 0; k < iterations; k++) {
        if (round == 1 && k == kill_at && rank == 0)
            raise(SIGKILL);
        double beta = k ? rho / old : 0;
        for (int i = 1; i <= N; i++)
            p[i] = r[i] + beta * p[i];
        halo(p);
        for (int i = 1; i <= N; i++)
            q[i] = 2.5 * p[i] - p[i - 1] - p[i + 1];
        alpha = rho / dot(p, q);
        for (int i = 1; i <= N; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        old = rho;
        rho = dot(r, r);
    }
    return dot(x, b);
}

int main(int argc, char **argv) {
    int iterations = atoi(argv[1]), kill_at = argc > 2 ? atoi(argv[2]) : -1;
    double found = 0, scale;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    left = rank ? rank - 1 : MPI_PROC_NULL;
    right = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    double *work = malloc((N + 2) * sizeof *work);
    for (int i = 0; i < N + 2; i++)
        b[i] = sin(i + N * rank);
    for (int step = 0; step < iterations; step++) {
        halo(b);
        for (int i = 1; i <= N; i++)
            work[i] = (b[i - 1] + b[i] + b[i + 1]) / 3;
        for (int i = 1; i <= N; i++)
            b[i] = work[i];
    }
    scale = 1 / sqrt(dot(b, b));
    for (int round = 0; round < 3; round++)
        found += scale * solve(iterations, kill_at, round);
    if (rank == 0)
        printf("solver digest %.17g\n", found);
    free(work);
    MPI_Finalize();
    return 0;
}
