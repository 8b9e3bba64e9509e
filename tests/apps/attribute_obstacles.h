/* Of attributes.c: what cannot be saved, one thing at a time. A thread that makes one waits at `turn` when it has done so. */

#include <linux/landlock.h>
#include <sys/io.h>
#include <sys/rseq.h>
#include <ucontext.h>

static int filter(unsigned flags) {
    static struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, allow};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static void *own_rseq(void *arg) {
    static __attribute__((aligned(32))) char area[32];
    if (__rseq_size) syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset, 32, 1, 0x53053053);
    if (syscall(SYS_rseq, area, 32, 0, 0x53053053)) printf("skipped: rseq %s\n", strerror(errno));
    pthread_barrier_wait(&turn);
    pause();
    return arg;
}

static void *filtered(void *arg) {
    if (filter(0)) printf("skipped: seccomp %s\n", strerror(errno));
    pthread_barrier_wait(&turn);
    pause();
    return arg;
}

static int confine(void) {
    struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_SOCK};
    int fd = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return fd < 0 ? -1 : syscall(SYS_landlock_restrict_self, fd, 0) | close(fd);
}

static void *confined(void *arg) {
    if (confine()) printf("skipped: landlock %s\n", strerror(errno));
    pthread_barrier_wait(&turn);
    pause();
    return arg;
}

/* System calls outside of this code are dispatched: to a handler, which makes them. */
long dispatched_call(const greg_t *registers);
void dispatched_end_of_handler(greg_t frame) __attribute__((noreturn));
extern char dispatched_return[], dispatched_end[];
__asm__(".text\n.globl dispatched_call\ndispatched_call:\n"
        "mov %rdi, %r11\n"
        "mov 104(%r11), %rax\nmov 64(%r11), %rdi\nmov 72(%r11), %rsi\nmov 96(%r11), %rdx\nmov 16(%r11), %r10\n"
        "mov 0(%r11), %r8\nmov 8(%r11), %r9\nsyscall\nret\n"
        ".globl dispatched_end_of_handler\ndispatched_end_of_handler:\nmov %rdi, %rsp\n"
        ".globl dispatched_return\ndispatched_return:\nmov $15, %eax\nsyscall\nud2\n.globl dispatched_end\ndispatched_end:\n");
static volatile char selector; /* 0: calls pass; 1: they are dispatched */
static volatile long rounds;
static void on_dispatch(int signal, siginfo_t *info, void *frame) {
    greg_t *registers = ((ucontext_t *)frame)->uc_mcontext.gregs;
    (void)signal, (void)info;
    /* The end of another handler: its frame is where the stack pointer was. */
    if (registers[REG_RAX] == SYS_rt_sigreturn) dispatched_end_of_handler(registers[REG_RSP]);
    registers[REG_RAX] = dispatched_call(registers);
}
static void *dispatching(void *arg) {
    struct { void (*handler)(int, siginfo_t *, void *); unsigned long flags; void *restorer; unsigned long mask; } action =
        {on_dispatch, SA_SIGINFO | SA_NODEFER | 0x04000000 /* SA_RESTORER */, dispatched_return, 0};
    char *start = (char *)dispatched_call;
    if (syscall(SYS_rt_sigaction, SIGSYS, &action, NULL, 8) || prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, start, dispatched_end - start, &selector))
        printf("skipped: dispatch %s\n", strerror(errno));
    pthread_barrier_wait(&turn);
    if (!arg) pause();
    selector = 1;
    while (!over) rounds++;
    return arg;
}

/* Makes one thing that cannot be saved. */
static int obstacle(const char *what) {
    pthread_t other;
    pthread_barrier_init(&turn, NULL, 2);
    if (!strcmp(what, "seccomp")) return filter(1 /* all threads */);
    if (!strcmp(what, "seccomp-thread")) return pthread_create(&other, NULL, filtered, NULL), pthread_barrier_wait(&turn), 0;
    if (!strcmp(what, "rseq")) return pthread_create(&other, NULL, own_rseq, NULL), pthread_barrier_wait(&turn), 0;
    if (!strcmp(what, "keyring")) return syscall(SYS_keyctl, 0, -2 /* process keyring */, 1) < 0 ? -1 : 0;
    if (!strcmp(what, "landlock")) return confine();
    if (!strcmp(what, "landlock-thread")) return pthread_create(&other, NULL, confined, NULL), pthread_barrier_wait(&turn), 0;
    if (!strncmp(what, "dispatch", 8)) {
        int all = !strcmp(what, "dispatch-all");
        pthread_create(&other, NULL, dispatching, all ? &turn : NULL);
        pthread_barrier_wait(&turn);
        while (all && !rounds) sched_yield();
        return 0;
    }
    if (!strcmp(what, "ioperm")) return ioperm(0x80, 1, 1);
    if (!strcmp(what, "iopl")) return iopl(3);
    if (!strcmp(what, "namespace")) return geteuid() ? unshare(CLONE_NEWUSER) : unshare(CLONE_NEWUTS);
    if (!strcmp(what, "chroot")) return chroot("/proc/self/cwd");
    if (!strcmp(what, "user")) return setresuid(-1, 12345, -1);
    if (!strcmp(what, "lease")) {
        int fd = open("leased", O_RDWR | O_CREAT, 0600);
        return fcntl(fd, F_SETLEASE, F_WRLCK);
    }
    if (!strcmp(what, "dnotify")) {
        signal(SIGIO, SIG_IGN);
        return fcntl(open(".", O_RDONLY | O_DIRECTORY), F_NOTIFY, DN_CREATE | DN_MULTISHOT);
    }
    if (!strcmp(what, "mqueue")) {
        long attributes[8] = {0, 2, 16};
        int fd = syscall(SYS_mq_open, "mend-attributes", O_RDWR | O_CREAT, 0600, attributes);
        syscall(SYS_mq_unlink, "mend-attributes");
        return fd < 0 ? -1 : 0;
    }
    if (!strcmp(what, "secretmem")) {
        int fd = syscall(447, 0);
        return fd < 0 || ftruncate(fd, 4096) ? -1 : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : close(fd);
    }
    if (!strcmp(what, "ldt")) {
        struct { unsigned entry, base, limit, flags; } descriptor = {0, 0, 0xfffff, 0x51};
        return syscall(SYS_modify_ldt, 1, &descriptor, sizeof descriptor);
    }
    if (!strcmp(what, "io_uring")) {
        char parameters[120] = {0};
        return syscall(425, 4, parameters) < 0 ? -1 : 0;
    }
    if (!strcmp(what, "pkey")) {
        int key = syscall(SYS_pkey_alloc, 0, 0);
        void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return key < 0 ? -1 : syscall(SYS_pkey_mprotect, page, 4096, PROT_READ, key);
    }
    errno = EINVAL;
    return -1;
}
