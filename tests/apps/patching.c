/* Changes the C library's mmap as UCX does while MPI is loaded (ucm_bistro_apply_patch_atomic): for a while its first instruction jumps to itself, and the thread
   yields meanwhile. Nearly all the time is such a while, until a file `go` is there. Mappings of many kinds are made by the system call, so that lists of them grow.

   patching */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const unsigned char JUMP_TO_ITSELF[2] = {0xeb, 0xfe};

int main(void) {
    unsigned char before[sizeof JUMP_TO_ITSELF], *function = dlsym(RTLD_DEFAULT, "mmap");
    void *page = (void *)((uintptr_t)function & ~(uintptr_t)4095);
    if (!function || mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
    memcpy(before, function, sizeof before);
    puts("begun");
    fflush(stdout);
    for (int mappings = 0; access("go", F_OK);) {
        memcpy(function, JUMP_TO_ITSELF, sizeof before);
        for (int times = 0; times < 100; times++) {
            for (int more = 0; more < 8 && mappings < 20000; more++, mappings++)
                syscall(SYS_mmap, 0, 4096, mappings & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            sched_yield();
            usleep(2000);
        }
        memcpy(function, before, sizeof before);
    }
    puts("end");
    return 0;
}
