// The C interface: which instruction set, how many threads, and every function by its name. Used by
// pinrail_kernels/native.py alone, which checks what it passes. Functions return 0, or -1 where memory ran out.
//
// One call at a time: the engine has one thread that computes.
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "table.h"
#include "threads.h"

#define PINRAIL_API extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__)
namespace avx2 { extern const pinrail::Table table; }
namespace avx512 { extern const pinrail::Table table; }
namespace avx512_bf16 { extern const pinrail::Table table; }
#if defined(PINRAIL_HAS_FP16)
#include <cpuid.h>
namespace avx512_fp16 { extern const pinrail::Table table; }
#endif
#elif defined(__aarch64__)
namespace neon { extern const pinrail::Table table; }
#endif

namespace pinrail {

namespace {

#if defined(PINRAIL_HAS_FP16)
// Asked of the processor itself: not every compiler's library knows this one.
bool has_halves() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1);
}
#endif

// Those that this processor has, the one to be preferred first.
std::vector<const Table*> supported() {
  std::vector<const Table*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool pairs = wide && __builtin_cpu_supports("avx512bf16");
#if defined(PINRAIL_HAS_FP16)
  if (wide && has_halves()) found.push_back(&avx512_fp16::table);
#endif
  // Intel's processors take two cycles for what AMD's do in one: there, float32 arithmetic is twice as fast.
  if (pairs && __builtin_cpu_is("amd")) found.push_back(&avx512_bf16::table);
  if (wide) found.push_back(&avx512::table);
  if (pairs && !__builtin_cpu_is("amd")) found.push_back(&avx512_bf16::table);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&avx2::table);
#elif defined(__aarch64__)
  found.push_back(&neon::table);
#endif
  return found;
}

const Table* chosen = nullptr;
std::unique_ptr<Team> team;

template <typename F>
int guarded(const F& f) {
  try {
    f();
    return 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

}  // namespace

// Which functions and structures these are: a caller that was written for others must not call them.
PINRAIL_API int pinrail_interface() { return 3; }

// Names of what this processor supports, the preferred one first, with commas between.
PINRAIL_API const char* pinrail_isas() {
  static const std::string names = [] {
    std::string list;
    for (const Table* table : supported()) list.append(list.empty() ? "" : ",").append(table->name);
    return list;
  }();
  return names.c_str();
}

// To be called before all that follows; -1 where `isa` is none of `pinrail_isas`.
PINRAIL_API int pinrail_begin(const char* isa, int threads) {
  for (const Table* table : supported()) {
    if (std::strcmp(table->name, isa) != 0) continue;
    chosen = table;
    if (!team || team->size() != threads) team = std::make_unique<Team>(threads);
    return 0;
  }
  return -1;
}

PINRAIL_API int pinrail_pack(const Packing* matrices, int count) {
  return guarded([&] { chosen->pack(*team, matrices, count); });
}

PINRAIL_API void pinrail_unpack(const Matrix* m, int first, int count, float* out) { chosen->unpack(*m, first, count, out); }

PINRAIL_API void* pinrail_decoder(const Shape* shape, const Layer* layers, const Matrix* embed, const Matrix* head,
                                  const float* norm, const float* frequencies) {
  void* decoder = nullptr;
  guarded([&] { decoder = chosen->decoder(*shape, layers, *embed, *head, norm, frequencies); });
  return decoder;
}

PINRAIL_API void pinrail_free_decoder(void* decoder) { chosen->free_decoder(decoder); }

PINRAIL_API int pinrail_reserve(void* decoder, const Batch* batch) {
  return guarded([&] { chosen->reserve(decoder, *team, *batch); });
}

PINRAIL_API int pinrail_forward(void* decoder, const Batch* batch) {
  return guarded([&] { chosen->forward(decoder, *team, *batch); });
}

PINRAIL_API int pinrail_logits(void* decoder, const int32_t* rows, int n, float* out) {
  return guarded([&] { chosen->logits(decoder, *team, rows, n, out); });
}

PINRAIL_API int pinrail_sample(const float* logits, int rows, int vocab, const Choice* choices, int64_t* tokens) {
  return guarded([&] { chosen->sample(*team, logits, rows, vocab, choices, tokens); });
}

PINRAIL_API int pinrail_linear(const Matrix* m, const float* x, int rows, float* y) {
  return guarded([&] { chosen->linear(*team, *m, x, rows, y); });
}

PINRAIL_API int pinrail_rms_norm(const float* x, const float* w, float eps, int rows, int n, float* y) {
  return guarded([&] { chosen->rms_norm(*team, x, w, eps, rows, n, y); });
}

PINRAIL_API int pinrail_silu_mul(const float* gate_up, int rows, int n, float* y) {
  return guarded([&] { chosen->silu_mul(*team, gate_up, rows, n, y); });
}

PINRAIL_API int pinrail_rope(float* x, const int32_t* positions, const float* frequencies, int rows, int heads, int head_dim) {
  return guarded([&] { chosen->rope(*team, x, positions, frequencies, rows, heads, head_dim); });
}

PINRAIL_API void pinrail_store_kv(const Shape* shape, const Batch* batch, const float* k, const float* v) {
  chosen->store_kv(*shape, *batch, k, v);
}

PINRAIL_API int pinrail_attention(const Shape* shape, const Batch* batch, const float* q, float* out) {
  return guarded([&] { chosen->attention(*team, *shape, *batch, q, out); });
}

}  // namespace pinrail
