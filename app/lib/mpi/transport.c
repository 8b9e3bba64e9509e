
/* ---- the transport: messages between ranks ---- */

static void reap(struct state *s) {
    for (struct sending **at = &s->sending; *at;) {
        int done = 0;
        if (PMPI_Test(&(*at)->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) {
            struct sending *gone = *at;
            *at = gone->next;
            free(gone);
        } else {
            at = &(*at)->next;
        }
    }
}

static int send_message(void *state, int to, const void *bytes, size_t length) {
    struct state *s = state;
    struct sending *sending = malloc(sizeof *sending + length);
    if (!sending)
        return -1;
    memcpy(sending->bytes, bytes, length);
    if (PMPI_Isend(sending->bytes, (int)length, MPI_BYTE, to, MESSAGE_TAG, s->comm, &sending->request) != MPI_SUCCESS) {
        free(sending);
        return -1;
    }
    sending->next = s->sending;
    s->sending = sending;
    reap(s);
    return 0;
}

static int listen_to(struct state *s, int source, size_t length) {
    int done = PMPI_Irecv(s->buffers + (size_t)source * length, (int)length, MPI_BYTE, source, MESSAGE_TAG, s->comm, &s->receiving[source]);
    return done == MPI_SUCCESS ? 0 : -1;
}

static int receive_message(void *state, void *bytes, size_t length) {
    struct state *s = state;
    int rank, size, done = 0, source;
    if (s->sending)
        reap(s);
    if (!s->receiving) {
        PMPI_Comm_rank(s->comm, &rank);
        PMPI_Comm_size(s->comm, &size);
        s->sources = rank == 0 ? size : 1;
        s->receiving = malloc((size_t)s->sources * sizeof *s->receiving);
        s->buffers = malloc((size_t)s->sources * length);
        if (!s->receiving || !s->buffers)
            return -1;
        for (int i = 0; i < s->sources; i++) {
            s->receiving[i] = MPI_REQUEST_NULL;
            if (i != rank && listen_to(s, i, length) != 0)
                return -1;
        }
    }
    if (PMPI_Testany(s->sources, s->receiving, &source, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return -1;
    if (!done || source == MPI_UNDEFINED)
        return 0;
    memcpy(bytes, s->buffers + (size_t)source * length, length);
    return listen_to(s, source, length) == 0 ? 1 : -1;
}

static int broadcast(void *state, void *bytes, size_t length) {
    MPI_Request request;
    if (PMPI_Ibcast(bytes, (int)length, MPI_BYTE, 0, ((struct state *)state)->comm, &request) != MPI_SUCCESS)
        return -1;
    return await(&request);
}

static int least(void *state, int64_t *value) {
    long long all = *value;
    if (least_of(((struct state *)state)->comm, &all) != 0)
        return -1;
    *value = all;
    return 0;
}

static struct state *running; /* from mend_app_init_mpi to mend_app_finalize or mend_app_abandon */

static void end(void *state) {
    struct state *s = state;
    if (running == s)
        running = NULL;
    while (s->sending)
        reap(s);
    end_messages(s);
    for (int i = comm_count - 1; i >= 0; i--)
        if (comm_log[i].made != MPI_COMM_NULL)
            PMPI_Comm_free(&comm_log[i].made);
    comm_count = 0;
    PMPI_Comm_free(&s->comm);
    PMPI_Comm_free(&world);
    wake(s);
    free(s);
}

/* The communicators stay: to free them takes all ranks. */
static void abandon(void *state) {
    struct state *s = state;
    if (running == s)
        running = NULL;
    end_messages(s);
    wake(s);
    free(s);
}

static void stop(void *state, int code) {
    PMPI_Abort(((struct state *)state)->comm, code);
}

int mend_app_init_mpi(MPI_Comm comm, const char *program, const char *configuration) {
    if (running)
        return mend_app_report(MEND_APP_INVALID, "mend_app_init_mpi was called already: mend_app_finalize comes before the next call");
    struct state *s = calloc(1, sizeof *s);
    mend_app_transport transport = {.state = s, .send = send_message, .receive = receive_message, .broadcast = broadcast, .least = least, .end = end, .stop = stop,
                                    .hindrance = hindrance, .spawn = spawn, .transfer = transfer, .done = transfer_done, .settle = settle, .depart = depart, .abandon = abandon};
    if (!s)
        return mend_app_report(MEND_APP_SYSTEM, "mend_app_init_mpi: there is no memory");
    world_is_used = comm_count = 0;
    s->comm = s->between = s->merged = s->fresh = s->before = MPI_COMM_NULL;
    if (getenv("MEND_APP_ARRIVES")) {
        /* Processes that this one starts don't. */
        unsetenv("MEND_APP_ARRIVES");
        transport.arriving = 1;
        if (arrive(s, &transport.rank, &transport.size) != 0) {
            mend_app_report(MEND_APP_SYSTEM, "the new process of a rank that moves can't reach the old ones");
            PMPI_Abort(MPI_COMM_WORLD, 1);
            /* MPICH 5 comes back. */
            exit(1);
        }
    } else {
        int made = duplicate(comm, &s->comm);
        if (made == MPI_SUCCESS && (made = duplicate(comm, &world)) != MPI_SUCCESS)
            PMPI_Comm_free(&s->comm);
        if (made != MPI_SUCCESS) {
            free(s);
            return mpi_failed("mend_app_init_mpi: the communicator can't be duplicated", "", made);
        }
        PMPI_Comm_rank(s->comm, &transport.rank);
        PMPI_Comm_size(s->comm, &transport.size);
        PMPI_Comm_size(MPI_COMM_WORLD, &s->processes);
    }
    int done = mend_app_init_transport(&transport, program, configuration);
    if (done < 0)
        end(s);
    else
        running = s;
    return done;
}

int mend_app_init_mpi_f(MPI_Fint comm, const char *program, const char *configuration) {
    return mend_app_init_mpi(MPI_Comm_f2c(comm), program, configuration);
}
