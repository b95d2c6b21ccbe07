// a / b, rounded up, of sizes: how many tiles of b cover a.
#pragma once

#include <cstdint>

namespace attn {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace attn
