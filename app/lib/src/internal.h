/* What the parts of libmend-app share.
 *
 *   registry.c    variables, contexts, files: what the program has told
 *   snapshot.c    the registry as a table of one rank's file, with copies of what may change behind
 *   table.c       that table: its text and digest, its memory
 *   hash.c        hashes of all that is written; hash_avx2.c for processors that have it
 *   rank_file.c   the table as an HDF5 file
 *   seal.c        what of a file must be whole before HDF5 parses it
 *   load.c        the table from an HDF5 file, and whether all of its bytes are whole
 *   restore.c     values of one variable from files: same rank
 *   spread.c      values of an array from other ranks' files, by global index
 *   elements.c    types, and conversions that must be exact
 *   store.c       directories of checkpoints: manifests, publication, retention
 *   safe_point.c  checkpoints at safe points; drives agree.c
 *   move.c        a move of ranks: the old processes' side
 *   arrive.c      the new processes' side
 *   fragment.c    parts of a rank's state as HDF5 files in memory
 *   plan.c        which ranks move where; requests for it
 *   behind.c      the thread that writes
 *   request.c     requests by signal, file, time
 *   launcher.c    requests by whoever started the job, and their answers
 *   part.c        a rank's part of a checkpoint, wherever its files are
 *   start.c       start, choice of the checkpoint to restore, end
 *   settings.c    the configuration
 *
 * Only the program's own thread touches `app`, except where a comment says otherwise. HDF5 is used under hdf5_lock().
 */
#ifndef MEND_APP_INTERNAL_H
#define MEND_APP_INTERNAL_H

#include <hdf5.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "agree.h"
#include "mend_app.h"

#define EXPORT __attribute__((visibility("default")))
#define FORMAT_VERSION 1
#define NAME_MAX_LENGTH 200
#define TEXT 1024

/* ---- settings ---- */
struct settings {
    char directory[TEXT], watch[TEXT], move[TEXT], requests[TEXT], move_through[16], move_split[16], restart[64], signal[16], compress[16], on_error[16], verify[16];
    double interval, watch_seconds, join_seconds, hold_seconds;
    uint64_t calls, keep, full_every, move_chunk;
    bool incremental, behind, nothing_open, shuffle, quiet;
};
int settings_read(struct settings *s, const char *configuration);
/* All of them, as variables of the environment. */
void settings_each(const struct settings *s, void (*tell)(void *data, const char *variable, const char *value), void *data);

/* Between the two this thread reads and writes numbers with a point, whatever locale the program has chosen. */
void *plain_numbers_start(void);
void plain_numbers_end(void *before);

/* ---- tables: what one rank's file holds ---- */
struct dimension {
    uint32_t kind;
    uint64_t extent, global, first, count, start, block, part, parts;
    uint64_t *indices; /* list: `extent` of them; owned */
};
struct block {
    char *context, *name; /* context: "main/solve" */
    int type, whose;      /* whose: MEND_APP_PRIVATE, MEND_APP_REPLICATED, or WHOSE_SPREAD */
    int dimensions;
    struct dimension dimension[MEND_APP_DIMENSIONS];
    uint64_t elements, size; /* size of an element where it was written */
    int64_t alias;           /* block that holds it, or -1 */
    uint64_t offset;         /* of an alias: elements */
    uint64_t hash[2];
    bool has_data;       /* false: linked or zero or alias */
    bool zero;           /* nothing but zero bytes */
    uint64_t held_by;    /* checkpoint whose file holds the data */
    uint64_t held_as;    /* its number in that file */
    const struct ancestor *held_in; /* which file that is, where it was found; NULL: this one, or HDF5 follows the link */
    uint64_t at;             /* offset of its data in the file, where they are in one piece and large; else 0 */
    const void *data;    /* to be written: the program's memory, or `copy` */
    void *copy;          /* owned */
};
enum { WHOSE_SPREAD = 2 };
/* A checkpoint whose files are linked to, and the hash of this rank's seal there. */
struct ancestor {
    uint64_t checkpoint, digest[2];
    char *path; /* of this rank's file there, when it has been found; owned */
    int at;     /* of place_next() */
};
struct saved_context {
    char *path;
    uint64_t entered;
    bool active;
};
struct saved_file {
    char *name, *path, *mode;
    int64_t position, length; /* length: -1 in files of older libraries, which have none */
};
struct table {
    uint32_t rank, ranks;
    uint64_t checkpoint, call;
    char *program, *where; /* where: the active contexts' path */
    char *machine;
    int64_t taken; /* seconds since 1970 */
    size_t blocks_count, contexts_count, files_count;
    struct block *blocks;
    struct saved_context *contexts;
    struct saved_file *files;
    uint64_t digest[2]; /* hash of the file's seal, when it is written */
    size_t ancestors_count;
    struct ancestor *ancestors;
};
struct table *table_new(void);
struct block *table_block(struct table *t);
void table_free(struct table *t);
/* Hash of all that the table says, and by the blocks' hashes of all data. */
void table_digest(const struct table *t, uint64_t digest[2]);
const struct block *table_find(const struct table *t, const char *context, const char *name);
const struct saved_context *table_context(const struct table *t, const char *path);

/* ---- rank files ---- */
/* Registered with the HDF Group; plug-ins have them. */
enum { ZSTD_FILTER = 32015, LZ4_FILTER = 32004 };
void hdf5_lock(void);
void hdf5_unlock(void);
void hdf5_message(char into[TEXT]);
/* Writes and makes durable. Thread-safe; errors as text. */
int rank_file_write(struct table *t, const char *path, const struct settings *s, uint64_t *bytes, char error[TEXT]);
/* `into`: a new table whose ancestors' files have been found, which goes if this fails; NULL: HDF5 follows links, in one directory of checkpoints. */
struct table *rank_file_load(const char *path, struct table *into, char error[TEXT]);
/* All but the data, as a file in memory. */
struct image;
int rank_file_outline(struct table *t, struct image *into, char error[TEXT]);
struct table *rank_file_load_outline(struct image *image, char error[TEXT]);
/* Reads each byte of each block and compares hashes. `bad`: the first that isn't as it was written. */
int rank_file_verify(const struct table *t, const char *path, const struct block **bad, char error[TEXT]);
/* All elements of one block, converted to this machine's `type`. `verify`: compares the bytes of the file with the block's hash. */
int block_read(const char *path, const struct block *b, uint64_t number, int type, void *into, bool verify, char error[TEXT]);
/* Elements [first, first + count) of the flattened block's first dimension. */
int block_read_rows(const char *path, const struct block *b, uint64_t number, int type, uint64_t first, uint64_t count, void *into, char error[TEXT]);
void block_hash(struct block *b, const void *data);
bool all_zero(const void *data, uint64_t bytes);
uint64_t hash64(const void *data, size_t bytes, uint64_t seed);
void hash128(const void *data, size_t bytes, uint64_t into[2]);
struct stream *hash_start(void);
void hash_more(struct stream *stream, const void *data, size_t bytes);
void hash_end(struct stream *stream, uint64_t into[2]);
/* clang knows no target for the rest of a file. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HASH_AVX2
#endif
void hash_more_avx2(void *state, const void *data, size_t bytes);
void hash128_avx2(const void *data, size_t bytes, uint64_t into[2]);

/* ---- seals ---- */
void seal_path(char into[TEXT], const char *path);
/* Beside a file that is closed; sets t->digest. */
int seal_write(struct table *t, const char *path, char error[TEXT]);
/* Whether all that HDF5 would parse of a file is as it was written; MEND_APP_DAMAGED: it isn't; else it can't be told. Gives the hash of its table, and into `t`, unless that is NULL, the ancestors. */
int seal_check(const char *path, const uint64_t digest[2], uint64_t table[2], struct table *t, char error[TEXT]);
/* Whether a file is there, and beside it this seal. */
bool seal_is(const char *path, const uint64_t digest[2]);

/* ---- elements ---- */
uint64_t element_size(int type);
const char *element_name(int type);
/* New HDF5 type for elements in memory; close it. */
hid_t element_memory_type(int type);
int element_type_by_name(const char *name);
/* Whether values written as one may be read as the other: the same kind of number. */
bool element_kinds_agree(int written, int read);
/* Converts in place (room for the larger) from the file's type to this machine's; an inexact value is an error that names its index. */
int elements_convert(hid_t file_type, int type, uint64_t elements, void *data, char error[TEXT]);

/* ---- registry ---- */
struct context {
    char *name;
    struct context *parent, *children, *next;
    uint64_t entered;
    bool active;
};
struct variable {
    struct variable *next;
    struct context *context;
    char *name;
    void *address;
    int type, whose, dimensions;
    mend_app_dimension dimension[MEND_APP_DIMENSIONS];
    uint64_t elements;
    bool restored, spread_anew; /* spread_anew: by global index, so that its elements may lie elsewhere than in the file */
    uint64_t *pending; /* pointers that wait for their targets: pairs of block and offset */
};
struct open_file {
    struct open_file *next;
    char *name, *path, *mode;
    FILE *stream;
    bool restored;
};
char *context_path(const struct context *c);
/* Forgets the files; they stay open. */
void files_clear(void);
int files_flush(void);

/* ---- the store ---- */
struct manifest {
    uint64_t checkpoint, call, needs; /* needs: oldest checkpoint that is linked to, or its own number */
    uint32_t ranks;
    char program[TEXT], where[TEXT];
    uint64_t (*digest)[2];
    uint64_t *bytes;
};
/* A checkpoint that counts, and the oldest that it links to. */
struct chain {
    uint64_t oldest, newest;
};
static inline bool chain_has(struct chain c, uint64_t checkpoint) {
    return checkpoint >= c.oldest && checkpoint <= c.newest;
}
void store_path(char into[TEXT], const char *directory, uint64_t checkpoint, int64_t rank);
int store_prepare(const char *directory, uint64_t checkpoint, char error[TEXT]);
int store_publish(const char *directory, const struct manifest *m, char error[TEXT]);
int store_read(const char *directory, uint64_t checkpoint, struct manifest *m, char error[TEXT]);
void manifest_clear(struct manifest *m);
/* Numbers of all directories of checkpoints, newest first. */
size_t store_list(const char *directory, uint64_t **numbers);
void store_remove(const char *directory, uint64_t checkpoint);
/* A damaged checkpoint no longer counts; its files stay until retention removes them. Below 0: errno tells why it still counts. */
int store_set_aside(const char *directory, uint64_t checkpoint);
/* Its manifest is there, or can't be reached. */
bool store_counts(const char *directory, uint64_t checkpoint);
bool store_is_set_aside(const char *directory, uint64_t checkpoint);
/* Removes what neither is among the `keep` newest nor is copied nor linked to by either, nor above `newest`. */
void store_retain(const char *directory, uint64_t keep, uint64_t newest);
int store_mark_ended(const char *directory, uint64_t newest);
/* Up to which checkpoint; 0: none. An error of the system where that can't be told. */
int store_ended(const char *directory, uint64_t *number);
int sync_directory(const char *path);
/* Of the directory that `path` has its name in. */
int sync_parent(const char *path);
/* Whole or not at all; not durable. */
bool store_text(const char *path, const char *text);

/* ---- places: directories of nodes, offered by whoever started the job (places.c) ---- */
void places_start(void);
const char *places_key(void);
bool places_offered(void);
bool places_have_shared(void);
int place_to_write(char path[TEXT], uint64_t checkpoint, uint64_t bytes, char error[TEXT]);
void place_drop(const char *path, uint64_t checkpoint);
bool place_next(char path[TEXT], uint64_t checkpoint, uint32_t rank, int *at);
/* Of the place that place_next() gave last. */
bool place_is_shared(int at);
void place_not_good(const char *path, int at);
/* Whether this rank's file with this seal is where it would be written now, or in DIRECTORY. */
bool place_has(uint64_t checkpoint, const uint64_t digest[2]);
/* All on rank 0. */
void places_sign(uint64_t checkpoint);
void places_published(uint64_t checkpoint);
/* With all that it links to. */
bool place_is_whole(uint64_t checkpoint);
/* It is being copied, or a tier of nodes has nothing newer as a whole. */
bool place_is_target(uint64_t checkpoint);
void places_look(void);

/* ---- requests ---- */
/* What a process knows of the file that asks for checkpoints, for the one that takes its place. */
struct watched {
    double looked_at, answered; /* its times: when it was last looked at, and at the newest request */
    uint32_t taken, once_more;  /* a checkpoint was taken since that request; it was touched soon after both */
};
/* `old`: of the process in whose place this one is, or NULL: the file asks for nothing yet. */
int requests_start(const struct settings *s, const struct watched *old, char error[TEXT]);
struct watched requests_known(void);
/* The time of the file that asks for a move; which one was taken; that what it asked for is over. */
double requests_move_time(void);
void requests_move_taken(double time);
void requests_move_over(void);

/* ---- requests by whoever started the job; all on rank 0 ---- */
void launcher_start(const struct settings *s, const char *program, int ranks);
bool launcher_look(void);
/* A checkpoint begins: it answers what has been seen. */
void launcher_taking(void);
void launcher_published(uint64_t bytes);
void launcher_answer(uint64_t checkpoint, const char *why);
/* `why`: the answer to a request that is there still. */
void launcher_stop(const char *why);
void requests_stop(void);
/* The same in a process whose rank is in another one. */
void requests_leave(void);
/* Set by a signal handler or the watching thread. */
extern _Atomic int request_raised;
enum { REQUEST_CHECKPOINT = 1, REQUEST_MOVE = 2 };
void request_raise(int what);
void request_clear(int what);
/* A checkpoint begins, and all ranks are there: it answers what this rank has been asked for, also what its thread hasn't seen or passed on yet. */
void requests_taken(void);
/* This rank had joined, and there will be no checkpoint: the same without a look at the file. */
void requests_cancelled(void);
/* It hadn't: what it has been asked for after `asked` stands. */
void requests_cancelled_unheard(double asked);
/* The watched file's time at the newest request. */
double requests_asked(void);
/* All ranks have joined: this one's thread need not pass on what it was asked for, which the others could see after the checkpoint. */
void requests_reached_all(void);
/* The others don't come: what asked this rank may not have reached them, or they have taken it for what an earlier checkpoint answered. */
void requests_pass_on(void);
/* A checkpoint counts now: the next is due an interval later. */
void requests_restart_clock(void);
/* Seconds until the next is due by the time, or 0: none is. */
void requests_set_clock(double seconds);
double requests_clock(void);
void requests_retain(uint64_t newest);

/* ---- behind ---- */
struct writing {
    struct table *table;
    char path[TEXT], error[TEXT];
    int result;
    uint64_t bytes;
    _Atomic int state; /* 0 idle, 1 to be written, 2 written */
};
int writing_start(struct writing *w, bool behind);
void writing_stop(void);

/* ---- moves ---- */
enum { MOST_MOVES = 4096 };
struct plan {
    int count, ranks[MOST_MOVES];
    char text[TEXT]; /* hosts[i] point into it */
    const char *hosts[MOST_MOVES];
};
/* The text of a file that asks for a move, for so many ranks. */
int plan_parse(struct plan *p, const char *text, int size, char error[TEXT]);
/* What the file says now; it is removed. */
int plan_take(char text[TEXT], char error[TEXT]);
int plan_check_hosts(const struct plan *p, char error[TEXT]);
void plan_path(char into[TEXT]);

/* A file of HDF5 in memory, without copies of it in HDF5. */
struct image {
    void *bytes;
    size_t length, room;
};
/* Pages of its own, which go back to the system at once when it is freed. NULL: there is no memory. */
void *image_alloc(struct image *image, size_t length);
hid_t image_create(struct image *image, size_t expected);
/* Closes it; image->length is then what is used of it. */
int image_close(struct image *image, hid_t file);
hid_t image_open(struct image *image);
void image_free(struct image *image);

/* Where in the data of a table: blocks that have none are passed over. */
struct cursor {
    uint64_t block, element;
};
struct cursor cursor_settled(const struct table *t, struct cursor at);
bool cursor_less(struct cursor a, struct cursor b);
struct fragment {
    struct image image;
    struct cursor from, to;
    hid_t file; /* open to be read, or 0 */
};
/* The data from f->from on, as much as a fragment holds; sets f->to. `between` is called every now and then. */
int fragment_write(const struct table *t, struct fragment *f, const struct settings *s, void (*between)(void), char error[TEXT]);
/* `count` elements of a block from `first` on, which lie in it. */
int fragment_read(struct fragment *f, uint64_t block, uint64_t first, uint64_t count, int type, void *into, void (*between)(void), char error[TEXT]);
void fragment_free(struct fragment *f);

/* What old and new process tell each other. */
enum move_kind { MOVE_HELLO = 1, MOVE_ASK, MOVE_FRAGMENT, MOVE_ARRIVED, MOVE_FAILED, MOVE_COMMIT, MOVE_DROP };
enum { STAGE_WRITE, STAGE_SEND, STAGE_WAIT, STAGE_READ, STAGE_RESTART, STAGES };
struct move_message {
    uint32_t kind, attempt;
    struct cursor from, to;
    uint64_t length; /* HELLO: of the outline, 0: it is on disk; FRAGMENT: of the image */
    uint64_t call, newest;
    int64_t number_offset;
    struct watched watched; /* HELLO: what is known of requests */
    double taken, due;      /* taken: the time of the file that asked for the move; due: in so many seconds, or 0 */
    uint64_t requested, scheduled_in;
    double seconds[STAGES];
};
enum { LOOKS_BETWEEN = 8 };
enum { SLOT_SENT, SLOT_HEARD, SLOT_FRAGMENT, SLOT_OUTLINE };
int move_tell(const struct move_message *m);
int move_listen(struct move_message *m);
int move_wait(int slot);
void move_disk_path(char into[TEXT], int rank);
/* At the call that all ranks have agreed on. */
int move_ranks(double negotiation);

bool arrival_start(void);
/* Elements of a block of the table, from fragments. */
int arrival_read(uint64_t block, uint64_t first, uint64_t count, int type, void *into, char error[TEXT]);
/* A variable was read, where data come from disk. */
void arrival_has_read(double seconds);
/* All is there; returns when the move counts. */
void arrival_complete(void);
void arrival_failed(void) __attribute__((noreturn));

/* ---- all of it ---- */
struct saved_state {
    struct manifest manifest;
    struct table *own; /* this rank's, or where the number of ranks differs that of rank (this rank mod N) */
    char own_path[TEXT];
    struct table **all; /* other numbers of ranks: every table, loaded when needed */
    char **paths;       /* of their files */
    bool all_compared;
    bool same_ranks;
    bool verify_values; /* not yet compared with their hashes */
};
struct app {
    bool started, stopped_on_error;
    mend_app_transport transport;
    struct settings settings;
    char program[TEXT], error[4 * TEXT];
    struct context root, *current;
    struct variable *variables, *last;
    struct open_file *files;
    uint64_t call, newest;
    int64_t number_offset; /* a checkpoint's number is its call plus this */
    bool slow;             /* the next safe point has more to do than to count */
    uint64_t scheduled_in; /* calls until the next scheduled checkpoint; UINT64_MAX: none */
    bool restarting;
    struct saved_state saved;
    void (*prepare)(void *);
    void *prepare_data;
    bool reported; /* mend_app_report() was told of an error */
    struct agree_rank rank;
    struct agree_root *root_part;
    bool all_finished;
    double joined_at;
    bool passed_on; /* since then */
    bool arriving;
    char directory_at_start[TEXT], began_in[TEXT]; /* at mend_app_init; where the process began */
    int move_decided; /* 0: not yet, 1: it begins, -1: it doesn't */
    void (*release)(void *);
    void *release_data;
    bool departed; /* its rank is in another process */
    struct writing writing;
    uint64_t taking;
    /* The newest checkpoint that counts, for what is unchanged. */
    struct table *base, *offered;
    uint64_t since_full, offered_since_full;
};
extern struct app app;

/* Says it on standard error and keeps it for mend_app_error(); returns `code`. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* fail(), and with on_error = stop the end of the job. */
int fail_restore(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* An error, on standard error only: the library's threads may say it, too. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
double seconds_now(void);
void *must_alloc(size_t bytes);
/* The same with the first `used` bytes of what was there, which goes. */
void *must_grow(void *old, size_t used, size_t bytes);
char *must_copy(const char *text);

enum snapshot { SNAPSHOT_IN_PLACE, SNAPSHOT_COPY, SNAPSHOT_MOVE };
/* Has the program bring its variables up to date. */
bool snapshot_prepare(char error[TEXT]);
/* MOVE: without hashes, and zeros like all else. */
struct table *snapshot_take(enum snapshot how, char error[TEXT]);
int restore_variable(struct variable *v);
int spread_restore(struct variable *v, const struct block *like);
/* Every rank's table, into app.saved.all. `contents`: copies of nodes are compared as a whole, too. None where one can't be read: `error` tells. */
int saved_load_all(bool contents, char error[TEXT]);
void saved_drop_all(void);
int restore_pointers(bool all);
/* `complete`: at the safe point, where it gets its position. Before that one that is written stands at its end, any other one at its start. */
int restore_file(struct open_file *f, bool complete);
/* Cuts off what was written on the way, as long as the old process stands at its safe point: it may go on from there. */
void restore_undo(struct open_file *f);
int restore_check_complete(void);
uint64_t dimension_global(const struct dimension *d, uint64_t index);
uint64_t where_hash(void);
int safe_point_end(void);
void safe_point_start(uint32_t attempt);
/* Between looks for messages, while nothing else is to be done. */
void pause_between_looks(unsigned *looks);
int lock_directory(void);
void unlock_directory(void);
int settle_directory(void);
void saved_clear(void);
/* The table of a rank's file that is as it was written, wherever that is; `path`: where. `contents`: all data are compared, too. MEND_APP_DAMAGED: there is none;
 * MEND_APP_SYSTEM or MEND_APP_REFUSED: there may be one, and it can't be read now. */
int load_part(uint32_t rank, bool contents, struct table **into, char path[TEXT], char why[TEXT]);

#endif
