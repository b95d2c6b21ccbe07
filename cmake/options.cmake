# The options of the build, in one place.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Kernels by nvcc for a GPU, or by the C++ compiler for common/simt.
execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
include(CheckLanguage)
if(no_gpu EQUAL 0)
  check_language(CUDA)
endif()
if(no_gpu EQUAL 0 AND CMAKE_CUDA_COMPILER)
  set(default_gpu ON)
else()
  set(default_gpu OFF)
endif()
option(ATTN_GPU "Compile kernels with nvcc; OFF: run them on the CPU (common/simt)" ${default_gpu})

set(ATTN_SANITIZE "" CACHE STRING "Sanitizers of the CPU build: empty, address, thread or memory")
set_property(CACHE ATTN_SANITIZE PROPERTY STRINGS "" address thread memory)

option(ATTN_MICROSCOPE "Count what kernels ask of memory (common/simt/microscope; clang only)" OFF)
if(ATTN_MICROSCOPE AND (ATTN_GPU OR ATTN_SANITIZE OR NOT CMAKE_CXX_COMPILER_ID MATCHES Clang))
  message(FATAL_ERROR "ATTN_MICROSCOPE needs clang, ATTN_GPU=OFF and no ATTN_SANITIZE: "
    "use the preset `microscope`")
endif()

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>)

if(ATTN_GPU)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES native)
  endif()
  # "native" is sm_90 on Hopper, without the instructions that only this chip has.
  if(CMAKE_CUDA_ARCHITECTURES STREQUAL native)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE capabilities OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(capabilities MATCHES "^9\\.0(\n9\\.0)*$")
      set(CMAKE_CUDA_ARCHITECTURES 90a)
    endif()
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 (Debian 12) does not know nvcc's flag for C++20.
  set(CMAKE_CUDA_STANDARD 20)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  # -lineinfo: profilers and compute-sanitizer name source lines; the code stays the same.
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>
                      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -Wall,-Wextra>")
elseif(ATTN_SANITIZE STREQUAL "address")
  # -O1 -g1: reports with lines, at half the time to compile.
  add_compile_options(-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
elseif(ATTN_SANITIZE STREQUAL "thread")
  add_compile_options(-O1 -g1 -fsanitize=thread)
  add_link_options(-fsanitize=thread)
elseif(ATTN_SANITIZE STREQUAL "memory")
  # The kernels are instrumented alone (attn_cuda_sources): the libraries are not, and what they
  # write would seem never to have been.
  add_compile_options(-O1 -g1)
  add_link_options(-fsanitize=memory)
elseif(ATTN_SANITIZE)
  message(FATAL_ERROR
    "ATTN_SANITIZE is '${ATTN_SANITIZE}'; it may be empty, address, thread or memory")
endif()

# Without a GPU the same .cu files are C++ sources. Their #pragma unroll is nvcc's: clang would obey
# it, and g++ -O3 unrolls without being told. Neither makes the emulation faster, and it takes
# minutes to compile.
function(attn_cuda_sources)
  if(ATTN_GPU)
    return()
  endif()
  set(options -Wno-unknown-pragmas)
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    list(APPEND options -mllvm -pragma-unroll-threshold=1 -Wno-pass-failed)
  endif()
  if(ATTN_MICROSCOPE)
    # Every load, store and basic block calls common/simt/microscope/hooks.cpp. -O1 accesses memory
    # as often as nvcc's code does: less keeps registers in memory, more unrolls divergent loops.
    # Blocks stay in the order of the source, by which the lanes of a warp find together again.
    list(APPEND options -O1 -fsanitize=thread -fsanitize-coverage=bb,no-prune,trace-pc
      -fno-vectorize -fno-slp-vectorize -mllvm -tsan-instrument-read-before-write=1
      -mllvm -disable-block-placement -mllvm -sink-common-insts=0
      -mllvm -hoist-common-insts=0 -mllvm -disable-vector-combine
      -mllvm -disable-loop-idiom-all -gline-tables-only
      -gdwarf-4)
  elseif(ATTN_SANITIZE STREQUAL "memory")
    # Device and shared memory are what can be unwritten here; a stack frame that code without
    # instrumentation has filled would look so too. Origins name the line that read it.
    list(APPEND options -fsanitize=memory -fsanitize-memory-track-origins=2
      -mllvm -msan-poison-stack=0)
  elseif(NOT ATTN_SANITIZE)
    list(APPEND options $<$<CONFIG:Release>:-O2>)
  endif()
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${options}")
endfunction()

# For a target whose own code takes no time when it runs, such as unit tests: compiled without
# optimisation, in half the time. What it calls, kernels, emulator and reference, is compiled apart.
function(attn_compile_quickly target)
  if(NOT ATTN_GPU)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
endfunction()
