/* Dynamic processes without new ones: ports, published names, connecting parts of a job. */
#include "check.h"

static void names(int round) {
    char service[64], port[MPI_MAX_PORT_NAME], found[MPI_MAX_PORT_NAME] = "";
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    snprintf(service, sizeof service, "service-%d", round);
    int code = MPI_Lookup_name(service, MPI_INFO_NULL, found);
    require(error_class(code) == MPI_ERR_NAME, "a name nobody published: class %d", error_class(code));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Open_port(MPI_INFO_NULL, port);
        require(MPI_Publish_name(service, MPI_INFO_NULL, port) == MPI_SUCCESS, "a name cannot be published");
    }
    MPI_Bcast(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, MPI_COMM_WORLD);
    code = MPI_Lookup_name(service, MPI_INFO_NULL, found);
    require(code == MPI_SUCCESS && strcmp(port, found) == 0, "a published name leads to \"%s\" instead of \"%s\"", found, port);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        require(MPI_Unpublish_name(service, MPI_INFO_NULL, port) == MPI_SUCCESS, "a name cannot be withdrawn");
        MPI_Close_port(port);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    code = MPI_Lookup_name(service, MPI_INFO_NULL, found);
    require(error_class(code) == MPI_ERR_NAME, "a withdrawn name: class %d", error_class(code));
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* The lower half accepts, the upper half connects; they talk, merge, and part. */
static void connected(int round) {
    if (size < 2) return;
    char service[64], port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm half, other, merged;
    int server = rank < size / 2, ranks, word = rank, sum, wanted = 0;
    snprintf(service, sizeof service, "meeting-%d", round);
    MPI_Comm_split(MPI_COMM_WORLD, server, rank, &half);
    if (rank == 0) {
        MPI_Open_port(MPI_INFO_NULL, port);
        MPI_Publish_name(service, MPI_INFO_NULL, port);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (server) {
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &other);
    } else {
        MPI_Lookup_name(service, MPI_INFO_NULL, port);
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &other);
    }
    MPI_Comm_remote_size(other, &ranks);
    require(ranks == (server ? size - size / 2 : size / 2), "connected to %d ranks", ranks);
    for (int r = 0; r < size; r++) wanted += (r < size / 2) != server ? r : 0;
    MPI_Allreduce(&word, &sum, 1, MPI_INT, MPI_SUM, other);
    require(sum == wanted, "the other half's sum is %d instead of %d", sum, wanted);
    MPI_Intercomm_merge(other, !server, &merged);
    MPI_Allreduce(&word, &sum, 1, MPI_INT, MPI_SUM, merged);
    require(sum == size * (size - 1) / 2, "merged after connecting: a sum of %d", sum);
    MPI_Comm_free(&merged);
    MPI_Comm_disconnect(&other);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Unpublish_name(service, MPI_INFO_NULL, port);
        MPI_Close_port(port);
    }
    MPI_Comm_free(&half);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        MPI_Comm parent;
        MPI_Comm_get_parent(&parent);
        require(parent == MPI_COMM_NULL, "a parent that is not there");
        names(round);
        connected(round);
    }
    return finish();
}
