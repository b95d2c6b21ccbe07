#include "01_cpu_reference/operators.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include "01_cpu_reference/causal_product.hpp"
#include "01_cpu_reference/gla.hpp"
#include "01_cpu_reference/rwkv6.hpp"
#include "01_cpu_reference/softmax_attention.hpp"

namespace attn::reference {
namespace {

// log(1 / (1 + exp(-x))), without the exponential of a large number.
float logsigmoid(float x) { return std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x))); }

float mild_gate(float x) { return logsigmoid(x) / 16; }

float resetting_gate(float x) {
  constexpr float kOneIn50 = 2.054f;  // so many draws of N(0, 1) lie above
  if (x > kOneIn50) return -std::numeric_limits<float>::infinity();
  if (x < -kOneIn50) return -1e4f;
  return mild_gate(x);
}

}  // namespace

const Gates kMildGates = {"mild", mild_gate};
const Gates kStrongGates = {"strong", logsigmoid};
const Gates kExponentialGates = {"exponential", [](float x) { return -std::exp(x); }};
const Gates kResettingGates = {"resets", resetting_gate};
const Gates kHeavyGates = {"heavy", [](float x) { return -16 * std::exp(x); }};
const Gates kNoGates = {"ungated", [](float) { return 0.0f; }, /*scaled=*/false};

const std::array<Gates, 6> kAllGates = {kMildGates,      kStrongGates, kExponentialGates,
                                        kResettingGates, kHeavyGates,  kNoGates};

double Gates::scale(int64_t E) const { return scaled ? 1 / std::sqrt(double(E)) : 1; }

driver::Operator causal_product_operator() {
  using driver::Axes;
  return {
      .name = "causal product",
      .inputs = {{"q", Axes::BHLE}, {"k", Axes::BHLE}, {"v", Axes::BHLM}},
      .outputs = {{"o", Axes::BHLM}},
      .reference =
          [](const Shape&, const std::vector<Matrix>& inputs) {
            return std::vector<Matrix>{causal_product(inputs[0], inputs[1], inputs[2])};
          },
      // The recurrence: one multiply-add per element of S to update it, one to read it.
      .flops = [](const Shape& s) { return 4.0 * s.B * s.H * s.L * s.E * s.M; },
  };
}

driver::Operator gla_operator(const Gates& gates) {
  using driver::Axes;
  return {
      .name = "gated linear attention",
      .inputs = {{"q", Axes::BHLE},
                 {"k", Axes::BHLE},
                 {"v", Axes::BHLM},
                 {"g", Axes::BHLE, gates.from_normal}},
      .outputs = {{"o", Axes::BHLM}},
      .reference =
          [gates](const Shape& s, const std::vector<Matrix>& inputs) {
            return std::vector<Matrix>{
                gla(inputs[0], inputs[1], inputs[2], inputs[3], gates.scale(s.E), Matrix(s.E, s.M))
                    .o};
          },
      // The recurrence: a multiplication per element of S to decay it, then as the causal product.
      .flops = [](const Shape& s) { return 5.0 * s.B * s.H * s.L * s.E * s.M; },
      .distribution = gates.name,
      .scale = [gates](const Shape& s) { return gates.scale(s.E); },
  };
}

driver::Operator rwkv6_operator(const Gates& gates) {
  using driver::Axes;
  std::function<float(float)> u_from_normal;
  if (!gates.scaled) u_from_normal = [](float) { return 1.0f; };
  return {
      .name = "RWKV-6",
      .inputs = {{"r", Axes::BHLE},
                 {"k", Axes::BHLE},
                 {"v", Axes::BHLM},
                 {"w", Axes::BHLE, gates.from_normal},
                 {"u", Axes::HE, u_from_normal}},
      .outputs = {{"o", Axes::BHLM}},
      .reference =
          [](const Shape& s, const std::vector<Matrix>& inputs) {
            return std::vector<Matrix>{rwkv6(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4],
                                             /*scale=*/1, Matrix(s.E, s.M))
                                           .o};
          },
      // The recurrence: a multiplication per element of S to decay it, then as the causal product;
      // and r_t . (u k_t) v_t.
      .flops =
          [](const Shape& s) {
            return double(s.B) * s.H * s.L * (5.0 * s.E * s.M + 3.0 * s.E + 2.0 * s.M);
          },
      .distribution = gates.name,
  };
}

const Attention kFullAttention = {"full", false};
const Attention kCausalAttention = {"causal", true};
const Attention kLargeScores = {"large", false, 30};

driver::Operator softmax_attention_operator(const Attention& attention) {
  using driver::Axes;
  const auto scale = [](const Shape& s) { return 1 / std::sqrt(double(s.E)); };
  const auto rows = [=](const Shape& s, const std::vector<Matrix>& inputs,
                        driver::RowSample sample) {
    return std::vector<Matrix>{softmax_attention(inputs[0], inputs[1], inputs[2], scale(s),
                                                 attention.causal, sample.first, sample.step)
                                   .o};
  };
  const float factor = attention.query_factor;
  return {
      .name = "softmax attention",
      .inputs = {{"q", Axes::BHLE, [factor](float x) { return factor * x; }},
                 {"k", Axes::BHLE},
                 {"v", Axes::BHLM}},
      .outputs = {{"o", Axes::BHLM}},
      .reference = [rows](const Shape& s,
                          const std::vector<Matrix>& inputs) { return rows(s, inputs, {}); },
      .reference_rows = rows,
      // Two products over all scores; with the causal mask half of them, as is usual to count.
      .flops =
          [causal = attention.causal](const Shape& s) {
            return (causal ? 1.0 : 2.0) * s.B * s.H * s.L * s.L * (s.E + s.M);
          },
      .distribution = attention.name,
      .scale = scale,
      .causal = attention.causal,
  };
}

}  // namespace attn::reference
