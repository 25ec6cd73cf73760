# Compile options that every target of the project shares, and the two helpers that declare targets.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1")
# Lines are all that a sanitizer names, and what debuggers want besides takes a sixth of the build.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")

add_library(kv_options INTERFACE)
target_include_directories(kv_options INTERFACE "${CMAKE_SOURCE_DIR}")
# The baseline is x86-64-v2; files for AVX2 and AVX-512 raise it for themselves (kv_cpu_level).
# No contraction: mul + add must give the same bits in every file that claims so.
target_compile_options(kv_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wdouble-promotion -ffp-contract=off -fno-math-errno
  $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-march=x86-64-v2>
  $<$<BOOL:${KV_WARNINGS_AS_ERRORS}>:-Werror>)
target_compile_definitions(kv_options INTERFACE _POSIX_C_SOURCE=200809L
  KV_VERSION="${PROJECT_VERSION}")
if(KV_SANITIZE)
  target_compile_options(kv_options INTERFACE -fsanitize=${KV_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(kv_options INTERFACE -fsanitize=${KV_SANITIZE})
  if(KV_SANITIZE MATCHES "thread")
    # libuv is not built with -fsanitize=thread; its fences are invisible and reported by hand.
    target_compile_definitions(kv_options INTERFACE KV_THREAD_SANITIZER=1)
    target_compile_options(kv_options INTERFACE -Wno-tsan)
  endif()
  if(KV_SANITIZE MATCHES "undefined")
    target_compile_options(kv_options INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()

# kv_library(NAME SOURCES … LINK …): a static library of one module.
function(kv_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC kv_options ${ARG_LINK})
endfunction()

# kv_cpu_level(avx2|avx512 FILE …): compile these files for a higher CPU level.
function(kv_cpu_level level)
  if(level STREQUAL "avx2")
    set(flags "-mavx2;-mfma;-mf16c;-mbmi2")
  else()
    set(flags "-mavx2;-mfma;-mf16c;-mbmi2;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni")
  endif()
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${flags}")
endfunction()

# kv_test(LABEL NAME SOURCES … LINK …): a cmocka program tests/LABEL/… that ctest runs as LABEL.NAME.
function(kv_test label name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(KV_SANITIZE)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  add_executable(test_${label}_${name} ${ARG_SOURCES})
  target_link_libraries(test_${label}_${name} PRIVATE kv_options ${ARG_LINK} PkgConfig::CMOCKA)
  set_target_properties(test_${label}_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME ${label}.${name} COMMAND test_${label}_${name} ${ARG_ARGS})
  set_tests_properties(${label}.${name} PROPERTIES LABELS ${label} TIMEOUT ${ARG_TIMEOUT}
    SKIP_RETURN_CODE 77 WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
endfunction()
