/* Files, eventfd, timerfd, epoll, signalfd, pipes, memfd, dups: all used across a restore. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

static int failures;
#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 40;
    mkdir("sub", 0777);
    CHECK(chdir("sub") == 0);
    umask(027);
    struct rlimit limit = {500, 0};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 500;
    setrlimit(RLIMIT_NOFILE, &limit);

    int writer = open("out", O_RDWR | O_CREAT | O_TRUNC, 0666);
    int twin = dup(writer);
    int appender = open("log", O_WRONLY | O_CREAT | O_APPEND | O_TRUNC | O_CLOEXEC, 0666);
    FILE *in = fopen("/etc/services", "r");
    if (!in) in = fopen("/etc/passwd", "r");
    int null = open("/dev/null", O_RDWR), random = open("/dev/urandom", O_RDONLY);
    int high = fcntl(null, F_DUPFD_CLOEXEC, 300);
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    int event = eventfd(5, EFD_NONBLOCK), semaphore = eventfd(100000, EFD_SEMAPHORE);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec every = {{0, 10000000}, {0, 10000000}};
    timerfd_settime(timer, 0, &every, NULL);
    int far = timerfd_create(CLOCK_REALTIME, 0);
    struct itimerspec once = {{0, 0}, {1000, 0}};
    timerfd_settime(far, 0, &once, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK);
    int p[2];
    CHECK(pipe(p) == 0);
    CHECK(write(p[1], "left in the pipe", 16) == 16);
    int mem = memfd_create("board", MFD_ALLOW_SEALING);
    CHECK(ftruncate(mem, 1 << 20) == 0);
    int *board = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, mem, 4096);
    CHECK(pwrite(mem, "beyond", 6, 900000) == 6);
    CHECK(lseek(mem, 77, SEEK_SET) == 77);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {EPOLLIN, {.u64 = 0x1122334455667788ull}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &ev);
    ev.data.u64 = 2;
    epoll_ctl(epoll, EPOLL_CTL_ADD, signals, &ev);
    int gone = open("gone", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(unlink("gone") == 0 && write(gone, "still here", 10) == 10);
    char line[256], first[256] = "";
    long lines = 0;

    int i = 1;
    for (; i <= ticks && access("../end", F_OK); i++) {
        struct epoll_event got[4];
        int n = epoll_wait(epoll, got, 4, 5000);
        CHECK(n >= 1 && got[0].data.u64 == 0x1122334455667788ull);
        uint64_t value;
        CHECK(read(timer, &value, 8) == 8 && value >= 1);
        usleep(10000);
        char text[64];
        int length = snprintf(text, sizeof text, "line %d\n", i);
        CHECK(write(i % 2 ? writer : twin, text, length) == length);
        CHECK(write(appender, text, length) == length);
        CHECK(lseek(writer, 0, SEEK_CUR) == lseek(twin, 0, SEEK_CUR));
        if (fgets(line, sizeof line, in)) { if (++lines == 1) strcpy(first, line); }
        CHECK(write(null, text, length) == length && write(high, text, 1) == 1);
        CHECK(read(random, text, 8) == 8);
        CHECK(fcntl(high, F_GETFD) == FD_CLOEXEC && fcntl(appender, F_GETFD) == FD_CLOEXEC && fcntl(writer, F_GETFD) == 0);
        CHECK(fcntl(appender, F_GETFL) & O_APPEND);
        CHECK(read(event, &value, 8) == 8 && value == (i == 1 ? 5 : (uint64_t)i));
        value = i + 1;
        CHECK(write(event, &value, 8) == 8);
        CHECK(read(semaphore, &value, 8) == 8 && value == 1);
        struct itimerspec left;
        timerfd_gettime(far, &left);
        CHECK(left.it_value.tv_sec > 900 && left.it_value.tv_sec <= 1000);
        board[0]++, board[2000] = i;
        int seen = 0;
        CHECK(pread(mem, &seen, 4, 4096) == 4 && seen == i);
        CHECK(pread(mem, &seen, 4, 4096 + 8000) == 4 && seen == i);
        char beyond[6];
        CHECK(pread(mem, beyond, 6, 900000) == 6 && !memcmp(beyond, "beyond", 6));
        CHECK(lseek(mem, 0, SEEK_CUR) == 77);
        CHECK(kill(getpid(), SIGUSR1) == 0);
        struct signalfd_siginfo info;
        CHECK(read(signals, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1);
        mode_t mask = umask(027);
        CHECK(mask == 027);
        struct rlimit now;
        getrlimit(RLIMIT_NOFILE, &now);
        CHECK(now.rlim_cur == 500);
        char cwd[4096];
        CHECK(getcwd(cwd, sizeof cwd) && strstr(cwd, "/sub"));
        char still[10];
        CHECK(pread(gone, still, 10, 0) == 10 && !memcmp(still, "still here", 10) && lseek(gone, 0, SEEK_CUR) == 10);
        struct stat st;
        CHECK(fstat(dir, &st) == 0 && S_ISDIR(st.st_mode));
        CHECK(fcntl(499, F_GETFD) == -1);
        printf("tick %d\n", i);
        fflush(stdout);
    }
    char text[64] = "";
    CHECK(read(p[0], text, 16) == 16 && !strcmp(text, "left in the pipe"));
    close(writer), close(twin), close(appender);
    for (int f = 0; f < 2; f++) {
        FILE *check = fopen(f ? "log" : "out", "r");
        for (int k = 1; k < i; k++) {
            int n = 0;
            CHECK(fscanf(check, "line %d\n", &n) == 1 && n == k);
        }
        CHECK(fgetc(check) == EOF);
    }
    if (failures) return 1;
    puts("OK");
    return 0;
}
