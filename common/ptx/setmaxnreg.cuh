// setmaxnreg: a warpgroup gives registers back to the multiprocessor, or takes what others gave.
//
//   if (warpgroup == kProducer) {
//     give_registers<24>();       // a thread that only issues copies needs few
//     ...
//   } else {
//     take_registers<240>();      // waits until they are free
//     ...
//   }
//
// kCount is what a thread has from then on: 24 to 256, a multiple of 8. All warps of the warpgroup
// execute it together. The compiler allocates each branch by its own limit, provided that the
// kernel's count at launch is fixed (__launch_bounds__ with a minimum of blocks) and the roles are
// the branches of one `if`; otherwise it ignores the instruction and says so (warning C7508). The
// counts must add up: threads times registers of all roles within 65536.
//
// PTX ISA, "Miscellaneous Instructions: setmaxnreg". Needs sm_90a; there is no emulation.
#pragma once

#include <cuda_runtime.h>

namespace attn {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kCount>
__device__ __forceinline__ void give_registers() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ __forceinline__ void take_registers() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

#endif

}  // namespace attn
