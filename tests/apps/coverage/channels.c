// Everything bytes and events wait in: pipes and socket pairs with data, closed and shut down ones, eventfd, epoll in
// epoll, signalfd, timerfd, inotify, sockets that were never connected.
#include "coverage.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

static int option(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  getsockopt(fd, level, name, &value, &length);
  return value;
}

// Reads one event and compares it.
static int told(int fd, int watch, uint32_t mask, const char *name) {
  char room[4096] __attribute__((aligned(8)));
  struct inotify_event *event = (struct inotify_event *)room;
  struct pollfd wanted = {fd, POLLIN, 0};
  if (poll(&wanted, 1, 10000) != 1 || read(fd, room, sizeof room) <= 0) return 0;
  if (event->wd == watch && event->mask & mask && (!name || !strcmp(event->name, name))) return 1;
  printf("event wd %d mask %x name %s\n", event->wd, event->mask, event->len ? event->name : "");
  return 0;
}

int main(void) {
  char text[70000], big[60000];
  int data[2], ended[2], broken[2], wide[2], stream[2], packets[2], datagrams[2], half[2], orphan[2], limited[2];
  memset(big, 'b', sizeof big);
  signal(SIGPIPE, SIG_IGN);
  NEED(!pipe(data) && !pipe(ended) && !pipe(broken) && !pipe2(wide, O_NONBLOCK | O_CLOEXEC));
  NEED(write(data[1], "left in the pipe", 16) == 16 && write(ended[1], "last words", 10) == 10 && !close(ended[1]) && !close(broken[0]));
  NEED(fcntl(wide[1], F_SETPIPE_SZ, 1 << 18) > 0 && write(wide[1], big, sizeof big) == sizeof big && write(wide[1], big, sizeof big) == sizeof big);
  NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, stream) && !socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets));
  NEED(!socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, datagrams) && !socketpair(AF_UNIX, SOCK_STREAM, 0, half));
  NEED(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, orphan) && !socketpair(AF_UNIX, SOCK_STREAM, 0, limited));
  NEED(send(stream[0], "to one", 6, 0) == 6 && send(stream[1], "to zero", 7, 0) == 7 && send(stream[0], big, sizeof big, 0) == sizeof big);
  for (int i = 0; i < 5; i++) {
    NEED(send(packets[0], big, 100 + i, 0) == 100 + i && send(datagrams[1], big, 2000 + i, 0) == 2000 + i);
  }
  int twin = dup(stream[0]);
  NEED(send(half[1], "unread", 6, 0) == 6 && !shutdown(half[1], SHUT_WR) && send(orphan[1], "farewell", 8, 0) == 8 && !close(orphan[1]));
  int on = 1;
  struct timeval patience = {7, 0};
  NEED(!setsockopt(limited[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) && !setsockopt(limited[1], SOL_SOCKET, SO_PASSCRED, &on, 4));
  NEED(!setsockopt(limited[0], SOL_SOCKET, SO_SNDBUF, &(int){20000}, 4));
  int buffer = option(limited[0], SOL_SOCKET, SO_SNDBUF);
  int fresh = socket(AF_INET, SOCK_STREAM, 0), fresh_unix = socket(AF_UNIX, SOCK_DGRAM, 0), fresh6 = socket(AF_INET6, SOCK_DGRAM, 0);
  NEED(fresh >= 0 && fresh_unix >= 0 && !setsockopt(fresh, SOL_SOCKET, SO_REUSEADDR, &on, 4) && !setsockopt(fresh, IPPROTO_TCP, TCP_NODELAY, &on, 4));

  int counter = eventfd(40, EFD_NONBLOCK | EFD_CLOEXEC), semaphore = eventfd(3, EFD_SEMAPHORE);
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  NEED(!timerfd_settime(timer, 0, &(struct itimerspec){{0, 5000000}, {0, 5000000}}, NULL));
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, NULL);
  int signals = signalfd(-1, &set, SFD_NONBLOCK);
  NEED(!raise(SIGUSR1));
  int inner = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(0);
  NEED(!epoll_ctl(inner, EPOLL_CTL_ADD, stream[1], &(struct epoll_event){EPOLLIN, {.u64 = 11}}));
  NEED(!epoll_ctl(inner, EPOLL_CTL_ADD, counter, &(struct epoll_event){EPOLLOUT | EPOLLET, {.u64 = 12}}));
  NEED(!epoll_ctl(outer, EPOLL_CTL_ADD, inner, &(struct epoll_event){EPOLLIN, {.u64 = 13}}));
  NEED(!epoll_ctl(outer, EPOLL_CTL_ADD, fresh_unix, &(struct epoll_event){0, {.u64 = 14}}));

  NEED(!mkdir("watched", 0700) && !close(open("watched/file", O_CREAT | O_WRONLY, 0600)));
  int watcher = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  int removed = inotify_add_watch(watcher, ".", IN_ATTRIB);
  int directory = inotify_add_watch(watcher, "watched", IN_CREATE | IN_ONLYDIR), file = inotify_add_watch(watcher, "watched/file", IN_MODIFY);
  NEED(!inotify_rm_watch(watcher, removed) && read(watcher, text, sizeof text) > 0);
  ready();
  await_go();

  CHECK(read(data[0], text, 99) == 16 && !memcmp(text, "left in the pipe", 16) && write(data[1], "more", 4) == 4 && read(data[0], text, 99) == 4);
  CHECK(read(ended[0], text, 99) == 10 && !memcmp(text, "last words", 10) && read(ended[0], text, 99) == 0);
  CHECK(write(broken[1], "x", 1) == -1 && errno == EPIPE);
  CHECK(fcntl(wide[0], F_GETPIPE_SZ) == 1 << 18 && fcntl(wide[0], F_GETFL) & O_NONBLOCK && fcntl(wide[0], F_GETFD) == FD_CLOEXEC);
  for (int i = 0; i < 2; i++) CHECK(read(wide[0], text, sizeof big) == sizeof big && !memcmp(text, big, sizeof big));
  CHECK(read(wide[0], text, 1) == -1 && errno == EAGAIN);
  CHECK(recv(stream[1], text, 6, MSG_WAITALL) == 6 && !memcmp(text, "to one", 6));
  CHECK(recv(stream[1], text, sizeof big, MSG_WAITALL) == sizeof big && !memcmp(text, big, sizeof big));
  CHECK(recv(twin, text, 99, 0) == 7 && !memcmp(text, "to zero", 7) && send(twin, "again", 5, 0) == 5 && recv(stream[1], text, 99, 0) == 5);
  for (int i = 0; i < 5; i++) {
    CHECK(recv(packets[1], text, sizeof text, 0) == 100 + i && recv(datagrams[0], text, sizeof text, 0) == 2000 + i);
  }
  CHECK(recv(datagrams[0], text, 9, 0) == -1 && errno == EAGAIN && send(datagrams[0], "d", 1, 0) == 1 && recv(datagrams[1], text, 9, 0) == 1);
  CHECK(recv(half[0], text, 99, 0) == 6 && recv(half[0], text, 99, 0) == 0 && send(half[1], "x", 1, 0) == -1 && errno == EPIPE);
  CHECK(send(half[0], "still", 5, 0) == 5 && recv(half[1], text, 99, 0) == 5);
  CHECK(recv(orphan[0], text, 99, 0) == 8 && recv(orphan[0], text, 99, 0) == 0 && send(orphan[0], "x", 1, 0) == -1);
  CHECK(fcntl(orphan[0], F_GETFD) == FD_CLOEXEC);
  struct timeval kept = {0, 0};
  socklen_t length = sizeof kept;
  CHECK(!getsockopt(limited[0], SOL_SOCKET, SO_RCVTIMEO, &kept, &length) && kept.tv_sec == 7);
  CHECK(option(limited[1], SOL_SOCKET, SO_PASSCRED) == 1 && option(limited[0], SOL_SOCKET, SO_SNDBUF) == buffer);
  CHECK(option(fresh, SOL_SOCKET, SO_REUSEADDR) == 1 && option(fresh, IPPROTO_TCP, TCP_NODELAY) == 1 && option(fresh, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
  CHECK(fresh6 < 0 || option(fresh6, SOL_SOCKET, SO_DOMAIN) == AF_INET6);
  CHECK(!bind(fresh, (struct sockaddr *)&(struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, 16) && !listen(fresh, 1));

  uint64_t value = 0;
  CHECK(read(counter, &value, 8) == 8 && value == 40 && read(counter, &value, 8) == -1 && fcntl(counter, F_GETFD) == FD_CLOEXEC);
  CHECK(read(semaphore, &value, 8) == 8 && value == 1 && read(semaphore, &value, 8) == 8 && value == 1);
  for (int tries = 0; read(timer, &value, 8) != 8 && tries < 5000; tries++) usleep(1000);
  CHECK(value >= 1);
  struct signalfd_siginfo info;
  CHECK(read(signals, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1);
  CHECK(send(stream[0], "wake", 4, 0) == 4);
  struct epoll_event happened[4];
  CHECK(epoll_wait(outer, happened, 4, 5000) >= 1 && happened[0].data.u64 == 13);
  int found = 0;
  for (int i = 0, count = epoll_wait(inner, happened, 4, 0); i < count; i++) found |= 1 << (happened[i].data.u64 - 11);
  CHECK(found & 1);
  CHECK(epoll_ctl(outer, EPOLL_CTL_DEL, fresh_unix, NULL) == 0);

  CHECK(!close(open("watched/new", O_CREAT | O_WRONLY, 0600)) && told(watcher, directory, IN_CREATE, "new"));
  int written = open("watched/file", O_WRONLY);
  CHECK(write(written, "x", 1) == 1 && told(watcher, file, IN_MODIFY, NULL));
  CHECK(!inotify_rm_watch(watcher, file) && inotify_add_watch(watcher, ".", IN_ATTRIB) == 4);
  return verdict();
}
