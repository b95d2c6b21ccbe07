// Gated linear attention in chunks of 16 steps, by four kernels and a sum.
//
// The idea (flash-linear-attention's first form): inside a chunk, let G_t be the sum of the gates
// from the chunk's first row to row t, and S the state before the chunk. Then
//
//   o_t = scale * (q_t exp G_t)^T S  +  sum over s <= t of A[t, s] v_s
//   A[t, s] = scale * sum over e of q_t[e] k_s[e] exp(G_t - G_s)[e]
//   S_next = diag(exp G_last) S + sum over t of (k_t exp(G_last - G_t)) v_t^T
//
// and both sums over e and over t are matrix products. Only the state still goes from chunk to
// chunk. Gates are multiplied by 1 / ln 2 once, since the chip's exponential is exp2.
//
// Who computes what, and what memory moves (w: bytes of an element of q, k, v, g and o; per step of
// one (b, h); the scratch between kernels is fp32):
//
//   kernel         grid               block  reads                       writes
//   decay_cumsum   B*H * chunks       64     g              wE           G              4E
//   prepare_qg_kg  B*H * chunks       64     q, k, g, G     3wE + 4E     qg, kg         8E
//   fused_chunk    B*H * tiles of M   256    qg, kg, v, G   8E + wM (*)  o, the past's  4M
//   inner_chunk    B*H * chunks       256    q, k, g        3wE          A              64
//   combine        B*H * chunks       64     A, o, v        64 + 4M + wM o              wM
//
//   (*) and 4E of G per chunk; qg, kg and G again, from L2, for each further tile of 32 columns.
//
// Strong gates: exp(G_t - G_s) must be right for every gate, and a difference of two sums is not.
// Behind a gate of -inf it is -inf - -inf, NaN; behind one of -1e4 the sums are so large that fp32
// holds 3 digits of them after the point, which is all that is then left of their difference. So no
// sums are subtracted here: both differences are summed up from the gates between, in prepare_qg_kg
// from the chunk's end backwards, in inner_chunk from row s on. A sum of terms <= 0 is never NaN,
// and loses nothing to cancellation.
//
// The honest result: it loses to step 0, 5.03 against 0.81 ms at 8,32,4096,64 in bf16 on an H200, and
// not for its bytes. At w = 2 and E = M = 64 they are 5.4 times those of q, k, v, g and o, but at
// the speed of a copy that is 0.85 ms.
//
// What limits it, by kernel: ms there, and bytes per second in parts of a copy's:
//
//   decay_cumsum   0.16  60%   memory: all but nothing else is waited for
//   prepare_qg_kg  0.49  57%   the same
//   fused_chunk    2.07  11%   waits: for each chunk's rows, which nobody fetched ahead, and for
//                              shared memory, of which a word serves a single multiply-add; it
//                              takes 1.9 times the instructions of all of step 0
//   inner_chunk    1.91   6%   instructions, 2.0 times those of step 0, and waits for loads: rows
//                              of q and g are fetched again for each of 16 columns of scores. With
//                              one row read for all it takes 0.67; without its exponentials, one
//                              per (t, s, e), 1.85
//   combine        0.41  34%   waits for loads
//
// What the next step removes: the scratch, and the waits. One kernel keeps it all on the chip, and
// gives the products of matrices, which are loops of scalars here, to tensor cores.
#pragma once

#include <cuda_runtime.h>

#include "05_chunked_gla/operands.cuh"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/ptx/exp2.cuh"
#include "common/shared_storage.cuh"
#include "common/stream_buffer.hpp"
#include "common/warp.cuh"

namespace attn::chunked_gla {
namespace four_kernels {

constexpr int kChunk = 16;
constexpr int kChunkThreads = 64;  // of the kernels that take one chunk, column by column

__host__ __device__ inline int64_t chunk_count(int64_t L) { return (L + kChunk - 1) / kChunk; }

// The chunk of a block, in a grid of B*H * chunks blocks.
struct Chunk {
  int64_t b, h;
  int64_t first;  // time step
  int rows;       // kChunk, or fewer at the end of the sequence

  template <class T>
  __device__ Chunk(const TensorView<T>& x, int64_t block) {
    const int64_t chunks = chunk_count(x.L);
    b = block / chunks / x.H;
    h = block / chunks % x.H;
    first = block % chunks * kChunk;
    rows = x.L - first < kChunk ? x.L - first : kChunk;
  }
};

// [doc:decay_cumsum]
// G: the sum of the gates from the chunk's first row on, inclusive, as a power of two.
template <class T>
__global__ void decay_cumsum_kernel(TensorView<const T> g,  // [B, H, L, E]
                                    TensorView<float> G) {  // [B, H, L, E]
  const Chunk chunk(g, blockIdx.x);
  const auto& [b, h, first, rows] = chunk;
  for (int e = threadIdx.x; e < g.D; e += kChunkThreads) {
    float sum = 0;
    for (int t = 0; t < rows; ++t) {
      sum += to_float(g.row(b, h, first + t)[e]) * kLog2e;
      G.row(b, h, first + t)[e] = sum;
    }
  }
}
// [/doc:decay_cumsum]

// [doc:prepare_qg_kg]
// qg: q decayed from the chunk's beginning to its row, times the scale. kg: k decayed from its row
// to the chunk's end, which is the sum of the gates after it.
template <class T>
__global__ void prepare_qg_kg_kernel(GlaOperands<T> x,
                                     TensorView<const float> G,  // [B, H, L, E]
                                     TensorView<float> qg,       // [B, H, L, E]
                                     TensorView<float> kg) {     // [B, H, L, E]
  const Chunk chunk(x.q, blockIdx.x);
  const auto& [b, h, first, rows] = chunk;
  for (int e = threadIdx.x; e < x.q.D; e += kChunkThreads) {
    float after = 0;
    for (int t = rows - 1; t >= 0; --t) {
      const int64_t row = first + t;
      qg.row(b, h, row)[e] = to_float(x.q.row(b, h, row)[e]) * exp2f(G.row(b, h, row)[e]) * x.scale;
      kg.row(b, h, row)[e] = to_float(x.k.row(b, h, row)[e]) * exp2f(after);
      after += to_float(x.g.row(b, h, row)[e]) * kLog2e;
    }
  }
}
// [/doc:prepare_qg_kg]

// How a block of fused_chunk_kernel divides its columns of the state.
template <int kE>
struct StateTile {
  static constexpr int kLanes = 8;           // that share a column
  static constexpr int kRows = kE / kLanes;  // of the state, per lane
  static constexpr int kColumns = 32;        // of a block
  static constexpr int kThreads = kColumns * kLanes;

  struct SharedStorage {
    float rows[kChunk][kE];  // of qg, then of kg: both at once are too much for some GPUs
    float v[kChunk][kColumns];
  };
};

// [doc:fused_chunk]
// o = qg S, then S = diag(exp2 G_last) S + kg^T v, from chunk to chunk.
template <int kE, class T>
__global__ void __launch_bounds__(StateTile<kE>::kThreads)
    fused_chunk_kernel(TensorView<const float> qg, TensorView<const float> kg,  // [B, H, L, E]
                       TensorView<const float> G,                               // [B, H, L, E]
                       TensorView<const T> v,                                   // [B, H, L, M]
                       TensorView<float> o,                                     // [B, H, L, M]
                       TensorView<const float> initial_state,  // [B, H, E, M] or null
                       TensorView<float> final_state,          // [B, H, E, M] or null
                       int column_tiles) {
  using Tile = StateTile<kE>;
  auto& smem = shared_storage<typename Tile::SharedStorage>();
  const int64_t head = blockIdx.x / column_tiles;
  const int64_t b = head / v.H;
  const int64_t h = head % v.H;
  const int L = v.L, E = qg.D, M = v.D;
  const int m0 = blockIdx.x % column_tiles * Tile::kColumns;
  const int lane = threadIdx.x % Tile::kLanes;
  const int column = threadIdx.x / Tile::kLanes;
  const int m = m0 + column;
  const auto row_of = [&](int r) { return r * Tile::kLanes + lane; };
  // Rows past L, and entries past E, count as zero.
  const auto stage_rows = [&](const TensorView<const float>& x, int first) {
    for (int i = threadIdx.x; i < kChunk * kE; i += Tile::kThreads) {
      const int t = first + i / kE, e = i % kE;
      smem.rows[i / kE][e] = t < L && e < E ? x.row(b, h, t)[e] : 0;
    }
  };

  float S[Tile::kRows] = {};
  if (initial_state.data != nullptr && m < M) {
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      if (row_of(r) < E) S[r] = initial_state.row(b, h, row_of(r))[m];
    }
  }

  for (int first = 0; first < L; first += kChunk) {
    __syncthreads();  // everybody is done with the rows of the chunk before
    stage_rows(qg, first);
    for (int i = threadIdx.x; i < kChunk * Tile::kColumns; i += Tile::kThreads) {
      const int t = first + i / Tile::kColumns, c = i % Tile::kColumns;
      smem.v[i / Tile::kColumns][c] = t < L && m0 + c < M ? to_float(v.row(b, h, t)[m0 + c]) : 0;
    }
    __syncthreads();  // qg and v are written

    float o_part[kChunk] = {};
#pragma unroll
    for (int t = 0; t < kChunk; ++t) {
#pragma unroll
      for (int r = 0; r < Tile::kRows; ++r) o_part[t] += smem.rows[t][row_of(r)] * S[r];
    }
    // Joined over the rows of the state: a lane is left with the outputs of kOutputs steps.
    reduce_scatter<Tile::kLanes, kChunk>(o_part, lane);
    constexpr int kOutputs = kChunk / Tile::kLanes;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int t = first + lane * kOutputs + i;
      if (t < L && m < M) o.row(b, h, t)[m] = o_part[i];
    }

    __syncthreads();  // everybody is done with qg
    stage_rows(kg, first);
    __syncthreads();  // kg is written

    const float* G_last = G.row(b, h, (first + kChunk < L ? first + kChunk : L) - 1);
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      if (row_of(r) < E) S[r] *= exp2f(G_last[row_of(r)]);
    }
#pragma unroll
    for (int t = 0; t < kChunk; ++t) {
      const float v_m = smem.v[t][column];
#pragma unroll
      for (int r = 0; r < Tile::kRows; ++r) S[r] += smem.rows[t][row_of(r)] * v_m;
    }
  }

  if (final_state.data != nullptr && m < M) {
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      if (row_of(r) < E) final_state.row(b, h, row_of(r))[m] = S[r];
    }
  }
}
// [/doc:fused_chunk]

// [doc:inner_chunk]
// The scores of one chunk, A[t, s] for s <= t. A thread owns a column s of them for every kChunk-th
// e, and goes down the column: exp(G_t - G_s) takes one more gate at each row.
template <class T>
__global__ void __launch_bounds__(kChunk* kChunk)
    inner_chunk_kernel(GlaOperands<T> x, TensorView<float> A) {  // [B, H, L, kChunk]
  const Chunk chunk(x.q, blockIdx.x);
  const auto& [b, h, first, rows] = chunk;
  const int s = threadIdx.x / kChunk;
  const int lane = threadIdx.x % kChunk;

  float A_part[kChunk] = {};
  if (s < rows) {
    for (int e = lane; e < x.q.D; e += kChunk) {
      const float k_e = to_float(x.k.row(b, h, first + s)[e]);
      float between = 0;  // the gates after row s, up to and including row t
#pragma unroll
      for (int t = 0; t < kChunk; ++t) {
        if (t < s || t >= rows) continue;  // before any exponential is taken
        if (t > s) between += to_float(x.g.row(b, h, first + t)[e]) * kLog2e;
        A_part[t] += to_float(x.q.row(b, h, first + t)[e]) * k_e * exp2f(between);
      }
    }
  }
  // Joined over e: lane t is left with A[t, s].
  reduce_scatter<kChunk, kChunk>(A_part, lane);
  const int t = lane;
  if (s <= t && t < rows) A.row(b, h, first + t)[s] = A_part[0] * x.scale;
}
// [/doc:inner_chunk]

// [doc:combine]
// What the past before the chunk gives, and the chunk's own: o = o_past + A v.
template <class T>
__global__ void combine_kernel(TensorView<const float> A,       // [B, H, L, kChunk]
                               TensorView<const float> o_past,  // [B, H, L, M]
                               TensorView<const T> v,           // [B, H, L, M]
                               TensorView<T> o) {               // [B, H, L, M]
  const Chunk chunk(v, blockIdx.x);
  const auto& [b, h, first, rows] = chunk;
  for (int m = threadIdx.x; m < v.D; m += kChunkThreads) {
    for (int t = 0; t < rows; ++t) {
      float o_m = o_past.row(b, h, first + t)[m];
      for (int s = 0; s <= t; ++s) {
        o_m += A.row(b, h, first + t)[s] * to_float(v.row(b, h, first + s)[m]);
      }
      o.row(b, h, first + t)[m] = from_float<T>(o_m);
    }
  }
}
// [/doc:combine]

template <int kE, class T>
void launch_fused_chunk(TensorView<const float> qg, TensorView<const float> kg,
                        TensorView<const float> G, const GlaOperands<T>& x,
                        TensorView<float> o_past, cudaStream_t stream) {
  using Tile = StateTile<kE>;
  const int column_tiles = (x.v.D + Tile::kColumns - 1) / Tile::kColumns;
  launch({x.v.B * x.v.H * column_tiles, Tile::kThreads,
          dynamic_shared_bytes<typename Tile::SharedStorage>(), stream},
         fused_chunk_kernel<kE, T>, qg, kg, G, x.v, o_past, x.initial_state, x.final_state,
         column_tiles);
}

}  // namespace four_kernels

// Gated linear attention of float or bf16 tensors, in fp32 arithmetic. Throws std::invalid_argument
// for operands that do not fit together, CudaError when a launch or the scratch memory fails: 3E +
// M + 16 floats per step.
// [doc:launch]
template <class T>
void four_kernels_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  using namespace four_kernels;
  check_gla(x);
  const int64_t B = x.q.B, H = x.q.H, L = x.q.L, E = x.q.D, M = x.v.D;
  const auto scratch = [&](int64_t D) { return StreamBuffer<float>(B * H * L * D, stream); };
  const auto view = [&](const StreamBuffer<float>& memory, int64_t D) {
    return dense_view(memory.data(), B, H, L, D, Layout::BHLD);
  };
  const auto G_memory = scratch(E), qg_memory = scratch(E), kg_memory = scratch(E);
  const auto o_memory = scratch(M), A_memory = scratch(kChunk);
  const auto G = view(G_memory, E), qg = view(qg_memory, E), kg = view(kg_memory, E);
  const auto o_past = view(o_memory, M), A = view(A_memory, kChunk);

  const LaunchConfig per_chunk(B * H * chunk_count(L), kChunkThreads, 0, stream);
  launch(per_chunk, decay_cumsum_kernel<T>, x.g, G);
  launch(per_chunk, prepare_qg_kg_kernel<T>, x, G, qg, kg);
  if (E <= 64) {
    launch_fused_chunk<64>(qg, kg, G, x, o_past, stream);
  } else if (E <= 128) {
    launch_fused_chunk<128>(qg, kg, G, x, o_past, stream);
  } else if (E <= 256) {
    launch_fused_chunk<256>(qg, kg, G, x, o_past, stream);
  } else {
    launch_fused_chunk<512>(qg, kg, G, x, o_past, stream);
  }
  launch({B * H * chunk_count(L), kChunk * kChunk, 0, stream}, inner_chunk_kernel<T>, x, A);
  launch(per_chunk, combine_kernel<T>, A, o_past, x.v, x.o);
}
// [/doc:launch]

}  // namespace attn::chunked_gla
