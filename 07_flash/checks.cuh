// What the driver's grid of shapes does not reach, for every kernel of this stage: queries and keys
// of different lengths, grouped heads, another scale, the log-sum-exp, scores far below zero, a key
// that is no number; and that bf16 products err no more than they must.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "01_cpu_reference/softmax_attention.hpp"
#include "07_flash/operands.cuh"
#include "common/compare.hpp"
#include "common/driver/check_operand.hpp"
#include "common/driver/environment.hpp"
#include "common/driver/stage.hpp"
#include "common/element.hpp"
#include "common/parallel.hpp"

namespace attn::flash {

template <class T>
using Attention = void(const AttentionOperands<T>&, cudaStream_t);

// The bound for kernels that round the weights to bf16 before they multiply them with v.
constexpr double kBf16ProductTolerance = 5e-3;

// The sizes of one check.
struct AttentionSizes {
  int64_t B, H, Hkv, Lq, Lk, E, M;
};

// Draws of N(0, 1) to elements.
using FromNormal = std::function<float(float)>;

// Seeded operands of one check.
template <class T>
struct AttentionCheckOperands {
  using Operand = driver::CheckOperand<T>;

  AttentionCheckOperands(const AttentionSizes& s, Layout layout, bool causal,
                         const FromNormal& q_from = {}, const FromNormal& k_from = {},
                         float scale_factor = 1)
      : sizes(s),
        q("q", s.B, s.H, s.Lq, s.E, layout, q_from),
        k("k", s.B, s.Hkv, s.Lk, s.E, layout, k_from),
        v("v", s.B, s.Hkv, s.Lk, s.M, layout),
        o("o", s.B, s.H, s.Lq, s.M, layout),
        lse("lse", s.B, s.H, 1, s.Lq, Layout::BHLD),
        scale(scale_factor / std::sqrt(float(s.E))),
        causal(causal) {
    o.poison();
    lse.poison();
  }

  AttentionOperands<T> operands() const {
    return {q.device(), k.device(), v.device(), o.device(), scale, causal, lse.device()};
  }

  // By (b, h), h fastest. The rows are dealt to all cores.
  std::vector<reference::SoftmaxResult> truths() const {
    std::vector<reference::SoftmaxResult> truths(sizes.B * sizes.H,
                                                 {Matrix(sizes.Lq, sizes.M), Matrix(sizes.Lq, 1)});
    const int64_t parts = std::min<int64_t>(16, sizes.Lq);
    parallel_for(sizes.B * sizes.H * parts, [&](int64_t n) {
      const int64_t slice = n / parts, b = slice / sizes.H, h = slice % sizes.H, first = n % parts;
      const int64_t kv = h / (sizes.H / sizes.Hkv);
      const auto part = reference::softmax_attention(q.slice(b, h), k.slice(b, kv), v.slice(b, kv),
                                                     scale, causal, first, parts);
      for (int64_t row = 0; row < part.o.rows; ++row) {
        const int64_t i = first + row * parts;
        for (int64_t m = 0; m < sizes.M; ++m) truths[slice].o(i, m) = part.o(row, m);
        truths[slice].lse(i, 0) = part.lse(row, 0);
      }
    });
    return truths;
  }

  const AttentionSizes sizes;
  Operand q, k, v, o;
  driver::CheckOperand<float> lse;
  const float scale;
  const bool causal;
};

// The output; the log-sum-exp must be right too, to the bound of fp32, in which all kernels keep it.
template <class T>
driver::Finding run_check(Attention<T>* attention, AttentionCheckOperands<T>&& x, double bound) {
  attention(x.operands(), 0);
  const auto truths = x.truths();
  const auto truth = [&](int64_t b, int64_t h) -> const reference::SoftmaxResult& {
    return truths[b * x.sizes.H + h];
  };
  const Comparison o = x.o.compare_with(bound, [&](int64_t b, int64_t h) { return truth(b, h).o; });
  const Comparison lse = x.lse.compare_with(tolerance(Dtype::f32), [&](int64_t b, int64_t h) {
    Matrix row(1, x.sizes.Lq);  // on the device it is a row
    row.data = truth(b, h).lse.data;
    return row;
  });
  if (!lse.passes(tolerance(Dtype::f32)))
    throw std::runtime_error("the log-sum-exp is wrong: relative error " +
                             std::to_string(lse.rel()));
  return o;
}

// Lengths from 1 to 4097 against each other, around the sizes of tiles; with the causal mask, the
// first rows of those with more queries than keys see nothing.
template <class T>
driver::Finding check_lengths(Attention<T>* attention, bool causal, double bound) {
  std::vector<std::pair<int64_t, int64_t>> lengths = {{1, 1}, {3, 129}, {65, 1}, {100, 17}};
  // Where little is asked for, those; emulated, the long ones with short ones only.
  if (!std::getenv("ATTN_VERIFY_BUDGET")) {
    lengths.insert(lengths.end(), {{1, 4097}, {130, 127}, {64, 200}});
    if (!driver::kEmulated)
      for (int64_t Lq : {1, 127, 128, 1000, 4097})
        for (int64_t Lk : {1, 63, 64, 65, 1000, 4097}) lengths.push_back({Lq, Lk});
  }
  driver::Finding worst = Comparison();
  Layout layout = Layout::BHLD;
  for (const auto& [Lq, Lk] : lengths) {
    AttentionCheckOperands<T> x({1, 2, 1, Lq, Lk, 64, 48}, layout, causal);
    const driver::Finding found = run_check(attention, std::move(x), bound);
    Comparison merged = worst.comparison;
    merged.merge(found.comparison);
    worst = merged;
    layout = layout == Layout::BHLD ? Layout::BLHD : Layout::BHLD;
  }
  return worst;
}

// One key of NaN: exactly the rows that see it are NaN. It is the reference that says which.
template <class T>
driver::Finding check_nan_key(Attention<T>* attention, bool causal, double bound) {
  constexpr int64_t kKey = 70;
  AttentionCheckOperands<T> x({1, 2, 2, 100, 100, 64, 64}, Layout::BHLD, causal);
  x.k.set(0, 1, kKey, 3, std::numeric_limits<float>::quiet_NaN());
  return run_check(attention, std::move(x), bound);
}

// Without a key there is nothing to see.
template <class T>
driver::Finding check_no_keys(Attention<T>* attention, double bound) {
  return run_check(attention,
                   AttentionCheckOperands<T>({1, 1, 1, 70, 0, 64, 64}, Layout::BHLD, false), bound);
}

// The formula as it is written, with every matrix rounded to T: scores, weights, outputs.
template <class T>
Matrix plain_formula(const Matrix& q, const Matrix& k, const Matrix& v, double scale) {
  const auto rounded = [](double x) { return double(to_float(from_float<T>(float(x)))); };
  Matrix o(q.rows, v.cols);
  for (int64_t i = 0; i < q.rows; ++i) {
    std::vector<double> p(k.rows);
    for (int64_t j = 0; j < k.rows; ++j) {
      for (int64_t e = 0; e < k.cols; ++e) p[j] += scale * q(i, e) * k(j, e);
      p[j] = rounded(p[j]);
    }
    const double max = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& each : p) sum += each = std::exp(each - max);
    for (int64_t j = 0; j < k.rows; ++j) {
      p[j] = rounded(p[j] / sum);
      for (int64_t m = 0; m < v.cols; ++m) o(i, m) += p[j] * v(j, m);
    }
    for (int64_t m = 0; m < v.cols; ++m) o(i, m) = rounded(o(i, m));
  }
  return o;
}

// At most twice the error of the plain formula in the same type.
template <class T>
driver::Finding check_plain_formula(Attention<T>* attention, float query_factor, double bound) {
  AttentionCheckOperands<T> x({1, 1, 1, 100, 200, 64, 64}, Layout::BHLD, false,
                              [=](float draw) { return query_factor * draw; });
  const Matrix plain = plain_formula<T>(x.q.slice(0, 0), x.k.slice(0, 0), x.v.slice(0, 0), x.scale);
  const Matrix truth = x.truths()[0].o;
  double square = 0, reference_square = 0;
  for (size_t i = 0; i < plain.data.size(); ++i) {
    square += (plain.data[i] - truth.data[i]) * (plain.data[i] - truth.data[i]);
    reference_square += truth.data[i] * truth.data[i];
  }
  const double plain_error = std::sqrt(square / reference_square);
  const driver::Finding found = run_check(attention, std::move(x), bound);
  if (!(found.comparison.rel() <= 2 * plain_error))
    throw std::runtime_error("the error, " + std::to_string(found.comparison.rel()) +
                             ", is more than twice that of the plain formula, " +
                             std::to_string(plain_error));
  return found;
}

// Adds the checks of one kernel; `bound` is on the relative error.
template <class T>
void add_checks(std::vector<driver::Check>& checks, const std::string& kernel,
                Attention<T>* attention, double bound) {
  const auto add = [&](const std::string& what, std::function<driver::Finding()> run) {
    const std::string name = kernel + ", " + to_string(dtype_of<T>) + ", " + what;
    checks.push_back({name, bound, std::move(run), kernel, dtype_of<T>});
  };
  if constexpr (dtype_of<T> == Dtype::bf16) {
    for (const float factor : {1.0f, 30.0f})
      add("at most twice the plain formula's error, q times " + std::to_string(int(factor)),
          [=] { return check_plain_formula<T>(attention, factor, bound); });
  }
  add("no keys", [=] { return check_no_keys<T>(attention, bound); });
  for (const bool causal : {false, true}) {
    const std::string mask = causal ? ", causal" : "";
    add("lengths" + mask, [=] { return check_lengths<T>(attention, causal, bound); });
    add("NaN in a key" + mask, [=] { return check_nan_key<T>(attention, causal, bound); });
    add("grouped heads, another scale" + mask, [=] {
      return run_check(attention,
                       AttentionCheckOperands<T>({2, 4, 2, 70, 90, 40, 72}, Layout::BLHD, causal,
                                                 {}, {}, /*scale_factor=*/0.3f),
                       bound);
    });
    add("scores far below zero" + mask, [=] {
      const auto far = [](float sign) {
        return [sign](float x) { return sign * (5 * std::fabs(x) + 1); };
      };
      return run_check(attention,
                       AttentionCheckOperands<T>({1, 1, 1, 100, 140, 64, 64}, Layout::BHLD, causal,
                                                 far(1), far(-1)),
                       bound);
    });
  }
}

}  // namespace attn::flash
