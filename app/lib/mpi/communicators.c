
/* ---- communicators that are made again when ranks move ---- */

enum { COMM_NAME = 64, COMM_DIMENSIONS = 8 };
enum comm_kind { COMM_DUP, COMM_SPLIT, COMM_CART };

/* How one was made: it travels to the new process. */
struct recipe {
    char name[COMM_NAME];
    int kind, parent; /* parent: index in the log, or -1: the world */
    int color, key;
    int dimensions, extents[COMM_DIMENSIONS], periods[COMM_DIMENSIONS];
    int freed; /* by the program; made again all the same, since the program in a new process asks for it */
};
struct logged {
    struct recipe recipe;
    MPI_Comm made, fresh;
    void *where;     /* the program's: an MPI_Comm, or a Fortran handle */
    int fortran;
    int asked;       /* in a process that arrives: the program has it */
};
static struct logged *comm_log;
static int comm_count;
static MPI_Comm world = MPI_COMM_NULL, fresh_world = MPI_COMM_NULL;
static int is_arriving;
/* The program has asked for the world here, so that it isn't tied to MPI_COMM_WORLD, which doesn't change when ranks move. */
static int world_is_used;

static MPI_Comm world_now(void) {
    return is_arriving ? fresh_world : world;
}

MPI_Comm mend_app_world(void) {
    world_is_used = 1;
    return world_now();
}

MPI_Fint mend_app_world_f(void) {
    return MPI_Comm_c2f(mend_app_world());
}

static struct logged *log_add(const struct recipe *r) {
    struct logged *grown = realloc(comm_log, (size_t)(comm_count + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    comm_log = grown;
    comm_log[comm_count] = (struct logged){.recipe = *r, .made = MPI_COMM_NULL, .fresh = MPI_COMM_NULL};
    return &comm_log[comm_count++];
}

static int make(const struct recipe *r, MPI_Comm parent, MPI_Comm *made) {
    switch (r->kind) {
    case COMM_DUP:
        return PMPI_Comm_dup(parent, made);
    case COMM_SPLIT:
        return PMPI_Comm_split(parent, r->color, r->key, made);
    default:
        return PMPI_Cart_create(parent, r->dimensions, r->extents, r->periods, 0, made);
    }
}

static int refuse(const char *name, const char *why) {
    char text[256];
    snprintf(text, sizeof text, "communicator `%.100s`: %s", name ? name : "", why);
    return mend_app_report(MEND_APP_INVALID, text);
}

/* What MPI says of an error; of MPICH's stack the innermost line. */
static const char *mpi_text(int code) {
    static char text[MPI_MAX_ERROR_STRING + 1];
    int length = 0;
    text[0] = 0;
    PMPI_Error_string(code, text, &length);
    while (length > 0 && text[length - 1] == '\n')
        text[--length] = 0;
    const char *last = strrchr(text, '\n');
    return last ? last + 1 : text;
}

static int mpi_failed(const char *what, const char *name, int code) {
    char text[MPI_MAX_ERROR_STRING + 256];
    snprintf(text, sizeof text, "%s%.100s%s: MPI says: %s", what, name, *name ? "`" : "", mpi_text(code));
    return mend_app_report(MEND_APP_SYSTEM, text);
}

static int same_recipe(const struct recipe *a, const struct recipe *b) {
    return a->kind == b->kind && a->parent == b->parent && a->color == b->color && a->key == b->key && a->dimensions == b->dimensions && memcmp(a->extents, b->extents, sizeof a->extents) == 0 &&
           memcmp(a->periods, b->periods, sizeof a->periods) == 0;
}

/* A duplicate that was freed by all who had it, and is made anew. Of others ranks may have parts still, so that they stay in the log. */
static void drop_older(struct recipe *r) {
    int old = -1;
    for (int i = 0; r->kind == COMM_DUP && i < comm_count; i++) {
        if (comm_log[i].recipe.freed && comm_log[i].recipe.kind == COMM_DUP && comm_log[i].recipe.parent == r->parent && strcmp(comm_log[i].recipe.name, r->name) == 0)
            old = i;
        if (old >= 0 && comm_log[i].recipe.parent == old)
            return;
    }
    if (old < 0)
        return;
    memmove(&comm_log[old], &comm_log[old + 1], (size_t)(comm_count - old - 1) * sizeof *comm_log);
    comm_count--;
    for (int i = old; i < comm_count; i++)
        comm_log[i].recipe.parent -= comm_log[i].recipe.parent > old;
    r->parent -= r->parent > old;
}

static void give(const struct logged *l, MPI_Comm handle) {
    if (l->where && l->fortran)
        *(MPI_Fint *)l->where = MPI_Comm_c2f(handle);
    else if (l->where)
        *(MPI_Comm *)l->where = handle;
}

static int give_again(struct logged *l, void *made, int fortran) {
    l->asked = 1;
    l->where = made;
    l->fortran = fortran;
    give(l, l->fresh);
    return MEND_APP_OK;
}

static int make_logged(struct recipe *r, const char *name, MPI_Comm comm, void *made, int fortran) {
    struct logged *again = NULL;
    if (world == MPI_COMM_NULL && !is_arriving)
        return refuse(name, "mend_app_init_mpi comes first");
    if (!name || !*name || strlen(name) >= COMM_NAME)
        return refuse(name, "a name of 1 to 63 characters is needed");
    snprintf(r->name, sizeof r->name, "%s", name);
    r->parent = -2;
    if (comm == world_now())
        r->parent = -1;
    for (int i = 0; i < comm_count; i++) {
        struct logged *l = &comm_log[i];
        MPI_Comm handle = is_arriving ? l->fresh : l->made;
        if ((l->where || is_arriving) && handle != MPI_COMM_NULL && handle == comm)
            r->parent = i;
        if (strcmp(l->recipe.name, name) != 0)
            continue;
        if (is_arriving ? l->asked && l->recipe.freed && !l->where : l->recipe.freed) {
            /* drop_older() has left one entry of several. */
            if (is_arriving && r->kind == COMM_DUP && same_recipe(&l->recipe, r))
                again = l;
            continue;
        }
        if (!is_arriving || l->asked)
            return refuse(name, "there is one of that name already: mend_app_comm_free comes first");
        if (!same_recipe(&l->recipe, r))
            return refuse(name, "it was made in another way before the rank moved");
        return give_again(l, made, fortran);
    }
    if (r->parent == -2)
        return refuse(name, "it can be made of mend_app_world() and of what was made of it by the library only");
    if (again)
        return give_again(again, made, fortran);
    if (is_arriving)
        return refuse(name, "it wasn't there when the rank moved");
    drop_older(r);
    struct logged *l = log_add(r);
    if (!l)
        return mend_app_report(MEND_APP_SYSTEM, "there is no memory for a communicator");
    int made_it = make(r, comm, &l->made);
    if (made_it != MPI_SUCCESS) {
        /* Not to be made again when ranks move. */
        comm_count--;
        return mpi_failed("can't make communicator `", name, made_it);
    }
    l->where = made;
    l->fortran = fortran;
    give(l, l->made);
    return MEND_APP_OK;
}

static int dup_logged(const char *name, MPI_Comm comm, void *made, int fortran) {
    struct recipe r = {.kind = COMM_DUP};
    return make_logged(&r, name, comm, made, fortran);
}

static int split_logged(const char *name, MPI_Comm comm, int color, int key, void *made, int fortran) {
    struct recipe r = {.kind = COMM_SPLIT, .color = color, .key = key};
    return make_logged(&r, name, comm, made, fortran);
}

static int cart_logged(const char *name, MPI_Comm comm, int dimensions, const int *extents, const int *periods, void *made, int fortran) {
    struct recipe r = {.kind = COMM_CART, .dimensions = dimensions};
    if (dimensions < 1 || dimensions > COMM_DIMENSIONS)
        return refuse(name, "1 to 8 dimensions");
    for (int d = 0; d < dimensions; d++) {
        r.extents[d] = extents[d];
        r.periods[d] = periods[d] != 0;
    }
    return make_logged(&r, name, comm, made, fortran);
}

static int free_logged(void *made) {
    for (int i = 0; i < comm_count; i++) {
        struct logged *l = &comm_log[i];
        if (l->where != made)
            continue;
        if (is_arriving && !l->recipe.freed && l->recipe.kind != COMM_DUP)
            return refuse(l->recipe.name, "it wasn't freed before the rank moved");
        give(l, MPI_COMM_NULL);
        l->where = NULL;
        /* An older one of that name, which isn't in the log: this one is still to be asked for. */
        if (is_arriving && !l->recipe.freed) {
            l->asked = 0;
            return MEND_APP_OK;
        }
        l->recipe.freed = 1;
        /* With the other ranks, when the move is settled. */
        if (is_arriving || l->made == MPI_COMM_NULL)
            return MEND_APP_OK;
        int freed = PMPI_Comm_free(&l->made);
        return freed == MPI_SUCCESS ? MEND_APP_OK : mpi_failed("can't free communicator `", l->recipe.name, freed);
    }
    return refuse("", "mend_app_comm_free: this isn't one that the library made");
}

int mend_app_comm_dup(const char *name, MPI_Comm comm, MPI_Comm *made) {
    return dup_logged(name, comm, made, 0);
}

int mend_app_comm_split(const char *name, MPI_Comm comm, int color, int key, MPI_Comm *made) {
    return split_logged(name, comm, color, key, made, 0);
}

int mend_app_cart_create(const char *name, MPI_Comm comm, int dimensions, const int *extents, const int *periods, MPI_Comm *made) {
    return cart_logged(name, comm, dimensions, extents, periods, made, 0);
}

int mend_app_comm_free(MPI_Comm *made) {
    return free_logged(made);
}

int mend_app_comm_dup_f(const char *name, MPI_Fint comm, MPI_Fint *made) {
    return dup_logged(name, MPI_Comm_f2c(comm), made, 1);
}

int mend_app_comm_split_f(const char *name, MPI_Fint comm, int color, int key, MPI_Fint *made) {
    return split_logged(name, MPI_Comm_f2c(comm), color, key, made, 1);
}

int mend_app_cart_create_f(const char *name, MPI_Fint comm, int dimensions, const int *extents, const int *periods, MPI_Fint *made) {
    return cart_logged(name, MPI_Comm_f2c(comm), dimensions, extents, periods, made, 1);
}

int mend_app_comm_free_f(MPI_Fint *made) {
    return free_logged(made);
}

/* By all ranks of the new world, in each rank's own order, which has led to no deadlock before. */
static int make_again(void) {
    int made = 0;
    /* All in any case, for the sake of those who wait there. */
    for (int i = 0; i < comm_count; i++) {
        struct logged *l = &comm_log[i];
        MPI_Comm parent = l->recipe.parent < 0 ? fresh_world : comm_log[l->recipe.parent].fresh;
        l->fresh = MPI_COMM_NULL;
        if (parent != MPI_COMM_NULL && make(&l->recipe, parent, &l->fresh) != MPI_SUCCESS)
            made = -1;
    }
    return made;
}

static void settle_communicators(int moved) {
    for (int i = comm_count - 1; i >= 0; i--) {
        struct logged *l = &comm_log[i];
        MPI_Comm *gone = moved ? &l->made : &l->fresh;
        if (*gone != MPI_COMM_NULL)
            PMPI_Comm_free(gone);
        if (!moved)
            continue;
        l->made = l->fresh;
        l->fresh = MPI_COMM_NULL;
        if (l->recipe.freed && l->made != MPI_COMM_NULL)
            PMPI_Comm_free(&l->made);
        give(l, l->made);
    }
}

/* In a process that arrives: what the program hasn't asked for by its safe point. */
static const char *left_over(void) {
    static char text[128];
    for (int i = 0; is_arriving && i < comm_count; i++)
        if (!comm_log[i].asked && !comm_log[i].recipe.freed) {
            snprintf(text, sizeof text, "the program hasn't made communicator `%s` before its safe point", comm_log[i].recipe.name);
            return text;
        }
    return NULL;
}
