// The operators of the stages, as the driver takes them: operands, truth and least work.
#pragma once

#include <array>
#include <cstdint>

#include "common/driver/operator.hpp"

namespace attn::reference {

// o_t = sum_{s <= t} (q_t . k_s) v_s: stages 01 to 04.
driver::Operator causal_product_operator();

// What gated linear attention is verified on: gates in log space, each made from a draw of N(0, 1).
struct Gates {
  const char* name;
  float (*from_normal)(float);
  bool scaled = true;  // by the operator's default, E^-1/2; else by 1

  double scale(int64_t E) const;
};

extern const Gates kMildGates;         // logsigmoid(x) / 16, as the published models train with
extern const Gates kStrongGates;       // logsigmoid(x)
extern const Gates kExponentialGates;  // -exp(x), as in RWKV-6
extern const Gates kResettingGates;    // mild, but one in 50 is -inf, and one in 50 -1e4
extern const Gates kHeavyGates;        // -16 exp(x): e^-133 in a few steps, most of them no resets
extern const Gates kNoGates;           // 0, and scale 1: the causal product

extern const std::array<Gates, 6> kAllGates;

// S_t = diag(exp g_t) S_{t-1} + k_t v_t^T, THEN o_t = scale * q_t^T S_t, from a state of zeros:
// stage 05.
driver::Operator gla_operator(const Gates& gates = kMildGates);

// o_t = r_t^T (S_{t-1} + diag(u) k_t v_t^T), THEN S_t = diag(exp w_t) S_{t-1} + k_t v_t^T, from a
// state of zeros: stage 06. Without decays u is 1, and it is the causal product.
driver::Operator rwkv6_operator(const Gates& gates = kExponentialGates);

// What softmax attention is verified on.
struct Attention {
  const char* name;
  bool causal;
  float query_factor = 1;  // of the draws of N(0, 1): large scores
};

extern const Attention kFullAttention;    // every query sees every key
extern const Attention kCausalAttention;  // ... those up to its own position
extern const Attention kLargeScores;      // full, q times 30: nearly all weight on one key

// o = softmax(E^-1/2 q k^T + mask) v: stage 07.
driver::Operator softmax_attention_operator(const Attention& attention = kFullAttention);

}  // namespace attn::reference
