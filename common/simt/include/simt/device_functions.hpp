// The functions and variables that CUDA predeclares for device code.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simt/emulator.hpp"

// Real variables, set whenever a thread continues, so that a debugger can print them.
// constinit: without it every access would go through an initialisation check.
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
extern const int warpSize;  // no compile-time constant in CUDA, so none here

// The default arguments give every function the file and line of its caller.
#define SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(SIMT_SITE) { simt::block_barrier({file, line}); }

inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_SITE) {
  simt::WarpRequest request{"__syncwarp", simt::execute_syncwarp, mask, {file, line}};
  simt::warp_collective(request);
}

inline void __threadfence() { simt::thread_fence(); }
inline void __threadfence_block() { simt::thread_fence(); }

// --- Warp shuffles and votes ---

namespace simt {

template <class T>
T shuffle(const char* name, WarpRequest::Execute execute, unsigned mask, T value, int lane,
          int width, Site site) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "CUDA shuffles 32-bit and 64-bit numbers");
  T result;
  WarpRequest request{name, execute, mask, site, &value, &result, sizeof(T) / 4, lane, width};
  warp_collective(request);
  return result;
}

inline unsigned vote(const char* name, unsigned mask, int predicate, Site site) {
  unsigned ballot = 0;
  WarpRequest request{name, execute_ballot, mask, site, &predicate, &ballot};
  warp_collective(request);
  return ballot;
}

}  // namespace simt

template <class T>
T __shfl_sync(unsigned mask, T value, int source_lane, int width = 32, SIMT_SITE) {
  return simt::shuffle("__shfl_sync", simt::execute_shfl, mask, value, source_lane, width,
                       {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE) {
  return simt::shuffle("__shfl_up_sync", simt::execute_shfl_up, mask, value, int(delta), width,
                       {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE) {
  return simt::shuffle("__shfl_down_sync", simt::execute_shfl_down, mask, value, int(delta), width,
                       {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, SIMT_SITE) {
  return simt::shuffle("__shfl_xor_sync", simt::execute_shfl_xor, mask, value, lane_mask, width,
                       {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_SITE) {
  return simt::vote("__ballot_sync", mask, predicate, {file, line});
}
inline int __any_sync(unsigned mask, int predicate, SIMT_SITE) {
  return simt::vote("__any_sync", mask, predicate, {file, line}) != 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_SITE) {
  return simt::vote("__all_sync", mask, !predicate, {file, line}) == 0;
}

#undef SIMT_SITE

// --- Atomics: relaxed, as on the GPU ---

namespace simt {

// Replaces *address by f(old) and returns old; a loop, since floats have no atomic instructions.
template <class T, class F>
T atomic_update(T* address, F f) {
  T old, updated;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do {
    updated = f(old);
  } while (!__atomic_compare_exchange(address, &old, &updated, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
  return old;
}

}  // namespace simt

inline int atomicAdd(int* address, int value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline float atomicAdd(float* address, float value) {
  return simt::atomic_update(address, [=](float old) { return old + value; });
}
inline double atomicAdd(double* address, double value) {
  return simt::atomic_update(address, [=](double old) { return old + value; });
}
inline int atomicMax(int* address, int value) {
  return simt::atomic_update(address, [=](int old) { return old > value ? old : value; });
}
inline unsigned atomicMax(unsigned* address, unsigned value) {
  return simt::atomic_update(address, [=](unsigned old) { return old > value ? old : value; });
}
inline int atomicExch(int* address, int value) {
  return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}
inline unsigned atomicExch(unsigned* address, unsigned value) {
  return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}
inline float atomicExch(float* address, float value) {
  float old;
  __atomic_exchange(address, &value, &old, __ATOMIC_RELAXED);
  return old;
}
inline int atomicCAS(int* address, int compare, int value) {
  __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return compare;
}
inline unsigned atomicCAS(unsigned* address, unsigned compare, unsigned value) {
  __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return compare;
}

// --- Loads and stores, bits, mathematics ---

template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline int __float_as_int(float x) { return int(__float_as_uint(x)); }
inline float __int_as_float(int bits) { return __uint_as_float(unsigned(bits)); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float x, float y) { return x / y; }

// Overloads and not templates, as in CUDA, so that an int and an unsigned may meet.
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
inline long min(long a, long b) { return b < a ? b : a; }
inline long max(long a, long b) { return a < b ? b : a; }
inline unsigned long min(unsigned long a, unsigned long b) { return b < a ? b : a; }
inline unsigned long max(unsigned long a, unsigned long b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
