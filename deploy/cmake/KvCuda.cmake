# CUDA: where its headers and its compiler are, and the rule that compiles kernels for GPUs.

# The emulator of the kernels' tests needs NVIDIA's headers and no compiler.
set(KV_CUDA_HEADERS "" CACHE PATH "CUDA's include folder; empty: what deploy/scripts/cuda-toolkit has")
set(KV_CUDA_TOOLKIT "" CACHE PATH "CUDA toolkit; empty: what deploy/scripts/cuda-toolkit has")
set(KV_CUDA_ARCHITECTURES 80 89 90 CACHE STRING "Compute capabilities that kernels are compiled for")

# kv_find_cuda(VARIABLE OPTION …): set it, where it is empty, to what the script finds.
function(kv_find_cuda variable)
  if(${variable})
    return()
  endif()
  execute_process(COMMAND "${CMAKE_SOURCE_DIR}/deploy/scripts/cuda-toolkit" --cached ${ARGN}
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
  if(status EQUAL 0)
    set(${variable} "${found}" CACHE PATH "Found by deploy/scripts/cuda-toolkit" FORCE)
  endif()
endfunction()

kv_find_cuda(KV_CUDA_HEADERS --headers)
if(KV_WITH_CUDA)
  kv_find_cuda(KV_CUDA_TOOLKIT --cublas)
  if(NOT KV_CUDA_TOOLKIT)
    message(FATAL_ERROR "KV_WITH_CUDA=ON: no CUDA toolkit of version 12 or later with cuBLAS was found; run "
      "deploy/scripts/cuda-toolkit --cublas, or set CUDA_HOME, or configure with -DKV_WITH_CUDA=OFF")
  endif()
  find_program(KV_NVCC nvcc PATHS "${KV_CUDA_TOOLKIT}/bin" NO_DEFAULT_PATH REQUIRED)
  find_library(KV_CUBLAS cublas PATHS "${KV_CUDA_TOOLKIT}/lib64" NO_DEFAULT_PATH REQUIRED)
  find_library(KV_CUDART_STATIC cudart_static PATHS "${KV_CUDA_TOOLKIT}/lib64" NO_DEFAULT_PATH REQUIRED)
  add_library(kv_cuda INTERFACE)
  target_include_directories(kv_cuda SYSTEM INTERFACE "${KV_CUDA_TOOLKIT}/include")
  target_link_libraries(kv_cuda INTERFACE "${KV_CUBLAS}" "${KV_CUDART_STATIC}" Threads::Threads rt
    ${CMAKE_DL_LIBS})
endif()

# No contraction, as on the CPU: a kernel says fmaf where it wants one. What spills registers or has
# an array in local memory is slower than it looks, and is an error. PTX is for GPUs of later years.
set(KV_NVCC_FLAGS -std=c++17 -O3 -fmad=false -Xptxas=-v,-warn-spills,-warn-lmem-usage
  -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra)
if(KV_WARNINGS_AS_ERRORS)
  list(APPEND KV_NVCC_FLAGS -Werror all-warnings)
endif()
foreach(architecture IN LISTS KV_CUDA_ARCHITECTURES)
  list(APPEND KV_NVCC_FLAGS -gencode arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(SORT KV_CUDA_ARCHITECTURES COMPARE NATURAL)
list(GET KV_CUDA_ARCHITECTURES -1 newest)
list(APPEND KV_NVCC_FLAGS -gencode arch=compute_${newest},code=compute_${newest})

# kv_nvcc(OBJECTS FILE …): OBJECTS is set to the object files of these kernels. Beside each NAME.o lies
# NAME.resources, what ptxas says that each of its kernels takes; all of them are the global property
# KV_CUDA_RESOURCES.
function(kv_nvcc objects)
  set(made "")
  foreach(source IN LISTS ARGN)
    get_filename_component(name "${source}" NAME)
    get_filename_component(source "${source}" ABSOLUTE)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.o")
    add_custom_command(OUTPUT "${object}" "${CMAKE_CURRENT_BINARY_DIR}/${name}.resources"
      COMMAND "${CMAKE_SOURCE_DIR}/deploy/cmake/nvcc_quietly"
        "${CMAKE_CURRENT_BINARY_DIR}/${name}.resources"
        "${KV_NVCC}" -ccbin "${CMAKE_CXX_COMPILER}" ${KV_NVCC_FLAGS} -I "${CMAKE_SOURCE_DIR}"
        -MD -MF "${object}.d" -MT "${object}" -c "${source}" -o "${object}"
      DEPENDS "${source}" "${CMAKE_SOURCE_DIR}/deploy/cmake/nvcc_quietly"
      DEPFILE "${object}.d" COMMENT "Compiling ${name} for ${KV_CUDA_ARCHITECTURES}" VERBATIM)
    list(APPEND made "${object}")
    set_property(GLOBAL APPEND PROPERTY KV_CUDA_RESOURCES
      "${CMAKE_CURRENT_BINARY_DIR}/${name}.resources")
  endforeach()
  set(${objects} ${made} PARENT_SCOPE)
endfunction()
