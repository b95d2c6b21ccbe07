#include "common/driver/environment.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <ctime>
#include <fstream>

#include "commit.hpp"
#include "common/cuda_check.hpp"
#include "common/driver/options.hpp"
#include "common/parallel.hpp"

namespace attn::driver {
namespace {

// The value of the first line of a /proc file that begins with `key`; empty if there is none.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t value = line.find_first_not_of(" \t:", line.find(':'));
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string cpu_name() {
  for (const char* key : {"model name", "Model", "cpu model"})
    if (const std::string name = proc_value("/proc/cpuinfo", key); !name.empty()) return name;
  return "unknown CPU";
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

// CUDA writes 13.1 as 13010.
std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int attribute(cudaDeviceAttr name) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

}  // namespace

Environment find_environment(bool on_host) {
  Environment found;
  found.commit = ATTN_COMMIT;
  found.date = utc_date();
  if (on_host || kEmulated) {
    found.device = cpu_name();
    found.sm = "host";
    found.toolkit = compiler_name();
    return found;
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0)
    throw BadInput(std::string("no CUDA device found (") +
                   (error != cudaSuccess ? cudaGetErrorString(error) : "none is visible") +
                   "); the cpu preset runs without one");
  int device = 0, driver = 0, runtime = 0;
  cudaDeviceProp properties;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaGetDeviceProperties(&properties, device));
  cuda_check(cudaDriverGetVersion(&driver));
  cuda_check(cudaRuntimeGetVersion(&runtime));
  found.device = properties.name;
  found.sm = std::to_string(properties.major) + "." + std::to_string(properties.minor);
  found.sm_clock_mhz = attribute(cudaDevAttrClockRate) / 1000;
  found.memory_clock_mhz = attribute(cudaDevAttrMemoryClockRate) / 1000;
  found.driver = cuda_version(driver);
  found.toolkit = cuda_version(runtime);
  return found;
}

std::string describe(const Environment& where, bool on_host) {
  if (on_host || kEmulated)
    return std::string(on_host ? "CPU" : "CPU, emulated") + " (" + where.device + ", " +
           std::to_string(core_count()) + " threads, " + where.toolkit + ")";
  return where.device + ", sm " + where.sm + ", driver " + where.driver + ", toolkit " +
         where.toolkit;
}

double free_device_bytes() {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total));
  return free;
}

double free_host_bytes() {
  double free = 0;  // 0: not known
  try {
    free = 1024 * std::stod(proc_value("/proc/meminfo", "MemAvailable"));
  } catch (const std::exception&) {
    return 1e18;  // no such file: let the allocation decide
  }
  // A container may use less than the machine has.
  double limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used)
    free = std::min(free, std::max(0.0, limit - used));
  return free;
}

}  // namespace attn::driver
