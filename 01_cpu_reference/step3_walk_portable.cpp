// The walk for any CPU: vectors of 4 floats, which every 64-bit CPU has (SSE2, NEON), in 4 x 2
// accumulators of its 16 registers or more.
#include "01_cpu_reference/step3_walk_kernel.hpp"

namespace attn::cpu {

void walk_portable(const Walk& walk) { walk_chunks<4, 4>(walk); }

}  // namespace attn::cpu
