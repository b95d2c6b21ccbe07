// Gated linear attention in one kernel, on tensor cores: memory is read once and written once.
//
// The idea: sub-chunks of 16 rows, the size of a tensor core's tile, and a state that never leaves
// the registers. With G_i the sum of a column's gates from the sub-chunk's first row up to row i,
//
//   o_i = q_i exp(G_i) . S + sum over j <= i of (q_i . exp(G_i - G_j) k_j) v_j
//   S   = diag(exp(G_last)) S + sum over j of exp(G_last - G_j) k_j v_j^T
//
// So a sub-chunk is three products of small matrices, q S, scores v and k^T v, once its rows of q
// and k are scaled, by factors that are never over 1. The scores are a fourth, if their weights come
// apart: exp(G_i - G_j) = exp(c_i - h) exp(h - c_j), where c is G without the first row's gate.
// With h halfway, c_last / 2, neither factor leaves the range of a float as long as c_last is no
// less than -88 (2^-128). Where it is, which the kernel sees from the data, the scores of those
// columns are made row by row, of keys that decay along. Nothing is clamped.
//
// Who computes what: a block has one head and up to 128 of its value columns. Its warps have two
// jobs. Preparing warps fetch rows (cp.async) and make packets: scaled rows of q and k, and the
// scores q k^T. State warps own 16 or 32 columns of the state each, with all or half of its rows,
// and take packet after packet. While packets of one round are taken, those of the next are
// prepared, and the rows of the two after that are on their way: one barrier per round. Where there
// are registers for more warps, these fetch the rows.
//
// How exact: one bf16 product of rounded factors would cost 1.7e-3 for each rounding, as much as
// rounding the output. So S and the scaled q go in as tf32, the scores as the sum of two bf16, and
// the scaled k as fp16, with v, if both are of a size that suits it, which the preparing warps see
// to; otherwise as two bf16, which is slower. q, k and v as they come are bf16 already.
//
// What memory moves: every operand once.
//
// What limits it: the state warps, which go from product to product. A multiprocessor has two or
// three warps per scheduler. Tensor cores are a third busy, memory three quarters. At E = 128 it is
// both kinds of warps, which together take three quarters of the sum of what they take alone; with
// few heads the preparing warps, one per scheduler, and what all do in shared memory.
//
// What the next step removes: the walk of one block along the whole sequence, where there are fewer
// heads than multiprocessors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_block.cuh"
#include "05_chunked_gla/fused_load.cuh"
#include "05_chunked_gla/fused_prepare.cuh"
#include "05_chunked_gla/fused_state.cuh"
#include "05_chunked_gla/operands.cuh"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/loading_warp.cuh"
#include "common/sanitized.hpp"
#include "common/shared_storage.cuh"

namespace attn::chunked_gla {

// [doc:kernel]
// accumulate: outputs are added to o.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    fused_kernel(GlaOperands<typename Tiling::T> x, Segments segments, int column_tiles,
                 bool aligned, bool accumulate) {
  // In 32 bits: a grid has no more blocks, and a division of 64 would keep the first loads waiting.
  const int index = blockIdx.x, H = static_cast<int>(x.k.H);
  const int tile = index % column_tiles;
  // First segments first: they have nothing to wait for.
  const int heads = static_cast<int>(x.k.B) * H, head = index / column_tiles % heads;
  const int segment = index / column_tiles / heads;
  const int64_t b = head / H, h = head % H;
  const int begin = segments.begin(segment);
  const int end = segment < segments.count - 1 ? segments.begin(segment + 1) : int(x.k.L);
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
    LoadingWarp<Tiling, RowLoader<Tiling>, Block<Tiling>>(block).run();
  }
}
// [/doc:kernel]

template <class Tiling>
void launch_fused(const GlaOperands<typename Tiling::T>& x, const Segments& segments,
                  bool accumulate, cudaStream_t stream) {
  const bool aligned = rows_are_16_bytes(x.q) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) &&
                       rows_are_16_bytes(x.g) && rows_are_16_bytes(x.o);
  const int column_tiles = (x.v.D + Tiling::kM - 1) / Tiling::kM;
  LaunchConfig config(x.k.B * x.k.H * segments.count * column_tiles, Tiling::kThreads,
                      dynamic_shared_bytes<SharedStorage<Tiling>>(), stream);
  // It follows one that writes what the segments add, and waits for that itself.
  config.overlapping = segments.count > 1 && !accumulate;
  launch(config, fused_kernel<Tiling>, x, segments, column_tiles, aligned, accumulate);
}

// The rows of the state that a block holds at a head size of E, and its columns at the most. (A
// sanitizer learns nothing new from the tilings between.)
inline int64_t row_tile(int64_t E) { return E <= 64 ? 64 : !kSanitized && E <= 128 ? 128 : 256; }
inline int64_t column_tile(int64_t E) { return row_tile(E) == 128 ? 128 : 64; }

// [doc:tilings]
// The tiling for E, by what was fastest of those tried on an H200. A float has twice the rows in
// shared memory, so that one block fills a multiprocessor.
template <class T>
void fused_segments(const GlaOperands<T>& x, const Segments& segments, cudaStream_t stream) {
  constexpr bool kFloat = sizeof(T) == 4;
  auto run = [&]<class Tiling>(Tiling) { launch_fused<Tiling>(x, segments, false, stream); };
  const int64_t E = x.k.D, heads = x.k.B * x.k.H * segments.count;
  // Whether every block has a multiprocessor to itself: then more warps share the work of a block,
  // and fewer columns.
  [[maybe_unused]] const auto alone = [&](int columns) {
    return heads * ((x.v.D + columns - 1) / columns) <= multiprocessors();
  };
  //               E  columns warps parts sub-chunks slots slab loading blocks
  if constexpr (kFloat) {
    if (E <= 64) return run(Tiling<T, 64, 16, 4, 1, 2, 3, 32, 4, 1>());
    if constexpr (!kSanitized) {
      if (row_tile(E) == 128) return run(Tiling<T, 128, 32, 4, 1, 1, 3, 32, 0, 1>());
    }
  } else {
    if (E <= 64 && (kSanitized || alone(32))) return run(Tiling<T, 64, 16, 2, 2, 4, 3, 64, 4, 1>());
    if constexpr (!kSanitized) {
      if (E <= 64 && alone(64)) return run(Tiling<T, 64, 32, 2, 2, 4, 3, 64, 4, 1>());
      if (row_tile(E) == 128) return run(Tiling<T, 128, 32, 4, 1, 2, 3, 64, 0, 1>());
      if (E <= 64) return run(Tiling<T, 64, 32, 2, 1, 2, 3, 32, 0, 2>());
    }
  }
  // Above 256 rows of the state do not fit: their parts of the outputs are added up in o.
  constexpr int kE = 256;
  for (int64_t e = 0; e < E; e += kE) {
    GlaOperands<T> part = x;
    part.q = columns(x.q, e, kE);
    part.k = columns(x.k, e, kE);
    part.g = columns(x.g, e, kE);
    part.initial_state = state_rows(x.initial_state, e, kE);
    part.final_state = state_rows(x.final_state, e, kE);
    Segments part_segments = segments;
    if (segments.count > 1) {
      part_segments.added += e / 8 * kWarp;
      part_segments.log_decay += e;
    }
    launch_fused<Tiling<T, kE, 16, 4, 1, 1, 2, 64, 0, 1>>(part, part_segments, e > 0, stream);
  }
}
// [/doc:tilings]

// step2_fused_float.cu and step2_fused_bf16.cu hold them.
extern template void fused_segments(const GlaOperands<float>&, const Segments&, cudaStream_t);
extern template void fused_segments(const GlaOperands<__nv_bfloat16>&, const Segments&,
                                    cudaStream_t);

// Gated linear attention; for floats with tf32 products. Throws std::invalid_argument for operands
// that do not fit together, CudaError when a launch fails.
template <class T>
void fused_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  fused_segments(x, one_segment(x.k.L), stream);
}

}  // namespace attn::chunked_gla
