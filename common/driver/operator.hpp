// An operator: a function of tensors with a float64 truth, and what it must do at the least.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/matrix.hpp"
#include "common/shape.hpp"

namespace attn::driver {

// The dimensions of an operand, by the letters of Shape.
enum class Axes {
  BHLE,  // [B, H, L, E]: q, k, gates
  BHLM,  // [B, H, L, M]: v, o
  BHEM,  // [B, H, E, M]: a state (viewed with L = E, D = M)
  HE,    // [H, E]: RWKV-6's bonus u (viewed with B = L = 1, D = E)
};

// The sizes of an operand's view.
struct Extents {
  int64_t B, H, L, D;
  int64_t elements() const { return B * H * L * D; }
};
Extents extents(Axes axes, const Shape& shape);

struct InputSpec {
  std::string name;  // "q"
  Axes axes;
  // Makes the element from a draw of N(0, 1); empty: the draw itself.
  std::function<float(float)> from_normal = {};
};

struct OutputSpec {
  std::string name;  // "o"
  Axes axes;
};

// Work: what an operator must do at the least, or what a kernel asks for.
struct Cost {
  double bytes;  // moved to and from memory
  double flops;  // fp32; multiply and add count as two
  // On tensor cores, as bf16 products: a tf32 product takes twice as long and counts twice.
  double matrix_flops = 0;
};

// Rows first, first + step, ... of an output.
struct RowSample {
  int64_t first = 0, step = 1;
};

struct Operator {
  std::string name;  // "causal product"
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
  // The truth for one (b, h): inputs and outputs as matrices in the order above.
  std::function<std::vector<Matrix>(const Shape&, const std::vector<Matrix>&)> reference;
  // The same truth at some rows of each output, where a row needs no other: of a long sequence, a
  // sample is compared. Empty: all rows are.
  std::function<std::vector<Matrix>(const Shape&, const std::vector<Matrix>&, RowSample)>
      reference_rows = {};
  // Flops of the operator in its cheapest exact form. (The least bytes follow from the operands:
  // every input read once, every output written once.)
  std::function<double(const Shape&)> flops;
  // What the inputs are drawn from, as --inputs takes it: "mild". Empty where there is no choice.
  std::string distribution = {};
  // What the operator multiplies its output with; empty: 1.
  std::function<double(const Shape&)> scale = {};
  // Of softmax attention: whether a query sees only the keys up to its own position.
  bool causal = false;
};

// "gated linear attention, inputs mild", or the operator's name alone where there is no choice.
std::string to_string(const Operator& op);

// Every operand once.
double operand_bytes(const Operator& op, const Shape& shape, Dtype dtype);
Cost least_cost(const Operator& op, const Shape& shape, Dtype dtype);

// Input `spec` of slice (b, h), as Tensors::fill_inputs makes it: rounded to dtype.
Matrix input_slice(const InputSpec& spec, const Shape& shape, Dtype dtype, uint64_t seed, int64_t b,
                   int64_t h);

}  // namespace attn::driver
