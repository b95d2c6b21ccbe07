#include "05_chunked_gla/segment_states.cuh"

namespace attn::chunked_gla {

template void segment_states(const GlaOperands<float>&, const Segments&, cudaStream_t);
template void segment_states(const GlaOperands<__nv_bfloat16>&, const Segments&, cudaStream_t);

}  // namespace attn::chunked_gla
