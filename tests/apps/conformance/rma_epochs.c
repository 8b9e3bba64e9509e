/* One-sided communication in all kinds of epochs: fence, post-start-complete-wait, lock (shared and exclusive), lock_all
 * with flush; put, get, accumulate, get_accumulate, fetch_and_op, compare_and_swap, their request-based forms; derived
 * types; windows created and allocated. */
#include "check.h"

enum { WORDS = 9000, ROUNDS = 40 };

static int64_t word(int from, int to, int at) { return (int64_t)from * 1000003 + (int64_t)to * 7919 + at; }

/* Everybody writes a part of everybody's window, adds to a common word, and reads its neighbour's. */
static void fences(MPI_Win window, int64_t *memory) {
    int64_t *out = allocate((size_t)size * WORDS * 8), *in = allocate(WORDS * 8), one = 1;
    int right = (rank + 1) % size;
    memory[size * WORDS] = 0;
    MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
    for (int to = 0; to < size; to++) {
        int64_t *part = out + (size_t)to * WORDS;
        for (int i = 0; i < WORDS; i++) part[i] = word(rank, to, i);
        MPI_Put(part, WORDS, MPI_INT64_T, to, (MPI_Aint)rank * WORDS, WORDS, MPI_INT64_T, window);
        MPI_Accumulate(&one, 1, MPI_INT64_T, to, (MPI_Aint)size * WORDS, 1, MPI_INT64_T, MPI_SUM, window);
    }
    MPI_Win_fence(0, window);
    require(memory[size * WORDS] == size, "after a fence %lld of %d were added", (long long)memory[size * WORDS], size);
    for (int from = 0; from < size; from++)
        for (int i = 0; i < WORDS; i++) require(memory[from * WORDS + i] == word(from, rank, i), "after a fence: word %d from %d", i, from);
    MPI_Get(in, WORDS, MPI_INT64_T, right, (MPI_Aint)rank * WORDS, WORDS, MPI_INT64_T, window);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    for (int i = 0; i < WORDS; i++) require(in[i] == word(rank, right, i), "a get brought word %d", i);
    free(out);
    free(in);
}

/* A ring of exposures: everybody exposes to the left neighbour and accesses the right one. */
static void post_start(MPI_Win window, int64_t *memory) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Group all, group_right, group_left;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &right, &group_right);
    MPI_Group_incl(all, 1, &left, &group_left);
    int64_t *out = allocate(WORDS * 8);
    for (int round = 0; round < ROUNDS / 4; round++) {
        int count = round % 2 ? 3 : WORDS, flag = 0;
        memset(memory, 0, WORDS * 8);
        for (int i = 0; i < count; i++) out[i] = word(rank, right, i + round);
        MPI_Win_post(group_left, 0, window);
        MPI_Win_start(group_right, 0, window);
        MPI_Put(out, count, MPI_INT64_T, right, 0, count, MPI_INT64_T, window);
        MPI_Win_complete(window);
        if (round % 3) MPI_Win_wait(window);
        else while (!flag) MPI_Win_test(window, &flag);
        for (int i = 0; i < count; i++) require(memory[i] == word(left, rank, i + round), "after a wait: word %d in round %d", i, round);
    }
    free(out);
    MPI_Group_free(&all);
    MPI_Group_free(&group_right);
    MPI_Group_free(&group_left);
}

/* Rank 0's words are a counter and a log that everybody writes under locks; nothing is lost and nothing comes twice. */
static void locks(MPI_Win window, int64_t *memory) {
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memset(memory, 0, (size_t)(size * WORDS + 1) * 8);
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t seen, next;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Get(&seen, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, window);
        MPI_Win_flush(0, window);
        require(seen >= 0 && seen < (int64_t)size * ROUNDS, "the counter is %lld", (long long)seen);
        next = seen + 1;
        MPI_Put(&next, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, window);
        int64_t mark = rank + 1;
        MPI_Put(&mark, 1, MPI_INT64_T, 0, 1 + seen, 1, MPI_INT64_T, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        int *found = calloc(size, sizeof *found);
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        require(memory[0] == (int64_t)size * ROUNDS, "%lld of %d exclusive locks counted", (long long)memory[0], size * ROUNDS);
        for (int i = 0; i < size * ROUNDS; i++) found[memory[1 + i] - 1]++;
        MPI_Win_unlock(0, window);
        for (int r = 0; r < size; r++) require(found[r] == ROUNDS, "rank %d's marks: %d of %d", r, found[r], ROUNDS);
        free(found);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Atomics under lock_all: tickets are unique, sums exact, a swap has one winner. */
static void atomics(MPI_Win window, int64_t *memory) {
    int64_t one = 1, got, zero = 0;
    char *taken = calloc((size_t)size * ROUNDS, 1), *all = allocate((size_t)size * ROUNDS);
    memset(memory, 0, 64 * 8);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Fetch_and_op(&one, &got, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        require(got >= 0 && got < (int64_t)size * ROUNDS && !taken[got], "ticket %lld came twice or never was", (long long)got);
        taken[got] = 1;
        int64_t values[8], old[8];
        for (int i = 0; i < 8; i++) values[i] = rank + i;
        MPI_Get_accumulate(values, 8, MPI_INT64_T, old, 8, MPI_INT64_T, (rank + round) % size, 8, 8, MPI_INT64_T, MPI_SUM, window);
        MPI_Accumulate(values, 8, MPI_INT64_T, (rank + round) % size, 16, 8, MPI_INT64_T, MPI_MAX, window);
        MPI_Win_flush((rank + round) % size, window);
        for (int i = 0; i < 8; i++) require(old[i] >= 0, "a sum went down");
    }
    int64_t me = rank + 1, before;
    MPI_Compare_and_swap(&me, &zero, &before, MPI_INT64_T, 0, 1, window);
    MPI_Win_flush_all(window);
    MPI_Win_sync(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Fetch_and_op(NULL, &got, MPI_INT64_T, 0, 1, MPI_NO_OP, window);
    MPI_Win_flush(0, window);
    require((before == 0) == (got == me), "rank %lld won the swap, but this one saw %lld", (long long)got - 1, (long long)before);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_unlock_all(window);
    MPI_Reduce(taken, all, size * ROUNDS, MPI_BYTE, MPI_BOR, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < size * ROUNDS; i++) require(all[i], "ticket %d was given to nobody", i);
    for (int i = 0; i < 8; i++) {
        int64_t sum = 0, most = 0;
        for (int r = 0; r < size; r++)
            for (int round = 0; round < ROUNDS; round++) {
                if ((r + round) % size != rank) continue;
                sum += r + i;
                most = r + i > most ? r + i : most;
            }
        require(memory[8 + i] == sum, "a sum is %lld instead of %lld", (long long)memory[8 + i], (long long)sum);
        require(memory[16 + i] == most, "a maximum is %lld instead of %lld", (long long)memory[16 + i], (long long)most);
    }
    free(taken);
    free(all);
}

static void requests(MPI_Win window, int64_t *memory) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    int64_t *out = allocate(WORDS * 8), *in = allocate(WORDS * 8), two = 2, old;
    MPI_Request request[4];
    memory[WORDS] = 40;
    for (int i = 0; i < WORDS; i++) out[i] = word(rank, right, i);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    MPI_Rput(out, WORDS, MPI_INT64_T, right, 0, WORDS, MPI_INT64_T, window, &request[0]);
    MPI_Raccumulate(&two, 1, MPI_INT64_T, right, WORDS, 1, MPI_INT64_T, MPI_SUM, window, &request[1]);
    MPI_Waitall(2, request, MPI_STATUSES_IGNORE);
    MPI_Win_flush(right, window);
    MPI_Rget(in, WORDS, MPI_INT64_T, right, 0, WORDS, MPI_INT64_T, window, &request[2]);
    MPI_Rget_accumulate(&two, 1, MPI_INT64_T, &old, 1, MPI_INT64_T, right, WORDS, 1, MPI_INT64_T, MPI_REPLACE, window, &request[3]);
    MPI_Waitall(2, request + 2, MPI_STATUSES_IGNORE);
    MPI_Win_unlock_all(window);
    for (int i = 0; i < WORDS; i++) require(in[i] == out[i], "MPI_Rget brought word %d", i);
    require(old == 42, "MPI_Rget_accumulate brought %lld", (long long)old);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < WORDS; i++) require(memory[i] == word(left, rank, i), "MPI_Rput wrote word %d", i);
    free(out);
    free(in);
}

/* Every third word is put, and got into every second. */
static void strided(MPI_Win window, int64_t *memory) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, count = WORDS / 3;
    int64_t *out = allocate(count * 8), *in = allocate((size_t)count * 16);
    MPI_Datatype third, second;
    MPI_Type_vector(count, 1, 3, MPI_INT64_T, &third);
    MPI_Type_vector(count, 1, 2, MPI_INT64_T, &second);
    MPI_Type_commit(&third);
    MPI_Type_commit(&second);
    for (int i = 0; i < WORDS; i++) memory[i] = -1;
    for (int i = 0; i < count; i++) out[i] = word(rank, right, i);
    MPI_Win_fence(0, window);
    MPI_Put(out, count, MPI_INT64_T, right, 0, 1, third, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < WORDS; i++)
        require(memory[i] == (i % 3 == 0 && i / 3 < count ? word(left, rank, i / 3) : -1), "a strided put wrote word %d", i);
    MPI_Get(in, 1, second, right, 0, 1, third, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < count; i++) require(in[2 * i] == out[i], "a strided get brought word %d", i);
    MPI_Accumulate(out, count, MPI_INT64_T, right, 0, 1, third, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < count; i++) require(memory[3 * i] == 2 * word(left, rank, i), "a strided accumulate left word %d", i);
    MPI_Type_free(&third);
    MPI_Type_free(&second);
    free(out);
    free(in);
}

static void all_kinds(MPI_Win window, int64_t *memory) {
    fences(window, memory);
    MPI_Barrier(MPI_COMM_WORLD);
    post_start(window, memory);
    locks(window, memory);
    atomics(window, memory);
    requests(window, memory);
    strided(window, memory);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    MPI_Aint bytes = (MPI_Aint)(size * WORDS + 1) * 8;
    for (int round = 0; again(round); round++) {
        int64_t *memory;
        MPI_Win window;
        MPI_Win_allocate(bytes, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
        all_kinds(window, memory);
        MPI_Win_free(&window);
        memory = allocate(bytes);
        MPI_Win_create(memory, bytes, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        all_kinds(window, memory);
        MPI_Win_free(&window);
        free(memory);
    }
    return finish();
}
