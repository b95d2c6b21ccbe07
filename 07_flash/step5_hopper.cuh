// Softmax attention for Hopper: asynchronous copies and asynchronous products, by warpgroups with
// different jobs.
//
// The idea: the tensor cores work while the same warps do their softmax, and never wait for memory.
// wgmma and TMA are asynchronous: a thread starts a product or a copy and goes on. (Shah et al. 2024,
// FlashAttention-3, arXiv:2407.08608.)
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "07_flash/operands.cuh"

#ifdef ATTN_SIMT

namespace attn::flash {

inline bool hopper_available(std::string& why_not) {
  why_not = "wgmma and TMA are not emulated";
  return false;
}

inline void hopper_attention(const AttentionOperands<__nv_bfloat16>&, cudaStream_t = 0) {
  throw std::runtime_error("hopper_attention: wgmma and TMA are not emulated");
}

}  // namespace attn::flash

#else

#include "07_flash/hopper_block.cuh"
#include "07_flash/hopper_consumer.cuh"
#include "common/device.hpp"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/ptx/setmaxnreg.cuh"
#include "common/ptx/tma.cuh"
#include "common/shared_storage.cuh"
#include "common/stream_buffer.hpp"

namespace attn::flash {

// [doc:hopper_producer]
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// One thread: takes tiles, and asks for their queries, keys and values as buffers come free.
template <class Tiling>
__device__ __forceinline__ void produce(const CUtensorMap& q_map, const CUtensorMap& k_map,
                                        const CUtensorMap& v_map, const HopperProblem& x,
                                        HopperStorage<Tiling>& smem) {
  RingPlace<Tiling::kStages> k_place, v_place;
  const auto load_block = [&](const CUtensorMap& map, auto& panels, int row, int head, int b,
                              uint64_t& full, uint64_t& empty, int parity) {
    mbarrier_wait(&empty, parity ^ 1);
    mbarrier_arrive_expect(&full, sizeof(panels));
#pragma unroll
    for (int panel = 0; panel < Tiling::kPanels; ++panel) {
      tma_load(panels[panel], map, panel * kPanel, row, head, b, &full);
    }
  };
  int index = blockIdx.x;
  for (int round = 0;; ++round) {
    if (index >= x.tiles) {
      mbarrier_wait(&smem.q_empty, round % 2 ^ 1);
      smem.tile = -1;
      mbarrier_arrive(&smem.q_full);
      return;
    }
    const Tile tile = tile_at<Tiling>(x, index);
    const int key_head = tile.h / x.query_heads_per_key_head;
    mbarrier_wait(&smem.q_empty, round % 2 ^ 1);
    smem.tile = index;
    load_block(q_map, smem.q, tile.first_row, tile.h, tile.b, smem.q_full, smem.q_empty, round % 2);
    // The values of a block are wanted one block later than its keys.
    for (int block = tile.blocks - 1; block >= -1; --block) {
      if (block >= 0) {
        const int stage = k_place.stage;
        load_block(k_map, smem.k[stage], block * Tiling::kKeys, key_head, tile.b,
                   smem.k_full[stage], smem.k_empty[stage], k_place.parity);
        k_place.advance();
      }
      if (block + 1 < tile.blocks) {
        const int stage = v_place.stage;
        load_block(v_map, smem.v[stage], (block + 1) * Tiling::kKeys, key_head, tile.b,
                   smem.v_full[stage], smem.v_empty[stage], v_place.parity);
        v_place.advance();
      }
    }
    index = gridDim.x + atomicAdd(x.next_tile, 1);
  }
}
#endif
// [/doc:hopper_producer]

// [doc:hopper_kernel]
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, 1)
    hopper_kernel(const __grid_constant__ CUtensorMap q_map,  // [B, H, Lq, E]
                  const __grid_constant__ CUtensorMap k_map,  // [B, Hkv, Lk, E]
                  const __grid_constant__ CUtensorMap v_map,  // [B, Hkv, Lk, M]
                  const __grid_constant__ HopperProblem x) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& smem = shared_storage<HopperStorage<Tiling>>();
  if (threadIdx.x == 0) {
    constexpr int kConsumerWarps = Tiling::kConsumers * kWarpgroup / 32;
    mbarrier_init(&smem.q_full, 1);
    mbarrier_init(&smem.q_empty, kConsumerWarps);
    for (int stage = 0; stage < Tiling::kStages; ++stage) {
      mbarrier_init(&smem.k_full[stage], 1);
      mbarrier_init(&smem.k_empty[stage], kConsumerWarps);
      mbarrier_init(&smem.v_full[stage], 1);
      mbarrier_init(&smem.v_empty[stage], kConsumerWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();  // nobody waits at a barrier that is not there yet

  // The shuffle tells the compiler that all lanes have the same.
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == Tiling::kConsumers) {
    give_registers<Tiling::kProducerRegisters>();
    if (threadIdx.x == Tiling::kConsumers * kWarpgroup) produce(q_map, k_map, v_map, x, smem);
  } else {
    take_registers<Tiling::kConsumerRegisters>();
    HopperConsumer<Tiling>(x, smem, warpgroup).run();
  }
#endif
}
// [/doc:hopper_kernel]

template <class Tiling>
void launch_hopper(const AttentionOperands<__nv_bfloat16>& x, cudaStream_t stream) {
  const int64_t heads = x.q.B * x.q.H, group = x.q.H / x.k.H;
  const int64_t query_tiles = (x.q.L + Tiling::kRows - 1) / Tiling::kRows;
  if (heads * query_tiles > kMaxTiles) {
    throw std::invalid_argument("softmax attention: more than 2^30 query tiles");
  }
  StreamBuffer<int> next_tile(1, stream);
  cuda_check(cudaMemsetAsync(next_tile.data(), 0, sizeof(int), stream));

  HopperProblem problem = {};
  problem.o = x.o;
  problem.lse = x.lse;
  problem.Lk = static_cast<int>(x.k.L);
  problem.query_heads_per_key_head = static_cast<int>(group);
  problem.query_tiles = static_cast<int>(query_tiles);
  problem.heads_together = 1;
  if (x.causal) {
    // Half of the L2 cache for the keys and values that are in use.
    const int64_t head_bytes = std::max<int64_t>(1, x.k.L * Tiling::kHead * 4 / group);
    problem.heads_together =
        static_cast<int>(std::clamp<int64_t>(kCachedBytes / head_bytes, 1, heads));
  }
  problem.tiles = static_cast<int>(heads * query_tiles);
  problem.scale = x.scale;
  problem.causal = x.causal;
  problem.o_vectors = rows_are_16_bytes(x.o);
  problem.next_tile = next_tile.data();

  const CUtensorMap q = tensor_map(x.q, Tiling::kRows);
  // Without keys nothing is loaded by the other maps.
  const CUtensorMap k = x.k.L > 0 ? tensor_map(x.k, Tiling::kKeys) : q;
  const CUtensorMap v = x.k.L > 0 ? tensor_map(x.v, Tiling::kKeys) : q;
  const int64_t blocks = std::min<int64_t>(problem.tiles, multiprocessors());
  launch({blocks, Tiling::kThreads, dynamic_shared_bytes<HopperStorage<Tiling>>(), stream},
         hopper_kernel<Tiling>, q, k, v, problem);
}

// --- Tensors that the copy engine cannot read -----------------------------------------------------

// A dense copy, rows padded to whole 16 bytes with zeros. A thread owns an element of it.
template <class T>
__global__ void pad_rows_kernel(TensorView<const T> from,  // [B, H, L, D]
                                TensorView<T> to) {        // [B, H, L, D rounded up to 8]
  const int64_t count = to.B * to.H * to.L * to.D;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t d = i % to.D, row = i / to.D;
    const int64_t l = row % to.L, h = row / to.L % to.H, b = row / to.L / to.H;
    to.data[i] = d < from.D ? from.row(b, h, l)[d] : from_float<T>(0);
  }
}

// x itself where the copy engine can read it, else a copy in memory of its own.
class Readable {
 public:
  Readable(const TensorView<const __nv_bfloat16>& x, cudaStream_t stream)
      : copy_(fits(x) ? 0 : x.B * x.H * x.L * padded(x.D), stream), view_(x) {
    if (fits(x)) return;
    const auto to = dense_view(copy_.data(), x.B, x.H, x.L, padded(x.D), Layout::BHLD);
    constexpr int kThreads = 256;
    const int64_t blocks = (to.B * to.H * to.L * to.D + kThreads - 1) / kThreads;
    launch({std::min<int64_t>(blocks, 1 << 16), kThreads, 0, stream},
           pad_rows_kernel<__nv_bfloat16>, x, to);
    view_ = to;
  }
  const TensorView<const __nv_bfloat16>& view() const { return view_; }

 private:
  static bool fits(const TensorView<const __nv_bfloat16>& x) { return x.L == 0 || tma_can_read(x); }
  static int64_t padded(int64_t D) { return (D + 7) / 8 * 8; }

  StreamBuffer<__nv_bfloat16> copy_;
  TensorView<const __nv_bfloat16> view_;
};

// --- The step -------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static __constant__ bool compiled_for_hopper = true;
#else
static __constant__ bool compiled_for_hopper = false;
#endif

// Whether hopper_attention can run here; else why not, in a few words.
inline bool hopper_available(std::string& why_not) {
  int device = 0, major = 0, minor = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major != 9 || minor != 0) {
    why_not = "it needs compute capability 9.0, this GPU has " + std::to_string(major) + "." +
              std::to_string(minor);
    return false;
  }
  bool compiled = false;
  cuda_check(cudaMemcpyFromSymbol(&compiled, compiled_for_hopper, sizeof(compiled)));
  if (!compiled) why_not = "it was not compiled for sm_90a";
  return compiled;
}

// [doc:hopper_attention]
// Attention as operands.cuh defines it, on compute capability 9.0. Any shape and strides that
// check_attention accepts, scale > 0. Tensors that the copy engine cannot read (rows that do not
// begin on 16 bytes: a head size that is no multiple of 8, say) are copied first; head sizes other
// than 64, 128 and 256 cost what the next of these costs. Throws std::invalid_argument, in one line,
// if the operands do not fit; std::runtime_error, naming the reason, where the GPU or the build does not.
inline void hopper_attention(const AttentionOperands<__nv_bfloat16>& x, cudaStream_t stream = 0) {
  check_attention(x);
  if (!(x.scale > 0)) throw std::invalid_argument("softmax attention: the scale is not positive");
  const Readable q(x.q, stream), k(x.k, stream), v(x.v, stream);
  AttentionOperands<__nv_bfloat16> readable = x;
  readable.q = q.view();
  readable.k = k.view();
  readable.v = v.view();
  const int64_t head = std::max(x.q.D, x.v.D);
  if (head <= 64) {
    launch_hopper<HopperTiling<64, 3, 128, 2, true>>(readable, stream);
  } else if (head <= 128) {
    if (x.causal) {
      launch_hopper<HopperTiling<128, 2, 128, 2, false>>(readable, stream);
    } else {
      launch_hopper<HopperTiling<128, 3, 80, 2, true>>(readable, stream);
    }
  } else {
    launch_hopper<HopperTiling<256, 2, 80, 2, true>>(readable, stream);
  }
}
// [/doc:hopper_attention]

}  // namespace attn::flash

#endif  // ATTN_SIMT
