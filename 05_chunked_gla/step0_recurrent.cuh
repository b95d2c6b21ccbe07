// Gated linear attention, the recurrence as it is written.
//
// The idea: stage 04's first one, with a decay: the state stays on the chip, and time is walked
// once. This is what the chunks of the next steps are measured against.
//
// Who computes what: a block owns kColumns value columns of one (b, h), all E rows of them. A group
// of kLanes neighbouring lanes shares a column of the state; each lane holds E / kLanes entries of
// it in registers. The block fetches kSteps rows of q, k, v and g at a time to shared memory, as
// floats, and the exponentials of the gates are taken there, once for all columns.
//
// What memory moves: q, k and g once per kColumns value columns (the tiles of one head run side by
// side, so all but one read them from L2), v and o once.
//
// What limits it: 3 multiplications and 2 additions per (t, e, m), as 3 instructions, each fed by
// reads from shared memory; B*H * M / 32 blocks that walk one step after the other; and a wait for
// memory every kSteps steps.
//
// What the next steps remove: the walk from step to step. They go from chunk to chunk, and what is
// left within a chunk is matrix products.
#pragma once

#include <cuda_runtime.h>

#include "05_chunked_gla/operands.cuh"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

template <int kE>
struct Recurrent {
  static constexpr int kLanes = 8;           // that share a column: at E = 512, 64 registers each
  static constexpr int kRows = kE / kLanes;  // of the state, per lane
  static constexpr int kColumns = 32;        // of a block
  static constexpr int kThreads = kColumns * kLanes;
  // Time steps fetched together. As many as lanes: each lane ends with the output of one of them.
  static constexpr int kSteps = kLanes;

  struct SharedStorage {
    float q[kSteps][kE];
    float k[kSteps][kE];
    float decay[kSteps][kE];
    float v[kSteps][kColumns];
  };
};

template <int kE, class T>
__global__ void __launch_bounds__(Recurrent<kE>::kThreads)
    recurrent_kernel(GlaOperands<T> x, int column_tiles) {
  using R = Recurrent<kE>;
  auto& smem = shared_storage<typename R::SharedStorage>();
  const int64_t head = blockIdx.x / column_tiles;
  const int64_t b = head / x.q.H;
  const int64_t h = head % x.q.H;
  const int L = x.q.L, E = x.q.D, M = x.v.D;
  const int m0 = blockIdx.x % column_tiles * R::kColumns;
  const int lane = threadIdx.x % R::kLanes;
  const int column = threadIdx.x / R::kLanes;
  const int m = m0 + column;
  // Rows are dealt to lanes in turn, so that the lanes of a group read neighbouring words.
  const auto row_of = [&](int r) { return r * R::kLanes + lane; };

  float S[R::kRows] = {};
  if (x.initial_state.data != nullptr && m < M) {
#pragma unroll
    for (int r = 0; r < R::kRows; ++r) {
      if (row_of(r) < E) S[r] = x.initial_state.row(b, h, row_of(r))[m];
    }
  }

  // [doc:recurrence]
  for (int first = 0; first < L; first += R::kSteps) {
    __syncthreads();  // everybody is done with the steps before these
    for (int i = threadIdx.x; i < R::kSteps * kE; i += R::kThreads) {
      const int step = i / kE, t = first + step, e = i % kE;
      const bool inside = t < L && e < E;
      // Steps past the end leave the state as it is.
      smem.q[step][e] = inside ? to_float(x.q.row(b, h, t)[e]) : 0;
      smem.k[step][e] = inside ? to_float(x.k.row(b, h, t)[e]) : 0;
      smem.decay[step][e] = inside ? expf(to_float(x.g.row(b, h, t)[e])) : 1;
    }
    for (int i = threadIdx.x; i < R::kSteps * R::kColumns; i += R::kThreads) {
      const int step = i / R::kColumns, t = first + step, c = i % R::kColumns;
      smem.v[step][c] = t < L && m0 + c < M ? to_float(x.v.row(b, h, t)[m0 + c]) : 0;
    }
    __syncthreads();  // the steps' rows are written

    float o_part[R::kSteps] = {};
#pragma unroll
    for (int step = 0; step < R::kSteps; ++step) {
      const float v_m = smem.v[step][column];
#pragma unroll
      for (int r = 0; r < R::kRows; ++r) {
        const int e = row_of(r);
        S[r] = smem.decay[step][e] * S[r] + smem.k[step][e] * v_m;
        o_part[step] += smem.q[step][e] * S[r];
      }
    }
    // Joined over the rows: lane i is left with the output of step i.
    reduce_scatter<R::kLanes, R::kSteps>(o_part, lane);
    const int t = first + lane;
    if (t < L && m < M) x.o.row(b, h, t)[m] = from_float<T>(x.scale * o_part[0]);
  }
  // [/doc:recurrence]

  if (x.final_state.data != nullptr && m < M) {
#pragma unroll
    for (int r = 0; r < R::kRows; ++r) {
      if (row_of(r) < E) x.final_state.row(b, h, row_of(r))[m] = S[r];
    }
  }
}

template <int kE, class T>
void launch_recurrent(const GlaOperands<T>& x, cudaStream_t stream) {
  using R = Recurrent<kE>;
  const int column_tiles = (x.v.D + R::kColumns - 1) / R::kColumns;
  launch({x.q.B * x.q.H * column_tiles, R::kThreads,
          dynamic_shared_bytes<typename R::SharedStorage>(), stream},
         recurrent_kernel<kE, T>, x, column_tiles);
}

// Gated linear attention of float or bf16 tensors, in fp32 arithmetic. Throws std::invalid_argument
// for operands that do not fit together, CudaError when the launch fails.
template <class T>
void recurrent_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  if (x.q.D <= 64) return launch_recurrent<64>(x, stream);
  if (x.q.D <= 128) return launch_recurrent<128>(x, stream);
  if (x.q.D <= 256) return launch_recurrent<256>(x, stream);
  return launch_recurrent<512>(x, stream);
}

}  // namespace attn::chunked_gla
