# cmake -DPROGRAM=broken_kernels -DNAME=... -DKIND="data race" -DSOURCE=broken_kernels.cpp -P ...
# Passes only if the program fails with a sanitizer's report of that kind that names the line of the
# source marked FAULT(NAME).
file(STRINGS ${SOURCE} lines)
set(number 0)
set(fault 0)
foreach(line IN LISTS lines)
  math(EXPR number "${number} + 1")
  if(line MATCHES "FAULT\\(${NAME}\\)")
    set(fault ${number})
  endif()
endforeach()
if(fault EQUAL 0)
  message(FATAL_ERROR "${SOURCE} has no line marked FAULT(${NAME})")
endif()

execute_process(COMMAND ${PROGRAM} ${NAME} RESULT_VARIABLE status OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
get_filename_component(file ${SOURCE} NAME)
if(status EQUAL 0)
  message(FATAL_ERROR "${NAME}: nothing was reported\n${output}")
endif()
if(NOT output MATCHES "${KIND}")
  message(FATAL_ERROR "${NAME}: the report is not of kind '${KIND}'\n${output}")
endif()
if(NOT output MATCHES "${file}:${fault}[^0-9]")
  message(FATAL_ERROR "${NAME}: the report does not name ${file}:${fault}\n${output}")
endif()
if(NOT output MATCHES "CUDA thread \\([0-9]+, [0-9]+, [0-9]+\\) of block \\([0-9]+, [0-9]+, [0-9]+\\)"
    # One shows when the host looks at the result; g++'s UBSan has no way to be asked.
    AND NOT NAME MATCHES "^(unwritten_shared|misaligned)$")
  message(FATAL_ERROR "${NAME}: the report does not name the CUDA thread\n${output}")
endif()
message("${NAME}: reported as '${KIND}' at ${file}:${fault}")
