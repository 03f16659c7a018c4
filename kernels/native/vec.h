// Vectors of floats as wide as the instruction set that a file is compiled for, by GCC's and Clang's vector extension.
//
// Every file that includes this is compiled once for each instruction set, inside a namespace of its own, with:
//   PINRAIL_NS     the namespace
//   PINRAIL_WIDTH  floats in a vector
//   PINRAIL_ROWS   rows that a tile of two vectors keeps in registers
//   PINRAIL_DOT    defined where bfloat16 pairs are multiplied by one instruction (vdpbf16ps)
//   PINRAIL_HALVES defined where there is arithmetic in float16
// Products that are added are fused (-ffp-contract=fast), here and everywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

namespace PINRAIL_NS {

constexpr int W = PINRAIL_WIDTH;

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));

inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

inline vi load_i(const void* p) {
  vi v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// x in every lane. Not a loop over lanes: GCC would store them one by one.
inline vf splat(float x) { return x - vf{}; }

inline vf max(vf a, vf b) { return a > b ? a : b; }

// Lanes by halves, in an order that is always the same.
template <int N, int... I>
inline vf swapped(vf v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ N)...);
}

template <int N = W / 2>
inline float sum(vf v) {
  v += swapped<N>(v, std::make_integer_sequence<int, W>());
  if constexpr (N > 1) return sum<N / 2>(v);
  return v[0];
}

template <int N = W / 2>
inline float maximum(vf v) {
  v = max(v, swapped<N>(v, std::make_integer_sequence<int, W>()));
  if constexpr (N > 1) return maximum<N / 2>(v);
  return v[0];
}

// ---- bfloat16: the upper half of a float

inline float widen(uint16_t h) {
  uint32_t bits = uint32_t(h) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline vf load(const uint16_t* p) {
  vh h;
  std::memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vu) << 16);
}

// To the nearest, ties to even; a NaN stays one.
inline uint16_t narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void store(uint16_t* p, vf v) {
  vu bits = (vu)v;
  vu rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  vu quiet = bits >> 16 | 0x40;
  vh h = __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded, vh);
  std::memcpy(p, &h, sizeof h);
}

inline void narrow(const float* from, int n, uint16_t* to) {
  int i = 0;
  for (; i + W <= n; i += W) store(to + i, load(from + i));
  for (; i < n; i++) to[i] = narrow(from[i]);
}

inline float to_float(float x) { return x; }
inline float to_float(uint16_t x) { return widen(x); }
inline void put(float* p, float x) { *p = x; }
inline void put(uint16_t* p, float x) { *p = narrow(x); }

// ---- bfloat16 weights in memory: as they are, or in float16 where that is what they are multiplied in

#if defined(PINRAIL_HALVES)
inline uint16_t to_half(float x) {
  const _Float16 h = _Float16(x);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

inline float weight(uint16_t bits) {
  _Float16 h;
  std::memcpy(&h, &bits, 2);
  return float(h);
}
#else
inline float weight(uint16_t bits) { return widen(bits); }
#endif

// ---- functions

// e^x for x <= 88, within two units in the last place; 0 below -87.
//
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r by its Taylor series to the seventh power, 2^n by the exponent's bits.
inline vf exp(vf x) {
  const vf lowest = splat(-87.0f);
  vf clamped = max(x, lowest);
  clamped = clamped < splat(88.0f) ? clamped : splat(88.0f);
  const vf shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  vf n = clamped * splat(1.44269504088896341f) + shift;
  vi power = (vi)n;
  n -= shift;
  vf r = clamped - n * splat(0.693359375f);
  r = r - n * splat(-2.12194440e-4f);
  vf y = splat(1.9875691500e-4f);
  y = y * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * (r * r) + r + splat(1.0f);
  y = (vf)((vi)y + (power << 23));
  y = x < lowest ? splat(0.0f) : y;
  return x == x ? y : x;
}

inline vf silu(vf x) { return x / (splat(1.0f) + exp(-x)); }

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

}  // namespace PINRAIL_NS
