// Where a run happens: a measurement means nothing without it.
#pragma once

#include <string>

namespace attn::driver {

// Do kernels run on the CPU (common/simt)?
#ifdef ATTN_SIMT
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

// Does this build count what they ask of memory?
#ifdef SIMT_MICROSCOPE
inline constexpr bool kMicroscope = true;
#else
inline constexpr bool kMicroscope = false;
#endif

struct Environment {
  std::string device;  // the GPU's name; in the CPU build and for host stages, the CPU's
  std::string sm;      // "9.0"; "host"
  int sm_clock_mhz = 0, memory_clock_mhz = 0;
  std::string driver;   // the newest CUDA that the driver runs, "13.0"; empty without a GPU
  std::string toolkit;  // the CUDA runtime, "13.0"; without a GPU, the compiler
  std::string commit;
  std::string date;  // UTC, ISO 8601
};

// Throws BadInput if a GPU is needed and there is none.
Environment find_environment(bool on_host);

// Where kernels run, in one line for the reader.
std::string describe(const Environment& environment, bool on_host);

// Memory that can be allocated now, in bytes: on the device, and on the host within its container.
double free_device_bytes();
double free_host_bytes();

}  // namespace attn::driver
