// What every segment of a sequence adds to the state, without the recurrence.
//
// The idea: a row of a segment is left at the segment's end with k_j v_j^T, decayed by all gates
// after it. So walk backwards, with a running sum of the gates of each column:
//
//   added = sum over j of k'_j v_j^T,   k'_j = k_j exp(sum over i > j of g_i)
//
// This is a product of matrices that is only added to. No state decays, nothing waits for the row
// before but a sum, and no gate is too strong: no exponent is above 0. And it ends early: once the
// sum of every column is so low that its exponential is 0 in a float, all further rows add 0, and
// are not read. With gates of logsigmoid(N(0, 1)) / 16 that is after 1800 rows, with gates of
// logsigmoid(N(0, 1)) after 120. (So a NaN or an infinity in such a row is forgotten. The recurrence
// would carry it on, as 0 times infinity.)
//
// Who computes what: a block has a segment of one head, 64 columns of k, and 64 or 128 of v. A warp
// has 16 of the columns of k, and is alone with them: it sums up their gates, scales the elements
// of k in the registers in which a tensor core takes them, and keeps what they add in accumulators.
// Warps share only the rows in shared memory, and the barrier at which these change.
//
// What memory moves: k and g of the rows that count, once for each 128 columns of v, and v once for
// each 64 columns of k; the states are little beside them.
//
// What limits it: tensor cores, since k' goes in as the sum of two bf16; where there are few blocks,
// the time for the first rows to arrive.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_block.cuh"
#include "05_chunked_gla/fused_load.cuh"
#include "05_chunked_gla/operands.cuh"
#include "05_chunked_gla/segments.cuh"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

// How a block divides a state.
template <class T_, int kM_>
struct StateTiling {
  using T = T_;
  static constexpr int kE = 64;            // columns of k and g
  static constexpr int kM = kM_;           // columns of v
  static constexpr int kWarpColumns = 16;  // of k: the rows of A that turn out as B of two products
  static constexpr int kWarps = kE / kWarpColumns;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = 32;   // between two barriers
  static constexpr int kStages = 4;  // buffers of so many rows

  // 16 bytes more than a row has: then eight rows begin in different banks.
  static constexpr int kPitch = kE + 16 / int(sizeof(T));
  static constexpr int kPitchV = kM + 16 / int(sizeof(T));

  struct SharedStorage {
    alignas(16) T k[kStages][kRows][kPitch];
    alignas(16) T g[kStages][kRows][kPitch];
    alignas(16) T v[kStages][kRows][kPitchV];
    bool forgotten[2][kWarps];  // whether the rows before these count no more for the warp
  };

  static_assert(kSegmentRows % kRows == 0, "segments are walked in whole tiles");
};

// 16 rows and 16 columns as an A operand of their transpose: x[i] has two rows, from
// 2 (lane % 4) + i / 2 * 8 on, of column lane / 4 + i % 2 * 8. With i / 2 as the register, and for
// each i % 2, they are the B operand of those 8 columns.
__device__ __forceinline__ void load_transposed(uint32_t (&x)[4], const __nv_bfloat16* smem,
                                                int pitch) {
  const int lane = threadIdx.x % kWarp;
  ldmatrix_trans(x, smem + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
}
__device__ __forceinline__ void load_transposed(float2 (&x)[4], const float* smem, int pitch) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* two = smem + (lane % 4 * 2 + i / 2 * 8) * pitch + lane / 4 + i % 2 * 8;
    x[i] = {two[0], two[pitch]};
  }
}

// Two elements as the sum of kParts bf16 each.
__device__ __forceinline__ void split(uint32_t (&parts)[1], uint32_t pair) { parts[0] = pair; }
__device__ __forceinline__ void split(uint32_t (&parts)[2], float2 pair) {
  parts[0] = pack_high(pair.x, pair.y);
  parts[1] = pack_low(pair.x, pair.y, parts[0]);
}

// Of four lanes that share a column: the sum over all, and over those before this one.
struct ColumnSum {
  float all, before;
  __device__ explicit ColumnSum(float x) {
    const float neighbour = __shfl_xor_sync(kFullWarp, x, 1);
    const float two = x + neighbour, other_two = __shfl_xor_sync(kFullWarp, two, 2);
    all = two + other_two;
    before = (threadIdx.x % 2 == 1 ? neighbour : 0) + (threadIdx.x / 2 % 2 == 1 ? other_two : 0);
  }
};

// One warp: its columns of k and all of the block's columns of v.
template <class Tiling>
class SegmentSum {
  using T = typename Tiling::T;
  static constexpr int kValueParts = sizeof(T) / 2;
  static constexpr int kTiles = Tiling::kM / 16;

 public:
  // Columns past E have decayed from the beginning.
  __device__ __forceinline__ SegmentSum(int e, int E) {
    const float decayed = -__int_as_float(0x7f800000);
#pragma unroll
    for (int i = 0; i < 2; ++i) log_decay_[i] = e + lane() / 4 + i * 8 < E ? 0 : decayed;
  }

  // Whether all that is to come would be multiplied with zero.
  __device__ __forceinline__ bool forgotten() const {
    return __all_sync(kFullWarp,
                      exp2_approx(log_decay_[0]) == 0 && exp2_approx(log_decay_[1]) == 0);
  }

  // [doc:take_backwards]
  // Takes the 16 rows before those it has, the latest first.
  __device__ __forceinline__ void take(const T* k_smem, const T* g_smem, const T* v_smem) {
    Pair<T> g[4], k[4];
    load_transposed(g, g_smem, Tiling::kPitch);
    load_transposed(k, k_smem, Tiling::kPitch);
    uint32_t high[2][2], low[2][2];  // k', the B operands of two times 8 columns
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // The lane's rows are 2 (lane % 4) + 8 i and the next: each decays by the gates before it.
        const float2 gate = to_floats(g[2 * i + half]), key = to_floats(k[2 * i + half]);
        const ColumnSum sum(gate.x + gate.y);
        const float x0 = fmaf(sum.before, kLog2e, log_decay_[half]);
        const float x1 = fmaf(gate.x, kLog2e, x0);
        log_decay_[half] = fmaf(sum.all, kLog2e, log_decay_[half]);
        const float k0 = key.x * exp2_approx(x0), k1 = key.y * exp2_approx(x1);
        high[half][i] = pack_high(k0, k1);
        low[half][i] = pack_low(k0, k1, high[half][i]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Pair<T> v[4];
      load_transposed(v, v_smem + tile * 16, Tiling::kPitchV);
      uint32_t parts[kValueParts][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t pair[kValueParts];
        split(pair, v[i]);
#pragma unroll
        for (int part = 0; part < kValueParts; ++part) parts[part][i] = pair[part];
      }
      // Low parts are not multiplied with low parts.
#pragma unroll
      for (int part = 0; part < kValueParts; ++part) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma_m16n8k16(S_[tile][half], parts[part], high[half], S_[tile][half]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mma_m16n8k16(S_[tile][half], parts[0], low[half], S_[tile][half]);
      }
    }
  }
  // [/doc:take_backwards]

  // From the tile of 16 columns of v and 8 of k on where the warp's begin.
  __device__ __forceinline__ void store(const Segments& segments, int64_t head, int segment,
                                        int m_tile, int e_tile) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&S)[4] = S_[tile][half];
        segments.added_at(head, segment, m_tile + tile, e_tile + half, lane()) = {S[0], S[1], S[2],
                                                                                  S[3]};
      }
    }
    if (m_tile > 0 || lane() % 4 > 0) return;  // others have the same sums
    float* log_decay = segments.log_decay_of(head, segment) + e_tile * 8 + lane() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) log_decay[half * 8] = log_decay_[half];
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % kWarp; }

  float log_decay_[2];          // of columns lane / 4 and lane / 4 + 8, by the rows so far
  float S_[kTiles][2][4] = {};  // transposed, [columns of v][columns of k]
};

// [doc:segment_states]
// The operands with time running backwards.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    segment_states_kernel(GlaOperands<typename Tiling::T> backwards, Segments segments,
                          bool aligned) {
  using T = typename Tiling::T;
  constexpr int kRows = Tiling::kRows, kStages = Tiling::kStages;
  auto& smem = shared_storage<typename Tiling::SharedStorage>();
  grid_dependency_launch();  // first segments wait for nothing that is computed here

  const auto& x = backwards;
  const int e_blocks = segments.e_tiles * 8 / Tiling::kE;
  const int m_blocks = segments.m_tiles * 16 / Tiling::kM;
  const int e0 = blockIdx.x % e_blocks * Tiling::kE;
  const int m0 = blockIdx.x / e_blocks % m_blocks * Tiling::kM;
  const int segment = blockIdx.x / e_blocks / m_blocks % (segments.count - 1);
  const int64_t head = blockIdx.x / e_blocks / m_blocks / (segments.count - 1);
  const int64_t b = head / x.k.H, h = head % x.k.H;
  const int end = segments.begin(segment + 1), rows = end - segments.begin(segment);

  const int first = static_cast<int>(x.k.L) - end, thread = threadIdx.x;
  RowLoader<T, kRows, Tiling::kE, Tiling::kThreads> k_rows(x.k, b, h, first, e0, thread);
  RowLoader<T, kRows, Tiling::kE, Tiling::kThreads> g_rows(x.g, b, h, first, e0, thread);
  RowLoader<T, kRows, Tiling::kM, Tiling::kThreads> v_rows(x.v, b, h, first, m0, thread);
  const auto load = [&](int i) {
    if (i * kRows < rows) {
      const int stage = i % kStages;
      if (aligned) {
        k_rows.load(smem.k[stage], kRows);
        g_rows.load(smem.g[stage], kRows);
        v_rows.load(smem.v[stage], kRows);
      } else {
        k_rows.load_elements(smem.k[stage], kRows);
        g_rows.load_elements(smem.g[stage], kRows);
        v_rows.load_elements(smem.v[stage], kRows);
      }
    }
    cp_async_commit();
  };

  const int warp = threadIdx.x / kWarp, column = warp * Tiling::kWarpColumns;
  SegmentSum<Tiling> sum(e0 + column, static_cast<int>(x.k.D));
  bool forgotten = false;
  for (int i = 0; i < kStages - 1; ++i) load(i);
#pragma unroll 1
  for (int i = 0; i * kRows < rows; ++i) {
    cp_async_wait<kStages - 2>();
    // The rows of tile i have arrived, of all threads. Those of i - 1 are used before they are
    // overwritten, and it is written whether they were the last.
    __syncthreads();
    if (i > 0) {
      bool done = true;
      for (int w = 0; w < Tiling::kWarps; ++w) done = done && smem.forgotten[(i - 1) % 2][w];
      if (done) break;
    }
    load(i + kStages - 1);
    const int stage = i % kStages;
    if (!forgotten) {
#pragma unroll
      for (int row = 0; row < kRows; row += kSubChunk) {
        sum.take(&smem.k[stage][row][column], &smem.g[stage][row][column], smem.v[stage][row]);
      }
      forgotten = sum.forgotten();
    }
    if (threadIdx.x % kWarp == 0) smem.forgotten[i % 2][warp] = forgotten;
  }
  cp_async_wait<0>();  // no copy is on its way to a block that has ended
  sum.store(segments, head, segment, m0 / 16, (e0 + column) / 8);
}
// [/doc:segment_states]

template <class Tiling>
void launch_segment_states(const GlaOperands<typename Tiling::T>& x, const Segments& segments,
                           cudaStream_t stream) {
  GlaOperands<typename Tiling::T> backwards = x;
  backwards.k = flip(x.k);
  backwards.v = flip(x.v);
  backwards.g = flip(x.g);
  const bool aligned = rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) && rows_are_16_bytes(x.g);
  const int64_t blocks = x.k.B * x.k.H * (segments.count - 1) *
                         (segments.e_tiles * 8 / Tiling::kE) * (segments.m_tiles * 16 / Tiling::kM);
  launch({blocks, Tiling::kThreads, dynamic_shared_bytes<typename Tiling::SharedStorage>(), stream},
         segment_states_kernel<Tiling>, backwards, segments, aligned);
}

// What every segment but each sequence's last adds to the state and decays it by: fills
// segments.added and segments.log_decay. m_tiles is a multiple of 4, e_tiles of 8.
template <class T>
void segment_states(const GlaOperands<T>& x, const Segments& segments, cudaStream_t stream) {
  if (segments.m_tiles % 8 == 0) {
    launch_segment_states<StateTiling<T, 128>>(x, segments, stream);
  } else {
    launch_segment_states<StateTiling<T, 64>>(x, segments, stream);
  }
}

// segment_states.cu holds them.
extern template void segment_states(const GlaOperands<float>&, const Segments&, cudaStream_t);
extern template void segment_states(const GlaOperands<__nv_bfloat16>&, const Segments&,
                                    cudaStream_t);

}  // namespace attn::chunked_gla
