// What the driver's grid of shapes does not reach, for every kernel of this stage: states in and
// out, a sequence in two parts, another scale, every kind of gate, k and v of every size; and the
// causal product.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "01_cpu_reference/causal_product.hpp"
#include "01_cpu_reference/gla.hpp"
#include "01_cpu_reference/operators.hpp"
#include "05_chunked_gla/operands.cuh"
#include "common/compare.hpp"
#include "common/driver/check_operand.hpp"
#include "common/driver/check_sizes.hpp"
#include "common/driver/stage.hpp"
#include "common/element.hpp"
#include "common/sanitized.hpp"

namespace attn::chunked_gla {

template <class T>
using Gla = void(const GlaOperands<T>&, cudaStream_t);

// Seeded operands of one check.
template <class T>
struct GlaCheckOperands {
  using Operand = driver::CheckOperand<T>;
  using State = driver::CheckOperand<float>;

  GlaCheckOperands(const reference::Gates& gates, const driver::Sizes& sizes, const Shape& s,
                   Layout layout, float scale)
      : q("q", s.B, s.H, s.L, s.E, layout),
        k("k", s.B, s.H, s.L, s.E, layout, sizes.k),
        v("v", s.B, s.H, s.L, s.M, layout, sizes.v),
        g("g", s.B, s.H, s.L, s.E, layout, gates.from_normal),
        o("o", s.B, s.H, s.L, s.M, layout),
        initial_state("initial state", s.B, s.H, s.E, s.M, Layout::BHLD, sizes.state),
        split_state("split state", s.B, s.H, s.E, s.M, Layout::BHLD),
        final_state("final state", s.B, s.H, s.E, s.M, Layout::BHLD),
        scale(scale) {
    o.poison();
    split_state.poison();
    final_state.poison();
  }

  // The kernel's operands for the steps [first, last), without states.
  GlaOperands<T> steps(int64_t first, int64_t last) const {
    const auto part = [&](const Operand& x) { return rows(x.device(), first, last); };
    return {part(q), part(k), part(v), part(g), part(o), scale};
  }

  reference::RecurrentResult truth(int64_t b, int64_t h) const {
    return reference::gla(q.slice(b, h), k.slice(b, h), v.slice(b, h), g.slice(b, h), scale,
                          initial_state.slice(b, h));
  }

  Operand q, k, v, g, o;
  State initial_state, split_state, final_state;
  const float scale;
};

// From an initial to a final state, either in one go or, with split < L, in two parts: the worse of
// output and final state.
template <class T>
driver::Finding check_states(Gla<T>* gla, const reference::Gates& gates, const driver::Sizes& sizes,
                             const Shape& shape, Layout layout, int64_t split, double bound) {
  GlaCheckOperands<T> x(gates, sizes, shape, layout, /*scale=*/0.3f);
  GlaOperands<T> part = x.steps(0, split);
  part.initial_state = x.initial_state.device();
  if (split < shape.L) {
    part.final_state = x.split_state.device();
    gla(part, 0);
    part = x.steps(split, shape.L);
    part.initial_state = x.split_state.device();
  }
  part.final_state = x.final_state.device();
  gla(part, 0);
  return driver::worse(
      x.o.compare_with(bound, [&](int64_t b, int64_t h) { return x.truth(b, h).o; }),
      {x.final_state.compare_with(bound,
                                  [&](int64_t b, int64_t h) { return x.truth(b, h).final_state; }),
       {"final_state", driver::Axes::BHEM}});
}

// Without gates, and unscaled, it is stage 04's operator.
template <class T>
Comparison check_causal_product(Gla<T>* gla, double bound) {
  const Shape shape = {1, 2, 100, 64, 48};
  GlaCheckOperands<T> x(reference::kNoGates, driver::kUsualSizes, shape, Layout::BLHD, /*scale=*/1);
  gla(x.steps(0, shape.L), 0);
  return x.o.compare_with(bound, [&](int64_t b, int64_t h) {
    return reference::causal_product(x.q.slice(b, h), x.k.slice(b, h), x.v.slice(b, h));
  });
}

// k and v of a size that fp16 does not hold.
template <class T>
driver::Finding check_sizes(Gla<T>* gla, const driver::Sizes& sizes, double bound) {
  const auto check = [&](const reference::Gates& gates, const Shape& shape) {
    return check_states<T>(gla, gates, sizes, shape, Layout::BLHD, /*split=*/37, bound);
  };
  const driver::Finding narrow = check(reference::kResettingGates, {1, 2, 100, 64, 70});
  if (kSanitized) return narrow;  // which has no other tiling in fp16
  // A larger E; and so many heads that an H200, or the emulated GPU, has less than a multiprocessor
  // for each block of 32 columns, or of 64.
  driver::Finding worst = narrow;
  for (const Shape& shape :
       {Shape{1, 2, 100, 128, 64}, {1, 100, 50, 64, 40}, {1, 140, 50, 64, 40}}) {
    worst = driver::worse(worst, check(reference::kMildGates, shape));
  }
  return worst;
}

// Adds the checks of one kernel; `bound` is on the relative error. all_floats: it computes with
// nothing but floats, which hold k and v of any size.
template <class T>
void add_checks(std::vector<driver::Check>& checks, const std::string& kernel, Gla<T>* gla,
                double bound, bool all_floats) {
  const auto add = [&](const std::string& what, std::function<driver::Finding()> run) {
    const std::string name = kernel + ", " + to_string(dtype_of<T>) + ", " + what;
    checks.push_back({name, bound, std::move(run), kernel, dtype_of<T>});
  };
  for (const reference::Gates& gates : reference::kAllGates) {
    add(std::string("states, two parts, gates: ") + gates.name, [=] {
      return driver::worse(check_states<T>(gla, gates, driver::kUsualSizes, {1, 2, 100, 33, 70},
                                           Layout::BLHD, /*split=*/100, bound),
                           check_states<T>(gla, gates, driver::kUsualSizes, {2, 1, 100, 64, 17},
                                           Layout::BHLD, /*split=*/37, bound));
    });
  }
  if (!all_floats) {
    for (const driver::Sizes& sizes : driver::kUnusualSizes) {
      add(sizes.name, [=] { return check_sizes<T>(gla, sizes, bound); });
    }
  }
  add("without gates the causal product", [=] { return check_causal_product<T>(gla, bound); });
}

}  // namespace attn::chunked_gla
