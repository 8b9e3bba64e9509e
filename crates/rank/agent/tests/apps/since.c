/* Until there is a file `change` where it was born it is as it was then. Then it changes whatever a process can change of itself. Taken back to before that, it finds nothing of it.
 * Ends after so many ticks, or when there is a file `end` where it was born. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static int failures;
#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)

#define PAGES 512
static char *kept, *given, *written, *freed;
static volatile int handled;
static cpu_set_t born_on;
static char born_in[4096], end_file[4200], change_file[4200];
static mode_t born_mask;
static int born_files, born_maps, born_nice;
static struct rlimit born_limit;
static long born_pinned;

/* Kilobytes of memory that is pinned, with what is pinned as soon as it is mapped. */
static long pinned(void) {
    char line[256];
    long kilobytes = -1;
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FILE *open = fopen("/proc/self/status", "r");
    while (open && fgets(line, sizeof line, open)) sscanf(line, "VmLck: %ld", &kilobytes);
    if (open) fclose(open);
    munmap(page, 4096);
    return kilobytes;
}

/* Whether all threads, Mend's own as well, may run where this process was born. */
static int all_roam(void) {
    int roam = 1;
    DIR *open = opendir("/proc/self/task");
    for (struct dirent *entry; open && (entry = readdir(open));) {
        cpu_set_t now;
        pid_t thread = atoi(entry->d_name);
        if (thread && !sched_getaffinity(thread, sizeof now, &now)) roam &= !!CPU_EQUAL(&now, &born_on);
    }
    if (open) closedir(open);
    return roam;
}

static void handler(int signal) { handled += signal; }
static void *idle(void *arg) { for (;;) pause(); return arg; }

static int entries(const char *directory) {
    DIR *open = opendir(directory);
    int count = 0;
    while (open && readdir(open)) count++;
    if (open) closedir(open);
    return count;
}

static int lines(const char *file) {
    FILE *open = fopen(file, "r");
    int count = 0, c;
    while (open && (c = fgetc(open)) != EOF) count += c == '\n';
    if (open) fclose(open);
    return count;
}

static void as_born(void) {
    cpu_set_t now;
    char here[4096];
    struct itimerval interval;
    struct sigaction action;
    struct rlimit limit;
    sigset_t pending, mask;
    stack_t stack;
    mode_t umasked = umask(0);
    umask(umasked);
    CHECK(umasked == born_mask);
    CHECK(!sched_getaffinity(0, sizeof now, &now) && CPU_EQUAL(&now, &born_on));
    CHECK(all_roam());
    CHECK(pinned() == born_pinned);
    CHECK(getcwd(here, sizeof here) && !strcmp(here, born_in));
    CHECK(!getitimer(ITIMER_REAL, &interval) && !interval.it_value.tv_sec && !interval.it_value.tv_usec);
    CHECK(!sigaction(SIGUSR1, NULL, &action) && action.sa_handler == SIG_DFL);
    CHECK(!sigpending(&pending) && !sigismember(&pending, SIGUSR2) && !sigismember(&pending, SIGRTMIN + 3));
    CHECK(!sigprocmask(SIG_BLOCK, NULL, &mask) && !sigismember(&mask, SIGUSR2));
    CHECK(!sigaltstack(NULL, &stack) && (stack.ss_flags & SS_DISABLE));
    CHECK(!getrlimit(RLIMIT_CORE, &limit) && limit.rlim_cur == born_limit.rlim_cur);
    CHECK(lines("/proc/self/timers") == 0);
    CHECK(entries("/proc/self/fd") == born_files);
    /* Who made itself nicer may not undo that without rights. */
    CHECK(geteuid() || getpriority(PRIO_PROCESS, 0) == born_nice);
    for (int page = 0; page < PAGES; page++) {
        CHECK(kept[page * 4096 + 7] == (char)page);
        CHECK(written[page * 4096] == (page % 2 ? 0 : 'w'));
    }
    CHECK(given[0] == 'g' && given[4096 * 15] == 'g');
    /* The kernel drops at once what it might have dropped later. */
    madvise(freed, PAGES * 4096, MADV_PAGEOUT);
    for (int page = 0; page < PAGES; page++) CHECK(freed[page * 4096 + 9] == 'f');
    CHECK(lines("/proc/self/maps") <= born_maps);
    CHECK(handled == 0);
}

static void change_everything(void) {
    pthread_t thread;
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR2);
    sigaddset(&block, SIGRTMIN + 3);
    CHECK(!sigprocmask(SIG_BLOCK, &block, NULL));
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&thread, NULL, idle, NULL));
    for (int i = 0; i < 30; i++) CHECK(open("/dev/null", O_RDWR) >= 0);
    CHECK(dup2(open("/dev/zero", O_RDONLY), 200) == 200);
    int timer_fd = timerfd_create(CLOCK_MONOTONIC, 0);
    CHECK(timer_fd >= 0);
    umask(born_mask ^ 0111);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &born_on)) { CPU_SET(cpu, &one); break; }
    CHECK(!sched_setaffinity(0, sizeof one, &one));
    CHECK(!chdir("/"));
    struct sigaction action = {.sa_handler = handler};
    CHECK(!sigaction(SIGUSR1, &action, NULL));
    /* Runs out while the process goes back; then the signal would end it. */
    action.sa_flags = SA_RESTART;
    CHECK(!sigaction(SIGALRM, &action, NULL));
    struct itimerval interval = {{0, 200}, {0, 200}};
    CHECK(!setitimer(ITIMER_REAL, &interval, NULL));
    raise(SIGUSR1);
    raise(SIGUSR2);
    kill(getpid(), SIGUSR2);
    for (int i = 0; i < 5; i++) sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = i});
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    CHECK(!sigaltstack(&stack, NULL));
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec soon = {{0, 0}, {900, 0}};
    CHECK(!timer_settime(timer, 0, &soon, NULL));
    struct rlimit limit = {0, born_limit.rlim_max};
    CHECK(!setrlimit(RLIMIT_CORE, &limit));
    memset(kept, 'x', PAGES * 4096);
    CHECK(!mprotect(kept + 4096 * 9, 4096 * 3, PROT_NONE));
    CHECK(!madvise(kept + 4096 * 20, 4096 * 10, MADV_DONTNEED));
    CHECK(!madvise(kept + 4096 * 40, 4096 * 10, MADV_DONTFORK));
    CHECK(!munmap(kept + 4096 * 100, 4096 * 50));
    /* Something else in its place. */
    CHECK(mmap(kept + 4096 * 110, 4096 * 4, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    mlock(kept + 4096 * 300, 4096 * 4);
    memset(written, 'z', PAGES * 4096);
    CHECK(!munmap(given, 4096 * 16));
    CHECK(!madvise(freed, PAGES * 4096, MADV_FREE));
    char *taken = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(taken, 1, 1 << 20);
    for (int i = 0; i < 200; i++) memset(malloc(1000 + 997 * i), i, 1000 + 997 * i);
    CHECK(sbrk(1 << 20) != (void *)-1);
    setpriority(PRIO_PROCESS, 0, born_nice + 3);
    CHECK(!mlockall(MCL_FUTURE));
}

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 40;
    kept = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int page = 0; page < PAGES; page++) kept[page * 4096 + 7] = (char)page;
    written = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int page = 0; page < PAGES; page += 2) written[page * 4096] = 'w';
    freed = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int page = 0; page < PAGES; page++) freed[page * 4096 + 9] = 'f';
    given = mmap(NULL, 4096 * 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(given, 'g', 4096 * 16);
    born_mask = umask(0);
    umask(born_mask);
    CHECK(!sched_getaffinity(0, sizeof born_on, &born_on) && getcwd(born_in, sizeof born_in) && !getrlimit(RLIMIT_CORE, &born_limit));
    snprintf(end_file, sizeof end_file, "%s/end", born_in);
    snprintf(change_file, sizeof change_file, "%s/change", born_in);
    born_pinned = pinned();
    born_nice = getpriority(PRIO_PROCESS, 0);
    born_files = entries("/proc/self/fd");
    /* Mend's own come and go, and a restored mapping may be in parts. */
    born_maps = lines("/proc/self/maps") + 20;
    int changed = 0;
    for (int i = 1; i <= ticks && access(end_file, F_OK); i++) {
        if (!changed) {
            as_born();
            if (!access(change_file, F_OK)) {
                change_everything();
                changed = 1;
                puts("changed");
            }
        }
        usleep(30000);
        printf("tick %d\n", i);
        fflush(stdout);
    }
    if (failures) return 1;
    puts("OK");
    return 0;
}
