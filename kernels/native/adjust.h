// What a request changes in its logits before a token is chosen; see pinrail_engine/run/penalties.py for the definition.
// Which stop tokens and last tokens of bad words are masked was decided there; here they are ids.
#pragma once

#include <cstring>
#include <limits>

#include "table.h"

namespace PINRAIL_NS {

using pinrail::Choice;

constexpr float NEVER = -std::numeric_limits<float>::infinity();

inline bool is_adjusted(const Choice& choice) {
  const bool has_output = choice.n_tokens > choice.prompt_len;
  return choice.n_allowed > 0 || choice.n_masked > 0 || choice.n_biased > 0 || choice.repetition != 1 ||
         (has_output && (choice.frequency != 0 || choice.presence != 0));
}

// A token of the sequence as an id that the vocabulary has: -1, of a broken step, counts as 0.
inline int known(int32_t token, int vocab) { return uint32_t(token) < uint32_t(vocab) ? token : 0; }

// x -> row, [vocab] each. A mask is added, not written, so a row that has NaN or inf anywhere is still seen to be broken.
inline void mask(const Choice& choice, const float* x, int vocab, float* row) {
  if (choice.n_allowed > 0) {
    for (int i = 0; i < vocab; i++) row[i] = x[i] + NEVER;
    for (int i = 0; i < choice.n_allowed; i++) row[choice.allowed[i]] = x[choice.allowed[i]];
  } else {
    std::memcpy(row, x, size_t(vocab) * sizeof(float));
  }
  for (int i = 0; i < choice.n_masked; i++) row[choice.masked[i]] += NEVER;
  for (int i = 0; i < choice.n_biased; i++) row[choice.biased[i]] += choice.biases[i];
}

// Once for each token of prompt and output. counts: [vocab] zeros, before and after.
inline void penalise_repetition(const Choice& choice, int vocab, int32_t* counts, float* row) {
  for (int i = 0; i < choice.n_tokens; i++) {
    float& x = row[known(choice.tokens[i], vocab)];
    if (counts[&x - row]++ == 0) x = x > 0 ? x / choice.repetition : x * choice.repetition;
  }
  for (int i = 0; i < choice.n_tokens; i++) counts[known(choice.tokens[i], vocab)] = 0;
}

// Over the output. counts: [vocab] zeros, before and after.
inline void penalise_counts(const Choice& choice, int vocab, int32_t* counts, float* row) {
  for (int i = choice.prompt_len; i < choice.n_tokens; i++) counts[known(choice.tokens[i], vocab)]++;
  for (int i = choice.prompt_len; i < choice.n_tokens; i++) {
    const int token = known(choice.tokens[i], vocab);
    const float scaled = float(double(counts[token]) * choice.frequency);  // in two roundings, as torch has it
    if (counts[token] > 0) row[token] -= float(double(scaled) + choice.presence);
    counts[token] = 0;
  }
}

// The changed row [vocab] of logits x [vocab].
inline void adjust(const Choice& choice, const float* x, int vocab, int32_t* counts, float* row) {
  mask(choice, x, vocab, row);
  if (choice.repetition != 1) penalise_repetition(choice, vocab, counts, row);
  if (choice.frequency != 0 || choice.presence != 0) penalise_counts(choice, vocab, counts, row);
}

}  // namespace PINRAIL_NS
