// What the driver's grid of shapes does not reach, for every kernel of this stage: states in and
// out, a sequence in two parts, backwards, another scale, every kind of decay, k and v of every size;
// and the causal product.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "01_cpu_reference/causal_product.hpp"
#include "01_cpu_reference/operators.hpp"
#include "01_cpu_reference/rwkv6.hpp"
#include "06_rwkv6/operands.cuh"
#include "common/compare.hpp"
#include "common/driver/check_operand.hpp"
#include "common/driver/check_sizes.hpp"
#include "common/driver/stage.hpp"
#include "common/element.hpp"

namespace attn::rwkv6 {

template <class T>
using Rwkv6 = void(const Rwkv6Operands<T>&, cudaStream_t);

// Seeded operands of one check. Without decays u is 1: the causal product.
template <class T>
struct Rwkv6CheckOperands {
  using Operand = driver::CheckOperand<T>;
  using State = driver::CheckOperand<float>;

  Rwkv6CheckOperands(const reference::Gates& gates, const driver::Sizes& sizes, const Shape& s,
                     Layout layout, float scale)
      : r("r", s.B, s.H, s.L, s.E, layout),
        k("k", s.B, s.H, s.L, s.E, layout, sizes.k),
        v("v", s.B, s.H, s.L, s.M, layout, sizes.v),
        w("w", s.B, s.H, s.L, s.E, layout, gates.from_normal),
        u("u", 1, s.H, 1, s.E, Layout::BHLD, [gates](float x) { return gates.scaled ? x : 1; }),
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
  Rwkv6Operands<T> steps(int64_t first, int64_t last) const {
    const auto part = [&](const Operand& x) { return rows(x.device(), first, last); };
    return {part(r), part(k), part(v), part(w), u.device(), part(o), scale};
  }

  reference::RecurrentResult truth(int64_t b, int64_t h, bool reverse) const {
    return reference::rwkv6(r.slice(b, h), k.slice(b, h), v.slice(b, h), w.slice(b, h),
                            u.slice(0, h), scale, initial_state.slice(b, h), reverse);
  }

  Operand r, k, v, w, u, o;
  State initial_state, split_state, final_state;
  const float scale;
};

// From an initial to a final state, either in one go or, with split < L, in two parts, the later
// rows first if they are walked backwards: the worse of output and final state.
template <class T>
driver::Finding check_states(Rwkv6<T>* rwkv6, const reference::Gates& gates,
                             const driver::Sizes& sizes, const Shape& shape, Layout layout,
                             int64_t split, bool reverse, double bound) {
  Rwkv6CheckOperands<T> x(gates, sizes, shape, layout, /*scale=*/0.3f);
  const auto part = [&](int64_t first, int64_t last) {
    Rwkv6Operands<T> operands = x.steps(first, last);
    operands.reverse = reverse;
    operands.initial_state = x.initial_state.device();
    operands.final_state = x.final_state.device();
    return operands;
  };
  if (split < shape.L) {
    Rwkv6Operands<T> before = part(0, split), after = part(split, shape.L);
    if (reverse) std::swap(before, after);
    before.final_state = x.split_state.device();
    after.initial_state = x.split_state.device();
    rwkv6(before, 0);
    rwkv6(after, 0);
  } else {
    rwkv6(part(0, shape.L), 0);
  }
  const auto truth = [&](int64_t b, int64_t h) { return x.truth(b, h, reverse); };
  return driver::worse(x.o.compare_with(bound, [&](int64_t b, int64_t h) { return truth(b, h).o; }),
                       {x.final_state.compare_with(
                            bound, [&](int64_t b, int64_t h) { return truth(b, h).final_state; }),
                        {"final_state", driver::Axes::BHEM}});
}

// Without decays, with u = 1 and unscaled, it is the operator of stages 02 to 04.
template <class T>
Comparison check_causal_product(Rwkv6<T>* rwkv6, double bound) {
  const Shape shape = {1, 2, 100, 64, 48};
  Rwkv6CheckOperands<T> x(reference::kNoGates, driver::kUsualSizes, shape, Layout::BLHD,
                          /*scale=*/1);
  rwkv6(x.steps(0, shape.L), 0);
  return x.o.compare_with(bound, [&](int64_t b, int64_t h) {
    return reference::causal_product(x.r.slice(b, h), x.k.slice(b, h), x.v.slice(b, h));
  });
}

// Adds the checks of one kernel; `bound` is on the relative error.
template <class T>
void add_checks(std::vector<driver::Check>& checks, const std::string& kernel, Rwkv6<T>* rwkv6,
                double bound) {
  const auto add = [&](const std::string& what, std::function<driver::Finding()> run) {
    const std::string name = kernel + ", " + to_string(dtype_of<T>) + ", " + what;
    checks.push_back({name, bound, std::move(run), kernel, dtype_of<T>});
  };
  for (const reference::Gates& gates : reference::kAllGates) {
    const auto states = [=](bool reverse) {
      return driver::worse(check_states<T>(rwkv6, gates, driver::kUsualSizes, {1, 2, 100, 33, 70},
                                           Layout::BLHD, /*split=*/100, reverse, bound),
                           check_states<T>(rwkv6, gates, driver::kUsualSizes, {2, 1, 100, 64, 17},
                                           Layout::BHLD, /*split=*/37, reverse, bound));
    };
    add(std::string("states, two parts, decays: ") + gates.name, [=] { return states(false); });
    if (gates.name == reference::kExponentialGates.name)
      add("the same backwards", [=] { return states(true); });
  }
  for (const driver::Sizes& sizes : driver::kUnusualSizes) {
    add(sizes.name, [=] {
      return check_states<T>(rwkv6, reference::kMildGates, sizes, {1, 2, 100, 128, 64},
                             Layout::BLHD, /*split=*/37, /*reverse=*/false, bound);
    });
  }
  // As generation does it: heads of every size that kernels tell apart, rows on 16 bytes and not.
  const auto one_by_one = [=](const Shape& shape) {
    return check_states<T>(rwkv6, reference::kExponentialGates, driver::kUsualSizes, shape,
                           Layout::BLHD,
                           /*split=*/1,
                           /*reverse=*/false, bound);
  };
  add("states, one row at a time", [=] {
    driver::Finding worst = one_by_one({2, 2, 2, 64, 64});
    for (const Shape& shape :
         {Shape{1, 2, 2, 33, 70}, Shape{1, 2, 2, 128, 60}, Shape{2, 1, 2, 100, 130},
          Shape{1, 2, 2, 200, 36}, Shape{1, 1, 2, 512, 72}}) {
      worst = driver::worse(worst, one_by_one(shape));
    }
    return worst;
  });
  add("without decays and u = 1 the causal product",
      [=] { return check_causal_product<T>(rwkv6, bound); });
}

}  // namespace attn::rwkv6
