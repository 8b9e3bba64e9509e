/* Neighbourhood collectives, blocking, nonblocking and persistent, on a periodic grid, an open grid and a general graph;
 * the topologies' own questions. */
#include "check.h"

enum { COUNT = 900, MOST = 64 };

static int value(int from, int edge, int at) { return from * 100000 + edge * 1000 + at; }

/* All calls on one communicator whose neighbours are `in` and `out`; the k-th edge from a to b is the k-th from b's view. */
static void exchange(MPI_Comm comm, int ins, const int *in, int outs, const int *out, const char *what) {
    int *mine = allocate(outs * COUNT * sizeof(int) + 4), *got = allocate(ins * COUNT * sizeof(int) + 4), me;
    int counts[MOST], places[MOST];
    MPI_Aint bytes[MOST];
    MPI_Datatype types[MOST];
    MPI_Comm_rank(comm, &me);
    for (int i = 0; i < MOST; i++) {
        counts[i] = COUNT;
        places[i] = i * COUNT;
        bytes[i] = (MPI_Aint)i * COUNT * (MPI_Aint)sizeof(int);
        types[i] = MPI_INT;
    }
    for (int way = 0; way < 9; way++) {
        MPI_Request request = MPI_REQUEST_NULL;
        int gather = way < 4;
        for (int k = 0; k < outs; k++)
            for (int i = 0; i < COUNT; i++) mine[k * COUNT + i] = value(me, gather ? 0 : out[k], i);
        memset(got, 0xff, (size_t)ins * COUNT * sizeof(int));
        static int lone[COUNT];
        for (int i = 0; i < COUNT; i++) lone[i] = value(me, 0, i);
        switch (way) {
        case 0: MPI_Neighbor_allgather(lone, COUNT, MPI_INT, got, COUNT, MPI_INT, comm); break;
        case 1: MPI_Neighbor_allgatherv(lone, COUNT, MPI_INT, got, counts, places, MPI_INT, comm); break;
        case 2: MPI_Ineighbor_allgather(lone, COUNT, MPI_INT, got, COUNT, MPI_INT, comm, &request); break;
        case 3:
            MPI_Neighbor_allgather_init(lone, COUNT, MPI_INT, got, COUNT, MPI_INT, comm, MPI_INFO_NULL, &request);
            MPI_Start(&request);
            break;
        case 4: MPI_Neighbor_alltoall(mine, COUNT, MPI_INT, got, COUNT, MPI_INT, comm); break;
        case 5: MPI_Neighbor_alltoallv(mine, counts, places, MPI_INT, got, counts, places, MPI_INT, comm); break;
        case 6: MPI_Neighbor_alltoallw(mine, counts, bytes, types, got, counts, bytes, types, comm); break;
        case 7: MPI_Ineighbor_alltoallw(mine, counts, bytes, types, got, counts, bytes, types, comm, &request); break;
        default:
            MPI_Neighbor_alltoallv_init(mine, counts, places, MPI_INT, got, counts, places, MPI_INT, comm, MPI_INFO_NULL, &request);
            MPI_Start(&request);
        }
        if (request != MPI_REQUEST_NULL) MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
        for (int k = 0; k < ins; k++)
            for (int i = 0; i < COUNT && in[k] != MPI_PROC_NULL; i++)
                require(got[k * COUNT + i] == value(in[k], gather ? 0 : me, i), "%s, way %d: word %d of neighbour %d", what, way, i, in[k]);
    }
    free(mine);
    free(got);
}

static void grid(int periodic) {
    int dims[2] = {0, 0}, periods[2] = {periodic, periodic}, coordinates[2], me, neighbours[4], at;
    MPI_Comm comm;
    MPI_Dims_create(size, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &comm);
    MPI_Comm_rank(comm, &me);
    MPI_Cart_coords(comm, me, 2, coordinates);
    MPI_Cart_rank(comm, coordinates, &at);
    require(at == me, "MPI_Cart_rank of its own coordinates is %d instead of %d", at, me);
    MPI_Cart_shift(comm, 0, 1, &neighbours[0], &neighbours[1]);
    MPI_Cart_shift(comm, 1, 1, &neighbours[2], &neighbours[3]);
    exchange(comm, 4, neighbours, 4, neighbours, periodic ? "a periodic grid" : "an open grid");
    MPI_Comm row;
    int keep[2] = {0, 1}, width;
    MPI_Cart_sub(comm, keep, &row);
    MPI_Comm_size(row, &width);
    require(width == dims[1], "a row has %d ranks instead of %d", width, dims[1]);
    MPI_Comm_free(&row);
    MPI_Comm_free(&comm);
}

/* Rank r sends to r + 1, r + 2, r + 4, …: an asymmetric graph, also with no edge at all. */
static void graph(int edges) {
    int in[MOST], out[MOST], ins = 0, outs = 0, weighted, found_in, found_out;
    for (int step = 1; step < size && edges; step *= 2) {
        out[outs++] = (rank + step) % size;
        in[ins++] = (rank + size - step) % size;
    }
    MPI_Comm comm;
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, ins, in, MPI_UNWEIGHTED, outs, out, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &comm);
    MPI_Dist_graph_neighbors_count(comm, &found_in, &found_out, &weighted);
    require(found_in == ins && found_out == outs && !weighted, "a graph of %d and %d edges has %d and %d", ins, outs, found_in, found_out);
    exchange(comm, ins, in, outs, out, "a graph");
    MPI_Comm_free(&comm);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        grid(0);
        /* With two ranks in a periodic direction both edges lead to one neighbour; with one, to the rank itself. */
        grid(1);
        graph(1);
        graph(0);
    }
    return finish();
}
