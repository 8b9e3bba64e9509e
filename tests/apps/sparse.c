// A process that has mapped much more than it uses, for measuring that this costs nothing.
//
//   sparse GIB MIB
//
// Maps GIB GiB of private memory, one by one, and uses a page of each; fills MIB MiB more with zeros. Says "ready", and obeys
// standard input, line by line:
//
//   scan  asks the kernel which pages there are (PAGEMAP_SCAN), looks whether these hold anything but zeros, and says
//         "scan MICROSECONDS LOOKING_US PAGES HELD": of the questions, of the looking, pages that there are, those that hold something
//
// Ends with its input.

#define _GNU_SOURCE
#include "floor.h"
#include <stdint.h>
#include <sys/ioctl.h>

// linux/fs.h has these since 6.7.
struct region {
  uint64_t start, end, categories;
};
struct scan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, all_of, any_of, reported;
};
#define SCAN _IOWR('f', 16, struct scan)
#define PRESENT (1u << 3)

enum { PAGE = 4096, REGIONS = 1024 };
static struct region regions[REGIONS];
static char zeros[PAGE];

int main(int argc, char **argv) {
  size_t count = argc > 1 ? (size_t)atol(argv[1]) : 0, length = (argc > 2 ? (size_t)atol(argv[2]) : 0) << 20;
  size_t spaces = count + (length != 0);
  struct { char *start; size_t length; } *space = calloc(spaces + 1, sizeof *space);
  for (size_t i = 0; i < spaces; i++) {
    space[i].length = i < count ? (size_t)1 << 30 : length;
    space[i].start = mmap(NULL, space[i].length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space[i].start == MAP_FAILED) fail("mmap");
    madvise(space[i].start, space[i].length, MADV_NOHUGEPAGE);
    if (i < count) space[i].start[12345] = 1;
    else memset(space[i].start, 0, length);
  }
  puts("ready");
  fflush(stdout);
  int pagemap = open("/proc/self/pagemap", O_RDONLY);
  if (pagemap < 0) fail("/proc/self/pagemap");
  for (char line[64]; fgets(line, sizeof line, stdin) && line[0] == 's';) {
    double asking = 0, looking = 0;
    size_t pages = 0, held = 0;
    for (size_t i = 0; i < spaces; i++) {
      uint64_t end = (uintptr_t)space[i].start + space[i].length;
      for (uint64_t at = (uintptr_t)space[i].start; at < end;) {
        struct scan scan = {sizeof scan, 0, at, end, 0, (uintptr_t)regions, REGIONS, 0, 0, PRESENT, 0, PRESENT};
        double start = nanoseconds();
        long found = ioctl(pagemap, SCAN, &scan);
        double middle = nanoseconds();
        if (found < 0) fail("PAGEMAP_SCAN");
        for (long r = 0; r < found; r++) {
          for (char *page = (char *)(uintptr_t)regions[r].start; page < (char *)(uintptr_t)regions[r].end; page += PAGE)
            pages++, held += memcmp(page, zeros, PAGE) != 0;
        }
        asking += middle - start;
        looking += nanoseconds() - middle;
        at = scan.walk_end;
      }
    }
    printf("scan %.0f %.0f %zu %zu\n", asking / 1e3, looking / 1e3, pages, held);
    fflush(stdout);
  }
  return 0;
}
