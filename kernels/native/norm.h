// RMSNorm: y = w * (x / sqrt(mean(x^2) + eps)). See pinrail_kernels/rms_norm.py for the definition.
#pragma once

#include "vec.h"

namespace PINRAIL_NS {

// x, y: [n], which may be the same; w: [n].
inline void rms_norm(const float* x, const float* w, float eps, int n, float* y) {
  vf squares = {};
  int i = 0;
  for (; i + W <= n; i += W) squares += load(x + i) * load(x + i);
  float total = sum(squares);
  for (int j = i; j < n; j++) total += x[j] * x[j];
  const float scale = 1 / std::sqrt(total / n + eps);
  for (i = 0; i + W <= n; i += W) store(y + i, load(w + i) * (load(x + i) * splat(scale)));
  for (; i < n; i++) y[i] = w[i] * (x[i] * scale);
}

}  // namespace PINRAIL_NS
