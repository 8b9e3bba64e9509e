/* Particles in a linked list that grows and shrinks, and move from rank to rank. swarm STEPS [KILL] */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct particle {
    double place, speed;
    int number;
    struct particle *next;
};

static struct particle *all;
static int made;

static void add(double place, double speed, int number) {
    struct particle *p = malloc(sizeof *p);
    p->place = place;
    p->speed = speed;
    p->number = number;
    p->next = all;
    all = p;
}

static void move(unsigned *seed) {
    for (struct particle *p = all; p; p = p->next) {
        p->place += p->speed;
        p->speed += 0.001 * (rand_r(seed) % 100 - 50);
    }
}

static void drop(double limit) {
    for (struct particle **at = &all; *at;) {
        struct particle *p = *at;
        if (p->place > limit || p->place < -limit) {
            *at = p->next;
            free(p);
        } else {
            at = &p->next;
        }
    }
}

int main(int argc, char **argv) {
    int rank, ranks, steps = atoi(argv[1]), kill_at = argc > 2 ? atoi(argv[2]) : -1;
    long long moved = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned seed = 17 + rank;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int i = 0; i < 40; i++)
        add(0.01 * i, 0.1, made++);
    for (int step = 0; step < steps; step++) {
        if (step == kill_at && rank == ranks - 1)
            raise(SIGKILL);
        move(&seed);
        drop(3);
        double out[2] = {all ? all->place : 0, all ? all->speed : 0}, in[2];
        MPI_Sendrecv(out, 2, MPI_DOUBLE, next, 0, in, 2, MPI_DOUBLE, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        add(0.5 * in[0], -0.5 * in[1], made++);
        moved += in[0] > 0;
    }
    double sum = 0, total;
    for (struct particle *p = all; p; p = p->next)
        sum += p->place * p->number + p->speed;
    sum += moved;
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("swarm digest %.17g\n", total);
    MPI_Finalize();
    return 0;
}
