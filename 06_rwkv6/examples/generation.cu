// Generation: RWKV-6 one token at a time, the state carried from call to call.
//
// A model that generates has no sequence: each token is a call with L = 1, from the state that the
// call before left. This program runs a sequence that way and as a whole, compares both with the
// float64 truth and exits with 1 where an error is above its bound; on a GPU it then prints what a
// token costs at the sizes of a model's layer. No token shares its state with another, so a call
// must move the state once in and once out: there is nothing that chunks could save.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "01_cpu_reference/operators.hpp"
#include "01_cpu_reference/rwkv6.hpp"
#include "06_rwkv6/operands.cuh"
#include "06_rwkv6/rwkv6.cuh"
#include "common/compare.hpp"
#include "common/device.hpp"
#include "common/driver/check_operand.hpp"
#include "common/driver/environment.hpp"
#include "common/driver/stopwatch.hpp"
#include "common/element.hpp"

namespace {

using namespace attn;
using rwkv6::Rwkv6Operands;

// A layer's operands, drawn from a seed, and its state.
template <class T>
struct Sequence {
  using Operand = driver::CheckOperand<T>;

  explicit Sequence(const Shape& s)
      : r("r", s.B, s.H, s.L, s.E, Layout::BLHD),
        k("k", s.B, s.H, s.L, s.E, Layout::BLHD),
        v("v", s.B, s.H, s.L, s.M, Layout::BLHD),
        w("w", s.B, s.H, s.L, s.E, Layout::BLHD, reference::kExponentialGates.from_normal),
        u("u", 1, s.H, 1, s.E, Layout::BHLD),
        o("o", s.B, s.H, s.L, s.M, Layout::BLHD),
        state("state", s.B, s.H, s.E, s.M, Layout::BHLD, [](float) { return 0.0f; }) {
    o.poison();
  }

  // The operands of steps [first, last). The state is read and left in the same memory: each of its
  // elements is one thread's, which reads it before it writes it.
  Rwkv6Operands<T> steps(int64_t first, int64_t last) const {
    const auto part = [&](const Operand& x) { return rows(x.device(), first, last); };
    return {part(r), part(k), part(v),        part(w),       u.device(),
            part(o), 1,       state.device(), state.device()};
  }

  reference::RecurrentResult truth(int64_t b, int64_t h) const {
    return reference::rwkv6(r.slice(b, h), k.slice(b, h), v.slice(b, h), w.slice(b, h),
                            u.slice(0, h), 1, Matrix(r.device().D, v.device().D));
  }

  Operand r, k, v, w, u, o;
  driver::CheckOperand<float> state;
};

// Compares outputs and final state with the truth; prints the worse error, and returns whether both
// are within the bound.
template <class T>
bool verify(Sequence<T>& x, const char* how, double bound) {
  const Comparison o =
      x.o.compare_with(bound, [&](int64_t b, int64_t h) { return x.truth(b, h).o; });
  const Comparison state =
      x.state.compare_with(bound, [&](int64_t b, int64_t h) { return x.truth(b, h).final_state; });
  const bool right = o.passes(bound) && state.passes(bound);
  std::printf("%-4s %-16s error of the outputs %.1e, of the state %.1e, bound %.0e: %s\n",
              to_string(dtype_of<T>).c_str(), how, o.rel(), state.rel(), bound,
              right ? "ok" : "WRONG");
  return right;
}

// [doc:generate]
// Token after token: each call begins with the state that the one before left.
template <class T>
void generate(const Sequence<T>& x, int64_t tokens) {
  for (int64_t t = 0; t < tokens; ++t) rwkv6::rwkv6_attention(x.steps(t, t + 1));
}
// [/doc:generate]

template <class T>
bool verify_generation(const Shape& shape, double chunked_bound) {
  Sequence<T> tokens(shape), whole(shape);
  generate(tokens, shape.L);
  rwkv6::rwkv6_attention(whole.steps(0, shape.L));
  const bool tokens_right = verify(tokens, "token by token:", tolerance(dtype_of<T>));
  return verify(whole, "whole sequence:", chunked_bound) && tokens_right;
}

// What a token costs. The state, once in and once out, is all but all of the bytes.
template <class T>
void time_token(const Shape& shape) {
  const Sequence<T> x(shape);
  driver::Stopwatch stopwatch(/*on_host=*/false);
  std::vector<double> ms;
  for (int i = 0; i < 30; ++i) ms.push_back(stopwatch.ms([&] { generate(x, 1); }));
  std::sort(ms.begin(), ms.end());
  const double median = (ms[14] + ms[15]) / 2;
  const double state = 2.0 * shape.B * shape.H * shape.E * shape.M * sizeof(float);
  const double rows = double(shape.B) * shape.H * (3 * shape.E + 2 * shape.M) * sizeof(T);
  std::printf("%-4s B,H,E,M = %d,%d,%d,%d: %.2f us per token, %.3g MB, %.0f GB/s\n",
              to_string(dtype_of<T>).c_str(), int(shape.B), int(shape.H), int(shape.E),
              int(shape.M), 1e3 * median, (state + rows) / 1e6, (state + rows) / median / 1e6);
}

}  // namespace

int main() {
  try {
    const driver::Environment environment = driver::find_environment(/*on_host=*/false);
    std::printf("06_generation: one token at a time, and the whole sequence, against float64\n");
    std::printf("runs on: %s\n", driver::describe(environment, /*on_host=*/false).c_str());
    if (!driver::kEmulated && compute_capability_major() < 8) {
      std::printf("not run: this GPU is older than compute capability 8.0, which bf16 needs\n");
      return 0;
    }
    const Shape shape = {2, 3, 50, 64, 64};
    bool right = verify_generation<__nv_bfloat16>(shape, tolerance(Dtype::bf16));
    right &= verify_generation<float>(shape, kTf32Tolerance);
    if (driver::kEmulated) {
      std::printf("An emulated kernel's time means nothing: no token is timed.\n");
    } else {
      // Of one sequence, of a batch, and of a batch whose states fill more than the caches.
      for (const int64_t B : {1, 32, 256}) time_token<__nv_bfloat16>({B, 64, 1, 64, 64});
      time_token<__nv_bfloat16>({64, 64, 1, 128, 128});  // as many bytes, in larger heads
    }
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "06_generation: %s\n", error.what());
    return 1;
  }
}
