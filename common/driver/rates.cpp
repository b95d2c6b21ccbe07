#include "common/driver/rates.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/driver/tensors.hpp"
#include "common/parallel.hpp"
#include "common/sanitized.hpp"

namespace attn::driver {

Rates measure_host_rates() {
  // Beyond any cache (under a sanitizer, where rates mean nothing, only little of it); in pieces of
  // 1 MiB, spread over the cores.
  constexpr int64_t kBytes = (kSanitized ? 8 : 256) << 20, kPiece = 1 << 20;
  const HostBuffer from(kBytes), to(kBytes);
  std::memset(from.data(), 1, kBytes);
  double best = 0;
  for (int sample = 0; sample < 4; ++sample) {  // the first also touches `to`
    const auto start = std::chrono::steady_clock::now();
    parallel_for(kBytes / kPiece, [&](int64_t i) {
      std::memcpy(to.data() + i * kPiece, from.data() + i * kPiece, kPiece);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2 * kBytes / seconds.count());
  }
  return {best, 0, 0};
}

}  // namespace attn::driver
