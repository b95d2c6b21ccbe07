#include "05_chunked_gla/step2_fused.cuh"

namespace attn::chunked_gla {

template void fused_segments(const GlaOperands<__nv_bfloat16>&, const Segments&, cudaStream_t);

}  // namespace attn::chunked_gla
