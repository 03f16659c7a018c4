// The functions that every instruction set has a version of.
#pragma once

#include "threads.h"
#include "types.h"

namespace pinrail {

// Part of a matrix as a checkpoint has it: [rows, k], contiguous.
struct Source {
  const void* data;
  int32_t kind;  // F32, BF16 or F16
  int32_t rows;
};

// A matrix to be made of parts: one after another, or where `turn` is not 0 two of them by turns of so many outputs.
struct Packing {
  Matrix matrix;  // whose data and scales have room
  const Source* sources;
  int32_t turn;
};

// How the token after one row of logits is chosen.
struct Choice {
  double temperature;     // 0: the likeliest
  double top_p;           // 1: all
  double min_p;           // of the likeliest one's probability
  double u;               // the random number, in [0, 1)
  const int32_t* tokens;  // [n_tokens]: the sequence so far, the prompt first; looked at where there is a penalty
  const int32_t* allowed; // [n_allowed] ids, of which none but them is chosen; none: all are
  const int32_t* masked;  // [n_masked] ids that are not chosen
  const int32_t* biased;  // [n_biased] ids
  const float* biases;    // [n_biased], which are added to their logits
  float repetition, frequency, presence;  // penalties: 1, 0 and 0 are none
  int32_t top_k;          // 0: all
  int32_t n_tokens, prompt_len, n_allowed, n_masked, n_biased;
};

struct Table {
  const char* name;
  void* (*decoder)(const Shape&, const Layer* layers, const Matrix& embed, const Matrix& head, const float* norm,
                   const float* frequencies);
  void (*free_decoder)(void* decoder);
  void (*reserve)(void* decoder, const Team&, const Batch&);
  void (*forward)(void* decoder, Team&, const Batch&);
  void (*logits)(void* decoder, Team&, const int32_t* rows, int n, float* out);
  void (*pack)(Team&, const Packing*, int count);
  void (*sample)(Team&, const float* logits, int rows, int vocab, const Choice*, int64_t* tokens);
  // ---- single operations, as the decoder has them inside
  void (*linear)(Team&, const Matrix&, const float* x, int rows, float* y);
  void (*unpack)(const Matrix&, int first, int count, float* out);
  void (*rms_norm)(Team&, const float* x, const float* w, float eps, int rows, int n, float* y);
  void (*silu_mul)(Team&, const float* gate_up, int rows, int n, float* y);
  void (*rope)(Team&, float* x, const int32_t* positions, const float* frequencies, int rows, int heads, int head_dim);
  void (*store_kv)(const Shape&, const Batch&, const float* k, const float* v);
  void (*attention)(Team&, const Shape&, const Batch&, const float* q, float* out);
};

}  // namespace pinrail
