// Compiled once for each instruction set; see CMakeLists.txt and vec.h.
#include "decoder.h"
#include "sampling.h"
#include "table.h"

namespace PINRAIL_NS {

namespace {

// f(thread) on every thread of the team.
template <typename F>
void together(Team& team, const F& f) {
  team.run([](void* context, int thread) { (*static_cast<const F*>(context))(thread); }, const_cast<F*>(&f));
}

void* new_decoder(const Shape& shape, const Layer* layers, const Matrix& embed, const Matrix& head, const float* norm,
                  const float* frequencies) {
  Decoder* d = new Decoder{};
  d->shape = shape;
  d->layers.assign(layers, layers + shape.layers);
  d->embed = embed;
  d->head = head;
  d->norm = norm;
  d->frequencies.assign(frequencies, frequencies + shape.head_dim / 2);
  return d;
}

void free_decoder(void* decoder) { delete static_cast<Decoder*>(decoder); }

void reserve(void* decoder, const Team& team, const Batch& batch) {
  prepare(*static_cast<Decoder*>(decoder), team.size(), batch);
}

void run_forward(void* decoder, Team& team, const Batch& batch) { forward(*static_cast<Decoder*>(decoder), team, batch); }

void run_logits(void* decoder, Team& team, const int32_t* rows, int n, float* out) {
  logits(*static_cast<Decoder*>(decoder), team, rows, n, out);
}

void sample(Team& team, const float* logits, int rows, int vocab, const Choice* choices, int64_t* tokens) {
  const bool adjusts = std::any_of(choices, choices + rows, is_adjusted);
  std::vector<Tray> trays;
  for (int i = 0; i < team.size(); i++) trays.emplace_back(vocab, adjusts);
  together(team, [&](int thread) {
    for (int row; (row = team.take()) < rows;)
      tokens[row] = choose(choices[row], logits + size_t(row) * vocab, vocab, trays[thread]);
  });
}

void run_pack(Team& team, const Packing* matrices, int count) {
  together(team, [&](int) {
    Room memory;
    for (int i = 0; i < count; i++) {
      pack(team, matrices[i], memory.of(2 * size_t(matrices[i].matrix.k)));
      team.barrier();
    }
  });
}

void linear(Team& team, const Matrix& m, const float* x, int rows, float* y) {
  together(team, [&](int) {
    Room memory;
    Crew crew(&team);
    gemm(crew, m, x, m.k, rows, memory.of(scratch_floats(m.k)), writes(m, y, m.n));
  });
}

void unpack(const Matrix& m, int first, int count, float* out) {
  for (int i = 0; i < count; i++) unpack_output(m, first + i, out + size_t(i) * m.k);
}

void run_rms_norm(Team& team, const float* x, const float* w, float eps, int rows, int n, float* y) {
  together(team, [&](int) {
    Crew crew(&team);
    each_row(crew, 0, rows, [&](int row) { rms_norm(x + size_t(row) * n, w, eps, n, y + size_t(row) * n); });
  });
}

void silu_mul(Team& team, const float* gate_up, int rows, int n, float* y) {
  together(team, [&](int) {
    Crew crew(&team);
    each_row(crew, 0, rows, [&](int row) {
      const float *gate = gate_up + size_t(row) * 2 * n, *up = gate + n;
      float* out = y + size_t(row) * n;
      for (int i = 0; i < n; i += W) {
        float g[W] = {}, u[W] = {};
        const int some = std::min(W, n - i);
        std::memcpy(g, gate + i, some * sizeof(float));
        std::memcpy(u, up + i, some * sizeof(float));
        store(g, silu(load(g)) * load(u));
        std::memcpy(out + i, g, some * sizeof(float));
      }
    });
  });
}

void rope(Team& team, float* x, const int32_t* positions, const float* frequencies, int rows, int heads, int head_dim) {
  together(team, [&](int) {
    Crew crew(&team);
    std::vector<float> turns(head_dim);
    each_row(crew, 0, rows, [&](int row) {
      angles(positions[row], head_dim, frequencies, turns.data(), turns.data() + head_dim / 2);
      for (int h = 0; h < heads; h++)
        turn(x + (size_t(row) * heads + h) * head_dim, head_dim, turns.data(), turns.data() + head_dim / 2);
    });
  });
}

template <typename T>
void store_as(const Shape& s, const Batch& batch, const float* k, const float* v) {
  const Cache<T> cache = cache_of<T>(s, batch.kv, batch.blocks, 0);
  for (int i = 0; i < batch.sequences; i++) {
    const Sequence& q = batch.sequence[i];
    const int32_t* table = batch.tables + size_t(q.line) * batch.table_width;
    for (int j = 0; j < q.count * s.kv_heads; j++) {
      const int position = q.start + j / s.kv_heads, head = j % s.kv_heads;
      const size_t at = (size_t(q.row) * s.kv_heads + j) * s.head_dim;
      put_token(cache, table[position / s.block_size], head, position % s.block_size, k + at, v + at);
    }
  }
}

void store_kv(const Shape& s, const Batch& batch, const float* k, const float* v) {
  s.kv_kind == pinrail::F32 ? store_as<float>(s, batch, k, v) : store_as<uint16_t>(s, batch, k, v);
}

template <typename T>
void attention_as(Team& team, const Shape& s, const Batch& batch, const float* q, float* out) {
  const Cache<T> cache = cache_of<T>(s, batch.kv, batch.blocks, 0);
  const int q_size = s.heads * s.head_dim;
  Decoder d{};
  d.shape = s;
  prepare(d, team.size(), batch);
  together(team, [&](int thread) {
    for (int item; (item = team.take()) < int(d.pieces.size());)
      attend(s, cache, batch, d.pieces[item], q, q_size, d.partial.of(0), out, q_size, d.desks[thread].of(0));
    team.barrier();
    for (int item; (item = team.take()) < int(d.joined.size());)
      join_pieces(s, batch, d.pieces[d.joined[item]], d.partial.of(0), out, q_size);
  });
}

void run_attention(Team& team, const Shape& s, const Batch& batch, const float* q, float* out) {
  s.kv_kind == pinrail::F32 ? attention_as<float>(team, s, batch, q, out) : attention_as<uint16_t>(team, s, batch, q, out);
}

}  // namespace

extern const pinrail::Table table;
const pinrail::Table table = {
    PINRAIL_NAME, new_decoder, free_decoder, reserve, run_forward, run_logits, run_pack, sample, linear, unpack,
    run_rms_norm, silu_mul, rope, store_kv, run_attention,
};

}  // namespace PINRAIL_NS
