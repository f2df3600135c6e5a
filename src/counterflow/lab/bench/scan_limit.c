/* The limit that scans are compared with: the benchmark join, |x - a| <= w and |y - b| <= t, by hand in AVX2.
 * Four probes at a time against blocks of the window that stay in the first cache; pairs are written out. */
#include <immintrin.h>
#include <stdint.h>

#define BLOCK 4096
#define TILE 4

static inline int matches(int32_t x, float y, int32_t a, float b, int32_t w, float t) {
  float e = y - b;
  return (uint32_t)x - (uint32_t)(a - w) <= (uint32_t)(2 * w) && (e < 0 ? -e : e) <= t;
}

#define EMIT(probe, row) \
  do { \
    if (found < capacity) { out_probe[found] = (probe); out_row[found] = (row); } \
    found++; \
  } while (0)

/* Which of the eight rows in vx, vy match probe k of the tile. */
#define TEST(k) \
  __m256i d##k = _mm256_sub_epi32(vx, low##k); \
  __m256 in_x##k = _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_min_epu32(d##k, width), d##k)); \
  __m256 in_y##k = _mm256_cmp_ps(_mm256_andnot_ps(sign, _mm256_sub_ps(vy, b##k)), limit, _CMP_LE_OQ); \
  __m256 hit##k = _mm256_and_ps(in_x##k, in_y##k);

#define PROBE(k) \
  __m256i low##k = _mm256_set1_epi32(a[p + k] - w); \
  __m256 b##k = _mm256_set1_ps(b[p + k]);

/* Returns how many pairs there are; the first `capacity` of them are written. */
int64_t scan(const int32_t *x, const float *y, int64_t rows, const int32_t *a, const float *b, int64_t probes, int32_t w,
             float t, int64_t *out_probe, int64_t *out_row, int64_t capacity) {
  int64_t found = 0;
  const __m256i width = _mm256_set1_epi32(2 * w);
  const __m256 limit = _mm256_set1_ps(t), sign = _mm256_set1_ps(-0.0f);
  for (int64_t block = 0; block < rows; block += BLOCK) {
    int64_t end = block + BLOCK < rows ? block + BLOCK : rows, p = 0;
    for (; p + TILE <= probes; p += TILE) {
      PROBE(0) PROBE(1) PROBE(2) PROBE(3)
      int64_t j = block;
      for (; j + 8 <= end; j += 8) {
        __m256i vx = _mm256_loadu_si256((const __m256i *)(x + j));
        __m256 vy = _mm256_loadu_ps(y + j);
        TEST(0) TEST(1) TEST(2) TEST(3)
        __m256 any = _mm256_or_ps(_mm256_or_ps(hit0, hit1), _mm256_or_ps(hit2, hit3));
        if (__builtin_expect(!_mm256_testz_ps(any, any), 0)) {
          int masks[TILE] = {_mm256_movemask_ps(hit0), _mm256_movemask_ps(hit1), _mm256_movemask_ps(hit2),
                             _mm256_movemask_ps(hit3)};
          for (int k = 0; k < TILE; k++)
            for (int mask = masks[k]; mask; mask &= mask - 1) EMIT(p + k, j + __builtin_ctz(mask));
        }
      }
      for (; j < end; j++)
        for (int k = 0; k < TILE; k++)
          if (matches(x[j], y[j], a[p + k], b[p + k], w, t)) EMIT(p + k, j);
    }
    for (; p < probes; p++)
      for (int64_t j = block; j < end; j++)
        if (matches(x[j], y[j], a[p], b[p], w, t)) EMIT(p, j);
  }
  return found;
}
