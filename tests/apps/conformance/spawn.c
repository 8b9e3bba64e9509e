/* Spawned worlds: children that stay from the first round to the end, children of each round, of one rank and of all, of several commands, and
 * programs that cannot be started, after which all goes on. */
#include "check.h"

#define CHILDREN 2

static int child_number = -1;

/* What both sides do with each other, as often as the parents say. */
static void talk(MPI_Comm other, int children, int high, int round) {
    MPI_Comm merged;
    int mine, all, ranks, own, word, sum, wanted = 0;
    MPI_Comm_remote_size(other, &ranks);
    MPI_Comm_rank(other, &mine);
    MPI_Comm_size(other, &own);
    require(ranks + own > children, "%d here and %d there", own, ranks);
    word = mine + round;
    for (int r = 0; r < ranks; r++) wanted += r + round;
    MPI_Allreduce(&word, &sum, 1, MPI_INT, MPI_SUM, other);
    require(sum == wanted, "the other world's sum is %d instead of %d", sum, wanted);
    MPI_Intercomm_merge(other, high, &merged);
    MPI_Comm_rank(merged, &all);
    require(all == (high ? ranks + mine : mine), "rank %d of the merged worlds", all);
    int size_of_both, left, right, from_left, from_right;
    MPI_Comm_size(merged, &size_of_both);
    left = (all + size_of_both - 1) % size_of_both, right = (all + 1) % size_of_both;
    MPI_Sendrecv(&all, 1, MPI_INT, right, round, &from_left, 1, MPI_INT, left, round, merged, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&all, 1, MPI_INT, left, round, &from_right, 1, MPI_INT, right, round, merged, MPI_STATUS_IGNORE);
    require(from_left == left && from_right == right, "neighbours %d and %d instead of %d and %d", from_left, from_right, left, right);
    enum { LONG = 40000 };
    static double there[LONG], back[LONG];
    for (int i = 0; i < LONG; i++) there[i] = i + all;
    MPI_Sendrecv(there, LONG, MPI_DOUBLE, right, 1, back, LONG, MPI_DOUBLE, left, 1, merged, MPI_STATUS_IGNORE);
    for (int i = 0; i < LONG; i++) require(back[i] == i + left, "element %d of a long message is %g", i, back[i]);
    /* The same again in the opposite order of ranks. Who is on whose node is known to both worlds alike, or these wait for ever. */
    MPI_Comm turned;
    MPI_Comm_split(merged, 0, -all, &turned);
    int place, first = all, last;
    MPI_Comm_rank(turned, &place);
    require(place == size_of_both - 1 - all, "rank %d of the turned worlds", place);
    MPI_Bcast(&first, 1, MPI_INT, 0, turned);
    require(first == size_of_both - 1, "rank %d is first", first);
    MPI_Allreduce(&all, &last, 1, MPI_INT, MPI_MAX, merged);
    require(last == size_of_both - 1, "rank %d is last", last);
    MPI_Barrier(merged);
    MPI_Comm_free(&turned);
    MPI_Comm_free(&merged);
}

/* A child of one round talks once; one that stays talks until it is told that that was all. */
static int child(MPI_Comm parent) {
    int round = 0, number = -1, *application = NULL, flag = 0;
    char where[4096];
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &application, &flag);
    if (program[0] != '?' && child_number >= 0) require(flag && *application == child_number, "program %d", flag ? *application : -1);
    if (child_number == 1) require(strcmp(getcwd(where, sizeof where), "/") == 0, "the working directory is %s", where);
    do {
        MPI_Bcast(&number, 1, MPI_INT, 0, parent);
        if (number < 0) break;
        talk(parent, size, 1, number);
    } while (++round);
    MPI_Comm_disconnect(&parent);
    MPI_Finalize();
    return 0;
}

static void tell(MPI_Comm children, int number) {
    int mine;
    MPI_Comm_rank(children, &mine);
    MPI_Bcast(&number, 1, MPI_INT, mine == 0 ? MPI_ROOT : MPI_PROC_NULL, children);
}

static void once(MPI_Comm children, int number, int round) {
    int ranks;
    MPI_Comm_remote_size(children, &ranks);
    require(ranks == number, "%d children instead of %d", ranks, number);
    tell(children, round);
    talk(children, number, 0, round);
    tell(children, -1);
    MPI_Comm_disconnect(&children);
}

/* Another rank than 0, but for Intel MPI 2021, which waits for ever where that one has opened other ports than rank 0: so it does under its own launcher. */
static int another_root(void) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(library, &length);
    return strncmp(library, "Intel", 5) == 0 ? 0 : size - 1;
}

static void refused(MPI_Comm comm) {
    MPI_Comm children = MPI_COMM_NULL;
    int codes[CHILDREN];
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    int code = MPI_Comm_spawn("./no such program", MPI_ARGV_NULL, CHILDREN, MPI_INFO_NULL, 0, comm, &children, codes);
    require(code != MPI_SUCCESS && children == MPI_COMM_NULL, "a missing program was spawned");
    code = MPI_Comm_spawn("/bin/false", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, comm, &children, codes);
    require(code != MPI_SUCCESS && children == MPI_COMM_NULL, "a program was spawned that does not call MPI_Init");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
}

int main(int count, char **arguments) {
    MPI_Comm parent, stay, children;
    char *self = arguments[0], *one[] = {"child", "0", "a word", "", NULL}, *two[] = {"child", "1", NULL};
    int codes[2 * CHILDREN + 1] = {-1, -1, -1, -1, -1};
    if (count > 1 && strcmp(arguments[1], "child") == 0) {
        child_number = count > 2 ? atoi(arguments[2]) : -1;
        if (child_number == 0 && (count != 5 || strcmp(arguments[3], "a word") || arguments[4][0])) return 9;
        count = 1;
    }
    begin(count, arguments, MPI_THREAD_SINGLE);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) return child(parent);
    require(child_number < 0, "a child without a parent");
    MPI_Comm_spawn(self, one, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &stay, codes);
    require(codes[0] == MPI_SUCCESS && codes[1] == MPI_SUCCESS, "codes %d and %d", codes[0], codes[1]);
    for (int round = 0; again(round); round++) {
        tell(stay, round);
        talk(stay, CHILDREN, 0, round);
        if (round > 3) {
            usleep(20000);
            continue;
        }
        refused(round % 2 ? MPI_COMM_WORLD : MPI_COMM_SELF);
        char *commands[] = {self, self}, **words[] = {one, two};
        int counts[] = {1, CHILDREN};
        MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
        MPI_Info_create(&infos[1]);
        MPI_Info_set(infos[1], "wdir", "/");
        MPI_Info_set(infos[1], "nobody knows", "this");
        MPI_Comm_spawn_multiple(2, commands, words, counts, infos, another_root(), MPI_COMM_WORLD, &children, codes);
        MPI_Info_free(&infos[1]);
        once(children, CHILDREN + 1, round);
        MPI_Comm_spawn(self, one, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &children, MPI_ERRCODES_IGNORE);
        once(children, 1, round);
    }
    tell(stay, -1);
    MPI_Comm_disconnect(&stay);
    return finish();
}
