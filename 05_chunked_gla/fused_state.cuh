// The state warps of the fused kernel: from packets and rows of v to outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_packet.cuh"
#include "05_chunked_gla/fused_prepare.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

namespace attn::chunked_gla {

// 16 rows and 16 columns of v as the tensor core takes them: as the B operand of scores v, for each
// half of the columns the registers [half][0] and [half][1], and as the A operand of v^T k. They
// are the same numbers in another order; loaded twice, since an operand's registers must lie side
// by side.
template <int kParts>
struct ValueFragment {
  uint32_t b[kParts][2][2];
  uint32_t a[kParts][4];
};

__device__ __forceinline__ void load_values(ValueFragment<1>& v, const __nv_bfloat16* v_smem,
                                            int pitch) {
  const int lane = threadIdx.x % kWarp;
  uint32_t b[4];
  ldmatrix_trans(b, v_smem + lane % 16 * pitch + lane / 16 * 8);
  v.b[0][0][0] = b[0];
  v.b[0][0][1] = b[1];
  v.b[0][1][0] = b[2];
  v.b[0][1][1] = b[3];
  ldmatrix_trans(v.a[0], v_smem + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
}
__device__ __forceinline__ void load_values(ValueFragment<2>& v, const float* v_smem, int pitch) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* first = v_smem + (lane % 4 * 2 + i * 8) * pitch + lane / 4 + half * 8;
      const uint32_t high = pack_bf16(first[0], first[pitch]);
      v.b[0][half][i] = v.a[0][2 * i + half] = high;
      v.b[1][half][i] = v.a[1][2 * i + half] = pack_remainder(first[0], first[pitch], high);
    }
  }
}

template <class Tiling>
struct State {
  static constexpr int kTiles = Tiling::kWarpColumns / 16;
  // bf16 values are exact; a float is the sum of two.
  static constexpr int kValueParts = sizeof(typename Tiling::T) / 2;

  // S transposed, [value columns][E], as accumulator fragments: they are B fragments of q S too.
  float S[kTiles][Tiling::kE / 8][4];

  __device__ __forceinline__ void scale(const float* factor) {
    const int pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < Tiling::kE / 8; ++n) {
      const float2 d = load_pair(factor + n * 8 + pair);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        S[tile][n][0] *= d.x;
        S[tile][n][1] *= d.y;
        S[tile][n][2] *= d.x;
        S[tile][n][3] *= d.y;
      }
    }
  }

  // o += the packet's outputs; S moves on past its rows.
  __device__ __forceinline__ void take(const Packet<Tiling>& packet, const float* decay,
                                       const typename Tiling::T* v_smem, int pitch,
                                       float (&o)[2 * kTiles][4]) {
    const int lane = threadIdx.x % kWarp;
    scale(decay);

    ValueFragment<kValueParts> v[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) load_values(v[tile], v_smem + tile * 16, pitch);

    {
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
        const uint4 fragment = packet.q[n][lane];
        const uint32_t q[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
        for (int half = 0; half < 2 * kTiles; ++half) {
          const float* s = &S[half / 2][n][half % 2 * 2];
          mma_m16n8k8_tf32(o[half], q, {__float_as_uint(s[0]), __float_as_uint(s[1])}, o[half]);
        }
      }
#pragma unroll
      for (int slab = 0; slab < Tiling::kSlabs; ++slab) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint4 fragment = packet.scores[slab][part][lane];
          const uint32_t scores[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
          for (int half = 0; half < 2 * kTiles; ++half) {
#pragma unroll
            for (int value = 0; value < (part == 0 ? kValueParts : 1); ++value) {
              mma_m16n8k16(o[half], scores, v[half / 2].b[value][half % 2], o[half]);
            }
          }
        }
      }
    }

    const int matrix = lane % 16 * Packet<Tiling>::kPitch + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < Tiling::kE / 8; n += 2) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t k[4];
        ldmatrix_trans(k, (part ? packet.k_low[0] : packet.k_high[0]) + matrix + n * 8);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int value = 0; value < (part == 0 ? kValueParts : 1); ++value) {
            mma_m16n8k16(S[tile][n], v[tile].a[value], {k[0], k[1]}, S[tile][n]);
            mma_m16n8k16(S[tile][n + 1], v[tile].a[value], {k[2], k[3]}, S[tile][n + 1]);
          }
        }
      }
    }
  }

  // Calls visit(e, column, S element) for each element that the lane holds.
  template <class Visit>
  __device__ __forceinline__ void for_each(Visit&& visit) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          visit(n * 8 + lane % 4 * 2 + i % 2, tile * 16 + i / 2 * 8 + lane / 4, S[tile][n][i]);
        }
      }
    }
  }
};

}  // namespace attn::chunked_gla
