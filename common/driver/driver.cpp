#include "common/driver/driver.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "common/driver/benchmark.hpp"
#include "common/driver/environment.hpp"
#include "common/driver/ladder.hpp"
#include "common/driver/options.hpp"
#include "common/driver/rates.hpp"
#include "common/driver/report.hpp"
#include "common/driver/results.hpp"
#include "common/driver/verify.hpp"
#include "common/driver/work.hpp"

namespace attn::driver {
namespace {

// The stage's variants that --inputs selects; without it all, the default first.
std::vector<Variant> selected_variants(const Stage& stage, const Options& options) {
  std::vector<Variant> variants = {{stage.op, stage.previous, stage.others}};
  variants.insert(variants.end(), stage.variants.begin(), stage.variants.end());
  if (!options.inputs.empty())
    std::erase_if(variants, [&](const Variant& v) { return v.op.distribution != options.inputs; });
  return variants;
}

// Counts grow with a shape, and do not change their ratios: small is enough, and quick.
const Shape kCountedShape = {1, 3, 256, 64, 64};

class Run {
 public:
  Run(const Stage& stage, const Options& options)
      : stage_(stage), options_(options), variants_(selected_variants(stage, options)) {
    for (Dtype dtype : options.dtypes) {
      Selected& selected = selected_.emplace_back();
      selected.dtype = dtype;
      selected.kernels = selected_kernels(stage, options, dtype);
      for (const Variant& variant : variants_)
        selected.verifiers.emplace_back(variant.op, dtype, options.seed, stage.on_host);
    }
  }

  void list() const {
    for (const Kernel* kernel : selected_.front().kernels)
      std::printf("%s\n", kernel->name.c_str());
    for (const Shape& shape : shapes())
      std::printf("picked at %s: %s\n", to_string(shape).c_str(), picked_kernel(shape).c_str());
  }

  void run() {
    const Environment environment = find_environment(stage_.on_host);
    const bool lacks_bf16 = !stage_.on_host && !kEmulated && std::stod(environment.sm) < 8 &&
                            std::erase_if(selected_, [](const Selected& selected) {
                              return selected.dtype == Dtype::bf16;
                            });
    if (selected_.empty())
      throw BadInput("--dtype bf16: " + environment.device + " is sm " + environment.sm +
                     " and lacks it; accepted is f32");
    leave_out_what_cannot_run();
    plan_ = parse_benchmark_flags(options_.benchmark_flags, stage_.on_host);
    if (timed()) plan_jobs();
    require_fit(environment);

    std::printf("%s: %s\n", stage_.name.c_str(), stage_.idea.c_str());
    std::printf("runs on: %s\n", describe(environment, stage_.on_host).c_str());
    std::printf("computes: %s, ", to_string(op()).c_str());
    for (const Selected& selected : selected_)
      std::printf("%s, ", to_string(selected.dtype).c_str());
    std::printf("B,H,L,E,M =");
    for (const Shape& shape : shapes()) std::printf(" %s", to_string(shape).c_str());
    std::printf("\n");
    if (lacks_bf16) std::printf("not verified here, this GPU lacks it: bf16\n");
    for (const std::string& kernel : not_run_) std::printf("not run: %s\n", kernel.c_str());
    std::fflush(stdout);

    for (const Selected& selected : selected_) verify_grid(selected);
    run_checks();
    for (const Selected& selected : selected_) verify_shapes(selected);
    if (options_.verify_only) return;
    if constexpr (kMicroscope) {
      if (!stage_.on_host) {
        count_work(stage_, op(),
                   {selected_.front().kernels, shapes(), dtype(), options_.seed, options_.per_line,
                    options_.results},
                   environment);
        return;
      }
    }
    if (!timed()) {
      std::printf(
          "An emulated kernel's time means nothing: nothing is timed, no speedup is claimed%s.\n",
          options_.results.empty() ? "" : ", and nothing is written to the results file");
      std::printf("What it asks of memory can be counted: docs/microscope.md.\n");
      print_recorded(stage_, ATTN_SOURCE_DIR "/docs/results");
      return;
    }
    time_and_report(environment);
  }

 private:
  // The stage's kernels of one dtype that run.
  struct Selected {
    Dtype dtype;
    std::vector<const Kernel*> kernels;
    std::vector<Verifier> verifiers;  // one for each variant
  };

  // Kernels that this device cannot run, which are neither verified nor timed.
  void leave_out_what_cannot_run() {
    for (Selected& selected : selected_) {
      std::erase_if(selected.kernels, [&](const Kernel* kernel) {
        const std::string reason = why_not(*kernel);
        if (reason.empty()) return false;
        not_run_.push_back(kernel->name + " " + to_string(kernel->dtype) + ": " + reason);
        return true;
      });
    }
    std::erase_if(selected_, [](const Selected& selected) { return selected.kernels.empty(); });
    if (selected_.empty()) throw BadInput("not run: " + not_run_.front());
  }

  static std::string why_not(const Kernel& kernel) {
    return kernel.why_not ? kernel.why_not() : std::string();
  }

  // Of the first variant is everything but the grid; of the first dtype all that is timed.
  const Operator& op() const { return variants_.front().op; }
  Dtype dtype() const { return selected_.front().dtype; }

  std::string picked_kernel(const Shape& shape) const {
    return picked(stage_.kernels, stage_.pick, shape, dtype())->name;
  }

  // Kernels on a GPU, and those of a host stage anywhere.
  bool can_time() const { return stage_.on_host || !kEmulated; }
  bool timed() const { return can_time() && !options_.verify_only; }

  std::vector<Shape> shapes() const {
    if (!options_.shapes.empty()) return options_.shapes;
    if (kMicroscope && !stage_.on_host) return {kCountedShape};
    return {stage_.default_shape};
  }

  // The shapes to verify besides the grid. The default one is for timing: too large to emulate.
  std::vector<Shape> shapes_to_verify() const { return can_time() ? shapes() : options_.shapes; }

  const Previous& previous() const { return variants_.front().previous; }

  // What the previous stage picks goes first: the stage's first kernel is compared with it.
  std::vector<const Kernel*> kernels_to_time(const Shape& shape) const {
    std::vector<const Kernel*> kernels = selected_.front().kernels;
    if (const Kernel* kernel = picked(previous().kernels, previous().pick, shape, dtype()))
      kernels.insert(kernels.begin(), kernel);
    return kernels;
  }

  const std::vector<OtherOperator>& others() const { return variants_.front().others; }
  std::vector<const Kernel*> kernels_of(const OtherOperator& other) const {
    std::vector<const Kernel*> kernels;
    for (const Kernel& kernel : other.kernels)
      if (kernel.dtype == dtype()) kernels.push_back(&kernel);
    return kernels;
  }

  void plan_jobs() {
    const auto plan_job = [&](const Kernel* kernel, const Operator& op, const Shape& shape) {
      const std::string name = stage_.name + "/" + kernel->name + "/" + to_string(shape);
      if (plan_.selects(name)) jobs_.push_back({name, kernel, &op, shape});
    };
    for (const Shape& shape : shapes()) {
      for (const Kernel* kernel : kernels_to_time(shape)) plan_job(kernel, op(), shape);
      for (const OtherOperator& other : others())
        for (const Kernel* kernel : kernels_of(other)) plan_job(kernel, other.op, shape);
    }
    if (jobs_.empty())
      throw BadInput("--benchmark_filter=" + plan_.filter + ": matches no benchmark, as " +
                     stage_.name + "/" + selected_.front().kernels.front()->name + "/" +
                     to_string(shapes().front()));
  }

  void require_fit(const Environment& environment) const {
    const auto require = [](const Shape& shape, double needed, double free, const std::string& on) {
      if (needed <= free) return;
      char text[128];
      std::snprintf(text, sizeof text, ": needs %.3g GB on %s, which has %.3g GB free; ",
                    needed / 1e9, on.c_str(), free / 1e9);
      throw BadInput("--shape " + to_string(shape) + text + "a smaller one is accepted");
    };
    for (const Selected& selected : selected_) {
      const Verifier& verifier = selected.verifiers.front();
      for (const Shape& shape : shapes_to_verify()) {
        require(shape, verifier.host_bytes(shape), free_host_bytes(), "the host");
        if (!stage_.on_host && !kEmulated)
          require(shape, verifier.device_bytes(shape), free_device_bytes(), environment.device);
      }
    }
  }

  void verify_grid(const Selected& selected) const {
    const auto& [dtype, kernels, verifiers] = selected;
    size_t all_kernels = 0;
    for (const Selected& each : selected_) all_kernels += each.kernels.size();
    Plan plan = with_head_sizes_up_to(
        stage_.max_head_size, verification_plan(stage_.on_host, all_kernels, options_.seed));
    plan.seconds *= double(kernels.size()) / all_kernels;
    const std::vector<Plan> dealt = deal(plan, variants_.size());
    size_t shapes = 0;
    bool many_slices = false;
    // The worst is what comes closest to its own bound.
    double worst = -1, bound = 1;
    std::string where;
    for (size_t i = 0; i < variants_.size(); ++i) {
      for (const auto& [at, errors] : verifiers[i].run(kernels, dealt[i])) {
        ++shapes;
        many_slices |= has_many_slices(at.shape);
        for (size_t k = 0; k < kernels.size(); ++k) {
          if (errors[k].rel() / error_bound(*kernels[k]) <= worst / bound) continue;
          worst = errors[k].rel();
          bound = error_bound(*kernels[k]);
          const std::string& inputs = variants_[i].op.distribution;
          where = kernels[k]->name + " at " + to_string(at.shape) +
                  (inputs.empty() ? "" : ", inputs " + inputs);
        }
      }
    }
    std::printf(
        "verified: %zu of %zu shapes, %zu %s kernel%s: worst relative error %.2g (%s), at most %g "
        "is right\n",
        shapes, with_head_sizes_up_to(stage_.max_head_size, {whole_grid()}).cases.size(),
        kernels.size(), to_string(dtype).c_str(), kernels.size() == 1 ? "" : "s", worst,
        where.c_str(), bound);
    if (!many_slices)
      std::printf("not verified here, it would take too long: more than 65535 slices (b, h), %s\n",
                  to_string(dtype).c_str());
    std::fflush(stdout);
  }

  bool asked_for(const Check& check) const {
    const auto& dtypes = options_.dtypes;
    const bool can_run =
        std::none_of(stage_.kernels.begin(), stage_.kernels.end(), [&](const Kernel& kernel) {
          return kernel.name == check.kernel && kernel.dtype == check.dtype &&
                 !why_not(kernel).empty();
        });
    return can_run &&
           (options_.kernel.empty() || check.kernel.empty() || check.kernel == options_.kernel) &&
           (!check.dtype || std::find(dtypes.begin(), dtypes.end(), *check.dtype) != dtypes.end());
  }

  void run_checks() const {
    for (const Check& check : stage_.checks) {
      if (!asked_for(check)) continue;
      const auto [found, output] = [&] {
        try {
          return check.run();
        } catch (const std::exception& error) {
          throw WrongResult(check.name + " failed: " + error.what());
        }
      }();
      require_right(found, output, check.tolerance, check.name);
      std::printf("checked: %s: relative error %.2g, at most %g is right\n", check.name.c_str(),
                  found.rel(), check.tolerance);
    }
  }

  // The kernels of an operator with a job, each once.
  std::vector<const Kernel*> timed_kernels(const Operator& op) const {
    std::vector<const Kernel*> kernels;
    for (const BenchmarkJob& job : jobs_)
      if (job.op == &op && std::find(kernels.begin(), kernels.end(), job.kernel) == kernels.end())
        kernels.push_back(job.kernel);
    return kernels;
  }

  // The shapes asked for, in both layouts; of what is to be timed, the previous stage's kernel too.
  void verify_shapes(const Selected& selected) {
    const auto kernels = timed() ? timed_kernels(op()) : selected.kernels;
    Plan plan;
    for (const Shape& shape : shapes_to_verify())
      for (Layout layout : {Layout::BHLD, Layout::BLHD}) plan.cases.push_back({shape, layout});
    if (!kernels.empty()) verify_plan(selected.verifiers.front(), selected.dtype, kernels, plan);
    if (timed() && selected.dtype == dtype()) {
      for (const OtherOperator& other : others()) {
        const auto other_kernels = timed_kernels(other.op);
        if (other_kernels.empty()) continue;
        const Verifier verifier(other.op, dtype(), options_.seed, stage_.on_host);
        verify_plan(verifier, dtype(), other_kernels, plan);
      }
    }
    std::fflush(stdout);
  }

  void verify_plan(const Verifier& verifier, Dtype dtype, const std::vector<const Kernel*>& kernels,
                   const Plan& plan) {
    for (const auto& [at, errors] : verifier.run(kernels, plan)) {
      if (at.layout != Layout::BHLD) continue;  // timed is the first
      for (size_t k = 0; k < kernels.size(); ++k) {
        errors_.push_back({kernels[k], at.shape, errors[k]});
        std::printf("verified: %s %s at %s: relative error %.2g\n", kernels[k]->name.c_str(),
                    to_string(dtype).c_str(), to_string(at.shape).c_str(), errors[k].rel());
      }
    }
  }

  void time_and_report(const Environment& environment) const {
    const Rates rates = stage_.on_host ? measure_host_rates() : measure_device_rates();
    const auto timings = run_benchmarks(jobs_, plan_, dtype(), options_.seed, stage_.on_host);
    std::vector<Row> rows;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      const BenchmarkJob& job = jobs_[i];
      const auto error = std::find_if(errors_.begin(), errors_.end(), [&](const Error& e) {
        return e.kernel == job.kernel && e.shape == job.shape;
      });
      const bool own = is_own(*job.kernel);
      rows.push_back({
          .kernel = job.kernel,
          .stage = stage_of(job),
          .op = job.op,
          .shape = job.shape,
          .picked = own && job.kernel->name == picked_kernel(job.shape),
          .before = own ? rung_before(*job.kernel, stage_, previous(), job.shape) : nullptr,
          .error = error->comparison,
          .timing = timings[i],
      });
    }
    compare_rungs(rows, op());
    print_table(op(), dtype(), rows, rates);
    if (options_.results.empty()) return;
    append_records(options_.results, make_records(stage_, op(), dtype(), rows, rates, environment));
    std::printf("recorded in %s\n", options_.results.c_str());
  }

  bool is_own(const Kernel& kernel) const {
    return std::any_of(stage_.kernels.begin(), stage_.kernels.end(),
                       [&](const Kernel& own) { return &own == &kernel; });
  }

  // The stage that a kernel belongs to; one of another operator is named with it.
  std::string stage_of(const BenchmarkJob& job) const {
    if (is_own(*job.kernel)) return stage_.name;
    return job.op == &op() ? previous().stage : job.kernel->name;
  }

  struct Error {
    const Kernel* kernel;
    Shape shape;
    Comparison comparison;
  };

  const Stage& stage_;
  const Options& options_;
  const std::vector<Variant> variants_;  // on the grid all are verified; the rest is of the first
  std::vector<Selected> selected_;       // one for each dtype; never empty
  BenchmarkPlan plan_;
  std::vector<std::string> not_run_;  // kernels, and why
  std::vector<BenchmarkJob> jobs_;
  std::vector<Error> errors_;
};

}  // namespace

int run(const Stage& stage, int argc, char** argv) {
  try {
    const Options options = parse_options(stage, argc, argv);
    if (!options.help.empty()) {
      std::printf("%s", options.help.c_str());
    } else if (options.list) {
      Run(stage, options).list();
    } else {
      Run(stage, options).run();
    }
    return 0;
  } catch (const BadInput& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace attn::driver
