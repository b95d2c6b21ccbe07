#include "common/driver/verify.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>

#include "common/driver/environment.hpp"
#include "common/parallel.hpp"

namespace attn::driver {
namespace {

// Around and between the sizes of tiles, warps and blocks.
constexpr int64_t kLengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 127, 997, 1024};
constexpr int64_t kHeadSizes[] = {1, 8, 10, 32, 48, 60, 64, 100, 128, 200, 256, 512};
constexpr int kSizes = 12;
static_assert(std::size(kLengths) == kSizes && std::size(kHeadSizes) == kSizes);

// The n-th case at these sizes: batches, heads and layout vary with n.
Case make_case(int64_t n, int64_t L, int64_t E, int64_t M) {
  constexpr int64_t kBatchHeads[][2] = {{1, 1}, {2, 3}, {1, 2}, {3, 2}, {2, 1}};
  const auto& [B, H] = kBatchHeads[n % std::size(kBatchHeads)];
  return {{B, H, L, E, M}, n % 2 == 0 ? Layout::BHLD : Layout::BLHD};
}

// More slices than a grid's y and z dimensions hold.
const Case kManySlices[] = {
    {{65537, 1, 1, 8, 10}, Layout::BHLD},
    {{1, 65537, 2, 10, 8}, Layout::BLHD},
    {{257, 256, 2, 1, 32}, Layout::BLHD},
    {{2, 40000, 3, 8, 1}, Layout::BHLD},
};

// A norm over few rows is ill-conditioned: where one dot product happens to cancel, any float32
// code has a large relative error. So a case with few rows is run on several draws of the inputs,
// and its norms are taken over all of them.
int64_t draws_of(const Shape& s) {
  constexpr int64_t kRows = 32;
  const int64_t rows = s.B * s.H * s.L;
  return rows >= kRows ? 1 : (kRows + rows - 1) / rows;
}

uint64_t seed_of_draw(uint64_t seed, int64_t draw) { return seed + draw * 0x9e3779b97f4a7c15; }

// Roughly what a case costs an emulated kernel, in multiply-adds: the work itself, the barriers of
// each step, the start of each block.
double cost_of(const Case& c) {
  const auto& [B, H, L, E, M] = c.shape;
  return double(draws_of(c.shape)) * B * H * (L * (E * M + 512.0) + 1024.0);
}

// The slices of a case that are compared: all, or where that would take long a seeded sample with
// the first and the last. Ascending.
std::vector<int64_t> sampled_slices(const Shape& s, uint64_t seed) {
  const int64_t slices = s.B * s.H;
  const double affordable = 4e9 / (double(s.L) * s.E * s.M);
  const int64_t count = std::min<int64_t>(slices, std::clamp(affordable, 4.0, 64.0));
  std::set<int64_t> chosen = {0, slices - 1};
  std::mt19937_64 random(seed);
  while (int64_t(chosen.size()) < count) chosen.insert(random() % slices);
  return {chosen.begin(), chosen.end()};
}

// The truth of one slice of one draw, one matrix per output.
struct Truth {
  int64_t draw, b, h;
  std::vector<Matrix> outputs;
};

// All that one case is compared with.
struct Truths {
  std::vector<Truth> slices;
  bool sampled;  // not every slice (b, h) is among them
};

Truths plan_truths(const Shape& shape, uint64_t seed) {
  const auto chosen = sampled_slices(shape, seed);
  Truths truths{{}, int64_t(chosen.size()) < shape.B * shape.H};
  for (int64_t draw = 0; draw < draws_of(shape); ++draw)
    for (int64_t slice : chosen)
      truths.slices.push_back({draw, slice / shape.H, slice % shape.H, {}});
  return truths;
}

double truth_bytes(const Operator& op, const Shape& shape) {
  double elements = 0;
  for (const auto& output : op.outputs) {
    const Extents size = extents(output.axes, shape);
    elements += double(size.L) * size.D;
  }
  return elements * sizeof(double);
}

std::string layout_name(Layout layout) {
  return layout == Layout::BHLD ? "[B, H, L, D]" : "[B, L, H, D]";
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return std::isnan(x) ? "nan" : text;  // its sign bit says nothing
}

// "o[b=0, h=1, l=17, m=3] = nan (never written)"
std::string describe(const OutputSpec& output, const WrongElement& wrong) {
  const char* const axes = output.axes == Axes::BHEM   ? "em"
                           : output.axes == Axes::BHLM ? "lm"
                                                       : "le";
  char index[128];
  std::snprintf(index, sizeof index, "[b=%lld, h=%lld, %c=%lld, %c=%lld] = ", (long long)wrong.b,
                (long long)wrong.h, axes[0], (long long)wrong.row, axes[1], (long long)wrong.col);
  return output.name + index + number(wrong.got) + (wrong.never_written ? " (never written)" : "");
}

// Runs one case: each kernel on each draw, every output compared with the truth.
class CaseRun {
 public:
  CaseRun(const Verifier& verifier, const Case& the_case, const Truths& truths)
      : verifier_(verifier), case_(the_case), truths_(truths) {}

  // Per kernel, the comparison of its worst output.
  std::vector<Comparison> run(const std::vector<const Kernel*>& kernels) const {
    const auto& outputs = verifier_.op.outputs;
    Tensors tensors(verifier_.op, case_.shape, verifier_.dtype, case_.layout, verifier_.on_host);
    std::vector<std::vector<Comparison>> found(kernels.size(),
                                               std::vector<Comparison>(outputs.size()));
    for (int64_t draw = 0; draw < draws_of(case_.shape); ++draw) {
      tensors.fill_inputs(seed_of_draw(verifier_.seed, draw));
      for (size_t k = 0; k < kernels.size(); ++k) {
        run_kernel(*kernels[k], tensors);
        for (size_t o = 0; o < outputs.size(); ++o)
          found[k][o].merge(check_output(*kernels[k], tensors, draw, o));
      }
    }
    std::vector<Comparison> worst;
    for (size_t k = 0; k < kernels.size(); ++k) {
      for (size_t o = 0; o < outputs.size(); ++o)
        require_right(found[k][o], outputs[o], tolerance(verifier_.dtype), place(*kernels[k]));
      worst.push_back(*std::max_element(
          found[k].begin(), found[k].end(),
          [](const Comparison& a, const Comparison& b) { return a.rel() < b.rel(); }));
    }
    return worst;
  }

 private:
  std::string place(const Kernel& kernel) const {
    return kernel.name + " at --shape " + to_string(case_.shape) + ", layout " +
           layout_name(case_.layout) + ", seed " + std::to_string(verifier_.seed);
  }

  void run_kernel(const Kernel& kernel, Tensors& tensors) const {
    tensors.poison_outputs();
    try {
      kernel.run(tensors);
      if (!verifier_.on_host) cuda_check(cudaDeviceSynchronize());
    } catch (const std::exception& error) {
      throw WrongResult(place(kernel) + " failed: " + error.what());
    }
  }

  Comparison check_output(const Kernel& kernel, const Tensors& tensors, int64_t draw,
                          size_t o) const {
    const OutputSpec& spec = verifier_.op.outputs[o];
    return with_element_type(verifier_.dtype, [&]<class T>() {
      HostBuffer staging;
      const auto out = tensors.template on_host<T>(spec.name, staging);
      Comparison comparison;
      for (const Truth& truth : truths_.slices)
        if (truth.draw == draw)
          comparison.merge(
              compare(out, truth.b, truth.h, truth.outputs[o], tolerance(verifier_.dtype)));
      // Slices outside the sample must at least be written.
      if (truths_.sampled && comparison.unwritten == 0)
        if (const auto nan = first_nan(out))
          throw WrongResult(place(kernel) + " is wrong: " + describe(spec, *nan));
      return comparison;
    });
  }

  const Verifier& verifier_;
  const Case& case_;
  const Truths& truths_;
};

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

std::vector<Case> whole_grid() {
  std::vector<Case> cases(std::begin(kManySlices), std::end(kManySlices));
  for (int64_t L : kLengths)
    for (int64_t E : kHeadSizes)
      for (int64_t M : kHeadSizes) cases.push_back(make_case(cases.size(), L, E, M));
  return cases;
}

std::vector<Case> covering_subset(double budget, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Case> cases;
  const auto add = [&](int64_t L, int64_t E, int64_t M) {
    const Case next = make_case(cases.size(), L, E, M);
    const double cost = cost_of(next);
    if (cost > budget) return;
    budget -= cost;
    cases.push_back(next);
  };
  // Every size of each axis once, long with narrow.
  for (int i = 0; i < kSizes; ++i)
    add(kLengths[i], kHeadSizes[kSizes - 1 - i], kHeadSizes[(2 * kSizes - 1 - i + 5) % kSizes]);
  if (const Case& many = kManySlices[random() % std::size(kManySlices)]; cost_of(many) <= budget) {
    budget -= cost_of(many);
    cases.push_back(many);
  }
  int64_t n = 0;
  for (int64_t E : kHeadSizes)
    for (int64_t M : kHeadSizes) add(kLengths[n++ % 5], E, M);
  for (const auto& [E, M] : {std::pair{64, 64}, {48, 100}, {128, 32}})
    for (int64_t L : kLengths) add(L, E, M);
  std::vector<Case> rest = whole_grid();
  std::shuffle(rest.begin(), rest.end(), random);
  for (const Case& c : rest)
    if (c.shape.B * c.shape.H < 100) add(c.shape.L, c.shape.E, c.shape.M);
  return cases;
}

std::vector<Case> verification_cases(bool on_host, size_t kernel_count, uint64_t seed) {
  const char* const given = std::getenv("ATTN_VERIFY_BUDGET");
  if (!given && !on_host && !kEmulated) return whole_grid();
  char* end = nullptr;
  double budget = on_host ? 4e9 : 1e9;
  if (given) budget = std::strtod(given, &end);
  if (given && (end == given || *end != '\0' || !(budget > 0)))
    throw std::invalid_argument(std::string("ATTN_VERIFY_BUDGET is ") + given +
                                ": expected a number of multiply-adds, as 3e8");
  return covering_subset(budget / kernel_count, seed);
}

std::vector<std::vector<Comparison>> Verifier::run(const std::vector<const Kernel*>& kernels,
                                                   const std::vector<Case>& cases) const {
  // The truths of several cases at a time, so that all cores have slices to compute.
  const size_t enough_slices = 4 * core_count();
  constexpr double kEnoughBytes = 256 << 20;

  std::vector<std::vector<Comparison>> results;
  while (results.size() < cases.size()) {
    std::vector<Truths> batch;
    std::vector<std::pair<const Shape*, Truth*>> slices;
    double bytes = 0;
    for (size_t i = results.size();
         i < cases.size() && slices.size() < enough_slices && bytes < kEnoughBytes; ++i) {
      batch.push_back(plan_truths(cases[i].shape, seed));
      // (A vector's elements stay where they are when the vector itself is moved.)
      for (Truth& truth : batch.back().slices) slices.push_back({&cases[i].shape, &truth});
      bytes += batch.back().slices.size() * truth_bytes(op, cases[i].shape);
    }
    parallel_for(slices.size(), [&](int64_t i) {
      const auto& [shape, truth] = slices[i];
      std::vector<Matrix> inputs;
      for (const auto& input : op.inputs)
        inputs.push_back(
            input_slice(input, *shape, dtype, seed_of_draw(seed, truth->draw), truth->b, truth->h));
      truth->outputs = op.reference(*shape, inputs);
    });
    for (const Truths& truths : batch) {
      const Case& next = cases[results.size()];
      results.push_back(CaseRun(*this, next, truths).run(kernels));
    }
  }
  return results;
}

double Verifier::device_bytes(const Shape& shape) const { return operand_bytes(op, shape, dtype); }

double Verifier::host_bytes(const Shape& shape) const {
  // One operand is staged on its way to or from the device; host stages hold them all.
  double staged = 0, slice = 0;
  const auto count = [&](Axes axes) {
    const Extents size = extents(axes, shape);
    staged = std::max(staged, double(size.elements()) * bytes_of(dtype));
    slice += double(size.L) * size.D * sizeof(double);
  };
  for (const auto& input : op.inputs) count(input.axes);
  for (const auto& output : op.outputs) count(output.axes);
  const double compared = sampled_slices(shape, seed).size() * draws_of(shape);
  return (on_host || kEmulated ? device_bytes(shape) : 0) + (on_host ? 0 : staged) +
         compared * truth_bytes(op, shape) + std::min<double>(core_count(), compared) * slice;
}

}  // namespace attn::driver
