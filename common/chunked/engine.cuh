// The engine: chunked attention with decays in one kernel, on tensor cores, with a state that never
// leaves the registers. Stages 05 and 06 say how their decays become packets (Tiling::Decay) and how
// blocks are cut (a table of TilingSizes); the rest stands here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "common/ceil_div.hpp"
#include "common/chunked/block.cuh"
#include "common/chunked/preparing_warp.cuh"
#include "common/chunked/rows.cuh"
#include "common/chunked/segments.cuh"
#include "common/chunked/state_warp.cuh"
#include "common/chunked/walk.cuh"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/sanitized.hpp"
#include "common/shared_storage.cuh"

namespace attn::chunked {

// [doc:kernel]
// accumulate: outputs are added to what is there.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    walk_kernel(Walk<typename Tiling::T> x, Segments segments, int column_tiles, bool aligned,
                bool accumulate) {
  // In 32 bits: a grid has no more blocks, and a division of 64 would keep the first loads waiting.
  const int index = blockIdx.x, H = static_cast<int>(x.write.H);
  const int tile = index % column_tiles;
  // First segments first: they may be the longest, and have nothing to wait for.
  const int heads = static_cast<int>(x.write.B) * H, head = index / column_tiles % heads;
  const int segment = index / column_tiles / heads;
  const int64_t b = head / H, h = head % H;
  const int begin = segments.begin(segment);
  const int end = segment < segments.count - 1 ? segments.begin(segment + 1) : int(x.write.L);
  const Block<Tiling> block = {
      .x = x,
      .segments = segments,
      .smem = shared_storage<SharedStorage<Tiling>>(),
      .aligned = aligned,
      .b = b,
      .h = h,
      .segment = segment,
      .m0 = tile * Tiling::kM,
      .begin = begin,
      .end = end,
      .rounds = (end - begin + Tiling::kRows - 1) / Tiling::kRows,
  };
  const int warp = threadIdx.x / kWarp;
  if (warp < Tiling::kStateWarps) {
    StateWarp<Tiling>(block).run(accumulate);
  } else if (Tiling::kLoadWarps == 0 || warp < Tiling::kStateWarps + Tiling::kPrepareWarps) {
    PreparingWarp<Tiling>(block).run();
  } else {
    LoadingWarp<Tiling>(block).run();
  }
}
// [/doc:kernel]

template <class Tiling>
void launch_walk(const Walk<typename Tiling::T>& x, const Segments& segments, bool accumulate,
                 cudaStream_t stream) {
  const bool aligned = rows_are_16_bytes(x.read) && rows_are_16_bytes(x.write) &&
                       rows_are_16_bytes(x.value) && rows_are_16_bytes(x.decay) &&
                       rows_are_16_bytes(x.output);
  const int column_tiles = static_cast<int>(ceil_div(x.value.D, Tiling::kM));
  LaunchConfig config(x.heads() * segments.count * column_tiles, Tiling::kThreads,
                      dynamic_shared_bytes<SharedStorage<Tiling>>(), stream);
  // It follows one that writes what the segments add, and waits for that itself.
  config.overlapping = segments.count > 1 && !accumulate;
  launch(config, walk_kernel<Tiling>, x, segments, column_tiles, aligned, accumulate);
}

// The rows of the state that a block holds at a head size of E, and its columns at the most. (A
// sanitizer learns nothing new from the tilings between.)
inline int64_t row_tile(int64_t E) { return E <= 64 ? 64 : !kSanitized && E <= 128 ? 128 : 256; }
inline int64_t column_tile(int64_t E) { return row_tile(E) == 128 ? 128 : 64; }

template <class Tilings, class Sizes>
using TilingOf = Tiling<typename Tilings::T, typename Tilings::Decay, Sizes>;

// [doc:choice]
// Walks all segments, by the tiling for the shape: Tilings is a stage's table for one element type.
template <class Tilings>
void walk_segments(const Walk<typename Tilings::T>& x, const Segments& segments,
                   cudaStream_t stream) {
  using T = typename Tilings::T;
  const auto run = [&]<class Tiling>(Tiling) { launch_walk<Tiling>(x, segments, false, stream); };
  const int64_t E = x.write.D;
  if constexpr (sizeof(T) == 2) {
    const auto alone = [&](int columns) {
      const int64_t blocks = x.heads() * segments.count * ceil_div(x.value.D, columns);
      return blocks <= multiprocessors();
    };
    if (E <= 64 && (kSanitized || alone(32)))
      return run(TilingOf<Tilings, typename Tilings::AloneNarrow>());
    if constexpr (!kSanitized) {
      if (E <= 64 && alone(64)) return run(TilingOf<Tilings, typename Tilings::Alone>());
    }
  }
  if constexpr (sizeof(T) == 4 || !kSanitized) {
    if (E <= 64) return run(TilingOf<Tilings, typename Tilings::UpTo64>());
  }
  if constexpr (!kSanitized) {
    if (E <= 128) return run(TilingOf<Tilings, typename Tilings::UpTo128>());
  }
  // Above 256 rows of the state do not fit: their parts of the outputs are added up.
  using Part = TilingOf<Tilings, typename Tilings::UpTo256>;
  for (int64_t e = 0; e < E; e += Part::kE) {
    launch_walk<Part>(state_part(x, e, Part::kE), segments.from_row(e), e > 0, stream);
  }
}
// [/doc:choice]

}  // namespace attn::chunked
