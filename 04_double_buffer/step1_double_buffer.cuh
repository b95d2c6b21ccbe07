// Causal linear attention with the state in registers and the inputs double-buffered.
//
// The idea: nothing that a step needs may be waited for. The state never leaves the registers of
// one block; the rows of q, k and v arrive in shared memory kSteps at a time, asynchronously, while
// the block computes on the rows that came before; one barrier per kSteps steps is left of stage
// 03's two per step, and no atomics.
//
// Who computes what: a block owns kColumnTile value columns of one (b, h), all E rows of them.
// A thread owns a kRows x kColumns piece of the state in registers: a group of kLanes = E / kRows
// neighbouring lanes shares kColumns columns, and joins its partial outputs by shuffles. Rows are
// dealt to lanes four at a time (lane, lane + kLanes, ...), so that a group reads q and k from
// shared memory as consecutive float4, without bank conflicts.
//
// What memory moves: q and k once per tile of columns, v and o once. For M <= 64 that is the least
// there can be.
//
// What limits it: instructions. A step costs a thread 2 * kRows * kColumns multiply-adds, and as
// many as three quarters (E = 64) or a quarter (E = 512) of that again for shared-memory reads and
// shuffles, on B*H * M / 64 blocks that walk the sequence one step after the other. At E = 64 2.4
// of 4 instructions per cycle are issued (16,8,4096,64 on an H200): a scheduler has but two warps.
//
// What the next step removes: the walk. With few heads most of the chip idles; step 2 lets several
// warps take different time steps of one head.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "common/check_operands.hpp"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/shared_storage.cuh"
#include "common/stage_rows.cuh"
#include "common/tensor_view.cuh"
#include "common/warp.cuh"

namespace attn::double_buffer {

// How a block divides its piece of the state, for head sizes up to kE.
// [doc:tile]
template <int kE_, int kRows_, int kColumns_, int kSteps_>
struct Tile {
  static constexpr int kE = kE_;              // rows of the state, padded with zeros
  static constexpr int kRows = kRows_;        // of them, per thread
  static constexpr int kColumns = kColumns_;  // columns per thread
  static constexpr int kSteps = kSteps_;      // time steps per buffer
  static constexpr int kLanes = kE / kRows;   // threads that share a column
  // Steps whose outputs are joined together, so that each lane ends with exactly one of them.
  static constexpr int kGroup = kLanes / kColumns;

  static_assert(kRows % 4 == 0 && kColumns % 4 == 0, "shared memory is read as float4");
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a column group is part of a warp");
  static_assert(kGroup >= 1 && kSteps % kGroup == 0, "a buffer holds whole groups of steps");
};
// [/doc:tile]

template <class Tile, int kColumnTile>
constexpr int kBlockThreads = kColumnTile / Tile::kColumns* Tile::kLanes;

template <class T, class Tile, int kColumnTile>
struct SharedStorage {
  alignas(16) T q[2][Tile::kSteps][Tile::kE];
  alignas(16) T k[2][Tile::kSteps][Tile::kE];
  alignas(16) T v[2][Tile::kSteps][kColumnTile];
};

// Four consecutive elements as floats, in one access.
// [doc:read4]
__device__ __forceinline__ float4 read4(const float* x_smem) {
  return *reinterpret_cast<const float4*>(x_smem);
}
__device__ __forceinline__ float4 read4(const __nv_bfloat16* x_smem) {
  // A bf16 is the upper half of a float; of two in one word the first is the lower half.
  const uint2 pairs = *reinterpret_cast<const uint2*>(x_smem);
  return make_float4(__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xffff0000u),
                     __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xffff0000u));
}
// [/doc:read4]

// T: float or bf16, in global and in shared memory; the state and all arithmetic are float.
// kVector: how many elements one copy moves, 16 bytes where sizes and strides allow, else 1.
template <class T, class Tile, int kColumnTile, int kVector>
__global__ void __launch_bounds__(kBlockThreads<Tile, kColumnTile>)
    double_buffer_kernel(TensorView<const T> q,  // [B, H, L, E]
                         TensorView<const T> k,  // [B, H, Lk, E]
                         TensorView<const T> v,  // [B, H, Lk, M]
                         TensorView<T> o,        // [B, H, L, M]
                         int column_tiles) {
  using Storage = SharedStorage<T, Tile, kColumnTile>;
  constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kLanes = Tile::kLanes;
  constexpr int kSteps = Tile::kSteps, kGroup = Tile::kGroup;
  constexpr int kThreads = kBlockThreads<Tile, kColumnTile>;
  Storage& smem = shared_storage<Storage>();

  const int64_t head = blockIdx.x / column_tiles;
  const int64_t b = head / q.H;
  const int64_t h = head % q.H;
  const int m0 = blockIdx.x % column_tiles * kColumnTile;
  const int lane = threadIdx.x % kLanes;
  const int column = threadIdx.x / kLanes * kColumns;  // the thread's first, within the tile
  const int L = static_cast<int>(q.L);
  const int m = m0 + column + lane % kColumns;  // the column whose outputs the lane stores
  const bool has_column = m < o.D;
  T* o_column = o.row(b, h, 0) + m;

  // [doc:stage]
  auto stage = [&](int first, int buffer) {
    stage_rows<kThreads, kVector>(smem.q[buffer], q, b, h, first, L, 0);
    stage_rows<kThreads, kVector>(smem.k[buffer], k, b, h, first, L, 0);
    stage_rows<kThreads, kVector>(smem.v[buffer], v, b, h, first, L, m0);
    cp_async_commit();
  };
  // [/doc:stage]

  // [doc:main_loop]
  float S[kRows][kColumns] = {};
  stage(0, 0);
  for (int first = 0; first < L; first += kSteps) {
    const int buffer = first / kSteps % 2;
    cp_async_wait<0>();
    __syncthreads();  // everybody's copies have landed; nobody still reads the other buffer
    if (first + kSteps < L) stage(first + kSteps, buffer ^ 1);

#pragma unroll 1
    for (int step = 0; step < kSteps; step += kGroup) {
      float o_part[kGroup * kColumns] = {};
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        float v_rmem[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; c += 4) {
          *reinterpret_cast<float4*>(&v_rmem[c]) = read4(&smem.v[buffer][step + g][column + c]);
        }
#pragma unroll
        for (int r = 0; r < kRows; r += 4) {
          const int e = (r / 4 * kLanes + lane) * 4;
          const float4 k4 = read4(&smem.k[buffer][step + g][e]);
          const float4 q4 = read4(&smem.q[buffer][step + g][e]);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            S[r + 0][c] += k4.x * v_rmem[c];
            S[r + 1][c] += k4.y * v_rmem[c];
            S[r + 2][c] += k4.z * v_rmem[c];
            S[r + 3][c] += k4.w * v_rmem[c];
            float& o_c = o_part[g * kColumns + c];
            o_c += q4.x * S[r + 0][c];
            o_c += q4.y * S[r + 1][c];
            o_c += q4.z * S[r + 2][c];
            o_c += q4.w * S[r + 3][c];
          }
        }
      }
      // One of the group's kGroup * kColumns outputs for each of its kLanes lanes.
      reduce_scatter<kLanes, kLanes>(o_part, lane);
      const int t = first + step + lane / kColumns;
      if (t < L && has_column) o_column[t * o.stride_l] = T(o_part[0]);
    }
  }
  // [/doc:main_loop]
}

template <class Tile, int kColumnTile, class T>
void launch_double_buffer(TensorView<const T> q, TensorView<const T> k, TensorView<const T> v,
                          TensorView<T> o, cudaStream_t stream) {
  const int column_tiles = (v.D + kColumnTile - 1) / kColumnTile;
  const LaunchConfig config(q.B * q.H * column_tiles, kBlockThreads<Tile, kColumnTile>,
                            dynamic_shared_bytes<SharedStorage<T, Tile, kColumnTile>>(), stream);
  if (rows_are_16_bytes(q) && rows_are_16_bytes(k) && rows_are_16_bytes(v)) {
    constexpr int kVector = kElementsPer16Bytes<T>;
    launch(config, double_buffer_kernel<T, Tile, kColumnTile, kVector>, q, k, v, o, column_tiles);
  } else {
    launch(config, double_buffer_kernel<T, Tile, kColumnTile, 1>, q, k, v, o, column_tiles);
  }
}

// Picks the tile for E. More rows per thread mean fewer instructions per multiply-add, fewer rows
// more warps to hide latency with; these were the fastest of those tried on an H200.
// [doc:dispatch_e]
template <int kColumnTile, class T>
void dispatch_head_size(TensorView<const T> q, TensorView<const T> k, TensorView<const T> v,
                        TensorView<T> o, cudaStream_t stream) {
  auto run = [&]<class Tile>(Tile) { launch_double_buffer<Tile, kColumnTile>(q, k, v, o, stream); };
  //                               E  rows  columns  steps
  if (q.D <= 32) return run(Tile<32, 4, 4, 32>());
  if (q.D <= 64) return run(Tile<64, 4, 4, 32>());
  if (q.D <= 128) return run(Tile<128, 16, 4, 16>());
  if (q.D <= 256) return run(Tile<256, 16, 8, 8>());
  return run(Tile<512, 16, 8, 4>());
}
// [/doc:dispatch_e]

// The causal product: o_t = sum over s <= t of (q_t . k_s) v_s. T is float or bf16, E at most 512.
// Rows of k and v past their length count as zero; rows past the length of q are not read. Throws
// std::invalid_argument for operands that do not fit together, CudaError when the launch fails.
template <class T>
void double_buffer_causal_product(TensorView<const T> q,  // [B, H, L, E]
                                  TensorView<const T> k,  // [B, H, Lk, E]
                                  TensorView<const T> v,  // [B, H, Lk, M]
                                  TensorView<T> o,        // [B, H, L, M]
                                  cudaStream_t stream = 0) {
  check_causal_product(q, k, v, o);
  // Narrow tiles of columns only if each still has a multiprocessor to itself: two narrow ones on
  // one take longer than a wide one. (Only for float: like the low-occupancy kernel they are for
  // few heads, and each width is five more tiles to compile.)
  if constexpr (std::is_same_v<T, float>) {
    const bool narrow = 2 * q.B * q.H * ((v.D + 63) / 64) <= multiprocessors();
    if (narrow) return dispatch_head_size<32>(q, k, v, o, stream);
  }
  return dispatch_head_size<64>(q, k, v, o, stream);
}

}  // namespace attn::double_buffer
