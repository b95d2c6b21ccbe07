// What every segment of a sequence does to the state, for the chunked kernel on all segments at once.
//
// The idea: it needs no recurrence. Row j of a segment reaches the segment's end through the decays
// after its own,
//
//   added = sum over j of k'_j v_j^T     with   k'_j = k_j exp(sum over i > j of w_i),
//
// a product of matrices, over as many rows as one likes. All exponents are <= 0. The segment is
// walked backwards, since the sum is then a running one, and ends early: once no column has more than
// 2^-126 left, all rows before have factors that are 0 in a float. With the decays of RWKV-6 that is
// after a hundred rows, however long the segment.
//
// Who computes what: a block has 64 columns of k and 64 of v, of one segment. A warp has
// 16 columns of k and multiplies them with all columns of v, so that no warp waits for another's k'.
// The running sum is a product with a triangle, whose accumulators lie as the operand k' must.
//
// What memory moves: k, v and w of the rows that count, once for each pair of column tiles; and the
// state, once.
//
// What limits it: where decays are strong, how long the first rows take to arrive. With mild ones it
// reads at half the rate of a copy.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "06_rwkv6/chunked_block.cuh"
#include "06_rwkv6/chunked_load.cuh"
#include "06_rwkv6/operands.cuh"
#include "common/launch.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/mma.cuh"
#include "common/shared_storage.cuh"
#include "common/swizzled_rows.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {

// How a block divides a segment.
template <class T_>
struct SegmentTiling {
  using T = T_;
  static constexpr int kColumns = 64;                     // of k, and as many of v
  static constexpr int kRows = sizeof(T) == 2 ? 32 : 16;  // on their way together
  static constexpr int kSlots = 4;                        // buffers for them
  static constexpr int kWarps = kColumns / 16;            // one for 16 columns of k
  static constexpr int kThreads = kWarps * kWarp;
  using Rows = SwizzledRows<const T, kColumns>;
};

template <class Tiling>
struct SegmentStorage {
  using T = typename Tiling::T;
  alignas(128) T k[Tiling::kSlots][Tiling::kRows][Tiling::kColumns];
  alignas(128) T v[Tiling::kSlots][Tiling::kRows][Tiling::kColumns];
  alignas(128) T w[Tiling::kSlots][Tiling::kRows][Tiling::kColumns];
  bool decayed[2][Tiling::kWarps];  // whether a warp's columns have nothing left
};

// exp(-30000) is 0 as exp(-inf) is, but 0 times -inf would be NaN.
__device__ __forceinline__ float finite_decay(float w) { return w < -30000 ? -30000 : w; }

// [doc:running_sums]
// Sums of decays for 16 rows and 16 columns, as accumulator fragments [column][row] of eight rows
// each: of `sum` and the decays before a row, in the order in which they are walked. All 16 decays
// are added to `sum`, which is the same in all rows.
template <int kWidth>
__device__ __forceinline__ void running_sums(
    float (&x)[2][4], float (&sum)[4], const SwizzledRows<const __nv_bfloat16, kWidth>& w_rows) {
  constexpr uint32_t kOnes = 0x3f803f80u;  // a pair of bf16
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, pair = lane % 4 * 2;
  const uint32_t before = kOnes & ((pair < row ? 0xffffu : 0) | (pair + 1 < row ? 0xffff0000u : 0));
  uint32_t w[4];
  load_transposed(w, w_rows);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 decays = to_floats(w[i]);
    w[i] = pack_high(finite_decay(decays.x), finite_decay(decays.y));
  }
  mma_m16n8k16(x[0], w, {before, 0}, sum);
  mma_m16n8k16(x[1], w, {kOnes, before}, sum);
  mma_m16n8k16(sum, w, {kOnes, kOnes}, sum);
}
// [/doc:running_sums]

// The same of float decays: here each is the sum of two tf32.
template <int kWidth>
__device__ __forceinline__ void running_sums(float (&x)[2][4], float (&sum)[4],
                                             const SwizzledRows<const float, kWidth>& w_rows) {
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, column = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[half][i] = sum[i];
  }
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    uint32_t high[4], low[4], before[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = step * 8 + column + i / 2 * 4;
      const float w = finite_decay(*w_rows.at(j, row + i % 2 * 8));
      high[i] = __float_as_uint(w) & 0xffffe000u;  // what tf32 keeps of a float
      low[i] = __float_as_uint(w - __uint_as_float(high[i]));
      before[i / 2][i % 2] =
          __float_as_uint(step * 8 + column + i % 2 * 4 < row + i / 2 * 8 ? 1.0f : 0.0f);
    }
    constexpr uint32_t kOne = 0x3f800000u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mma_m16n8k8_tf32(x[half], low, before[half], x[half]);
      mma_m16n8k8_tf32(x[half], high, before[half], x[half]);
    }
    mma_m16n8k8_tf32(sum, low, {kOne, kOne}, sum);
    mma_m16n8k8_tf32(sum, high, {kOne, kOne}, sum);
  }
}

// 16 rows and 16 columns of k as floats, where the accumulators of running_sums() have them.
template <int kWidth>
__device__ __forceinline__ void load_keys(float (&k)[2][4],
                                          const SwizzledRows<const __nv_bfloat16, kWidth>& k_rows) {
  uint32_t pairs[4];
  load_transposed(pairs, k_rows);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = to_floats(pairs[i]);
    k[i / 2][i % 2 * 2] = pair.x;
    k[i / 2][i % 2 * 2 + 1] = pair.y;
  }
}
template <int kWidth>
__device__ __forceinline__ void load_keys(float (&k)[2][4],
                                          const SwizzledRows<const float, kWidth>& k_rows) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      k[half][i] = *k_rows.at(half * 8 + lane % 4 * 2 + i % 2, lane / 4 + i / 2 * 8);
    }
  }
}

template <int kWarps>
__device__ __forceinline__ bool all_decayed(const bool (&decayed)[kWarps]) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) all = all && decayed[i];
  return all;
}

// The rows of k, v and w stand backwards, the last row of a sequence first.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    segment_states_kernel(TensorView<const typename Tiling::T> k,  // [B, H, L, E]
                          TensorView<const typename Tiling::T> v,  // [B, H, L, M]
                          TensorView<const typename Tiling::T> w,  // [B, H, L, E]
                          Segments segments, bool aligned) {
  using T = typename Tiling::T;
  constexpr int kTiles = Tiling::kColumns / 16;  // of v
  constexpr int kValueParts = sizeof(T) / 2;
  auto& smem = shared_storage<SegmentStorage<Tiling>>();
  grid_dependency_launch();  // the launch that reads the states may begin

  const int e_tiles = segments.eights * 8 / Tiling::kColumns;
  const int m_tiles = segments.column_tiles * 16 / Tiling::kColumns;
  const int index = blockIdx.x, H = static_cast<int>(k.H);  // in 32 bits: see chunked_kernel
  const int m0 = index % m_tiles * Tiling::kColumns;
  const int e0 = index / m_tiles % e_tiles * Tiling::kColumns;
  const int segment = index / m_tiles / e_tiles % (segments.count - 1);
  const int head = index / m_tiles / e_tiles / (segments.count - 1);
  const int64_t b = head / H, h = head % H;
  const int end = segments.begin(segment + 1), first = static_cast<int>(k.L) - end;
  RowLoader<T, Tiling::kRows, Tiling::kColumns, Tiling::kThreads> k_rows(k, b, h, first, e0,
                                                                         threadIdx.x),
      w_rows(w, b, h, first, e0, threadIdx.x), v_rows(v, b, h, first, m0, threadIdx.x);
  const int steps = (end - segments.begin(segment)) / Tiling::kRows;
  const auto load = [&](int step) {
    if (step < steps) {
      const int slot = step % Tiling::kSlots;
      if (aligned) {
        w_rows.load(smem.w[slot], Tiling::kRows);
        k_rows.load(smem.k[slot], Tiling::kRows);
        v_rows.load(smem.v[slot], Tiling::kRows);
      } else {
        w_rows.load_elements(smem.w[slot], Tiling::kRows);
        k_rows.load_elements(smem.k[slot], Tiling::kRows);
        v_rows.load_elements(smem.v[slot], Tiling::kRows);
      }
    }
    cp_async_commit();
  };

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float S[kTiles][2][4] = {};  // transposed, [value columns][16 columns of k]
  float sum[4] = {};           // of the decays so far, of columns lane / 4 and lane / 4 + 8
  const int column = e0 + warp * 16 + lane / 4;  // and the one 8 after it
  // To base 2, what is left of a state: nothing of rows that there are not.
  const auto left = [&](int i) { return column + i * 8 < k.D ? sum[2 * i] * kLog2e : -INFINITY; };
  // [doc:segment_walk]
  for (int step = 0; step < Tiling::kSlots - 1; ++step) load(step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<Tiling::kSlots - 2>();
    // The rows of this step have arrived from all threads; those of the step before are used.
    __syncthreads();
    if (step > 0 && all_decayed(smem.decayed[step % 2])) break;
    load(step + Tiling::kSlots - 1);
    const int slot = step % Tiling::kSlots;
#pragma unroll
    for (int row = 0; row < Tiling::kRows; row += kSubChunk) {
      float x[2][4], k_rmem[2][4];
      running_sums(x, sum, typename Tiling::Rows{smem.w[slot][row], warp * 16});
      load_keys(k_rmem, typename Tiling::Rows{smem.k[slot][row], warp * 16});
      uint32_t high[2][2], low[2][2];  // k' of eight columns each
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float k0 = k_rmem[i][half * 2] * exp2_approx(x[i][half * 2] * kLog2e);
          const float k1 = k_rmem[i][half * 2 + 1] * exp2_approx(x[i][half * 2 + 1] * kLog2e);
          high[half][i] = pack_high(k0, k1);
          low[half][i] = pack_low(k0, k1, high[half][i]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint32_t v_rmem[kValueParts][4];
        load_values_a(v_rmem, typename Tiling::Rows{smem.v[slot][row], tile * 16});
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma_m16n8k16(S[tile][half], v_rmem[0], low[half], S[tile][half]);
#pragma unroll
          for (int part = 0; part < kValueParts; ++part) {
            mma_m16n8k16(S[tile][half], v_rmem[part], high[half], S[tile][half]);
          }
        }
      }
    }
    const bool decayed = __all_sync(kFullWarp, left(0) < kNothing && left(1) < kNothing);
    if (lane == 0) smem.decayed[(step + 1) % 2][warp] = decayed;
  }
  // [/doc:segment_walk]
  cp_async_wait<0>();

  const int64_t place = segments.index(head, segment);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int eight = (e0 + warp * 16) / 8 + half;
    if (m0 == 0 && lane % 4 == 0) segments.log_decay_of(place)[column + half * 8] = left(half);
    float4* added =
        segments.added_by(place, m0 / 16) + eight * segments.column_tiles * kWarp + lane;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float(&s)[4] = S[tile][half];
      added[tile * kWarp] = {s[0], s[1], s[2], s[3]};
    }
  }
}

// Writes what each segment but the last does to the state.
template <class T>
void segment_states(const Rwkv6Operands<T>& x, const Segments& segments, cudaStream_t stream) {
  using Tiling = SegmentTiling<T>;
  const bool aligned = rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) && rows_are_16_bytes(x.w);
  const int64_t tiles = int64_t(segments.eights * 8 / Tiling::kColumns) *
                        (segments.column_tiles * 16 / Tiling::kColumns);
  launch({x.k.B * x.k.H * (segments.count - 1) * tiles, Tiling::kThreads,
          dynamic_shared_bytes<SegmentStorage<Tiling>>(), stream},
         segment_states_kernel<Tiling>, flip(x.k), flip(x.v), flip(x.w), segments, aligned);
}

// step3_chunked_float.cu and step3_chunked_bf16.cu hold them.
extern template void segment_states(const Rwkv6Operands<float>&, const Segments&, cudaStream_t);
extern template void segment_states(const Rwkv6Operands<__nv_bfloat16>&, const Segments&,
                                    cudaStream_t);

}  // namespace attn::rwkv6
