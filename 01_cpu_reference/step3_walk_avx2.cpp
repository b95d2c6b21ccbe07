// The walk for x86-64 with AVX2 and FMA: 4 x 2 accumulators of the 16 registers of 8 floats.
#include "01_cpu_reference/step3_walk_kernel.hpp"

namespace attn::cpu {

void walk_avx2(const Walk& walk) { walk_chunks<8, 4>(walk); }

}  // namespace attn::cpu
