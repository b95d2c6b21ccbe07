// The gate lab: the error of gated linear attention against the strength of its gates, by the naive
// factored form, which overflows, and by this stage's kernels, which must not.
//
//   05_gate_lab [--results FILE]    appends to FILE a line for each kernel and strength
//
// Exit status: 0 all right, 1 a kernel is beyond its bound or failed, 2 bad input.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "01_cpu_reference/gla.hpp"
#include "05_chunked_gla/gate_lab/naive_factored.cuh"
#include "05_chunked_gla/gate_lab/plain_bf16.hpp"
#include "05_chunked_gla/operands.cuh"
#include "05_chunked_gla/step0_recurrent.cuh"
#include "05_chunked_gla/step1_four_kernels.cuh"
#include "05_chunked_gla/step4_engine.cuh"
#include "common/compare.hpp"
#include "common/driver/check_operand.hpp"
#include "common/driver/environment.hpp"
#include "common/driver/options.hpp"
#include "common/driver/results.hpp"
#include "common/element.hpp"

namespace attn::chunked_gla {
namespace {

constexpr Shape kShape = {1, 2, driver::kEmulated ? 256 : 512, 64, 64};
// Tighter than tolerance(): what the best library's kernels have at most (2.3e-3 to 2.6e-3).
constexpr double kBf16Bound = 2.6e-3;

// From gates that forget almost nothing to gates that forget everything.
std::vector<double> strengths() {
  std::vector<double> all;
  for (int i = 0; i <= 15; ++i) all.push_back(std::pow(10., -3 + i / 3.));  // 1e-3 to 1e2
  return all;
}

struct Point {
  std::string kernel;
  Dtype dtype;
  double strength;          // the mean of -g, in nats per step
  double rel_error;         // not finite if some output is not
  int64_t not_finite;       // outputs that are NaN or infinite
  double bound = INFINITY;  // on rel_error; NaN is beyond any

  bool right() const { return rel_error <= bound; }
};

// Inputs with gates of one strength, and their truth.
template <class T>
class Experiment {
 public:
  explicit Experiment(double strength)
      : strength_(strength),
        // The mean of exp N(0, 1) is e^1/2.
        g_("g", kShape.B, kShape.H, kShape.L, kShape.E, Layout::BHLD,
           [=](float x) { return -strength * std::exp(x - 0.5); }) {
    for (int64_t h = 0; h < kShape.H; ++h) {
      truth_.push_back(reference::gla(q_.slice(0, h), k_.slice(0, h), v_.slice(0, h),
                                      g_.slice(0, h), scale_, Matrix(kShape.E, kShape.M))
                           .o);
    }
  }

  Point run(const std::string& kernel, void (*gla)(const GlaOperands<T>&, cudaStream_t),
            double bound) {
    o_.poison();
    gla({q_.device(), k_.device(), v_.device(), g_.device(), o_.device(), scale_}, 0);
    const Comparison comparison =
        o_.compare_with(bound, [&](int64_t, int64_t h) { return truth_[h]; });
    int64_t not_finite = 0;
    for (int64_t h = 0; h < kShape.H; ++h) {
      for (double x : o_.slice(0, h).data) not_finite += !std::isfinite(x);
    }
    return {kernel, dtype_of<T>, strength_, comparison.rel(), not_finite, bound};
  }

  // The plain bf16 formula, on a CPU.
  Point yardstick() const {
    Comparison comparison;
    for (int64_t h = 0; h < kShape.H; ++h) {
      const Matrix o =
          plain_bf16_gla(q_.slice(0, h), k_.slice(0, h), v_.slice(0, h), g_.slice(0, h), scale_);
      const std::vector<float> out(o.data.begin(), o.data.end());
      comparison.merge(compare(dense_view(out.data(), 1, 1, o.rows, o.cols, Layout::BHLD), 0, 0,
                               truth_[h], kBf16Bound));
    }
    return {"plain_formula", Dtype::bf16, strength_, comparison.rel(), comparison.unwritten};
  }

 private:
  using Operand = driver::CheckOperand<T>;

  static Operand normal(const char* name, int64_t D) {
    return {name, kShape.B, kShape.H, kShape.L, D, Layout::BHLD};
  }

  const double strength_;
  const float scale_ = 1 / std::sqrt(float(kShape.E));
  Operand q_ = normal("q", kShape.E), k_ = normal("k", kShape.E), v_ = normal("v", kShape.M);
  Operand g_, o_ = normal("o", kShape.M);
  std::vector<Matrix> truth_;  // of each head
};

std::vector<Point> run_all(double strength) {
  const double f32_bound = tolerance(Dtype::f32);
  Experiment<float> f32(strength);
  Experiment<__nv_bfloat16> bf16(strength);
  const Point yardstick = bf16.yardstick();
  return {
      f32.run("naive_factored", naive_factored_gla, INFINITY),
      f32.run("recurrent", recurrent_gla, f32_bound),
      f32.run("four_kernels", four_kernels_gla, f32_bound),
      f32.run("engine", engine_gla, kTf32Tolerance),
      bf16.run("engine", engine_gla, std::min(kBf16Bound, 2 * yardstick.rel_error)),
      yardstick,
  };
}

void print(const std::vector<Point>& points) {
  std::printf("%8.3g", points.front().strength);
  for (const Point& point : points) {
    if (point.not_finite > 0) {
      std::printf("  %18s", "overflow");
    } else {
      std::printf("  %18.3g", point.rel_error);
    }
  }
  std::printf("\n");
}

driver::Record make_record(const Point& point, const driver::Environment& environment) {
  driver::Record record = {
      {"schema", 1},
      {"lab", "gates"},
      {"kernel", point.kernel},
      {"dtype", to_string(point.dtype)},
      {"strength", point.strength},
      {"rel_error", nullptr},
      {"not_finite", point.not_finite},
      {"device", driver::kEmulated ? "CPU, emulated" : environment.device},
      {"toolkit", environment.toolkit},
      {"commit", environment.commit},
      {"date", environment.date},
  };
  if (point.not_finite == 0) record["rel_error"] = point.rel_error;
  return record;
}

// Runs the lab. Returns whether every kernel is within its bound.
bool run(const std::string& results) {
  const driver::Environment environment = driver::find_environment(/*on_host=*/false);
  std::printf("runs on: %s\n", driver::describe(environment, /*on_host=*/false).c_str());
  std::printf("relative error at B,H,L,E,M = %s against the gates' strength, nats per step\n\n",
              to_string(kShape).c_str());

  std::vector<Point> points;
  for (double strength : strengths()) {
    const std::vector<Point> row = run_all(strength);
    if (points.empty()) {
      std::printf("%8s", "strength");
      for (const Point& point : row)
        std::printf("  %18s", (point.kernel + ", " + to_string(point.dtype)).c_str());
      std::printf("\n");
    }
    print(row);
    points.insert(points.end(), row.begin(), row.end());
  }
  if (!results.empty()) {
    std::vector<driver::Record> records;
    for (const Point& point : points) records.push_back(make_record(point, environment));
    driver::append_records(results, records);
  }

  bool right = true;
  for (const Point& point : points) {
    if (point.right()) continue;
    right = false;
    std::printf("WRONG: %s, %s, at strength %.3g: error %.3g, bound %.3g\n", point.kernel.c_str(),
                to_string(point.dtype).c_str(), point.strength, point.rel_error, point.bound);
  }
  return right;
}

// The file of --results, or "".
std::string parse_results(int argc, char** argv) {
  if (argc == 1) return "";
  const std::string flag = argv[1];
  if (flag != "--results")
    throw driver::BadInput("unknown flag " + flag + "; accepted is --results FILE");
  if (argc != 3) throw driver::BadInput("--results: expected --results FILE, and nothing more");
  const std::string file = argv[2];
  if (const std::string reason = driver::why_not_writable(file); !reason.empty())
    throw driver::BadInput("--results " + file + ": " + reason);
  return file;
}

}  // namespace
}  // namespace attn::chunked_gla

int main(int argc, char** argv) {
  try {
    return attn::chunked_gla::run(attn::chunked_gla::parse_results(argc, argv)) ? 0 : 1;
  } catch (const attn::driver::BadInput& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
