/* Sets what the kernel keeps for a process, a thread, a mapping, a file or a socket beside their content, and looks again and again
 * whether it is still so.
 *
 *   attributes all GO       everything that is restored: ends when the file GO exists, with "OK" if nothing was lost
 *   attributes ITEM GO      one thing that cannot be saved
 *   attributes rows         the names of all that is looked at
 *
 * What this kernel or this user may not do is printed as "skipped ITEM: WHY". docs/process-state.md lists the same items. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif
#define SIZE 65536

struct row {
    const char *name;
    int (*set)(void); /* 0, or -1 and errno */
    void (*show)(char *); /* as text, at most SIZE bytes */
    char before[SIZE];
};

static char *out(char *at, const char *format, long value) { return at + sprintf(at, format, value); }

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t done = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return done < 0 ? -1 : 0;
}

static void get(const char *path, char *text) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t done = fd < 0 ? 0 : read(fd, text, SIZE - 1);
    text[done < 0 ? 0 : done] = 0;
    if (fd >= 0) close(fd);
}

/* The lines of the status of the process, and its first thread, that begin with one of these names. */
static void status(char *text, const char *names) {
    static __thread char all[SIZE];
    get("/proc/self/status", all);
    *text = 0;
    for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
        char name[64] = "|";
        char *colon = strchr(line, ':');
        if (!colon || colon - line > 50) continue;
        strncat(name, line, colon - line);
        strcat(name, "|");
        if (strstr(names, name)) strcat(strcat(text, line), ";");
    }
}

/* Of the process. */
static int set_subreaper(void) { return prctl(PR_SET_CHILD_SUBREAPER, 1); }
static void show_subreaper(char *text) { int value = -1; prctl(PR_GET_CHILD_SUBREAPER, &value); out(text, "%ld", value); }
static int set_oom(void) { return put("/proc/self/oom_score_adj", "321"); }
static void show_oom(char *text) { get("/proc/self/oom_score_adj", text); }
static int set_coredump(void) { return put("/proc/self/coredump_filter", "0x1b"); }
static void show_coredump(char *text) { get("/proc/self/coredump_filter", text); }
static int set_thp(void) { return prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); }
static void show_thp(char *text) { out(text, "%ld", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0)); }
static int set_membarrier(void) {
    /* MEMBARRIER_CMD_REGISTER_: GLOBAL_EXPEDITED, PRIVATE_EXPEDITED, PRIVATE_EXPEDITED_SYNC_CORE */
    return syscall(SYS_membarrier, 4, 0, 0) || syscall(SYS_membarrier, 16, 0, 0) || syscall(SYS_membarrier, 64, 0, 0) ? -1 : 0;
}
static void show_membarrier(char *text) { out(text, "%ld", syscall(SYS_membarrier, 1 << 9, 0, 0)); }
static int set_mdwe(void) { return prctl(PR_SET_MDWE, 1, 0, 0, 0); }
static void show_mdwe(char *text) { out(text, "%ld", prctl(PR_GET_MDWE, 0, 0, 0, 0)); }
static int set_merge(void) { return prctl(67, 1, 0, 0, 0); }
static void show_merge(char *text) { out(text, "%ld", prctl(68, 0, 0, 0, 0)); }
static int set_umask(void) { umask(027); return 0; }
static void show_umask(char *text) { status(text, "|Umask|"); }
static int set_limit(void) { struct rlimit limit = {12345, 23456}; return setrlimit(RLIMIT_CORE, &limit); }
static void show_limit(char *text) { struct rlimit limit; getrlimit(RLIMIT_CORE, &limit); sprintf(text, "%lu %lu", limit.rlim_cur, limit.rlim_max); }
static int set_personality(void) { return personality(ADDR_NO_RANDOMIZE) < 0 ? -1 : 0; }
static void show_personality(char *text) { out(text, "%lx", personality(0xffffffff)); }
static int set_session(void) { return setsid() < 0 && errno != EPERM ? -1 : 0; }
static void show_session(char *text) { sprintf(text, "%d %d", getsid(0) == getpid(), getpgid(0) == getpid()); }
static int set_interval(void) { struct itimerval value = {{0, 0}, {90000, 0}}; return setitimer(ITIMER_VIRTUAL, &value, NULL); }
static void show_interval(char *text) { struct itimerval value; getitimer(ITIMER_VIRTUAL, &value); out(text, "%ld", value.it_value.tv_sec > 80000); }
static int set_nothing(void) { return 0; }
static void show_names(char *text) {
    get("/proc/self/comm", text);
    get("/proc/self/cmdline", text + strlen(text));
    strcat(text, getenv("PATH") ? getenv("PATH") : "");
    strcat(text, "|");
    char *at = text + strlen(text);
    get("/proc/self/environ", at);
    get("/proc/self/auxv", at + strlen(at));
}
/* Whether what is mapped from now on is pinned. */
static int set_future(void) { return mlockall(MCL_FUTURE | MCL_ONFAULT); }
static void show_future(char *text) {
    char before[4096], between[4096];
    status(before, "|VmLck|");
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    status(between, "|VmLck|");
    munmap(page, 4096);
    out(text, "%ld", strcmp(before, between) != 0);
}

/* Of mappings. Each is looked up in smaps: its name, and its flags but for those that come and go. */
static char *mapped[16];
static int mappings;
static void *map(size_t size, int protection, int flags, int fd) {
    /* A page between any two: they shall not become one. */
    char *place = mmap(NULL, size + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return NULL;
    void *made = mmap(place + 4096, size, protection, flags | MAP_FIXED, fd, 0);
    if (made == MAP_FAILED) return NULL;
    mapped[mappings++] = made;
    return made;
}
static int set_mappings(void) {
    const int private = MAP_PRIVATE | MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
    char *at[12];
    for (int i = 0; i < 12; i++)
        if (!(at[i] = map(16384, both, i == 1 ? private | MAP_NORESERVE : i == 2 ? MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE : private, -1))) return -1;
    madvise(at[3], 16384, MADV_DONTFORK);
    madvise(at[4], 16384, MADV_DONTDUMP);
    madvise(at[5], 16384, MADV_WIPEONFORK);
    madvise(at[6], 16384, MADV_MERGEABLE);
    madvise(at[7], 16384, MADV_RANDOM);
    madvise(at[8], 16384, MADV_NOHUGEPAGE);
    mlock(at[9], 16384);
    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, at[10], 16384, "attributes");
    at[11][5000] = 7;
    mprotect(at[11], 16384, PROT_READ);
    syscall(462, at[11], 16384, 0); /* mseal */
    return 0;
}
static void show_mappings(char *text) {
    *text = 0;
    FILE *smaps = fopen("/proc/self/smaps", "re");
    char line[4096];
    int wanted = 0;
    while (smaps && fgets(line, sizeof line, smaps)) {
        unsigned long start, end;
        char *name = strchr(line, '[');
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
            wanted = 0;
            for (int i = 0; i < mappings; i++) wanted |= (unsigned long)mapped[i] == start;
            if (wanted) sprintf(text + strlen(text), "%lx %s", end - start, name ? name : "\n");
        } else if (wanted && !strncmp(line, "VmFlags:", 8)) {
            for (char *flag = strtok(line + 8, " \n"); flag; flag = strtok(NULL, " \n"))
                if (!strstr("|sd|uw|um|", flag)) strcat(strcat(text, flag), " ");
            strcat(text, "\n");
        }
    }
    if (smaps) fclose(smaps);
}
static void *bound;
static int set_mbind(void) {
    unsigned long nodes = 1;
    if (!(bound = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) return -1;
    return syscall(SYS_mbind, bound, 65536, MPOL_BIND, &nodes, 64, 0);
}
static void show_mbind(char *text) {
    int mode = -1;
    unsigned long nodes[16] = {0};
    syscall(SYS_get_mempolicy, &mode, nodes, 1024, bound, MPOL_F_ADDR);
    sprintf(text, "%d %lx", mode, nodes[0]);
}

/* Of files. */
static int unlinked, memfd, readable, deleted_fd;
static char *deleted;
static int set_unlinked(void) {
    struct timespec times[2] = {{1000000000, 5}, {1100000000, 123456789}};
    unlinked = open("unlinked-file", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (unlinked < 0 || write(unlinked, "content", 7) != 7 || fchmod(unlinked, 0741) || futimens(unlinked, times)) return -1;
    if (!geteuid() && fchown(unlinked, 12, 34)) return -1;
    return unlink("unlinked-file");
}
static void describe(char *text, int fd) {
    struct stat about;
    fstat(fd, &about);
    sprintf(text, "%o %ld %ld.%09ld %d %d seals %x", about.st_mode, about.st_size, about.st_mtim.tv_sec, about.st_mtim.tv_nsec, about.st_uid, about.st_gid, fcntl(fd, F_GET_SEALS));
}
/* A file on a disk knows of no seals. */
static void show_unlinked(char *text) { describe(text, unlinked); *strstr(text, " seals") = 0; }
static int set_memfd(void) {
    struct timespec times[2] = {{1000000000, 5}, {1200000000, 1}};
    memfd = memfd_create("attributes", MFD_ALLOW_SEALING);
    if (memfd < 0 || ftruncate(memfd, 10000) || fchmod(memfd, 0640) || futimens(memfd, times)) return -1;
    return fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
}
static void show_memfd(char *text) { describe(text, memfd); }
/* Only ever open for reading, and sealed all the same. */
static int set_readable(void) {
    int made = memfd_create("readable", MFD_ALLOW_SEALING);
    char path[64];
    if (made < 0 || ftruncate(made, 5000) || fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL)) return -1;
    sprintf(path, "/proc/self/fd/%d", made);
    readable = open(path, O_RDONLY);
    close(made);
    return readable < 0 ? -1 : 0;
}
static void show_readable(char *text) { describe(text, readable); }
/* A private mapping shows what is written to the file, where it was not changed itself. */
static int set_deleted(void) {
    static char bytes[12288];
    deleted_fd = open("deleted-file", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (deleted_fd < 0 || write(deleted_fd, bytes, sizeof bytes) != sizeof bytes || unlink("deleted-file")) return -1;
    deleted = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE, deleted_fd, 0);
    if (deleted == MAP_FAILED) return -1;
    deleted[5000] = 1;
    return 0;
}
static void show_deleted(char *text) {
    static char turn;
    turn++;
    if (pwrite(deleted_fd, &turn, 1, 100) != 1 || pwrite(deleted_fd, &turn, 1, 5000) != 1) turn = 0;
    sprintf(text, "%d %d", deleted[100] == turn, deleted[5000]);
}
static int hinted;
static int set_hint(void) {
    uint64_t hint = 4; /* RWH_WRITE_LIFE_LONG */
    hinted = open("hinted-file", O_RDWR | O_CREAT, 0600);
    return hinted < 0 ? -1 : fcntl(hinted, F_SET_RW_HINT, &hint);
}
static void show_hint(char *text) { uint64_t hint = 99; fcntl(hinted, F_GET_RW_HINT, &hint); out(text, "%ld", hint); }
static int pipes[2];
static int set_pipe(void) { return pipe(pipes) || fcntl(pipes[1], F_SETPIPE_SZ, 8192) < 0 || fcntl(pipes[0], F_SETFL, O_ASYNC) || fcntl(pipes[0], F_SETOWN, getpid()) || fcntl(pipes[0], F_SETSIG, SIGURG) ? -1 : 0; }
static void show_pipe(char *text) { sprintf(text, "%d %x %d", fcntl(pipes[1], F_GETPIPE_SZ), fcntl(pipes[0], F_GETFL) & ~0x8000 /* O_LARGEFILE, of what was opened by a path */, fcntl(pipes[0], F_GETSIG)); }
static int busy;
struct busy_poll { uint32_t usecs; uint16_t budget; uint8_t prefer, pad; };
static int set_epoll(void) {
    struct busy_poll wanted = {50, 8, 1, 0};
    busy = epoll_create1(0);
    return busy < 0 ? -1 : syscall(SYS_ioctl, busy, 0x40088a01, &wanted); /* EPIOCSPARAMS */
}
static void show_epoll(char *text) {
    struct busy_poll now = {0};
    syscall(SYS_ioctl, busy, 0x80088a02, &now);
    sprintf(text, "%u %u %u", now.usecs, now.budget, now.prefer);
}

/* Of sockets that are not bound. Value 0: only looked at. */
struct option { int level, name, value; };
static const struct option OPTIONS[] = {
    {SOL_SOCKET, SO_REUSEADDR, 1}, {SOL_SOCKET, SO_REUSEPORT, 1}, {SOL_SOCKET, SO_BROADCAST, 1}, {SOL_SOCKET, SO_KEEPALIVE, 1},
    {SOL_SOCKET, SO_OOBINLINE, 1}, {SOL_SOCKET, SO_PRIORITY, 5}, {SOL_SOCKET, SO_DONTROUTE, 1}, {SOL_SOCKET, SO_TIMESTAMP, 1},
    {SOL_SOCKET, SO_RCVLOWAT, 3}, {SOL_SOCKET, SO_SNDBUF, 50000}, {SOL_SOCKET, SO_RCVBUF, 60000}, {SOL_SOCKET, SO_NO_CHECK, 1},
    {SOL_SOCKET, SO_PASSCRED, 1}, {SOL_SOCKET, SO_PASSSEC, 1}, {SOL_SOCKET, SO_RXQ_OVFL, 1}, {SOL_SOCKET, SO_WIFI_STATUS, 1},
    {SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1}, {SOL_SOCKET, SO_INCOMING_CPU, 1}, {SOL_SOCKET, SO_ZEROCOPY, 1}, {SOL_SOCKET, SO_TXREHASH, 0},
    {SOL_SOCKET, SO_MARK, 77}, {SOL_SOCKET, SO_BUSY_POLL, 30}, {SOL_SOCKET, SO_PREFER_BUSY_POLL, 1}, {SOL_SOCKET, SO_MAX_PACING_RATE, 1000000},
    {SOL_SOCKET, SO_TIMESTAMPING, 8}, {SOL_SOCKET, SO_PEEK_OFF, 4}, {SOL_SOCKET, SO_BUSY_POLL_BUDGET, 16}, {SOL_SOCKET, SO_RESERVE_MEM, 0},
    {IPPROTO_TCP, TCP_NODELAY, 1}, {IPPROTO_TCP, TCP_MAXSEG, 1000}, {IPPROTO_TCP, TCP_CORK, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 100},
    {IPPROTO_TCP, TCP_KEEPINTVL, 11}, {IPPROTO_TCP, TCP_KEEPCNT, 4}, {IPPROTO_TCP, TCP_SYNCNT, 3}, {IPPROTO_TCP, TCP_LINGER2, 20},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, 3}, {IPPROTO_TCP, TCP_WINDOW_CLAMP, 40000}, {IPPROTO_TCP, TCP_QUICKACK, 1}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 9000},
    {IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 9999}, {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1},
    {IPPROTO_TCP, TCP_SAVE_SYN, 1}, {IPPROTO_TCP, TCP_INQ, 1}, {IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1},
    {IPPROTO_TCP, TCP_TX_DELAY, 0},
    {IPPROTO_IP, IP_TOS, 0x10}, {IPPROTO_IP, IP_TTL, 33}, {IPPROTO_IP, IP_RECVTTL, 1}, {IPPROTO_IP, IP_RECVTOS, 1}, {IPPROTO_IP, IP_RECVOPTS, 1},
    {IPPROTO_IP, IP_RETOPTS, 1}, {IPPROTO_IP, IP_PKTINFO, 1}, {IPPROTO_IP, IP_MTU_DISCOVER, 2}, {IPPROTO_IP, IP_RECVERR, 1},
    {IPPROTO_IP, IP_FREEBIND, 1}, {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1}, {IPPROTO_IP, IP_MULTICAST_TTL, 7}, {IPPROTO_IP, IP_MULTICAST_LOOP, 0},
    {IPPROTO_IP, IP_MULTICAST_ALL, 0}, {IPPROTO_IP, IP_RECVORIGDSTADDR, 1}, {IPPROTO_IP, IP_CHECKSUM, 1}, {IPPROTO_IP, IP_RECVFRAGSIZE, 1},
    {IPPROTO_IP, IP_TRANSPARENT, 1}, {IPPROTO_IP, IP_MINTTL, 5}, {IPPROTO_IP, 51 /* IP_LOCAL_PORT_RANGE */, (40100 << 16) | 40000},
    {IPPROTO_IPV6, IPV6_V6ONLY, 1}, {IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9}, {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 8}, {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, 1}, {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1}, {IPPROTO_IPV6, IPV6_RECVTCLASS, 1}, {IPPROTO_IPV6, IPV6_TCLASS, 0x20},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, 2}, {IPPROTO_IPV6, IPV6_RECVERR, 1}, {IPPROTO_IPV6, IPV6_DONTFRAG, 1}, {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 1},
    {IPPROTO_IPV6, IPV6_FREEBIND, 1}, {IPPROTO_UDP, 1 /* UDP_CORK */, 1}, {IPPROTO_UDP, 103 /* UDP_SEGMENT */, 1200}, {IPPROTO_UDP, 104 /* UDP_GRO */, 1},
    {IPPROTO_UDP, 101 /* UDP_NO_CHECK6_TX */, 1},
};
#define COUNT (int)(sizeof OPTIONS / sizeof *OPTIONS)
static int sockets[6];
static const int KINDS[6][2] = {{AF_INET, SOCK_STREAM}, {AF_INET, SOCK_DGRAM}, {AF_INET6, SOCK_STREAM}, {AF_INET6, SOCK_DGRAM}, {AF_UNIX, SOCK_STREAM}, {AF_UNIX, SOCK_DGRAM}};
static int set_sockets(void) {
    for (int s = 0; s < 6; s++) {
        sockets[s] = socket(KINDS[s][0], KINDS[s][1], 0);
        if (sockets[s] < 0) continue;
        for (int i = 0; i < COUNT; i++)
            /* Whatever fits this kind of socket and this user's rights. */
            if (OPTIONS[i].value || OPTIONS[i].level != SOL_SOCKET) setsockopt(sockets[s], OPTIONS[i].level, OPTIONS[i].name, &OPTIONS[i].value, sizeof(int));
        struct timeval wait = {3, 4000};
        struct linger linger = {1, 5};
        setsockopt(sockets[s], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
        setsockopt(sockets[s], SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        setsockopt(sockets[s], SOL_SOCKET, SO_BINDTODEVICE, "lo", 3);
        if (s == 0 || s == 2) setsockopt(sockets[s], IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    }
    return 0;
}
static void show_sockets(char *text) {
    *text = 0;
    for (int s = 0; s < 6; s++) {
        for (int i = 0; i < COUNT; i++) {
            long value = 0;
            socklen_t length = sizeof value;
            if (!getsockopt(sockets[s], OPTIONS[i].level, OPTIONS[i].name, &value, &length)) sprintf(text + strlen(text), "%d:%d.%d=%ld ", s, OPTIONS[i].level, OPTIONS[i].name, value);
        }
        char name[64] = "", device[64] = "";
        socklen_t length = sizeof name, other = sizeof device;
        getsockopt(sockets[s], IPPROTO_TCP, TCP_CONGESTION, name, &length);
        getsockopt(sockets[s], SOL_SOCKET, SO_BINDTODEVICE, device, &other);
        struct timeval wait = {0, 0};
        length = sizeof wait;
        getsockopt(sockets[s], SOL_SOCKET, SO_RCVTIMEO, &wait, &length);
        sprintf(text + strlen(text), "%d:%s,%s,%ld.%ld ", s, name, device, wait.tv_sec, wait.tv_usec);
    }
}

/* Of one thread. All but the last are set in the second thread, whose system calls are few. */
static int set_privileges(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }
static void show_privileges(char *text) { out(text, "%ld", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)); }
static int set_death(void) { return prctl(PR_SET_PDEATHSIG, SIGUSR2); }
static void show_death(char *text) { int value = -1; prctl(PR_GET_PDEATHSIG, &value); out(text, "%ld", value); }
static int set_slack(void) { return prctl(PR_SET_TIMERSLACK, 123456); }
static void show_slack(char *text) { out(text, "%ld", prctl(PR_GET_TIMERSLACK)); }
static int set_name(void) { return prctl(PR_SET_NAME, "second"); }
static void show_name(char *text) { prctl(PR_GET_NAME, text); }
static int set_tsc(void) { return prctl(PR_SET_TSC, PR_TSC_SIGSEGV); }
static void show_tsc(char *text) { int value = -1; prctl(PR_GET_TSC, &value); out(text, "%ld", value); }
static int set_cpuid(void) { return syscall(SYS_arch_prctl, 0x1012, 0); }
static void show_cpuid(char *text) { out(text, "%ld", syscall(SYS_arch_prctl, 0x1011, 0)); }
static int set_policy(void) { unsigned long nodes = 1; return syscall(SYS_set_mempolicy, MPOL_PREFERRED, &nodes, 64); }
static void show_policy(char *text) {
    int mode = -1;
    unsigned long nodes[16] = {0};
    syscall(SYS_get_mempolicy, &mode, nodes, 1024, 0, 0);
    sprintf(text, "%d %lx", mode, nodes[0]);
}
static int set_mce(void) { return prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0); }
static void show_mce(char *text) { out(text, "%ld", prctl(PR_MCE_KILL_GET, 0, 0, 0, 0)); }
static int set_flusher(void) { return prctl(57, 1, 0, 0, 0); }
static void show_flusher(char *text) { out(text, "%ld", prctl(58, 0, 0, 0, 0)); }
static int set_keepcaps(void) { return prctl(PR_SET_KEEPCAPS, 1); }
static void show_keepcaps(char *text) { out(text, "%ld", prctl(PR_GET_KEEPCAPS)); }
static int set_securebits(void) { return prctl(PR_SET_SECUREBITS, prctl(PR_GET_SECUREBITS) | 4); }
static void show_securebits(char *text) { out(text, "%lx", prctl(PR_GET_SECUREBITS)); }
static int set_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data)) return -1;
    if (!(data[0].permitted & 1 << CAP_SYS_TIME)) return errno = EPERM, -1;
    if (prctl(PR_CAPBSET_DROP, CAP_SYS_TTY_CONFIG)) return -1;
    data[0].inheritable |= 1 << CAP_NET_RAW;
    data[0].effective &= ~(1 << CAP_SYS_TIME);
    data[0].permitted &= ~(1 << CAP_SYS_TIME);
    if (syscall(SYS_capset, &header, data)) return -1;
    return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_RAW, 0, 0);
}
static void show_capabilities(char *text) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0}};
    syscall(SYS_capget, &header, data);
    text += sprintf(text, "%x %x %x %x %x %x ", data[0].effective, data[1].effective, data[0].permitted, data[1].permitted, data[0].inheritable, data[1].inheritable);
    for (int cap = 0; cap < 64; cap++)
        text += sprintf(text, "%d%d ", prctl(PR_CAPBSET_READ, cap), prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0));
}
static int set_speculation(void) { return prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0); }
static void show_speculation(char *text) { sprintf(text, "%d %d", prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0), prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, 0, 0, 0)); }
static int set_nice(void) { return setpriority(PRIO_PROCESS, 0, 5); }
static void show_nice(char *text) { out(text, "%ld", getpriority(PRIO_PROCESS, 0)); }
static int set_priority(void) { return syscall(SYS_ioprio_set, 1, 0, (2 << 13) | 6); }
static void show_priority(char *text) { out(text, "%ld", syscall(SYS_ioprio_get, 1, 0)); }
static int set_class(void) { struct sched_param none = {0}; return sched_setscheduler(0, SCHED_BATCH, &none); }
static void show_class(char *text) { out(text, "%ld", sched_getscheduler(0)); }
static int set_affinity(void) { cpu_set_t set; CPU_ZERO(&set); CPU_SET(0, &set); return sched_setaffinity(0, sizeof set, &set); }
static void show_affinity(char *text) { cpu_set_t set; sched_getaffinity(0, sizeof set, &set); sprintf(text, "%d %d", CPU_COUNT(&set), CPU_ISSET(0, &set)); }
static int set_stack(void) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    return sigaltstack(&stack, NULL);
}
static void show_stack(char *text) { stack_t stack; sigaltstack(NULL, &stack); sprintf(text, "%p %zu", stack.ss_sp, stack.ss_size); }
static int set_mask(void) { sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR1); sigaddset(&set, SIGRTMIN + 3); return pthread_sigmask(SIG_BLOCK, &set, NULL); }
static void show_mask(char *text) {
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    for (int signal = 1; signal < 65; signal++) text += sprintf(text, "%d", sigismember(&set, signal));
}
static void show_robust(char *text) { void *head; size_t length; syscall(SYS_get_robust_list, 0, &head, &length); sprintf(text, "%p %zu", head, length); }
static void show_clear(char *text) { long address = 0; prctl(40, &address); out(text, "%lx", address); }

#define ROW(name, what) {name, set_##what, show_##what, ""}
static struct row process[] = {
    ROW("subreaper", subreaper), ROW("oom_score_adj", oom), ROW("coredump_filter", coredump), ROW("THP disabled", thp),
    ROW("membarrier", membarrier), ROW("umask", umask), ROW("resource limit", limit), ROW("personality", personality),
    ROW("session", session), ROW("interval timer", interval), {"names, environment, auxiliary vector", set_nothing, show_names, ""},
    ROW("KSM for all memory", merge), ROW("mappings", mappings), ROW("memory policy of a mapping", mbind), ROW("unlinked file", unlinked), ROW("memfd", memfd),
    ROW("memfd open for reading", readable), ROW("private mapping of a deleted file", deleted), ROW("write life time", hint), ROW("pipe", pipe),
    ROW("busy polling of an epoll", epoll), ROW("sockets", sockets), ROW("MDWE", mdwe), ROW("mlockall", future),
};
static struct row thread[] = {
    ROW("timer slack", slack), ROW("thread name", name), ROW("parent death signal", death), ROW("memory policy", policy), ROW("machine check policy", mce),
    ROW("I/O flusher", flusher), ROW("keep capabilities", keepcaps), ROW("secure bits", securebits), ROW("capabilities of a thread", capabilities),
    ROW("speculation", speculation), ROW("nice", nice), ROW("I/O priority", priority), ROW("scheduling class", class),
    ROW("affinity", affinity), ROW("alternate signal stack", stack), ROW("signal mask", mask), {"robust list", set_nothing, show_robust, ""},
    {"clear-child-tid", set_nothing, show_clear, ""}, ROW("no_new_privs", privileges), ROW("cpuid faulting", cpuid), ROW("time stamp counter", tsc),
};
#define ROWS(table) (int)(sizeof table / sizeof *table)
static int lost;
static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;

static void set(struct row *row) {
    errno = 0;
    if (row->set()) {
        printf("skipped %s: %s\n", row->name, strerror(errno));
        row->show = NULL;
    } else {
        row->show(row->before);
    }
}

static void look(struct row *row) {
    static __thread char now[SIZE];
    if (!row->show) return;
    row->show(now);
    if (!strcmp(now, row->before)) return;
    pthread_mutex_lock(&printing);
    int at = 0;
    while (now[at] == row->before[at]) at++;
    at = at < 30 ? 0 : at - 30;
    printf("LOST %s: %.80s\n was: %.80s\n", row->name, now + at, row->before + at);
    fflush(stdout);
    lost++;
    pthread_mutex_unlock(&printing);
    strcpy(row->before, now);
}

static pthread_barrier_t turn;
static volatile int over;
static void *second(void *arg) {
    for (int i = 0; i < ROWS(thread); i++) set(thread + i);
    pthread_barrier_wait(&turn);
    for (;;) {
        pthread_barrier_wait(&turn);
        for (int i = 0; i < ROWS(thread); i++) look(thread + i);
        pthread_barrier_wait(&turn);
        if (over) return arg;
    }
}

#include "attribute_obstacles.h"

int main(int argc, char **argv) {
    struct timespec pause = {0, 20000000};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && !strcmp(argv[1], "rows")) {
        for (int i = 0; i < ROWS(process); i++) puts(process[i].name);
        for (int i = 0; i < ROWS(thread); i++) puts(thread[i].name);
        return 0;
    }
    if (argc != 3) return 2;
    if (strcmp(argv[1], "all")) {
        if (obstacle(argv[1])) printf("skipped %s: %s\n", argv[1], strerror(errno));
        puts("ready");
        while (access(argv[2], F_OK)) nanosleep(&pause, NULL);
        puts("OK");
        return 0;
    }
    signal(SIGUSR2, SIG_IGN);
    signal(SIGURG, SIG_IGN);
    pthread_t other;
    pthread_barrier_init(&turn, NULL, 2);
    pthread_create(&other, NULL, second, NULL);
    pthread_barrier_wait(&turn);
    for (int i = 0; i < ROWS(process); i++) set(process + i);
    puts("ready");
    for (int last = 0; !last;) {
        nanosleep(&pause, NULL);
        over = last = !access(argv[2], F_OK);
        for (int i = 0; i < ROWS(process); i++) look(process + i);
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);
        puts("looked");
    }
    pthread_join(other, NULL);
    if (lost) return 1;
    puts("OK");
    return 0;
}
