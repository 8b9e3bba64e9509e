/* Requests for a checkpoint: a signal, a file, the time; for a move: a file. A thread looks at file and clock, and removes old checkpoints; it makes no MPI call. What reaches one rank alone, as a
 * signal or mend_app_request(), it passes on to all by touching the file. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* A file touched again so soon is the same request, passed on by several ranks; where a checkpoint was taken in between it is one that is raised when the second is over. */
#define SAME_REQUEST_SECONDS 1.0

_Atomic int request_raised;
static _Atomic int from_here, ending;
static _Atomic int asked;         /* somebody asked for the checkpoint that is raised, not the time; 2: of this rank */
static _Atomic double known;      /* the watched file's time when it was last looked at */
static double answered, noticed;  /* its time at the newest request; when it was last seen to have another time; under `looking` */
static bool taken, once_more;     /* a checkpoint was taken since that request; the file was touched soon after both; under `looking` */
static _Atomic double taken_move; /* the time of the file that asked for the newest move: no new request, however long it is seen */
static _Atomic uint64_t retained;
static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, removing = PTHREAD_MUTEX_INITIALIZER, looking = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static bool running;
static double due;
static char watched[TEXT], watched_moves[TEXT];
static struct sigaction before;
static int signal_number;

static void raised(int number) {
    (void)number;
    atomic_fetch_or_explicit(&request_raised, REQUEST_CHECKPOINT, memory_order_relaxed);
    atomic_store_explicit(&from_here, 1, memory_order_relaxed);
    atomic_store_explicit(&asked, 2, memory_order_relaxed);
}

void request_raise(int what) {
    atomic_fetch_or_explicit(&request_raised, what, memory_order_relaxed);
}

void request_clear(int what) {
    atomic_fetch_and_explicit(&request_raised, ~what, memory_order_relaxed);
}

EXPORT void mend_app_request(void) {
    raised(0);
}

void requests_set_clock(double seconds) {
    pthread_mutex_lock(&lock);
    due = seconds > 0 ? seconds_now() + seconds : 0;
    /* The thread may wait for longer than that. */
    if (due > 0)
        pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

void requests_restart_clock(void) {
    requests_set_clock(app.settings.interval);
}

double requests_clock(void) {
    pthread_mutex_lock(&lock);
    double left = due > 0 ? due - seconds_now() : 0;
    left = due > 0 && left <= 0 ? 0.001 : left;
    pthread_mutex_unlock(&lock);
    return left;
}

static void retain(void) {
    pthread_mutex_lock(&removing);
    uint64_t newest = atomic_exchange(&retained, 0);
    if (newest)
        store_retain(app.settings.directory, app.settings.keep, newest);
    pthread_mutex_unlock(&removing);
}

/* Removing large files takes its time, which the program shall not wait for. It waits where the thread can't keep up: else checkpoints that come faster than old ones
 * are removed would fill the disk. */
void requests_retain(uint64_t newest) {
    if (atomic_exchange(&retained, newest))
        retain();
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* The file's time in seconds, or 0: there is none. */
static double touched(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0)
        return 0;
    return (double)status.st_mtim.tv_sec + 1e-9 * (double)status.st_mtim.tv_nsec;
}

static void touch(void) {
    int fd = open(watched, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || futimens(fd, NULL) != 0)
        complain("%s can't be touched: %s: the other ranks learn of a request for a checkpoint by that: name a file that can be written (setting watch)", watched, strerror(errno));
    if (fd >= 0)
        close(fd);
}

/* Somebody's, not the clock's. */
static void asked_at(double time) {
    answered = time;
    taken = once_more = false;
    int nobody = 0;
    atomic_compare_exchange_strong(&asked, &nobody, 1);
    request_raise(REQUEST_CHECKPOINT);
}

/* A file that was put there may have an older time, or that of the one before. */
static bool asks_anew(double time) {
    return time != 0 && time != atomic_load(&known) && (atomic_load(&known) == 0 || time > answered + SAME_REQUEST_SECONDS || time < answered - SAME_REQUEST_SECONDS);
}

static void look(void) {
    if (app.transport.rank == 0 && launcher_look())
        raised(0);
    double time = touched(watched);
    /* The others would take it for the request before if it came too soon after that. */
    bool too_soon = time == atomic_load(&known) && seconds_now() < noticed + 1.1 * SAME_REQUEST_SECONDS;
    if (!too_soon && atomic_exchange(&from_here, 0)) {
        /* Once more: a checkpoint may have begun between the two that a signal sets. */
        request_raise(REQUEST_CHECKPOINT);
        touch();
        asked_at(touched(watched));
        noticed = seconds_now();
        atomic_store(&known, answered);
    } else if (time != atomic_load(&known)) {
        if (asks_anew(time))
            asked_at(time);
        else if (time != 0)
            once_more = taken;
        noticed = seconds_now();
        atomic_store(&known, time);
    } else if (once_more && seconds_now() > noticed + SAME_REQUEST_SECONDS) {
        asked_at(time);
    }
}

void requests_taken(void) {
    requests_set_clock(0);
    pthread_mutex_lock(&looking);
    atomic_store(&from_here, 0);
    atomic_store(&asked, 0);
    request_clear(REQUEST_CHECKPOINT);
    taken = true;
    once_more = false;
    double time = touched(watched);
    if (time != atomic_load(&known)) {
        answered = time;
        noticed = seconds_now();
        atomic_store(&known, time);
    }
    if (app.transport.rank == 0)
        launcher_taking();
    pthread_mutex_unlock(&looking);
}

void requests_cancelled(void) {
    atomic_store(&from_here, 0);
    atomic_store(&asked, 0);
    request_clear(REQUEST_CHECKPOINT);
}

void requests_cancelled_unheard(double known_then) {
    pthread_mutex_lock(&looking);
    if (answered <= known_then + SAME_REQUEST_SECONDS && !atomic_load(&from_here)) {
        atomic_store(&asked, 0);
        request_clear(REQUEST_CHECKPOINT);
    }
    pthread_mutex_unlock(&looking);
}

double requests_asked(void) {
    pthread_mutex_lock(&looking);
    double newest = answered;
    pthread_mutex_unlock(&looking);
    return newest;
}

void requests_reached_all(void) {
    pthread_mutex_lock(&looking);
    atomic_store(&from_here, 0);
    pthread_mutex_unlock(&looking);
}

void requests_pass_on(void) {
    atomic_store(&from_here, 1);
}

static void *watch(void *data) {
    double known_move = *(double *)data;
    pthread_mutex_lock(&lock);
    while (!atomic_load(&ending)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        double wait = app.settings.watch_seconds, now = seconds_now();
        if (due > 0 && due - now < wait)
            wait = due > now ? due - now : 0.001;
        long nanoseconds = until.tv_nsec + (long)((wait - (double)(time_t)wait) * 1e9);
        until.tv_sec += (time_t)wait + nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        /* What was asked for while this thread was elsewhere has had no waiter to wake. */
        if (!atomic_load(&retained))
            pthread_cond_timedwait(&changed, &lock, &until);
        if (due > 0 && seconds_now() >= due) {
            due = 0;
            request_raise(REQUEST_CHECKPOINT);
        }
        pthread_mutex_unlock(&lock);
        retain();
        if (app.transport.rank == 0)
            places_look();
        double move = touched(watched_moves);
        if (move != known_move && move != 0 && move != atomic_load(&taken_move))
            request_raise(REQUEST_MOVE);
        known_move = move;
        pthread_mutex_lock(&looking);
        look();
        pthread_mutex_unlock(&looking);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

double requests_move_time(void) {
    return touched(watched_moves);
}

void requests_move_taken(double time) {
    atomic_store(&taken_move, time);
}

void requests_move_over(void) {
    request_clear(REQUEST_MOVE);
    double time = touched(watched_moves);
    if (time != 0 && time != atomic_load(&taken_move))
        request_raise(REQUEST_MOVE);
}

struct watched requests_known(void) {
    pthread_mutex_lock(&looking);
    struct watched now = {atomic_load(&known), answered, taken, once_more};
    pthread_mutex_unlock(&looking);
    return now;
}

int requests_start(const struct settings *s, const struct watched *old, char error[TEXT]) {
    static double move_at_start;
    if (s->watch[0])
        snprintf(watched, sizeof watched, "%s", s->watch);
    else
        snprintf(watched, sizeof watched, "%.900s/request", s->directory);
    signal_number = strcmp(s->signal, "USR1") == 0 ? SIGUSR1 : strcmp(s->signal, "USR2") == 0 ? SIGUSR2 : 0;
    if (signal_number) {
        struct sigaction action = {.sa_handler = raised, .sa_flags = SA_RESTART};
        sigaction(signal_number, NULL, &before);
        if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
            signal_number = 0;
            snprintf(error, TEXT, "signal = %s: the program handles that signal itself: name another one", s->signal);
            return MEND_APP_INVALID;
        }
        sigaction(signal_number, &action, NULL);
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &clock);
    pthread_condattr_destroy(&clock);
    plan_path(watched_moves);
    atomic_store(&known, old ? old->looked_at : touched(watched));
    answered = old ? old->answered : 0;
    taken = old && old->taken;
    once_more = old && old->once_more;
    noticed = -SAME_REQUEST_SECONDS * 2;
    /* A new process knows which one was taken. */
    move_at_start = old ? 0 : touched(watched_moves);
    atomic_store(&ending, 0);
    /* A process that arrives says that it is there when the move counts: until then the old one is asked. */
    if (app.transport.rank == 0 && !app.arriving)
        launcher_start(s, app.program, app.transport.size);
    sigset_t every, mask;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &mask);
    int done = pthread_create(&thread, NULL, watch, &move_at_start);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (done != 0) {
        snprintf(error, TEXT, "a thread can't be started: %s", strerror(done));
        return MEND_APP_SYSTEM;
    }
    running = true;
    return 0;
}

/* `over`: no safe point of this rank comes after it. */
static void stop(const char *why, bool over) {
    if (signal_number)
        sigaction(signal_number, &before, NULL);
    signal_number = 0;
    if (!running)
        return;
    pthread_mutex_lock(&lock);
    atomic_store(&ending, 1);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    running = false;
    if (app.transport.rank == 0) {
        /* What the last checkpoint was is known to those who copy it when the program has ended. */
        places_look();
        launcher_stop(why);
    }
    retain();
    /* Of what all ranks can see rank 0 tells. */
    bool raised_here = atomic_load(&request_raised) & REQUEST_CHECKPOINT && atomic_load(&asked) > (app.transport.rank != 0);
    if (over && (raised_here || (app.transport.rank == 0 && (once_more || asks_anew(touched(watched))))))
        complain("no checkpoint: the program has ended before a safe point answered the request");
    atomic_store(&asked, 0);
    request_clear(REQUEST_CHECKPOINT | REQUEST_MOVE);
}

void requests_stop(void) {
    stop("the program has ended", true);
}

/* Who sends a signal to all processes of the job reaches those that aren't ranks any more, too. */
void requests_leave(void) {
    before.sa_handler = SIG_IGN;
    stop("rank 0 has moved: ask again", false);
    /* What this process alone was asked for, and its thread hasn't passed on. */
    if (atomic_exchange(&from_here, 0))
        touch();
}
