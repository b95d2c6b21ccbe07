// RWKV-6, the recurrence in tiles of the state.
//
// The idea (flash-linear-attention's fused_recurrent_rwkv6): rows and columns of the state do not
// need each other. o_t[m] is a sum over the rows e, so a block can own any tile of the state and
// give its part of the sum.
//
// Who computes what: the grid is NV tiles of M by NK tiles of E by B*H. Tiles are as wide as the
// next power of two, up to 32: E = 100 is 4 tiles, of which the last has 4 rows and 28 that are
// masked. A block is a warp: lane i owns column i of the tile, kTile rows of it in registers. Each
// step lane i fetches element i of the tile's r, k and w, for all.
//
// What memory moves: r, k and w once per tile of M, v once per tile of E (the blocks of a head run
// side by side, so all but one read from L2); and the partial outputs [NK, B, H, L, M] in fp32, once
// written, once read: at E = M = 64 in bf16 1.6 times the bytes of all operands together.
//
// What limits it: latency. A warp waits for memory at each step, and there are few warps.
//
// What the next step removes: the partial outputs, and the wait at each step.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "06_rwkv6/operands.cuh"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"
#include "common/stream_buffer.hpp"

namespace attn::rwkv6 {

constexpr int kTileThreads = 32;
constexpr int kSumThreads = 256;

template <int kTile, class T>
__global__ void __launch_bounds__(kTileThreads)
    fused_recurrent_kernel(Rwkv6Operands<T> x,
                           TensorView<float> o_parts,  // [NK * B, H, L, M]
                           int tiles_v, int tiles_k, int tile_v) {
  struct SharedStorage {
    float r[kTile], k[kTile], decay[kTile], u[kTile];
  };
  auto& smem = shared_storage<SharedStorage>();
  // [doc:tiles]
  const int i_v = blockIdx.x % tiles_v;
  const int i_k = blockIdx.x / tiles_v % tiles_k;
  const int64_t i_bh = blockIdx.x / tiles_v / tiles_k;
  const int64_t b = i_bh / x.r.H, h = i_bh % x.r.H;
  const int lane = threadIdx.x;
  const int e0 = i_k * kTile, m = i_v * tile_v + lane;
  const bool owns_row = lane < kTile && e0 + lane < x.r.D;
  const bool owns_column = lane < tile_v && m < x.v.D;
  // [/doc:tiles]

  float S[kTile] = {};
  if (x.initial_state.data != nullptr && owns_column) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      if (e0 + i < x.r.D) S[i] = x.initial_state.row(b, h, e0 + i)[m];
    }
  }
  if (lane < kTile) smem.u[lane] = owns_row ? to_float(x.u.row(0, h, 0)[e0 + lane]) : 0;

  // [doc:fused_recurrent]
  for (int t = 0; t < x.r.L; ++t) {
    __syncwarp();  // all lanes are done with the step before
    if (lane < kTile) {
      smem.r[lane] = owns_row ? to_float(x.r.row(b, h, t)[e0 + lane]) * x.scale : 0;
      smem.k[lane] = owns_row ? to_float(x.k.row(b, h, t)[e0 + lane]) : 0;
      smem.decay[lane] = owns_row ? expf(to_float(x.w.row(b, h, t)[e0 + lane])) : 0;
    }
    __syncwarp();  // the step's rows are written
    const float v_m = owns_column ? to_float(x.v.row(b, h, t)[m]) : 0;
    float o_m = 0;
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      const float kv = smem.k[i] * v_m;
      o_m += smem.r[i] * (S[i] + smem.u[i] * kv);
      S[i] = smem.decay[i] * S[i] + kv;
    }
    if (owns_column) o_parts.row(i_k * x.r.B + b, h, t)[m] = o_m;
  }
  // [/doc:fused_recurrent]

  if (x.final_state.data != nullptr && owns_column) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      if (e0 + i < x.r.D) x.final_state.row(b, h, e0 + i)[m] = S[i];
    }
  }
}

// [doc:sum]
// o = the sum of the parts. A thread for each element.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts_kernel(TensorView<const float> o_parts,  // [NK * B, H, L, M]
                     TensorView<T> o, int tiles_k) {   // [B, H, L, M]
  const int64_t i = int64_t(blockIdx.x) * kSumThreads + threadIdx.x;
  if (i >= o.B * o.H * o.L * o.D) return;
  const int64_t m = i % o.D, t = i / o.D % o.L, h = i / o.D / o.L % o.H, b = i / o.D / o.L / o.H;
  float sum = 0;
  for (int part = 0; part < tiles_k; ++part) sum += o_parts.row(part * o.B + b, h, t)[m];
  o.row(b, h, t)[m] = from_float<T>(sum);
}
// [/doc:sum]

// The width of tiles that cover a head size.
inline int tile_width(int64_t D) {
  int width = 1;
  while (width < 32 && width < D) width *= 2;
  return width;
}

// RWKV-6 of float or bf16 tensors, in fp32 arithmetic. Throws std::invalid_argument for operands
// that do not fit together, CudaError when a launch or the scratch memory fails: M floats per step
// and tile of E.
template <class T>
void fused_recurrent_rwkv6(const Rwkv6Operands<T>& operands, cudaStream_t stream = 0) {
  const Rwkv6Operands<T> x = in_walking_order(operands);
  const int64_t B = x.r.B, H = x.r.H, L = x.r.L, E = x.r.D, M = x.v.D;
  const int tile_k = tile_width(E), tile_v = tile_width(M);
  const int tiles_k = (E + tile_k - 1) / tile_k, tiles_v = (M + tile_v - 1) / tile_v;
  StreamBuffer<float> memory(tiles_k * B * H * L * M, stream);
  const auto o_parts = dense_view(memory.data(), tiles_k * B, H, L, M, Layout::BHLD);

  const auto run = [&]<int kTile>() {
    launch({tiles_v * tiles_k * B * H, kTileThreads, 0, stream}, fused_recurrent_kernel<kTile, T>,
           x, o_parts, tiles_v, tiles_k, tile_v);
  };
  switch (tile_k) {
    case 1:
      run.template operator()<1>();
      break;
    case 2:
      run.template operator()<2>();
      break;
    case 4:
      run.template operator()<4>();
      break;
    case 8:
      run.template operator()<8>();
      break;
    case 16:
      run.template operator()<16>();
      break;
    default:
      run.template operator()<32>();
  }
  launch({(B * H * L * M + kSumThreads - 1) / kSumThreads, kSumThreads, 0, stream},
         sum_parts_kernel<T>, o_parts, x.o, tiles_k);
}

}  // namespace attn::rwkv6
