// Pairs of float16 numbers: twice as many products an instruction as in float32, added up in float16 32 at a time.
//
// A row, and the weights of an output, are first divided by a power of two that makes the largest one 1 to 2. So a
// bfloat16 weight is kept exactly unless it is 2^16 times smaller than its output's largest, a row's numbers to 11 bits
// (bfloat16 has 8), and no sum of 32 products is above 128. Those sums have an error of some 6e-4 of their size; what
// they add up to is float32.
#pragma once

#include <immintrin.h>

#include "ahead.h"
#include "vec.h"

namespace PINRAIL_NS {

constexpr int CHAIN = 32;  // products that are added in float16

// The largest power of two that is no more than `x` > 0; 1 for what is none.
inline float power_of_two(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits &= 0x7f800000;
  if (bits == 0 || bits == 0x7f800000) return 1;
  std::memcpy(&x, &bits, 4);
  return x;
}

// A row as pairs. Returns what its sums are to be multiplied with.
inline float to_pairs(const float* x, int k, uint16_t* to) {
  vf most{};
  int i = 0;
  for (; i + W <= k; i += W) {
    const vf v = load(x + i);
    most = max(max(v, -v), most);
  }
  float largest = maximum(most);
  for (int j = i; j < k; j++) largest = std::fabs(x[j]) > largest ? std::fabs(x[j]) : largest;
  const float scale = power_of_two(largest), by = 1 / scale;
  for (i = 0; i + W <= k; i += W)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), (__m256i)_mm512_cvtxps_ph((__m512)(load(x + i) * splat(by))));
  for (; i < k; i++) to[i] = to_half(x[i] * by);
  return scale;
}

// Adds a vector of sums to those in float32.
inline void add_widened(float* to, __m512h sums) {
  const __m512i bits = _mm512_castph_si512(sums);
  const __m512 low = _mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_castsi512_si256(bits)));
  const __m512 high = _mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_extracti64x4_epi64(bits, 1)));
  _mm512_storeu_ps(to, _mm512_add_ps(low, _mm512_loadu_ps(to)));
  _mm512_storeu_ps(to + 16, _mm512_add_ps(high, _mm512_loadu_ps(to + 16)));
}

// Sixteen outputs, of each of which two sums stand side by side.
inline void join_sums(const float* from, float* to) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + 16);
  _mm512_storeu_ps(to, _mm512_add_ps(_mm512_permutex2var_ps(low, evens, high), _mm512_permutex2var_ps(low, odds, high)));
}

// c[r][j] = sum over i of a[r][i] b[i][j], for R rows of pairs and a panel of 32 columns.
template <int R>
inline void pair_tile(const int32_t* a, long lda, const int32_t* b, int pairs, float* c, Ahead ahead) {
  alignas(64) float wide[R][64] = {};  // of each output two sums
  for (int first = 0; first < pairs; first += CHAIN) {
    const int end = pairs - first < CHAIN ? pairs : first + CHAIN;
    __m512h sums[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ph();
    for (int i = first; i < end; i++) {
      ahead.fetch_two(i);
      const __m512h left = _mm512_loadu_ph(b + i * 32), right = _mm512_loadu_ph(b + i * 32 + 16);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const __m512h x = _mm512_castsi512_ph(_mm512_set1_epi32(a[r * lda + i]));
        sums[r][0] = _mm512_fmadd_ph(x, left, sums[r][0]);
        sums[r][1] = _mm512_fmadd_ph(x, right, sums[r][1]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
      for (int v = 0; v < 2; v++) add_widened(wide[r] + 32 * v, sums[r][v]);
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 2; v++) join_sums(wide[r] + 32 * v, c + r * 32 + 16 * v);
}

}  // namespace PINRAIL_NS
