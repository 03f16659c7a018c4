// Logits to token ids; see pinrail_engine/run/sample.py for the definition, of which every rule holds here.
//
// Weights are whole numbers, so a sum of them is exact in any order: a token depends on its row alone, not on the width
// of vectors, threads, or the way it is looked for.
//
// A row is read once, for the maxima of groups of 16 ids. They tell the likeliest token, a bound that top_k tokens
// reach, and where tokens above a bound are. A draw from all reads it once more; one from a head of the vocabulary works
// on a few candidates, which are never sorted: what of them is kept, and which one is drawn, is found by halving.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "adjust.h"
#include "vec.h"

namespace PINRAIL_NS {

constexpr int SPAN = 1024;          // ids whose weights are summed together
constexpr int LANES = 64;           // groups of a span; ids of a group are so far apart
constexpr double COLDEST = 1e-30;   // temperature; float32 has nothing to divide by below 1e-45
constexpr double SLACK = 0.01;      // in the exponent; more than float32's rounding, and a few more candidates do no harm
constexpr double WEIGHTLESS = -40;  // e to it is below half a unit, whatever the vocabulary
constexpr int BUCKETS = 512;        // that many candidates are thrown into
constexpr int MANY = 512;           // candidates that are halved without

typedef float vhalf __attribute__((vector_size(W * 2)));
typedef double vd __attribute__((vector_size(W * 4)));

struct Candidate {
  float logit;
  int32_t id;
  float weight;
};

// What one thread works with.
struct Tray {
  Tray(int vocab, bool adjusts)
      : maxima(new float[size_t(vocab / SPAN + 1) * LANES]),
        bounds(new float[size_t(vocab / SPAN + 1) * LANES]),
        peaks(new float[vocab / SPAN + 1]),
        sums(new double[vocab / SPAN + 1]),
        last(new float[SPAN]),
        candidates(new Candidate[vocab + 1]),
        row(adjusts ? new float[vocab] : nullptr),
        counts(adjusts ? new int32_t[vocab]() : nullptr) {}

  std::unique_ptr<float[]> maxima;           // [spans, LANES]
  std::unique_ptr<float[]> bounds;           // [spans, LANES]
  std::unique_ptr<float[]> peaks;            // [spans]
  std::unique_ptr<double[]> sums;            // [spans], of weights
  std::unique_ptr<float[]> last;             // [SPAN]
  std::unique_ptr<Candidate[]> candidates;   // [vocab + 1]
  std::unique_ptr<float[]> row;              // [vocab], changed logits
  std::unique_ptr<int32_t[]> counts;         // [vocab], 0
};

// Logits [vocab] as whole spans.
struct Spans {
  const float* x;
  const float* last;  // [SPAN]: a copy of the last one, if it is not whole, filled up with -inf
  int vocab, count;

  const float* operator[](int i) const { return (i + 1) * SPAN <= vocab ? x + size_t(i) * SPAN : last; }
};

inline Spans spans_of(const float* x, int vocab, float* last) {
  const int whole = vocab / SPAN * SPAN;
  std::copy(x + whole, x + vocab, last);
  std::fill(last + (vocab - whole), last + SPAN, NEVER);
  return {x, last, vocab, (vocab + SPAN - 1) / SPAN};
}

// ---- the likeliest

// x: [SPAN] -> maxima [LANES] of its groups; lanes of `broken` are set where there is a NaN, which is no maximum.
inline float group_maxima(const float* x, float* maxima, vi& broken) {
  constexpr int n = LANES / W;
  vf most[n];
  for (int l = 0; l < n; l++) most[l] = splat(NEVER);
  for (int i = 0; i < SPAN; i += LANES) {
    for (int l = 0; l < n; l++) {
      const vf v = load(x + i + l * W);
      broken |= v != v;
      most[l] = max(v, most[l]);
    }
  }
  vf all = most[0];
  for (int l = 0; l < n; l++) {
    store(maxima + l * W, most[l]);
    all = max(most[l], all);
  }
  return maximum(all);
}

// The row's maximum, NaN where one is in it. Fills tray.maxima and tray.peaks.
inline float survey(const Spans& row, Tray& tray) {
  vi broken = {};
  float peak = NEVER;
  for (int i = 0; i < row.count; i++) {
    tray.peaks[i] = group_maxima(row[i], &tray.maxima[size_t(i) * LANES], broken);
    peak = std::max(peak, tray.peaks[i]);
  }
  for (int l = 0; l < W; l++)
    if (broken[l]) return std::numeric_limits<float>::quiet_NaN();
  return peak;
}

// The lowest id that has the maximum.
inline int likeliest(const Spans& row, float peak, const Tray& tray) {
  const int span = int(std::find(&tray.peaks[0], &tray.peaks[row.count], peak) - &tray.peaks[0]);
  return span * SPAN + int(std::find(row[span], row[span] + SPAN, peak) - row[span]);
}

// ---- weights

struct Scale {
  float peak, temperature;
  float of_peak;  // the likeliest token's weight: the largest power of 2 with which a row's sum to less than 2^53

  // A logit that all tokens reach which have a weight, and this part of the likeliest one's.
  double floor_of(double part) const { return peak + temperature * std::max(std::log(part) - SLACK, WEIGHTLESS); }
};

inline Scale scale_of(float peak, double temperature, int vocab) {
  const int bits = 32 - __builtin_clz(unsigned(vocab));
  return {peak, float(std::max(temperature, COLDEST)), float(std::ldexp(1.0, 53 - bits))};
}

// To the nearest whole number, ties to even. From 2^23 on floats are whole, and to add it rounds what is less.
inline vf rounded(vf x) {
  const vf whole = splat(8388608.0f);
  return x < whole ? (x + whole) - whole : x;
}

// of_peak e^((x - peak) / temperature), as a whole number; x, weights: [n], n a multiple of W.
inline void weights_of(const Scale& scale, const float* x, int n, float* weights) {
  const vf peak = splat(scale.peak), temperature = splat(scale.temperature), of_peak = splat(scale.of_peak);
  for (int i = 0; i < n; i += W) store(weights + i, rounded(exp((load(x + i) - peak) / temperature) * of_peak));
}

// Of weights [n], n a multiple of W.
inline double sum_of(const float* weights, int n) {
  vd low = {}, high = {};
  for (int i = 0; i < n; i += W) {
    vhalf a, b;
    std::memcpy(&a, weights + i, sizeof a);
    std::memcpy(&b, weights + i + W / 2, sizeof b);
    low += __builtin_convertvector(a, vd);
    high += __builtin_convertvector(b, vd);
  }
  low += high;
  double total = 0;
  for (int i = 0; i < W / 2; i++) total += low[i];
  return total;
}

// The whole row's sum. Fills tray.sums.
inline double sum_spans(const Spans& row, const Scale& scale, Tray& tray) {
  double total = 0;
  for (int i = 0; i < row.count; i++) {
    float weights[SPAN];
    weights_of(scale, row[i], SPAN, weights);
    total += tray.sums[i] = sum_of(weights, SPAN);
  }
  return total;
}

// ---- a draw from all

// The first id whose cumulative weight exceeds u times the row's.
inline int draw_from_all(const Spans& row, const Scale& scale, double u, Tray& tray) {
  double left = std::floor(sum_spans(row, scale, tray) * u);  // below the sum, for u is below 1
  int span = 0;
  while (tray.sums[span] <= left) left -= tray.sums[span++];
  float weights[SPAN];
  weights_of(scale, row[span], SPAN, weights);
  int i = 0;
  for (double sum; (sum = sum_of(weights + i, LANES)) <= left; i += LANES) left -= sum;
  while (weights[i] <= left) left -= weights[i++];
  return span * SPAN + i;
}

// ---- a draw from a head

inline bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

inline bool earlier(const Candidate& a, const Candidate& b) { return a.id < b.id; }

inline double sum_of(const Candidate* candidates, int n) {
  double totals[4] = {};  // not one: each addition would wait for the one before it
  for (int i = 0; i < n; i++) totals[i % 4] += candidates[i].weight;
  return totals[0] + totals[1] + totals[2] + totals[3];
}

// Moves those that are kept to the front, in order, without a branch that is guessed wrong; the others are lost.
template <typename Keep>
inline int filter(Candidate* candidates, int n, const Keep& is_kept) {
  int kept = 0;
  for (int i = 0; i < n; i++) {
    const Candidate c = candidates[i];
    candidates[kept] = c;
    kept += is_kept(c);
  }
  return kept;
}

// How many candidates, first in `order`, have the weight `mass` together, which is above 0: the fewest. They are moved
// to the front, the last of them to its place.
template <typename Order>
inline int reach(Candidate* candidates, int n, double mass, const Order& order) {
  int low = 0, high = n;  // the last one is among these
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    std::nth_element(candidates + low, candidates + middle, candidates + high, order);
    const double lower = sum_of(candidates + low, middle - low);
    if (lower >= mass) {
      high = middle;
    } else {
      mass -= lower;
      low = middle;
    }
  }
  return high;
}

// The same for any number of them, of which those behind may be lost. bucket: of a candidate, 0 … BUCKETS - 1, which
// never falls in `order`; of all but one bucket, no more than the sum is needed.
template <typename Order, typename Bucket>
inline int reach(Candidate* candidates, int n, double mass, const Order& order, const Bucket& bucket) {
  if (n <= MANY) return reach(candidates, n, mass, order);
  double sums[BUCKETS] = {};
  for (int i = 0; i < n; i++) sums[bucket(candidates[i])] += candidates[i].weight;
  int last = 0;
  while (last < BUCKETS - 1 && sums[last] < mass) mass -= sums[last++];
  n = filter(candidates, n, [&](const Candidate& c) { return bucket(c) <= last; });
  const auto within = std::partition(candidates, candidates + n, [&](const Candidate& c) { return bucket(c) < last; });
  const int before = int(within - candidates);
  return before + reach(within, n - before, mass, order);
}

inline int reach_by_logit(const Scale& scale, Candidate* candidates, int n, double mass) {
  float least = scale.peak;
  for (int i = 0; i < n; i++) least = std::min(least, candidates[i].logit);
  const float fine = (BUCKETS - 1) / std::max(scale.peak - least, float(COLDEST));
  return reach(candidates, n, mass, likelier, [=](const Candidate& c) {
    const float bucket = (scale.peak - c.logit) * fine;
    return bucket < BUCKETS - 1 ? int(bucket) : BUCKETS - 1;
  });
}

inline int reach_by_id(int vocab, Candidate* candidates, int n, double mass) {
  const int wide = vocab / BUCKETS + 1;
  return reach(candidates, n, mass, earlier, [=](const Candidate& c) { return c.id / wide; });
}

// A logit that k or more reach, and seldom many more: the least of the k largest maxima, each of which is in a group of
// its own. Of groups that are joined until they are four times as many, for it takes less to look for it there.
inline float bound(int k, int groups, Tray& tray) {
  if (k > groups) return NEVER;
  float* bounds = &tray.bounds[0];
  std::copy(&tray.maxima[0], &tray.maxima[groups], bounds);
  while (groups % 2 == 0 && groups / 2 >= 4 * k) {
    groups /= 2;
    for (int i = 0; i < groups; i++) bounds[i] = std::max(bounds[i], bounds[i + groups]);
  }
  std::nth_element(bounds, bounds + k - 1, bounds + groups, [](float a, float b) { return a > b; });
  return bounds[k - 1];
}

// All tokens whose logits reach `floor`, with their weights, to tray.candidates; returns how many.
inline int gather(const Spans& row, const Scale& scale, float floor, Tray& tray) {
  Candidate* const candidates = &tray.candidates[0];
  int n = 0;
  for (int group = 0; group < row.count * LANES; group++) {
    if (tray.maxima[group] < floor) continue;
    const int first = group / LANES * SPAN + group % LANES, end = std::min(row.vocab, (group / LANES + 1) * SPAN);
    for (int id = first; id < end; id += LANES) {
      candidates[n] = {row.x[id], id, 0};
      n += row.x[id] >= floor;
    }
  }
  for (int i = 0; i < n; i += W) {
    float x[W] = {};
    for (int l = 0; l < std::min(W, n - i); l++) x[l] = candidates[i + l].logit;
    weights_of(scale, x, W, x);
    for (int l = 0; l < std::min(W, n - i); l++) candidates[i + l].weight = x[l];
  }
  return n;
}

// Candidates that include all that top_k and min_p keep; returns how many.
inline int gather_head(const Choice& choice, const Spans& row, const Scale& scale, Tray& tray) {
  double floor = scale.floor_of(choice.min_p);
  if (choice.top_k > 0) floor = std::max(floor, double(bound(choice.top_k, row.count * LANES, tray)));
  return gather(row, scale, float(floor), tray);
}

// Candidates that have top_p of the row's weight together, and no likelier one is missing; then the others' weight.
//
// Tried are those of at least a 64th of what top_p leaves out, then of a 1024th and so on.
inline int gather_nucleus(double top_p, const Spans& row, const Scale& scale, Tray& tray, double& rest) {
  const double total = sum_spans(row, scale, tray);
  for (double least = (1 - top_p) * total / 64;; least /= 16) {
    const int n = gather(row, scale, float(scale.floor_of(least / scale.of_peak)), tray);
    rest = total - sum_of(&tray.candidates[0], n);
    if (total - rest >= top_p * total) return n;
  }
}

// Those of n candidates that are kept are moved to the front; returns how many. rest: the weight of tokens that are no
// candidates, but count when top_p is taken.
inline int keep(const Choice& choice, const Scale& scale, double rest, Candidate* candidates, int n) {
  if (choice.top_k > 0 && choice.top_k < n) {
    std::nth_element(candidates, candidates + choice.top_k, candidates + n, likelier);
    n = choice.top_k;
  }
  const double least = choice.min_p * scale.of_peak;
  if (choice.min_p > 0) n = filter(candidates, n, [&](const Candidate& c) { return c.weight >= least; });
  if (choice.top_p < 1) n = reach_by_logit(scale, candidates, n, choice.top_p * (sum_of(candidates, n) + rest));
  return n;
}

inline int draw_from_head(const Choice& choice, const Spans& row, const Scale& scale, Tray& tray) {
  double rest = 0;
  const int n = choice.top_k > 0 || choice.min_p > 0 ? gather_head(choice, row, scale, tray)
                                                     : gather_nucleus(choice.top_p, row, scale, tray, rest);
  Candidate* candidates = &tray.candidates[0];
  const int kept = keep(choice, scale, rest, candidates, n);
  const double target = std::floor(sum_of(candidates, kept) * choice.u);
  return candidates[reach_by_id(row.vocab, candidates, kept, target + 1) - 1].id;
}

// ---- one row

// The token of logits x [vocab]; -1 for a row that has, as changed, no finite maximum.
inline int choose(const Choice& choice, const float* x, int vocab, Tray& tray) {
  if (is_adjusted(choice)) {
    adjust(choice, x, vocab, &tray.counts[0], &tray.row[0]);
    x = &tray.row[0];
  }
  const Spans row = spans_of(x, vocab, &tray.last[0]);
  const float peak = survey(row, tray);
  if (!std::isfinite(peak)) return -1;
  if (!(choice.temperature > 0)) return likeliest(row, peak, tray);
  const Scale scale = scale_of(peak, choice.temperature, vocab);
  const bool is_cut = choice.top_k > 0 || choice.top_p < 1 || choice.min_p > 0;
  return is_cut ? draw_from_head(choice, row, scale, tray) : draw_from_all(row, scale, choice.u, tray);
}

}  // namespace PINRAIL_NS
