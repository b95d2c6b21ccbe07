// Verification: kernels against the float64 reference.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/driver/cases.hpp"
#include "common/driver/stage.hpp"

namespace attn::driver {

// A kernel's result is wrong. The message says which kernel, where, and the first wrong element.
struct WrongResult : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws WrongResult, which begins with `place`, unless the comparison of `output` passes.
void require_right(const Comparison& comparison, const OutputSpec& output, double tolerance,
                   const std::string& place);

// Runs kernels on seeded inputs and compares everything they write.
class Verifier {
 public:
  Verifier(const Operator& op, Dtype dtype, uint64_t seed, bool on_host)
      : op_(op), dtype_(dtype), seed_(seed), on_host_(on_host) {}

  struct Verified {
    Case at;
    std::vector<Comparison> errors;  // one per kernel: its worst output
  };

  // Throws WrongResult at the first result that is wrong.
  std::vector<Verified> run(const std::vector<const Kernel*>& kernels, const Plan& plan) const;

  // The memory that run() needs for a shape.
  double device_bytes(const Shape& shape) const;
  double host_bytes(const Shape& shape) const;

 private:
  struct Truth;
  std::vector<Truth> plan_truths(const Shape& shape) const;
  void compute(Truth& truth, const Shape& shape, uint64_t seed) const;
  std::vector<Comparison> run_case(const std::vector<const Kernel*>& kernels, const Case& at,
                                   std::vector<Truth>& truths) const;
  void run_kernel(const Kernel& kernel, Tensors& tensors, const std::string& place) const;
  Comparison check_output(size_t output, const Tensors& tensors, const std::vector<Truth>& truths,
                          double tolerance, const std::string& place) const;
  bool affordable(const std::vector<const Kernel*>& kernels, const Case& at) const;

  const Operator& op_;
  const Dtype dtype_;
  const uint64_t seed_;
  const bool on_host_;
};

}  // namespace attn::driver
