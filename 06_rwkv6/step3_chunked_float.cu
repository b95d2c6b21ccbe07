#include "06_rwkv6/segment_states.cuh"
#include "06_rwkv6/step3_chunked.cuh"

namespace attn::rwkv6 {

template void chunked_segments(const Rwkv6Operands<float>&, const Segments&, cudaStream_t);
template void segment_states(const Rwkv6Operands<float>&, const Segments&, cudaStream_t);

}  // namespace attn::rwkv6
