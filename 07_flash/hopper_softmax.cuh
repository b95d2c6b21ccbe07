// The online softmax of the two rows that a consumer thread of the Hopper kernel has, and the way
// of the outputs out of its registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "07_flash/hopper_block.cuh"
#include "common/ptx/exp2.cuh"
#include "common/warp.cuh"

namespace attn::flash {

// How far a maximum may lag behind, to base 2: probabilities then go up to 2^8, which costs neither
// bf16 nor float any precision.
constexpr float kLag = 8;
constexpr float kLn2 = 0.6931471805599453f;

// Element i of a wgmma accumulator is in row i / 2 % 2 of the thread's two, and in column
// accumulator_column(i) + 2 * (lane % 4).
__device__ __forceinline__ constexpr int accumulator_row(int i) { return i / 2 % 2; }
__device__ __forceinline__ constexpr int accumulator_column(int i) { return i / 4 * 8 + i % 2; }

// Two floats rounded to bf16, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  union {
    __nv_bfloat162 pair;
    uint32_t word;
  } x = {__floats2bfloat162_rn(low, high)};
  return x.word;
}

// [doc:hopper_softmax]
// Rows `row` and `row` + 8 of a head, of which the four lanes of a quad have a quarter each.
struct SoftmaxRows {
  int row;
  int last_key[2];           // that the row sees; negative: none
  float maximum[2], sum[2];  // of the scores so far; sum: this thread's part

  __device__ __forceinline__ void begin(int first_row, int Lq, int Lk, bool causal) {
    row = first_row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      last_key[r] = causal ? min(Lk - 1, row + 8 * r + (Lk - Lq)) : Lk - 1;
      maximum[r] = -INFINITY;
      sum[r] = 0;
    }
  }

  // Removes the scores of the keys that a row does not see. A selection: a NaN must not stay.
  template <int kCount>
  __device__ __forceinline__ void mask(float (&s)[kCount], int first_key) const {
    const int first = first_key + 2 * (threadIdx.x % 4);
    const int last[2] = {last_key[0] - first, last_key[1] - first};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (accumulator_column(i) > last[accumulator_row(i)]) s[i] = -INFINITY;
    }
  }

  // s becomes 2^(s * scale_log2 - maximum), the probabilities but for the sum. The maximum may lag:
  // it moves when it must in some row of the warp. Then, and only then, true is returned, and what
  // came of earlier blocks has to shrink by factor.
  template <int kCount>
  __device__ __forceinline__ bool update(float (&s)[kCount], float scale_log2, float (&factor)[2]) {
    float now[2];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high[2] = {maximum[r], maximum[r]};  // two chains, for their latency
#pragma unroll
      for (int i = 2 * r; i < kCount; i += 4) {
        high[0] = fmaxf(high[0], s[i]);
        high[1] = fmaxf(high[1], s[i + 1]);
      }
      now[r] = fmaxf(high[0], high[1]);
      now[r] = fmaxf(now[r], __shfl_xor_sync(kFullWarp, now[r], 1));
      now[r] = fmaxf(now[r], __shfl_xor_sync(kFullWarp, now[r], 2));
      // Also where no key has been seen: -inf - -inf is no number.
      moves |= !((now[r] - maximum[r]) * scale_log2 <= kLag);
    }
    moves = __any_sync(kFullWarp, moves);
    if (moves) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float base = now[r] == -INFINITY ? 0 : now[r] * scale_log2;
        factor[r] = exp2_approx(maximum[r] * scale_log2 - base);
        maximum[r] = now[r];
        sum[r] *= factor[r];
      }
    }
    const float base[2] = {maximum[0] == -INFINITY ? 0 : maximum[0] * scale_log2,
                           maximum[1] == -INFINITY ? 0 : maximum[1] * scale_log2};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = exp2_approx(s[i] * scale_log2 - base[accumulator_row(i)]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float part[2] = {sum[r], 0};
#pragma unroll
      for (int i = 2 * r; i < kCount; i += 4) {
        part[0] += s[i];
        part[1] += s[i + 1];
      }
      sum[r] = part[0] + part[1];
    }
    return moves;
  }
};
// [/doc:hopper_softmax]

// Word i of lane t of a quad becomes word t of lane i.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&word)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t give = upper ? word[i] : word[i + bit];
      const uint32_t taken = __shfl_xor_sync(kFullWarp, give, bit);
      (upper ? word[i] : word[i + bit]) = taken;
    }
  }
}

// Divides o by the sums and writes the rows of o and lse.
template <int kCount>
__device__ __forceinline__ void write_rows(const HopperProblem& x, const HopperTile& tile,
                                           const SoftmaxRows& rows, const float (&o)[kCount]) {
  const int Lq = static_cast<int>(x.o.L), M = static_cast<int>(x.o.D), lane = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    const float inverse = sum == 0 ? 0 : 1 / sum;  // 0: no key was seen
    const int row = rows.row + 8 * r;
    if (x.lse.data != nullptr && lane == 0 && row < Lq) {
      x.lse.row(tile.b, tile.h, 0)[row] =
          sum == 0 ? -INFINITY : rows.maximum[r] * x.scale + log2f(sum) * kLn2;
    }
    // A lane has 2 of every 8 columns. Exchanged within the quad, it has 8 in a row of every 32:
    // 16 bytes to write.
    __nv_bfloat16* out = x.o.row(tile.b, tile.h, row);
#pragma unroll
    for (int group = 0; group < kCount / 16; ++group) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int first = 16 * group + 4 * i + 2 * r;
        word[i] = pack_bf16(o[first] * inverse, o[first + 1] * inverse);
      }
      transpose_in_quad(word);
      const int column = 32 * group + 8 * lane;
      if (row >= Lq || column >= M) continue;
      if (x.o_vectors) {
        *reinterpret_cast<uint4*>(out + column) = make_uint4(word[0], word[1], word[2], word[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const uint32_t bits = i % 2 == 0 ? word[i / 2] : word[i / 2] >> 16;
          if (column + i < M) {
            out[column + i] = __ushort_as_bfloat16(static_cast<unsigned short>(bits));
          }
        }
      }
    }
  }
}

}  // namespace attn::flash
