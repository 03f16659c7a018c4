// What is needed next: fetched into the second-level cache while something is computed, a line at a time.
#pragma once

namespace PINRAIL_NS {

struct Ahead {
  const char* from;  // nullptr: nothing

  void fetch(long i) const { __builtin_prefetch(from + i * 64, 0, 2); }

  void fetch_two(long i) const {
    if (!from) return;
    fetch(2 * i);
    fetch(2 * i + 1);
  }
};

}  // namespace PINRAIL_NS
