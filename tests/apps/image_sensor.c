// Makes images that another program of the job, image_analysis.c, looks through: after the third benchmark of HPC challenge's SSCA series, sensor processing and knowledge
// formation.
//
//   mend run -n N --data SPACE:/mnt:rw image_sensor DIRECTORY IMAGES [STOP] : -n N image_analysis DIRECTORY
//
// Each image is a column of N tiles. A rank makes one tile of noise, hides templates in it, and writes it to DIRECTORY/image; then it tells those that read it: its partner, and the
// one above, which reads the upper border of this tile, too. It waits until both have read it. Before the last image
// others are made, which count for nothing, until the file STOP exists. Standard output: one last line "sensor hid=…", the number of templates.
// Exit code 2 on wrong usage, 3 if anything fails.

#include "file_couple.h"
#include "image.h"

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  meet(0);
  if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
  char path[4096];
  snprintf(path, sizeof path, "%s/image", argv[1]);
  const int image = open_file(path);
  const long images = strtol(argv[2], NULL, 10);
  const char *until = argc > 3 ? argv[3] : NULL;
  uint32_t *tile = malloc(TILE_BYTES);
  if (!tile) fails("no memory");
  const int above = (own_rank + own_size - 1) % own_size;
  uint64_t hid = 0, all = 0, again = 0;
  for (long number = 0; number < images;) {
    const int how = number + 1 == images && waits_for(until) ? AGAIN : GOES_ON;
    again += how == AGAIN;
    uint64_t drawn = (how == AGAIN ? again << 32 : 0) ^ (uint64_t)number << 20 ^ (uint64_t)own_rank << 4 ^ 1;
    // The lowest bit is what templates have and noise has not.
    for (int i = 0; i < WIDTH * HEIGHT; i++) tile[i] = (uint32_t)(next(&drawn) >> 32) & ~1u;
    for (int k = 0; k < TEMPLATES; k++) {
      const int x = (int)(next(&drawn) % (WIDTH - SIDE)), y = (int)(next(&drawn) % (HEIGHT - SIDE));
      int there = 0;
      for (int i = 0; i < SIDE * SIDE; i++) there |= (int)(tile[(y + i / SIDE) * WIDTH + x + i % SIDE] & 1);
      if (there) continue;
      for (int i = 0; i < SIDE * SIDE; i++) tile[(y + i / SIDE) * WIDTH + x + i % SIDE] |= 1;
      hid += how != AGAIN;
    }
    put(image, tile, TILE_BYTES, (off_t)own_rank * TILE_BYTES);
    MPI_Send(NULL, 0, MPI_UINT64_T, own_rank, how, others);
    MPI_Send(NULL, 0, MPI_UINT64_T, above, how, others);
    MPI_Recv(NULL, 0, MPI_UINT64_T, own_rank, GOES_ON, others, MPI_STATUS_IGNORE);
    MPI_Recv(NULL, 0, MPI_UINT64_T, above, GOES_ON, others, MPI_STATUS_IGNORE);
    number += how != AGAIN;
  }
  MPI_Send(NULL, 0, MPI_UINT64_T, own_rank, ENDS, others);
  MPI_Send(NULL, 0, MPI_UINT64_T, above, ENDS, others);
  MPI_Reduce(&hid, &all, 1, MPI_UINT64_T, MPI_SUM, 0, own);
  if (own_rank == 0) printf("sensor hid=%" PRIu64 "\n", all);
  MPI_Finalize();
  return 0;
}
