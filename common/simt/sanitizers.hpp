// What the sanitizers must be told: to AddressSanitizer, on which stack we are; to ThreadSanitizer,
// which CUDA thread is running and what orders its memory accesses. In builds without them these
// functions do nothing.
//
// The emulator's own sources are compiled without -fsanitize=thread, so that its bookkeeping
// neither orders nor races anything; hence SIMT_TSAN, which CMake defines, and not
// __SANITIZE_THREAD__.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif

#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef SIMT_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace simt {

#ifdef SIMT_ASAN
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
namespace asan_off {
inline void __asan_poison_memory_region(const void*, std::size_t) {}
inline void __asan_unpoison_memory_region(const void*, std::size_t) {}
inline void __sanitizer_start_switch_fiber(void**, const void*, std::size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*) {}
}  // namespace asan_off
using namespace asan_off;
#endif

// One TSan fiber per CUDA thread. Only acquire() and release() order memory: a switch does not.
namespace tsan {
#ifdef SIMT_TSAN
inline void* current() { return __tsan_get_current_fiber(); }
inline void* create() { return __tsan_create_fiber(0); }
inline void destroy(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void switch_to(void* fiber) { __tsan_switch_to_fiber(fiber, 1 /* no synchronisation */); }
inline void acquire(void* tag) { __tsan_acquire(tag); }
inline void release(void* tag) { __tsan_release(tag); }
#else
inline void* current() { return nullptr; }
inline void* create() { return nullptr; }
inline void destroy(void*) {}
inline void switch_to(void*) {}
inline void acquire(void*) {}
inline void release(void*) {}
#endif
}  // namespace tsan

#ifdef SIMT_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

// The build that counts what kernels ask of memory (microscope/).
#ifdef SIMT_MICROSCOPE
constexpr bool kMicroscope = true;
#else
constexpr bool kMicroscope = false;
#endif

}  // namespace simt
