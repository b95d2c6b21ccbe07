// ldmatrix and mma.sync for a whole warp. Which lane holds which element: common/ptx/ldmatrix.cuh
// and common/ptx/mma.cuh.

#include <cstdint>

#include "common/simt/block.hpp"
#include "simt/fp16.hpp"

namespace simt {

namespace {

using Lanes = WarpRequest* const*;

float as_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// Element `half` (0: low, 1: high) of a register that holds two bf16.
float bf16_of(uint32_t bits, int half) {
  return as_float(half == 0 ? bits << 16 : bits & 0xffff0000u);
}

float fp16_of(uint32_t bits, int half) { return from_fp16(bits >> half * 16 & 0xffffu); }

// The tensor core reads the upper 19 bits of a float.
float tf32_of(uint32_t bits) { return as_float(bits & 0xffffe000u); }

// The instructions are .aligned: all lanes of a full warp take part.
void require_full_warp(Lanes lanes, unsigned mask) {
  if (mask == 0xffffffffu) return;
  const WarpRequest& request = *lanes[__builtin_ctz(mask)];
  Block::running().fail(request.site, std::string(request.name) + " needs all 32 lanes of a warp");
}

void distribute(Lanes lanes, bool transposed) {
  const int matrices = lanes[0]->words;
  for (int lane = 0; lane < 32; ++lane) {
    auto* registers = static_cast<uint32_t*>(lanes[lane]->out);
    for (int m = 0; m < matrices; ++m) {
      uint32_t element[2];
      for (int i = 0; i < 2; ++i) {
        int row = lane / 4, column = lane % 4 * 2 + i;
        if (transposed) {
          const int swapped = row;
          row = column;
          column = swapped;
        }
        const auto* source = static_cast<const uint16_t*>(lanes[m * 8 + row]->in) + column;
        element[i] = *source;
        msan::copied(reinterpret_cast<uint16_t*>(&registers[m]) + i, source, sizeof *source);
      }
      registers[m] = element[0] | element[1] << 16;
    }
  }
}

// D = A B + C with A [16, K], B [K, 8], in float with k ascending; a tensor core sums in an order
// and with a rounding of its own.
template <int K, class FillA, class FillB>
void multiply(Lanes lanes, FillA fill_a, FillB fill_b) {
  float a[16][K], b[K][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& operands = *static_cast<const MmaOperands*>(lanes[lane]->in);
    fill_a(a, operands.a, lane / 4, lane % 4);
    fill_b(b, operands.b, lane / 4, lane % 4);
  }
  float d[16][8];
  for (int row = 0; row < 16; ++row) {
    for (int i = 0; i < 8; ++i) {
      const int lane = row % 8 * 4 + i / 2;
      d[row][i] = static_cast<const MmaOperands*>(lanes[lane]->in)->c[row / 8 * 2 + i % 2];
    }
    for (int k = 0; k < K; ++k) {
      for (int i = 0; i < 8; ++i) d[row][i] += a[row][k] * b[k][i];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int i = 0; i < 8; ++i) {
      const int lane = row % 8 * 4 + i / 2;
      static_cast<float*>(lanes[lane]->out)[row / 8 * 2 + i % 2] = d[row][i];
    }
  }
}

// The same of elements of 16 bits; element(bits, half) is one of a register's two.
template <float element(uint32_t, int)>
void multiply_pairs(Lanes lanes) {
  multiply<16>(
      lanes,
      [](float(*a)[16], const uint32_t* registers, int group, int t) {
        for (int r = 0; r < 4; ++r) {
          for (int i = 0; i < 2; ++i) {
            a[group + r % 2 * 8][t * 2 + r / 2 * 8 + i] = element(registers[r], i);
          }
        }
      },
      [](float(*b)[8], const uint32_t* registers, int group, int t) {
        for (int r = 0; r < 2; ++r) {
          for (int i = 0; i < 2; ++i) b[t * 2 + r * 8 + i][group] = element(registers[r], i);
        }
      });
}

}  // namespace

void execute_ldmatrix(Lanes lanes, unsigned mask) {
  require_full_warp(lanes, mask);
  distribute(lanes, false);
}

void execute_ldmatrix_trans(Lanes lanes, unsigned mask) {
  require_full_warp(lanes, mask);
  distribute(lanes, true);
}

void execute_mma_m16n8k16_bf16(Lanes lanes, unsigned mask) {
  require_full_warp(lanes, mask);
  multiply_pairs<bf16_of>(lanes);
}

void execute_mma_m16n8k16_fp16(Lanes lanes, unsigned mask) {
  require_full_warp(lanes, mask);
  multiply_pairs<fp16_of>(lanes);
}

void execute_mma_m16n8k8_tf32(Lanes lanes, unsigned mask) {
  require_full_warp(lanes, mask);
  multiply<8>(
      lanes,
      [](float(*a)[8], const uint32_t* registers, int group, int t) {
        for (int r = 0; r < 4; ++r) {
          a[group + r % 2 * 8][t + r / 2 * 4] = tf32_of(registers[r]);
        }
      },
      [](float(*b)[8], const uint32_t* registers, int group, int t) {
        for (int r = 0; r < 2; ++r) b[t + r * 4][group] = tf32_of(registers[r]);
      });
}

}  // namespace simt
