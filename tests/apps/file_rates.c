// Reads, writes or names files in a directory, and says from when to when.
//
//   file_rates read  PATH MIB             reads this rank's part of PATH, MIB long
//   file_rates write PATH MIB             writes it, and has it durable when the file is closed
//   file_rates again PATH MIB             reads the first MIB, one rank after the other; and says how many bytes came over the network meanwhile ("came BEFORE AFTER")
//   file_rates paced PATH MIB MS          reads the first MIB, and computes nothing for MS after each (a mark in RATES_MEET says that half is read)
//   file_rates names DIRECTORY COUNT      makes, looks at and removes so many empty files
//
// A rank's part begins at its number times MIB; its number is PMI_RANK, 0 without. Bytes go 1 MiB at a time. With an environment variable RATES_MEET, a directory that all ranks see, a
// rank leaves a file there and begins when RATES_RANKS of them are there. Standard output: one line "WHAT BEGIN END" for each thing done, in seconds since 1970. Exit code 2 on
// wrong usage, 3 if anything fails. To `again` RATES_MEET must be set.

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
  perror(what);
  exit(3);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void leave_mark(const char *place, long rank) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%ld", place, rank);
  int mark = open(path, O_CREAT | O_WRONLY, 0644);
  if (mark < 0) fail(path);
  close(mark);
}

static void wait_for_marks(const char *place, long wanted) {
  for (;;) {
    long there = 0;
    DIR *directory = opendir(place);
    if (!directory) fail(place);
    for (struct dirent *entry; (entry = readdir(directory));) there += entry->d_name[0] != '.';
    closedir(directory);
    if (there >= wanted) return;
    usleep(2000);
  }
}

// Bytes that have come over the node's link, of which it has one besides `lo`.
static double came(void) {
  FILE *devices = fopen("/proc/self/net/dev", "r");
  char line[512], device[32];
  double bytes, all = 0;
  if (!devices) fail("/proc/self/net/dev");
  while (fgets(line, sizeof line, devices))
    if (sscanf(line, " %31[^:]: %lf", device, &bytes) == 2 && strcmp(device, "lo")) all += bytes;
  fclose(devices);
  return all;
}

static void transfer(const char *what, const char *path, int writes, off_t offset, off_t length) {
  static char bytes[1 << 20];
  // No two blocks are alike, and none is of zeros.
  for (size_t at = 0; at < sizeof bytes; ++at) bytes[at] = (char)(at * 31 + at / 4096 + 1);
  double begun = now();
  int file = open(path, writes ? O_WRONLY : O_RDONLY);
  if (file < 0) fail(path);
  for (off_t at = 0; at < length; at += sizeof bytes) {
    memcpy(bytes, &at, sizeof at);
    ssize_t done = 0;
    for (size_t part = 0; part < sizeof bytes; part += (size_t)done) {
      off_t place = offset + at + (off_t)part;
      done = writes ? pwrite(file, bytes + part, sizeof bytes - part, place) : pread(file, bytes + part, sizeof bytes - part, place);
      if (done <= 0) fail(writes ? "write" : "read");
    }
  }
  if ((writes && fsync(file)) || close(file)) fail("close");
  printf("%s %.6f %.6f\n", what, begun, now());
}

static void again(const char *path, long rank, off_t length) {
  const char *place = getenv("RATES_MEET");
  if (!place) fail("RATES_MEET");
  wait_for_marks(place, rank);
  char what[32];
  snprintf(what, sizeof what, "read%ld", rank);
  double before = came();
  transfer(what, path, 0, 0, length);
  printf("came%ld %.6f %.6f\n", rank, before, came());
  leave_mark(place, rank);
}

static void paced(const char *path, long count, long milliseconds) {
  static char bytes[1 << 20];
  const char *place = getenv("RATES_MEET");
  double begun = now();
  int file = open(path, O_RDONLY);
  if (file < 0) fail(path);
  for (long at = 0; at < count; ++at) {
    for (size_t part = 0; part < sizeof bytes;) {
      ssize_t done = pread(file, bytes + part, sizeof bytes - part, ((off_t)at << 20) + (off_t)part);
      if (done <= 0) fail("read");
      part += (size_t)done;
    }
    if (place && at == count / 2) leave_mark(place, at);
    usleep((useconds_t)milliseconds * 1000);
  }
  close(file);
  printf("paced %.6f %.6f\n", begun, now());
}

static void names(const char *directory, long rank, long count) {
  char path[4096];
  for (int step = 0; step < 3; ++step) {
    double begun = now();
    for (long file = 0; file < count; ++file) {
      struct stat seen;
      snprintf(path, sizeof path, "%s/%ld.%ld", directory, rank, file);
      if (step == 0) {
        int made = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (made < 0 || close(made)) fail(path);
      } else if (step == 1 ? stat(path, &seen) : unlink(path)) {
        fail(path);
      }
    }
    printf("%s %.6f %.6f\n", step == 0 ? "create" : step == 1 ? "stat" : "unlink", begun, now());
  }
}

int main(int argc, char **argv) {
  const char *number = getenv("PMI_RANK");
  long rank = number ? atol(number) : 0, count = argc >= 4 ? atol(argv[3]) : 0;
  int is_paced = argc == 5 && !strcmp(argv[1], "paced");
  if (count <= 0 || argc != 4 + is_paced) return fprintf(stderr, "usage: file_rates read|write|again PATH MIB | paced PATH MIB MS | names DIRECTORY COUNT\n"), 2;
  if (is_paced) return paced(argv[2], count, atol(argv[4])), 0;
  const char *place = getenv("RATES_MEET"), *ranks = getenv("RATES_RANKS");
  int takes_turns = !strcmp(argv[1], "again");
  if (place && ranks && !takes_turns) {
    leave_mark(place, rank);
    wait_for_marks(place, atol(ranks));
  }
  if (!strcmp(argv[1], "names")) {
    names(argv[2], rank, count);
  } else if (takes_turns) {
    again(argv[2], rank, (off_t)count << 20);
  } else if (!strcmp(argv[1], "read") || !strcmp(argv[1], "write")) {
    transfer(argv[1], argv[2], argv[1][0] == 'w', (off_t)rank * count << 20, (off_t)count << 20);
  } else {
    return fprintf(stderr, "no such thing to do: %s\n", argv[1]), 2;
  }
  return 0;
}
