cmake_minimum_required(VERSION 3.22)

# Writes commit.hpp, so that every result names the commit it was measured at. Run at each build.
execute_process(COMMAND git describe --always --dirty --abbrev=10
  WORKING_DIRECTORY ${ROOT} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define ATTN_COMMIT \"@commit@\"\n")
