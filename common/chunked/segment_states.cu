#include "common/chunked/segment_states.cuh"

namespace attn::chunked {

template void segment_states(const Walk<float>&, const Segments&, cudaStream_t);
template void segment_states(const Walk<__nv_bfloat16>&, const Segments&, cudaStream_t);

}  // namespace attn::chunked
