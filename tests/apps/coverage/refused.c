// refused KIND: holds one thing that cannot be saved, and gives it up when there is a file `go`.
#include "coverage.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { MAP_SHADOW_STACK = 453 };

// A device that is no null, zero or the like and that this user may open.
static int open_device(void) {
  const char *devices[] = {"/dev/autofs", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/loop-control", "/dev/hpet", "/dev/rtc0"};
  for (unsigned i = 0; i < sizeof devices / sizeof *devices; i++) {
    int fd = open(devices[i], O_RDONLY | O_NONBLOCK);
    if (fd >= 0) return fd;
  }
  return -1;
}

static int is(char **arguments, const char *kind) { return !strcmp(arguments[1], kind); }

int main(int count, char **arguments) {
  int one = -1, two = -1, pair[2], pipes[2], set = -1, queue = -1;
  char name[80] = "";
  void *memory = NULL;
  pid_t child = 0;
  timer_t timer;
  aio_context_t context = 0;
  NEED(count == 2);
  if (is(arguments, "child")) {
    NEED((child = fork()) >= 0);
    if (!child) pause();
  } else if (is(arguments, "zombie")) {
    NEED((child = fork()) >= 0);
    if (!child) _exit(0);
  } else if (is(arguments, "sysv")) {
    int id = shmget(IPC_PRIVATE, 4096, 0600);
    NEED((memory = shmat(id, NULL, 0)) != (void *)-1 && !shmctl(id, IPC_RMID, NULL));
  } else if (is(arguments, "semaphores")) {
    struct sembuf up = {.sem_op = 1};
    NEED((set = semget(IPC_PRIVATE, 1, 0600)) >= 0 && !semop(set, &up, 1));
  } else if (is(arguments, "queue")) {
    struct { long type; char text; } message = {1, 'x'};
    NEED((queue = msgget(IPC_PRIVATE, 0600)) >= 0 && !msgsnd(queue, &message, 1, 0));
  } else if (is(arguments, "thread-clock")) {
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    NEED(!timer_create(CLOCK_THREAD_CPUTIME_ID, &none, &timer));
  } else if (is(arguments, "under-way")) {
    // A descriptor that was sent and not received yet.
    char byte = 'x', room[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS, control->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(control), &(int){0}, sizeof(int));
    NEED(sendmsg(pair[0], &message, 0) == 1);
    one = pair[0], two = pair[1];
  } else if (is(arguments, "packets")) {
    NEED(!pipe2(pipes, O_DIRECT) && write(pipes[1], "packet", 6) == 6);
    one = pipes[0], two = pipes[1];
  } else if (is(arguments, "events")) {
    NEED((one = inotify_init1(0)) >= 0 && inotify_add_watch(one, ".", IN_CREATE) > 0);
    NEED((two = open("created", O_CREAT | O_WRONLY, 0600)) >= 0);
  } else if (is(arguments, "far-watch")) {
    NEED((one = inotify_init1(0)) >= 0 && inotify_add_watch(one, "/proc/sys/kernel/hostname", IN_MODIFY) > 0);
  } else if (is(arguments, "lease")) {
    NEED((one = open("leased", O_CREAT | O_RDWR, 0600)) >= 0 && !fcntl(one, F_SETLEASE, F_WRLCK));
  } else if (is(arguments, "memory-lock")) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    NEED((one = memfd_create("locked", 0)) >= 0 && !fcntl(one, F_SETLK, &whole));
  } else if (is(arguments, "uring")) {
    struct io_uring_params parameters = {0};
    one = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    if (one < 0) return 77;
  } else if (is(arguments, "aio")) {
    // What libaio calls a context.
    if (syscall(SYS_io_setup, 4, &context)) return 77;
  } else if (is(arguments, "named-socket")) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "named"};
    NEED((one = socket(AF_UNIX, SOCK_DGRAM, 0)) >= 0 && !bind(one, (struct sockaddr *)&name, sizeof name));
  } else if (is(arguments, "device")) {
    if ((one = open_device()) < 0) return 77;
  } else if (is(arguments, "shadow-stack")) {
    memory = (void *)syscall(MAP_SHADOW_STACK, 0, 4096, 0);
    if (memory == MAP_FAILED) return 77;
  } else if (is(arguments, "protection-key")) {
    int key = pkey_alloc(0, 0);
    if (key < 0) return 77;
    memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED && !pkey_mprotect(memory, 4096, PROT_READ | PROT_WRITE, key));
  } else if (is(arguments, "fifo")) {
    NEED(!mkfifo("fifo", 0600) && (one = open("fifo", O_RDWR)) >= 0);
  } else if (is(arguments, "large-unlinked")) {
    NEED((one = open("large", O_CREAT | O_RDWR, 0600)) >= 0 && !unlink("large") && !ftruncate(one, 300l << 20));
  } else if (is(arguments, "large-node-file")) {
    snprintf(name, sizeof name, "/dev/shm/large-%d-%ld", getpid(), time(NULL));
    NEED((two = open(name, O_CREAT | O_EXCL | O_RDWR, 0600)) >= 0 && !ftruncate(two, 300l << 20) && !close(two));
    two = -1;
  } else {
    return 2;
  }
  ready();
  await_go();
  if (child > 0) kill(child, SIGKILL), waitpid(child, NULL, 0);
  if (is(arguments, "sysv")) shmdt(memory);
  else if (memory) munmap(memory, 4096);
  if (is(arguments, "thread-clock")) timer_delete(timer);
  if (set >= 0) NEED(!semctl(set, 0, IPC_RMID));
  if (queue >= 0) NEED(!msgctl(queue, IPC_RMID, NULL));
  if (context) NEED(!syscall(SYS_io_destroy, context));
  if (one >= 0) close(one);
  if (two >= 0) close(two);
  if (*name) unlink(name);
  puts("given up");
  fflush(stdout);
  while (access("end", F_OK) != 0) usleep(2000);
  return verdict();
}
