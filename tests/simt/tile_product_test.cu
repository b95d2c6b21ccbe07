// cp.async, ldmatrix and mma.sync, from single instructions to a tile product against float64.
#include "orders.hpp"

#include <cuda_bf16.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/fp16.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/shared_storage.cuh"

namespace attn {
namespace {

// --- ldmatrix: which element arrives in which lane and register ---

struct MatricesStorage {
  alignas(16) unsigned short elements[4][8][8];
};

// Element (row, column) of matrix m holds the number m * 64 + row * 8 + column.
template <int N, bool Transposed>
__global__ void ldmatrix_kernel(uint32_t* out) {
  auto& smem = shared_storage<MatricesStorage>();
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) smem.elements[i / 64][i / 8 % 8][i % 8] = i;
  __syncwarp();  // all elements are there
  uint32_t registers[N];
  // Lanes from 8 N on give an address that must not be used.
  const void* row = lane < 8 * N ? smem.elements[lane / 8][lane % 8] : nullptr;
  if constexpr (Transposed) {
    ldmatrix_trans(registers, row);
  } else {
    ldmatrix(registers, row);
  }
  for (int m = 0; m < N; ++m) out[lane * N + m] = registers[m];
}

template <int N, bool Transposed>
void check_ldmatrix() {
  const DeviceBuffer<uint32_t> out(32 * N);
  launch({1, 32}, ldmatrix_kernel<N, Transposed>, out.data());
  const std::vector<uint32_t> got = out.to_host();
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < N; ++m) {
      const int i = lane / 4, j = lane % 4 * 2;
      const uint32_t first = m * 64 + (Transposed ? j * 8 + i : i * 8 + j);
      const uint32_t second = m * 64 + (Transposed ? (j + 1) * 8 + i : i * 8 + j + 1);
      EXPECT_EQ(got[lane * N + m], first | second << 16) << "lane " << lane << " register " << m;
    }
  }
}

TEST_P(InEveryOrder, Ldmatrix) {
  check_ldmatrix<1, false>();
  check_ldmatrix<2, false>();
  check_ldmatrix<4, false>();
  check_ldmatrix<1, true>();
  check_ldmatrix<2, true>();
  check_ldmatrix<4, true>();
}

// --- Products of 64 x 64 tiles: four warps, 16 rows each ---

constexpr int kTile = 64;

std::vector<float> random_matrix(unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> matrix(kTile * kTile);
  for (float& x : matrix) x = normal(generator);
  return matrix;
}

// || out - a b || / || a b || with the product in float64; NaN if any element is.
template <class T>
double product_error(const std::vector<T>& a, const std::vector<T>& b,
                     const std::vector<float>& out) {
  double difference = 0, norm = 0;
  for (int i = 0; i < kTile; ++i) {
    for (int j = 0; j < kTile; ++j) {
      double sum = 0;
      for (int k = 0; k < kTile; ++k) sum += double(a[i * kTile + k]) * double(b[k * kTile + j]);
      difference += std::pow(out[i * kTile + j] - sum, 2);
      norm += sum * sum;
    }
  }
  return std::sqrt(difference / norm);
}

// Where lane l's four results of an m16n8 tile go.
__device__ void store_tile(float* out, const float (&d)[4], int row, int column) {
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    out[(row + lane / 4 + i / 2 * 8) * kTile + column + lane % 4 * 2 + i % 2] = d[i];
  }
}

struct Bf16Storage {
  // 8 elements of padding: the 8 rows that ldmatrix reads then lie in different banks.
  alignas(16) __nv_bfloat16 a[kTile][kTile + 8];
  alignas(16) __nv_bfloat16 b[kTile][kTile + 8];
};

__global__ void bf16_product_kernel(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out) {
  auto& smem = shared_storage<Bf16Storage>();
  for (int i = threadIdx.x; i < kTile * kTile / 8; i += blockDim.x) {
    const int row = i / (kTile / 8), column = i % (kTile / 8) * 8;
    cp_async<16>(&smem.a[row][column], a + row * kTile + column);
    cp_async<16>(&smem.b[row][column], b + row * kTile + column);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();  // every thread's part of the tiles has arrived

  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
  for (int column = 0; column < kTile; column += 8) {
    float d[4] = {0, 0, 0, 0};
    for (int k = 0; k < kTile; k += 16) {
      uint32_t a_fragment[4], b_fragment[2];
      ldmatrix(a_fragment, &smem.a[row + lane % 16][k + lane / 16 * 8]);
      ldmatrix_trans(b_fragment, &smem.b[k + lane % 16][column]);
      mma_m16n8k16(d, a_fragment, b_fragment, d);
    }
    store_tile(out, d, row, column);
  }
}

TEST_P(InEveryOrder, Bf16TileProduct) {
  std::vector<__nv_bfloat16> a, b;
  for (float x : random_matrix(1)) a.push_back(__float2bfloat16(x));
  for (float x : random_matrix(2)) b.push_back(__float2bfloat16(x));
  const DeviceBuffer<__nv_bfloat16> a_device(a), b_device(b);
  const DeviceBuffer<float> out(kTile * kTile);
  launch({1, 128}, bf16_product_kernel, a_device.data(), b_device.data(), out.data());
  // Products of bf16 are exact in float; only the sums round.
  EXPECT_LE(product_error(a, b, out.to_host()), 1e-6);
}

// The same by fp16: of floats, packed on the way to the fragments.
__global__ void fp16_product_kernel(const float* a, const float* b, float* out) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = threadIdx.x / 32 * 16;
  for (int column = 0; column < kTile; column += 8) {
    float d[4] = {0, 0, 0, 0};
    for (int k = 0; k < kTile; k += 16) {
      uint32_t a_fragment[4], b_fragment[2];
      for (int i = 0; i < 4; ++i) {
        const float* x = a + (row + g + i % 2 * 8) * kTile + k + t * 2 + i / 2 * 8;
        a_fragment[i] = pack_halves(x[0], x[1]);
      }
      for (int i = 0; i < 2; ++i) {
        const float* x = b + (k + t * 2 + i * 8) * kTile + column + g;
        b_fragment[i] = pack_halves(x[0], x[kTile]);
      }
      mma_m16n8k16_fp16(d, a_fragment, b_fragment, d);
    }
    store_tile(out, d, row, column);
  }
}

TEST_P(InEveryOrder, Fp16TileProduct) {
  const std::vector<float> a = random_matrix(5), b = random_matrix(6);
  const DeviceBuffer<float> a_device(a), b_device(b), out(kTile * kTile);
  launch({1, 128}, fp16_product_kernel, a_device.data(), b_device.data(), out.data());
  EXPECT_LE(product_error(a, b, out.to_host()), 4e-4);  // two roundings to 10 bits of mantissa
  EXPECT_GE(product_error(a, b, out.to_host()), 1e-4);
}

// --- fp16: what becomes of a float, there and back ---

__global__ void through_fp16_kernel(const float* in, float* out, int n) {
  const int i = threadIdx.x * 2;
  if (i + 1 >= n) return;
  const float2 x = halves_to_floats(pack_halves(in[i], in[i + 1]));
  out[i] = x.x;
  out[i + 1] = x.y;
}

TEST_P(InEveryOrder, Fp16RoundsToNearestEven) {
  const float kInfinite = INFINITY;
  const std::pair<float, float> expected[] = {
      {0, 0},
      {-0.0f, -0.0f},
      {1, 1},
      {-2.5f, -2.5f},
      {1 + 0x1p-11f, 1},               // a tie, to the even of the two
      {1 + 0x3p-11f, 1 + 0x1p-9f},     // likewise
      {1 + 0x1.1p-11f, 1 + 0x1p-10f},  // over half
      {65504, 65504},                  // the largest
      {65519, 65504},
      {65520, kInfinite},
      {-1e30f, -kInfinite},
      {kInfinite, kInfinite},
      {0x1p-14f, 0x1p-14f},          // the smallest with all of its mantissa
      {0x1.ff8p-15f, 0x1.ff8p-15f},  // below it: multiples of 2^-24
      {0x1.ffcp-15f, 0x1p-14f},
      {0x1p-24f, 0x1p-24f},
      {0x1.8p-24f, 0x1p-23f},
      {0x1p-25f, 0},
      {0x1.1p-25f, 0x1p-24f},
      {1e-30f, 0}};
  std::vector<float> in;
  for (const auto& [x, y] : expected) in.push_back(x);
  const int n = static_cast<int>(in.size());
  const DeviceBuffer<float> in_device(in), out(n);
  launch({1, 32}, through_fp16_kernel, in_device.data(), out.data(), n);
  const std::vector<float> got = out.to_host();
  for (int i = 0; i < n; ++i) {
    EXPECT_EQ(got[i], expected[i].second) << expected[i].first;
    EXPECT_EQ(std::signbit(got[i]), std::signbit(expected[i].second)) << expected[i].first;
  }
}

template <bool Rounded>
__global__ void tf32_product_kernel(const float* a, const float* b, float* out) {
  auto operand = [](float x) { return Rounded ? to_tf32(x) : __float_as_uint(x); };
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = threadIdx.x / 32 * 16;
  for (int column = 0; column < kTile; column += 8) {
    float d[4] = {0, 0, 0, 0};
    for (int k = 0; k < kTile; k += 8) {
      const uint32_t a_fragment[4] = {
          operand(a[(row + g) * kTile + k + t]), operand(a[(row + g + 8) * kTile + k + t]),
          operand(a[(row + g) * kTile + k + t + 4]), operand(a[(row + g + 8) * kTile + k + t + 4])};
      const uint32_t b_fragment[2] = {operand(b[(k + t) * kTile + column + g]),
                                      operand(b[(k + t + 4) * kTile + column + g])};
      mma_m16n8k8_tf32(d, a_fragment, b_fragment, d);
    }
    store_tile(out, d, row, column);
  }
}

// What is left of x in the tensor core: 10 bits of mantissa, rounded or cut.
float tf32_value(float x, bool rounded) {
  int exponent;
  const double mantissa = std::frexp(double(x), &exponent) * 2048;  // 11 bits before the point
  const double kept = rounded ? std::round(mantissa) : std::trunc(mantissa);
  return float(std::ldexp(kept / 2048, exponent));
}

TEST_P(InEveryOrder, Tf32TileProduct) {
  const std::vector<float> a = random_matrix(3), b = random_matrix(4);
  const DeviceBuffer<float> a_device(a), b_device(b), out(kTile * kTile);
  for (bool rounded : {true, false}) {
    launch({1, 128}, rounded ? tf32_product_kernel<true> : tf32_product_kernel<false>,
           a_device.data(), b_device.data(), out.data());
    std::vector<float> a_seen = a, b_seen = b;
    for (float& x : a_seen) x = tf32_value(x, rounded);
    for (float& x : b_seen) x = tf32_value(x, rounded);
    EXPECT_LE(product_error(a_seen, b_seen, out.to_host()), 1e-6) << "rounded: " << rounded;
    EXPECT_LE(product_error(a, b, out.to_host()), rounded ? 1e-3 : 2e-3);
  }
}

// --- cp.async: a double-buffered sum over rows of any length ---

template <int Bytes>
struct PipelineStorage {
  static constexpr int kElements = Bytes / 4;
  alignas(16) float rows[2][32][kElements];
};

// out[t] = sum over chunks of the elements that thread t of its chunk would hold; zeros behind n.
template <int Bytes>
__global__ void pipeline_kernel(const float* in, float* out, int n) {
  constexpr int kElements = Bytes / 4;
  constexpr int kChunk = 32 * kElements;
  auto& smem = shared_storage<PipelineStorage<Bytes>>();
  const int t = threadIdx.x;
  auto fetch = [&](int chunk) {
    const int first = chunk * kChunk + t * kElements;
    cp_async<Bytes>(smem.rows[chunk % 2][t], in + first, first < n);
    cp_async_commit();
  };
  const int chunks = (n + kChunk - 1) / kChunk;
  float sum = 0;
  fetch(0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    fetch(chunk + 1);
    cp_async_wait<1>();
    __syncthreads();  // chunk has arrived, the other threads' part too
    for (int i = 0; i < kElements; ++i) sum += smem.rows[chunk % 2][31 - t][i];
    __syncthreads();  // all have read it before the next round overwrites it
  }
  cp_async_wait<0>();
  out[31 - t] = sum;
}

template <int Bytes>
void check_pipeline(int n) {
  std::vector<float> in(n);
  for (int i = 0; i < n; ++i) in[i] = float(i % 13 + 1);
  const DeviceBuffer<float> input(in), out(32);
  launch({1, 32}, pipeline_kernel<Bytes>, input.data(), out.data(), n);
  const std::vector<float> got = out.to_host();
  std::vector<float> expected(32, 0.0f);
  for (int i = 0; i < n; ++i) expected[i / (Bytes / 4) % 32] += in[i];
  EXPECT_EQ(got, expected) << Bytes << " bytes, n = " << n;
}

TEST_P(InEveryOrder, CpAsyncPipeline) {
  for (const char* mode : {"late", "early"}) {
    setenv("SIMT_CP_ASYNC", mode, 1);
    // Multiples of the copy's size, since a copy is valid as a whole.
    for (int n : {4, 128, 132, 1000, 4096}) {
      check_pipeline<4>(n);
      check_pipeline<8>(n);
      check_pipeline<16>(n);
    }
  }
  unsetenv("SIMT_CP_ASYNC");
}

}  // namespace
}  // namespace attn
