/* What programs that mend-cc has rewritten call. It stands on libmend-app (mend_app.h): at a safe point it enters contexts and registers variables there, in a
 * restart at the saved safe point only. Called by one thread of the program, but allocation by any. */
#ifndef MEND_CC_H
#define MEND_CC_H

#include <mend_app.h>
#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A safe point. `path`: its contexts, "main/solve loop 1"; `probe`: a variable that is registered in the last of them, or the names that it may have, one a line. */
typedef struct mend_cc_point {
    int number;
    const char *path, *probe;
} mend_cc_point;

/* A field of a structure that has pointers. */
typedef struct mend_cc_field {
    const char *name;
    size_t offset;
    int type;
    size_t count;
} mend_cc_field;

/* After MPI_Init; the points in any order. Ends the job if the library can't start, or is to restore what is at none of the points. */
void mend_cc_start(const char *program, const mend_cc_point *points, int count);
/* Before MPI_Finalize. */
void mend_cc_end(void);

/* Whether a restart at one of these points ("1 3") is under way: what they don't need again is left out. */
int mend_cc_skip(const char *points);

/* Before a call that leads to this safe point: the caller's variables for it follow. Level 0 is main. */
void mend_cc_frame(int level, int point);
/* At a safe point: 1 when its variables are to be named now. `known` is 0 when its loop is entered. */
int mend_cc_arrive(int point, int *known);
/* Names what is registered. C order; no dimensions: one value. */
void mend_cc_variable(int level, const char *name, void *address, int type, int dimensions, const uint64_t *extents, int whose);
/* Ends the job: the compiler gives elements another size than mend-cc has read. */
void mend_cc_other_size(const char *name, int known, int bytes);
/* Ends the job: a dimension of an array in memory, counted from 1, isn't as long as its shape says. */
void mend_cc_other_extents(const char *name, int dimension, int64_t extent, int64_t told);
/* An array of so many bytes, that a directive gives a shape, of elements of `size`. */
void mend_cc_array(int level, const char *name, void *address, size_t bytes, int type, size_t size, int dimensions, const mend_app_dimension *shape);
/* `count` structures, field by field. */
void mend_cc_fields(int level, const char *name, void *address, size_t count, size_t size, int fields, const mend_cc_field *field, int whose);
/* All that one place in the source has allocated. */
void mend_cc_heap(const char *name, int site, int type, size_t size, int whose);
void mend_cc_heap_array(const char *name, int site, int type, size_t size, int dimensions, const mend_app_dimension *shape);
void mend_cc_heap_fields(const char *name, int site, size_t size, int fields, const mend_cc_field *field, int whose);
/* Of the block that a pointer leads to, which stands at `pointer`: these elements of `size` bytes are overwritten after the safe point before anything reads them, unless one of the pointers at
 * `others` leads to the same block, or to none that is known. `sites`: whose blocks it may be, and 0. `sections`: for each a number of ranges, an offset, and for each range a step and the
 * last multiple of it; then -1. `remade`: what the program doesn't change after it first came to the safe point a restart makes again. */
void mend_cc_overwritten(const void *pointer, size_t size, int remade, const int *sites, const void *const *others, const int64_t *sections);
/* The safe point itself, as mend_app_checkpoint(). */
int mend_cc_checkpoint(int point);

/* Allocation by numbered places in the source. */
void *mend_cc_malloc(int site, size_t bytes);
void *mend_cc_calloc(int site, size_t count, size_t size);
void *mend_cc_aligned_alloc(int site, size_t alignment, size_t bytes);
void *mend_cc_realloc(int site, void *old, size_t bytes);
void mend_cc_free(void *address);

/* A file whose position is saved, if it is opened after mend_cc_start. */
FILE *mend_cc_fopen(const char *name, const char *path, const char *mode);
int mend_cc_fclose(FILE *stream);

/* Tests: whether a restart is about to restore at this point; fills memory with a value that shows. */
int mend_cc_restoring(int point);
void mend_cc_poison(void *address, size_t bytes);
void mend_cc_poison_heap(int site);
void mend_cc_poison_overwritten(void);

/* The checking mode (mend_cc_check.c), or NULL: 0 where messages are in transit. */
extern int (*mend_cc_check)(int point);
/* What this rank has sent and received, and how many of its requests are open. */
void mend_cc_counts(long long counts[3]);

#ifdef __cplusplus
}
#endif
#endif
