/* The checking mode: counts messages, and refuses a checkpoint while one is in transit. It stands between the program and MPI (the profiling interface, MPI 4.1
 * chapter 15). Each rank counts its sends and the receives that have completed. At a safe point the difference over all ranks is that of messages in
 * transit. All ranks must come there; MEND_CC_CHECK_SECONDS (10) is how long each waits for that. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mend_cc.h"

enum { SENDS, RECEIVES, NOTHING };

struct request {
    struct request *next;
    MPI_Request handle;
    int kind, persistent, active; /* how many are: MPICH gives all sends that are done at once one handle */
};

static long long sent, received;
static struct request *requests;
static MPI_Comm own = MPI_COMM_NULL;

static struct request *find(MPI_Request handle) {
    for (struct request *r = requests; r; r = r->next)
        if (r->handle == handle)
            return r;
    return NULL;
}

static void track(MPI_Request handle, int kind, int persistent) {
    struct request *r = find(handle);
    if (r && !persistent && !r->persistent && (r->kind == RECEIVES) == (kind == RECEIVES)) {
        r->active++;
        return;
    }
    if (!r) {
        r = calloc(1, sizeof *r);
        if (!r)
            abort();
        r->next = requests;
        requests = r;
    }
    *r = (struct request){r->next, handle, kind, persistent, !persistent};
}

static void complete(MPI_Request handle) {
    for (struct request **at = &requests; *at; at = &(*at)->next) {
        struct request *r = *at;
        if (r->handle != handle)
            continue;
        if (r->active && r->kind == RECEIVES)
            received++;
        r->active -= r->active > 0;
        if (!r->persistent && !r->active) {
            *at = r->next;
            free(r);
        }
        return;
    }
}

static void started(MPI_Request handle) {
    struct request *r = find(handle);
    if (r) {
        r->active = 1;
        sent += r->kind == SENDS;
    }
}

static int open_requests(void) {
    int count = 0;
    for (struct request *r = requests; r; r = r->next)
        count += r->active;
    return count;
}

void mend_cc_counts(long long counts[3]) {
    counts[0] = sent;
    counts[1] = received;
    counts[2] = open_requests();
}

static int check(int point) {
    long long mine[2] = {sent - received, open_requests()}, all[2] = {0, 0};
    const char *set = getenv("MEND_CC_CHECK_SECONDS");
    double until = PMPI_Wtime() + (set ? atof(set) : 10);
    MPI_Request together;
    int done = 0, rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Iallreduce(mine, all, 2, MPI_LONG_LONG, MPI_SUM, own, &together);
    while (!done && PMPI_Wtime() < until)
        PMPI_Test(&together, &done, MPI_STATUS_IGNORE);
    if (!done) {
        fprintf(stderr, "mend-cc: rank %d: refused at safe point %d: other ranks don't come here\n", rank, point);
        PMPI_Abort(MPI_COMM_WORLD, 3);
    }
    if (all[0] == 0 && all[1] == 0)
        return 1;
    if (rank == 0)
        fprintf(stderr, "mend-cc: refused at safe point %d: %lld messages are in transit, %lld requests are open\n", point, all[0], all[1]);
    return 0;
}

static void set_up(void) {
    PMPI_Comm_dup(MPI_COMM_WORLD, &own);
    mend_cc_check = check;
}

int MPI_Init(int *argc, char ***argv) {
    int result = PMPI_Init(argc, argv);
    set_up();
    return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int result = PMPI_Init_thread(argc, argv, required, provided);
    set_up();
    return result;
}

int MPI_Finalize(void) {
    PMPI_Comm_free(&own);
    return PMPI_Finalize();
}

#define SEND(name)                                                                                              \
    int MPI_##name(const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c) {                         \
        sent += to != MPI_PROC_NULL;                                                                            \
        return PMPI_##name(b, n, t, to, tag, c);                                                                \
    }
SEND(Send) SEND(Ssend) SEND(Rsend) SEND(Bsend)

#define ISEND(name, count, persistent)                                                                          \
    int MPI_##name(const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r) {         \
        int result = PMPI_##name(b, n, t, to, tag, c, r);                                                       \
        sent += (count) && to != MPI_PROC_NULL;                                                                 \
        track(*r, to == MPI_PROC_NULL ? NOTHING : SENDS, persistent);                                           \
        return result;                                                                                          \
    }
ISEND(Isend, 1, 0) ISEND(Issend, 1, 0) ISEND(Irsend, 1, 0) ISEND(Ibsend, 1, 0) ISEND(Send_init, 0, 1) ISEND(Ssend_init, 0, 1)

#define IRECV(name, persistent)                                                                                 \
    int MPI_##name(void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r) {             \
        int result = PMPI_##name(b, n, t, from, tag, c, r);                                                     \
        track(*r, from == MPI_PROC_NULL ? NOTHING : RECEIVES, persistent);                                      \
        return result;                                                                                          \
    }
IRECV(Irecv, 0) IRECV(Recv_init, 1)

int MPI_Ibarrier(MPI_Comm c, MPI_Request *r) {
    int result = PMPI_Ibarrier(c, r);
    track(*r, NOTHING, 0);
    return result;
}

int MPI_Ibcast(void *b, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *r) {
    int result = PMPI_Ibcast(b, n, t, root, c, r);
    track(*r, NOTHING, 0);
    return result;
}

int MPI_Iallreduce(const void *b, void *into, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c, MPI_Request *r) {
    int result = PMPI_Iallreduce(b, into, n, t, op, c, r);
    track(*r, NOTHING, 0);
    return result;
}

int MPI_Recv(void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status *s) {
    int result = PMPI_Recv(b, n, t, from, tag, c, s);
    received += from != MPI_PROC_NULL;
    return result;
}

int MPI_Sendrecv(const void *b, int n, MPI_Datatype t, int to, int tag, void *rb, int rn, MPI_Datatype rt, int from, int rtag, MPI_Comm c, MPI_Status *s) {
    sent += to != MPI_PROC_NULL;
    int result = PMPI_Sendrecv(b, n, t, to, tag, rb, rn, rt, from, rtag, c, s);
    received += from != MPI_PROC_NULL;
    return result;
}

int MPI_Sendrecv_replace(void *b, int n, MPI_Datatype t, int to, int tag, int from, int rtag, MPI_Comm c, MPI_Status *s) {
    sent += to != MPI_PROC_NULL;
    int result = PMPI_Sendrecv_replace(b, n, t, to, tag, from, rtag, c, s);
    received += from != MPI_PROC_NULL;
    return result;
}

int MPI_Start(MPI_Request *r) {
    started(*r);
    return PMPI_Start(r);
}

int MPI_Startall(int n, MPI_Request *r) {
    for (int i = 0; i < n; i++)
        started(r[i]);
    return PMPI_Startall(n, r);
}

/* A send that nobody waits for is done when it is received, which the counts tell. */
int MPI_Request_free(MPI_Request *r) {
    const struct request *of = find(*r);
    if (of && of->kind != RECEIVES)
        complete(*r);
    return PMPI_Request_free(r);
}

int MPI_Wait(MPI_Request *r, MPI_Status *s) {
    MPI_Request before = *r;
    int result = PMPI_Wait(r, s);
    complete(before);
    return result;
}

int MPI_Test(MPI_Request *r, int *flag, MPI_Status *s) {
    MPI_Request before = *r;
    int result = PMPI_Test(r, flag, s);
    if (*flag)
        complete(before);
    return result;
}

static MPI_Request *copy(int n, const MPI_Request *r) {
    MPI_Request *made = malloc(((size_t)n + 1) * sizeof *made);
    if (!made)
        abort();
    memcpy(made, r, (size_t)n * sizeof *made);
    return made;
}

int MPI_Waitall(int n, MPI_Request *r, MPI_Status *s) {
    MPI_Request *before = copy(n, r);
    int result = PMPI_Waitall(n, r, s);
    for (int i = 0; i < n; i++)
        complete(before[i]);
    free(before);
    return result;
}

int MPI_Testall(int n, MPI_Request *r, int *flag, MPI_Status *s) {
    MPI_Request *before = copy(n, r);
    int result = PMPI_Testall(n, r, flag, s);
    for (int i = 0; i < n && *flag; i++)
        complete(before[i]);
    free(before);
    return result;
}

int MPI_Waitany(int n, MPI_Request *r, int *index, MPI_Status *s) {
    MPI_Request *before = copy(n, r);
    int result = PMPI_Waitany(n, r, index, s);
    if (*index != MPI_UNDEFINED)
        complete(before[*index]);
    free(before);
    return result;
}

int MPI_Testany(int n, MPI_Request *r, int *index, int *flag, MPI_Status *s) {
    MPI_Request *before = copy(n, r);
    int result = PMPI_Testany(n, r, index, flag, s);
    if (*flag && *index != MPI_UNDEFINED)
        complete(before[*index]);
    free(before);
    return result;
}

int MPI_Waitsome(int n, MPI_Request *r, int *out, int *indices, MPI_Status *s) {
    MPI_Request *before = copy(n, r);
    int result = PMPI_Waitsome(n, r, out, indices, s);
    for (int i = 0; *out != MPI_UNDEFINED && i < *out; i++)
        complete(before[indices[i]]);
    free(before);
    return result;
}

int MPI_Testsome(int n, MPI_Request *r, int *out, int *indices, MPI_Status *s) {
    MPI_Request *before = copy(n, r);
    int result = PMPI_Testsome(n, r, out, indices, s);
    for (int i = 0; *out != MPI_UNDEFINED && i < *out; i++)
        complete(before[indices[i]]);
    free(before);
    return result;
}
