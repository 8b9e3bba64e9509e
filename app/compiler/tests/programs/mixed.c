/* Rows by pointers, structures with pointers in an array, a pointer that moves. mixed STEPS [KILL] */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    double a[3];
    int *index;
    int number;
} item;

static int calls;

static int count(void) {
    return ++calls;
}

int main(int argc, char **argv) {
    int rank, size, steps = atoi(argv[1]), kill_at = argc > 2 ? atoi(argv[2]) : -1, n = 5;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    item items[4];
    double **rows = malloc(5 * sizeof(double *));
    for (int i = 0; i < 5; i++) {
        rows[i] = malloc(7 * sizeof(double));
        for (int j = 0; j < 7; j++)
            rows[i][j] = i + j;
    }
    for (int i = 0; i < 4; i++) {
        items[i].number = i;
        items[i].index = malloc(sizeof(int) * (i + 1));
        items[i].index[0] = i;
        items[i].a[0] = items[i].a[1] = items[i].a[2] = i;
    }
    double s = 0, *p = rows[0];
    for (int step = 0; step < steps; step++) {
        if (step == kill_at && rank == size - 1)
            raise(SIGKILL);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < 7; j++)
                rows[i][j] = 0.5 * rows[i][j] + step + i;
        s += *p + count();
        p = rows[step % 5];
        for (int i = 0; i < 4; i++) {
            items[i].a[step % 3] += s;
            items[i].index[0] ^= step;
        }
        MPI_Allreduce(MPI_IN_PLACE, &s, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        s /= size;
    }
    for (int i = 0; i < 4; i++)
        s += items[i].a[0] + items[i].a[1] * items[i].index[0] + items[i].number;
    if (rank == 0)
        printf("mixed digest %.17g %d\n", s, count());
    MPI_Finalize();
    return 0;
}
