/* Files of a data space, for programs without a mount of it. Link with libmend-data.so.

   Names: the space is the one of `mend data create NAME`; its description is in $MEND_HOME/spaces. Paths are UTF-8, inside of the space; slashes around them mean nothing.

   Errors: NULL or -1 with errno, and mend_data_error() has the reason in words. Beyond those of the system calls of like names there are EPERM (the file was staged, and is
   never changed), ENOSPC (no two targets for a new file, or they are full), ESTALE (it was removed elsewhere while it was open) and EIO (what is wrong with targets and sources).

   Threads may share all handles; the call that ends one (mend_data_leave, _end_list, _close) comes after all others with it have returned. A process must not use
   after fork() what was made before it. In a rank under `mend run` a space is left with no connection after each call, so that checkpoints find
   none. They need not wait for all of a large read or write either: it is done in parts of 8 MiB, but for what is appended. A file that is open for writing is not kept with a checkpoint, as those in a mount are. */

#ifndef MEND_DATA_H
#define MEND_DATA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mend_data_space mend_data_space_t;
typedef struct mend_data_file mend_data_file_t;
typedef struct mend_data_list mend_data_list_t;

struct mend_data_stat {
  uint64_t size;        /* bytes; 0 of a directory */
  int64_t changed_ns;   /* nanoseconds since 1970; 0 of a directory */
  uint32_t mode;        /* permissions */
  uint8_t is_directory;
  uint8_t is_staged;    /* never changed */
  uint8_t is_lost;      /* of mend_data_next alone: no target that answers has all of it; its size is not known then, and 0 here */
};

/* Why the last call of this thread failed; valid until its next one. */
const char *mend_data_error(void);

/* Uses a space, and no longer. Its description is read once: after `mend data destroy` and `create` of the same name it takes leaving, and using it again. Files that
   are open go on until they are closed. */
mend_data_space_t *mend_data_space(const char *name);
void mend_data_leave(mend_data_space_t *space);

int mend_data_stat(mend_data_space_t *space, const char *path, struct mend_data_stat *out);

/* What a directory has in it, by name; with a NULL space the spaces that are known here. mend_data_next gives 1 and the next name, 0 at the end. With ERANGE the
   name has no room; it stays the next one. */
mend_data_list_t *mend_data_list(mend_data_space_t *space, const char *path);
int mend_data_next(mend_data_list_t *list, char *name, size_t room, struct mend_data_stat *out);
void mend_data_end_list(mend_data_list_t *list);

/* Opens a file as open(2) does: O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND. Directories above a new file need not be there; its
   mode is less the bits of the process's umask. */
mend_data_file_t *mend_data_open(mend_data_space_t *space, const char *path, int flags, unsigned mode);
int mend_data_fstat(mend_data_file_t *file, struct mend_data_stat *out);
ssize_t mend_data_pread(mend_data_file_t *file, void *into, size_t length, uint64_t offset);
/* How many bytes were written; they are on two targets then, and durable there after mend_data_sync or mend_data_close. Fewer than asked for: an error came after them, and
   writing the others tells which. With O_APPEND the offset means nothing, nobody else's appended bytes come between those of one call, and after an error up to 1 MiB of
   what was not counted may be in the file. */
ssize_t mend_data_pwrite(mend_data_file_t *file, const void *from, size_t length, uint64_t offset);
int mend_data_truncate(mend_data_file_t *file, uint64_t length);
int mend_data_sync(mend_data_file_t *file);
/* Syncs first. The handle is gone, whatever it returns. */
int mend_data_close(mend_data_file_t *file);

int mend_data_unlink(mend_data_space_t *space, const char *path);
int mend_data_mkdir(mend_data_space_t *space, const char *path);
int mend_data_rmdir(mend_data_space_t *space, const char *path);
int mend_data_rename(mend_data_space_t *space, const char *from, const char *to);

#ifdef __cplusplus
}
#endif

#endif
