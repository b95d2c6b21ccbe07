// The walk for x86-64 with AVX-512: 8 x 2 accumulators of the 32 registers of 16 floats.
#include "01_cpu_reference/step3_walk_kernel.hpp"

namespace attn::cpu {

void walk_avx512(const Walk& walk) { walk_chunks<16, 8>(walk); }

}  // namespace attn::cpu
