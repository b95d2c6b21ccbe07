// The sizes of a problem, as the driver's --shape B,H,L,E,M names them, and its element type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attn {

struct Shape {
  int64_t B, H, L;  // batch, heads, sequence length
  int64_t E, M;     // head size of q and k; head size of v and o

  bool operator==(const Shape&) const = default;
};

enum class Dtype { f32, bf16 };

std::string to_string(const Shape& shape);  // "16,8,4096,64,64"
std::string to_string(Dtype dtype);         // "f32"

// The inverse of to_string. Throws std::invalid_argument, saying what would be accepted.
Shape parse_shape(std::string_view text);
Dtype parse_dtype(std::string_view text);

int64_t bytes_of(Dtype dtype);

}  // namespace attn
