// RWKV-6 with every sequence cut into segments that are walked at the same time.
//
// The idea: with few heads, the chunked kernel leaves multiprocessors idle. What segments need of each
// other is the state they begin with, and the state after a segment is
//
//   (what the segment adds, begun at zero) + (what it decays by) * (the state it began with),
//
// so that three kernels do it: what each segment adds, all at the same time (the chunked kernel
// without outputs); a scan over the segments; and the chunked kernel on every segment from its state.
//
// Who computes what: in the scan a thread owns one element of the state of one head, and goes
// through the segments. The other two are step 2's.
//
// What memory moves: k, v and w twice, r and o once, 8 bytes of state per element and segment. This
// is the literature's way to recompute: keeping the state of every 64 rows instead would write and
// read 2 E M / 64 floats per row, for E = M = 128 in bf16 2.7 times as much as reading k, v and w
// again.
//
// What limits it: the same latency as in step 2, now twice: up to a half of what the segments gain.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "06_rwkv6/operands.cuh"
#include "06_rwkv6/step3_chunked.cuh"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/ptx/exp2.cuh"
#include "common/stream_buffer.hpp"

namespace attn::rwkv6 {

constexpr int kScanThreads = 256;

// [doc:scan]
// From the state that each segment adds to the state that each segment begins with.
inline __global__ void __launch_bounds__(kScanThreads)
    scan_segments_kernel(TensorView<float> states,               // [B, H * count, E, M], in place
                         TensorView<const float> log_decay,      // [B, H * count, 1, E]
                         TensorView<const float> initial_state,  // [B, H, E, M], or null
                         TensorView<float> final_state,          // [B, H, E, M], or null
                         int blocks_per_head, int count) {
  const int head = blockIdx.x / blocks_per_head, heads = static_cast<int>(states.H) / count;
  const int b = head / heads, h = head % heads;
  const int i = blockIdx.x % blocks_per_head * kScanThreads + threadIdx.x;
  const int M = static_cast<int>(states.D), e = i / M, m = i % M;
  if (e >= states.L) return;
  float S = initial_state.data == nullptr ? 0 : initial_state.row(b, h, e)[m];
  // A few segments at a time, so that their loads are on their way together.
  constexpr int kAhead = 4;
  for (int first = h * count; first < (h + 1) * count; first += kAhead) {
    float added[kAhead] = {}, decay[kAhead] = {};
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + j >= (h + 1) * count) break;
      added[j] = states.row(b, first + j, e)[m];
      decay[j] = exp2_approx(log_decay.row(b, first + j, 0)[e]);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + j >= (h + 1) * count) break;
      states.row(b, first + j, e)[m] = S;
      S = S * decay[j] + added[j];
    }
  }
  if (final_state.data != nullptr) final_state.row(b, h, e)[m] = S;
}
// [/doc:scan]

// How many segments fill the multiprocessors, one block each.
inline int64_t segments_to_fill(int64_t heads, int64_t E, int64_t M) {
  const int64_t blocks = heads * ((M + column_tile(E) - 1) / column_tile(E));
  return std::max<int64_t>(1, multiprocessors() / blocks);
}

// [doc:chunked_parallel]
// As chunked_rwkv6. Throws CudaError also when there is no memory for the states of the segments.
template <class T>
void chunked_parallel_rwkv6(const Rwkv6Operands<T>& operands, cudaStream_t stream = 0) {
  const Rwkv6Operands<T> x = in_walking_order(operands);
  const int64_t B = x.r.B, H = x.r.H, E = x.r.D, M = x.v.D;
  constexpr int64_t kWholeRounds = 64;  // the most rows that a tiling has in a round
  const int64_t wanted = segments_to_fill(B * H, E, M);
  const int64_t rows = (x.r.L + wanted * kWholeRounds - 1) / (wanted * kWholeRounds) * kWholeRounds;
  const int64_t count = (x.r.L + rows - 1) / rows;

  StreamBuffer<float> state_memory(B * H * count * E * M, stream);
  StreamBuffer<float> decay_memory(B * H * count * E, stream);
  const auto states = dense_view(state_memory.data(), B, H * count, E, M, Layout::BHLD);
  const auto log_decay = dense_view(decay_memory.data(), B, H * count, 1, E, Layout::BHLD);
  const Segments segments = {static_cast<int>(count), static_cast<int>(rows)};

  Rwkv6Operands<T> sums = x;
  sums.o.data = nullptr;
  sums.initial_state = {};
  sums.final_state = states;
  chunked_segments(sums, {segments.count, segments.rows, log_decay}, stream);

  const int blocks_per_head = static_cast<int>((E * M + kScanThreads - 1) / kScanThreads);
  launch({B * H * blocks_per_head, kScanThreads, 0, stream}, scan_segments_kernel, states,
         log_decay, x.initial_state, x.final_state, blocks_per_head, segments.count);

  Rwkv6Operands<T> whole = x;
  whole.initial_state = states;
  whole.final_state = {};
  chunked_segments(whole, segments, stream);
}
// [/doc:chunked_parallel]

}  // namespace attn::rwkv6
