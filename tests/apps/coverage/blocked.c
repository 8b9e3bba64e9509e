// Threads blocked in every way that programs block: each must be woken by what it waits for and by nothing else.
#include "coverage.h"
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { EACH = 4, KINDS = 16, BULK = 200000 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, inheriting;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;
static int pipes[KINDS][2], full[2], event, epoll, pair[2], locked, large[2], streams[EACH][2];
static volatile int open_door, reached;
static __thread int own = 41;

static void *wait_for(void *argument) {
  long which = (long)argument;
  char byte[64];
  int input = pipes[which][0], got = 0;
  struct pollfd polled = {input, POLLIN, 0};
  struct epoll_event happened;
  fd_set set;
  sigset_t signals;
  uint64_t count;
  struct iovec vector = {byte, 1};
  struct timespec far = {100000, 0};
  own += which;
  pid_t id = syscall(SYS_gettid);
  __atomic_add_fetch(&reached, 1, __ATOMIC_SEQ_CST);
  switch (which) {
    case 0: CHECK(read(input, byte, 1) == 1 && *byte == 'x'); break;
    case 1: CHECK(poll(&polled, 1, -1) == 1 && read(input, byte, 1) == 1); break;
    case 2: CHECK(ppoll(&polled, 1, &far, NULL) == 1 && read(input, byte, 1) == 1); break;
    case 3:
      FD_ZERO(&set);
      FD_SET(input, &set);
      CHECK(select(input + 1, &set, NULL, NULL, NULL) == 1 && read(input, byte, 1) == 1);
      break;
    case 4: CHECK(epoll_wait(epoll, &happened, 1, -1) == 1 && happened.data.u64 == 0x123456789abcdefull); break;
    case 5:
      pthread_mutex_lock(&mutex);
      while (!open_door) pthread_cond_wait(&condition, &mutex);
      pthread_mutex_unlock(&mutex);
      break;
    case 6:
      pthread_mutex_lock(&mutex);
      clock_gettime(CLOCK_REALTIME, &far);
      far.tv_sec += 100000;
      while (!open_door) CHECK(pthread_cond_timedwait(&condition, &mutex, &far) == 0);
      pthread_mutex_unlock(&mutex);
      break;
    case 7: CHECK(sem_wait(&semaphore) == 0); break;
    case 8:
      sigemptyset(&signals);
      sigaddset(&signals, SIGRTMIN + 3);
      CHECK(sigwait(&signals, &got) == 0 && got == SIGRTMIN + 3);
      break;
    case 9: CHECK(read(event, &count, 8) == 8 && count == 1); break;
    case 10: CHECK(recv(pair[0], byte, sizeof byte, 0) == 5 && !memcmp(byte, "hello", 5)); break;
    case 11: CHECK(pthread_rwlock_rdlock(&rwlock) == 0 && pthread_rwlock_unlock(&rwlock) == 0); break;
    case 12: CHECK(write(full[1], byte, 64) == 64); break;
    case 13: CHECK(readv(input, &vector, 1) == 1); break;
    case 14: CHECK(pthread_mutex_lock(&inheriting) == 0 && pthread_mutex_unlock(&inheriting) == 0); break;
    case 15: {
      // A lock of a file that another description of this process has.
      int mine = open("locked", O_RDWR);
      struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
      CHECK(fcntl(mine, F_OFD_SETLKW, &whole) == 0);
      close(mine);
    }
  }
  CHECK(own == 41 + which && syscall(SYS_gettid) == id);
  pthread_barrier_wait(&barrier);
  return (void *)(which + 1);
}

// A part of it has gone when it is blocked; the rest follows.
static void *write_all(void *argument) {
  long which = (long)argument;
  char *bulk = malloc(BULK);
  memset(bulk, 'a' + which, BULK);
  __atomic_add_fetch(&reached, 1, __ATOMIC_SEQ_CST);
  CHECK(write(large[1], bulk, BULK) == BULK);
  free(bulk);
  return NULL;
}

// A part of it has come when it is blocked; the rest follows.
static void *receive_all(void *argument) {
  long which = (long)argument;
  char all[10];
  __atomic_add_fetch(&reached, 1, __ATOMIC_SEQ_CST);
  CHECK(recv(streams[which][0], all, sizeof all, MSG_WAITALL) == sizeof all && !memcmp(all, "one, other", sizeof all));
  return NULL;
}

int main(void) {
  pthread_t threads[KINDS][EACH], writers[EACH], receivers[EACH];
  pthread_mutexattr_t attribute;
  sigset_t signals;
  char filler[4096] = "";
  sigemptyset(&signals);
  sigaddset(&signals, SIGRTMIN + 3);
  pthread_sigmask(SIG_BLOCK, &signals, NULL);
  pthread_mutexattr_init(&attribute);
  pthread_mutexattr_setprotocol(&attribute, PTHREAD_PRIO_INHERIT);
  NEED(!pthread_mutex_init(&inheriting, &attribute) && !pthread_barrier_init(&barrier, NULL, KINDS * EACH + 1));
  NEED(!sem_init(&semaphore, 0, 0) && !pipe2(full, O_NONBLOCK) && !socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
  for (int i = 0; i < KINDS; i++) NEED(!pipe(pipes[i]));
  while (write(full[1], filler, sizeof filler) > 0) {}
  NEED(!fcntl(full[1], F_SETFL, 0));
  event = eventfd(0, EFD_SEMAPHORE);
  epoll = epoll_create1(0);
  struct epoll_event wanted = {EPOLLIN, {.u64 = 0x123456789abcdefull}};
  NEED(!epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[4][0], &wanted));
  locked = open("locked", O_RDWR | O_CREAT, 0600);
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  NEED(!fcntl(locked, F_OFD_SETLK, &whole));
  pthread_rwlock_wrlock(&rwlock);
  pthread_mutex_lock(&inheriting);
  for (long kind = 0; kind < KINDS; kind++)
    for (int i = 0; i < EACH; i++) NEED(!pthread_create(&threads[kind][i], NULL, wait_for, (void *)kind));
  NEED(!pipe(large));
  for (long i = 0; i < EACH; i++) {
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, streams[i]) && send(streams[i][1], "one, ", 5, 0) == 5);
    NEED(!pthread_create(&writers[i], NULL, write_all, (void *)i) && !pthread_create(&receivers[i], NULL, receive_all, (void *)i));
  }
  while (reached < (KINDS + 2) * EACH) usleep(1000);
  usleep(50000);
  ready();
  await_go();

  open_door = 1;
  pthread_cond_broadcast(&condition);
  CHECK(pthread_rwlock_unlock(&rwlock) == 0 && pthread_mutex_unlock(&inheriting) == 0);
  CHECK(close(locked) == 0);
  for (int i = 0; i < EACH; i++) {
    for (int kind = 0; kind < KINDS; kind++) CHECK(write(pipes[kind][1], "x", 1) == 1);
    CHECK(sem_post(&semaphore) == 0 && kill(getpid(), SIGRTMIN + 3) == 0 && send(pair[1], "hello", 5, 0) == 5);
    CHECK(write(event, &(uint64_t){1}, 8) == 8 && read(full[0], filler, sizeof filler) == sizeof filler);
  }
  int written[EACH] = {0};
  for (int got = 0, all = 0; all < EACH * BULK; all += got) {
    got = read(large[0], filler, sizeof filler);
    NEED(got > 0);
    for (int at = 0; at < got; at++) written[(filler[at] - 'a') % EACH]++;
  }
  for (int i = 0; i < EACH; i++) CHECK(written[i] == BULK && send(streams[i][1], "other", 5, 0) == 5);
  for (int i = 0; i < EACH; i++) CHECK(pthread_join(writers[i], NULL) == 0 && pthread_join(receivers[i], NULL) == 0);
  pthread_barrier_wait(&barrier);
  for (long kind = 0; kind < KINDS; kind++)
    for (int i = 0; i < EACH; i++) {
      void *result = NULL;
      CHECK(pthread_join(threads[kind][i], &result) == 0 && result == (void *)(kind + 1));
    }
  return verdict();
}
