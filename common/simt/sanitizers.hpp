// What the sanitizers must be told: to AddressSanitizer, on which stack we are; to ThreadSanitizer,
// which CUDA thread is running and what orders its memory accesses; to MemorySanitizer, which memory
// holds nothing yet. In builds without them these functions do nothing.
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
#endif

#ifdef SIMT_MSAN
#include <sanitizer/msan_interface.h>
extern "C" {
extern __thread unsigned long long __msan_param_tls[100];
void __msan_set_poison_in_malloc(int);
}
#endif

#if defined(SIMT_ASAN) || defined(SIMT_MSAN)
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef SIMT_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
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

// Calls `report` when a sanitizer ends the program, behind its own report.
#if defined(SIMT_ASAN) || defined(SIMT_MSAN)
inline void at_sanitizer_report(void (*report)()) { __sanitizer_set_death_callback(report); }
#else
inline void at_sanitizer_report(void (*)()) {}
#endif

// One TSan fiber per CUDA thread. Only acquire() and release() order memory: a switch does not.
namespace tsan {
#ifdef SIMT_TSAN
inline void* current() { return __tsan_get_current_fiber(); }
inline void* create() { return __tsan_create_fiber(0); }
inline void name(void* fiber, const char* text) { __tsan_set_fiber_name(fiber, text); }
inline void destroy(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void switch_to(void* fiber) { __tsan_switch_to_fiber(fiber, 1 /* no synchronisation */); }
inline void acquire(void* tag) { __tsan_acquire(tag); }
inline void release(void* tag) { __tsan_release(tag); }
#else
inline void* current() { return nullptr; }
inline void* create() { return nullptr; }
inline void name(void*, const char*) {}
inline void destroy(void*) {}
inline void switch_to(void*) {}
inline void acquire(void*) {}
inline void release(void*) {}
#endif
}  // namespace tsan

#ifdef SIMT_MSAN
constexpr bool kMsan = true;
#else
constexpr bool kMsan = false;
#endif

#ifdef SIMT_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

// Only kernels are instrumented: what the emulator and the drivers write is always taken to be there.
namespace msan {
#ifdef SIMT_MSAN
inline void forget(void* memory, std::size_t bytes) {
  __msan_set_poison_in_malloc(1);  // which is off: host memory is none of its business
  __msan_allocated_memory(memory, bytes);
  __msan_set_poison_in_malloc(0);
}
// For host memory that is made of it next.
inline void remember(void* memory, std::size_t bytes) { __msan_unpoison(memory, bytes); }
inline void require_written(const void* memory, std::size_t bytes) {
  __msan_check_mem_is_initialized(memory, bytes);
}
// What is known of `from` holds for `to`.
inline void copied(void* to, const void* from, std::size_t bytes) {
  __msan_copy_shadow(to, from, bytes);
}
// The arguments of the next call, whose caller is not instrumented, are there.
inline void arguments_are_written() { __builtin_memset(__msan_param_tls, 0, 64); }
#else
inline void forget(void*, std::size_t) {}
inline void remember(void*, std::size_t) {}
inline void require_written(const void*, std::size_t) {}
inline void copied(void*, const void*, std::size_t) {}
inline void arguments_are_written() {}
#endif
}  // namespace msan

// The build that counts what kernels ask of memory (microscope/).
#ifdef SIMT_MICROSCOPE
constexpr bool kMicroscope = true;
#else
constexpr bool kMicroscope = false;
#endif

}  // namespace simt
