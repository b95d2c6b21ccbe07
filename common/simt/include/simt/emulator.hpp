// What the emulator offers to the headers that spell CUDA: launch, barriers, warp collectives,
// shared memory, asynchronous copies. Kernels do not use it directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "simt/vector_types.hpp"

namespace simt {

// A place in the source, as __builtin_FILE() and __builtin_LINE() give it. (clang 14 has no
// std::source_location.)
struct Site {
  const char* file = "";
  int line = 0;
};

// A kernel broke a rule of CUDA. Thrown to the caller of the launch.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs `kernel(context)` for every thread of the grid and returns when all have ended. `function` is
// the kernel that it calls, for reports.
void launch(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, Site site,
            const void* function, void (*kernel)(const void*), const void* context);

void block_barrier(Site site);

// A warp's arrival at one of the barriers 1 to 15, called by all of its lanes. Those that `wait`
// continue when `threads` threads have arrived.
struct NamedBarrierOperands {
  int barrier, threads;
  bool wait;
  bool operator==(const NamedBarrierOperands&) const = default;
};
void named_barrier(const char* name, const NamedBarrierOperands& operands, Site site);

void thread_fence();

// One lane's part in an operation of its warp. The last lane of the mask to arrive calls `execute`
// with the requests of all, indexed by lane; the others wait until then.
struct WarpRequest {
  using Execute = void (*)(WarpRequest* const* lanes, unsigned mask);

  const char* name;  // "__shfl_sync"
  Execute execute;
  unsigned mask;
  Site site;
  const void* in = nullptr;
  void* out = nullptr;
  int words = 1;  // a shuffle's size, in units of 32 bits
  int lane = 0;   // a shuffle's source lane, lane mask or delta
  int width = 32;
};
void warp_collective(WarpRequest& request);

// The operations, to be named in WarpRequest::execute.
void execute_syncwarp(WarpRequest* const* lanes, unsigned mask);
void execute_shfl(WarpRequest* const* lanes, unsigned mask);
void execute_shfl_up(WarpRequest* const* lanes, unsigned mask);
void execute_shfl_down(WarpRequest* const* lanes, unsigned mask);
void execute_shfl_xor(WarpRequest* const* lanes, unsigned mask);
void execute_ballot(WarpRequest* const* lanes, unsigned mask);  // in: int, out: unsigned
// in: a row of 16 bytes; `words`: how many 8 x 8 matrices; out: as many registers
void execute_ldmatrix(WarpRequest* const* lanes, unsigned mask);
void execute_ldmatrix_trans(WarpRequest* const* lanes, unsigned mask);
// in: MmaOperands, out: float[4]
struct MmaOperands {
  uint32_t a[4], b[2];
  float c[4];
};
void execute_mma_m16n8k16_bf16(WarpRequest* const* lanes, unsigned mask);
void execute_mma_m16n8k16_fp16(WarpRequest* const* lanes, unsigned mask);
void execute_mma_m16n8k8_tf32(WarpRequest* const* lanes, unsigned mask);

// The block's shared memory: a static part, described by one type per kernel (whose identity is
// `type`), and a dynamic part, of the size that the launch asked for.
void* static_shared(std::size_t bytes, const void* type);
void* dynamic_shared(std::size_t least_bytes);

// An error unless [address, address + bytes) lies in the block's shared memory and is aligned.
void require_shared(const char* what, const void* address, std::size_t bytes, Site site);

// cp.async: a copy that is queued when issued and performed by the issuing thread when it waits,
// so that reading too early gives what was there before.
struct AsyncCopy {
  void* destination;
  const void* source;
  int bytes;
  bool valid;  // false: write zeros and do not read
};
// True if the copy was queued; false if it is to be performed at once (SIMT_CP_ASYNC=early).
bool queue_copy(const AsyncCopy& copy, Site site);
void commit_copies();
// Takes the oldest copy of all but the `allowed` latest groups; false if there is none.
bool next_copy(int allowed, AsyncCopy* copy);

}  // namespace simt
