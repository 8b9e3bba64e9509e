/* The thread that writes a rank's file while the program computes on. It makes no MPI call. One file at a time: state 1 hands `writing` to the thread, state 2
 * hands it back. */
#include <pthread.h>
#include <signal.h>

#include "internal.h"

static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool running, ending;

static void write_it(struct writing *w) {
    w->result = rank_file_write(w->table, w->path, &app.settings, &w->bytes, w->error);
    atomic_store_explicit(&w->state, 2, memory_order_release);
}

static void *write_behind(void *data) {
    struct writing *w = data;
    pthread_mutex_lock(&lock);
    while (!ending) {
        if (atomic_load_explicit(&w->state, memory_order_acquire) != 1) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        write_it(w);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* The program's signals stay with its own threads. */
static int start_thread(struct writing *w) {
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int done = pthread_create(&thread, NULL, write_behind, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    running = done == 0;
    return done;
}

/* Starts to write, or without a thread writes at once. */
int writing_start(struct writing *w, bool behind) {
    if (behind && !running && start_thread(w) != 0)
        behind = false;
    if (!behind) {
        write_it(w);
        return 0;
    }
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&w->state, 1, memory_order_release);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

void writing_stop(void) {
    if (!running)
        return;
    pthread_mutex_lock(&lock);
    ending = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    running = ending = false;
}
