/* libmend-app: checkpoints of a program's own variables, which restart on other machines and other numbers of ranks.
 *
 * A program registers its variables, and calls mend_app_checkpoint() where no message is under way. A checkpoint is written there when
 * one is due or asked for. To restart, run the program again: each variable has its value when it is registered.
 * A guide with a complete program is in app/README.md. Every function is called by the thread that called mend_app_init().
 *
 * Functions that return int return MEND_APP_OK or another value from 0 up; below 0 it is an error, which mend_app_error() tells
 * and standard error has seen. A checkpoint that fails leaves the program running. A restore that fails ends it
 * (setting on_error = stop), for to go on would give wrong results; with on_error = return the error is returned.
 */
#ifndef MEND_APP_H
#define MEND_APP_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MEND_APP_VERSION "0.1.0"

enum {
    MEND_APP_OK = 0,
    MEND_APP_RESTORED = 1, /* the variable, or at a safe point all of the state, has been restored */
    MEND_APP_SKIP = 2,     /* mend_app_enter: the saved run had left this context; its work need not be done again */
    MEND_APP_TAKEN = 3,    /* a checkpoint was taken at this call; written behind, it may still fail */
    MEND_APP_MOVED = 4,    /* other ranks have moved at this call: communicators have new handles (mend_app_mpi.h) */
    MEND_APP_INVALID = -1, /* an argument or a setting makes no sense */
    MEND_APP_REFUSED = -2, /* this state can't be saved, or not be restored here */
    MEND_APP_SYSTEM = -3,  /* the system, MPI or HDF5 reports an error */
    MEND_APP_DAMAGED = -4  /* a file isn't what was written */
};

/* Types of elements. In files integers and floating-point numbers have the writer's size and byte order. They are converted where they are
 * read. A value that the reader's type can't hold exactly is an error. */
enum mend_app_type {
    MEND_APP_INT8 = 1, MEND_APP_INT16, MEND_APP_INT32, MEND_APP_INT64,
    MEND_APP_UINT8, MEND_APP_UINT16, MEND_APP_UINT32, MEND_APP_UINT64,
    MEND_APP_FLOAT, MEND_APP_DOUBLE, MEND_APP_LONG_DOUBLE,
    MEND_APP_COMPLEX_FLOAT, MEND_APP_COMPLEX_DOUBLE,
    MEND_APP_BYTES,  /* kept as they are, on every machine */
    MEND_APP_POINTER /* void *: saved as block and offset; must be null or point into what is registered */
};

/* The integer type of a C type's size: MEND_APP_SIGNED(long). */
#define MEND_APP_SIGNED(c) (sizeof(c) == 1 ? MEND_APP_INT8 : sizeof(c) == 2 ? MEND_APP_INT16 : sizeof(c) == 4 ? MEND_APP_INT32 : MEND_APP_INT64)
#define MEND_APP_UNSIGNED(c) (sizeof(c) == 1 ? MEND_APP_UINT8 : sizeof(c) == 2 ? MEND_APP_UINT16 : sizeof(c) == 4 ? MEND_APP_UINT32 : MEND_APP_UINT64)
#define MEND_APP_INT MEND_APP_SIGNED(int)
#define MEND_APP_LONG MEND_APP_SIGNED(long)
#define MEND_APP_SIZE MEND_APP_UNSIGNED(size_t)

/* Most dimensions of an array. */
#define MEND_APP_DIMENSIONS 7

/* Whose a variable is. */
enum {
    MEND_APP_PRIVATE = 0,   /* each rank's own: restarts on the same number of ranks only */
    MEND_APP_REPLICATED = 1 /* the same on all ranks, to the byte; a checkpoint where it differs is refused */
};

/* How one dimension of an array is spread over the ranks: extent elements lie in this rank's memory, of global in all. */
typedef struct mend_app_dimension {
    int kind;
    uint64_t extent, global;
    uint64_t first, count;       /* the part of extent that is this rank's; the rest is a copy of neighbours' (halo) */
    uint64_t start;              /* block: global index of element `first` */
    uint64_t block, part, parts; /* cyclic: blocks of so many elements go round `parts` owners, of which this is `part` */
    const uint64_t *indices;     /* list: global index of each element of extent; read at checkpoints as well */
} mend_app_dimension;

enum { MEND_APP_WHOLE = 0, MEND_APP_BLOCK, MEND_APP_CYCLIC, MEND_APP_LIST };

/* All n elements on every rank, with the same values: else the array restarts on the same ranks only. */
mend_app_dimension mend_app_whole(uint64_t n);
/* count elements from global index start on, with before and after further elements around them in memory (a halo, or 0). */
mend_app_dimension mend_app_block(uint64_t global, uint64_t start, uint64_t count, uint64_t before, uint64_t after);
/* Blocks of block elements dealt to parts owners in turn: this is owner part. The extent follows. */
mend_app_dimension mend_app_cyclic(uint64_t global, uint64_t block, uint64_t part, uint64_t parts);
/* count elements with the global indices given (from 0), all of which are this rank's own: where several ranks list an element they have the same value for it, or the array restarts on
 * the same ranks only. The list must stay where it is. */
mend_app_dimension mend_app_list(uint64_t global, uint64_t count, const uint64_t *indices);

/* Starts the library in a program of one process (MPI programs: mend_app_init_mpi of mend_app_mpi.h). `program` names program and
 * version, or NULL: a checkpoint of another one is refused. `configuration` is the file of settings, or NULL: the
 * environment's MEND_APP_CONFIG, else mend-app.conf if it exists. */
int mend_app_init(const char *program, const char *configuration);
/* Waits until all ranks are here and all is written. What mend_app_fopen opened stays open: close it before or after. MPI must still run. MEND_APP_SYSTEM: a file
 * of a rank, or that the run has ended, can't be written, so the run hasn't ended well, and the next one goes on from the newest checkpoint. */
int mend_app_finalize(void);
/* Ends the library on this rank alone, after an error: nobody is waited for, and what is being written doesn't count. What
 * mend_app_fopen opened stays open. The next run goes on from the newest checkpoint. The other ranks wait for this one at their next checkpoint or in mend_app_finalize: in
 * a job of several ranks have MPI end all of it afterwards (MPI_Abort). The library may be started again, by all ranks. */
void mend_app_abandon(void);

/* 1 from the start until a saved state is restored, else 0. */
int mend_app_restarting(void);
/* 1 in the new process of a rank that moves, from the start until its state is there (mend_app_restarting() is 1, too). The other ranks wait at their safe point
 * meanwhile: nothing may be sent to or awaited from them. */
int mend_app_arriving(void);
/* Shape of a variable of the current context in the checkpoint that is being restored, of this rank: for programs that allocate by it. Returns the
 * number of dimensions, or MEND_APP_REFUSED where there is none, without a message. `extents` has room for MEND_APP_DIMENSIONS. */
int mend_app_saved_shape(const char *name, uint64_t *extents);

/* Registers a variable of the current context, C order; no dimensions: a scalar. Where a state is being restored it has its
 * value then, and MEND_APP_RESTORED is returned. Memory must stay until mend_app_forget(), mend_app_leave() or the end.
 * A variable within one that is registered, of the same type, is an alias and saved once. */
int mend_app_variable(const char *name, void *address, int type, int dimensions, const uint64_t *extents, int whose);
/* Registers an array that is spread over the ranks. */
int mend_app_array(const char *name, void *address, int type, int dimensions, const mend_app_dimension *dimension);
int mend_app_forget(const char *name);

/* Enters a part of the program, as a function or a loop; leaving it forgets its variables. Where a state is being restored MEND_APP_SKIP tells
 * that the saved run had done with this part: it isn't entered then, and is not to be left. */
int mend_app_enter(const char *name);
int mend_app_leave(void);

/* Opens a file whose position and length are saved. After a restart or a move a file that is written is not emptied: at the restored safe point it has the length and
 * the position that it had at the checkpoint, and what was written on the way behind that is cut off. On the way a file of mode w or a stands at its end, others at their start,
 * so that a header is read as in a first run. A file of mode w or a is one rank's. One of mode r+ ranks may share, by the same path: it keeps its length then.
 * In a restart a file has the path that it had. `mode` as for fopen. NULL: errno
 * tells. Close it with mend_app_fclose, also after the library's end, or with fclose then; an exit closes what is left. */
FILE *mend_app_fopen(const char *name, const char *path, const char *mode);
int mend_app_fclose(FILE *stream);

/* A safe point: nothing is under way between ranks. Writes if it is due or asked for. After a restart the first call in
 * the saved contexts completes it, and returns MEND_APP_RESTORED once. */
int mend_app_checkpoint(void);
/* The same, and a checkpoint is taken here; every rank calls it at the same point. */
int mend_app_checkpoint_now(void);
/* mend_app_checkpoint() where that only counts the call; else nothing is done, and MEND_APP_REFUSED is returned, without a message. For bindings that have to get ready
 * for what the library may call back. */
int mend_app_count(void);
/* Has `prepare` called before variables are read for a checkpoint or a move, to bring memory up to date; NULL ends that. Where it can't, it says so by
 * mend_app_report(), with a code below 0: there is no checkpoint or move then. */
void mend_app_prepare(void (*prepare)(void *), void *data);
/* Asks for a checkpoint, as a signal does. */
void mend_app_request(void);
/* Asks for a move of ranks to other hosts; one rank calls it. The others compute on, and all settle on one call of mend_app_checkpoint(), where ranks move and
 * which returns MEND_APP_MOVED, or say why not. `ranks`: "1,4-6" or "all". `hosts`: names, separated by commas, dealt to the ranks in turn; NULL or "":
 * where MPI starts processes. MEND_APP_INVALID: the text makes no sense; MEND_APP_REFUSED: these ranks can't move. */
int mend_app_migrate(const char *ranks, const char *hosts);
/* Has `release` called in the old process of a rank that has moved, to free what isn't registered: such a process sleeps to the job's end. NULL ends that.
 * In the end it calls exit(), since MPI libraries take leave there: what the program has given to atexit() and destructors of its static objects run in it, too, and
 * what was registered is lost by then. They ask mend_app_departed() where they would write a result or count on such values. */
void mend_app_departing(void (*release)(void *), void *data);
/* 1 in a process whose rank is in another one, else 0: in the old process of a rank that has moved, from before `release` is called on; in a new process where the rank
 * didn't move, at its exit. */
int mend_app_departed(void);
/* Number of the newest checkpoint that counts, or 0. */
uint64_t mend_app_newest(void);

/* The newest error, or "". */
const char *mend_app_error(void);
/* Every setting, as a configuration file that holds the defaults. */
const char *mend_app_settings(void);

/* What a transport has to carry out of a move. */
typedef struct mend_app_move {
    int count;
    const int *ranks;           /* that move, ascending */
    const char *const *hosts;   /* of each; "": where MPI starts it */
    const char *const *scripts; /* of each; /bin/sh starts its new process by it */
} mend_app_move;

/* How ranks reach each other; mend_app_mpi.c and the Python package fill it in. Called by the program's thread only. */
typedef struct mend_app_transport {
    int rank, size;
    void *state;
    /* Starts to send; the bytes may be reused at once. 0, or below: failed. */
    int (*send)(void *state, int to, const void *bytes, size_t length);
    /* 1: a message was received; 0: there is none; below: failed. `length` is that of every message. */
    int (*receive)(void *state, void *bytes, size_t length);
    /* From rank 0 to all; waits. Only at the start. */
    int (*broadcast)(void *state, void *bytes, size_t length);
    /* The least of all ranks' values; waits. Only at the start and at the end. */
    int (*least)(void *state, int64_t *value);
    void (*end)(void *state);
    /* Ends the job. */
    void (*stop)(void *state, int code);

    /* The rest is for moves; without `spawn` there are none. */
    int arriving; /* 1: this process takes the place of rank `rank`, which moves */
    /* Why this rank can't take part in a move now, or NULL. */
    const char *(*hindrance)(void *state);
    /* All ranks together: starts the new processes and makes their communicators, beside the old ones. 0, or below: `error` tells; -2: this rank alone failed, when
     * the new processes were there. */
    int (*spawn)(void *state, const mend_app_move *move, char *error, size_t room);
    /* Between the old and the new process of a rank: starts to send or to receive, a message or a fragment, in one of four slots. */
    int (*transfer)(void *state, int slot, int sends, int fragment, void *bytes, size_t length);
    /* 1: what the slot has is done; 0: not yet; below: failed. Moves all slots on. */
    int (*done)(void *state, int slot);
    /* The new communicators take the place of the old ones (1), or are dropped (0). */
    int (*settle)(void *state, int moved);
    /* This process isn't a rank any more: with `sleeps` at the job's end, else at once, it ends. Doesn't return. */
    void (*depart)(void *state, int sleeps);
    /* The library ends on this rank alone: nobody is waited for, and the process in whose place this one came may end. NULL: nothing is to be done. */
    void (*abandon)(void *state);
} mend_app_transport;
/* For a transport's own errors: says it on standard error and keeps it for mend_app_error(). Returns `code`. */
int mend_app_report(int code, const char *text);
/* For a transport that can't see what is open: 1 if the setting nothing_open is yes. */
int mend_app_nothing_open(void);
int mend_app_init_transport(const mend_app_transport *transport, const char *program, const char *configuration);

#ifdef __cplusplus
}
#endif
#endif
