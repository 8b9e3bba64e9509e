// Finds the templates that image_sensor.c hid, which see for how both are started.
//
// Each rank reads the tile of its partner and the upper border of the next one, counts the pixels that belong to templates, and appends what it found to DIRECTORY/found-RANK.
// Standard output: one last line "analysis found=… digest=…". Exit code 2 on wrong usage, 3 if anything fails.

#include "file_couple.h"
#include "image.h"

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  meet(1);
  if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
  char path[4096];
  snprintf(path, sizeof path, "%s/image", argv[1]);
  const int image = open_file(path);
  snprintf(path, sizeof path, "%s/found-%d", argv[1], own_rank);
  const int found = open_file(path);
  uint32_t *tile = malloc(TILE_BYTES + BORDER_BYTES);
  if (!tile) fails("no memory");
  const int below = (own_rank + 1) % own_size;
  uint64_t pixels = 0, sum = 0;
  off_t at = 0;
  for (;;) {
    MPI_Status mine, next_tile;
    MPI_Recv(NULL, 0, MPI_UINT64_T, own_rank, MPI_ANY_TAG, others, &mine);
    MPI_Recv(NULL, 0, MPI_UINT64_T, below, MPI_ANY_TAG, others, &next_tile);
    if (mine.MPI_TAG == ENDS) break;
    get(image, tile, TILE_BYTES, (off_t)own_rank * TILE_BYTES);
    get(image, tile + WIDTH * HEIGHT, BORDER_BYTES, (off_t)below * TILE_BYTES);
    uint64_t of_image = 0;
    for (int i = 0; i < WIDTH * HEIGHT; i++) of_image += tile[i] & 1;
    if (mine.MPI_TAG != AGAIN) {
      for (int i = 0; i < WIDTH * (HEIGHT + BORDER_ROWS); i++) sum = sum * 31 + tile[i];
      pixels += of_image;
      put(found, &of_image, sizeof of_image, at);
      at += (off_t)sizeof of_image;
    }
    MPI_Send(NULL, 0, MPI_UINT64_T, own_rank, GOES_ON, others);
    MPI_Send(NULL, 0, MPI_UINT64_T, below, GOES_ON, others);
  }
  uint64_t all = 0;
  MPI_Reduce(&pixels, &all, 1, MPI_UINT64_T, MPI_SUM, 0, own);
  const uint64_t digest = digest_of(&sum, 1);
  if (own_rank == 0) printf("analysis found=%" PRIu64 " digest=%016" PRIx64 "\n", all / (SIDE * SIDE), digest);
  MPI_Finalize();
  return 0;
}
