// The paged KV cache of one layer, and how keys turn to their positions on the way into it.
//
// A block of one head lies in one piece: its keys with tokens side by side, so that scores of sixteen tokens are one
// vector, then its values token by token.
//
//   [blocks][kv_heads] of { K [head_dim][block_size]; V [block_size][head_dim] }
//
// See pinrail_kernels/rope.py and store_kv.py for the definitions.
#pragma once

#include "types.h"
#include "vec.h"

namespace PINRAIL_NS {

using pinrail::Shape;

template <typename T>
struct Cache {
  T* data;
  int kv_heads, head_dim, block_size;

  size_t piece() const { return size_t(2) * head_dim * block_size; }
  T* keys(int block, int head) const { return data + (size_t(block) * kv_heads + head) * piece(); }
  T* values(int block, int head) const { return keys(block, head) + size_t(head_dim) * block_size; }
};

template <typename T>
inline Cache<T> cache_of(const Shape& shape, void* kv, int blocks, int layer) {
  Cache<T> cache{nullptr, shape.kv_heads, shape.head_dim, shape.block_size};
  cache.data = static_cast<T*>(kv) + size_t(layer) * blocks * shape.kv_heads * cache.piece();
  return cache;
}

// Cosines and sines of one position: [head_dim / 2] each. Angles in float32, as the definition has them.
inline void angles(int position, int head_dim, const float* frequencies, float* cosines, float* sines) {
  for (int i = 0; i < head_dim / 2; i++) {
    float angle = float(position) * frequencies[i];
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
}

// Turns one head [head_dim] in place: pairs are half a head apart.
inline void turn(float* x, int head_dim, const float* cosines, const float* sines) {
  const int half = head_dim / 2;
  int i = 0;
  for (; i + W <= half; i += W) {
    vf a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
    store(x + i, a * c - b * s);
    store(x + half + i, b * c + a * s);
  }
  for (; i < half; i++) {
    float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

// Writes one token's key and value of one head: [head_dim] each.
template <typename T>
inline void put_token(const Cache<T>& cache, int block, int head, int offset, const float* key, const float* value) {
  T* keys = cache.keys(block, head) + offset;
  T* values = cache.values(block, head) + size_t(offset) * cache.head_dim;
  for (int i = 0; i < cache.head_dim; i++) put(keys + size_t(i) * cache.block_size, key[i]);
  for (int i = 0; i < cache.head_dim; i++) put(values + i, value[i]);
}

}  // namespace PINRAIL_NS
