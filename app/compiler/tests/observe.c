/* Shows whether the corpus's labels are right: at each label it notes what the rank has sent and received. Built with mend_cc_check.c, whose counts these are. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include <mend_cc.h>

static FILE *notes;
static int passes[64];

int (*mend_cc_check)(int point);

void observe(int label, int rank);
void observe_(const int *label);

/* For Fortran. */
void observe_(const int *label) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    observe(*label, rank);
}

void observe(int label, int rank) {
    long long counts[3];
    char name[64];
    if (!notes) {
        snprintf(name, sizeof name, "notes-%d", rank);
        notes = fopen(name, "w");
        if (!notes)
            abort();
    }
    mend_cc_counts(counts);
    fprintf(notes, "%d %d %lld %lld %lld\n", label, passes[label]++, counts[0], counts[1], counts[2]);
    fflush(notes);
}
