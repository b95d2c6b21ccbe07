// See step3_chunked.hpp: the cores, the segments, and the choice of instruction set.
#include "01_cpu_reference/step3_chunked.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "01_cpu_reference/step3_walk.hpp"
#include "common/parallel.hpp"

namespace attn::cpu {
namespace {

// Floats that begin on a cache line, so that no vector load crosses one.
struct alignas(64) CacheLine {
  float floats[16];
};
using AlignedFloats = std::unique_ptr<CacheLine[]>;

int64_t cache_lines(int64_t floats) { return (floats + 15) / 16; }
AlignedFloats zeros(int64_t floats) { return std::make_unique<CacheLine[]>(cache_lines(floats)); }
AlignedFloats uninitialised(int64_t floats) {
  return std::make_unique_for_overwrite<CacheLine[]>(cache_lines(floats));
}
float* data(const AlignedFloats& aligned) { return reinterpret_cast<float*>(aligned.get()); }

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

using WalkFunction = void (*)(const Walk&);

WalkFunction walk_for(Isa isa) {
#ifdef ATTN_X86_WALKS
  if (isa == Isa::avx512) return walk_avx512;
  if (isa == Isa::avx2) return walk_avx2;
#endif
  (void)isa;
  return walk_portable;
}

// [doc:segments]
// Into how many segments each of `sequences` is cut. In one piece the time goes with the sequences
// of the busiest thread; in segments the threads are even, for half as much work again at the most.
int64_t segments_per_sequence(int64_t sequences, int64_t L, int64_t threads) {
  const int64_t busiest = (sequences + threads - 1) / threads;
  if (2 * busiest * threads <= 3 * sequences) return 1;
  const int64_t chunks = (L + kChunk - 1) / kChunk;
  return std::min(chunks, (4 * threads + sequences - 1) / sequences);
}
// [/doc:segments]

}  // namespace

std::vector<Isa> usable_isas() {
  std::vector<Isa> isas = {Isa::portable};
#ifdef ATTN_X86_WALKS
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) isas.push_back(Isa::avx2);
  if (avx2 && __builtin_cpu_supports("avx512f")) isas.push_back(Isa::avx512);
#endif
  return isas;
}

void causal_product_chunked(TensorView<const float> q, TensorView<const float> k,
                            TensorView<const float> v, TensorView<float> o, Isa isa) {
  const int64_t E = q.D, M = v.D, sequences = q.B * q.H;
  const int64_t segments = segments_per_sequence(sequences, q.L, core_count());
  const int64_t segment_rows = round_up((q.L + segments - 1) / segments, kChunk);
  const int64_t state_floats = round_up(E, kRowTile) * round_up(M, kPanel);
  const int64_t scratch_floats =
      kChunk * (3 * round_up(E, kRowTile) + round_up(M, kPanel) + kChunk);
  const WalkFunction walk_function = walk_for(isa);

  // The walk of segment `segment` of sequence `sequence`, from `state`.
  const auto walk = [&](int64_t sequence, int64_t segment, float* state, bool with_outputs) {
    const int64_t b = sequence / q.H, h = sequence % q.H;
    const int64_t first = std::min(q.L, segment * segment_rows);
    const int64_t last = std::min(q.L, first + segment_rows);
    const AlignedFloats scratch = uninitialised(scratch_floats);
    walk_function({q.row(b, h, first), k.row(b, h, first), v.row(b, h, first),
                   with_outputs ? o.row(b, h, first) : nullptr, q.stride_l, k.stride_l, v.stride_l,
                   o.stride_l, last - first, E, M, state, data(scratch)});
  };

  if (segments == 1) {
    parallel_for(sequences, [&](int64_t sequence) {
      const AlignedFloats state = zeros(state_floats);
      walk(sequence, 0, data(state), true);
    });
    return;
  }

  const AlignedFloats states = zeros(sequences * segments * state_floats);
  const auto state_of = [&](int64_t sequence, int64_t segment) {
    return data(states) + (sequence * segments + segment) * state_floats;
  };
  // [doc:phases]
  // 1. What each segment adds to the state, kept where the segment after it will look.
  parallel_for(sequences * (segments - 1), [&](int64_t i) {
    const int64_t sequence = i / (segments - 1), segment = i % (segments - 1);
    walk(sequence, segment, state_of(sequence, segment + 1), false);
  });
  // 2. The running sum: the state before each segment.
  for (int64_t sequence = 0; sequence < sequences; sequence++) {
    for (int64_t segment = 1; segment < segments; segment++) {
      const float* before = state_of(sequence, segment - 1);
      float* state = state_of(sequence, segment);
      for (int64_t i = 0; i < state_floats; i++) state[i] += before[i];
    }
  }
  // 3. The outputs.
  parallel_for(sequences * segments, [&](int64_t i) {
    walk(i / segments, i % segments, state_of(i / segments, i % segments), true);
  });
  // [/doc:phases]
}

}  // namespace attn::cpu
