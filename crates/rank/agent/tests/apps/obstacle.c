/* Has one thing that cannot be saved, by name; drops it when told to on standard input. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int blocked, unblock;

/* Blocks what the C library never blocks. */
static void *blocker(void *arg) {
    unsigned long all = ~0ul, none = 0;
    prctl(PR_SET_NAME, "stubborn");
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
    blocked = 1;
    while (!unblock) usleep(1000);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
    blocked = 0;
    return arg;
}

/* Leaves what threads share. */
static void *leaver(void *arg) {
    if (unshare(*(int *)arg)) exit(1);
    blocked = 1;
    while (!unblock) usleep(1000);
    blocked = 0;
    return arg;
}

/* Returns when the first thread has ended; proc(5): it stays as a zombie. */
static void await_end_of_first_thread(void) {
    char state = 0;
    while (state != 'Z') {
        FILE *stat = fopen("/proc/self/stat", "r");
        if (!stat || fscanf(stat, "%*d %*s %c", &state) != 1) exit(1);
        fclose(stat);
    }
}

static void *other(void *arg) {
    char line[64];
    await_end_of_first_thread();
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(1);
    puts("OK");
    exit(0);
    return arg;
}

int main(int argc, char **argv) {
    char line[64];
    const char *what = argv[1];
    int fd = -1, id = -1, set = -1, p[2];
    void *shm = NULL, *mapped = NULL;
    pid_t child = 0, stranger = 0;
    timer_t timer;
    if (!strcmp(what, "socket")) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        listen(fd, 1);
    } else if (!strcmp(what, "child")) {
        if ((child = fork()) == 0) pause(), _exit(0);
    } else if (!strcmp(what, "sysv")) {
        id = shmget(IPC_PRIVATE, 4096, 0600);
        shm = shmat(id, NULL, 0);
        shmctl(id, IPC_RMID, NULL);
    } else if (!strcmp(what, "semaphores")) {
        set = semget(IPC_PRIVATE, 2, 0600);
        if (semctl(set, 1, SETVAL, 1)) return 1;
    } else if (!strcmp(what, "memories")) {
        struct rlimit files;
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
        /* One too many, which is closed again. */
        for (int i = 0; i <= 1000; i++)
            if ((fd = memfd_create("one of many", 0)) < 0) return 1;
    } else if (!strcmp(what, "undumpable")) {
        prctl(PR_SET_DUMPABLE, 0);
    } else if (!strcmp(what, "timer")) {
        struct sigevent event = {.sigev_notify = SIGEV_NONE};
        timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer);
    } else if (!strcmp(what, "deleted")) {
        fd = open("gone", O_RDWR | O_CREAT, 0600);
        unlink("gone");
        if (ftruncate(fd, 300l << 20)) return 1;
    } else if (!strcmp(what, "first-thread")) {
        pthread_t t;
        pthread_create(&t, NULL, other, NULL);
        pthread_exit(NULL);
    } else if (!strcmp(what, "blocker")) {
        pthread_t t;
        pthread_create(&t, NULL, blocker, NULL);
        while (!blocked) usleep(1000);
    } else if (!strcmp(what, "files") || !strcmp(what, "place")) {
        static int flag;
        pthread_t t;
        flag = *what == 'f' ? CLONE_FILES : CLONE_FS;
        pthread_create(&t, NULL, leaver, &flag);
        while (!blocked) usleep(1000);
    } else if (!strcmp(what, "named")) {
        fd = shm_open(argv[2], O_RDWR | O_CREAT, 0600);
        if (ftruncate(fd, 4096)) return 1;
        mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    } else if (!strcmp(what, "inotify")) {
        fd = inotify_init();
        inotify_add_watch(fd, ".", IN_CREATE);
        close(open("new", O_CREAT | O_WRONLY, 0600));
    } else if (!strcmp(what, "pipe") || !strcmp(what, "pair")) {
        if (what[1] == 'i' ? pipe(p) : socketpair(AF_UNIX, SOCK_STREAM, 0, p)) return 1;
        /* Held by a process that is not a child: its parent has ended. */
        if ((child = fork()) == 0) {
            if ((child = fork()) == 0) close(p[0]), pause();
            if (write(p[1], &child, sizeof child) != sizeof child) _exit(1);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        if (read(p[0], &child, sizeof child) != sizeof child) return 1;
        close(p[1]);
        fd = p[0], stranger = child, child = 0;
    }
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    if (fd >= 0) close(fd);
    if (stranger) kill(stranger, SIGKILL);
    if (child) kill(child, SIGKILL), waitpid(child, NULL, 0);
    if (shm) shmdt(shm);
    if (mapped) munmap(mapped, 4096), shm_unlink(argv[2]);
    if (!strcmp(what, "timer")) timer_delete(timer);
    if (set >= 0) semctl(set, 0, IPC_RMID);
    prctl(PR_SET_DUMPABLE, 1);
    unblock = 1;
    while (blocked) usleep(1000);
    puts("dropped");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    puts("OK");
    return 0;
}
