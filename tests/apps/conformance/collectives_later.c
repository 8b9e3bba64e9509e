/* Nonblocking and persistent collectives: many in flight at once, in two communicators, mixed with messages, completed in
 * an order that is not that of their start. */
#include "check.h"

enum { FLYING = 12, TIMES = 4 };
static const int COUNTS[] = {1, 700, 30000};

static int64_t word(int from, int to, int at) { return (int64_t)from * 1000003 + (int64_t)to * 7919 + at; }

struct flight {
    int64_t *in, *out;
    int kind, count, root, *counts, *places;
    MPI_Comm comm;
    MPI_Datatype *types;
};

enum { IBARRIER, IBCAST, IGATHER, IGATHERV, ISCATTER, ISCATTERV, IALLGATHER, IALLGATHERV, IALLTOALL, IALLTOALLV, IALLTOALLW, IREDUCE, IALLREDUCE,
       IREDUCE_SCATTER, IREDUCE_SCATTER_BLOCK, ISCAN, IEXSCAN, KINDS };

static void prepare(struct flight *f, int kind, int count, int root, MPI_Comm comm) {
    f->kind = kind;
    f->count = count;
    f->root = root;
    f->comm = comm;
    f->in = allocate((size_t)count * size * 8);
    f->out = allocate((size_t)count * size * 8);
    f->counts = allocate(size * sizeof(int));
    f->places = allocate(size * sizeof(int));
    f->types = allocate(size * sizeof *f->types);
    for (int r = 0; r < size; r++) {
        f->counts[r] = count;
        f->places[r] = (kind == IALLTOALLW ? 8 : 1) * r * count;
        f->types[r] = MPI_INT64_T;
    }
}

/* What a rank puts in: for it alone, or its part for each. */
static void load(struct flight *f, int time) {
    memset(f->out, 0xee, (size_t)f->count * size * 8);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < f->count; i++) f->in[(size_t)r * f->count + i] = word(rank, r, i + time);
    if (f->kind == IBCAST)
        for (int i = 0; i < f->count; i++) f->out[i] = rank == f->root ? word(rank, 0, i + time) : -1;
}

#define T MPI_INT64_T
#define ARGUMENTS(call, init, ...) (persistent ? MPI_##init##_init(__VA_ARGS__, f->comm, MPI_INFO_NULL, request) : MPI_##call(__VA_ARGS__, f->comm, request))

static void launch(struct flight *f, int persistent, MPI_Request *request) {
    int n = f->count, *cs = f->counts, *ds = f->places;
    switch (f->kind) {
    case IBARRIER:
        if (persistent) MPI_Barrier_init(f->comm, MPI_INFO_NULL, request);
        else MPI_Ibarrier(f->comm, request);
        break;
    case IBCAST: ARGUMENTS(Ibcast, Bcast, f->out, n, T, f->root); break;
    case IGATHER: ARGUMENTS(Igather, Gather, f->in, n, T, f->out, n, T, f->root); break;
    case IGATHERV: ARGUMENTS(Igatherv, Gatherv, f->in, n, T, f->out, cs, ds, T, f->root); break;
    case ISCATTER: ARGUMENTS(Iscatter, Scatter, f->in, n, T, f->out, n, T, f->root); break;
    case ISCATTERV: ARGUMENTS(Iscatterv, Scatterv, f->in, cs, ds, T, f->out, n, T, f->root); break;
    case IALLGATHER: ARGUMENTS(Iallgather, Allgather, f->in, n, T, f->out, n, T); break;
    case IALLGATHERV: ARGUMENTS(Iallgatherv, Allgatherv, f->in, n, T, f->out, cs, ds, T); break;
    case IALLTOALL: ARGUMENTS(Ialltoall, Alltoall, f->in, n, T, f->out, n, T); break;
    case IALLTOALLV: ARGUMENTS(Ialltoallv, Alltoallv, f->in, cs, ds, T, f->out, cs, ds, T); break;
    case IALLTOALLW: ARGUMENTS(Ialltoallw, Alltoallw, f->in, cs, ds, f->types, f->out, cs, ds, f->types); break;
    case IREDUCE: ARGUMENTS(Ireduce, Reduce, f->in, f->out, n, T, MPI_SUM, f->root); break;
    case IALLREDUCE: ARGUMENTS(Iallreduce, Allreduce, f->in, f->out, n, T, MPI_SUM); break;
    case IREDUCE_SCATTER: ARGUMENTS(Ireduce_scatter, Reduce_scatter, f->in, f->out, cs, T, MPI_SUM); break;
    case IREDUCE_SCATTER_BLOCK: ARGUMENTS(Ireduce_scatter_block, Reduce_scatter_block, f->in, f->out, n, T, MPI_SUM); break;
    case ISCAN: ARGUMENTS(Iscan, Scan, f->in, f->out, n, T, MPI_SUM); break;
    default: ARGUMENTS(Iexscan, Exscan, f->in, f->out, n, T, MPI_SUM);
    }
}

static int64_t sum(int first, int last, int to, int at) {
    int64_t total = 0;
    for (int r = first; r <= last; r++) total += word(r, to, at);
    return total;
}

static void inspect(const struct flight *f, int time) {
    int at_root = rank == f->root;
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < f->count; i++) {
            int64_t got = f->out[(size_t)r * f->count + i], wanted = got;
            int at = i + time, first = r == 0;
            switch (f->kind) {
            case IBCAST: wanted = first ? word(f->root, 0, at) : got; break;
            case IGATHER:
            case IGATHERV: wanted = at_root ? word(r, 0, at) : got; break;
            case ISCATTER:
            case ISCATTERV: wanted = first ? word(f->root, rank, at) : got; break;
            case IALLGATHER:
            case IALLGATHERV: wanted = word(r, 0, at); break;
            case IALLTOALL:
            case IALLTOALLV:
            case IALLTOALLW: wanted = word(r, rank, at); break;
            case IREDUCE: wanted = at_root && first ? sum(0, size - 1, 0, at) : got; break;
            case IALLREDUCE: wanted = first ? sum(0, size - 1, 0, at) : got; break;
            case IREDUCE_SCATTER:
            case IREDUCE_SCATTER_BLOCK: wanted = first ? sum(0, size - 1, rank, at) : got; break;
            case ISCAN: wanted = first ? sum(0, rank, 0, at) : got; break;
            case IEXSCAN: wanted = first && rank > 0 ? sum(0, rank - 1, 0, at) : got; break;
            default: break;
            }
            require(got == wanted, "collective %d of %d words (root %d, time %d): word %d of part %d", f->kind, f->count, f->root, time, i, r);
        }
    }
}

static void release(struct flight *f) {
    free(f->in);
    free(f->out);
    free(f->counts);
    free(f->places);
    free(f->types);
}

/* FLYING collectives are started, messages go around meanwhile, all are completed. */
static void wave(int number, int persistent, MPI_Comm other) {
    struct flight flights[FLYING];
    MPI_Request requests[FLYING], message[2];
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    unsigned char *out = allocate(100000), *in = allocate(100000);
    for (int i = 0; i < FLYING; i++) {
        int kind = (number * FLYING + i) % KINDS;
        prepare(&flights[i], kind, COUNTS[(number + i) % 3], (number + i) % size, i % 2 ? other : MPI_COMM_WORLD);
        if (persistent) launch(&flights[i], 1, &requests[i]);
    }
    for (int time = 0; time < (persistent ? TIMES : 1); time++) {
        for (int i = 0; i < FLYING; i++) {
            load(&flights[i], time);
            if (persistent) MPI_Start(&requests[i]);
            else launch(&flights[i], 0, &requests[i]);
        }
        fill(out, 100000, rank, right, number);
        MPI_Irecv(in, 100000, MPI_BYTE, left, 3, MPI_COMM_WORLD, &message[0]);
        MPI_Isend(out, 100000, MPI_BYTE, right, 3, MPI_COMM_WORLD, &message[1]);
        if (rank % 2) {
            for (int i = FLYING - 1; i >= 0; i--) MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        } else {
            MPI_Waitall(FLYING, requests, MPI_STATUSES_IGNORE);
        }
        MPI_Waitall(2, message, MPI_STATUSES_IGNORE);
        verify(in, 100000, left, rank, number, "a message between collectives");
        for (int i = 0; i < FLYING; i++) inspect(&flights[i], time);
    }
    for (int i = 0; i < FLYING; i++) {
        if (persistent) MPI_Request_free(&requests[i]);
        release(&flights[i]);
    }
    free(out);
    free(in);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    MPI_Comm other;
    MPI_Request request;
    MPI_Comm_idup(MPI_COMM_WORLD, &other, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int round = 0; again(round); round++) {
        for (int number = 0; number < KINDS; number++) wave(number, 0, other);
        for (int number = 0; number < KINDS; number += 3) wave(number, 1, other);
    }
    MPI_Comm_free(&other);
    return finish();
}
