// Pairs of bfloat16 numbers, multiplied by one instruction: each adds two products to a float32 sum.
#pragma once

#include <immintrin.h>

#include "ahead.h"
#include "vec.h"

namespace PINRAIL_NS {

// A row as pairs. Returns what its sums are to be multiplied with.
inline float to_pairs(const float* x, int k, uint16_t* to) {
  narrow(x, k, to);
  return 1;
}

// c[r][j] = sum over i of a[r][i] b[i][j], for R rows of pairs and a panel of 32 columns.
template <int R>
inline void pair_tile(const int32_t* a, long lda, const int32_t* b, int pairs, float* c, Ahead ahead) {
  __m512 sums[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int i = 0; i < pairs; i++) {
    ahead.fetch_two(i);
    __m512bh row[2];
    for (int v = 0; v < 2; v++) row[v] = (__m512bh)_mm512_loadu_si512(b + i * 32 + v * 16);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      __m512bh x = (__m512bh)_mm512_set1_epi32(a[r * lda + i]);
      for (int v = 0; v < 2; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, row[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 2; v++) _mm512_storeu_ps(c + r * 32 + v * 16, sums[r][v]);
}

}  // namespace PINRAIL_NS
