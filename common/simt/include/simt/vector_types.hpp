// dim3, uint3, float4 and their kin.
//
// may_alias, because kernels reinterpret rows of other types as float4 or uint4, which CUDA allows
// and which g++ -O2 would otherwise miscompile. The alignments are CUDA's: UBSan then reports a
// misaligned access, which on the GPU is an error too.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#ifdef SIMT_MICROSCOPE
// A copy is one access, as on the GPU: clang would make it one for each member. (The constructor
// from members is what an aggregate needs none for.)
#define SIMT_COPIED_WHOLE(name, T)                                             \
  name() = default;                                                            \
  __attribute__((always_inline)) name(const name& other) { *this = other; }    \
  __attribute__((always_inline)) name& operator=(const name& other) {          \
    typedef T __attribute__((vector_size(sizeof(name)), may_alias)) Whole;     \
    *reinterpret_cast<Whole*>(this) = *reinterpret_cast<const Whole*>(&other); \
    return *this;                                                              \
  }
#define SIMT_CONSTRUCTOR(...) __VA_ARGS__
#else
#define SIMT_COPIED_WHOLE(name, T)
#define SIMT_CONSTRUCTOR(...)
#endif

#define SIMT_VECTOR_TYPES(T, name, align2, align4)                                     \
  struct __attribute__((may_alias, aligned(align2))) name##2 {                         \
    T x, y;                                                                            \
    SIMT_CONSTRUCTOR(constexpr name##2(T x, T y) : x(x), y(y){})                       \
    SIMT_COPIED_WHOLE(name##2, T)                                                      \
  };                                                                                   \
  struct __attribute__((may_alias, aligned(align4))) name##4 {                         \
    T x, y, z, w;                                                                      \
    SIMT_CONSTRUCTOR(constexpr name##4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w){}) \
    SIMT_COPIED_WHOLE(name##4, T)                                                      \
  };                                                                                   \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                           \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

SIMT_VECTOR_TYPES(float, float, 8, 16)
SIMT_VECTOR_TYPES(int, int, 8, 16)
SIMT_VECTOR_TYPES(unsigned, uint, 8, 16)

#undef SIMT_VECTOR_TYPES

struct float3 {
  float x, y, z;
};
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }

struct __attribute__((may_alias, aligned(16))) double2 {
  double x, y;
  SIMT_CONSTRUCTOR(constexpr double2(double x, double y) : x(x), y(y){})
  SIMT_COPIED_WHOLE(double2, double)
};
inline double2 make_double2(double x, double y) { return {x, y}; }
