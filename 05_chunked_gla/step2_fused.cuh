// Gated linear attention in one kernel, on tensor cores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_block.cuh"
#include "05_chunked_gla/fused_prepare.cuh"
#include "05_chunked_gla/fused_state.cuh"
#include "05_chunked_gla/operands.cuh"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"

namespace attn::chunked_gla {

template <class Tiling, bool kOutputs>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    fused_kernel(GlaOperands<typename Tiling::T> x, Segments segments, int column_tiles,
                 bool aligned, bool accumulate) {
  const int tile = blockIdx.x % column_tiles;
  const int64_t segment = blockIdx.x / column_tiles % segments.count;
  const int64_t head = blockIdx.x / column_tiles / segments.count;
  const int64_t b = head / x.k.H, h = head % x.k.H;
  const int L = static_cast<int>(x.k.L), begin = segment * segments.rows;
  const int end = L - begin > segments.rows ? begin + segments.rows : L;
  const Block<Tiling> block = {
      .x = x,
      .segments = segments,
      .smem = shared_storage<SharedStorage<Tiling>>(),
      .aligned = aligned,
      .b = b,
      .h = h,
      .state_h = h * segments.count + segment,
      .m0 = tile * Tiling::kM,
      .begin = begin,
      .end = end,
      .rounds = (end - begin + Tiling::kRows - 1) / Tiling::kRows,
  };
  if (threadIdx.x / kWarp < Tiling::kStateWarps) {
    StateWarp<Tiling, kOutputs>(block).run(accumulate);
  } else {
    PreparingWarp<Tiling, kOutputs>(block).run();
  }
}

template <class Tiling>
void launch_fused(const GlaOperands<typename Tiling::T>& x, const Segments& segments,
                  bool accumulate, cudaStream_t stream) {
  const bool aligned = rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) && rows_are_16_bytes(x.g) &&
                       (x.o.data == nullptr || (rows_are_16_bytes(x.q) && rows_are_16_bytes(x.o)));
  const int column_tiles = (x.v.D + Tiling::kM - 1) / Tiling::kM;
  const LaunchConfig config(x.k.B * x.k.H * segments.count * column_tiles, Tiling::kThreads,
                            dynamic_shared_bytes<SharedStorage<Tiling>>(), stream);
  const auto kernel = x.o.data == nullptr ? fused_kernel<Tiling, false> : fused_kernel<Tiling, true>;
  launch(config, kernel, x, segments, column_tiles, aligned, accumulate);
}

// Columns [first, first + size) of a view, or as many of them as there are.
template <class T>
TensorView<T> columns(TensorView<T> x, int64_t first, int64_t size) {
  x.data = x.data == nullptr ? nullptr : x.data + first;
  x.D = x.D - first < size ? x.D - first : size;
  return x;
}
// The same of a state's rows.
template <class T>
TensorView<T> state_rows(TensorView<T> S, int64_t first, int64_t size) {
  S.data = S.data == nullptr ? nullptr : S.row(0, 0, first);
  S.L = S.L - first < size ? S.L - first : size;
  return S;
}

template <class T>
void fused_segments(const GlaOperands<T>& x, const Segments& segments, cudaStream_t stream) {
#ifndef T64
#define T64 (sizeof(T) == 2 ? 32 : 16), (sizeof(T) == 2 ? 2 : 4), 2, 3, 32, (sizeof(T) == 2 ? 2 : 1)
#endif
#ifndef T128
#define T128 32, 4, (sizeof(T) == 2 ? 2 : 1), 3, 64, 1
#endif
#ifndef T256
#define T256 16, 4, 1, 2, 64, 1
#endif
  if (x.k.D <= 64) return launch_fused<Tiling<T, 64, T64>>(x, segments, false, stream);
  if (x.k.D <= 128) return launch_fused<Tiling<T, 128, T128>>(x, segments, false, stream);
  constexpr int kE = 256;
  for (int64_t e = 0; e < x.k.D; e += kE) {
    GlaOperands<T> part = x;
    part.q = columns(x.q, e, kE);
    part.k = columns(x.k, e, kE);
    part.g = columns(x.g, e, kE);
    part.initial_state = state_rows(x.initial_state, e, kE);
    part.final_state = state_rows(x.final_state, e, kE);
    Segments part_segments = segments;
    part_segments.log_decay = columns(segments.log_decay, e, kE);
    launch_fused<Tiling<T, kE, T256>>(part, part_segments, /*accumulate=*/e > 0, stream);
  }
}

template <class T>
void fused_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  fused_segments(x, {.count = 1, .rows = static_cast<int>(x.k.L)}, stream);
}

}  // namespace attn::chunked_gla
