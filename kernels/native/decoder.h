// The network, as one piece of work for the team. See pinrail_engine/model/decoder.py for the definition: the same
// stages in the same order, with activations in float32 whatever the weights' type.
#pragma once

#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "attention.h"
#include "norm.h"
#include "pack.h"

namespace PINRAIL_NS {

using pinrail::Layer;

// Memory that grows and is kept; 64-byte aligned, zero at first.
class Room {
 public:
  Room() = default;
  Room(Room&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ~Room() { std::free(data_); }
  float* of(size_t floats) {
    if (floats > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<float*>(std::aligned_alloc(64, (floats * 4 + 63) / 64 * 64));
      if (!data_) throw std::bad_alloc();
      std::memset(data_, 0, floats * 4);
      size_ = floats;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  size_t size_ = 0;
};

struct Decoder {
  Shape shape;
  std::vector<Layer> layers;
  Matrix embed, head;
  const float* norm;
  std::vector<float> frequencies;  // [head_dim / 2]

  Room x, normed, qkv, attended, gated, turns, partial, chosen;
  std::vector<Room> desks;     // one a thread
  std::vector<int> slots;      // [rows] of the batch at hand: block * block_size + offset
  std::vector<Piece> pieces;   // of the batch at hand
  std::vector<int> joined;     // pieces that begin a row which others complete
};

inline size_t thread_floats(const Shape& s) {
  const size_t multiply = std::max({scratch_floats(s.hidden), scratch_floats(s.intermediate),
                                    scratch_floats(s.heads * s.head_dim)});
  return std::max(multiply, attention_floats(s.head_dim));
}

// Calls f(row) for rows [first, last), by the whole crew, some at a time.
template <typename F>
inline void each_row(Crew& crew, int first, int last, const F& f) {
  constexpr int some = 4;
  for (int row; (row = first + crew.take() * some) < last;)
    for (int end = std::min(last, row + some); row < end; row++) f(row);
}

// y = norm(x) for rows [first, last), to be followed by a barrier.
inline void normalise(Decoder& d, Crew& crew, int first, int last, const float* w) {
  const int n = d.shape.hidden;
  float *x = d.x.of(0), *y = d.normed.of(0);
  each_row(crew, first, last, [&](int row) { rms_norm(x + size_t(row) * n, w, d.shape.eps, n, y + size_t(row) * n); });
}

inline void embed(Decoder& d, Crew& crew, const Batch& batch, int first, int last) {
  const Shape& s = d.shape;
  float *x = d.x.of(0), *turns = d.turns.of(0);
  each_row(crew, first, last, [&](int row) {
    unpack_output(d.embed, batch.tokens[row], x + size_t(row) * s.hidden);
    float* cosines = turns + size_t(row) * s.head_dim;
    angles(batch.positions[row], s.head_dim, d.frequencies.data(), cosines, cosines + s.head_dim / 2);
  });
  crew.barrier();
}

// Queries, keys and values of rows [first, last); the latter two go into the cache.
template <typename T>
inline void project(Decoder& d, Crew& crew, const Batch& batch, int number, int first, int last, float* memory) {
  const Shape& s = d.shape;
  const Layer& w = d.layers[number];
  const int q_size = s.heads * s.head_dim, kv_size = s.kv_heads * s.head_dim, wide = w.qkv.n, n = s.hidden;
  float *qkv = d.qkv.of(0) + size_t(first) * wide, *turns = d.turns.of(0);
  normalise(d, crew, first, last, w.attention_norm);
  crew.barrier();
  gemm(crew, w.qkv, d.normed.of(0) + size_t(first) * n, n, last - first, memory, writes(w.qkv, qkv, wide));
  crew.barrier();
  const Cache<T> cache = cache_of<T>(s, batch.kv, batch.blocks, number);
  each_row(crew, first, last, [&](int row) {
    const float *cosines = turns + size_t(row) * s.head_dim, *sines = cosines + s.head_dim / 2;
    float* x = d.qkv.of(0) + size_t(row) * wide;
    for (int h = 0; h < s.heads + s.kv_heads; h++) turn(x + h * s.head_dim, s.head_dim, cosines, sines);
    const int block = d.slots[row] / s.block_size, offset = d.slots[row] % s.block_size;
    for (int h = 0; h < s.kv_heads; h++) {
      const float* key = x + q_size + h * s.head_dim;
      put_token(cache, block, h, offset, key, key + kv_size);
    }
  });
  crew.barrier();
}

template <typename T>
inline void attention(Decoder& d, Team& team, const Batch& batch, int number, float* memory) {
  const Shape& s = d.shape;
  const int q_size = s.heads * s.head_dim, wide = d.layers[number].qkv.n;
  const Cache<T> cache = cache_of<T>(s, batch.kv, batch.blocks, number);
  float *qkv = d.qkv.of(0), *partial = d.partial.of(0), *out = d.attended.of(0);
  for (int item; (item = team.take()) < int(d.pieces.size());)
    attend(s, cache, batch, d.pieces[item], qkv, wide, partial, out, q_size, memory);
  team.barrier();
  if (d.joined.empty()) return;
  for (int item; (item = team.take()) < int(d.joined.size());)
    join_pieces(s, batch, d.pieces[d.joined[item]], partial, out, q_size);
  team.barrier();
}

// What becomes of the attended rows [first, last): back into the residual stream, then the feed-forward.
inline void feed_forward(Decoder& d, Crew& crew, int number, int first, int last, float* memory) {
  const Shape& s = d.shape;
  const Layer& w = d.layers[number];
  const int rows = last - first, n = s.hidden, f = s.intermediate, q_size = s.heads * s.head_dim;
  float *x = d.x.of(0) + size_t(first) * n, *normed = d.normed.of(0) + size_t(first) * n;
  float *attended = d.attended.of(0) + size_t(first) * q_size, *gated = d.gated.of(0) + size_t(first) * f;
  gemm(crew, w.o, attended, q_size, rows, memory, adds(w.o, x, n));
  crew.barrier();
  normalise(d, crew, first, last, w.mlp_norm);
  crew.barrier();
  gemm(crew, w.gate_up, normed, n, rows, memory, gates(w.gate_up, gated, f));
  crew.barrier();
  gemm(crew, w.down, gated, f, rows, memory, adds(w.down, x, n));
  crew.barrier();
}

// Rows that a thread takes through the network by itself between two attentions; 0: all threads share all rows.
//
// With few rows the weights' way from memory is what takes time, so each thread reads its part of them. With many, each
// thread reads them all, and what it writes is read by no other.
inline int rows_alone(int threads, int rows) {
  if (threads == 1 || rows < 64 * threads) return 0;
  constexpr int most = 264;
  const int rounds = (rows + threads * most - 1) / (threads * most), blocks = rounds * threads;
  return round_up((rows + blocks - 1) / blocks, ROWS);
}

// Calls f(crew, first, last) for all rows: once on every thread, for all of them, or for each thread's own.
template <typename F>
inline void over_rows(Team& team, int rows, int alone, const F& f) {
  if (!alone) {
    Crew crew(&team);
    f(crew, 0, rows);
    return;
  }
  for (int first; (first = team.take() * alone) < rows;) {
    Crew crew(nullptr);
    f(crew, first, std::min(rows, first + alone));
  }
  team.barrier();
}

template <typename T>
inline void network(Decoder& d, Team& team, const Batch& batch, float* memory) {
  const int layers = d.shape.layers, alone = rows_alone(team.size(), batch.rows);
  over_rows(team, batch.rows, alone, [&](Crew& crew, int first, int last) {
    embed(d, crew, batch, first, last);
    project<T>(d, crew, batch, 0, first, last, memory);
  });
  for (int i = 0; i < layers; i++) {
    attention<T>(d, team, batch, i, memory);
    over_rows(team, batch.rows, alone, [&](Crew& crew, int first, int last) {
      feed_forward(d, crew, i, first, last, memory);
      if (i + 1 < layers) project<T>(d, crew, batch, i + 1, first, last, memory);
    });
  }
}

// Room for a batch, and its pieces: by the caller alone, before the team begins.
inline void prepare(Decoder& d, int threads, const Batch& batch) {
  const Shape& s = d.shape;
  const size_t n = batch.rows;
  d.x.of(n * s.hidden);
  d.normed.of(n * s.hidden);
  d.qkv.of(n * (s.heads + 2 * s.kv_heads) * s.head_dim);
  d.attended.of(n * s.heads * s.head_dim);
  d.gated.of(n * s.intermediate);
  d.turns.of(n * s.head_dim);
  d.desks.resize(threads);
  for (auto& desk : d.desks) desk.of(thread_floats(s));
  d.slots.resize(n);
  for (int i = 0; i < batch.sequences; i++) {
    const Sequence& q = batch.sequence[i];
    for (int j = 0; j < q.count; j++) {
      const int position = q.start + j;
      const int block = batch.tables[size_t(q.line) * batch.table_width + position / s.block_size];
      d.slots[q.row + j] = block * s.block_size + position % s.block_size;
    }
  }
  d.pieces.clear();
  d.joined.clear();
  int partial = 0;
  cut(s, batch, [&](const Piece& piece) {
    if (piece.stretch >= 0 && piece.at == partial) {
      d.joined.push_back(int(d.pieces.size()));
      partial += piece.of;
    }
    d.pieces.push_back(piece);
  });
  d.partial.of(partial * partial_floats(s) + 1);
}

// Computes a batch: its keys and values go into the cache, its last states stay in d.x, for `logits`.
inline void forward(Decoder& d, Team& team, const Batch& batch) {
  prepare(d, team.size(), batch);
  struct Call { Decoder& d; Team& team; const Batch& batch; } call{d, team, batch};
  team.run([](void* context, int thread) {
    Call& c = *static_cast<Call*>(context);
    float* memory = c.d.desks[thread].of(0);
    c.d.shape.kv_kind == pinrail::F32 ? network<float>(c.d, c.team, c.batch, memory)
                                      : network<uint16_t>(c.d, c.team, c.batch, memory);
  }, &call);
}

// Logits [n, vocab] of some rows of the last batch.
inline void logits(Decoder& d, Team& team, const int32_t* rows, int n, float* out) {
  const Shape& s = d.shape;
  d.chosen.of(size_t(n) * s.hidden);
  struct Call { Decoder& d; Team& team; const int32_t* rows; int n; float* out; } call{d, team, rows, n, out};
  team.run([](void* context, int thread) {
    Call& c = *static_cast<Call*>(context);
    const Shape& s = c.d.shape;
    float *x = c.d.x.of(0), *chosen = c.d.chosen.of(0);
    Crew crew(&c.team);
    each_row(crew, 0, c.n, [&](int i) {
      rms_norm(x + size_t(c.rows[i]) * s.hidden, c.d.norm, s.eps, s.hidden, chosen + size_t(i) * s.hidden);
    });
    crew.barrier();
    gemm(crew, c.d.head, chosen, s.hidden, c.n, c.d.desks[thread].of(0), writes(c.d.head, c.out, s.vocab));
  }, &call);
}

}  // namespace PINRAIL_NS
