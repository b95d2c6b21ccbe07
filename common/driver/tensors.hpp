// The operands of one run, on the device (or, for host stages, on the host).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "common/device_buffer.hpp"
#include "common/driver/operator.hpp"
#include "common/element.hpp"
#include "common/tensor_view.cuh"

namespace attn::driver {

// Host memory that nobody has touched yet, of exactly the size asked for.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(size_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

class Tensors {
 public:
  Tensors(const Operator& op, const Shape& shape, Dtype dtype, Layout layout, bool on_host);

  const Shape& shape() const { return shape_; }
  // What the operator multiplies its output with at this shape.
  float scale() const { return scale_; }
  bool causal() const { return causal_; }  // Operator::causal

  // The operand called `name`. T is float, or __nv_bfloat16 for --dtype bf16, and const for an
  // input; anything else, or an unknown name, throws std::logic_error.
  template <class T>
  TensorView<T> view(const std::string& name) const;

  // Draws the inputs from `seed`.
  void fill_inputs(uint64_t seed);
  // Fills the outputs with NaN (every byte 0xff), so that an element never written shows.
  void poison_outputs();

  // The operand in host memory, once the kernels before have finished: copied to `staging`, or
  // where it is if it is there already.
  template <class T>
  TensorView<const T> on_host(const std::string& name, HostBuffer& staging) const;

 private:
  struct Operand {
    std::string name;
    std::optional<InputSpec> input;  // none for an output
    Extents size;
    Layout layout;
    DeviceBuffer<std::byte> device;  // one of
    HostBuffer host;                 // the two
    std::byte* data() const { return host.data() ? host.data() : device.data(); }
  };

  size_t bytes(const Operand& operand) const { return operand.size.elements() * bytes_of(dtype_); }
  const Operand& find(const std::string& name) const;
  template <class T>
  TensorView<T> view(const Operand& operand, std::byte* data) const;

  Shape shape_;
  Dtype dtype_;
  bool on_host_;
  float scale_;
  bool causal_;
  std::vector<Operand> operands_;
};

template <class T>
TensorView<T> Tensors::view(const Operand& operand, std::byte* data) const {
  if (dtype_of<std::remove_const_t<T>> != dtype_)
    throw std::logic_error("operand " + operand.name + " is " + to_string(dtype_) +
                           ", but was asked for as another type");
  const auto& [B, H, L, D] = operand.size;
  return dense_view(reinterpret_cast<T*>(data), B, H, L, D, operand.layout);
}

template <class T>
TensorView<T> Tensors::view(const std::string& name) const {
  const Operand& operand = find(name);
  if (operand.input && !std::is_const_v<T>)
    throw std::logic_error("operand " + name + " is an input: view it as const");
  return view<T>(operand, operand.data());
}

template <class T>
TensorView<const T> Tensors::on_host(const std::string& name, HostBuffer& staging) const {
  const Operand& operand = find(name);
  if (on_host_) return view<const T>(operand, operand.data());
  staging = HostBuffer(bytes(operand));
  operand.device.copy_to(staging.data());
  return view<const T>(operand, staging.data());
}

}  // namespace attn::driver
