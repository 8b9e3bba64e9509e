/* Communicators and groups: duplicates, splits, subsets; intercommunicators with their messages and collectives; sessions;
 * attributes; error handlers. */
#include "check.h"

static int copied, deleted;

static int copy(MPI_Comm comm, int key, void *extra, void *value, void *result, int *keep) {
    (void)comm, (void)key, (void)extra;
    *(void **)result = value;
    *keep = 1;
    copied++;
    return MPI_SUCCESS;
}

static int drop(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    deleted++;
    return MPI_SUCCESS;
}

static void sum_is(MPI_Comm comm, int wanted, const char *what) {
    int mine = rank, sum;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comm);
    require(sum == wanted, "%s: the sum of its ranks is %d instead of %d", what, sum, wanted);
}

static void inside(void) {
    MPI_Comm comm, parts, members;
    MPI_Group all, even, odd, both;
    int everybody = size * (size - 1) / 2, same, position;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_compare(comm, MPI_COMM_WORLD, &same);
    require(same == MPI_CONGRUENT, "a duplicate compares as %d", same);
    sum_is(comm, everybody, "MPI_Comm_dup");
    /* The same tag in two communicators does not meet. */
    int right = (rank + 1) % size, left = (rank + size - 1) % size, one = 1, two = 2, got_one, got_two;
    MPI_Request requests[4];
    MPI_Irecv(&got_two, 1, MPI_INT, left, 1, comm, &requests[0]);
    MPI_Irecv(&got_one, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(&one, 1, MPI_INT, right, 1, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(&two, 1, MPI_INT, right, 1, comm, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    require(got_one == 1 && got_two == 2, "messages of two communicators met");
    /* In threes, in reverse order. */
    MPI_Comm_split(comm, rank / 3, -rank, &parts);
    int first = rank / 3 * 3, last = first + 2 < size ? first + 2 : size - 1, sum = 0;
    for (int r = first; r <= last; r++) sum += r;
    sum_is(parts, sum, "MPI_Comm_split");
    MPI_Comm_rank(parts, &position);
    require(position == last - rank, "in a reversed part rank %d is %d", rank, position);
    MPI_Comm_free(&parts);
    MPI_Comm_split(comm, rank == 0 ? MPI_UNDEFINED : 0, rank, &parts);
    require((parts == MPI_COMM_NULL) == (rank == 0), "MPI_UNDEFINED");
    if (rank != 0) sum_is(parts, everybody, "a split without rank 0");
    if (rank != 0) MPI_Comm_free(&parts);
    /* Made by its members alone. */
    int *list = allocate(size * sizeof(int)), count = 0;
    for (int r = 0; r < size; r += 2) list[count++] = r;
    MPI_Comm_group(comm, &all);
    MPI_Group_incl(all, count, list, &even);
    MPI_Group_difference(all, even, &odd);
    MPI_Group_union(odd, even, &both);
    MPI_Group_compare(both, all, &same);
    require(same == (size > 1 ? MPI_SIMILAR : MPI_IDENT), "the union of odd and even compares as %d", same);
    sum = 0;
    for (int r = rank % 2; r < size; r += 2) sum += r;
    MPI_Comm_create_group(comm, rank % 2 ? odd : even, 5, &members);
    sum_is(members, sum, "MPI_Comm_create_group");
    MPI_Comm_free(&members);
    MPI_Comm_create(comm, even, &members);
    require((members == MPI_COMM_NULL) == (rank % 2 == 1), "MPI_Comm_create outside of the group");
    if (members != MPI_COMM_NULL) MPI_Comm_free(&members);
    MPI_Group_free(&all);
    MPI_Group_free(&even);
    MPI_Group_free(&odd);
    MPI_Group_free(&both);
    free(list);
    MPI_Comm_free(&comm);
}

static void attributes(void) {
    int key, flag, *tag_bound, word = 5, *found;
    MPI_Comm comm, twin;
    copied = deleted = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_bound, &flag);
    require(flag && *tag_bound >= 32767, "the largest tag is %d", flag ? *tag_bound : -1);
    int right = (rank + 1) % size, left = (rank + size - 1) % size, got;
    MPI_Sendrecv(&word, 1, MPI_INT, right, *tag_bound, &got, 1, MPI_INT, left, *tag_bound, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    require(got == 5, "a message with the largest tag");
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_create_keyval(copy, drop, &key, NULL);
    MPI_Comm_set_attr(comm, key, &word);
    MPI_Comm_dup(comm, &twin);
    MPI_Comm_get_attr(twin, key, &found, &flag);
    require(flag && *found == 5 && copied == 1, "an attribute was not copied");
    MPI_Comm_free(&twin);
    MPI_Comm_free(&comm);
    require(deleted == 2, "%d of 2 attributes were deleted", deleted);
    MPI_Comm_free_keyval(&key);
}

/* Even and odd ranks face each other. */
static void between(void) {
    if (size < 2) return;
    MPI_Comm mine, other, merged, copy_of_it;
    int me, theirs, inter, side = rank % 2;
    MPI_Comm_split(MPI_COMM_WORLD, side, rank, &mine);
    MPI_Comm_rank(mine, &me);
    MPI_Intercomm_create(mine, 0, MPI_COMM_WORLD, 1 - side, 7, &other);
    MPI_Comm_test_inter(other, &inter);
    MPI_Comm_remote_size(other, &theirs);
    require(inter && theirs == (size + side) / 2, "%d ranks on the other side", theirs);
    int sum = 0, word = rank, total, *all = allocate(size * sizeof(int));
    for (int r = 1 - side; r < size; r += 2) sum += r;
    MPI_Allreduce(&word, &total, 1, MPI_INT, MPI_SUM, other);
    require(total == sum, "the other side's sum is %d instead of %d", total, sum);
    MPI_Allgather(&word, 1, MPI_INT, all, 1, MPI_INT, other);
    for (int r = 0; r < theirs; r++) require(all[r] == 2 * r + 1 - side, "rank %d of the other side said %d", r, all[r]);
    int value = side == 0 && me == 0 ? 4711 : -1;
    MPI_Bcast(&value, 1, MPI_INT, side == 0 ? (me == 0 ? MPI_ROOT : MPI_PROC_NULL) : 0, other);
    require(value == (side == 1 || me == 0 ? 4711 : -1), "a broadcast to the other side brought %d", value);
    MPI_Alltoall(all, 0, MPI_INT, all, 0, MPI_INT, other);
    MPI_Request request;
    MPI_Ibarrier(other, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    /* Everybody to everybody on the other side, short and long, received by wildcard. */
    for (int length = 10; length <= 100000; length *= 100) {
        unsigned char *out = allocate(length * theirs), *in = allocate(length);
        MPI_Request *sends = allocate(theirs * sizeof *sends);
        for (int r = 0; r < theirs; r++) {
            fill(out + (size_t)r * length, length, rank, r, length);
            MPI_Isend(out + (size_t)r * length, length, MPI_BYTE, r, length, other, &sends[r]);
        }
        for (int r = 0; r < theirs; r++) {
            MPI_Status status;
            MPI_Recv(in, length, MPI_BYTE, MPI_ANY_SOURCE, length, other, &status);
            verify(in, length, 2 * status.MPI_SOURCE + 1 - side, me, length, "a message from the other side");
        }
        MPI_Waitall(theirs, sends, MPI_STATUSES_IGNORE);
        free(out);
        free(in);
        free(sends);
    }
    MPI_Comm_dup(other, &copy_of_it);
    MPI_Barrier(copy_of_it);
    MPI_Comm_free(&copy_of_it);
    MPI_Intercomm_merge(other, side == 0, &merged);
    sum_is(merged, size * (size - 1) / 2, "MPI_Intercomm_merge");
    MPI_Comm_rank(merged, &word);
    require(word == (side == 0 ? size / 2 + me : me), "merged, rank %d is %d", rank, word);
    MPI_Comm_free(&merged);
    MPI_Comm_free(&other);
    MPI_Comm_free(&mine);
    free(all);
}

static void sessions(void) {
    MPI_Session session;
    MPI_Group world;
    MPI_Comm comm;
    int sets, length = 0, members;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Session_get_num_psets(session, MPI_INFO_NULL, &sets);
    require(sets >= 2, "%d process sets", sets);
    MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 0, &length, NULL);
    require(length > 0, "a process set without a name");
    MPI_Group_from_session_pset(session, "mpi://WORLD", &world);
    MPI_Group_size(world, &members);
    require(members == size, "mpi://WORLD has %d ranks", members);
    MPI_Comm_create_from_group(world, "conformance", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
    sum_is(comm, size * (size - 1) / 2, "a session's communicator");
    MPI_Comm_free(&comm);
    MPI_Group_free(&world);
    MPI_Session_finalize(&session);
}

static int handled;

static void handler(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    handled = error_class(*code);
}

/* Errors are told by their class, to the handler of the communicator, and are not fatal if it is not. */
static void errors(void) {
    MPI_Comm comm;
    MPI_Errhandler own;
    int word = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    require(error_class(MPI_Send(&word, 1, MPI_INT, size, 1, comm)) == MPI_ERR_RANK, "a send to rank %d of %d", size, size);
    require(error_class(MPI_Send(&word, -1, MPI_INT, 0, 1, comm)) == MPI_ERR_COUNT, "a send of -1");
    require(error_class(MPI_Send(&word, 1, MPI_DATATYPE_NULL, 0, 1, comm)) == MPI_ERR_TYPE, "a send without type");
    require(error_class(MPI_Send(&word, 1, MPI_INT, 0, -5, comm)) == MPI_ERR_TAG, "a send with tag -5");
    require(error_class(MPI_Bcast(&word, 1, MPI_INT, size, comm)) == MPI_ERR_ROOT, "a broadcast from rank %d of %d", size, size);
    MPI_Comm_create_errhandler(handler, &own);
    MPI_Comm_set_errhandler(comm, own);
    handled = 0;
    MPI_Send(&word, 1, MPI_INT, size, 1, comm);
    require(handled == MPI_ERR_RANK, "the handler was told %d", handled);
    MPI_Errhandler_free(&own);
    MPI_Comm_free(&comm);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        inside();
        attributes();
        between();
        sessions();
        errors();
    }
    return finish();
}
