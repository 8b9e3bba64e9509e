#ifndef PLATE_H
#define PLATE_H

struct plate {
    int rows, columns, first; /* rows of this rank, with two rows of halo beside them */
    double *now, *next, *sources;
};

extern double total_change;

void make_plate(struct plate *p, int all, int columns, int rank, int ranks);
void step_plate(struct plate *p, int up, int down);
double heat_of(const struct plate *p);
#endif
