// What image_sensor.c and image_analysis.c know of images: a tile's size, and templates, squares whose pixels have the lowest bit set.

#include <stdint.h>

enum { WIDTH = 1024, HEIGHT = 512, TILE_BYTES = WIDTH * HEIGHT * 4, BORDER_ROWS = 64, BORDER_BYTES = BORDER_ROWS * WIDTH * 4, SIDE = 12, TEMPLATES = 50 };

static inline uint64_t next(uint64_t *drawn) {
  *drawn = *drawn * 6364136223846793005u + 1442695040888963407u;
  return *drawn;
}
