// The functions that clang's instrumentation calls (-fsanitize=thread, -fsanitize-coverage=trace-pc),
// in place of ThreadSanitizer's runtime, which is not linked: every load, store and atomic of the
// kernels, every call, every basic block.
//
// Names and arguments: LLVM's ThreadSanitizer.cpp and SanitizerCoverage.cpp.

#include <cstdint>

#include "common/simt/microscope/recorder.hpp"

namespace {

using simt::microscope::Kind;
using simt::microscope::Recorder;

inline void access(Kind kind, const void* address, int bytes, const void* code) {
  if (Recorder* recorder = Recorder::current())
    recorder->access(kind, reinterpret_cast<uint64_t>(address), bytes, code);
}

}  // namespace

#define CODE __builtin_return_address(0)
#define HOOK extern "C" __attribute__((visibility("default"))) void

HOOK __tsan_init() {}
HOOK __tsan_func_entry(void* call) {
  if (Recorder* recorder = Recorder::current()) recorder->enter_call(call);
}
HOOK __tsan_func_exit() {
  if (Recorder* recorder = Recorder::current()) recorder->leave_call();
}
HOOK __sanitizer_cov_trace_pc() {
  if (Recorder* recorder = Recorder::current()) recorder->basic_block(CODE);
}
HOOK __tsan_vptr_update(void**, void*) {}
HOOK __tsan_vptr_read(void**) {}

#define ACCESSES(bytes)                                                                          \
  HOOK __tsan_read##bytes(void* address) { access(Kind::load, address, bytes, CODE); }           \
  HOOK __tsan_write##bytes(void* address) { access(Kind::store, address, bytes, CODE); }         \
  HOOK __tsan_read_write##bytes(void* address) {                                                 \
    access(Kind::load, address, bytes, CODE);                                                    \
    access(Kind::store, address, bytes, CODE);                                                   \
  }                                                                                              \
  HOOK __tsan_unaligned_read##bytes(void* address) { access(Kind::load, address, bytes, CODE); } \
  HOOK __tsan_unaligned_write##bytes(void* address) { access(Kind::store, address, bytes, CODE); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

// The strictest order is right for all. A comparing exchange is one turn of a loop
// (simt::atomic_update) and counts when it succeeds; the load before that loop is none of the
// kernel's.
#define ATOMICS(bits, T)                                                                   \
  extern "C" T __tsan_atomic##bits##_load(const volatile T* address, int) {                \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                     \
  }                                                                                        \
  HOOK __tsan_atomic##bits##_store(volatile T* address, T value, int) {                    \
    access(Kind::atomic, const_cast<T*>(address), bits / 8, CODE);                         \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                    \
  }                                                                                        \
  extern "C" T __tsan_atomic##bits##_exchange(volatile T* address, T value, int) {         \
    access(Kind::atomic, const_cast<T*>(address), bits / 8, CODE);                         \
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                          \
  }                                                                                        \
  extern "C" T __tsan_atomic##bits##_fetch_add(volatile T* address, T value, int) {        \
    access(Kind::atomic, const_cast<T*>(address), bits / 8, CODE);                         \
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);                           \
  }                                                                                        \
  extern "C" T __tsan_atomic##bits##_fetch_sub(volatile T* address, T value, int) {        \
    access(Kind::atomic, const_cast<T*>(address), bits / 8, CODE);                         \
    return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST);                           \
  }                                                                                        \
  extern "C" T __tsan_atomic##bits##_compare_exchange_val(volatile T* address, T expected, \
                                                          T value, int, int) {             \
    const bool done = __atomic_compare_exchange_n(address, &expected, value, false,        \
                                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
    if (done) access(Kind::atomic, const_cast<T*>(address), bits / 8, CODE);               \
    return expected;                                                                       \
  }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
HOOK __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
HOOK __tsan_atomic_signal_fence(int) {}
