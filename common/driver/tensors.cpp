#include "common/driver/tensors.hpp"

#include <cstring>
#include <new>

#include "common/inputs.hpp"

namespace attn::driver {

HostBuffer::HostBuffer(size_t bytes) {
  // Aligned like device memory, so that kernels may use vector loads on either.
  constexpr size_t kAlignment = 256;
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes) != 0) throw std::bad_alloc();
  data_.reset(static_cast<std::byte*>(data));
}

Tensors::Tensors(const Operator& op, const Shape& shape, Dtype dtype, Layout layout, bool on_host)
    : shape_(shape),
      dtype_(dtype),
      on_host_(on_host),
      scale_(op.scale ? float(op.scale(shape)) : 1),
      causal_(op.causal) {
  const auto add = [&](const std::string& name, Axes axes, const std::optional<InputSpec>& input) {
    // Only what runs along the sequence has two layouts.
    const bool sequence = axes == Axes::BHLE || axes == Axes::BHLM;
    Operand operand{name, input, extents(axes, shape), sequence ? layout : Layout::BHLD, {}, {}};
    if (on_host) {
      operand.host = HostBuffer(bytes(operand));
    } else {
      operand.device = DeviceBuffer<std::byte>(bytes(operand));
    }
    operands_.push_back(std::move(operand));
  };
  for (const auto& input : op.inputs) add(input.name, input.axes, input);
  for (const auto& output : op.outputs) add(output.name, output.axes, {});
}

const Tensors::Operand& Tensors::find(const std::string& name) const {
  for (const auto& operand : operands_)
    if (operand.name == name) return operand;
  throw std::logic_error("the operator has no operand called " + name);
}

void Tensors::fill_inputs(uint64_t seed) {
  with_element_type(dtype_, [&]<class T>() {
    for (auto& operand : operands_) {
      if (!operand.input) continue;
      HostBuffer staging;
      if (!on_host_) staging = HostBuffer(bytes(operand));
      const auto target = view<T>(operand, on_host_ ? operand.host.data() : staging.data());
      fill_normal(target, seed, operand.name, operand.input->from_normal);
      if (!on_host_) operand.device.copy_from(staging.data());
    }
  });
}

void Tensors::poison_outputs() {
  for (const auto& operand : operands_) {
    if (operand.input) continue;
    if (on_host_) {
      std::memset(operand.host.data(), 0xff, bytes(operand));
    } else {
      cuda_check(cudaMemset(operand.device.data(), 0xff, bytes(operand)));
    }
  }
}

}  // namespace attn::driver
