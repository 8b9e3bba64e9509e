// Does with a data space through libmend-data what a program does with files, and compares what comes of it.
//
//   data_library SPACE
//
// The space has a staged file in.dat. Standard output: "all as it should be". Exit code 3 and a line of standard error at the first thing that is not.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "mend_data.h"

#define MUST(condition) \
  do { \
    if (!(condition)) fprintf(stderr, "line %d: not %s: %s (%s)\n", __LINE__, #condition, strerror(errno), mend_data_error()), exit(3); \
  } while (0)
#define FAILS(call, number) MUST((errno = 0, (call)) && errno == (number) && *mend_data_error())

enum { THREADS = 4, PART = 300000 };

static mend_data_space_t *space;
static mend_data_file_t *shared;

static void *write_part(void *which) {
  static char bytes[THREADS][PART];
  long part = (long)which;
  memset(bytes[part], (int)part + 1, PART);
  MUST(mend_data_pwrite(shared, bytes[part], PART, (uint64_t)part * PART) == PART);
  return NULL;
}

static void threads(void) {
  pthread_t writers[THREADS];
  MUST((shared = mend_data_open(space, "by/threads", O_RDWR | O_CREAT, 0600)));
  for (long part = 0; part < THREADS; ++part) MUST(!pthread_create(&writers[part], NULL, write_part, (void *)part));
  for (long part = 0; part < THREADS; ++part) MUST(!pthread_join(writers[part], NULL));
  static char all[THREADS * PART + 1];
  MUST(mend_data_pread(shared, all, sizeof all, 0) == THREADS * PART);
  for (long at = 0; at < THREADS * PART; ++at) MUST(all[at] == at / PART + 1);
  MUST(!mend_data_close(shared));
}

static void staged(void) {
  struct mend_data_stat about;
  MUST(!mend_data_stat(space, "/in.dat", &about) && about.is_staged && !about.is_directory && about.mode == 0444 && about.size > 1 << 20);
  mend_data_file_t *file = mend_data_open(space, "in.dat", O_RDONLY, 0);
  MUST(file);
  char *whole = malloc(about.size + 1), *piece = malloc(1000);
  MUST(mend_data_pread(file, whole, about.size + 1, 0) == (ssize_t)about.size);
  MUST(mend_data_pread(file, piece, 1000, about.size - 500) == 500 && !memcmp(piece, whole + about.size - 500, 500));
  MUST(mend_data_pread(file, piece, 1000, about.size) == 0 && mend_data_pread(file, piece, 0, 0) == 0);
  FAILS(mend_data_pwrite(file, piece, 1, 0) == -1, EBADF);
  FAILS(!mend_data_open(space, "in.dat", O_WRONLY, 0), EPERM);
  FAILS(mend_data_unlink(space, "in.dat") == -1, EPERM);
  MUST(!mend_data_fstat(file, &about) && !mend_data_close(file));
  free(whole);
  free(piece);
}

static void written(void) {
  struct mend_data_stat about;
  char bytes[32] = "";
  mend_data_file_t *file = mend_data_open(space, "new/file", O_RDWR | O_CREAT | O_EXCL, 0640);
  MUST(file && mend_data_pwrite(file, "hello", 5, 3) == 5 && mend_data_pread(file, bytes, 20, 0) == 8 && !memcmp(bytes, "\0\0\0hello", 8));
  FAILS(!mend_data_open(space, "new/file", O_WRONLY | O_CREAT | O_EXCL, 0640), EEXIST);
  FAILS(!mend_data_open(space, "new", O_RDONLY, 0), EISDIR);
  FAILS(!mend_data_open(space, "new/file/below", O_WRONLY | O_CREAT, 0640), ENOTDIR);
  FAILS(!mend_data_open(space, "none", O_RDONLY, 0), ENOENT);
  FAILS(!mend_data_open(space, "../out", O_RDONLY, 0), EINVAL);
  FAILS(!mend_data_open(space, "new/file", O_RDONLY | O_DIRECTORY, 0), EINVAL);
  FAILS(!mend_data_open(space, NULL, O_RDONLY, 0), EINVAL);
  FAILS(mend_data_pwrite(file, "x", 1, UINT64_MAX - 3) == -1, EFBIG);
  FAILS(mend_data_truncate(file, UINT64_MAX) == -1, EFBIG);
  MUST(!mend_data_truncate(file, 4) && !mend_data_sync(file) && !mend_data_fstat(file, &about) && about.size == 4 && about.mode == 0640);
  mend_data_file_t *end = mend_data_open(space, "new/file", O_WRONLY | O_APPEND, 0);
  MUST(end && mend_data_pwrite(end, "end", 3, UINT64_MAX) == 3 && !mend_data_close(end));
  MUST(mend_data_pread(file, bytes, 20, 0) == 7 && !memcmp(bytes, "\0\0\0hend", 7));
  mode_t mask = umask(0077);
  mend_data_file_t *own = mend_data_open(space, "new/own", O_WRONLY | O_CREAT, 0666);
  umask(mask);
  MUST(own && !mend_data_fstat(own, &about) && about.mode == 0600 && !mend_data_close(own) && !mend_data_unlink(space, "new/own"));
  MUST(!mend_data_rename(space, "new/file", "new/other") && !mend_data_close(file));
  FAILS(mend_data_stat(space, "new/file", &about) == -1, ENOENT);
  MUST(!mend_data_mkdir(space, "empty") && !mend_data_stat(space, "empty", &about) && about.is_directory && !mend_data_rmdir(space, "empty"));
  FAILS(mend_data_rmdir(space, "new") == -1, ENOTEMPTY);
  MUST((file = mend_data_open(space, "new/other", O_RDWR | O_TRUNC, 0)) && !mend_data_fstat(file, &about) && about.size == 0);
  MUST(!mend_data_unlink(space, "new/other"));
  MUST(mend_data_pwrite(file, "nameless", 8, 0) == 8 && mend_data_pread(file, bytes, 20, 0) == 8 && !mend_data_close(file));
}

static void listed(void) {
  struct mend_data_stat about;
  char name[300], all[1000] = "";
  mend_data_list_t *list = mend_data_list(space, "");
  MUST(list);
  int more;
  while ((more = mend_data_next(list, name, sizeof name, &about)) == 1) {
    strcat(strcat(all, name), about.is_directory ? "/ " : " ");
  }
  MUST(!more);
  mend_data_end_list(list);
  if (strcmp(all, "by/ in.dat new/ ")) fprintf(stderr, "listed: %s\n", all), exit(3);
  MUST((list = mend_data_list(space, "by")));
  FAILS(mend_data_next(list, name, 3, &about) == -1, ERANGE);
  FAILS(mend_data_next(list, name, sizeof name, NULL) == -1, EINVAL);
  MUST(mend_data_next(list, name, sizeof name, &about) == 1 && !strcmp(name, "threads") && mend_data_next(list, name, sizeof name, &about) == 0);
  mend_data_end_list(list);
  FAILS(!mend_data_list(space, "in.dat"), ENOTDIR);
  FAILS(!mend_data_list(space, "none"), ENOENT);
  FAILS(!mend_data_space("no-such-space"), ENOENT);
  FAILS(mend_data_stat(NULL, "x", &about) == -1, EINVAL);
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: data_library SPACE\n"), 2;
  MUST((space = mend_data_space(argv[1])));
  staged();
  threads();
  written();
  listed();
  mend_data_leave(space);
  puts("all as it should be");
  return 0;
}
