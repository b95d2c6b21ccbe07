#include "06_rwkv6/step3_chunked.cuh"

namespace attn::rwkv6 {

template void chunked_segments<__nv_bfloat16, true>(const Rwkv6Operands<__nv_bfloat16>&,
                                                    const Segments&, cudaStream_t);
template void chunked_segments<__nv_bfloat16, false>(const Rwkv6Operands<__nv_bfloat16>&,
                                                     const Segments&, cudaStream_t);

}  // namespace attn::rwkv6
