/* Plays the daemon's rank supervisor: a PID namespace (inside a user namespace unless root) in which a program gets a pid of choice.
 *
 *   supervisor [-c] PID PROGRAM ARGUMENTS...
 *
 * -c keeps the capabilities that a restorer needs. Exits as the program does, 128 + signal if it was killed. The
 * namespace dies with its init, which dies with this process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what) {
    fprintf(stderr, "supervisor: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) die(path);
    close(fd);
}

static void capabilities(int keep) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data)) die("capget");
    for (int i = 0; i < 2; i++) {
        if (keep) data[i].inheritable = data[i].permitted;
        else data[i].inheritable = data[i].permitted = data[i].effective = 0;
    }
    if (syscall(SYS_capset, &header, data)) die("capset");
    if (keep)
        for (int cap = 0; cap < 41; cap++) prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
}

static int status_of(pid_t child) {
    int status;
    for (;;) {
        pid_t ended = wait(&status);
        if (ended < 0) die("wait");
        if (ended == child) break;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    int keep = argc > 1 && !strcmp(argv[1], "-c");
    argv += 1 + keep;
    /* Whoever runs the tests may have leaked descriptors. */
    if (!keep) close_range(3, ~0U, 0);
    uid_t uid = getuid();
    gid_t gid = getgid();
    if (uid != 0) {
        char text[64];
        if (unshare(CLONE_NEWUSER)) die("unshare user");
        put("/proc/self/setgroups", "deny");
        snprintf(text, sizeof text, "%u %u 1", uid, uid);
        put("/proc/self/uid_map", text);
        snprintf(text, sizeof text, "%u %u 1", gid, gid);
        put("/proc/self/gid_map", text);
    }
    if (unshare(CLONE_NEWPID)) die("unshare pid");
    pid_t init = fork();
    if (init < 0) die("fork");
    if (init > 0) return status_of(init);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t wanted = atoi(argv[0]);
    struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&wanted, .set_tid_size = 1};
    pid_t child = syscall(SYS_clone3, &args, sizeof args);
    if (child < 0) die("clone3");
    if (child == 0) {
        if (uid != 0) capabilities(keep);
        execvp(argv[1], argv + 1);
        die(argv[1]);
    }
    return status_of(child);
}
