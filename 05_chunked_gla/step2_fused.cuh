// Gated linear attention in one kernel, on tensor cores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_load.cuh"
#include "05_chunked_gla/fused_packet.cuh"
#include "05_chunked_gla/fused_prepare.cuh"
#include "05_chunked_gla/fused_state.cuh"
#include "05_chunked_gla/operands.cuh"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/named_barrier.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

// The part of the sequence that a block walks.
struct Segments {
  int count = 1;
  int rows;  // of each but the last
};

// A block's place in the problem.
template <class Tiling>
struct Block {
  using T = typename Tiling::T;
  using Storage = SharedStorage<Tiling>;

  const GlaOperands<T>& x;
  Storage& smem;
  bool aligned;
  int64_t b, h, state_head;
  int m0, begin, end, chunks;

  // Whether the packets of sub-chunk `sub` are not whole yet.
  __device__ __forceinline__ bool incomplete(int chunk, int sub) const {
    bool some = false;
    for (int i = 0; i < Tiling::kSlabs; ++i) {
      some |= smem.next_row[chunk % 2][sub][i] < kSubChunk;
    }
    return some;
  }
  __device__ __forceinline__ bool any_incomplete(int chunk) const {
    bool some = false;
    for (int sub = 0; sub < Tiling::kSubChunks; ++sub) some |= incomplete(chunk, sub);
    return some;
  }
  __device__ __forceinline__ void meet() const { named_barrier_sync(kRound, Tiling::kThreads); }
};

template <class Tiling>
__device__ __forceinline__ void run_preparing_warp(Block<Tiling>& block) {
  using T = typename Tiling::T;
  constexpr int kPitch = Block<Tiling>::Storage::kPitch;
  auto& smem = block.smem;
  const int warp = threadIdx.x / kWarp - Tiling::kStateWarps, lane = threadIdx.x % kWarp;
  const int my_sub = warp / Tiling::kSlabs, slab = warp % Tiling::kSlabs;

  const auto& x = block.x;
  constexpr int kThreads = Tiling::kPrepareWarps * kWarp;
  const int thread = warp * kWarp + lane;
  const int64_t b = block.b, h = block.h;
  RowLoader<T, Tiling::kRows, Tiling::kE, kThreads> q_rows(x.q, b, h, block.begin, 0, thread);
  RowLoader<T, Tiling::kRows, Tiling::kE, kThreads> k_rows(x.k, b, h, block.begin, 0, thread);
  RowLoader<T, Tiling::kRows, Tiling::kE, kThreads> g_rows(x.g, b, h, block.begin, 0, thread);
  RowLoader<T, Tiling::kRows, Tiling::kM, kThreads> v_rows(x.v, b, h, block.begin, block.m0, thread);
  auto load = [&](int chunk) {
    if (chunk < block.chunks) {
      const int rows = block.end - block.begin - chunk * Tiling::kRows;
      const int slot = chunk % Tiling::kSlots, v_slot = chunk % (Tiling::kSlots + 1);
      if (block.aligned) {
        q_rows.load(smem.q[slot], rows);
        k_rows.load(smem.k[slot], rows);
        g_rows.load(smem.g[slot], rows);
        v_rows.load(smem.v[v_slot], rows);
      } else {
        q_rows.load_elements(smem.q[slot], rows);
        k_rows.load_elements(smem.k[slot], rows);
        g_rows.load_elements(smem.g[slot], rows);
        v_rows.load_elements(smem.v[v_slot], rows);
      }
    }
    cp_async_commit();
  };

  auto prepare_from = [&](int chunk, int first) {
    const int slot = chunk % Tiling::kSlots, row = my_sub * kSubChunk;
    auto& packet = smem.packets[chunk % 2][my_sub];
    const T *q = smem.q[slot][row], *k = smem.k[slot][row];
    const T* g = smem.g[slot][row];
    const float* before = my_sub > 0 ? smem.packets[chunk % 2][my_sub - 1].h
                                     : smem.packets[(chunk + 1) % 2][Tiling::kSubChunks - 1].h;
    int next = kSubChunk;
    if (first > 0 || prepare<true>(packet, q, k, g, before, kPitch, slab, {0, kSubChunk - 1})) {
      const Window window = find_window<Tiling>(g, kPitch, slab, first);
      prepare<false>(packet, q, k, g, before, kPitch, slab, window);
      next = window.last + 1;
    }
    if (lane == 0) smem.next_row[chunk % 2][my_sub][slab] = next;
  };

  for (int chunk = 0; chunk < Tiling::kSlots - 1; ++chunk) load(chunk);
#pragma unroll 1
  for (int chunk = -1; chunk < block.chunks; ++chunk) {
    cp_async_wait<Tiling::kSlots - 2>();
    block.meet();
    if (chunk >= 0 && block.any_incomplete(chunk)) {
      for (int sub = 0; sub < Tiling::kSubChunks; ++sub) {
        while (block.incomplete(chunk, sub)) {
          const int first = smem.next_row[chunk % 2][sub][slab];
          block.meet();
          if (my_sub == sub) prepare_from(chunk, first);
          block.meet();
        }
      }
    }
    load(chunk + Tiling::kSlots);
    if (chunk + 1 < block.chunks) prepare_from(chunk + 1, 0);
  }
}

template <class Tiling>
__device__ __forceinline__ void run_state_warp(Block<Tiling>& block) {
  using T = typename Tiling::T;
  const GlaOperands<T>& x = block.x;
  auto& smem = block.smem;
  const int lane = threadIdx.x % kWarp;
  const int column = threadIdx.x / kWarp * Tiling::kWarpColumns, m_warp = block.m0 + column;

  // Tensor cores cut a float off after 10 bits of mantissa, half a unit of them too low on average,
  // 2^-11 E(1 / mantissa); every output is a sum of products of two such floats.
  const float scale = x.scale * (1 + 2 * 3.52e-4f);
  State<Tiling> state;
  state.for_each([&](int e, int column, float& S) {
    const int m = m_warp + column;
    const bool given = x.initial_state.data != nullptr && e < x.k.D && m < x.v.D;
    S = given ? x.initial_state.row(block.b, block.state_head, e)[m] : 0;
  });

  block.meet();
  float o[2 * State<Tiling>::kTiles][4] = {};
  bool settled = true;  // whether S has taken the last packet's `out`
#pragma unroll 1
  for (int chunk = 0; chunk < block.chunks; ++chunk) {
    block.meet();
    const bool strong = block.any_incomplete(chunk);
#pragma unroll 1
    for (int sub = 0; sub < Tiling::kSubChunks;) {
      const T* v = &smem.v[chunk % (Tiling::kSlots + 1)][sub * kSubChunk][column];
      auto& packet = smem.packets[chunk % 2][sub];
      state.take(packet, settled ? packet.in : packet.decay, v, Block<Tiling>::Storage::kPitchV, o);
      settled = false;
      if (strong) {
        state.scale(packet.out);
        settled = true;
        if (block.incomplete(chunk, sub)) {
          block.meet();
          block.meet();
          continue;
        }
      }
      const int row0 = block.begin + chunk * Tiling::kRows + sub * kSubChunk;
      const int m1 = m_warp + lane % 4 * 2;
      if (block.aligned && row0 + kSubChunk <= block.end &&
          m_warp + Tiling::kWarpColumns <= x.o.D) {
        T* target = x.o.row(block.b, block.h, row0 + lane / 4) + m1;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int half = 0; half < 2 * State<Tiling>::kTiles; ++half) {
            const float y0 = o[half][2 * i] * scale, y1 = o[half][2 * i + 1] * scale;
            if constexpr (sizeof(T) == 2) {
              *reinterpret_cast<__nv_bfloat162*>(target + half * 8) =
                  __floats2bfloat162_rn(y0, y1);
            } else {
              *reinterpret_cast<float2*>(target + half * 8) = {y0, y1};
            }
          }
          target += 8 * x.o.stride_l;
        }
      } else {
#pragma unroll
        for (int half = 0; half < 2 * State<Tiling>::kTiles; ++half) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = row0 + lane / 4 + i / 2 * 8, m = m1 + half * 8 + i % 2;
            if (row < block.end && m < x.o.D) {
              x.o.row(block.b, block.h, row)[m] = T(o[half][i] * scale);
            }
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2 * State<Tiling>::kTiles; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[half][i] = 0;
      }
      ++sub;
    }
  }

  if (x.final_state.data == nullptr) return;
  if (!settled) state.scale(smem.packets[(block.chunks - 1) % 2][Tiling::kSubChunks - 1].out);
  state.for_each([&](int e, int column, float& S) {
    const int m = m_warp + column;
    if (e < x.k.D && m < x.v.D) x.final_state.row(block.b, block.state_head, e)[m] = S;
  });
}

template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    fused_kernel(GlaOperands<typename Tiling::T> x, int column_tiles, Segments segments,
                 bool aligned) {
  const int64_t segment = blockIdx.x / column_tiles % segments.count;
  const int64_t head = blockIdx.x / column_tiles / segments.count;
  const int64_t b = head / x.k.H, h = head % x.k.H;
  const int m0 = blockIdx.x % column_tiles * Tiling::kM;
  const int begin = segment * segments.rows;
  const int end = begin + segments.rows < x.k.L ? begin + segments.rows : static_cast<int>(x.k.L);
  const int chunks = (end - begin + Tiling::kRows - 1) / Tiling::kRows;
  Block<Tiling> block{x, shared_storage<SharedStorage<Tiling>>(), aligned, b, h, h * segments.count + segment,
                      m0, begin, end, chunks};
  if (threadIdx.x / kWarp < Tiling::kStateWarps) {
    run_state_warp(block);
  } else {
    run_preparing_warp(block);
  }
}

template <class Tiling>
void launch_fused(const GlaOperands<typename Tiling::T>& x, Segments segments, cudaStream_t stream) {
  const int column_tiles = (x.v.D + Tiling::kM - 1) / Tiling::kM;
  auto aligned = [](const auto& y) {
    constexpr int kVector = 16 / sizeof(*y.data);
    return reinterpret_cast<uintptr_t>(y.data) % 16 == 0 && y.D % kVector == 0 &&
           y.stride_b % kVector == 0 && y.stride_h % kVector == 0 && y.stride_l % kVector == 0;
  };
  const bool all = aligned(x.q) && aligned(x.k) && aligned(x.v) && aligned(x.g) && aligned(x.o);
  launch({x.k.B * x.k.H * segments.count * column_tiles, Tiling::kThreads,
          dynamic_shared_bytes<SharedStorage<Tiling>>(), stream},
         fused_kernel<Tiling>, x, column_tiles, segments, all);
}

template <class T>
void fused_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  const Segments whole{1, static_cast<int>(x.k.L)};
#ifndef T64
#define T64 64, 32, 2, 2, 3, 2, 64
#endif
#ifndef T128
#define T128 128, 32, 4, (sizeof(T) == 2 ? 2 : 1), 3, 1, 64
#endif
#ifndef T256
#define T256 256, 16, 8, 1, 2, 1, 64
#endif
  if (x.k.D <= 64) return launch_fused<Tiling<T, T64>>(x, whole, stream);
  if (x.k.D <= 128) return launch_fused<Tiling<T, T128>>(x, whole, stream);
  return launch_fused<Tiling<T, T256>>(x, whole, stream);
}

}  // namespace attn::chunked_gla
