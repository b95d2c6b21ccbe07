// Softmax attention for Hopper (compute capability 9.0): copies and products that go on by
// themselves, and warpgroups with different jobs.
//
// The idea: on this chip a matrix product reads its operands from shared memory and runs while the
// threads that started it do something else (wgmma), and so does a copy of a whole tile (TMA). So
// the tensor cores need never wait: neither for memory, nor for the softmax, whose exponentials
// take half as long as the products at a head size of 128, and as long at 64. (The design of
// FlashAttention-3, Shah et al. 2024, arXiv:2407.08608.)
//
// Who computes what: one block to a multiprocessor, which takes tile after tile of 128 or 192 query
// rows until there are none left; under the causal mask the longest first. One thread of a
// warpgroup, the producer, fetches tiles. Two or three warpgroups, the consumers, own 64 rows each.
// A consumer
//
//   starts   s = q k^T     for the next key block       |  tensor cores: q k^T
//   starts   o += p v      for this one                 |
//   waits for s; p' = exp(s - maximum)                  |  tensor cores: p v
//   waits for o; o *= exp(old maximum - maximum)        |  tensor cores: other consumers' products
//
// so that products run under its own softmax and under that of the others, which start theirs in
// turn. mbarriers tell which buffers are full and which are empty. Scores, probabilities and
// outputs stay in registers, up to 240 of a thread: the producer's warps give theirs away. The
// maximum that scores are taken relative to may lag behind by a factor of 2^8: then o is hardly
// ever rescaled.
//
// What memory moves: q and o once; k and v once per tile of query rows, nearly always from the L2
// cache, for which the tiles are ordered.
//
// What limits it: at head sizes 128 and 256 the tensor cores, and the power they take: the clock
// falls. At 64 the exponentials take as long as the products, and the two overlap only in part.
//
// A NaN in a key reaches the rows that attend to it and no others; a NaN in v reaches all rows of
// the tiles that load it, since 0 * NaN is NaN.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "07_flash/operands.cuh"

#ifdef ATTN_SIMT

namespace attn::flash {

inline bool hopper_available(std::string& why_not) {
  why_not = "needs compute capability 9.0: wgmma and TMA are not emulated";
  return false;
}

inline void hopper_attention(const AttentionOperands<__nv_bfloat16>&, cudaStream_t = 0) {
  throw std::runtime_error("hopper_attention: wgmma and TMA are not emulated");
}

}  // namespace attn::flash

#else

#include "07_flash/hopper_block.cuh"
#include "07_flash/hopper_consumer.cuh"
#include "07_flash/hopper_operands.cuh"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/ptx/setmaxnreg.cuh"
#include "common/ptx/tma.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::flash {

// [doc:hopper_producer]
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The tile after this block's last. The first ones are the blocks' own numbers; after that, first
// come, first served. Every block asks once in vain: who asks last leaves the counter at zero.
__device__ __forceinline__ int next_index(const HopperProblem& x) {
  const int taken = atomicAdd(x.next_tile, 1);
  if (taken == x.tiles - 1) *x.next_tile = 0;
  return gridDim.x + taken;
}

// One thread: takes tiles, and asks for their queries, keys and values as buffers come free.
template <class Tiling>
__device__ __forceinline__ void produce(const CUtensorMap& q_map, const CUtensorMap& k_map,
                                        const CUtensorMap& v_map, const HopperProblem& x,
                                        HopperStorage<Tiling>& smem) {
  RingPlace<Tiling::kStages> k_place, v_place;
  const auto load = [&](const CUtensorMap& map, auto& panels, int row, int head, int b,
                        uint64_t& full) {
    mbarrier_arrive_expect(&full, sizeof(panels));
#pragma unroll
    for (int panel = 0; panel < Tiling::kPanels; ++panel) {
      tma_load(panels[panel], map, panel * kPanel, row, head, b, &full);
    }
  };
  int round = 0;
  for (int index = blockIdx.x; index < x.tiles; index = next_index(x), ++round) {
    const HopperTile tile = tile_at<Tiling>(x, index);
    const int key_head = tile.h / x.query_heads_per_key_head;
    mbarrier_wait(&smem.q_empty, round % 2 ^ 1);
    smem.tile = index;
    load(q_map, smem.q, tile.first_row, tile.h, tile.b, smem.q_full);
    // From the last block to the first; the values one block after the keys, as they are wanted.
    for (int block = tile.blocks - 1; block >= -1; --block) {
      if (block >= 0) {
        mbarrier_wait(&smem.k_empty[k_place.stage], k_place.parity ^ 1);
        load(k_map, smem.k[k_place.stage], block * Tiling::kKeys, key_head, tile.b,
             smem.k_full[k_place.stage]);
        k_place.advance();
      }
      if (block + 1 < tile.blocks) {
        mbarrier_wait(&smem.v_empty[v_place.stage], v_place.parity ^ 1);
        load(v_map, smem.v[v_place.stage], (block + 1) * Tiling::kKeys, key_head, tile.b,
             smem.v_full[v_place.stage]);
        v_place.advance();
      }
    }
  }
  mbarrier_wait(&smem.q_empty, round % 2 ^ 1);
  smem.tile = -1;
  mbarrier_arrive(&smem.q_full);
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
    const auto init = [](uint64_t& full, uint64_t& empty) {
      mbarrier_init(&full, 1);
      mbarrier_init(&empty, kConsumerWarps);
    };
    init(smem.q_full, smem.q_empty);
    for (int stage = 0; stage < Tiling::kStages; ++stage) {
      init(smem.k_full[stage], smem.k_empty[stage]);
      init(smem.v_full[stage], smem.v_empty[stage]);
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

constexpr int64_t kMaxTiles = int64_t{1} << 30;      // they are counted in 32 bits
constexpr int64_t kCachedBytes = int64_t{32} << 20;  // of keys and values: most of the L2 cache

// Counters that are zero between launches (next_index). A launch takes the next one of so many that
// it is not in use any more.
constexpr int kLaunches = 1024;
static __device__ int tile_counters[kLaunches];

inline int* tile_counter() {
  static std::atomic<unsigned> launches;
  void* counters = nullptr;
  cuda_check(cudaGetSymbolAddress(&counters, tile_counters));
  return static_cast<int*>(counters) + launches++ % kLaunches;
}

// [doc:hopper_launch]
// For tensors that the copy engine can read, and at least one key.
template <class Tiling>
void launch_hopper(const AttentionOperands<__nv_bfloat16>& x, cudaStream_t stream) {
  const int64_t heads = x.q.B * x.q.H, group = x.q.H / x.k.H;
  const int64_t query_tiles = (x.q.L + Tiling::kRows - 1) / Tiling::kRows;
  if (heads * query_tiles > kMaxTiles) {
    throw std::invalid_argument("softmax attention: more than 2^30 query tiles");
  }

  HopperProblem problem = {};
  problem.o = x.o;
  problem.lse = x.lse;
  problem.Lk = static_cast<int>(x.k.L);
  problem.query_heads_per_key_head = static_cast<int>(group);
  problem.query_tiles = static_cast<int>(query_tiles);
  problem.heads_together = 1;
  if (x.causal) {
    // As many as fit, but in groups of equal size: a small last one would be done by few blocks.
    const int64_t bytes = x.k.L * Tiling::kHead * 4 / group;  // keys and values, for a query head
    const int64_t fitting =
        std::clamp<int64_t>(kCachedBytes / std::max<int64_t>(bytes, 1), 1, heads);
    const int64_t groups = (heads + fitting - 1) / fitting;
    problem.heads_together = static_cast<int>((heads + groups - 1) / groups);
  }
  problem.tiles = static_cast<int>(heads * query_tiles);
  problem.scale = x.scale;
  problem.causal = x.causal;
  problem.o_vectors = rows_are_16_bytes(x.o);
  problem.next_tile = tile_counter();

  const int64_t blocks = std::min<int64_t>(problem.tiles, multiprocessors());
  launch({blocks, Tiling::kThreads, dynamic_shared_bytes<HopperStorage<Tiling>>(), stream},
         hopper_kernel<Tiling>, tensor_map(x.q, Tiling::kRows), tensor_map(x.k, Tiling::kKeys),
         tensor_map(x.v, Tiling::kKeys), problem);
}
// [/doc:hopper_launch]

// Which of these a GPU finds is what the code for it was compiled as.
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
    why_not = "needs compute capability 9.0: this GPU has " + std::to_string(major) + "." +
              std::to_string(minor);
    return false;
  }
  static const bool compiled = [] {
    bool value = false;
    cuda_check(cudaMemcpyFromSymbol(&value, compiled_for_hopper, sizeof(value)));
    return value;
  }();
  if (!compiled) why_not = "needs compute capability 9.0: this build has no sm_90a";
  return compiled;
}

// [doc:hopper_attention]
// Attention as operands.cuh defines it, on compute capability 9.0. Any shape and strides that
// check_attention accepts, scale > 0. Tensors that the copy engine cannot read (rows that do not
// begin on 16 bytes: a head size that is no multiple of 8, say) are copied first; head sizes other
// than 64, 128 and 256 cost what the next of these costs. Throws std::invalid_argument, in one
// line, if the operands do not fit; std::runtime_error where hopper_available is false.
inline void hopper_attention(const AttentionOperands<__nv_bfloat16>& x, cudaStream_t stream = 0) {
  check_attention(x);
  std::string why_not;
  if (!hopper_available(why_not)) throw std::runtime_error("hopper_attention: " + why_not);
  if (!(x.scale > 0)) throw std::invalid_argument("softmax attention: the scale is not positive");
  if (x.k.L == 0) {
    launch({copy_blocks(x.o.B * x.o.H * x.o.L * x.o.D), kCopyThreads, 0, stream},
           no_keys_kernel<__nv_bfloat16>, x.o, x.lse);
    return;
  }
  const Readable q(x.q, stream), k(x.k, stream), v(x.v, stream);
  AttentionOperands<__nv_bfloat16> readable = x;
  readable.q = q.view();
  readable.k = k.view();
  readable.v = v.view();
  const int64_t head = std::max(x.q.D, x.v.D);
  if (head <= 64) {
    launch_hopper<HopperTiling<64, 3, 128, 4>>(readable, stream);
  } else if (head <= 128) {
    launch_hopper<HopperTiling<128, 2, 128, 2>>(readable, stream);
  } else {
    launch_hopper<HopperTiling<256, 2, 80, 2>>(readable, stream);
  }
}
// [/doc:hopper_attention]

}  // namespace attn::flash

#endif  // ATTN_SIMT
