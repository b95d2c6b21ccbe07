#include "common/driver/verify.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>

#include "common/driver/environment.hpp"
#include "common/parallel.hpp"

namespace attn::driver {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What the truth of one slice takes, in multiply-adds: those of the states, or of the scores.
double slice_work(const Operator& op, const Shape& s) {
  if (op.reference_rows) return op.flops(s) / (2.0 * s.B * s.H);
  return double(s.L) * s.E * s.M;
}

// The slices that are compared: all, or where that would take long a seeded sample with the first
// and the last. Ascending.
std::vector<int64_t> sampled_slices(const Operator& op, const Shape& s, uint64_t seed) {
  const int64_t slices = s.B * s.H;
  const double affordable = 4e9 / slice_work(op, s);
  const int64_t count = std::min<int64_t>(slices, std::clamp(affordable, 4.0, 64.0));
  std::set<int64_t> chosen = {0, slices - 1};
  std::mt19937_64 random(seed);
  while (int64_t(chosen.size()) < count) chosen.insert(random() % slices);
  return {chosen.begin(), chosen.end()};
}

// The rows of a slice that are compared: all, or where that would take long every so many, with the
// last.
RowSample sampled_rows(const Operator& op, const Shape& s) {
  constexpr double kAffordable = 3e8;
  if (!op.reference_rows) return {};
  const int64_t step = std::clamp<int64_t>(std::ceil(slice_work(op, s) / kAffordable), 1, s.L);
  return {(s.L - 1) % step, step};
}

// Those rows of a tensor.
template <class T>
TensorView<T> rows_of(TensorView<T> x, RowSample rows) {
  x.data += rows.first * x.stride_l;
  x.L = (x.L - 1 - rows.first) / rows.step + 1;
  x.stride_l *= rows.step;
  return x;
}

double slice_bytes(Axes axes, const Shape& shape) {
  const Extents size = extents(axes, shape);
  return double(size.L) * size.D * sizeof(double);
}

double truth_bytes(const Operator& op, const Shape& shape) {
  double bytes = 0;
  for (const auto& output : op.outputs) bytes += slice_bytes(output.axes, shape);
  return bytes;
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return std::isnan(x) ? "nan" : text;  // its sign bit says nothing
}

// "o[b=0, h=1, l=17, m=3] = nan (never written)"
std::string describe(const OutputSpec& output, const WrongElement& wrong) {
  const char* const axes =
      output.axes == Axes::BHEM ? "em" : (output.axes == Axes::BHLM ? "lm" : "le");
  char index[128];
  std::snprintf(index, sizeof index, "[b=%lld, h=%lld, %c=%lld, %c=%lld] = ", (long long)wrong.b,
                (long long)wrong.h, axes[0], (long long)wrong.row, axes[1], (long long)wrong.col);
  return output.name + index + number(wrong.got) + (wrong.never_written ? " (never written)" : "");
}

}  // namespace

void require_right(const Comparison& comparison, const OutputSpec& output, double tolerance,
                   const std::string& place) {
  if (comparison.passes(tolerance)) return;
  char text[160];
  std::snprintf(text, sizeof text,
                " is wrong: relative error %.3g, at most %g is right, NaN in %lld of %lld elements",
                comparison.rel(), tolerance, (long long)comparison.unwritten,
                (long long)comparison.elements);
  std::string message = place + text;
  if (const auto& wrong = comparison.first_wrong)
    message += "; first wrong element " + describe(output, *wrong) + ", expected " +
               number(wrong->expected);
  throw WrongResult(message);
}

// The truth of one slice, one matrix per output.
struct Verifier::Truth {
  int64_t b, h;
  std::vector<Matrix> outputs = {};
};

std::vector<Verifier::Truth> Verifier::plan_truths(const Shape& shape) const {
  std::vector<Truth> truths;
  for (int64_t slice : sampled_slices(op_, shape, seed_))
    truths.push_back({slice / shape.H, slice % shape.H});
  return truths;
}

void Verifier::compute(Truth& truth, const Shape& shape, uint64_t seed) const {
  std::vector<Matrix> inputs;
  for (const auto& input : op_.inputs)
    inputs.push_back(input_slice(input, shape, dtype_, seed, truth.b, truth.h));
  truth.outputs = op_.reference_rows ? op_.reference_rows(shape, inputs, sampled_rows(op_, shape))
                                     : op_.reference(shape, inputs);
}

std::vector<Verifier::Verified> Verifier::run(const std::vector<const Kernel*>& kernels,
                                              const Plan& plan) const {
  const auto& cases = plan.cases;
  const Clock::time_point start = Clock::now();
  std::vector<Verified> verified;
  size_t next = 0;
  const auto out_of_time = [&] {
    return next >= plan.at_least && seconds_since(start) > plan.seconds;
  };
  while (next < cases.size() && !out_of_time()) {
    // The truths of several cases at a time, so that all cores have slices to compute.
    const size_t enough_slices = 4 * core_count();
    constexpr double kEnoughBytes = 256 << 20;
    std::vector<std::vector<Truth>> batch;
    std::vector<std::pair<const Shape*, Truth*>> slices;
    double bytes = 0;
    while (next + batch.size() < cases.size() && slices.size() < enough_slices &&
           bytes < kEnoughBytes) {
      const Shape& shape = cases[next + batch.size()].shape;
      batch.push_back(plan_truths(shape));
      bytes += batch.back().size() * truth_bytes(op_, shape);
      // (Elements of a vector stay where they are when the vector itself is moved.)
      for (Truth& truth : batch.back()) slices.push_back({&shape, &truth});
    }
    parallel_for(slices.size(),
                 [&](int64_t i) { compute(*slices[i].second, *slices[i].first, seed_); });

    for (auto& truths : batch) {
      if (out_of_time()) break;
      const Case& at = cases[next++];
      const bool limited = std::isfinite(plan.seconds);
      if (limited && has_many_slices(at.shape) && !affordable(kernels, at)) continue;
      verified.push_back({at, run_case(kernels, at, truths)});
    }
  }
  return verified;
}

// Would the kernels get through so many slices in reasonable time? Judged by how they do on a few.
bool Verifier::affordable(const std::vector<const Kernel*>& kernels, const Case& at) const {
  constexpr double kSeconds = 10, kFew = 32;
  Case few = at;
  few.shape.B = 1;
  few.shape.H = kFew;
  auto truths = plan_truths(few.shape);
  for (Truth& truth : truths) compute(truth, few.shape, seed_);
  const Clock::time_point start = Clock::now();
  run_case(kernels, few, truths);
  return seconds_since(start) * at.shape.B * at.shape.H / kFew < kSeconds;
}

std::vector<Comparison> Verifier::run_case(const std::vector<const Kernel*>& kernels,
                                           const Case& at, std::vector<Truth>& truths) const {
  const auto place = [&](const Kernel& kernel) {
    const std::string inputs = op_.distribution.empty() ? "" : "--inputs " + op_.distribution + " ";
    return kernel.name + " at --dtype " + to_string(dtype_) + " " + inputs + "--shape " +
           to_string(at.shape) + ", layout " +
           (at.layout == Layout::BHLD ? "[B, H, L, D]" : "[B, L, H, D]") + ", seed " +
           std::to_string(seed_);
  };
  // found[kernel][output]
  std::vector found(kernels.size(), std::vector<Comparison>(op_.outputs.size()));
  const auto all_pass = [&] {
    for (size_t k = 0; k < kernels.size(); ++k)
      for (const auto& comparison : found[k])
        if (!comparison.passes(error_bound(*kernels[k]))) return false;
    return true;
  };

  Tensors tensors(op_, at.shape, dtype_, at.layout, on_host_);
  // A norm over few rows is ill-conditioned: where one dot product happens to cancel, any float32
  // code has a large relative error. So a case with few rows that does not pass is run on more
  // draws of the inputs, and judged by the norms over all of them.
  constexpr int64_t kRows = 32;
  const int64_t rows = at.shape.B * at.shape.H * at.shape.L;
  for (int64_t draw = 0; draw == 0 || (draw * rows < kRows && !all_pass()); ++draw) {
    const uint64_t seed = seed_ + draw * 0x9e3779b97f4a7c15;
    if (draw > 0)
      for (Truth& truth : truths) compute(truth, at.shape, seed);
    tensors.fill_inputs(seed);
    for (size_t k = 0; k < kernels.size(); ++k) {
      run_kernel(*kernels[k], tensors, place(*kernels[k]));
      for (size_t o = 0; o < op_.outputs.size(); ++o)
        found[k][o].merge(
            check_output(o, tensors, truths, error_bound(*kernels[k]), place(*kernels[k])));
    }
  }

  std::vector<Comparison> worst;
  for (size_t k = 0; k < kernels.size(); ++k) {
    for (size_t o = 0; o < op_.outputs.size(); ++o)
      require_right(found[k][o], op_.outputs[o], error_bound(*kernels[k]), place(*kernels[k]));
    worst.push_back(*std::max_element(
        found[k].begin(), found[k].end(),
        [](const Comparison& a, const Comparison& b) { return a.rel() < b.rel(); }));
  }
  return worst;
}

void Verifier::run_kernel(const Kernel& kernel, Tensors& tensors, const std::string& place) const {
  tensors.poison_outputs();
  try {
    kernel.run(tensors);
    if (!on_host_) cuda_check(cudaDeviceSynchronize());
  } catch (const std::exception& error) {
    throw WrongResult(place + " failed: " + error.what());
  }
}

Comparison Verifier::check_output(size_t output, const Tensors& tensors,
                                  const std::vector<Truth>& truths, double tolerance,
                                  const std::string& place) const {
  return with_element_type(dtype_, [&]<class T>() {
    HostBuffer staging;
    const auto out = tensors.template on_host<T>(op_.outputs[output].name, staging);
    Comparison comparison;
    const RowSample rows = sampled_rows(op_, tensors.shape());
    for (const Truth& truth : truths) {
      Comparison of_slice =
          compare(rows_of(out, rows), truth.b, truth.h, truth.outputs[output], tolerance);
      if (of_slice.first_wrong)
        of_slice.first_wrong->row = rows.first + of_slice.first_wrong->row * rows.step;
      comparison.merge(of_slice);
    }
    // What is outside the sample must at least be written.
    const bool sampled =
        int64_t(truths.size()) < tensors.shape().B * tensors.shape().H || rows.step > 1;
    if (sampled && comparison.unwritten == 0)
      if (const auto nan = first_nan(out))
        throw WrongResult(place + " is wrong: " + describe(op_.outputs[output], *nan));
    return comparison;
  });
}

double Verifier::device_bytes(const Shape& shape) const {
  return operand_bytes(op_, shape, dtype_);
}

double Verifier::host_bytes(const Shape& shape) const {
  // One operand at a time is staged on its way to or from the device; host stages hold them all.
  double staged = 0, slice = 0;
  const auto count = [&](Axes axes) {
    staged = std::max(staged, double(extents(axes, shape).elements()) * bytes_of(dtype_));
    slice += slice_bytes(axes, shape);
  };
  for (const auto& input : op_.inputs) count(input.axes);
  for (const auto& output : op_.outputs) count(output.axes);
  const double compared = sampled_slices(op_, shape, seed_).size();
  return (on_host_ || kEmulated ? device_bytes(shape) : 0) + (on_host_ ? 0 : staged) +
         compared * truth_bytes(op_, shape) + std::min<double>(core_count(), compared) * slice;
}

}  // namespace attn::driver
