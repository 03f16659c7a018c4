// Causal attention over the paged cache, for rows of a ragged batch. See pinrail_kernels/paged_attention.py.
//
// Tokens are taken 64 at a time, from position 0: scores, their maximum so far, weights, weighted values (Milakov &
// Gimelshein 2018, https://arxiv.org/abs/1805.02867). Each stretch of 512 tokens is summed by itself, and the stretches
// are joined in order. A row's arithmetic is the same whether it stands alone, in a batch or in a chunk of a prompt:
// what other rows see besides is added to it as exact zeros.
//
// A piece of work is one KV head with up to 48 rows of its query heads; of a single token with a long context it is one
// stretch, so that few texts too occupy all threads.
//
// Cost: reads each context once per 48 rows (2 context head_dim elements), 4 context head_dim operations a row.
#pragma once

#include "cache.h"
#include "gemm.h"

namespace PINRAIL_NS {

using pinrail::Batch;
using pinrail::Sequence;

constexpr int TOKENS = 64;     // whose scores are taken together
constexpr int STRETCH = 512;   // tokens, a multiple of TOKENS
constexpr int QUERIES = 48;    // rows of one KV head that are taken together

inline int padded(int head_dim) { return round_up(head_dim, 2 * W); }

// Sums of some rows over some tokens, not yet divided.
struct Sums {
  float* out;      // [rows][padded]
  float* most;     // [rows]: the largest score
  float* weight;   // [rows]: sum of weights
};

inline size_t sums_floats(int head_dim, int rows) { return size_t(rows) * (padded(head_dim) + 2); }

inline Sums sums_in(float* memory, int head_dim, int rows) {
  float* after = memory + size_t(rows) * padded(head_dim);
  return {memory, after, after + rows};
}

inline size_t attention_floats(int head_dim) {
  const size_t tokens = size_t(TOKENS) * (head_dim + padded(head_dim)), rows = size_t(QUERIES) * (head_dim + TOKENS);
  return tokens + rows + 2 * sums_floats(head_dim, QUERIES) + 64;
}

// Where a thread works.
struct Desk {
  float *keys, *values;  // [head_dim][TOKENS], [TOKENS][padded]
  float *queries;        // [QUERIES][head_dim]
  float *scores;         // [QUERIES][TOKENS]
  Sums part, total;
};

inline Desk desk_in(float* memory, int head_dim) {
  Desk desk;
  desk.keys = memory;
  desk.values = desk.keys + size_t(TOKENS) * head_dim;
  desk.queries = desk.values + size_t(TOKENS) * padded(head_dim);
  desk.scores = desk.queries + size_t(QUERIES) * head_dim;
  desk.part = sums_in(desk.scores + size_t(QUERIES) * TOKENS, head_dim, QUERIES);
  desk.total = sums_in(desk.part.out + sums_floats(head_dim, QUERIES), head_dim, QUERIES);
  return desk;
}

// Some query positions of one sequence, for one KV head: rows position by position, each with all heads of the group.
struct Work {
  const int32_t* table;
  int head;      // of the cache
  int row;       // of the batch, of the first position
  int start;     // the first position
  int positions;
  int group;

  int rows() const { return positions * group; }
  int limit() const { return start + positions; }  // tokens that the last row sees
};

// Tokens that are read next: on their way into the second-level cache meanwhile.
template <typename T>
inline void fetch_tokens(const Cache<T>& cache, const Work& work, int first, int count) {
  const int size = cache.block_size;
  for (int t = first / size * size; t < first + count; t += size) {
    const char* piece = reinterpret_cast<const char*>(cache.keys(work.table[t / size], work.head));
    for (size_t i = 0; i < cache.piece() * sizeof(T); i += 64) __builtin_prefetch(piece + i, 0, 2);
  }
}

template <typename T>
inline void read_tokens(const Cache<T>& cache, const Work& work, int first, int count, const Desk& desk) {
  const int d = cache.head_dim, wide = padded(d), size = cache.block_size;
  for (int t = 0; t < count; t += 16) {
    const int block = work.table[(first + t) / size], offset = (first + t) % size;
    const T* keys = cache.keys(block, work.head) + offset;
    const T* values = cache.values(block, work.head) + size_t(offset) * d;
    for (int i = 0; i < d; i++)
      for (int v = 0; v < 16; v += W) store(desk.keys + i * TOKENS + t + v, load(keys + size_t(i) * size + v));
    for (int j = 0; j < 16 && t + j < count; j++) {
      int i = 0;
      for (; i + W <= d; i += W) store(desk.values + (t + j) * wide + i, load(values + size_t(j) * d + i));
      for (; i < d; i++) desk.values[(t + j) * wide + i] = to_float(values[size_t(j) * d + i]);
    }
  }
}

// The weights of one row's scores, in place, and what they do to the row's sums. Sees tokens [from, to) of the 64.
inline void weigh(const Shape& shape, float* scores, int from, int to, Sums sums, int row) {
  vf most = splat(-std::numeric_limits<float>::infinity());
  for (int v = 0; v < TOKENS; v += W) {
    vf x = load(scores + v) * splat(shape.scale);
    if (shape.soft_cap > 0) {
      vf e = exp(x * splat(2 / shape.soft_cap));  // tanh(y) = 1 - 2 / (e^2y + 1)
      x = splat(shape.soft_cap) * (splat(1.0f) - splat(2.0f) / (e + splat(1.0f)));
    }
    vi token;
    for (int i = 0; i < W; i++) token[i] = v + i;
    x = (token >= from) & (token < to) ? x : splat(-std::numeric_limits<float>::infinity());
    store(scores + v, x);
    most = max(most, x);
  }
  const float before = sums.most[row], peak = std::fmax(before, maximum(most));
  if (peak == -std::numeric_limits<float>::infinity()) return std::fill(scores, scores + TOKENS, 0.0f);
  vf total = {};
  for (int v = 0; v < TOKENS; v += W) {
    vf weight = exp(load(scores + v) - splat(peak));
    store(scores + v, weight);
    total += weight;
  }
  const float kept = std::exp(before - peak);  // 0 at first, 1 where the peak stays
  sums.most[row] = peak;
  sums.weight[row] = sums.weight[row] * kept + sum(total);
  const int wide = padded(shape.head_dim);
  if (kept != 1)
    for (int i = 0; i < wide; i += W) store(sums.out + row * wide + i, load(sums.out + row * wide + i) * splat(kept));
}

// Sums of the work's rows over tokens [first, last) of one stretch, into desk.part.
template <typename T>
inline void stretch(const Shape& shape, const Cache<T>& cache, const Work& work, int first, int last, const Desk& desk) {
  const int rows = work.rows(), d = shape.head_dim, wide = padded(d);
  std::fill(desk.part.out, desk.part.out + size_t(rows) * wide, 0.0f);
  std::fill(desk.part.most, desk.part.most + rows, -std::numeric_limits<float>::infinity());
  std::fill(desk.part.weight, desk.part.weight + rows, 0.0f);
  for (int t = first; t < last; t += TOKENS) {
    const int count = std::min(TOKENS, last - t);
    if (cache.block_size <= TOKENS) fetch_tokens(cache, work, t + count, std::min(TOKENS, last - t - count));
    read_tokens(cache, work, t, count, desk);
    multiply<false>(rows, TOKENS, d, desk.queries, d, desk.keys, TOKENS, desk.scores, TOKENS);
    for (int r = 0; r < rows; r++) {
      const int position = work.start + r / work.group;
      const int from = shape.window ? position - shape.window + 1 - t : 0;
      weigh(shape, desk.scores + r * TOKENS, from, position + 1 - t, desk.part, r);
    }
    multiply<true>(rows, wide, count, desk.scores, TOKENS, desk.values, wide, desk.part.out, wide);
  }
}

// total += part, for one row; the first of a row is copied.
inline void join(const Sums& total, const Sums& part, int row, int wide, bool first) {
  float *to = total.out + row * wide, *from = part.out + row * wide;
  if (first) {
    std::memcpy(to, from, wide * sizeof(float));
    total.most[row] = part.most[row];
    total.weight[row] = part.weight[row];
    return;
  }
  const float peak = std::fmax(total.most[row], part.most[row]);
  if (peak == -std::numeric_limits<float>::infinity()) return;
  const float a = std::exp(total.most[row] - peak), b = std::exp(part.most[row] - peak);
  for (int i = 0; i < wide; i += W) store(to + i, load(to + i) * splat(a) + load(from + i) * splat(b));
  total.most[row] = peak;
  total.weight[row] = total.weight[row] * a + part.weight[row] * b;
}

// The first token that any row of the work sees, at the beginning of a stretch.
inline int first_seen(const Shape& shape, int start) {
  const int first = shape.window ? std::max(0, start - shape.window + 1) : 0;
  return first / STRETCH * STRETCH;
}

// Divided and written as rows of [rows, heads head_dim].
inline void write_out(const Shape& shape, const Work& work, const Sums& sums, float* out, long ldo) {
  const int d = shape.head_dim, wide = padded(d);
  for (int r = 0; r < work.rows(); r++) {
    float* to = out + (work.row + r / work.group) * ldo + (work.head * work.group + r % work.group) * d;
    const float scale = 1 / sums.weight[r];
    for (int i = 0; i < d; i++) to[i] = sums.out[r * wide + i] * scale;
  }
}

inline void read_queries(const Shape& shape, const Work& work, const float* q, long ldq, const Desk& desk) {
  for (int p = 0; p < work.positions; p++)
    std::memcpy(desk.queries + size_t(p) * work.group * shape.head_dim,
                q + (work.row + p) * ldq + work.head * work.group * shape.head_dim,
                size_t(work.group) * shape.head_dim * sizeof(float));
}

// How a batch is cut into pieces of work; made anew for each step, the same for each layer.
struct Piece {
  int32_t sequence, head, first, positions;  // of the sequence's rows
  int32_t stretch;                           // the only one to be summed; -1: all, and the rows are done
  int32_t at, of;                            // where its sums go among the partial ones; how many make up the row
};

// Of a single token's stretch: the rows of one group. `at` counts stretches.
inline size_t partial_floats(const Shape& shape) { return sums_floats(shape.head_dim, shape.heads / shape.kv_heads); }

inline Sums partial_sums(const Shape& shape, float* partial, int at) {
  return sums_in(partial + at * partial_floats(shape), shape.head_dim, shape.heads / shape.kv_heads);
}

template <typename T>
inline void attend(const Shape& shape, const Cache<T>& cache, const Batch& batch, const Piece& piece, const float* q,
                   long ldq, float* partial, float* out, long ldo, float* memory) {
  const Sequence& s = batch.sequence[piece.sequence];
  const Desk desk = desk_in(memory, shape.head_dim);
  const Work work{batch.tables + size_t(s.line) * batch.table_width, piece.head, s.row + piece.first,
                  s.start + piece.first, piece.positions, shape.heads / shape.kv_heads};
  read_queries(shape, work, q, ldq, desk);
  if (piece.stretch >= 0) {
    Desk aside = desk;
    aside.part = partial_sums(shape, partial, piece.at);
    return stretch(shape, cache, work, piece.stretch, std::min(piece.stretch + STRETCH, work.limit()), aside);
  }
  const int begin = first_seen(shape, work.start);
  for (int t = begin; t < work.limit(); t += STRETCH) {
    stretch(shape, cache, work, t, std::min(t + STRETCH, work.limit()), desk);
    for (int r = 0; r < work.rows(); r++) join(desk.total, desk.part, r, padded(shape.head_dim), t == begin);
  }
  write_out(shape, work, desk.total, out, ldo);
}

// Joins the stretches of a single token's row; `piece` is the first of them.
inline void join_pieces(const Shape& shape, const Batch& batch, const Piece& piece, float* partial, float* out, long ldo) {
  const Sequence& s = batch.sequence[piece.sequence];
  const Work work{nullptr, piece.head, s.row, s.start, 1, shape.heads / shape.kv_heads};
  const Sums total = partial_sums(shape, partial, piece.at);
  for (int i = 1; i < piece.of; i++)
    for (int r = 0; r < work.rows(); r++)
      join(total, partial_sums(shape, partial, piece.at + i), r, padded(shape.head_dim), false);
  write_out(shape, work, total, out, ldo);
}

// All pieces of a batch, the longest first so that threads end together.
template <typename Add>
inline void cut(const Shape& shape, const Batch& batch, const Add& add) {
  const int group = shape.heads / shape.kv_heads, most = std::max(1, QUERIES / group);
  int partial = 0;
  for (int i = 0; i < batch.sequences; i++) {
    const Sequence& s = batch.sequence[i];
    const int begin = first_seen(shape, s.start), stretches = (s.start + 1 - begin + STRETCH - 1) / STRETCH;
    for (int head = 0; head < shape.kv_heads; head++) {
      if (s.count == 1 && stretches > 1) {
        for (int t = 0; t < stretches; t++) add(Piece{i, head, 0, 1, begin + t * STRETCH, partial + t, stretches});
        partial += stretches;
        continue;
      }
      for (int first = (s.count - 1) / most * most; first >= 0; first -= most)
        add(Piece{i, head, first, std::min(most, s.count - first), -1, 0, 0});
    }
  }
}

}  // namespace PINRAIL_NS
