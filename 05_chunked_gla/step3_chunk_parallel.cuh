// Gated linear attention with the sequence cut into segments that are walked at the same time.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "05_chunked_gla/operands.cuh"
#include "05_chunked_gla/step2_fused.cuh"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/ptx/exp2.cuh"
#include "common/stream_buffer.hpp"

namespace attn::chunked_gla {

constexpr int kScanThreads = 256;

// From the state that each segment adds to the state that each segment begins with. A thread owns
// one element of the state of one head.
inline __global__ void __launch_bounds__(kScanThreads)
    scan_segments_kernel(TensorView<float> states,           // [B, H * count, E, M], in place
                         TensorView<const float> log_decay,  // [B, H * count, parts, E]
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
  for (int first = 0; first < count; first += kAhead) {
    float added[kAhead], decay[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + j >= count) break;
      const int slice = h * count + first + j;
      float log_sum = 0;
      for (int part = 0; part < log_decay.L; ++part) log_sum += log_decay.row(b, slice, part)[e];
      decay[j] = exp2_approx(log_sum);
      added[j] = states.row(b, slice, e)[m];
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + j >= count) break;
      states.row(b, h * count + first + j, e)[m] = S;
      S = S * decay[j] + added[j];
    }
  }
  if (final_state.data != nullptr) final_state.row(b, h, e)[m] = S;
}

template <class T>
void chunk_parallel_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  const int64_t B = x.q.B, H = x.q.H, E = x.q.D, M = x.v.D;
#ifndef FILL
#define FILL 1
#endif
  const int64_t blocks = B * H * ((M + (E <= 128 && E > 64 ? 127 : 63)) / (E <= 128 && E > 64 ? 128 : 64));
  const int64_t slots = multiprocessors() * (E <= 64 ? 2 : 1);
  int64_t count = std::max<int64_t>(1, slots * FILL / blocks);
  const int64_t rows = ((x.q.L + count - 1) / count + 31) / 32 * 32;
  count = (x.q.L + rows - 1) / rows;
  constexpr int kParts = 2;
  StreamBuffer<float> state_memory(B * H * count * E * M, stream);
  StreamBuffer<float> decay_memory(B * H * count * kParts * E, stream);
  const TensorView<float> states = dense_view(state_memory.data(), B, H * count, E, M, Layout::BHLD);
  const TensorView<float> log_decay =
      dense_view(decay_memory.data(), B, H * count, int64_t{E <= 64 || (E <= 128 && sizeof(T) == 2) ? 2 : 1}, E, Layout::BHLD);
  const Segments segments = {static_cast<int>(count), static_cast<int>(rows), log_decay};

  GlaOperands<T> local = x;
  local.o.data = nullptr;
  local.initial_state = {};
  local.final_state = states;
  fused_segments(local, segments, stream);

  const int blocks_per_head = static_cast<int>((E * M + kScanThreads - 1) / kScanThreads);
  launch({B * H * blocks_per_head, kScanThreads, 0, stream}, scan_segments_kernel, states,
         log_decay, x.initial_state, x.final_state, blocks_per_head, static_cast<int>(count));

  GlaOperands<T> whole = x;
  whole.initial_state = states;
  whole.final_state = {};
  fused_segments(whole, {segments.count, segments.rows}, stream);
}

}  // namespace attn::chunked_gla
