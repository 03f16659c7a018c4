// From a checkpoint's matrices to packed panels, quantised on the way.
//
//   int8   w = q s,      q = round(w / s),        s = max |w| / 127           over an output's inputs
//   int4   w = q s + m,  q = round((w - m) / s),  s = (max w - m) / 15, m = min w  over a group of an output's inputs
//
// The rounding is to the nearest, ties to even. Where all weights are equal the scale is 0.
#pragma once

#include <algorithm>

#include "gemm.h"
#include "table.h"

namespace PINRAIL_NS {

using pinrail::Packing;
using pinrail::Source;

inline float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(float(fraction), -24);
  uint32_t bits = sign | (exponent == 31 ? 0xff : exponent + 112) << 23 | fraction << 13;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline void read_row(const Source& source, int row, int k, float* to) {
  const size_t first = size_t(row) * k;
  const uint16_t* halves = static_cast<const uint16_t*>(source.data) + first;
  if (source.kind == pinrail::F32) std::memcpy(to, static_cast<const float*>(source.data) + first, size_t(k) * 4);
  if (source.kind == pinrail::BF16) for (int i = 0; i < k; i++) to[i] = widen(halves[i]);
  if (source.kind == pinrail::F16) for (int i = 0; i < k; i++) to[i] = half_to_float(halves[i]);
}

// Output `n` of a matrix that sources make up: one after another, or two of them by turns of `turn` outputs.
inline void read_output(const Source* sources, int turn, int n, int k, float* to) {
  int source = 0;
  if (turn) {
    source = n / turn % 2;
    n = n / (2 * turn) * turn + n % turn;
  } else {
    while (n >= sources[source].rows) n -= sources[source++].rows;
  }
  read_row(sources[source], n, k, to);
}

inline float largest(const float* x, int n) {
  float most = 0;
  for (int i = 0; i < n; i++) most = std::max(most, std::fabs(x[i]));
  return most;
}

inline int quantised(float x, float scale, int least, int most) {
  return scale > 0 ? std::clamp(int(std::lrintf(x / scale)), least, most) : 0;
}

// One word of an output's inputs.
template <int KIND>
inline int32_t packed_word(const float* x, float scale, float least) {
  uint32_t word = 0;
  if constexpr (KIND == pinrail::F32) std::memcpy(&word, x, 4);
  if constexpr (KIND == pinrail::INT8)
    for (int t = 0; t < 4; t++) word |= uint32_t(quantised(x[t], scale, -127, 127) & 0xff) << (8 * t);
  if constexpr (KIND == pinrail::INT4)
    for (int t = 0; t < 8; t++) word |= uint32_t(quantised(x[t] - least, scale, 0, 15)) << (4 * t);
  return int32_t(word);
}

// One output's inputs, rounded to bfloat16, as pairs in the form in which they are multiplied. Returns their scale.
inline float weight_pairs(float* x, int k, uint16_t* to) {
  narrow(x, k, to);
#if defined(PINRAIL_HALVES)
  for (int i = 0; i < k; i++) x[i] = widen(to[i]);
  return to_pairs(x, k, to);
#else
  return 1;
#endif
}

// One output's inputs into column `j` of a panel. x: [2 k], of which the first half are the inputs, which are lost.
inline void pack_pairs(const Matrix& m, float* x, int j, int32_t* words, float* scales) {
  uint16_t* pairs = reinterpret_cast<uint16_t*>(x + m.k);
  scales[j] = weight_pairs(x, m.k, pairs);
  for (int i = 0; i < m.k; i += 2) std::memcpy(words + size_t(i) / 2 * PANEL + j, pairs + i, 4);
}

// One output's inputs into column `j` of a panel.
template <int KIND>
inline void pack_output(const Matrix& m, const float* x, int j, int32_t* words, float* scales) {
  const int per_word = inputs_per_word(KIND), stretch = KIND == pinrail::INT4 ? m.group : m.k;
  for (int first = 0; first < m.k; first += stretch, scales += 2 * PANEL) {
    float scale = 0, least = 0;
    if (KIND == pinrail::INT8) scale = scales[j] = largest(x, m.k) / 127;
    if (KIND == pinrail::INT4) {
      const auto [low, high] = std::minmax_element(x + first, x + first + stretch);
      scales[PANEL + j] = least = *low;
      scales[j] = scale = (*high - *low) / 15;
    }
    for (int i = first; i < first + stretch; i += per_word)
      words[size_t(i) / per_word * PANEL + j] = packed_word<KIND>(x + i, scale, least);
  }
}

// A panel whose outputs are read one by one. memory: 2 k floats.
template <int KIND>
inline void pack_panel(const Matrix& m, const Source* sources, int turn, int panel, float* memory) {
  int32_t* words = const_cast<int32_t*>(panel_words(m, panel));
  float* scales = const_cast<float*>(panel_scales(m, panel));
  for (int j = 0; j < PANEL; j++) {
    if (j < outputs(m, panel)) read_output(sources, turn, panel * PANEL + j, m.k, memory);
    else std::fill(memory, memory + m.k, 0.0f);
    if constexpr (KIND == pinrail::BF16) pack_pairs(m, memory, j, words, scales);
    else pack_output<KIND>(m, memory, j, words, scales);
  }
}

// By the whole team, to be followed by a barrier. memory: this thread's, 2 k floats.
inline void pack(Team& team, const Packing& packing, float* memory) {
  const Matrix& m = packing.matrix;
  const Source* sources = packing.sources;
  const int turn = packing.turn;
  const int panels = (m.n + PANEL - 1) / PANEL;
  for (int panel; (panel = team.take()) < panels;) switch (m.kind) {
      case pinrail::F32: pack_panel<pinrail::F32>(m, sources, turn, panel, memory); break;
      case pinrail::BF16: pack_panel<pinrail::BF16>(m, sources, turn, panel, memory); break;
      case pinrail::INT8: pack_panel<pinrail::INT8>(m, sources, turn, panel, memory); break;
      case pinrail::INT4: pack_panel<pinrail::INT4>(m, sources, turn, panel, memory); break;
    }
}

// Row `n` of a packed matrix, as floats: an embedding table is packed as the head is, so a tied one is there once.
inline void unpack_output(const Matrix& m, int n, float* to) {
  const int per_word = inputs_per_word(m.kind), j = n % PANEL;
  const int32_t* words = panel_words(m, n / PANEL);
  const float* scales = panel_scales(m, n / PANEL);
  for (int i = 0; i < m.k; i++) {
    int32_t word = words[size_t(i) / per_word * PANEL + j];
    int t = i % per_word;
    if (m.kind == pinrail::F32) std::memcpy(to + i, &word, 4);
    if (m.kind == pinrail::BF16) to[i] = weight(uint16_t(uint32_t(word) >> (16 * t))) * (has_scales(m.kind) ? scales[j] : 1);
    if (m.kind == pinrail::INT8) to[i] = float(int8_t(uint32_t(word) >> (8 * t))) * scales[j];
    if (m.kind == pinrail::INT4) {
      const float* steps = scales + i / m.group * 2 * PANEL + j;
      to[i] = float(uint32_t(word) >> (4 * t) & 15) * steps[0] + steps[PANEL];
    }
  }
}

}  // namespace PINRAIL_NS
