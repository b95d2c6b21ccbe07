// RWKV-6, the recurrence with no partial outputs, fed in batches of steps.
//
// The idea: the bonus needs no state. o_t = r_t^T S_{t-1} + (r_t . (u k_t)) v_t, so that an element
// of the state costs three instructions per step: k v, the output's share, the update. To keep them
// fed, a thread owns rows *and* columns of the state, and what it reads from shared memory serves
// several of them.
//
// Who computes what: a block owns 64 columns of one (b, h), all E rows of them. A group of kLanes
// lanes shares kColumns columns; a lane has kRows of their rows: at E = 64 8 lanes with 8 x 4
// entries each, in registers. The block fetches kSteps steps at a time, 16 bytes per load, into
// registers while it computes the batch before; then as floats, with the exponentials taken and u k
// formed, once for all columns, into shared memory.
//
// One step alone, a token that is generated, is a batch of its own: nothing to fetch ahead, and at
// E = 64 4 lanes with 16 x 4 entries, more blocks at a time, each of which waits for its state.
//
// What memory moves: every operand once (r, k and w again, from L2, for each further 64 columns), and
// a state in and out where there is one, 16 bytes per access.
//
// What limits it: instructions. 3 per (t, e, m), and a quarter more for the bonus, for the sums
// across lanes and for reading shared memory. Of one step: memory, the state in and out.
//
// What the next step removes: the arithmetic itself, which becomes products of matrices.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "06_rwkv6/operands.cuh"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/ptx/exp2.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {

// 8 neighbouring elements of a row, as they lie in memory: the unit of the loads.
template <class T>
struct Octet {
  static constexpr int kWords = 8 * sizeof(T) / 16;
  uint4 words[kWords];

  __device__ __forceinline__ void unpack(float (&x)[8]) const {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x[4 * i] = __uint_as_float(words[i].x);
        x[4 * i + 1] = __uint_as_float(words[i].y);
        x[4 * i + 2] = __uint_as_float(words[i].z);
        x[4 * i + 3] = __uint_as_float(words[i].w);
      }
    } else {
      const uint32_t pairs[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[2 * i] = __uint_as_float(pairs[i] << 16);
        x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
      }
    }
  }
};

template <int kE_, bool kOneStep_>
struct VectorRecurrence {
  static constexpr int kE = kE_;
  static constexpr bool kOneStep = kOneStep_;
  // That share a column. For one step they are few, up to 128 rows four: then a warp has 32 columns,
  // and its accesses to the state are whole lines of 128 bytes.
  static constexpr int kLanes = kOneStep ? (kE <= 128 ? 4 : kE / 32) : (kE <= 256 ? kE / 8 : 32);
  static constexpr int kRows = kE / kLanes;  // of the state, per lane
  // Of a lane. At 128 rows the lanes of a column read twice the words in one access, and shared memory
  // is what they wait for: there each word serves twice the columns.
  static constexpr int kColumns = kE == 128 && !kOneStep ? 8 : 4;
  static constexpr int kBlockColumns = kE <= 128 || kOneStep ? 64 : 32;
  static constexpr int kThreads = kBlockColumns / kColumns * kLanes;
  static constexpr int kSteps = kOneStep ? 1 : 32 / kColumns;  // fetched together
  // Octets of a batch that a thread fetches of each of r, k and w, and of v.
  static constexpr int kOctets = (kSteps * kE / 8 + kThreads - 1) / kThreads;
  static constexpr int kOctetsV = (kSteps * kBlockColumns / 8 + kThreads - 1) / kThreads;
  // Of a batch, for each lane to write. Where a batch has fewer than lanes, neighbours share one.
  static constexpr int kOutputs = (kSteps * kColumns + kLanes - 1) / kLanes;
  static constexpr int kSharers = kOutputs * kLanes / (kSteps * kColumns);

  struct SharedStorage {
    alignas(16) float r[kSteps][kE];
    alignas(16) float k[kSteps][kE];
    alignas(16) float decay[kSteps][kE];
    alignas(16) float uk[kSteps][kE];
    alignas(16) float v[kSteps][kBlockColumns];
    alignas(16) float u[kE];
  };
};

__device__ __forceinline__ uint32_t bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ uint32_t bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

// Elements [d, d + 8) of a row of D elements; zeros past its end, and everywhere if not `inside`.
template <class T>
__device__ __forceinline__ Octet<T> load_octet(const T* row, int d, int D, bool inside,
                                               bool aligned) {
  Octet<T> x = {};
  if (!inside || d >= D) return x;
  if (aligned) {
#pragma unroll
    for (int i = 0; i < Octet<T>::kWords; ++i) {
      x.words[i] = reinterpret_cast<const uint4*>(row + d)[i];
    }
    return x;
  }
  // Word by word with constant indices: an index known at run time would put x into local memory, for
  // aligned rows too.
  uint32_t words[4 * Octet<T>::kWords] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (d + i < D) words[i * sizeof(T) / 4] |= bits_of(row[d + i]) << i * sizeof(T) % 4 * 8;
  }
#pragma unroll
  for (int i = 0; i < Octet<T>::kWords; ++i) {
    x.words[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
  }
  return x;
}

// Four neighbouring floats, in one access.
__device__ __forceinline__ void read_four(float* x, const float* memory) {
  const float4 read = *reinterpret_cast<const float4*>(memory);
  x[0] = read.x, x[1] = read.y, x[2] = read.z, x[3] = read.w;
}
__device__ __forceinline__ void write_shared(float* smem, const float (&x)[8]) {
  reinterpret_cast<float4*>(smem)[0] = {x[0], x[1], x[2], x[3]};
  reinterpret_cast<float4*>(smem)[1] = {x[4], x[5], x[6], x[7]};
}

template <class R, class T>
__global__ void __launch_bounds__(R::kThreads)
    vector_recurrent_kernel(Rwkv6Operands<T> x, int column_tiles, bool aligned,
                            bool states_aligned) {
  constexpr int kE = R::kE;
  auto& smem = shared_storage<typename R::SharedStorage>();
  const int head = int(blockIdx.x) / column_tiles, H = x.r.H;  // 32 bits: divisions are short
  const int64_t b = head / H, h = head % H;
  const int L = R::kOneStep ? 1 : x.r.L, E = x.r.D, M = x.v.D;
  const int m0 = int(blockIdx.x) % column_tiles * R::kBlockColumns;
  const int lane = threadIdx.x % R::kLanes;
  const int column = threadIdx.x / R::kLanes * R::kColumns;  // of the block
  // Rows go to lanes in groups of four, one 16-byte read: neighbouring lanes read neighbouring
  // words.
  const auto row_of = [&](int i) { return (i / 4 * R::kLanes + lane) * 4 + i % 4; };
  // A lane's part of a state, four neighbouring columns at a time.
  float S[R::kRows][R::kColumns] = {};
  const auto for_state = [&](auto&& visit) {
#pragma unroll
    for (int i = 0; i < R::kRows; ++i) {
#pragma unroll
      for (int c = 0; c < R::kColumns; c += 4) {
        const int e = row_of(i), m = m0 + column + c;
        if (e < E && m < M) visit(S[i] + c, e, m);
      }
    }
  };

  // [doc:batches]
  Octet<T> r[R::kOctets], k[R::kOctets], w[R::kOctets], v[R::kOctetsV];
  const auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < R::kOctets; ++i) {
      const int octet = i * R::kThreads + threadIdx.x, e = octet % (kE / 8) * 8;
      const int t = first + octet / (kE / 8);
      const bool inside = octet < R::kSteps * kE / 8 && t < L;
      r[i] = load_octet(x.r.row(b, h, t), e, E, inside, aligned);
      k[i] = load_octet(x.k.row(b, h, t), e, E, inside, aligned);
      w[i] = load_octet(x.w.row(b, h, t), e, E, inside, aligned);
    }
#pragma unroll
    for (int i = 0; i < R::kOctetsV; ++i) {
      const int octet = i * R::kThreads + threadIdx.x;
      const int t = first + octet / (R::kBlockColumns / 8);
      const bool inside = octet < R::kSteps * R::kBlockColumns / 8 && t < L;
      v[i] =
          load_octet(x.v.row(b, h, t), m0 + octet % (R::kBlockColumns / 8) * 8, M, inside, aligned);
    }
  };
  // Steps past the end have r = k = w = 0: they leave the state as it is.
  const auto to_shared = [&] {
#pragma unroll
    for (int i = 0; i < R::kOctets; ++i) {
      const int octet = i * R::kThreads + threadIdx.x, e = octet % (kE / 8) * 8;
      const int step = octet / (kE / 8);
      if (step >= R::kSteps) break;
      float r_e[8], k_e[8], uk_e[8], decay_e[8];
      r[i].unpack(r_e);
      k[i].unpack(k_e);
      w[i].unpack(decay_e);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        uk_e[j] = smem.u[e + j] * k_e[j];
        decay_e[j] = exp2_approx(decay_e[j] * kLog2e);
      }
      write_shared(&smem.r[step][e], r_e);
      write_shared(&smem.k[step][e], k_e);
      write_shared(&smem.uk[step][e], uk_e);
      write_shared(&smem.decay[step][e], decay_e);
    }
#pragma unroll
    for (int i = 0; i < R::kOctetsV; ++i) {
      const int octet = i * R::kThreads + threadIdx.x;
      const int step = octet / (R::kBlockColumns / 8);
      if (step >= R::kSteps) break;
      float v_m[8];
      v[i].unpack(v_m);
      write_shared(&smem.v[step][octet % (R::kBlockColumns / 8) * 8], v_m);
    }
  };

  // All loads are on their way before the first value is waited for, that of u.
  fetch(0);
  if (x.initial_state.data != nullptr) {
    for_state([&](float* S_four, int e, int m) {
      const float* const from = x.initial_state.row(b, h, e) + m;
      if (states_aligned) {
        read_four(S_four, from);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (m + c < M) S_four[c] = from[c];
        }
      }
    });
  }
#pragma unroll
  for (int i = 0; i < kE; i += R::kThreads) {
    const int e = i + threadIdx.x;
    if (e < kE) smem.u[e] = e < E ? to_float(x.u.row(0, h, 0)[e]) : 0;
  }
#pragma unroll 1
  for (int first = 0; first < L; first += R::kSteps) {
    __syncthreads();  // everybody is done with the batch before (and u is written)
    to_shared();
    __syncthreads();           // the batch is written
    fetch(first + R::kSteps);  // on its way while this batch is computed
    // [/doc:batches]

    // [doc:vector_recurrence]
    float o[R::kSteps * R::kColumns] = {};
#pragma unroll
    for (int step = 0; step < R::kSteps; ++step) {
      float v_c[R::kColumns];
#pragma unroll
      for (int c = 0; c < R::kColumns; c += 4) read_four(v_c + c, &smem.v[step][column + c]);
      float bonus = 0;
      float* const o_step = &o[step * R::kColumns];
#pragma unroll
      for (int i = 0; i < R::kRows; i += 4) {
        float r_e[4], k_e[4], uk_e[4], decay_e[4];
        read_four(r_e, &smem.r[step][row_of(i)]);
        read_four(k_e, &smem.k[step][row_of(i)]);
        read_four(uk_e, &smem.uk[step][row_of(i)]);
        read_four(decay_e, &smem.decay[step][row_of(i)]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          bonus += r_e[j] * uk_e[j];
#pragma unroll
          for (int c = 0; c < R::kColumns; ++c) {
            o_step[c] += r_e[j] * S[i + j][c];
            S[i + j][c] = decay_e[j] * S[i + j][c] + k_e[j] * v_c[c];
          }
        }
      }
#pragma unroll
      for (int c = 0; c < R::kColumns; ++c) o_step[c] += bonus * v_c[c];
    }
    // Joined over the rows: a lane is left with kOutputs neighbouring outputs of one step.
    reduce_scatter<R::kLanes, R::kSteps * R::kColumns>(o, lane);
    // [/doc:vector_recurrence]
    const int output = lane / R::kSharers * R::kOutputs;  // the first of the lane's
    const int t = first + output / R::kColumns, m = m0 + column + output % R::kColumns;
    if (t < L && lane % R::kSharers == 0) {
      T* const o_row = x.o.row(b, h, t);
#pragma unroll
      for (int i = 0; i < R::kOutputs; ++i) {
        if (m + i < M) o_row[m + i] = from_float<T>(x.scale * o[i]);
      }
    }
  }

  if (x.final_state.data != nullptr) {
    for_state([&](const float* S_four, int e, int m) {
      float* const to = x.final_state.row(b, h, e) + m;
      if (states_aligned) {
        // Not a plain store: the compiler would share its first word with the branch below, and
        // store the others one by one too.
        __stcg(reinterpret_cast<float4*>(to), float4{S_four[0], S_four[1], S_four[2], S_four[3]});
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (m + c < M) to[c] = S_four[c];
        }
      }
    });
  }
}

template <class R, class T>
void launch_vector_recurrent(const Rwkv6Operands<T>& x, cudaStream_t stream) {
  const int column_tiles = (x.v.D + R::kBlockColumns - 1) / R::kBlockColumns;
  const bool aligned = rows_are_16_bytes(x.r) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) &&
                       rows_are_16_bytes(x.w) && x.r.D % 8 == 0 && x.v.D % 8 == 0;
  const bool states_aligned =
      rows_are_16_bytes(x.initial_state) && rows_are_16_bytes(x.final_state);
  launch({x.r.B * x.r.H * column_tiles, R::kThreads,
          dynamic_shared_bytes<typename R::SharedStorage>(), stream},
         vector_recurrent_kernel<R, T>, x, column_tiles, aligned, states_aligned);
}

template <int kE, class T>
void launch_vector_recurrent(const Rwkv6Operands<T>& x, cudaStream_t stream) {
  if (x.r.L == 1) return launch_vector_recurrent<VectorRecurrence<kE, true>>(x, stream);
  launch_vector_recurrent<VectorRecurrence<kE, false>>(x, stream);
}

// RWKV-6 of float or bf16 tensors, in fp32 arithmetic. Throws std::invalid_argument for operands
// that do not fit together, CudaError when the launch fails.
template <class T>
void vector_recurrent_rwkv6(const Rwkv6Operands<T>& operands, cudaStream_t stream = 0) {
  const Rwkv6Operands<T> x = in_walking_order(operands);
  if (x.r.D <= 64) return launch_vector_recurrent<64>(x, stream);
  if (x.r.D <= 128) return launch_vector_recurrent<128>(x, stream);
  if (x.r.D <= 256) return launch_vector_recurrent<256>(x, stream);
  return launch_vector_recurrent<512>(x, stream);
}

}  // namespace attn::rwkv6
