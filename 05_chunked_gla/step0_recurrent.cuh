// Gated linear attention, the recurrence as it is written, with all that stage 04 taught.
//
// The idea: stage 04's first step, with a decay. The state never leaves the registers of one block;
// the rows of q, k, v and g arrive in shared memory kSteps at a time, asynchronously, while the
// block computes on the rows that came before. New is what happens to a row in between: it is made
// floats, and its gates decays, once for all columns; still one barrier per kSteps steps.
//
// Who computes what: a block owns kColumnTile value columns of one (b, h), all E rows of them.
// A thread owns a kRows x kColumns piece of the state in registers: a group of kLanes = E / kRows
// lanes shares kColumns columns, and joins its partial outputs by shuffles. Rows are dealt to lanes
// four at a time (lane, lane + kLanes, ...), so that a group reads q, k and decays from shared
// memory as consecutive float4, without bank conflicts. The lanes of two groups take turns in a
// warp: a read of 16 bytes is four passes over the banks, but two where each lane has the address
// of its neighbour (lane ^ 1), as here for rows, or of the next but one (lane ^ 2), for columns.
//
// What memory moves: q, k and g once per tile of columns, v and o once. For M <= 64 that is the
// least there can be. A state in and out, where there is one.
//
// What limits it: instructions. A step costs a thread 3 * kRows * kColumns, a decay being one more
// than in stage 04, and at E = 64 half of that again: 44 beside 96, of them 7 for shared memory and
// 14 for sums across lanes. 0.81 ms at 8,32,4096,64 in bf16 on an H200 are 2.85 instructions per
// cycle, of 4 that a multiprocessor issues at best; each scheduler has two warps, and while both
// wait, mostly for shared memory and shuffles, it issues nothing. Memory is at a fifth of a copy.
//
// What the next steps remove: the walk from step to step. They go from chunk to chunk, and what is
// left within a chunk is matrix products.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/operands.cuh"
#include "common/ceil_div.hpp"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/shared_storage.cuh"
#include "common/stage_rows.cuh"
#include "common/tensor_view.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {
namespace recurrent {

// How a block divides its piece of the state, for head sizes up to kE.
// [doc:tile]
template <int kE_, int kRows_, int kColumns_, int kSteps_, int kUnroll_>
struct Tile {
  static constexpr int kE = kE_;              // rows of the state, padded with zeros
  static constexpr int kRows = kRows_;        // of them, per thread
  static constexpr int kColumns = kColumns_;  // columns per thread
  static constexpr int kSteps = kSteps_;      // time steps per buffer
  static constexpr int kLanes = kE / kRows;   // threads that share a column
  // From a lane of a group to its next. Two groups take turns, if a warp has two.
  static constexpr int kStride = kLanes < kWarp ? 2 : 1;
  // Steps whose outputs are joined together, so that each lane ends with exactly one of them.
  static constexpr int kGroup = kLanes / kColumns;
  static constexpr int kUnroll = kUnroll_;  // such groups that run without a branch between them

  static_assert(kRows % 4 == 0 && kColumns % 4 == 0, "shared memory is read as float4");
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a column group is part of a warp");
  static_assert(kGroup >= 1 && kSteps % kGroup == 0, "a buffer holds whole groups of steps");
};
// [/doc:tile]

template <class Tile, int kColumnTile>
constexpr int kBlockThreads = kColumnTile / Tile::kColumns* Tile::kLanes;

// [doc:storage]
template <class T, class Tile, int kColumnTile>
struct Rows {
  alignas(16) T q[Tile::kSteps][Tile::kE];
  alignas(16) T k[Tile::kSteps][Tile::kE];
  alignas(16) T g[Tile::kSteps][Tile::kE];
  alignas(16) T v[Tile::kSteps][kColumnTile];
};

template <class T, class Tile, int kColumnTile>
struct SharedStorage {
  Rows<T, Tile, kColumnTile> landed;        // a thread reads here what it copied here itself
  Rows<float, Tile, kColumnTile> ready[2];  // for all threads, with exp g in place of g
};
// [/doc:storage]

// Four consecutive elements as floats, in one access.
__device__ __forceinline__ float4 read4(const float* x_smem) {
  return *reinterpret_cast<const float4*>(x_smem);
}
__device__ __forceinline__ float4 read4(const __nv_bfloat16* x_smem) {
  // A bf16 is the upper half of a float; of two in one word the first is the lower half.
  const uint2 pairs = *reinterpret_cast<const uint2*>(x_smem);
  return make_float4(__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xffff0000u),
                     __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xffff0000u));
}

// ready = f(landed), for the elements that stage_rows() had this thread copy: no other thread's are
// waited for.
// [doc:convert_rows]
template <int kThreads, int kVector, class T, int kSteps, int kWidth, class F>
__device__ __forceinline__ void convert_rows(float (&ready)[kSteps][kWidth],
                                             const T (&landed)[kSteps][kWidth], F f) {
  for_own_pieces<kThreads, kVector, kSteps, kWidth>([&](int step, int d) {
    if constexpr (kVector == 1) {
      ready[step][d] = f(to_float(landed[step][d]));
    } else {
#pragma unroll
      for (int i = 0; i < kVector; i += 4) {
        const float4 x = read4(&landed[step][d + i]);
        *reinterpret_cast<float4*>(&ready[step][d + i]) = {f(x.x), f(x.y), f(x.z), f(x.w)};
      }
    }
  });
}
// [/doc:convert_rows]

// T: float or bf16, in global memory; the state and all arithmetic are float.
// kVector: how many elements one copy moves, 16 bytes where sizes and strides allow, else 1.
template <class T, class Tile, int kColumnTile, int kVector>
__global__ void __launch_bounds__(kBlockThreads<Tile, kColumnTile>)
    recurrent_kernel(GlaOperands<T> x, int column_tiles) {
  using Storage = SharedStorage<T, Tile, kColumnTile>;
  constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kLanes = Tile::kLanes;
  constexpr int kSteps = Tile::kSteps, kGroup = Tile::kGroup, kStride = Tile::kStride;
  constexpr int kThreads = kBlockThreads<Tile, kColumnTile>;
  Storage& smem = shared_storage<Storage>();

  const int64_t head = blockIdx.x / column_tiles;
  const int64_t b = head / x.q.H;
  const int64_t h = head % x.q.H;
  const int m0 = blockIdx.x % column_tiles * kColumnTile;
  const int lane = threadIdx.x / kStride % kLanes;
  const int group = threadIdx.x / (kStride * kLanes) * kStride + threadIdx.x % kStride;
  const int column = group * kColumns;  // the thread's first, within the tile
  const int L = static_cast<int>(x.q.L);
  const int m = m0 + column + lane % kColumns;  // the column whose outputs the lane stores
  const bool has_column = m < x.o.D;
  T* o_next = x.o.row(b, h, lane / kColumns) + m;

  // [doc:stage]
  auto stage = [&](int first) {
    stage_rows<kThreads, kVector>(smem.landed.q, x.q, b, h, first, L, 0);
    stage_rows<kThreads, kVector>(smem.landed.k, x.k, b, h, first, L, 0);
    stage_rows<kThreads, kVector>(smem.landed.g, x.g, b, h, first, L, 0);
    stage_rows<kThreads, kVector>(smem.landed.v, x.v, b, h, first, L, m0);
    cp_async_commit();
  };
  // Steps past the end are zeros: a decay of 1 and nothing added leave the state as it is.
  auto convert = [&](auto& ready) {
    const auto same = [](float y) { return y; };
    const auto decay = [](float g) { return exp2_approx(g * kLog2e); };
    convert_rows<kThreads, kVector>(ready.q, smem.landed.q, same);
    convert_rows<kThreads, kVector>(ready.k, smem.landed.k, same);
    convert_rows<kThreads, kVector>(ready.g, smem.landed.g, decay);
    convert_rows<kThreads, kVector>(ready.v, smem.landed.v, same);
  };
  // [/doc:stage]

  float S[kRows][kColumns] = {};
  // visit(entry, e, c) for the entries of the thread's piece that exist; c is the column of M.
  auto for_state = [&](auto&& visit) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int e = (r / 4 * kLanes + lane) * 4 + r % 4;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (e < x.q.D && m0 + column + c < x.v.D) visit(S[r][c], e, m0 + column + c);
      }
    }
  };

  // [doc:main_loop]
  stage(0);
  if (x.initial_state.data != nullptr) {
    for_state([&](float& entry, int e, int c) { entry = x.initial_state.row(b, h, e)[c]; });
  }
  for (int first = 0; first < L; first += kSteps) {
    auto& ready = smem.ready[first / kSteps % 2];
    cp_async_wait<0>();
    convert(ready);
    __syncthreads();  // everybody's rows are ready; nobody still reads the other buffer
    if (first + kSteps < L) stage(first + kSteps);

#pragma unroll Tile::kUnroll
    for (int step = 0; step < kSteps; step += kGroup) {
      float o_part[kGroup * kColumns] = {};
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        float v_rmem[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; c += 4) {
          *reinterpret_cast<float4*>(&v_rmem[c]) = read4(&ready.v[step + g][column + c]);
        }
#pragma unroll
        for (int r = 0; r < kRows; r += 4) {
          const int e = (r / 4 * kLanes + lane) * 4;
          const float4 k4 = read4(&ready.k[step + g][e]);
          const float4 q4 = read4(&ready.q[step + g][e]);
          const float4 decay4 = read4(&ready.g[step + g][e]);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            S[r + 0][c] = decay4.x * S[r + 0][c] + k4.x * v_rmem[c];
            S[r + 1][c] = decay4.y * S[r + 1][c] + k4.y * v_rmem[c];
            S[r + 2][c] = decay4.z * S[r + 2][c] + k4.z * v_rmem[c];
            S[r + 3][c] = decay4.w * S[r + 3][c] + k4.w * v_rmem[c];
            float& o_c = o_part[g * kColumns + c];
            o_c += q4.x * S[r + 0][c];
            o_c += q4.y * S[r + 1][c];
            o_c += q4.z * S[r + 2][c];
            o_c += q4.w * S[r + 3][c];
          }
        }
      }
      // One of the group's kGroup * kColumns outputs for each of its kLanes lanes.
      reduce_scatter<kLanes, kLanes, kStride>(o_part, lane);
      const int t = first + step + lane / kColumns;
      if (t < L && has_column) *o_next = from_float<T>(x.scale * o_part[0]);
      o_next += kGroup * x.o.stride_l;
    }
  }
  // [/doc:main_loop]

  if (x.final_state.data != nullptr) {
    for_state([&](float entry, int e, int c) { x.final_state.row(b, h, e)[c] = entry; });
  }
}

template <class Tile, int kColumnTile, class T>
void launch_recurrent(const GlaOperands<T>& x, cudaStream_t stream) {
  const int column_tiles = static_cast<int>(ceil_div(x.v.D, kColumnTile));
  const LaunchConfig config(x.q.B * x.q.H * column_tiles, kBlockThreads<Tile, kColumnTile>,
                            dynamic_shared_bytes<SharedStorage<T, Tile, kColumnTile>>(), stream);
  if (rows_are_16_bytes(x.q) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) &&
      rows_are_16_bytes(x.g)) {
    constexpr int kVector = kElementsPer16Bytes<T>;
    launch(config, recurrent_kernel<T, Tile, kColumnTile, kVector>, x, column_tiles);
  } else {
    launch(config, recurrent_kernel<T, Tile, kColumnTile, 1>, x, column_tiles);
  }
}

// Picks the tile for E: the fastest of those tried on an H200.
// [doc:dispatch_e]
template <int kColumnTile, class T>
void dispatch_head_size(const GlaOperands<T>& x, cudaStream_t stream) {
  auto run = [&]<class Tile>(Tile) { launch_recurrent<Tile, kColumnTile>(x, stream); };
  //                                 E  rows  columns  steps  unrolled
  if (x.q.D <= 64) return run(Tile<64, 8, 4, 16, 4>());
  if (x.q.D <= 128) return run(Tile<128, 8, 8, 16, 2>());
  if (x.q.D <= 256) return run(Tile<256, 16, 8, 8, 2>());
  return run(Tile<512, 16, 8, 4, 1>());
}
// [/doc:dispatch_e]

}  // namespace recurrent

// Gated linear attention of float or bf16 tensors, in fp32 arithmetic. Throws std::invalid_argument
// for operands that do not fit together, CudaError when the launch fails.
template <class T>
void recurrent_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  recurrent::dispatch_head_size<64>(x, stream);  // columns: for M <= 64 all rows are read once
}

}  // namespace attn::chunked_gla
