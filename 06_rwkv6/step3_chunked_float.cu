#include "06_rwkv6/step3_chunked.cuh"

namespace attn::rwkv6 {

template void chunked_segments<float, true>(const Rwkv6Operands<float>&, const Segments&,
                                            cudaStream_t);
template void chunked_segments<float, false>(const Rwkv6Operands<float>&, const Segments&,
                                             cudaStream_t);

}  // namespace attn::rwkv6
