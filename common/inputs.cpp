#include "common/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/element.hpp"
#include "common/parallel.hpp"

namespace attn {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: spreads small counters

// The finaliser of SplitMix64: a bijection in which every input bit affects every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t absorb(uint64_t state, uint64_t x) { return mix(state + kGolden + mix(x + kGolden)); }

}  // namespace

void normal_row(uint64_t seed, std::string_view tensor, int64_t b, int64_t h, int64_t l, float* out,
                int64_t D) {
  uint64_t key = mix(seed + kGolden);
  for (unsigned char letter : tensor) key = absorb(key, letter);
  for (int64_t index : {b, h, l}) key = absorb(key, index);

  for (int64_t d = 0; d < D; d += 2) {
    // Box-Muller: two uniform draws in (0, 1) make two normal ones.
    const uint64_t bits = mix(key + kGolden * (d + 1));
    const float u = (static_cast<float>(bits >> 32) + 0.5f) * 0x1p-32f;
    const float angle = 2 * std::numbers::pi_v<float> * (static_cast<uint32_t>(bits) * 0x1p-32f);
    const float radius = std::sqrt(-2 * std::log(u));
    out[d] = radius * std::cos(angle);
    if (d + 1 < D) out[d + 1] = radius * std::sin(angle);
  }
}

template <class T>
void fill_normal(TensorView<T> tensor, uint64_t seed, std::string_view name,
                 const std::function<float(float)>& from_normal) {
  const int64_t rows = tensor.B * tensor.H * tensor.L;
  // A few thousand elements at a time: starting a thread for less costs more than it saves.
  const int64_t rows_per_chunk = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, tensor.D));
  parallel_for((rows + rows_per_chunk - 1) / rows_per_chunk, [&](int64_t chunk) {
    std::vector<float> draws(tensor.D);
    const int64_t end = std::min(rows, (chunk + 1) * rows_per_chunk);
    for (int64_t row = chunk * rows_per_chunk; row < end; ++row) {
      const int64_t l = row % tensor.L, bh = row / tensor.L;
      const int64_t b = bh / tensor.H, h = bh % tensor.H;
      normal_row(seed, name, b, h, l, draws.data(), tensor.D);
      T* const out = tensor.row(b, h, l);
      for (int64_t d = 0; d < tensor.D; ++d)
        out[d] = from_float<T>(from_normal ? from_normal(draws[d]) : draws[d]);
    }
  });
}

template void fill_normal(TensorView<float>, uint64_t, std::string_view,
                          const std::function<float(float)>&);
template void fill_normal(TensorView<__nv_bfloat16>, uint64_t, std::string_view,
                          const std::function<float(float)>&);

}  // namespace attn
