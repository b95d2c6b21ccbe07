// The header of this name in builds without a GPU: kernels include <cuda_runtime.h> as they always
// do, and a host C++20 compiler finds here the part of CUDA that this repository uses. How it is
// executed: common/simt/README.md.
#pragma once

#include "simt/qualifiers.hpp"
#include "simt/vector_types.hpp"

#include "simt/device_functions.hpp"
#include "simt/runtime_api.hpp"
