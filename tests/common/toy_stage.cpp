#include "toy_stage.hpp"

#include <limits>
#include <stdexcept>

namespace attn::driver {
namespace {

std::vector<Matrix> reference(const Shape& s, const std::vector<Matrix>& inputs) {
  const Matrix &q = inputs[0], &k = inputs[1], &v = inputs[2];
  Matrix state(s.E, s.M), o(s.L, s.M);
  for (int64_t t = 0; t < s.L; ++t) {
    for (int64_t e = 0; e < s.E; ++e) {
      for (int64_t m = 0; m < s.M; ++m) {
        state(e, m) += k(t, e) * v(t, m);
        o(t, m) += q(t, e) * state(e, m);
      }
    }
  }
  return {o};
}

template <class T>
void causal_product(const Tensors& tensors, float factor = 1) {
  const auto q = tensors.view<const T>("q"), k = tensors.view<const T>("k"),
             v = tensors.view<const T>("v");
  const auto o = tensors.view<T>("o");
  std::vector<float> state(q.D * v.D), out(v.D);
  for (int64_t b = 0; b < q.B; ++b) {
    for (int64_t h = 0; h < q.H; ++h) {
      state.assign(state.size(), 0);
      for (int64_t t = 0; t < q.L; ++t) {
        out.assign(out.size(), 0);
        for (int64_t e = 0; e < q.D; ++e) {
          for (int64_t m = 0; m < v.D; ++m) {
            state[e * v.D + m] += to_float(k.row(b, h, t)[e]) * to_float(v.row(b, h, t)[m]);
            out[m] += to_float(q.row(b, h, t)[e]) * state[e * v.D + m];
          }
        }
        for (int64_t m = 0; m < v.D; ++m) o.row(b, h, t)[m] = from_float<T>(factor * out[m]);
      }
    }
  }
}

// Runs the kernel, with its fault in the last column of the last slice.
void run_with(Fault fault, const Tensors& tensors) {
  const auto o = tensors.view<float>("o");
  float& last = o.row(o.B - 1, o.H - 1, o.L - 1)[o.D - 1];
  const float poison = last;
  if (fault == Fault::throws) throw std::runtime_error("the kernel gave up");
  causal_product<float>(tensors);
  if (fault == Fault::wrong_element) last += 100;
  if (fault == Fault::nan) last = std::numeric_limits<float>::quiet_NaN();
  if (fault == Fault::unwritten_element) last = poison;
}

Cost cost(const Shape& s) {
  const double steps = double(s.B) * s.H * s.L;
  return {4 * steps * (2 * s.E + 2 * s.M), 4 * steps * s.E * s.M};
}

}  // namespace

Stage toy_stage(Fault fault) {
  Stage stage;
  stage.name = "00_toy";
  stage.idea = "a kernel to test the driver with";
  stage.op = {.name = "causal product",
              .inputs = {{"q", Axes::BHLE}, {"k", Axes::BHLE}, {"v", Axes::BHLM}},
              .outputs = {{"o", Axes::BHLM}},
              .reference = reference,
              .flops = [](const Shape& s) { return cost(s).flops; }};
  stage.kernels = {
      {"first", Dtype::f32, [](const Tensors& t) { run_with(Fault::none, t); }, cost},
      {"second", Dtype::f32, [fault](const Tensors& t) { run_with(fault, t); }, cost},
  };
  stage.default_shape = {1, 2, 64, 16, 16};
  stage.on_host = true;
  return stage;
}

Kernel toy_bf16_kernel(float factor) {
  return {"third", Dtype::bf16,
          [factor](const Tensors& t) { causal_product<__nv_bfloat16>(t, factor); }, cost};
}

Stage toy_stage_with_variants() {
  Stage stage = toy_stage();
  stage.op.distribution = "normal";
  Operator ones = stage.op;
  ones.distribution = "ones";
  ones.inputs[2].from_normal = [](float) { return 1.f; };
  stage.variants = {{ones}};
  return stage;
}

}  // namespace attn::driver
