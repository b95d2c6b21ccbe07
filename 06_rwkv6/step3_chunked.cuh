// RWKV-6 in one kernel, on tensor cores: memory is read once and written once.
//
// The idea: stage 05's, sub-chunks of 16 rows and a state that never leaves the registers, for an
// exclusive decay and a bonus. With d_i the sum of a column's decays before row i, from the
// sub-chunk's first row on, and S the state before it,
//
//   o_i = (r_i exp d_i) . S  +  sum over j < i of A_ij v_j  +  r_i . (u k_i) v_i
//   A_ij = r_i exp(d_i - h) . k_j exp(h - d_{j+1})
//   S   <- diag(exp d_16) S  +  sum over j of exp(d_16 - d_{j+1}) k_j v_j^T
//
// for any h. Row i reads what has decayed i times; row j, once written, still has to go through the
// decays from j + 1 on. What stage 05 had at one place, the sum up to row i, is at two here, and the
// bonus is the diagonal of the scores. With h halfway, d_16 / 2, neither factor of A leaves the range
// of a float as long as the decays of a sub-chunk sum up to no less than -133 (2^-192). Where they
// sum up to less, which the kernel sees from the data, the scores of those columns are computed row
// by row, of keys that decay on the way. Nothing is clamped. All other exponents are <= 0.
//
// Who computes what: a block has one head and up to 128 of its value columns. Its warps have two
// jobs. Preparing warps fetch rows (cp.async) and make packets: decayed rows of r and k, and the
// scores. State warps own 16 or 32 columns of the state each, and take packet after packet. While
// packets of one round are taken, those of the next are prepared, and the rows of the two after that
// are on their way: one barrier per round. Where there are registers for more warps, these fetch the
// rows.
//
// How exact: one bf16 product of rounded factors would cost 1.7e-3 for each rounding, as much as
// rounding the output. So S and the decayed r go in as tf32, the scores as the sum of two bf16; the
// bonus is computed in fp32; r, k and v as they come are bf16 already. The decayed k goes in as fp16,
// and v is turned into fp16 for it, which loses nothing. Where k or v have a size that fp16 does not
// hold, which the kernel sees from the data, k is the sum of two bf16, too, as floats always are.
//
// What memory moves: every operand once.
//
// What limits it: latency. A multiprocessor has two warps per scheduler, which wait for tensor
// cores, shared memory and each other.
//
// What the next step removes: the walk of one block along the whole sequence, where there are fewer
// heads than multiprocessors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "06_rwkv6/chunked_load.cuh"
#include "06_rwkv6/chunked_prepare.cuh"
#include "06_rwkv6/chunked_state.cuh"
#include "06_rwkv6/operands.cuh"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/loading_warp.cuh"
#include "common/sanitized.hpp"
#include "common/shared_storage.cuh"

namespace attn::rwkv6 {

// [doc:kernel]
// accumulate: outputs are added to o.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    chunked_kernel(Rwkv6Operands<typename Tiling::T> x, Segments segments, int column_tiles,
                   bool aligned, bool accumulate) {
  // In 32 bits: a grid has no more blocks, and a division of 64 would keep the first loads waiting.
  const int index = blockIdx.x, H = static_cast<int>(x.k.H);
  const int tile = index % column_tiles;
  // First segments first: they may be the longest, and have nothing to wait for.
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
    LoadingWarp<Tiling, RoundLoader<Tiling>, Block<Tiling>>(block).run();
  }
}
// [/doc:kernel]

template <class Tiling>
void launch_chunked(const Rwkv6Operands<typename Tiling::T>& x, const Segments& segments,
                    bool accumulate, cudaStream_t stream) {
  const bool aligned = rows_are_16_bytes(x.r) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) &&
                       rows_are_16_bytes(x.w) && rows_are_16_bytes(x.o);
  const int column_tiles = (x.v.D + Tiling::kM - 1) / Tiling::kM;
  LaunchConfig config(x.k.B * x.k.H * segments.count * column_tiles, Tiling::kThreads,
                      dynamic_shared_bytes<SharedStorage<Tiling>>(), stream);
  // It follows one that writes what the segments do to the state, and waits for that itself.
  config.overlapping = segments.count > 1 && !accumulate;
  launch(config, chunked_kernel<Tiling>, x, segments, column_tiles, aligned, accumulate);
}

// How many rows and columns of a state a block holds at a head size of E. (A sanitizer learns nothing
// new from the tiling between.)
inline int64_t row_tile(int64_t E) { return E <= 64 ? 64 : !kSanitized && E <= 128 ? 128 : 256; }
inline int64_t column_tile(int64_t E) { return row_tile(E) == 128 ? 128 : 64; }

// [doc:tilings]
// The tiling for E. A float has twice the rows in shared memory, so that one block fills a
// multiprocessor.
template <class T>
void chunked_segments(const Rwkv6Operands<T>& x, const Segments& segments, cudaStream_t stream) {
  constexpr bool kFloat = sizeof(T) == 4;
  auto run = [&]<class Tiling>(Tiling) { launch_chunked<Tiling>(x, segments, false, stream); };
  const int64_t E = x.k.D;
  //                                 E  columns warps sub-chunks slots slab loading blocks
  if constexpr (kFloat) {
    if (E <= 64) return run(Tiling<T, 64, 16, 4, 2, 3, 32, 4, 1>());
    if constexpr (!kSanitized) {
      if (row_tile(E) == 128) return run(Tiling<T, 128, 32, 4, 1, 3, 32, 0, 1>());
    }
  } else {
    if (E <= 64) return run(Tiling<T, 64, 32, 2, 2, 3, 64, 0, 2>());
    if constexpr (!kSanitized) {
      if (row_tile(E) == 128) return run(Tiling<T, 128, 32, 4, 2, 3, 64, 0, 1>());
    }
  }
  // Above 256 rows of the state do not fit: their parts of the outputs are added up in o.
  constexpr int kE = 256;
  for (int64_t e = 0; e < E; e += kE) {
    Rwkv6Operands<T> part = x;
    part.r = columns(x.r, e, kE);
    part.k = columns(x.k, e, kE);
    part.w = columns(x.w, e, kE);
    part.u = columns(x.u, e, kE);
    part.initial_state = state_rows(x.initial_state, e, kE);
    part.final_state = state_rows(x.final_state, e, kE);
    Segments part_segments = segments;
    if (segments.count > 1) {
      part_segments.added += e / 8 * segments.column_tiles * kWarp;
      part_segments.log_decay += e;
    }
    launch_chunked<Tiling<T, kE, 16, 4, 1, 2, 64, 0, 1>>(part, part_segments, e > 0, stream);
  }
}
// [/doc:tilings]

// step3_chunked_float.cu and step3_chunked_bf16.cu hold them.
extern template void chunked_segments(const Rwkv6Operands<float>&, const Segments&, cudaStream_t);
extern template void chunked_segments(const Rwkv6Operands<__nv_bfloat16>&, const Segments&,
                                      cudaStream_t);

// RWKV-6; for floats with tf32 products. Throws std::invalid_argument for operands that do not fit
// together, CudaError when a launch fails.
template <class T>
void chunked_rwkv6(const Rwkv6Operands<T>& operands, cudaStream_t stream = 0) {
  const Rwkv6Operands<T> x = in_walking_order(operands);
  chunked_segments(x, {.count = 1, .first_rows = static_cast<int>(x.r.L)}, stream);
}

}  // namespace attn::rwkv6
