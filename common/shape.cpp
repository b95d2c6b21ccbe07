#include "common/shape.hpp"

#include <array>
#include <charconv>
#include <stdexcept>

#include "common/check_operands.hpp"

namespace attn {

std::string to_string(const Shape& s) {
  std::string text;
  for (int64_t size : {s.B, s.H, s.L, s.E, s.M}) {
    if (!text.empty()) text += ',';
    text += std::to_string(size);
  }
  return text;
}

std::string to_string(Dtype dtype) { return dtype == Dtype::f32 ? "f32" : "bf16"; }

Shape parse_shape(std::string_view text) {
  const std::invalid_argument error(
      "expected B,H,L,E,M: five whole numbers from 1 up, E and M at most " +
      std::to_string(kMaxHeadSize) + ", as in 16,8,4096,64,64");
  std::array<int64_t, 5> sizes{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0 && (at == end || *at++ != ',')) throw error;
    const auto [next, status] = std::from_chars(at, end, sizes[i]);
    if (status != std::errc() || sizes[i] < 1) throw error;
    at = next;
  }
  if (at != end || sizes[3] > kMaxHeadSize || sizes[4] > kMaxHeadSize) throw error;

  if (sizes[2] > kMaxLength) throw std::invalid_argument("expected B,H,L,E,M with L at most 2^30");
  // Everything computed from a shape (elements, bytes, flops) is far below 2^63 from here on.
  constexpr int64_t kMaxRows = int64_t{1} << 40;
  int64_t rows = 1;
  for (int i = 0; i < 3; ++i) {
    if (__builtin_mul_overflow(rows, sizes[i], &rows) || rows > kMaxRows)
      throw std::invalid_argument("expected B,H,L,E,M with B*H*L at most 2^40");
  }
  return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
}

Dtype parse_dtype(std::string_view text) {
  for (Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    if (text == to_string(dtype)) return dtype;
  }
  throw std::invalid_argument("expected f32 or bf16");
}

int64_t bytes_of(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }

}  // namespace attn
