# cmake -DPROGRAM=… -DBUG=… "-DCASES=variant=words && variant=words …" -P must_fail.cmake: PROGRAM_FLAVOUR
# BUG must fail in each variant (seedN: plain with EMU_SEED=N; asan; tsan) with a message that
# matches the words, a regular expression.
string(REPLACE " && " ";" cases "${CASES}")
foreach(case ${cases})
  string(REGEX MATCH "^([a-z0-9]+)=(.*)$" case "${case}")
  set(variant ${CMAKE_MATCH_1})
  set(words "${CMAKE_MATCH_2}")
  set(flavour ${variant})
  unset(ENV{EMU_SEED})
  if(variant MATCHES "^seed([0-9]+)$")
    set(ENV{EMU_SEED} ${CMAKE_MATCH_1})
    set(flavour plain)
  endif()
  execute_process(COMMAND "${PROGRAM}_${flavour}" ${BUG} TIMEOUT 60
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(status STREQUAL "0")
    message(SEND_ERROR "${variant}: ${BUG} passes\n${output}")
  elseif(NOT output MATCHES "${words}")
    message(SEND_ERROR "${variant}: ${BUG} ends with ${status}, but without \"${words}\"\n${output}")
  else()
    message(STATUS "${variant}: ${CMAKE_MATCH_0}")
  endif()
endforeach()
