/* Kinds of windows: dynamic ones with memory attached and detached, several at once, windows of different sizes and
 * displacement units, without memory, shared ones; attributes and names; every operation on every predefined size. */
#include "check.h"

enum { WORDS = 5000 };

/* Memory is attached after the window exists, its address is told, others write into it, it is detached. */
static void dynamic(void) {
    MPI_Win window;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int round = 0; round < 5; round++) {
        int64_t *first = allocate(WORDS * 8), *second = allocate(WORDS * 8), *out = allocate(WORDS * 8), *in = allocate(WORDS * 8);
        MPI_Aint mine[2], *all = allocate(2 * size * sizeof *all);
        memset(first, 0, WORDS * 8);
        memset(second, 0, WORDS * 8);
        MPI_Win_attach(window, first, WORDS * 8);
        MPI_Win_attach(window, second, WORDS * 8);
        MPI_Get_address(first, &mine[0]);
        MPI_Get_address(second, &mine[1]);
        MPI_Allgather(mine, 2, MPI_AINT, all, 2, MPI_AINT, MPI_COMM_WORLD);
        for (int i = 0; i < WORDS; i++) out[i] = (int64_t)rank * 1000000 + i + round;
        MPI_Win_lock_all(0, window);
        MPI_Put(out, WORDS, MPI_INT64_T, right, all[2 * right], WORDS, MPI_INT64_T, window);
        MPI_Win_flush(right, window);
        MPI_Get(in, WORDS, MPI_INT64_T, right, all[2 * right], WORDS, MPI_INT64_T, window);
        MPI_Accumulate(out, WORDS, MPI_INT64_T, right, MPI_Aint_add(all[2 * right + 1], 0), WORDS, MPI_INT64_T, MPI_SUM, window);
        MPI_Win_flush(right, window);
        int64_t one = 1, old;
        MPI_Fetch_and_op(&one, &old, MPI_INT64_T, right, MPI_Aint_add(all[2 * right + 1], 8), MPI_SUM, window);
        MPI_Win_unlock_all(window);
        for (int i = 0; i < WORDS; i++) require(in[i] == out[i], "a get from a dynamic window: word %d", i);
        require(old == out[1], "fetch_and_op in a dynamic window: %lld", (long long)old);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < WORDS; i++) {
            int64_t wanted = (int64_t)left * 1000000 + i + round;
            require(first[i] == wanted, "a put into a dynamic window: word %d", i);
            require(second[i] == wanted + (i == 1), "an accumulate into a dynamic window: word %d", i);
        }
        MPI_Win_detach(window, first);
        MPI_Win_detach(window, second);
        free(first);
        free(second);
        free(out);
        free(in);
        free(all);
    }
    MPI_Win_free(&window);
}

/* Windows of a size, a unit and an offset of each rank's own; some have no memory. */
static void uneven(void) {
    enum { COUNT = 6 };
    MPI_Win windows[COUNT];
    char *memory[COUNT];
    int target = (rank + 1) % size, *value, flag;
    for (int w = 0; w < COUNT; w++) {
        MPI_Aint bytes = rank % 3 == 2 ? 0 : 4 * (100 + 10 * rank + w);
        memory[w] = allocate(bytes + 4);
        memset(memory[w], 0, bytes + 4);
        MPI_Win_create(memory[w], bytes, 1 + (rank + w) % 4, MPI_INFO_NULL, MPI_COMM_WORLD, &windows[w]);
        MPI_Win_get_attr(windows[w], MPI_WIN_DISP_UNIT, &value, &flag);
        require(flag && *value == 1 + (rank + w) % 4, "a window's unit is %d", *value);
    }
    for (int w = 0; w < COUNT; w++) MPI_Win_fence(0, windows[w]);
    int out[COUNT];
    for (int w = 0; w < COUNT; w++) {
        out[w] = rank * 100 + w;
        int unit = 1 + (target + w) % 4;
        if (target % 3 != 2) MPI_Put(&out[w], 1, MPI_INT, target, 48 / unit, 1, MPI_INT, windows[w]);
    }
    for (int w = COUNT - 1; w >= 0; w--) MPI_Win_fence(0, windows[w]);
    for (int w = 0; w < COUNT; w++) {
        int unit = 1 + (rank + w) % 4, from = (rank + size - 1) % size, got;
        memcpy(&got, memory[w] + 48 / unit * unit, 4);
        require(rank % 3 == 2 || got == from * 100 + w, "window %d holds %d instead of %d", w, got, from * 100 + w);
        MPI_Win_free(&windows[w]);
        free(memory[w]);
    }
}

/* Shared memory, among the ranks that MPI finds on a node (under Mend each is alone). */
static void shared(void) {
    MPI_Comm node;
    MPI_Win window;
    int me, others, unit;
    int64_t *mine, *theirs;
    MPI_Aint bytes;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &me);
    MPI_Comm_size(node, &others);
    MPI_Win_allocate_shared(WORDS * 8, 8, MPI_INFO_NULL, node, &mine, &window);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < WORDS; i++) mine[i] = rank * 10000 + i;
    MPI_Win_sync(window);
    MPI_Barrier(node);
    MPI_Win_sync(window);
    MPI_Win_shared_query(window, (me + 1) % others, &bytes, &unit, &theirs);
    require(bytes == WORDS * 8 && unit == 8, "a shared window of %lld bytes", (long long)bytes);
    for (int i = 1; i < WORDS; i++) require(theirs[i] == theirs[0] + i, "shared memory: word %d", i);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Comm_free(&node);
}

#define ACCUMULATE(type, datatype)                                                                                             \
    do {                                                                                                                       \
        type *memory, sent[9], old[9];                                                                                         \
        MPI_Win window;                                                                                                        \
        MPI_Win_allocate(9 * sizeof(type), sizeof(type), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);                     \
        for (int i = 0; i < 9; i++) memory[i] = 0;                                                                             \
        for (int i = 0; i < 9; i++) sent[i] = (type)(i + 1);                                                                   \
        MPI_Win_fence(0, window);                                                                                              \
        for (int to = 0; to < size; to++) MPI_Accumulate(sent, 9, datatype, to, 0, 9, datatype, MPI_SUM, window);              \
        MPI_Win_fence(0, window);                                                                                              \
        for (int i = 0; i < 9; i++) require(memory[i] == (type)(size * (i + 1)), "MPI_SUM of %s at %d", #datatype, i);         \
        MPI_Win_fence(0, window);                                                                                              \
        MPI_Get_accumulate(sent, 9, datatype, old, 9, datatype, (rank + 1) % size, 0, 9, datatype, MPI_REPLACE, window);       \
        MPI_Win_fence(0, window);                                                                                              \
        for (int i = 0; i < 9; i++)                                                                                            \
            require(old[i] == (type)(size * (i + 1)) && memory[i] == sent[i], "MPI_REPLACE of %s at %d", #datatype, i);        \
        MPI_Barrier(MPI_COMM_WORLD);                                                                                           \
        MPI_Win_lock(MPI_LOCK_SHARED, (rank + 1) % size, 0, window);                                                           \
        MPI_Accumulate(sent, 9, datatype, (rank + 1) % size, 0, 9, datatype, MPI_PROD, window);                                \
        MPI_Win_unlock((rank + 1) % size, window);                                                                             \
        MPI_Win_fence(0, window);                                                                                              \
        for (int i = 0; i < 9; i++) require(memory[i] == (type)((i + 1) * (i + 1)), "MPI_PROD of %s at %d", #datatype, i);     \
        MPI_Win_free(&window);                                                                                                 \
    } while (0)

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        dynamic();
        uneven();
        shared();
        ACCUMULATE(int8_t, MPI_INT8_T);
        ACCUMULATE(uint16_t, MPI_UINT16_T);
        ACCUMULATE(int32_t, MPI_INT32_T);
        ACCUMULATE(uint64_t, MPI_UINT64_T);
        ACCUMULATE(float, MPI_FLOAT);
        ACCUMULATE(double, MPI_DOUBLE);
    }
    return finish();
}
