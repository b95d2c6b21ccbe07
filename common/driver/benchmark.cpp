#include "common/driver/benchmark.hpp"

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>
#include <regex.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>

#include "common/cuda_check.hpp"
#include "common/driver/options.hpp"
#include "common/driver/results.hpp"
#include "common/driver/stopwatch.hpp"

namespace attn::driver {
namespace {

// The rest of `flag` after `name=`, if it is that flag.
std::optional<std::string> value_of(const std::string& flag, const std::string& name) {
  if (!flag.starts_with(name + "=")) return std::nullopt;
  return flag.substr(name.size() + 1);
}

double parse_positive(const std::string& text, const std::string& flag,
                      const std::string& accepted) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0 && value < 1e9))
    throw BadInput(flag + ": expected " + accepted);
  return value;
}

// Values at which Google Benchmark would print its usage and exit 0, or exit by itself.
void check_value(const std::string& flag) {
  const std::pair<const char*, std::vector<std::string>> kChoices[] = {
      {"--benchmark_format", {"console", "json", "csv"}},
      {"--benchmark_out_format", {"console", "json", "csv"}},
      {"--benchmark_time_unit", {"ns", "us", "ms", "s"}},
      {"--benchmark_color", {"auto", "true", "false", "yes", "no", "on", "off", "1", "0"}},
  };
  for (const auto& [name, choices] : kChoices) {
    const auto value = value_of(flag, name);
    if (!value || std::find(choices.begin(), choices.end(), *value) != choices.end()) continue;
    std::string accepted;
    for (const auto& choice : choices) accepted += (accepted.empty() ? "" : ", ") + choice;
    throw BadInput(flag + ": expected one of " + accepted);
  }
  if (const auto file = value_of(flag, "--benchmark_out"))
    if (const std::string reason = why_not_writable(*file); !reason.empty())
      throw BadInput(flag + ": " + reason + "; expected a file that can be written");
}

// Keeps what each repetition measured; prints nothing (report.hpp does).
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      samples_[run.run_name.function_name].push_back(1e3 * run.real_accumulated_time /
                                                     run.iterations);
    }
  }

  Timing timing(const std::string& name) const {
    auto samples = samples_.at(name);
    std::sort(samples.begin(), samples.end());
    const size_t n = samples.size();
    return {(samples[(n - 1) / 2] + samples[n / 2]) / 2, samples.front(), samples.back(), int(n)};
  }

 private:
  std::map<std::string, std::vector<double>> samples_;
};

// Memory that cudaFreeAsync has returned stays mapped from now on, for the next cudaMallocAsync. By
// default it goes back to the system whenever the host waits for the device, as it does after every
// run that is timed, and the next one would pay for mapping it anew.
void keep_scratch_mapped() {
#ifndef ATTN_SIMT
  int device = 0;
  cuda_check(cudaGetDevice(&device));
  cudaMemPool_t pool = nullptr;
  cuda_check(cudaDeviceGetDefaultMemPool(&pool, device));
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
#endif
}

// How often to run a kernel that takes `ms`.
struct Repeats {
  int64_t iterations;  // per repetition, which is one sample
  int repetitions;
};
Repeats repeats_of(double ms, const BenchmarkPlan& plan) {
  const double affordable = std::min(1e3 * plan.seconds / ms, 1e6);
  Repeats repeats;
  repeats.repetitions =
      plan.repetitions ? plan.repetitions : int(std::clamp(affordable, 5.0, 30.0));
  repeats.iterations = plan.iterations
                           ? plan.iterations
                           : int64_t(std::clamp(affordable / repeats.repetitions, 1.0, 20.0));
  return repeats;
}

}  // namespace

bool BenchmarkPlan::selects(const std::string& name) const {
  if (filter.empty() || filter == "all") return true;
  const bool exclude = filter.front() == '-';
  regex_t pattern;
  if (regcomp(&pattern, filter.c_str() + exclude, REG_EXTENDED | REG_NOSUB) != 0)
    throw BadInput("--benchmark_filter=" + filter + ": expected a regular expression");
  const bool matches = regexec(&pattern, name.c_str(), 0, nullptr, 0) == 0;
  regfree(&pattern);
  return matches != exclude;
}

BenchmarkPlan parse_benchmark_flags(const std::vector<std::string>& flags, bool on_host) {
  BenchmarkPlan plan;
  if (on_host) plan.seconds = 0.5;
  std::string program = "stage";
  std::vector<std::string> passed_on;
  for (const std::string& flag : flags) {
    // These three decide what is registered, and how (see run_benchmarks).
    if (const auto filter = value_of(flag, "--benchmark_filter")) {
      plan.filter = *filter;
      plan.selects("");  // throws if it is no regular expression
    } else if (const auto time = value_of(flag, "--benchmark_min_time")) {
      const char* const accepted = "seconds, as 0.5 or 0.5s, or a number of runs, as 10x";
      const std::string number = time->substr(0, time->find_last_not_of("sx") + 1);
      const std::string unit = time->substr(number.size());
      const double value = parse_positive(number, flag, accepted);
      if (unit == "x" && value == std::floor(value)) {
        plan.iterations = value;
      } else if (unit.empty() || unit == "s") {
        plan.seconds = value;
      } else {
        throw BadInput(flag + ": expected " + accepted);
      }
    } else if (const auto count = value_of(flag, "--benchmark_repetitions")) {
      const double value = parse_positive(*count, flag, "a whole number from 1 up");
      if (value != std::floor(value)) throw BadInput(flag + ": expected a whole number from 1 up");
      plan.repetitions = value;
    } else {
      check_value(flag);
      passed_on.push_back(flag);
    }
  }

  std::vector<char*> arguments = {program.data()};
  for (auto& flag : passed_on) arguments.push_back(flag.data());
  int count = arguments.size();
  arguments.push_back(nullptr);
  // It explains a bad value on lines of its own; one line is enough.
  std::ostringstream silenced;
  std::streambuf* const console = std::cerr.rdbuf(silenced.rdbuf());
  benchmark::Initialize(&count, arguments.data());
  std::cerr.rdbuf(console);
  if (count > 1)
    throw BadInput("unknown flag or bad value " + std::string(arguments[1]) +
                   "; accepted are Google Benchmark's flags, as --benchmark_filter=REGEX");
  return plan;
}

std::vector<Timing> run_benchmarks(const std::vector<BenchmarkJob>& jobs, const BenchmarkPlan& plan,
                                   Dtype dtype, uint64_t seed, bool on_host) {
  if (!on_host) keep_scratch_mapped();
  Stopwatch stopwatch(on_host);
  // The operands of what runs now; all kernels of an operator share them at a shape.
  std::unique_ptr<Tensors> tensors;
  const Operator* op = nullptr;
  const auto operands = [&](const BenchmarkJob& job) -> const Tensors& {
    if (!tensors || tensors->shape() != job.shape || op != job.op) {
      tensors.reset();  // first: two at once may not fit
      op = job.op;
      tensors = std::make_unique<Tensors>(*op, job.shape, dtype, Layout::BHLD, on_host);
      tensors->fill_inputs(seed);
    }
    return *tensors;
  };

  for (const auto& job : jobs) {
    const auto run = [&] { job.kernel->run(operands(job)); };
    operands(job);
    stopwatch.ms(run);  // the first launch pays for loading the kernel
    const auto [iterations, repetitions] = repeats_of(stopwatch.ms(run), plan);
    benchmark::RegisterBenchmark(job.name.c_str(),
                                 [&stopwatch, &operands, &job](benchmark::State& state) {
                                   const Tensors& inputs = operands(job);
                                   const auto run = [&] { job.kernel->run(inputs); };
                                   stopwatch.ms(run);  // a change of kernel leaves cold code
                                   for (auto _ : state)
                                     state.SetIterationTime(stopwatch.ms(run) / 1e3);
                                 })
        ->UseManualTime()
        ->Iterations(iterations)  // or the library would go by the wall clock, flushes and all
        ->Repetitions(repetitions)
        ->Unit(benchmark::kMillisecond);
  }
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector);
  benchmark::ClearRegisteredBenchmarks();

  std::vector<Timing> timings;
  for (const auto& job : jobs) timings.push_back(collector.timing(job.name));
  return timings;
}

}  // namespace attn::driver
