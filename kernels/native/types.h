// What crosses the C interface: plain structs of pointers and numbers, filled by pinrail_kernels/native.py.
#pragma once

#include <cstdint>

namespace pinrail {

enum Kind : int32_t { F32 = 0, BF16 = 1, INT8 = 2, INT4 = 3, F16 = 4 /* of sources alone */ };

// A weight matrix [n, k], packed: panels of 32 outputs, in each of which inputs follow one another.
//
//   F32   [k][32]
//   BF16  [k / 2][32][2]     as vdpbf16ps wants it, and a shift or a mask away from float; where the instruction set
//                            has float16 arithmetic, in float16 and times scales[n], powers of two
//   INT8  [k / 4][32][4]     times scales[n]
//   INT4  [k / 8][32][8]     times scales[k / group][0][32] of the panel, plus scales[k / group][1][32]; the first
//                            input is in the lowest four bits
//
// k is a multiple of 8, and of `group`; outputs that fill up the last panel are zero.
struct Matrix {
  void* data;
  float* scales;
  int32_t n, k;
  int32_t kind;
  int32_t group;  // inputs that share a scale, of INT4
};

struct Layer {
  const float* attention_norm;  // [hidden]
  Matrix qkv;                   // [q + 2 kv, hidden]: queries, keys, values
  Matrix o;                     // [hidden, q]
  const float* mlp_norm;        // [hidden]
  Matrix gate_up;               // [2 intermediate, hidden]: by turns 16 of the gate and 16 of up
  Matrix down;                  // [hidden, intermediate]
};

struct Shape {
  int32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
  int32_t block_size;  // tokens, a multiple of 16
  int32_t kv_kind;     // F32 or BF16
  int32_t window;      // positions seen, itself included; 0: all
  float eps;
  float scale;         // of attention scores
  float soft_cap;      // of attention scores; 0: none
};

// Consecutive rows of a batch that belong to one sequence.
struct Sequence {
  int32_t row;    // the first of them
  int32_t start;  // its position
  int32_t count;  // rows
  int32_t line;   // of the block tables
};

struct Batch {
  int32_t rows, sequences;
  const int32_t* tokens;     // [rows]
  const int32_t* positions;  // [rows]
  const Sequence* sequence;  // [sequences]; they cover all rows, in order
  const int32_t* tables;     // [lines, table_width]: block numbers
  int32_t table_width;
  int32_t blocks;            // in the cache
  void* kv;                  // [layers, blocks, kv_heads, 2 block_size head_dim]
};

}  // namespace pinrail
