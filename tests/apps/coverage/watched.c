// Pipes that were opened more than once, and what epoll sets watch and have told.
#include "coverage.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>

static int again(int fd, int flags) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int opened = open(path, flags);
  NEED(opened >= 0);
  return opened;
}

static void add(int set, int fd, uint32_t events, uint64_t data) {
  struct epoll_event event = {.events = events, .data.u64 = data};
  NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

// What the set has to tell now: the events of the one entry, or 0. More than one is a loss.
static uint32_t told(int set, uint64_t data) {
  struct epoll_event events[8];
  int count = epoll_wait(set, events, 8, 0);
  if (count == 0) return 0;
  CHECK(count == 1 && events[0].data.u64 == data);
  return events[0].events;
}

int main(void) {
  // Two readers of one pipe, one of which does not wait, and a second writer.
  int p[2];
  NEED(pipe(p) == 0 && write(p[1], "once", 4) == 4);
  int reader = again(p[0], O_RDONLY | O_NONBLOCK), writer = again(p[1], O_WRONLY | O_NONBLOCK), both = again(p[0], O_RDWR);
  // A full pipe, some of it read, whose pages are full in part.
  int full[2], filled = 0, drawn = 0;
  NEED(pipe2(full, O_NONBLOCK) == 0 && fcntl(full[1], F_SETPIPE_SZ, 16384) == 16384);
  char piece[1000], got[1000];
  memset(piece, 'a', sizeof piece);
  for (int wrote; (wrote = write(full[1], piece, sizeof piece)) > 0;) {
    filled += wrote;
    for (size_t at = 0; at < sizeof piece; at++) piece[at]++;
  }
  NEED(read(full[0], got, 500) == 500);
  drawn = 500;
  while (write(full[1], "z", 1) == 1) filled++;
  int reader_of_full = again(full[0], O_RDONLY | O_NONBLOCK);

  // An entry whose number was closed, one whose number is another file's by now, one that is where it was.
  int level = epoll_create1(0), moved = epoll_create1(0), gone = epoll_create1(0);
  int first = eventfd(1, 0), second = eventfd(1, 0), third = eventfd(0, EFD_NONBLOCK);
  int twin_of_first = dup(first), twin_of_second = dup(second);
  add(gone, first, EPOLLIN, 1);
  add(moved, second, EPOLLIN, 2);
  add(level, third, EPOLLIN, 3);
  NEED(close(first) == 0);
  int stranger = eventfd(0, EFD_NONBLOCK);
  if (stranger != first) NEED(dup2(stranger, first) == first && close(stranger) == 0);
  NEED(close(second) == 0 && close(first) == 0);
  stranger = eventfd(0, EFD_NONBLOCK);
  NEED(dup2(stranger, second) == second);

  // Edges: told, not told, none.
  int edge_told = epoll_create1(0), edge_new = epoll_create1(0), outer = epoll_create1(0);
  int told_before = eventfd(1, EFD_NONBLOCK), new = eventfd(1, EFD_NONBLOCK);
  add(edge_told, told_before, EPOLLIN | EPOLLET, 4);
  add(edge_new, new, EPOLLIN | EPOLLET, 5);
  add(outer, edge_told, EPOLLIN | EPOLLET, 8);
  NEED(told(outer, 8) == EPOLLIN);
  NEED(told(edge_told, 4) == EPOLLIN && told(edge_told, 4) == 0 && told(outer, 8) == 0);
  // Once: told, and waiting to be.
  int once_told = epoll_create1(0), once_new = epoll_create1(0);
  add(once_told, told_before, EPOLLIN | EPOLLONESHOT, 6);
  add(once_new, new, EPOLLIN | EPOLLONESHOT | EPOLLET, 7);
  NEED(told(once_told, 6) == EPOLLIN && told(once_told, 6) == 0);

  // A pipe that has hung up, told both ways.
  int hung[2], edge_hung = epoll_create1(0), once_hung = epoll_create1(0);
  NEED(pipe(hung) == 0 && close(hung[1]) == 0);
  add(edge_hung, hung[0], EPOLLIN | EPOLLET, 9);
  add(once_hung, hung[0], EPOLLIN | EPOLLONESHOT, 10);
  NEED(told(edge_hung, 9) == EPOLLHUP && told(edge_hung, 9) == 0 && told(once_hung, 10) == EPOLLHUP && told(once_hung, 10) == 0);

  ready();
  await_go();
  CHECK(told(edge_hung, 9) == 0 && told(once_hung, 10) == 0);

  char text[16] = "";
  CHECK(read(reader, text, sizeof text) == 4 && !strcmp(text, "once"));
  CHECK(read(reader, text, sizeof text) == -1 && errno == EAGAIN);
  CHECK(!(fcntl(p[0], F_GETFL) & O_NONBLOCK) && !(fcntl(p[1], F_GETFL) & O_NONBLOCK));
  CHECK((fcntl(reader, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == (O_NONBLOCK | O_RDONLY));
  CHECK((fcntl(writer, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == (O_NONBLOCK | O_WRONLY));
  CHECK((fcntl(both, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == O_RDWR);
  CHECK(write(writer, "more", 4) == 4 && read(p[0], text, sizeof text) == 4);
  CHECK(write(both, "last", 4) == 4 && read(both, text, sizeof text) == 4);
  CHECK(fcntl(full[1], F_GETPIPE_SZ) == 16384);
  char expected = 'a';
  int at = drawn;
  for (int have; (have = read(at % 2 ? full[0] : reader_of_full, got, 777)) > 0;)
    for (int byte = 0; byte < have; byte++, at++) {
      expected = at / 1000 < filled / 1000 ? (char)('a' + at / 1000) : 'z';
      CHECK(got[byte] == expected);
    }
  CHECK(at == filled);

  CHECK(told(gone, 1) == EPOLLIN && told(moved, 2) == EPOLLIN && told(level, 3) == 0);
  uint64_t count = 1;
  CHECK(write(third, &count, sizeof count) == sizeof count && told(level, 3) == EPOLLIN && told(level, 3) == EPOLLIN);
  CHECK(read(twin_of_second, &count, sizeof count) == sizeof count && count == 1);
  CHECK(told(moved, 2) == 0 && write(stranger, &count, sizeof count) == sizeof count && told(moved, 2) == 0);
  CHECK(read(twin_of_first, &count, sizeof count) == sizeof count && told(gone, 1) == 0);
  CHECK(write(twin_of_first, &count, sizeof count) == sizeof count && told(gone, 1) == EPOLLIN);

  CHECK(told(outer, 8) == 0 && told(edge_told, 4) == 0);
  CHECK(told(edge_new, 5) == EPOLLIN && told(edge_new, 5) == 0);
  CHECK(told(once_told, 6) == 0);
  CHECK(told(once_new, 7) == EPOLLIN && told(once_new, 7) == 0);
  CHECK(write(told_before, &count, sizeof count) == sizeof count);
  CHECK(told(edge_told, 4) == EPOLLIN && told(once_told, 6) == 0);
  struct epoll_event armed = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 6};
  CHECK(epoll_ctl(once_told, EPOLL_CTL_MOD, told_before, &armed) == 0 && told(once_told, 6) == EPOLLIN);
  return verdict();
}
