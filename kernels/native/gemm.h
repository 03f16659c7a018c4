// y = x W^T with packed weights: the tile that everything else is made of, and the loop around it.
//
// Each output is one sum over the inputs in their order, in one float32 accumulator, however many rows there are and
// whichever thread takes it: so a row's result does not depend on its batch.
//
// Cost at few rows: the weights' bytes, once. At many: 2 m n k operations, of which the tile reaches 98 % of what the
// processor can do; a panel's conversion to float32 costs about 2 / m of them.
#pragma once

#include <unistd.h>

#include <algorithm>

#include "ahead.h"
#include "threads.h"
#include "types.h"
#include "vec.h"

#if defined(PINRAIL_HALVES)
#include "halves.h"
#elif defined(PINRAIL_DOT)
#include "dot.h"
#endif

namespace PINRAIL_NS {

using pinrail::Matrix;
using pinrail::Team;

constexpr int PANEL = 32;         // outputs
constexpr int ROWS = PINRAIL_ROWS;
constexpr int AHEAD = 2048;       // bytes that are fetched before they are needed

// c[r][j] (+)= sum over i of a[r][i] b[i][j], for R rows and two vectors of columns; strides in elements.
template <int R, bool ADDS, bool FETCHES>
inline void tile(const float* a, long lda, const float* b, long ldb, int k, float* c, long ldc, Ahead ahead) {
  vf sums[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 2; v++) sums[r][v] = ADDS ? load(c + r * ldc + v * W) : vf{};
  for (int i = 0; i < k; i++) {
    if constexpr (FETCHES) ahead.fetch(i);
    const vf left = load(b + i * ldb), right = load(b + i * ldb + W);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const vf x = splat(a[r * lda + i]);
      sums[r][0] += x * left;
      sums[r][1] += x * right;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 2; v++) store(c + r * ldc + v * W, sums[r][v]);
}

// As `tile`, for 1 … ROWS rows.
template <bool ADDS>
inline void tiles(int rows, const float* a, long lda, const float* b, long ldb, int k, float* c, long ldc,
                  Ahead ahead) {
  switch (rows) {
#define PINRAIL_CASE(R) \
  case R: \
    if constexpr (R <= ROWS) ahead.from ? tile<R, ADDS, true>(a, lda, b, ldb, k, c, ldc, ahead) \
                                        : tile<R, ADDS, false>(a, lda, b, ldb, k, c, ldc, ahead); \
    break;
    PINRAIL_CASE(1) PINRAIL_CASE(2) PINRAIL_CASE(3) PINRAIL_CASE(4) PINRAIL_CASE(5) PINRAIL_CASE(6)
    PINRAIL_CASE(7) PINRAIL_CASE(8) PINRAIL_CASE(9) PINRAIL_CASE(10) PINRAIL_CASE(11) PINRAIL_CASE(12)
#undef PINRAIL_CASE
  }
}

// c[m][n] (+)= a[m][k] b[k][n] for small matrices in the first-level caches; n is a multiple of two vectors.
template <bool ADDS>
inline void multiply(int m, int n, int k, const float* a, long lda, const float* b, long ldb, float* c, long ldc) {
  for (int r = 0; r < m; r += ROWS)
    for (int j = 0; j < n; j += 2 * W)
      tiles<ADDS>(m - r < ROWS ? m - r : ROWS, a + r * lda, lda, b + j, ldb, k, c + r * ldc + j, ldc, {nullptr});
}

// ---- panels

constexpr int inputs_per_word(int kind) {
  return kind == pinrail::F32 ? 1 : kind == pinrail::BF16 ? 2 : kind == pinrail::INT8 ? 4 : 8;
}

inline size_t panel_bytes(const Matrix& m) { return size_t(m.k) / inputs_per_word(m.kind) * PANEL * 4; }

inline const int32_t* panel_words(const Matrix& m, int panel) {
  return reinterpret_cast<const int32_t*>(static_cast<const char*>(m.data) + panel * panel_bytes(m));
}

inline const float* panel_scales(const Matrix& m, int panel) {
  return m.scales + size_t(panel) * PANEL * (m.kind == pinrail::INT4 ? 2 * m.k / m.group : 1);
}

// The J-th input of each of W words, as a float.
template <int KIND, int J>
inline vf input(vi words) {
  if constexpr (KIND == pinrail::F32) return (vf)words;
  if constexpr (KIND == pinrail::BF16) return (vf)(J == 0 ? words << 16 : words & (int32_t)0xffff0000);
  if constexpr (KIND == pinrail::INT8) return __builtin_convertvector(words << (24 - 8 * J) >> 24, vf);
  if constexpr (KIND == pinrail::INT4) return __builtin_convertvector(words >> (4 * J) & 15, vf);
}

// How the whole numbers of W outputs become weights: INT4 has a scale and a least weight for each group of inputs.
struct Steps {
  vf scale, least;
};

// Calls f(i + J, v, x), f(i + J + 1, v, x) … for the inputs in one word of each output of vector v.
template <int KIND, int J, typename F>
inline void each_input(vi words, int i, int v, Steps steps, const F& f) {
  if constexpr (J < inputs_per_word(KIND)) {
    vf x = input<KIND, J>(words);
    if constexpr (KIND == pinrail::INT4) x = x * steps.scale + steps.least;
    f(i + J, v, x);
    each_input<KIND, J + 1>(words, i, v, steps, f);
  }
}

// Calls f(i, v, x) for each input i of [begin, end) of a panel and each vector v of its outputs.
//
// `next`: the panel after this one, whose beginning is fetched at the end of this.
template <int KIND, typename F>
inline void walk(const Matrix& m, int panel, int begin, int end, const char* next, const F& f) {
  constexpr int per_word = inputs_per_word(KIND);
  const int32_t* words = panel_words(m, panel);
  const char* last = reinterpret_cast<const char*>(words) + panel_bytes(m);
  const int stretch = KIND == pinrail::INT4 ? m.group : end - begin;
  const float* scales = panel_scales(m, panel) + (KIND == pinrail::INT4 ? begin / m.group * 2 * PANEL : 0);
  words += begin / per_word * PANEL;
  for (int first = begin; first < end; first += stretch, scales += 2 * PANEL) {
    Steps steps[PANEL / W];
    if constexpr (KIND == pinrail::INT4)
      for (int v = 0; v < PANEL / W; v++) steps[v] = {load(scales + v * W), load(scales + PANEL + v * W)};
    for (int i = first; i < first + stretch; i += per_word, words += PANEL) {
      const char* soon = reinterpret_cast<const char*>(words) + AHEAD;
      if (soon >= last) soon = next + (soon - last);
      __builtin_prefetch(soon, 0, 2);
      __builtin_prefetch(soon + 64, 0, 2);
      for (int v = 0; v < PANEL / W; v++) each_input<KIND, 0>(load_i(words + v * W), i, v, steps[v], f);
    }
  }
}

// Inputs [begin, end) of a panel as float32 [end - begin][32]: in place where they are that already.
template <int KIND>
inline const float* unpack(const Matrix& m, int panel, int begin, int end, const char* next, float* scratch) {
  if constexpr (KIND == pinrail::F32) return reinterpret_cast<const float*>(panel_words(m, panel)) + begin * PANEL;
  walk<KIND>(m, panel, begin, end, next, [=](int i, int v, vf x) { store(scratch + (i - begin) * PANEL + v * W, x); });
  return scratch;
}

// One row times one panel, straight from the packed weights.
template <int KIND>
inline void row_times_panel(const Matrix& m, int panel, const char* next, const float* a, float* c) {
  vf sums[PANEL / W] = {};
  walk<KIND>(m, panel, 0, m.k, next, [&](int i, int v, vf x) { sums[v] += splat(a[i]) * x; });
  for (int v = 0; v < PANEL / W; v++) store(c + v * W, sums[v]);
}

#if defined(PINRAIL_HALVES) || defined(PINRAIL_DOT)
// As `pair_tile`, for 1 … ROWS rows.
inline void pair_tiles(int rows, const int32_t* a, long lda, const int32_t* b, int pairs, float* c, Ahead ahead) {
  switch (rows) {
#define PINRAIL_CASE(R) \
  case R: pair_tile<R>(a, lda, b, pairs, c, ahead); break;
    PINRAIL_CASE(1) PINRAIL_CASE(2) PINRAIL_CASE(3) PINRAIL_CASE(4) PINRAIL_CASE(5) PINRAIL_CASE(6)
    PINRAIL_CASE(7) PINRAIL_CASE(8) PINRAIL_CASE(9) PINRAIL_CASE(10) PINRAIL_CASE(11) PINRAIL_CASE(12)
#undef PINRAIL_CASE
  }
}
#endif

// ---- the loop

// Who shares some work: the whole team, or one thread for itself.
class Crew {
 public:
  explicit Crew(Team* team) : team_(team) {}  // nullptr: for itself

  int take() { return team_ ? team_->take() : next_++; }
  void barrier() {
    if (team_) team_->barrier();
    next_ = 0;
  }

 private:
  Team* team_;
  int next_ = 0;
};

// Rows of so many floats that stay in the second-level cache while matrices pass, with room for what passes.
inline int block_rows(int floats) {
  static const long cache = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 512L << 10);  // bytes; 0 where nothing tells
  return std::max(4L, cache / 5 / (4L * std::max(floats, 1) * ROWS)) * ROWS;
}

// Inputs that are unpacked at a time, some 144: with 32 outputs they stay in the first-level cache while rows pass, and
// the next ones' way from memory is spread over the arithmetic.
inline int strip_inputs(const Matrix& m) {
  const int strips = (m.k + 143) / 144, multiple = m.kind == pinrail::INT4 ? m.group : 8;
  return (m.k / strips + multiple - 1) / multiple * multiple;
}

// What a thread needs to multiply, beside what it multiplies.
struct Scratch {
  float* strip;     // [k at most][PANEL]
  float* sums;      // [block_rows][PANEL]
  float* scales;    // [block_rows]: what the sums of `pairs` are to be multiplied with
  uint16_t* pairs;  // [block_rows][k]: rows in 16 bits, where they are multiplied so
  int pairs_of;     // the first row that `pairs` holds; -1: none yet
};

inline size_t scratch_floats(int k) {
  return size_t(k) * PANEL + size_t(block_rows(k)) * (PANEL + 1) + size_t(block_rows(k)) * k / 2 + 64;
}

inline Scratch scratch_in(float* memory, int k) {
  float *sums = memory + size_t(k) * PANEL, *scales = sums + size_t(block_rows(k)) * PANEL;
  return {memory, sums, scales, reinterpret_cast<uint16_t*>(scales + block_rows(k)), -1};
}

// A panel for `rows` rows from `first`: calls ends(row, panel, sums) for each, with 32 sums. Meanwhile it fetches `next`.
template <int KIND, typename Ends>
inline void panel_rows(const Matrix& m, int panel, const char* next, const float* a, long lda, int first, int rows,
                       Scratch& s, const Ends& ends) {
  if (rows == 1) {
    row_times_panel<KIND>(m, panel, next, a + first * lda, s.sums);
    return ends(first, panel, s.sums);
  }
  const long bytes = panel_bytes(m);
  const int most = strip_inputs(m);
  for (int begin = 0; begin < m.k; begin += most) {
    const int k = std::min(most, m.k - begin);
    const float *b = unpack<KIND>(m, panel, begin, begin + k, next, s.strip), *x = a + first * lda + begin;
    long fetched = bytes * begin / m.k;
    const long enough = bytes * (begin + k) / m.k;
    for (int r = 0; r < rows; r += ROWS)
      for (int j = 0; j < PANEL; j += 2 * W, fetched += k * 64) {
        const Ahead ahead{fetched < enough ? next + fetched : nullptr};
        float* c = s.sums + r * PANEL + j;
        const int n = std::min(ROWS, rows - r);
        begin ? tiles<true>(n, x + r * lda, lda, b + j, PANEL, k, c, PANEL, ahead)
              : tiles<false>(n, x + r * lda, lda, b + j, PANEL, k, c, PANEL, ahead);
      }
  }
  for (int r = 0; r < rows; r++) ends(first + r, panel, s.sums + r * PANEL);
}

#if defined(PINRAIL_HALVES) || defined(PINRAIL_DOT)
template <typename Ends>
inline void panel_rows_by_pairs(const Matrix& m, int panel, const char* next, const float* a, long lda, int first,
                                int rows, Scratch& s, const Ends& ends) {
  if (s.pairs_of != first) {
    for (int r = 0; r < rows; r++) s.scales[r] = to_pairs(a + (first + r) * lda, m.k, s.pairs + size_t(r) * m.k);
    s.pairs_of = first;
  }
  for (int r = 0; r < rows; r += ROWS) {
    int n = rows - r < ROWS ? rows - r : ROWS;
    const int32_t* x = reinterpret_cast<const int32_t*>(s.pairs + size_t(r) * m.k);
    pair_tiles(n, x, m.k / 2, panel_words(m, panel), m.k / 2, s.sums, {r == 0 ? next : nullptr});
    for (int i = 0; i < n; i++) {
      float* sums = s.sums + i * PANEL;
      for (int v = 0; v < PANEL; v += W) store(sums + v, load(sums + v) * splat(s.scales[r + i]));
      ends(first + r + i, panel, sums);
    }
  }
}
#endif

// y = x W^T over `rows` rows, by the whole crew: calls ends(row, panel, sums) for every row and panel, once.
//
// a: [rows, k], lda elements apart. memory: this thread's, scratch_floats(k). To be followed by a barrier.
template <typename Ends>
inline void gemm(Crew& crew, const Matrix& m, const float* a, long lda, int rows, float* memory, const Ends& ends) {
  const int block = block_rows(m.k), panels = (m.n + PANEL - 1) / PANEL, items = panels * ((rows + block - 1) / block);
  Scratch s = scratch_in(memory, m.k);
  for (int item = crew.take(), after; item < items; item = after) {
    after = crew.take();
    const char* next = reinterpret_cast<const char*>(panel_words(m, (after < items ? after : item) % panels));
    const int first = item / panels * block, panel = item % panels;
    const int n = std::min(block, rows - first);
    switch (m.kind) {
      case pinrail::F32: panel_rows<pinrail::F32>(m, panel, next, a, lda, first, n, s, ends); break;
#if defined(PINRAIL_HALVES) || defined(PINRAIL_DOT)
      case pinrail::BF16: panel_rows_by_pairs(m, panel, next, a, lda, first, n, s, ends); break;
#else
      case pinrail::BF16: panel_rows<pinrail::BF16>(m, panel, next, a, lda, first, n, s, ends); break;
#endif
      case pinrail::INT8: panel_rows<pinrail::INT8>(m, panel, next, a, lda, first, n, s, ends); break;
      case pinrail::INT4: panel_rows<pinrail::INT4>(m, panel, next, a, lda, first, n, s, ends); break;
    }
  }
}

// Whether each output has a scale.
constexpr bool has_scales(int kind) {
#if defined(PINRAIL_HALVES)
  if (kind == pinrail::BF16) return true;
#endif
  return kind == pinrail::INT8;
}

// Scales of one panel's outputs, where they have some.
inline void rescale(const Matrix& m, int panel, float* sums) {
  if (!has_scales(m.kind)) return;
  const float* scales = panel_scales(m, panel);
  for (int v = 0; v < PANEL; v += W) store(sums + v, load(sums + v) * load(scales + v));
}

// How many outputs of a panel there are.
inline int outputs(const Matrix& m, int panel) { return m.n - panel * PANEL < PANEL ? m.n - panel * PANEL : PANEL; }

// ---- what becomes of the sums

// y[row] = sums
inline auto writes(const Matrix& m, float* y, long ldy) {
  return [=, &m](int row, int panel, float* sums) {
    rescale(m, panel, sums);
    std::memcpy(y + row * ldy + panel * PANEL, sums, outputs(m, panel) * sizeof(float));
  };
}

// y[row] += sums: the residual stream
inline auto adds(const Matrix& m, float* y, long ldy) {
  return [=, &m](int row, int panel, float* sums) {
    rescale(m, panel, sums);
    float* out = y + row * ldy + panel * PANEL;
    for (int j = 0; j < outputs(m, panel); j++) out[j] += sums[j];
  };
}

// y[row] = silu(gate) * up, 16 of each in a panel
inline auto gates(const Matrix& m, float* y, long ldy) {
  return [=, &m](int row, int panel, float* sums) {
    rescale(m, panel, sums);
    for (int v = 0; v < 16; v += W) store(y + row * ldy + panel * 16 + v, silu(load(sums + v)) * load(sums + 16 + v));
  };
}

}  // namespace PINRAIL_NS
