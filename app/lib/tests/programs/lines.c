/* lines MODE STEPS FIRST STOP [shared [FILE]]: the last rank, or with `shared` each one, writes a line in each step from FIRST on to FILE (out.txt), opened by mode MODE. With mode w or w+ its first line has the number of lines, and is
 * written anew each time, so that the file's position is behind that. With mode r such a file is opened twice, and its header is read, and a line in each step. Rank 0 ends the job in step STOP. */
#include <mend_app_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect(FILE *in, const char *word, long number) {
    char found[16] = "";
    long value = -1;
    if (!in)
        return;
    if (fscanf(in, "%15s %ld", found, &value) != 2 || strcmp(found, word) != 0 || (number >= 0 && value != number)) {
        printf("lines: %s %ld is read where %s %ld was expected\n", found, value, word, number);
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, 4);
    }
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 5 || mend_app_init_mpi(MPI_COMM_WORLD, "lines 1", NULL) < 0)
        MPI_Abort(MPI_COMM_WORLD, 2);
    const char *mode = argv[1];
    long steps = atol(argv[2]), first = atol(argv[3]), stop = atol(argv[4]), step = 0;
    mend_app_enter("main");
    mend_app_variable("step", &step, MEND_APP_LONG, 0, NULL, MEND_APP_REPLICATED);
    const int writes = rank == size - 1 || (argc > 5 && argv[5][0]);
    const char *path = argc > 6 ? argv[6] : "out.txt";
    FILE *out = writes ? mend_app_fopen("out", path, mode) : NULL;
    if (writes && !out)
        MPI_Abort(MPI_COMM_WORLD, 3);
    if (out && mode[0] == 'w')
        fprintf(out, "lines %6d\n", 0);
    const int reads = strcmp(mode, "r") == 0;
    FILE *second = reads && writes ? mend_app_fopen("second", path, mode) : NULL;
    if (reads) {
        expect(out, "lines", -1);
        expect(second, "lines", -1);
    }
    for (; step < steps; step++) {
        mend_app_checkpoint();
        if (step == stop && rank == 0) {
            fflush(NULL);
            MPI_Abort(MPI_COMM_WORLD, 1);
            for (;;) /* It returns in MPICH 5, and the run could end before it is killed. */
                pause();
        }
        if (!out || step < first)
            continue;
        if (reads) {
            expect(out, "line", step);
            expect(second, "line", step);
            continue;
        }
        fseek(out, 0, SEEK_END);
        fprintf(out, "line %ld\n", step);
        if (mode[0] != 'w')
            continue;
        rewind(out);
        fprintf(out, "lines %6ld\n", step + 1);
    }
    if (rank == 0)
        printf("lines end %ld\n", step);
    mend_app_leave();
    mend_app_finalize();
    MPI_Finalize();
}
