// Causal linear attention for few heads: the sequence itself is shared out over warps.
//
// The idea: step 1 walks the sequence one step after the other, with B*H * M / 64 blocks; with few
// heads most of the chip has nothing to do. But the state is a sum, S_t = sum over s <= t of
// k_s v_s^T, and a running sum can be computed in parallel as a prefix sum. So the block takes
// kStepsPerRound consecutive steps at once. Each lane
//   1. sums k v^T over its own kSteps steps,
//   2. learns the sum of everything before them: of the lanes before it (shuffles), of the warps
//      before it (shared memory), of the rounds before this one (carried by the thread that adds
//      up the warps),
//   3. walks its own kSteps steps from that state, as step 1 would, and emits their outputs.
//
// Who computes what: a block owns kColumns value columns of one (b, h). In a warp, kLanes lanes
// hold the E rows of the state (kRows each), and the 32 / kLanes groups of lanes take different
// steps.
//
// What memory moves: q and k once per kColumns value columns, M / kColumns times in all, but from
// L2: the blocks of one head read the same rows at about the same time. v and o once.
//
// What limits it: 3 multiply-adds per (t, e, m) where step 1 needs 2, the shuffles of the prefix
// sum and of the outputs, and three barriers per round.
//
// What the next stage removes: both steps spend an instruction per multiply-add. Stage 05 turns
// whole chunks of the sequence into matrix products.
#pragma once

#include <cuda_runtime.h>

#include "common/check_operands.hpp"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"
#include "common/stage_rows.cuh"
#include "common/tensor_view.cuh"
#include "common/warp.cuh"

namespace attn::double_buffer {

// How a block divides rows, columns and steps, for head sizes up to kE.
// [doc:shape]
template <int kE_, int kRows_, int kColumns_, int kWarps_, int kSteps_>
struct Round {
  static constexpr int kE = kE_;               // rows of the state, padded with zeros
  static constexpr int kRows = kRows_;         // of them, per lane
  static constexpr int kColumns = kColumns_;   // value columns of the block
  static constexpr int kWarps = kWarps_;       // at different time steps
  static constexpr int kSteps = kSteps_;       // consecutive time steps of a lane
  static constexpr int kLanes = kE / kRows;    // lanes that hold the rows of one time step
  static constexpr int kGroups = 32 / kLanes;  // groups of lanes in a warp, each at its own steps
  static constexpr int kStepsPerRound = kWarps * kGroups * kSteps;

  static_assert(kRows % 4 == 0, "rows are loaded as float4");
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "lanes are halved by the sums");
};
// [/doc:shape]

// [doc:storage]
template <class Round>
struct LowOccupancyStorage {
  alignas(16) float q[2][Round::kStepsPerRound][Round::kE];
  alignas(16) float k[2][Round::kStepsPerRound][Round::kE];
  alignas(16) float v[2][Round::kStepsPerRound][Round::kColumns];
  // Sums of k v^T: of each warp's steps, then of everything before them.
  alignas(16) float sums[Round::kWarps][Round::kColumns][Round::kE];
  float carry[Round::kColumns][Round::kE];  // of all rounds before
};
// [/doc:storage]

// Four consecutive floats, in one access.
__device__ __forceinline__ void load4(float (&x_rmem)[4], const float* x_smem) {
  *reinterpret_cast<float4*>(x_rmem) = *reinterpret_cast<const float4*>(x_smem);
}

template <class Round, int kVector>
__global__ void __launch_bounds__(Round::kWarps * 32)
    low_occupancy_kernel(TensorView<const float> q,  // [B, H, L, E]
                         TensorView<const float> k,  // [B, H, Lk, E]
                         TensorView<const float> v,  // [B, H, Lk, M]
                         TensorView<float> o,        // [B, H, L, M]
                         int column_tiles) {
  constexpr int kRows = Round::kRows, kColumns = Round::kColumns, kLanes = Round::kLanes;
  constexpr int kSteps = Round::kSteps, kWarps = Round::kWarps, kThreads = kWarps * 32;
  // One value column is copied float by float; its neighbours belong to other blocks.
  constexpr int kValueVector = kColumns % 4 == 0 ? kVector : 1;
  auto& smem = shared_storage<LowOccupancyStorage<Round>>();

  const int64_t head = blockIdx.x / column_tiles;
  const int64_t b = head / q.H;
  const int64_t h = head % q.H;
  const int m0 = blockIdx.x % column_tiles * kColumns;
  const int warp = threadIdx.x / 32;
  const int group = threadIdx.x % 32 / kLanes;
  const int lane = threadIdx.x % kLanes;  // within the group
  const int L = static_cast<int>(q.L);
  // The lane's first step within a round.
  const int step0 = (warp * Round::kGroups + group) * kSteps;
  // Rows are dealt to lanes four at a time: the r-th of a lane is row_of(r).
  auto row_of = [&](int r) { return (r / 4 * kLanes + lane) * 4 + r % 4; };

  auto stage = [&](int first, int buffer) {
    stage_rows<kThreads, kVector>(smem.q[buffer], q, b, h, first, L, 0);
    stage_rows<kThreads, kVector>(smem.k[buffer], k, b, h, first, L, 0);
    stage_rows<kThreads, kValueVector>(smem.v[buffer], v, b, h, first, L, m0);
    cp_async_commit();
  };

  // Each entry of the carry belongs to one thread from beginning to end.
  for (int i = threadIdx.x; i < kColumns * Round::kE; i += kThreads) {
    smem.carry[i / Round::kE][i % Round::kE] = 0;
  }

  stage(0, 0);
  for (int first = 0; first < L; first += Round::kStepsPerRound) {
    const int buffer = first / Round::kStepsPerRound % 2;
    cp_async_wait<0>();
    __syncthreads();  // everybody's copies have landed; nobody still reads the other buffer
    if (first + Round::kStepsPerRound < L) stage(first + Round::kStepsPerRound, buffer ^ 1);

    // [doc:prefix]
    // 1. The sum over the lane's own steps, then over the groups up to and including its own.
    float v_rmem[kSteps][kColumns];
    float sum[kColumns][kRows] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) v_rmem[i][c] = smem.v[buffer][step0 + i][c];
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        float k_rmem[4];
        load4(k_rmem, &smem.k[buffer][step0 + i][row_of(r)]);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sum[c][r + j] = fmaf(k_rmem[j], v_rmem[i][c], sum[c][r + j]);
          }
        }
      }
    }
    float S[kColumns][kRows] = {};  // what comes before the lane's steps, first within the warp
    if constexpr (kLanes < 32) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int distance = kLanes; distance < 32; distance *= 2) {
            const float before = __shfl_up_sync(kFullWarp, sum[c][r], distance);
            if (group * kLanes >= distance) sum[c][r] += before;
          }
          const float before = __shfl_up_sync(kFullWarp, sum[c][r], kLanes);
          if (group > 0) S[c][r] = before;
        }
      }
    }
    if (group == Round::kGroups - 1) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int r = 0; r < kRows; r += 4) {
          *reinterpret_cast<float4*>(&smem.sums[warp][c][row_of(r)]) =
              make_float4(sum[c][r], sum[c][r + 1], sum[c][r + 2], sum[c][r + 3]);
        }
      }
    }
    __syncthreads();  // every warp's sum is written

    // 2. Each entry of the state is one thread's: it replaces the sums of the warps by what came
    // before each, and carries the total on to the next round.
    for (int i = threadIdx.x; i < kColumns * Round::kE; i += kThreads) {
      const int c = i / Round::kE, e = i % Round::kE;
      float of_warp[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) of_warp[w] = smem.sums[w][c][e];
      float before = smem.carry[c][e];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        smem.sums[w][c][e] = before;
        before += of_warp[w];
      }
      smem.carry[c][e] = before;
    }
    __syncthreads();  // what came before each warp is written

    // [/doc:prefix]

    // [doc:walk]
    // 3. From the state before its steps, the lane walks them.
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        float before[4];
        load4(before, &smem.sums[warp][c][row_of(r)]);
#pragma unroll
        for (int j = 0; j < 4; ++j) S[c][r + j] += before[j];
      }
    }
    constexpr int kOutputs = kSteps * kColumns;
    float o_part[kOutputs] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        float k_rmem[4], q_rmem[4];
        load4(k_rmem, &smem.k[buffer][step0 + i][row_of(r)]);
        load4(q_rmem, &smem.q[buffer][step0 + i][row_of(r)]);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            S[c][r + j] = fmaf(k_rmem[j], v_rmem[i][c], S[c][r + j]);
            o_part[i * kColumns + c] = fmaf(q_rmem[j], S[c][r + j], o_part[i * kColumns + c]);
          }
        }
      }
    }
    // [/doc:walk]

    // Joined over the rows; every output is stored by the first lane that holds its sum.
    reduce_scatter<kLanes, kOutputs>(o_part, lane);
    constexpr int kPerLane = kOutputs > kLanes ? kOutputs / kLanes : 1;
    constexpr int kLanesPer = kLanes > kOutputs ? kLanes / kOutputs : 1;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int output = lane / kLanesPer * kPerLane + j;
      const int t = first + step0 + output / kColumns;
      const int m = m0 + output % kColumns;
      if (lane % kLanesPer == 0 && t < L && m < o.D) o.row(b, h, t)[m] = o_part[j];
    }
  }
}

template <class Round>
void launch_low_occupancy(TensorView<const float> q, TensorView<const float> k,
                          TensorView<const float> v, TensorView<float> o, cudaStream_t stream) {
  const int column_tiles = (v.D + Round::kColumns - 1) / Round::kColumns;
  const LaunchConfig config(q.B * q.H * column_tiles, Round::kWarps * 32,
                            dynamic_shared_bytes<LowOccupancyStorage<Round>>(), stream);
  if (rows_are_16_bytes(q) && rows_are_16_bytes(k) && rows_are_16_bytes(v)) {
    launch(config, low_occupancy_kernel<Round, 4>, q, k, v, o, column_tiles);
  } else {
    launch(config, low_occupancy_kernel<Round, 1>, q, k, v, o, column_tiles);
  }
}

// The fewest value columns per block, up to 8, with which all blocks can run at once: fewer columns
// use more of the chip, more columns read q and k less often.
// [doc:dispatch_columns]
template <int kE>
void dispatch_columns(TensorView<const float> q, TensorView<const float> k,
                      TensorView<const float> v, TensorView<float> o, cudaStream_t stream) {
  auto run = [&]<class R>(R) { launch_low_occupancy<R>(q, k, v, o, stream); };
  const int64_t columns = q.B * q.H * v.D;
  const int64_t blocks = multiprocessors();
  //                                               E  rows  columns  warps  steps
  // Short sequences need few warps, and GPUs with little shared memory (all before Hopper) have no
  // room for the steps of many.
  if (q.L <= 64 || shared_memory_per_block() < 200 * 1024) return run(Round<kE, 4, 4, 4, 4>());
  if (columns <= blocks) return run(Round<kE, 4, 1, 16, 4>());
  if (columns <= 2 * blocks) return run(Round<kE, 4, 2, 16, 4>());
  if (columns <= 4 * blocks) return run(Round<kE, 4, 4, 16, 4>());
  return run(Round<kE, 4, 8, 16, 4>());
}
// [/doc:dispatch_columns]

// The causal product for few heads: the same function, arguments and errors as
// double_buffer_causal_product, for float tensors only.
inline void low_occupancy_causal_product(TensorView<const float> q,  // [B, H, L, E]
                                         TensorView<const float> k,  // [B, H, Lk, E]
                                         TensorView<const float> v,  // [B, H, Lk, M]
                                         TensorView<float> o,        // [B, H, L, M]
                                         cudaStream_t stream = 0) {
  check_causal_product(q, k, v, o);
  if (q.D <= 64) return dispatch_columns<64>(q, k, v, o, stream);
  if (q.D <= 128) return dispatch_columns<128>(q, k, v, o, stream);
  // Wider rows need the registers and the shared memory of several lanes' steps for one.
  if (q.D <= 256) return launch_low_occupancy<Round<256, 8, 2, 4, 2>>(q, k, v, o, stream);
  return launch_low_occupancy<Round<512, 16, 1, 4, 1>>(q, k, v, o, stream);
}

}  // namespace attn::double_buffer
