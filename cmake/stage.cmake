# What every stage's CMakeLists.txt includes: the options of the build, the libraries that stages
# share, and add_stage(). It works from the top-level CMakeLists.txt and from a stage's own, so that
# `cmake -S 03_shared_mem -B build/03` builds one stage alone.
include_guard(GLOBAL)

set(ATTN_ROOT ${CMAKE_CURRENT_LIST_DIR}/..)
get_filename_component(ATTN_ROOT ${ATTN_ROOT} ABSOLUTE)
include(${CMAKE_CURRENT_LIST_DIR}/options.cmake)

# add_stage(): the executable of the stage in the current folder, named like the folder, from its
# main.cu (or main.cpp, for a stage without kernels), and the test that it verifies itself, in every
# dtype.
function(add_stage)
  get_filename_component(name ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/main.cu)
    set(main main.cu)
  else()
    set(main main.cpp)
  endif()
  attn_cuda_sources(${main})
  add_executable(${name} ${main})
  target_link_libraries(${name} PRIVATE driver cpu_reference)

  if(ATTN_MICROSCOPE)
    # That its kernels can be counted, where rows have tails.
    if(main STREQUAL main.cu)
      add_test(NAME ${name}.work COMMAND ${name} --shape 1,2,40,20,24)
      set_property(TEST ${name}.work PROPERTY ENVIRONMENT ATTN_VERIFY_BUDGET=1e6)
    endif()
    return()
  endif()

  if(ATTN_SANITIZE STREQUAL "memory" AND main STREQUAL main.cpp)
    return()  # it has no kernels, and only these are instrumented
  endif()
  add_test(NAME ${name} COMMAND ${name} --verify-only)
  if(ATTN_SANITIZE)
    # A part of the shapes, in one order of threads: what a sanitizer reports depends on neither.
    set_property(TEST ${name} PROPERTY ENVIRONMENT ATTN_VERIFY_BUDGET=3e7)
    if(ATTN_SANITIZE STREQUAL "memory")  # on one core, and slowly
      set_property(TEST ${name} PROPERTY ENVIRONMENT ATTN_VERIFY_BUDGET=1e7)
    endif()
  elseif(NOT ATTN_GPU AND main STREQUAL main.cu)
    # The order in which emulated threads run between barriers must not matter, nor whether an
    # asynchronous copy lands at once or only when it is waited for.
    foreach(order reverse random)
      add_test(NAME ${name}.${order} COMMAND ${name} --verify-only)
      set_tests_properties(${name}.${order} PROPERTIES
        ENVIRONMENT "SIMT_ORDER=${order};SIMT_CP_ASYNC=early;ATTN_VERIFY_BUDGET=3e8")
    endforeach()
  endif()
endfunction()

add_subdirectory(${ATTN_ROOT}/common ${CMAKE_BINARY_DIR}/common)
# A stage built alone verifies against stage 01 too.
if(NOT PROJECT_NAME STREQUAL "01_cpu_reference" AND NOT PROJECT_NAME STREQUAL "attention_tour")
  add_subdirectory(${ATTN_ROOT}/01_cpu_reference ${CMAKE_BINARY_DIR}/01_cpu_reference)
endif()
