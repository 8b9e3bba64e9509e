/* Two fields on a Cartesian grid in three dimensions; persistent requests and their buffers in a structure. halo STEPS [KILL] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int nx, ny, nz; /* without ghosts */
    double *rho, *e, *rho_new, *e_new;
} fields_t;

typedef struct {
    MPI_Comm comm;
    int dims[3], coords[3], neighbour[6];
    int count[3];
    double *out[6], *in[6];
    MPI_Request requests[12];
} halo_t;

#define AT(f, i, j, k) (((size_t)(i) * ((f)->ny + 2) + (j)) * ((f)->nz + 2) + (k))

static double *array(const fields_t *f) {
    double *made = calloc((size_t)(f->nx + 2) * (f->ny + 2) * (f->nz + 2), sizeof(double));
    if (made == NULL) {
        fprintf(stderr, "out of memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return made;
}

static void halo_create(halo_t *h, const fields_t *f, int size) {
    int periods[3] = {1, 1, 0};
    h->dims[0] = h->dims[1] = h->dims[2] = 0;
    MPI_Dims_create(size, 3, h->dims);
    MPI_Cart_create(MPI_COMM_WORLD, 3, h->dims, periods, 0, &h->comm);
    int rank;
    MPI_Comm_rank(h->comm, &rank);
    MPI_Cart_coords(h->comm, rank, 3, h->coords);
    for (int d = 0; d < 3; d++)
        MPI_Cart_shift(h->comm, d, 1, &h->neighbour[2 * d], &h->neighbour[2 * d + 1]);
    h->count[0] = 2 * f->ny * f->nz;
    h->count[1] = 2 * f->nx * f->nz;
    h->count[2] = 2 * f->nx * f->ny;
    for (int s = 0; s < 6; s++) {
        h->out[s] = malloc(h->count[s / 2] * sizeof(double));
        h->in[s] = calloc(h->count[s / 2], sizeof(double));
        MPI_Recv_init(h->in[s], h->count[s / 2], MPI_DOUBLE, h->neighbour[s], s ^ 1, h->comm, &h->requests[s]);
        MPI_Send_init(h->out[s], h->count[s / 2], MPI_DOUBLE, h->neighbour[s], s, h->comm, &h->requests[6 + s]);
    }
}

static void pack(const fields_t *f, int side, double *to) {
    int d = side / 2, at[3], n[3] = {f->nx, f->ny, f->nz}, o1 = d == 0 ? 1 : 0, o2 = d == 2 ? 1 : 2, m = 0;
    at[d] = side % 2 ? n[d] : 1;
    for (at[o1] = 1; at[o1] <= n[o1]; at[o1]++)
        for (at[o2] = 1; at[o2] <= n[o2]; at[o2]++) {
            size_t c = AT(f, at[0], at[1], at[2]);
            to[m++] = f->rho[c];
            to[m++] = f->e[c];
        }
}

static void unpack(fields_t *f, int side, const double *from) {
    int d = side / 2, at[3], n[3] = {f->nx, f->ny, f->nz}, o1 = d == 0 ? 1 : 0, o2 = d == 2 ? 1 : 2, m = 0;
    at[d] = side % 2 ? n[d] + 1 : 0;
    for (at[o1] = 1; at[o1] <= n[o1]; at[o1]++)
        for (at[o2] = 1; at[o2] <= n[o2]; at[o2]++) {
            size_t c = AT(f, at[0], at[1], at[2]);
            f->rho[c] = from[m++];
            f->e[c] = from[m++];
        }
}

static void exchange(halo_t *h, fields_t *f) {
    MPI_Startall(6, h->requests);
    for (int s = 0; s < 6; s++)
        pack(f, s, h->out[s]);
    MPI_Startall(6, h->requests + 6);
    MPI_Waitall(12, h->requests, MPI_STATUSES_IGNORE);
    for (int s = 0; s < 6; s++)
        if (h->neighbour[s] != MPI_PROC_NULL)
            unpack(f, s, h->in[s]);
}

static void update(fields_t *f, double dt) {
    size_t sx = (size_t)(f->ny + 2) * (f->nz + 2), sy = f->nz + 2;
    for (int i = 1; i <= f->nx; i++)
        for (int j = 1; j <= f->ny; j++)
            for (int k = 1; k <= f->nz; k++) {
                size_t c = AT(f, i, j, k);
                double lap = f->rho[c - sx] + f->rho[c + sx] + f->rho[c - sy] + f->rho[c + sy] + f->rho[c - 1] + f->rho[c + 1] - 6 * f->rho[c];
                double lae = f->e[c - sx] + f->e[c + sx] + f->e[c - sy] + f->e[c + sy] + f->e[c - 1] + f->e[c + 1] - 6 * f->e[c];
                f->rho_new[c] = f->rho[c] + dt * lap - 0.01 * dt * f->e[c];
                f->e_new[c] = f->e[c] + dt * lae + 0.01 * dt * f->rho[c];
            }
    double *t = f->rho;
    f->rho = f->rho_new;
    f->rho_new = t;
    t = f->e;
    f->e = f->e_new;
    f->e_new = t;
}

int main(int argc, char **argv) {
    int rank, size, steps = atoi(argv[1]), stop = argc > 2 ? atoi(argv[2]) : -1;
    fields_t f = {12, 10, 8, NULL, NULL, NULL, NULL};
    halo_t h;
    double time = 0, total[2] = {0, 0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    f.rho = array(&f);
    f.e = array(&f);
    f.rho_new = array(&f);
    f.e_new = array(&f);
    halo_create(&h, &f, size);
    for (int i = 1; i <= f.nx; i++)
        for (int j = 1; j <= f.ny; j++)
            for (int k = 1; k <= f.nz; k++) {
                f.rho[AT(&f, i, j, k)] = 1 + (i * 7 + j * 3 + k + rank) % 11;
                f.e[AT(&f, i, j, k)] = (i + j * 5 + k * 2 + rank) % 13;
            }
    const double dt = 0.05;
    for (int step = 0; step < steps; step++) {
        if (step == stop && rank == 0)
            abort();
        exchange(&h, &f);
        update(&f, dt);
        time += dt;
        if (step % 10 == 0) {
            double mine[2] = {0, 0};
            for (int i = 1; i <= f.nx; i++)
                for (int j = 1; j <= f.ny; j++)
                    for (int k = 1; k <= f.nz; k++) {
                        mine[0] += f.rho[AT(&f, i, j, k)];
                        mine[1] += f.e[AT(&f, i, j, k)];
                    }
            MPI_Allreduce(mine, total, 2, MPI_DOUBLE, MPI_SUM, h.comm);
            if (rank == 0)
                printf("%d %g %.12g %.12g\n", step, time, total[0], total[1]);
        }
    }
    double sum = 0, all = 0;
    for (int i = 1; i <= f.nx; i++)
        for (int j = 1; j <= f.ny; j++)
            for (int k = 1; k <= f.nz; k++)
                sum += f.rho[AT(&f, i, j, k)] * (i + 2 * j + 3 * k) + f.e[AT(&f, i, j, k)];
    MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("digest %.17g %.17g %g\n", all, total[1], time);
    for (int i = 0; i < 12; i++)
        MPI_Request_free(&h.requests[i]);
    for (int s = 0; s < 6; s++) {
        free(h.in[s]);
        free(h.out[s]);
    }
    free(f.rho);
    free(f.e);
    free(f.rho_new);
    free(f.e_new);
    MPI_Comm_free(&h.comm);
    MPI_Finalize();
    return 0;
}
