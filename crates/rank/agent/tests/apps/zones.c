/* Memory where the restorer could work: in as many of its zones of addresses as the first argument says. V8, which chooses addresses
 * itself, had some in the first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* As mend_image::ZONES: the start of each, a place in its middle, its last page. */
static const unsigned long ZONES[][2] = {
    {0x1f0000000000, 0x200000000000}, {0x470000000000, 0x480000000000}, {0x2d0000000000, 0x2e0000000000}};
enum { PLACES = 3, SIZE = 4096 };

static char *place(int zone, int which) {
    unsigned long start = ZONES[zone][0], end = ZONES[zone][1];
    return (char *)(which == 0 ? start : which == 1 ? (start + end) / 2 : end - SIZE);
}

int main(int argc, char **argv) {
    int zones = argc > 1 ? atoi(argv[1]) : 1, ticks = argc > 2 ? atoi(argv[2]) : 100;
    for (int zone = 0; zone < zones; zone++) {
        for (int which = 0; which < PLACES; which++) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            if (mmap(place(zone, which), SIZE, PROT_READ | PROT_WRITE, flags, -1, 0) != place(zone, which)) {
                perror("mmap");
                return 1;
            }
            memset(place(zone, which), 1 + zone * PLACES + which, SIZE);
        }
    }
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        usleep(20000);
        for (int zone = 0; zone < zones; zone++) {
            for (int which = 0; which < PLACES; which++) {
                for (int at = 0; at < SIZE; at++) {
                    if (place(zone, which)[at] != 1 + zone * PLACES + which) {
                        printf("LOST in zone %d, place %d\n", zone, which);
                        return 1;
                    }
                }
            }
        }
        printf("tick %d\n", i);
        fflush(stdout);
    }
    puts("OK");
    return 0;
}
