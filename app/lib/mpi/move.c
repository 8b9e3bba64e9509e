
/* ---- moves ---- */

enum { MESSAGE_TAG = 1, MOVE_TAG, FRAGMENT_TAG, RECIPES_TAG, WAKE_TAG, SLOTS = 4, MOST_PIECES = 64 };
/* A count of MPI's is an int. */
static const size_t piece_bytes = (size_t)1 << 30;

struct sending {
    struct sending *next;
    MPI_Request request;
    unsigned char bytes[];
};

struct slot {
    int pieces;
    MPI_Request requests[MOST_PIECES];
};

struct state {
    MPI_Comm comm;
    struct sending *sending;
    /* One for each rank that sends here: rank 0 hears all, the others hear rank 0. Not MPI_ANY_SOURCE: with it MPICH 5 loses messages of processes that were spawned. */
    int sources;
    MPI_Request *receiving;
    unsigned char *buffers;
    /* A move that isn't settled: all old and new processes, and the other process of a rank that moves. */
    MPI_Comm between, merged, fresh;
    int peer;
    int processes; /* of the job, those that sleep, too */
    struct slot slots[SLOTS];
    /* The process in whose place this one came, which sleeps; -1: none. */
    MPI_Comm before;
    int sleeper;
};

/* Whoever started the job lets an old process end: `mend run`, where no process needs another to finalize. */
static int may_end(void) {
    return getenv("MEND_JOB") != NULL;
}

/* As MPI_Wait, without spinning: on a busy node who waits would take the processor from those who are waited for. */
static int await(MPI_Request *request) {
    int done = 0;
    for (unsigned looks = 0; !done; looks++) {
        struct timespec nap = {.tv_nsec = looks < 500 ? 20000 : 1000000};
        if (PMPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return -1;
        if (!done && looks > 50)
            nanosleep(&nap, NULL);
    }
    return 0;
}

/* As MPI_Allreduce, without spinning. */
static int least_of(MPI_Comm comm, long long *value) {
    long long mine = *value;
    MPI_Request request;
    if (PMPI_Iallreduce(&mine, value, 1, MPI_LONG_LONG, MPI_MIN, comm, &request) != MPI_SUCCESS)
        return -1;
    return await(&request);
}

/* As MPI_Comm_dup, without spinning. What its attributes are is copied, as there. */
static int duplicate(MPI_Comm comm, MPI_Comm *into) {
    MPI_Request request;
    int done = PMPI_Comm_idup(comm, into, &request);
    if (done != MPI_SUCCESS)
        return done;
    return await(&request) == 0 ? MPI_SUCCESS : MPI_ERR_OTHER;
}

static const char *hindrance(void *state) {
    (void)state;
    const char *why = left_over();
    /* A process that arrives may ask for it after its safe point only. */
    if (!why && !world_is_used && !is_arriving)
        why = "the program doesn't ask for mend_app_world(): with MPI_COMM_WORLD ranks can't move";
    if (!why && !calls_are_seen && !mend_app_nothing_open())
        why = "what is open can't be seen, for this program's calls of MPI don't come by mend_app_mpi.c (Fortran under Open MPI, -DMEND_APP_NO_WATCH): if no window, file, request or other "
              "communicator is open at its safe points, set nothing_open = yes";
    return why ? why : what_is_open();
}

/* All old and new processes. `place`: the rank of this process in the new world, or -1. */
static int make_worlds(struct state *s, int place) {
    int color = place < 0 ? MPI_UNDEFINED : 0;
    /* Both in any case: the others wait in the second when the first has failed here. */
    int one = PMPI_Comm_split(s->merged, color, place, &fresh_world), other = PMPI_Comm_split(s->merged, color, place, &s->fresh);
    return one == MPI_SUCCESS && other == MPI_SUCCESS ? 0 : -1;
}

/* Of all old and new processes. Where one hasn't its worlds, the others would wait for it in what is made of them. */
static int all_have_worlds(struct state *s, int made) {
    long long least = made;
    return least_of(s->merged, &least) == 0 && least == 0;
}

/* Open MPI waits for ever where it has no slot left for a process. */
static int has_slots(const struct state *s, int more) {
#ifdef OPEN_MPI
    const char *given = getenv("OMPI_MCA_rmaps_base_oversubscribe"), *policy = getenv("OMPI_MCA_rmaps_base_mapping_policy");
    int *universe = NULL, found = 0;
    PMPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &universe, &found);
    if (found && s->processes + more > *universe && !(given && *given == '1') && !(policy && strstr(policy, "OVERSUBSCRIBE")))
        return 0;
#endif
    (void)s, (void)more;
    return 1;
}

static int start_processes(struct state *s, const mend_app_move *move) {
    int count = move->count, done;
    char **commands = calloc((size_t)count, sizeof *commands);
    char ***arguments = calloc((size_t)count, sizeof *arguments), **words = calloc(2 * (size_t)count, sizeof *words);
    int *each = calloc((size_t)count, sizeof *each);
    MPI_Info *infos = calloc((size_t)count, sizeof *infos);
    if (!commands || !arguments || !words || !each || !infos)
        return MPI_ERR_NO_MEM;
    for (int i = 0; i < count; i++) {
        commands[i] = "/bin/sh";
        words[2 * i] = (char *)move->scripts[i];
        arguments[i] = &words[2 * i];
        each[i] = 1;
        PMPI_Info_create(&infos[i]);
        if (*move->hosts[i])
            PMPI_Info_set(infos[i], "host", move->hosts[i]);
    }
    done = PMPI_Comm_spawn_multiple(count, commands, arguments, each, infos, 0, s->comm, &s->between, MPI_ERRCODES_IGNORE);
    for (int i = 0; i < count; i++)
        PMPI_Info_free(&infos[i]);
    free(commands);
    free(arguments);
    free(words);
    free(each);
    free(infos);
    return done;
}

static int spawn(void *state, const mend_app_move *move, char *error, size_t room) {
    struct state *s = state;
    int rank, size, mine = -1, numbers[3];
    PMPI_Comm_rank(s->comm, &rank);
    PMPI_Comm_size(s->comm, &size);
    for (int i = 0; i < move->count; i++)
        if (move->ranks[i] == rank)
            mine = i;
    if (!has_slots(s, move->count)) {
        snprintf(error, room, "Open MPI has no slots left for new processes: start the job with more (--host node1:4,node2:4), or with --oversubscribe");
        return -1;
    }
    PMPI_Comm_set_errhandler(s->comm, MPI_ERRORS_RETURN);
    int done = start_processes(s, move);
    if (done != MPI_SUCCESS) {
        snprintf(error, room, "MPI can't start new processes here: %.600s", mpi_text(done));
        return -1;
    }
    PMPI_Intercomm_merge(s->between, 0, &s->merged);
    numbers[0] = size;
    numbers[1] = move->count;
    numbers[2] = s->processes += move->count;
    PMPI_Bcast(numbers, 3, MPI_INT, 0, s->merged);
    PMPI_Bcast((void *)move->ranks, move->count, MPI_INT, 0, s->merged);
    s->peer = mine < 0 ? -1 : size + mine;
    if (mine >= 0) {
        struct recipe *recipes = calloc((size_t)comm_count + 1, sizeof *recipes);
        for (int i = 0; recipes && i < comm_count; i++)
            recipes[i] = comm_log[i].recipe;
        PMPI_Send(&comm_count, 1, MPI_INT, s->peer, RECIPES_TAG, s->merged);
        PMPI_Send(recipes, comm_count * (int)sizeof *recipes, MPI_BYTE, s->peer, RECIPES_TAG, s->merged);
        free(recipes);
    }
    int made = make_worlds(s, mine < 0 ? rank : -1);
    if (all_have_worlds(s, made) && mine < 0 && make_again() != 0)
        made = -1;
    if (made != 0)
        snprintf(error, room, "the communicators can't be made again");
    return made == 0 ? 0 : -2;
}

/* The same in a new process: its parents are the old ones. */
static int arrive(struct state *s, int *rank, int *size) {
    int numbers[3], place, count = 0;
    PMPI_Comm_get_parent(&s->between);
    if (s->between == MPI_COMM_NULL)
        return -1;
    PMPI_Intercomm_merge(s->between, 1, &s->merged);
    PMPI_Bcast(numbers, 3, MPI_INT, 0, s->merged);
    s->processes = numbers[2];
    int *ranks = calloc((size_t)numbers[1], sizeof *ranks);
    if (!ranks)
        return -1;
    PMPI_Bcast(ranks, numbers[1], MPI_INT, 0, s->merged);
    PMPI_Comm_rank(MPI_COMM_WORLD, &place);
    *rank = s->peer = ranks[place];
    *size = numbers[0];
    free(ranks);
    PMPI_Recv(&count, 1, MPI_INT, s->peer, RECIPES_TAG, s->merged, MPI_STATUS_IGNORE);
    struct recipe *recipes = calloc((size_t)count + 1, sizeof *recipes);
    if (!recipes)
        return -1;
    PMPI_Recv(recipes, count * (int)sizeof *recipes, MPI_BYTE, s->peer, RECIPES_TAG, s->merged, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; i++)
        log_add(&recipes[i]);
    free(recipes);
    is_arriving = 1;
    int made = make_worlds(s, *rank);
    return all_have_worlds(s, made) ? make_again() : made;
}

static int transfer(void *state, int slot, int sends, int fragment, void *bytes, size_t length) {
    struct state *s = state;
    struct slot *to = &s->slots[slot];
    int tag = fragment ? FRAGMENT_TAG : MOVE_TAG;
    to->pieces = 0;
    if (length > piece_bytes * MOST_PIECES || s->merged == MPI_COMM_NULL)
        return -1;
    for (size_t at = 0; at < length || at == 0; at += piece_bytes) {
        int some = (int)(length - at < piece_bytes ? length - at : piece_bytes);
        MPI_Request *request = &to->requests[to->pieces];
        int done = sends ? PMPI_Isend((char *)bytes + at, some, MPI_BYTE, s->peer, tag, s->merged, request) : PMPI_Irecv((char *)bytes + at, some, MPI_BYTE, s->peer, tag, s->merged, request);
        if (done != MPI_SUCCESS)
            return -1;
        to->pieces++;
    }
    return 0;
}

static int transfer_done(void *state, int slot) {
    struct state *s = state;
    static MPI_Status statuses[MOST_PIECES];
    int done = 1;
    if (s->slots[slot].pieces && PMPI_Testall(s->slots[slot].pieces, s->slots[slot].requests, &done, statuses) != MPI_SUCCESS)
        return -1;
    if (done)
        s->slots[slot].pieces = 0;
    return done;
}

/* What has no peer to be received by any more is left to MPI. */
static void end_messages(struct state *s) {
    while (s->sending) {
        struct sending *gone = s->sending;
        int done = 0;
        PMPI_Test(&gone->request, &done, MPI_STATUS_IGNORE);
        if (!done)
            PMPI_Request_free(&gone->request);
        s->sending = gone->next;
        if (done)
            free(gone);
    }
    for (int i = 0; i < s->sources; i++)
        if (s->receiving[i] != MPI_REQUEST_NULL) {
            PMPI_Cancel(&s->receiving[i]);
            PMPI_Wait(&s->receiving[i], MPI_STATUS_IGNORE);
        }
    free(s->receiving);
    free(s->buffers);
    s->receiving = NULL;
    s->buffers = NULL;
    s->sources = 0;
}

static void free_one(MPI_Comm *comm) {
    if (*comm != MPI_COMM_NULL)
        PMPI_Comm_free(comm);
}

/* What the other process has sent and this one hasn't received: MPICH frees no communicator that has such messages, while Open MPI lets them be. There may be no memory
 * for them: all of it is cut off. */
static void drop_messages(struct state *s) {
#ifdef OPEN_MPI
    (void)s;
#else
    int there = 0, class = MPI_SUCCESS;
    MPI_Status status;
    PMPI_Comm_set_errhandler(s->merged, MPI_ERRORS_RETURN);
    while (s->peer >= 0 && PMPI_Iprobe(s->peer, MPI_ANY_TAG, s->merged, &there, &status) == MPI_SUCCESS && there) {
        PMPI_Error_class(PMPI_Recv(NULL, 0, MPI_BYTE, s->peer, status.MPI_TAG, s->merged, MPI_STATUS_IGNORE), &class);
        if (class != MPI_SUCCESS && class != MPI_ERR_TRUNCATE)
            return;
    }
#endif
}

static int settle(void *state, int moved) {
    struct state *s = state;
    if (s->merged == MPI_COMM_NULL)
        return 0;
    for (int slot = 0; slot < SLOTS; slot++)
        if (!transfer_done(s, slot))
            for (int i = 0; i < s->slots[slot].pieces; i++)
                if (s->slots[slot].requests[i] != MPI_REQUEST_NULL) {
                    PMPI_Cancel(&s->slots[slot].requests[i]);
                    PMPI_Request_free(&s->slots[slot].requests[i]);
                }
    if (!moved)
        drop_messages(s);
    settle_communicators(moved);
    if (moved) {
        if (s->comm != MPI_COMM_NULL) {
            end_messages(s);
            PMPI_Comm_free(&s->comm);
        }
        if (world != MPI_COMM_NULL)
            PMPI_Comm_free(&world);
        if (may_end()) {
            free_one(&s->merged);
        } else if (is_arriving) {
            s->before = s->merged;
            s->sleeper = s->peer;
        }
        s->comm = s->fresh;
        world = fresh_world;
        s->fresh = fresh_world = MPI_COMM_NULL;
        /* Kept: it is how an old process that sleeps is woken. */
        if (!is_arriving && s->peer < 0)
            s->merged = MPI_COMM_NULL;
    } else {
        free_one(&s->fresh);
        free_one(&fresh_world);
        free_one(&s->merged);
        /* Then they aren't connected any more, and the new process may end. */
        PMPI_Comm_disconnect(&s->between);
    }
    is_arriving = 0;
    if (s->before == s->merged)
        s->merged = MPI_COMM_NULL;
    return 0;
}

/* The process in whose place this one came may end. */
static void wake(struct state *s) {
    if (s->before != MPI_COMM_NULL)
        PMPI_Send(NULL, 0, MPI_BYTE, s->sleeper, WAKE_TAG, s->before);
    s->before = MPI_COMM_NULL;
}

static void depart(void *state, int sleeps) {
    struct state *s = state;
    long nap = 1000000;
    for (int woken = !sleeps || may_end(); !woken;) {
        struct timespec time = {.tv_nsec = nap};
        nanosleep(&time, NULL);
        nap = nap < 100000000 ? nap * 2 : nap;
        PMPI_Iprobe(s->peer, WAKE_TAG, s->merged, &woken, MPI_STATUS_IGNORE);
        if (woken)
            PMPI_Recv(NULL, 0, MPI_BYTE, s->peer, WAKE_TAG, s->merged, MPI_STATUS_IGNORE);
    }
    wake(s);
    /* The new process may be gone already, and Open MPI write to it once more. */
    signal(SIGPIPE, SIG_IGN);
    PMPI_Finalize();
    /* Not _exit: MPICH 5 takes leave of its process manager only here, which else ends the job. */
    exit(0);
}
